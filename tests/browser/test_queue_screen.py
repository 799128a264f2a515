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


# The rows' elements, told apart by a mark of ours, and the jobs that they show.
_MARKED = "rows => rows.map((row, index) => (row.mark ??= index))"
_SHOWN = "rows => rows.map((row) => [row.mark ?? null, row.querySelector('a').textContent])"


def test_after_another_order_each_row_shows_its_job_in_the_elements_of_the_one_before(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/queue")
    rows(page).evaluate_all(_MARKED)
    before = rows(page).evaluate_all(_SHOWN)

    page.get_by_role("button", name="Place").click()
    page.locator('th[aria-sort="descending"]').wait_for()

    after = rows(page).evaluate_all(_SHOWN)
    assert [mark for mark, _ in after] == [mark for mark, _ in before]
    assert not {job for _, job in after[:20]} & {job for _, job in before}
    links = rows(page).evaluate_all("rows => rows.map((row) => row.querySelector('a').getAttribute('href'))")
    assert links == [f"/jobs/{job}" for _, job in after]


def test_a_row_under_the_keyboard_becomes_no_other_job(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/queue")
    rows(page).evaluate_all(_MARKED)
    rows(page).nth(2).get_by_role("link").focus()
    page.keyboard.press("ArrowDown")
    page.locator('tr[data-index="3"] a:focus').wait_for()
    job = rows(page).nth(3).get_by_role("link").inner_text()

    # Nearly all jobs before and after it leave at once.
    server.cluster.jobs = [each for each in server.cluster.jobs if each["id"] == job] + server.cluster.jobs[60:]
    following = server.cluster.jobs[1]["id"]
    server.push()
    page.locator('tr[data-index="1"]').get_by_role("link", name=following, exact=True).wait_for()
    page.wait_for_function("job => document.activeElement.textContent === job", arg=job)
    assert page.evaluate("document.activeElement.closest('tr').mark") == 3

    server.cluster.jobs = server.cluster.jobs[1:]
    server.push()
    rows(page).filter(has=page.get_by_role("link", name=job, exact=True)).wait_for(state="detached")
    page.locator("tr a:focus").wait_for()
    assert page.evaluate("document.activeElement.closest('tr').mark") != 3


def test_heads_tell_of_the_rows_that_are_seen_until_the_answer_is_late(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/queue")
    told = """async () => {
      const box = document.querySelector(".queue-box"), seen = [];
      const note = () => {
        const sorted = document.querySelector("th[aria-sort]").getAttribute("aria-sort");
        const now = `${sorted} ${box.classList.contains("moving") ? "pale" : ""}`.trim();
        if (seen.at(-1) !== now) seen.push(now);
      };
      new MutationObserver(note).observe(box, { subtree: true, attributes: true, childList: true });
      document.querySelector("thead button").click();
      await new Promise((done) => setTimeout(done, 1000));
      return seen;
    }"""
    assert page.evaluate(told) == ["descending"]
    server.slow_s["subscribe"] = 0.5
    assert page.evaluate(told) == ["ascending pale", "ascending"]


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


def test_an_array_is_a_queue_of_its_own(watched: Callable[..., Watched]) -> None:
    cluster = Cluster()
    for job in cluster.jobs[20:23]:
        job["array"] = "array-21"
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/queue?array=array-21")
        page.locator(".badge", has_text="array-21").wait_for()
        page.get_by_text("3 jobs", exact=True).wait_for()
        assert page.get_by_label("State").locator("option").first.inner_text() == "any"
        page.get_by_role("button", name="Clear").click()
        page.wait_for_url("**/queue")
        page.get_by_text("140 jobs", exact=True).wait_for()


def test_one_click_shows_ones_own_jobs(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/queue")
    mine = page.get_by_role("button", name="Mine")
    mine.click()
    page.wait_for_url("**/queue?user=ada")
    page.locator("tbody tr:not([aria-hidden])").filter(has_text="bob").first.wait_for(state="detached")
    assert mine.get_attribute("aria-pressed") == "true"
    mine.click()
    page.wait_for_url("**/queue")
