"""The queue's screen under a hand: keys typed one at a time, a list that gets shorter, rows that leave, its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import FakePageServer, fake_page_server
from tests.browser.made_up_cluster import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def rows(page: Any) -> Any:
    """The rows of jobs; not those that only take the room of rows out of sight."""
    return page.locator("tbody tr[data-index]")


@pytest.mark.parametrize("between_ms", [20, 155, 165])
def test_the_search_box_keeps_each_letter(
    between_ms: int, server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    # 150 ms after a letter the box writes its text into the address: the next letter falls just before or after that.
    page = watched(server.url).open("/queue")
    box = page.get_by_label("Name or id")
    box.click()
    page.keyboard.type("resnet ", delay=between_ms)
    page.wait_for_url("**/queue?q=resnet")
    page.wait_for_timeout(100)
    assert box.input_value() == "resnet "  # the blank before the next word stays

    page.keyboard.type("job-1", delay=between_ms)
    page.wait_for_url("**/queue?q=resnet+job-1")
    assert box.input_value() == "resnet job-1"


def test_the_search_box_follows_the_address(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/queue?q=resnet")
    box = page.get_by_label("Name or id")
    box.fill("bert")
    page.wait_for_url("**/queue?q=bert")
    page.get_by_role("button", name="Clear").click()
    page.wait_for_url("**/queue")
    assert box.input_value() == ""
    box.fill("bert")
    page.wait_for_url("**/queue?q=bert")
    page.get_by_role("navigation").get_by_role("link", name="Queue").click()
    page.wait_for_url("**/queue")
    page.wait_for_timeout(300)
    assert box.input_value() == ""
    assert page.url.endswith("/queue")


def test_a_list_that_gets_shorter_than_the_window_shows_its_end(watched: Callable[..., Watched]) -> None:
    with fake_page_server(Cluster(waiting=3_000)) as server:
        page = watched(server.url).open("/queue")
        page.evaluate("document.querySelector('.queue-box').scrollTop = 1e9")
        page.locator('tr[data-index="3019"]').wait_for()

        server.cluster.jobs = server.cluster.jobs[:300]
        server.push()

        page.get_by_text("300 jobs").wait_for()
        # At once, and not window by window from the old end.
        page.locator('tr[data-index="299"]').wait_for(timeout=1_500)
        seen = page.evaluate("""() => {
          const box = document.querySelector(".queue-box").getBoundingClientRect();
          const rows = [...document.querySelectorAll("tbody tr[data-index]")];
          const places = rows.map((row) => row.getBoundingClientRect());
          return places.filter((place) => place.top < box.bottom && place.bottom > box.top).length;
        }""")
        assert seen > 10
        assert page.evaluate("document.querySelector('.queue-box').scrollHeight") < 301 * 34 + 60


def test_the_keyboard_goes_on_when_its_row_has_left(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/queue")
    rows(page).nth(3).get_by_role("link").focus()
    gone = rows(page).nth(3).get_by_role("link").inner_text()

    server.cluster.jobs = [each for each in server.cluster.jobs if each["id"] != gone]
    server.push()
    rows(page).filter(has=page.get_by_role("link", name=gone, exact=True)).wait_for(state="detached")

    page.locator('tr[data-index="3"] a:focus').wait_for()
    page.keyboard.press("ArrowDown")
    page.locator('tr[data-index="4"] a:focus').wait_for()


def test_a_click_beside_the_rows_takes_the_focus_away_for_good(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/queue")
    rows(page).nth(3).get_by_role("link").focus()
    page.evaluate("document.activeElement.blur()")
    server.cluster.jobs = server.cluster.jobs[:100]
    server.push()
    page.get_by_text("100 jobs").wait_for()
    assert page.evaluate("document.activeElement === document.body")


def test_words_of_the_filters_say_what_is_shown(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    for job in server.cluster.jobs[:5]:
        job["state"] = "succeeded"
    page = watched(server.url).open("/queue")
    # Without a state the list has the jobs that have not ended.
    assert page.get_by_label("State").locator("option").first.inner_text() == "not ended"
    page.get_by_label("State").select_option("succeeded")
    page.wait_for_url("**/queue?state=succeeded")
    told = page.locator(".panel.queue .tools")
    told.get_by_text("5 jobs", exact=True).wait_for()  # and not "of" those that have not ended
    page.get_by_label("State").select_option("pending")
    told.get_by_text("120 jobs of 140", exact=True).wait_for()


def test_the_first_click_on_place_turns_the_order_round(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/queue")
    page.get_by_role("button", name="Place").click()
    page.wait_for_url("**/queue?sort=-place")
    page.locator('th[aria-sort="descending"]').filter(has_text="Place").wait_for()


def test_the_count_of_jobs_is_not_read_out_at_each_change(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/queue")
    told = page.locator(".panel.queue [role=status]")
    assert told.inner_text() == ""
    page.get_by_label("Name or id").fill("resnet50")
    # What one asked for is read out, once.
    told.filter(has_text="jobs fit the filter").wait_for(state="attached")
    before = told.inner_text()
    server.cluster.jobs = server.cluster.jobs[20:60]
    server.push()
    page.locator(".panel.queue .tools .num").get_by_text("of 40").wait_for()
    page.wait_for_timeout(100)
    assert told.inner_text() == before
