"""The live protocol as the page keeps it: deltas, acknowledgements, loss, refusal, and what a user sees then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import FakePageServer, fake_page_server
from tests.browser.made_up_cluster import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def figure(page: Any, label: str) -> Any:
    """The value of a head figure."""
    return page.locator(".figure").filter(has=page.get_by_text(label, exact=True)).locator("dd.num").first


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Waits for a condition of the server's side."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def test_a_delta_changes_what_it_names_and_is_acknowledged(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/")
    tab = server.tabs[0]

    server.run(tab.delta("head", {"queue_length": 77}))

    figure(page, "Waiting").get_by_text("77", exact=True).wait_for()
    assert figure(page, "Event lag").inner_text() == "412 events"
    until(lambda: tab.acked.get("head") == tab.revs["head"])


def test_a_delta_on_another_base_is_dropped_and_the_topic_asked_for_anew(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/")
    tab = server.tabs[0]
    tab.said.clear()

    server.run(tab.delta("head", {"queue_length": 666}, base=99))

    until(lambda: [each["op"] for each in tab.said if each.get("key") == "head"][:2] == ["unsubscribe", "subscribe"])
    assert figure(page, "Waiting").inner_text() == "120"


def test_planes_of_a_delta_replace_those_it_has(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/?metric=state")
    cell = page.get_by_role("button", name="v100-0/1: allocated", exact=True)
    cell.wait_for()

    states = bytearray(server.cluster.states)
    states[1] = 3
    server.run(server.tabs[0].delta("gpus", {"planes": ["state"], "jobs": {"1": []}}, bytes(states)))

    page.get_by_role("button", name="v100-0/1: lost", exact=True).wait_for()


def test_before_the_first_figures_there_are_bones_and_no_zeros(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        tab = watched(server.url)
        # The page's modules come, and the live socket is held back.
        tab.page.route_web_socket("**/live/v1", lambda socket: None)
        tab.page.goto(server.url + "/")
        tab.page.locator(".skeleton").first.wait_for()

        assert tab.page.locator(".figure").count() == 0
        assert "0" not in tab.page.locator("main").inner_text()
        assert tab.page.get_by_text("connecting").count() == 1


def test_a_server_that_goes_away_is_told_and_comes_back_by_itself(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        tab = watched(server.url)
        tab.allowed += ["WebSocket connection", "Failed to load resource", "ERR_CONNECTION"]
        page = tab.open("/")

        began = time.monotonic()
        port = int(server.url.rsplit(":", 1)[1])
        server.stop()
        page.get_by_text("The page's server does not answer").first.wait_for(timeout=3_000)
        assert time.monotonic() - began < 13  # the stop itself may take ten seconds
        # The last figures stay, greyed.
        assert figure(page, "Waiting").inner_text() == "120"
        assert page.locator(".panel.old").count() > 0

        server.cluster.jobs = server.cluster.jobs[:100]
        server.start(port)
        page.get_by_text("The page's server does not answer").first.wait_for(state="detached", timeout=10_000)
        figure(page, "Waiting").get_by_text("80", exact=True).wait_for(timeout=10_000)
        assert page.locator(".panel.old").count() == 0


def test_a_service_that_is_away_greys_its_own_figures_only(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/")
    away = {"state": "away", "since_unix_s": time.time() - 12, "error": "connection refused"}

    server.say(op="sources", decompose=away)

    page.get_by_role("status").filter(has_text="decompose does not answer: connection refused").wait_for()
    assert "old" in (page.locator(".panel.map").get_attribute("class") or "")
    assert "old" not in (page.locator(".panel.head").get_attribute("class") or "")
    server.say(op="sources", decompose=away | {"state": "live"})
    page.locator(".panel.map.old").wait_for(state="detached")


def test_a_tab_that_reads_too_slowly_is_told_so_until_the_next_snapshot(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/")

    server.say(op="stale", key="gpus", since_unix_s=time.time() - 4)
    page.locator(".panel.map.old .state-stale").wait_for()

    server.push()
    page.locator(".panel.map.old").wait_for(state="detached")


def test_a_role_that_is_taken_away_ends_what_is_shown(watched: Callable[..., Watched]) -> None:
    with fake_page_server() as server:
        page = watched(server.url).open("/")

        server.say(op="bye", reason="role", text="your role was taken away")

        page.get_by_role("status").filter(has_text="your role was taken away").get_by_role(
            "link", name="Log in"
        ).wait_for()
        assert page.locator(".figure").count() == 0


def test_a_topic_that_is_refused_says_why(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/")
    server.say(op="refused", key="gpus", error="readers only")
    page.locator(".panel.map").get_by_text("readers only").wait_for()


def test_a_hidden_tab_sleeps_and_gets_a_snapshot_when_it_is_shown(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/")
    tab = server.tabs[0]
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""

    page.evaluate(hide, True)
    until(lambda: tab.asleep)
    server.cluster.running_count = 19
    page.evaluate(hide, False)

    figure(page, "Running").get_by_text("19", exact=True).wait_for()


def test_names_of_jobs_are_text(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    for path in ("/queue", "/jobs/job-26", "/jobs/job-2"):
        page = tab.open(path)
        # Hidden and turning characters are written out, the rest stands as it is.
        page.get_by_text(HOSTILE.replace("\u202e", "⟨U+202E⟩")).first.wait_for()
        assert page.locator("main img").count() == 0
        assert page.title().endswith("ADLRO")


def test_a_screen_that_is_left_is_not_listened_to(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/")
    tab = server.tabs[0]
    page.get_by_role("link", name="Decisions", exact=True).click()
    page.get_by_role("heading", name="Decisions").wait_for()

    until(lambda: set(tab.revs) == {"head", "decisions?count=100"})
