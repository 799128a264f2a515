"""The page on the real suite: every screen with real figures, and what it says while a part of the suite is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adlro.client import Client
from adlro.kit.testing import ROOT
from tests.browser.conftest import Watched
from tests.browser.pixels import leftmost
from tests.browser.test_accessibility import violations
from tests.e2e.running_suite import ADLRO, RunningSuite, environment, marked_pids, start_suite

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

# What a dead service leaves in the browser's console: the browser's own lines, not the page's.
AWAY = ["WebSocket connection", "Failed to load resource", "ERR_CONNECTION", "status of 50"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """`adlro up` with a stream of jobs, more than the cluster can take."""
    running = start_suite(tmp_path_factory.mktemp("page") / "data", "--port", "0", "--clock", "scaled", "--scale", "5")
    jobs = subprocess.Popen(
        [*ADLRO, "workload", "--load", "1.5", "--server", running.server],
        cwd=ROOT,
        env=environment(running.mark),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Client(running.server) as client:
            end = time.monotonic() + 120
            while client.status().queue_length < 5:
                assert time.monotonic() < end, "no job waits"
                time.sleep(0.5)
        yield running
    finally:
        jobs.send_signal(signal.SIGINT)
        try:
            jobs.wait(30)
        except subprocess.TimeoutExpired:  # as a person would
            jobs.send_signal(signal.SIGINT)
            jobs.wait(30)
        finally:
            code = running.end()
    assert code == 0, running.text
    assert marked_pids(running.mark) == []


def address(suite: RunningSuite) -> str:
    """The page's."""
    return next(word for word in suite.text.split() if word.startswith("http://")).rstrip("/")


def clock(page: Any) -> str:
    """The cluster's time in the bar."""
    return str(page.locator(".clock").inner_text())


def test_every_screen_shows_real_figures(suite: RunningSuite, watched: Callable[..., Watched]) -> None:
    with Client(suite.server) as client:
        waiting = next(job.job_id for job in client.list() if job.state.name == "PENDING")
    tab = watched(address(suite))
    page = tab.open("/")
    page.locator(".figure").first.wait_for()
    assert page.locator(".heatmap button").count() == 16
    assert violations(page) == []
    paths = ["/queue", f"/jobs/{waiting}", "/gpus/volta-0%2F0", "/submit", "/gantt", "/decisions", "/policies"]
    shown = page.locator("nav a").evaluate_all("(links) => links.map((link) => link.pathname)")
    for path in paths:
        if path.count("/") == 1 and path not in shown:
            continue
        tab.open(path)
        assert page.get_by_role("alert").count() == 0, f"{path}: {page.get_by_role('alert').first.inner_text()}"
        assert violations(page) == [], path

    # It may have got its GPU by now.
    tab.open(f"/jobs/{waiting}")
    regions = [page.get_by_role("region", name=name) for name in ("Why it waits", "Where it runs", "Where it ran")]
    assert sum(region.count() for region in regions) == 1


def test_a_job_of_the_form_is_in_the_suite_and_can_be_cancelled(
    suite: RunningSuite, watched: Callable[..., Watched]
) -> None:
    page = watched(address(suite)).open("/submit")
    page.get_by_role("textbox", name="Name").fill("from the page")
    page.get_by_role("textbox", name="Expected runtime").fill("1h")
    page.get_by_role("combobox", name="on GPU model").select_option("v100_sxm2")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-*")
    page.get_by_text("from the page").first.wait_for()
    job_id = page.url.rsplit("/", 1)[1]
    with Client(suite.server) as client:
        assert client.get(job_id).spec.name == "from the page"
        page.get_by_role("button", name="Cancel job").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
        page.locator(".title .job-cancelled").wait_for(timeout=60_000)
        assert client.get(job_id).state.name == "CANCELLED"


def test_a_held_job_and_an_array_after_it_are_submitted_held_and_released(
    suite: RunningSuite, watched: Callable[..., Watched]
) -> None:
    tab = watched(address(suite))
    page = tab.open("/submit")
    page.get_by_role("textbox", name="Begin").fill("now+2s")
    page.get_by_label("it is held").check()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-*")
    job_id = page.url.rsplit("/", 1)[1]
    page.locator(".title").get_by_text("held", exact=True).wait_for()
    page.get_by_role("listitem").filter(has_text="its release: held by").wait_for()

    tab.open("/submit")
    page.get_by_role("textbox", name="After", exact=True).fill(f"{job_id}:any")
    page.get_by_role("textbox", name="Array").fill("0-5%2")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/queue?array=array-*")
    page.get_by_text("6 jobs", exact=True).wait_for()
    page.locator("tbody a").first.click()
    page.wait_for_url("**/jobs/job-*")
    part = page.get_by_role("region", name="Its array")
    part.get_by_text("6 jobs, at most 2 at once").wait_for()
    waits = page.get_by_role("region", name="Why it waits").get_by_role("listitem")
    waits.filter(has_text=f"{job_id} must end").wait_for()
    page.get_by_role("button", name="Hold", exact=True).click()
    page.get_by_role("button", name="Release", exact=True).click()
    page.get_by_role("button", name="Hold", exact=True).wait_for()
    assert violations(page) == []
    part.get_by_role("button", name="Cancel array").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel array").click()
    part.get_by_role("listitem").filter(has_text="cancelled 6").wait_for()
    page.get_by_role("button", name="Submit again").wait_for()

    waits.first.wait_for(state="detached")
    page.get_by_role("link", name=job_id, exact=True).click()
    page.get_by_role("button", name="Release", exact=True).click()
    page.locator(".title").get_by_text("held", exact=True).wait_for(state="detached")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.locator(".title .job-cancelled").wait_for(timeout=60_000)


@pytest.mark.parametrize("name", ["ingest", "decompose", "orchestrator", "simcluster", "web", "valkey"])
def test_a_part_that_is_killed_is_told_and_the_page_recovers_by_itself(
    name: str, suite: RunningSuite, watched: Callable[..., Watched], record_property: Callable[[str, object], None]
) -> None:
    tab = watched(address(suite))
    tab.allowed += AWAY
    page = tab.open("/")
    page.locator(".figure").first.wait_for()
    page.locator(".bar .state-live").wait_for()
    source = {"web": "The page's server does not answer", "simcluster": "cluster does not answer"}.get(
        name, f"{name} does not answer"
    )
    banner = page.locator(".banners .notice-bad")

    began = time.monotonic()
    os.kill(suite.pids[name], signal.SIGKILL)
    # The store's death shows as the services' that can't answer without it, if at all: it is back within seconds.
    if name != "valkey":
        banner.filter(has_text=source).first.wait_for(timeout=30_000)
        record_property("banner_after_s", round(time.monotonic() - began, 2))
        # What was there stays, and says that it is old.
        assert page.locator(".figure").count() > 0
    suite.wait_until_said(f"{name} ended", 60)
    banner.first.wait_for(state="detached", timeout=240_000)
    # Another process's figures are told as old until the first of them have come.
    page.locator(".panel.old").first.wait_for(state="detached", timeout=60_000)
    record_property("right_after_s", round(time.monotonic() - began, 2))
    page.locator(".bar .state-live").wait_for(timeout=60_000)
    assert page.locator(".panel.old").count() == 0

    before = clock(page)
    page.wait_for_timeout(3_000)
    assert clock(page) != before

    # The curves go on from what ingest keeps, in this tab and in a fresh one.
    for shown in (tab, watched(address(suite))):
        shown.allowed += [*AWAY, "Multiple readback operations"]
        page = shown.page if shown is tab else shown.open("/")
        page.locator(".chart canvas").nth(1).wait_for(timeout=60_000)
        assert leftmost(page, "GPUs allocated", "--tone-3") < 0.25
        assert page.get_by_role("alert").count() == 0
