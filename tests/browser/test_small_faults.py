"""Links, words and dialogs that were wrong once: alerts, logins, titles, clipboards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import TOKEN, FakePageServer, fake_page_server
from tests.browser.made_up_cluster import Cluster
from tests.browser.test_live import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def log_in(page: Any) -> None:
    """Gives the token."""
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()


def test_an_alert_that_has_no_page_of_its_own_is_no_link(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    server.cluster.alerts[0]["href"] = "/"
    page = watched(server.url).open("/")
    alerts = page.get_by_role("list", name="What needs you")
    assert alerts.get_by_role("listitem").count() == 2
    assert alerts.get_by_role("link").all_inner_texts() == [server.cluster.alerts[1]["text"]]


def test_a_logout_that_fails_is_told(watched: Callable[..., Watched]) -> None:
    with fake_page_server(login=True) as server:
        tab = watched(server.url)
        tab.allowed += ["status of 401", "status of 503"]
        page = tab.open("/")
        log_in(page)
        server.failing["logout"] = (503, "the page's service restarts")
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("alert").filter(has_text="You are still logged in: the page's service restarts").wait_for()


def test_an_answer_that_comes_before_the_page_is_painted_is_shown(watched: Callable[..., Watched]) -> None:
    with fake_page_server(login=True) as server:
        tab = watched(server.url)
        tab.allowed.append("status of 401")
        # Paints late, as on a machine that is busy.
        tab.page.add_init_script("""{
          const frame = window.requestAnimationFrame;
          const timer = window.setTimeout;
          window.requestAnimationFrame = (draw) => timer(() => frame(draw), 1_000);
          window.setTimeout = (each, ms, ...more) => timer(each, Math.max(ms, 1_000), ...more);
        }""")
        tab.page.goto(server.url + "/queue")
        tab.page.get_by_label("Token").wait_for()


def test_after_a_login_one_is_back_where_one_was(watched: Callable[..., Watched]) -> None:
    with fake_page_server(login=True) as server:
        tab = watched(server.url)
        tab.allowed += ["status of 401", "WebSocket connection"]
        page = tab.open("/queue?state=pending")
        log_in(page)
        page.locator("tr[data-index]").first.wait_for()
        server.session = None
        server.say(op="bye", reason="logout", text="you are logged out")
        page.get_by_role("link", name="Log in").click()
        log_in(page)
        page.wait_for_url("**/queue?state=pending")
        page.locator("tr[data-index]").first.wait_for()
        # And nowhere else.
        for path in ("//elsewhere.example/", "https://elsewhere.example/", "/login"):
            server.session = None
            page.goto(f"{server.url}/login?from={path}")
            log_in(page)
            page.wait_for_url(f"{server.url}/")


def test_a_path_that_is_no_screen_has_its_own_title(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/queue")
    page.evaluate("history.pushState(null, '', '/nothing'); dispatchEvent(new PopStateEvent('popstate'))")
    page.get_by_role("heading", name="No such page").wait_for()
    page.wait_for_function("document.title === 'No such page · ADLRO'")


def test_the_entry_of_the_screen_is_in_view_on_a_narrow_window(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url, width=360, height=740).open("/submit")
    page.wait_for_function("""() => {
      const entry = document.querySelector("nav [aria-current]").getBoundingClientRect();
      return entry.left >= 0 && entry.right <= innerWidth;
    }""")


def test_a_tab_that_is_opened_out_of_sight_sleeps(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    tab.page.add_init_script("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    tab.page.goto(server.url + "/")
    until(lambda: bool(server.tabs) and server.tabs[0].asleep)


def test_escape_waits_for_the_answer_of_an_action(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 403")
    page = tab.open("/jobs/job-26")
    server.failing["cancel"] = (403, "job-26 is not yours")
    server.slow_s["cancel"] = 0.7
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").get_by_role("alert").filter(has_text="job-26 is not yours").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


def test_a_clipboard_that_is_refused_is_told(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/jobs/job-26")
    page.evaluate("() => void (navigator.clipboard.writeText = () => Promise.reject(new DOMException('no')))")
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Not allowed").wait_for()


def test_one_decision_differs(watched: Callable[..., Watched]) -> None:
    class One(Cluster):
        def _policies(self) -> dict[str, Any]:
            found = super()._policies()
            return found | {"shadow": found["shadow"] | {"differed": 1}}

    with fake_page_server(One()) as server:
        page = watched(server.url).open("/policies")
        page.get_by_role("link", name="1 decision differs").wait_for()


def test_older_decisions_come_after_those_of_the_live_list(watched: Callable[..., Watched]) -> None:
    class Short(Cluster):
        def topic(self, key: str) -> tuple[dict[str, Any], bytes]:
            data, body = super().topic(key)
            return ({"rows": data["rows"][:20]}, b"") if key.startswith("decisions") else (data, body)

    with fake_page_server(Short()) as server:
        page = watched(server.url).open("/decisions")
        page.get_by_text("20 decisions", exact=True).wait_for()
        page.get_by_role("button", name="Older decisions").click()
        page.get_by_text("60 decisions", exact=True).wait_for()
        shown = page.locator("tbody th a").all_inner_texts()
        assert shown == [each["id"] for each in server.cluster.decisions()]
        assert page.get_by_role("button", name="Older decisions").count() == 0


def test_decisions_that_new_ones_push_out_of_the_live_list_stay_among_the_older(
    watched: Callable[..., Watched],
) -> None:
    class Short(Cluster):
        first = 20

        def topic(self, key: str) -> tuple[dict[str, Any], bytes]:
            data, body = super().topic(key)
            rows = data["rows"][self.first : self.first + 20] if key.startswith("decisions") else []
            return ({"rows": rows}, b"") if key.startswith("decisions") else (data, body)

    with fake_page_server(Short()) as server:
        page = watched(server.url).open("/decisions")
        page.get_by_text("20 decisions", exact=True).wait_for()
        page.get_by_role("button", name="Older decisions").click()
        page.get_by_text("40 decisions", exact=True).wait_for()

        Short.first = 0  # twenty new ones, and none of those before
        server.push()

        page.get_by_text("60 decisions", exact=True).wait_for()
        shown = page.locator("tbody th a").all_inner_texts()
        assert shown == [each["id"] for each in server.cluster.decisions()]


def test_curves_whose_parts_could_not_be_loaded_are_drawn_once_the_server_answers(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url)
    tab.allowed += ["Failed to load resource", "ERR_CONNECTION"]
    refused: list[str] = []

    def refuse_two_of_each(route: Any) -> None:
        name = urlsplit(route.request.url).path.rpartition("/")[2]
        if refused.count(name) < 2:
            refused.append(name)
            route.abort("connectionrefused")
        else:
            route.continue_()

    tab.page.route(re.compile(r"/vendor/uplot\.(js|css)"), refuse_two_of_each)
    page = tab.open("/")
    page.locator(".chart canvas").first.wait_for(timeout=30_000)
    assert sorted(refused) == ["uplot.css"] * 2 + ["uplot.js"] * 2
    assert page.locator(".chart .u-over").first.evaluate("each => getComputedStyle(each).position") == "absolute"
    assert page.get_by_text("could not be loaded").count() == 0
