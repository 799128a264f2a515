"""A job's page: its output as it comes and ends, what became of its attempts, and how often it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import fake_page_server
from tests.browser.made_up_cluster import HOSTILE, Cluster
from tests.browser.test_accessibility import violations
from tests.browser.test_live import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


class WithOutput(Cluster):
    """job-2 has the output, and the attempts, that a test gives it."""

    output = "".join(f"epoch {number}\n" for number in range(400))
    attempts: list[dict[str, Any]] | None = None

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        found = super().answer(path, query)
        if path == "jobs/job-2/logs":
            return {
                "stream": query["stream"],
                "offset": 0,
                "size_bytes": len(self.output),
                "text": self.output,
                "complete": False,
            }
        return found

    def job_record(self, job_id: str) -> dict[str, Any]:
        record = super().job_record(job_id) | {"has_logs": True}
        return record if self.attempts is None or job_id != "job-2" else record | {"attempts": self.attempts}


SCROLL = (
    "[...document.querySelectorAll('pre.log')].map((log) => [log.scrollTop, log.scrollHeight - log.clientHeight])[0]"
)


def test_the_output_opens_at_its_end_and_follows_it(watched: Callable[..., Watched]) -> None:
    cluster = WithOutput()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-2")
        page.locator("pre.log").get_by_text("epoch 399").wait_for()
        at, end = page.evaluate(SCROLL)
        assert end > 1_000
        assert abs(at - end) < 2

        cluster.output += "".join(f"later {number}\n" for number in range(100))
        page.locator("pre.log").get_by_text("later 99").wait_for()
        at, end = page.evaluate(SCROLL)
        assert abs(at - end) < 2

        # Who reads further up is left there.
        page.evaluate("document.querySelector('pre.log').scrollTop = 500")
        page.wait_for_timeout(100)
        cluster.output += "last of all\n"
        page.locator("pre.log").get_by_text("last of all").wait_for()
        assert page.evaluate(SCROLL)[0] == 500
        # A text that is renewed as a whole is not read out each time.
        assert page.get_by_role("log").get_attribute("aria-live") == "off"


def test_the_last_lines_of_a_job_that_ends_are_shown(watched: Callable[..., Watched]) -> None:
    cluster = WithOutput()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-2")
        page.locator("pre.log").get_by_text("epoch 399").wait_for()
        job = cluster.job("job-2")
        assert job is not None
        job["state"] = "failed"
        server.push()
        page.locator(".title").get_by_text("failed").wait_for()
        # Stored a moment after the job's end.
        cluster.output += "Traceback: out of memory\n"
        page.locator("pre.log").get_by_text("Traceback").wait_for(timeout=5_000)


def test_what_became_of_each_attempt_is_told(watched: Callable[..., Watched]) -> None:
    cluster = WithOutput()
    common = {
        "gpu_ids": ["v100-0/1"],
        "gpu_model": "v100_sxm2",
        "preempted": False,
        "excused": False,
        "exit_text": None,
    }
    outcomes = [
        ("lost: node v100-0 went away", "lost"),
        ("failed: exit code 1", "failed"),
        ("given up: no answer to its launch", "lost"),
        ("preempted: for job-12", "preempted"),
        ("stopped", "cancelled"),
        (f"something new {HOSTILE}", "failed"),
        ("succeeded", "succeeded"),
    ]
    cluster.attempts = [
        common
        | {
            "attempt": number + 1,
            "start_s": cluster.now_s - 900 + 100 * number,
            "end_s": cluster.now_s - 850 + 100 * number,
            "outcome": outcome,
            "preempted": outcome.startswith("preempted"),
            "exit_text": "exit code 1" if "exit code" in outcome else None,
        }
        for number, (outcome, _) in enumerate(outcomes)
    ]
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-2")
        table = page.get_by_role("region", name="Attempts, table")
        kinds = table.locator("tbody .job-state").evaluate_all(
            "(all) => all.map((each) => each.className.split('-').at(-1))"
        )
        assert kinds == [kind for _, kind in outcomes]
        said = [" ".join(each.split()) for each in table.locator("tbody td:last-child").all_inner_texts()]
        assert said[:5] == [
            "! lost node v100-0 went away",
            "✗ failed exit code 1",
            "! lost given up: no answer to its launch",
            "⏏ preempted for job-12",
            "⊘ cancelled",
        ]
        assert "⟨U+202E⟩" in said[5]
        assert page.locator(".timeline .run").evaluate_all("(all) => all.map((each) => each.className)") == [
            f"run outcome-{kind}" for _, kind in outcomes
        ]


def test_a_job_is_asked_about_once_as_its_page_opens(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        page = watched(server.url).open("/jobs/job-26")
        page.get_by_text("no such GPU is free").wait_for()
        page.wait_for_timeout(300)
        assert server.requests["jobs/job-26"] == 1
        # And at once when its state changes.
        job = server.cluster.job("job-26")
        assert job is not None
        job["reason"] = "policy"
        server.push()
        until(lambda: server.requests["jobs/job-26"] == 2, timeout_s=2)


class Waiting(Cluster):
    """job-30 waits as a test says: `more` is put into its record, and its explanation is `sentence`."""

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, Any] = {}
        self.sentence = "it waits"

    def job_record(self, job_id: str) -> dict[str, Any]:
        return super().job_record(job_id) | (self.more if job_id == "job-30" else {})

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        found = super().answer(path, query)
        if path == "jobs/job-30" and found is not None and found["waiting"] is not None:
            nothing: dict[str, Any] = {
                "start": None,
                "record": None,
                "gpus": [],
                "advice": [],
                "no_start": self.sentence,
            }
            found["waiting"] |= nothing | {"sentence": self.sentence}
        return found


def test_a_job_is_held_and_released_without_a_question(watched: Callable[..., Watched]) -> None:
    cluster = Waiting()
    with fake_page_server(cluster) as server:
        tab = watched(server.url)
        tab.allowed.append("status of 409")
        page = tab.open("/jobs/job-30")
        title = page.locator(".title")
        title.get_by_role("button", name="Hold", exact=True).click()
        until(lambda: server.actions == [("hold", {"job_id": "job-30"})])
        cluster.more = {"asked": ["hold"]}
        server.push()
        title.get_by_text("hold asked for").wait_for()
        by = {"held_by": f"ada {HOSTILE}", "held_by_operator": False, "reason": "held", "asked": []}
        cluster.more = by | {"may_hold": False, "may_release": True}
        server.push()
        title.get_by_text("held", exact=True).wait_for()
        assert title.get_by_role("button", name="Hold", exact=True).count() == 0
        waits = page.get_by_role("region", name="Why it waits").get_by_role("listitem")
        assert str(waits.first.inner_text()).startswith("its release: held by ada <img")

        server.failing["release"] = (409, "job-30 has ended")
        title.get_by_role("button", name="Release").click()
        page.get_by_role("alert").filter(has_text="job-30 has ended").wait_for()
        server.failing.clear()
        title.get_by_role("button", name="Release").click()
        page.get_by_role("alert").wait_for(state="detached")
        assert server.actions[1:] == [("release", {"job_id": "job-30"})]

        # What an operator holds, its user sees and can't release.
        cluster.more = by | {"held_by_operator": True, "may_hold": False, "may_release": False}
        server.push()
        waits.filter(has_text="only an operator releases it").wait_for()
        assert title.get_by_role("button").all_inner_texts() == ["Cancel job"]


def test_what_a_job_waits_for_is_told_with_links(watched: Callable[..., Watched]) -> None:
    cluster = Waiting()
    cluster.sentence = "waits for the end of job-2 and array-20"
    cluster.more = {
        "reason": "dependency",
        "begin_time_s": cluster.now_s + 3_700,
        "after": [
            {"id": "job-2", "condition": "ok", "state": "running"},
            {"id": "job-9", "condition": "fail", "state": None},
            {"id": "array-20", "condition": "any", "states": {"running": 2, "succeeded": 5}},
        ],
    }
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-30")
        page.locator(".title").get_by_text("waits for other jobs").wait_for()
        region = page.get_by_role("region", name="Why it waits")
        region.get_by_text("waits for the end of job-2 and array-20").first.wait_for()
        told = [" ".join(each.split()) for each in region.get_by_role("listitem").all_inner_texts()]
        assert told == [
            "job-2 must succeed (now ▶ running)",
            "job-9 must fail",
            "array-20: all of its jobs must end (2 running, 5 succeeded)",
            "its begin time: in 1 h 01 m, at 1 d 03:15:47 of the cluster's clock",
        ]
        links = region.get_by_role("link").evaluate_all("(all) => all.map((each) => each.getAttribute('href'))")
        assert links == ["/jobs/job-2", "/jobs/job-9", "/queue?array=array-20"]
        assert page.locator(".facts").get_by_text("array-20:any").count() == 1
        assert violations(page) == []


def test_a_begin_time_is_told_by_the_walls_clock_where_the_clusters_runs_with_it(
    watched: Callable[..., Watched],
) -> None:
    class Real(Waiting):
        def me(self, *, users_known: bool) -> dict[str, Any]:
            return super().me(users_known=users_known) | {"clock": "real"}

    cluster = Real()
    cluster.more = {"reason": "begin_time", "begin_time_s": cluster.now_s + 6 * 3_600}
    with fake_page_server(cluster) as server:
        tab = watched(server.url, timezone_id="UTC")
        tab.page.clock.set_fixed_time("2026-11-28T10:00:00.400Z")
        page = tab.open("/jobs/job-30")
        begin = page.get_by_role("listitem").filter(has_text="its begin time: in 6 h 00 m, 28 Nov 2026")
        begin.filter(has_text="16:00 (1 d 08:14:07 of the cluster's clock)").wait_for()


def test_an_array_shows_its_progress_and_is_cancelled_as_a_whole(watched: Callable[..., Watched]) -> None:
    cluster = Waiting()
    cluster.more = {
        "reason": "array_limit",
        "array": {"id": "array-21", "index": 9, "count": 100, "max_running": 10},
        "array_states": {"pending": 60, "running": 10, "succeeded": 25, "failed": 1},
    }
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-30")
        page.get_by_role("region", name="Why it waits").get_by_text("others of array-21: 10 run at once").wait_for()
        part = page.get_by_role("region", name="Its array")
        assert part.get_by_role("paragraph").first.inner_text() == "Index 9 of array-21: 100 jobs, at most 10 at once."
        legend = [" ".join(each.split()) for each in part.get_by_role("listitem").all_inner_texts()]
        assert legend == ["waiting 60", "running 10", "succeeded 25", "failed 1"]
        part.get_by_text("4 more ended longer ago.").wait_for()
        part.get_by_role("button", name="Hold all").click()
        part.get_by_role("button", name="Release all").click()
        part.get_by_role("button", name="Cancel array").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("70 jobs have not ended.").wait_for()
        dialog.get_by_role("button", name="Cancel array").click()
        dialog.wait_for(state="detached")
        assert server.actions == [(name, {"job_id": "array-21"}) for name in ("hold", "release", "cancel")]
        assert violations(page) == []
        part.get_by_role("link", name="failed").click()
        page.wait_for_url("**/queue?array=array-21&state=failed")


def test_an_ended_job_is_submitted_again_once(watched: Callable[..., Watched]) -> None:
    cluster = Waiting()
    cluster.more = {"state": "failed", "reason": None, "may_requeue": True, "may_hold": False, "may_cancel": False}
    with fake_page_server(cluster) as server:
        tab = watched(server.url)
        tab.allowed += ["status of 404", "status of 503"]
        page = tab.open("/jobs/job-30")
        ids: list[str] = []

        def sent(route: Any, request: Any) -> None:
            ids.append(request.post_data_json["request_id"])
            route.continue_()

        page.route("**/api/actions/requeue", sent)
        server.failing["requeue"] = (503, "ingest does not answer")
        page.get_by_role("button", name="Submit again").click()
        page.get_by_role("alert").filter(has_text="ingest does not answer").wait_for()
        server.failing.clear()
        page.get_by_role("button", name="Submit again").click()
        page.wait_for_url("**/jobs/job-9001")
        assert ids == [ids[0]] * 2


def test_who_may_not_change_a_job_gets_no_buttons(watched: Callable[..., Watched]) -> None:
    class Reads(Waiting):
        def me(self, *, users_known: bool) -> dict[str, Any]:
            return super().me(users_known=users_known) | {"roles": ["reader"], "actions": []}

    cluster = Reads()
    cluster.more = {
        "may_change": True,
        "may_release": True,
        "array": {"id": "array-21", "index": 9, "count": 3, "max_running": None},
        "array_states": {"pending": 3},
    }
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/jobs/job-30")
        page.get_by_role("region", name="Its array").wait_for()
        assert page.locator(".title").get_by_role("button").count() == 0
        assert page.get_by_role("region", name="Its array").get_by_role("button").count() == 0
