"""The Gantt: its canvas by sampled pixels, keys, marked times, the overview, its address, slow answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import FakePageServer, fake_page_server
from tests.browser.made_up_cluster import Cluster
from tests.browser.pixels import tone

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def colour_at(page: Any, time_s: float, row_top: float) -> list[int]:
    """The canvas' pixel at a time, and so many CSS pixels below the axis."""
    return list(
        page.evaluate(
            """([time_s, top]) => {
  const canvas = document.querySelector(".gantt-rows canvas");
  const [from_s, to_s] = [Number(canvas.dataset.fromS), Number(canvas.dataset.toS)];
  const scale = canvas.width / canvas.clientWidth;
  const x = 92 + ((time_s - from_s) / (to_s - from_s)) * (canvas.clientWidth - 92);
  return [...canvas.getContext("2d").getImageData(x * scale, (22 + top) * scale, 1, 1).data.slice(0, 3)];
}""",
            [time_s, row_top],
        )
    )


class TwoBars(Cluster):
    """One bar on the second GPU, and a failed one on the first node's third."""

    def gantt(self, query: dict[str, str]) -> dict[str, Any]:
        answer = super().gantt(query)
        bars = {
            "gpu": [1, 2],
            "start_s": [self.now_s - 2_000, self.now_s - 1_500],
            "end_s": [self.now_s - 1_000, self.now_s - 500],
            "job": ["job-1", "job-2"],
            "name": ["one", "two"],
            "user": ["ada", "bob"],
            "type": ["simulation", "machine_learning"],
            "outcome": ["succeeded", "failed"],
            "differs": [0, 1],
        }
        return answer | {"bars": bars, "occupancy": None, "bar_count": 2, "left_out": 0}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_bar_stands_at_its_place_in_its_colour(scheme: str, watched: Callable[..., Watched]) -> None:
    cluster = TwoBars()
    with fake_page_server(cluster) as server:
        tab = watched(server.url, color_scheme=scheme, device_scale_factor=2)
        tab.allowed.append("Multiple readback operations")  # by this test itself
        page = tab.open("/gantt")
        page.locator(".gantt-rows canvas[data-draw-ms]").wait_for()
        now_s, row = cluster.now_s, 18
        second, third = 20 + row + row / 2, 20 + 2 * row + row / 2  # below the node's own row

        # Types in alphabetical order take the colours in turn.
        assert colour_at(page, now_s - 1_600, second) == tone(page, "--tone-2")
        assert colour_at(page, now_s - 900, second) == tone(page, "--panel")
        assert colour_at(page, now_s - 1_000, third) == tone(page, "--tone-1")
        # A failed bar ends in a dark edge: not told by the bar's colour alone.
        assert colour_at(page, now_s - 505, third) == tone(page, "--bad")
        assert page.get_by_role("row", name="job-2 two").get_by_text("failed").count() == 1

        page.get_by_role("button", name="Fold all").click()
        page.get_by_role("button", name="Unfold all").wait_for()
        page.wait_for_timeout(100)
        # One of four GPUs was taken: the lowest quarter of the node's row.
        assert colour_at(page, now_s - 1_900, 17) != tone(page, "--panel")
        assert colour_at(page, now_s - 1_900, 4) == tone(page, "--panel")


def test_keys_move_and_zoom_and_a_click_selects(watched: Callable[..., Watched]) -> None:
    cluster = TwoBars()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/gantt")
        canvas = page.locator(".gantt-rows canvas[data-draw-ms]")
        canvas.wait_for()
        page.locator(".gantt-box").focus()
        page.keyboard.press("a")
        page.get_by_role("button", name="Live", pressed=False).wait_for()
        page.wait_for_url("**/gantt?from=*")
        page.keyboard.press("w")
        page.keyboard.press("Home")
        page.get_by_role("button", name="Live", pressed=True).wait_for()

        page.wait_for_timeout(200)
        box = canvas.bounding_box()
        share = page.evaluate(
            """(time_s) => {
              const { fromS, toS } = document.querySelector(".gantt-rows canvas").dataset;
              return (time_s - fromS) / (toS - fromS);
            }""",
            cluster.now_s - 1_500,
        )
        page.mouse.click(box["x"] + 92 + share * (box["width"] - 92), box["y"] + 22 + 20 + 18 + 9)
        page.get_by_role("region", name="Bars of job-1", exact=True).wait_for()


def test_a_trace_of_the_view_can_be_saved(watched: Callable[..., Watched], tmp_path: Path) -> None:
    with fake_page_server(TwoBars()) as server:
        page = watched(server.url).open("/gantt")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as Chrome trace").click()
        download.value.save_as(tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [each for each in events if each["ph"] == "X"]
    assert [(each["name"], each["dur"]) for each in bars] == [
        ("job-2 two", 1_000_000_000),
        ("job-1 one", 1_000_000_000),
    ]
    assert {each["args"]["name"] for each in events if each["ph"] == "M"} == {"v100-0", "v100-0/1", "v100-0/2"}


def bars_of_table(page: Any) -> list[str]:
    """The jobs that the table lists."""
    return [str(each) for each in page.locator("table tbody th a").all_inner_texts()]


def test_a_marked_time_has_its_own_table_figures_and_trace(watched: Callable[..., Watched], tmp_path: Path) -> None:
    cluster = TwoBars()
    with fake_page_server(cluster) as server:
        tab = watched(server.url)
        page = tab.open("/gantt")
        canvas = page.locator(".gantt-rows canvas[data-draw-ms]")
        canvas.wait_for()
        assert bars_of_table(page) == ["job-2", "job-1"]
        box = canvas.bounding_box()
        span = page.evaluate(
            "(({fromS, toS}) => [Number(fromS), Number(toS)])(document.querySelector('.gantt-rows canvas').dataset)"
        )

        def x(time_s: float) -> float:
            return float(box["x"] + 92 + (time_s - span[0]) / (span[1] - span[0]) * (box["width"] - 92))

        # From the right to the left, over the end of the second bar alone.
        page.keyboard.down("Shift")
        page.mouse.move(x(cluster.now_s - 400), box["y"] + 60)
        page.mouse.down()
        page.mouse.move(x(cluster.now_s - 600), box["y"] + 90, steps=5)
        page.mouse.up()
        page.keyboard.up("Shift")
        marked = page.get_by_role("group", name="The marked time")
        marked.get_by_text("1 bar, 0.0").wait_for()
        page.get_by_role("region", name="Bars in the marked time", exact=True).wait_for()
        page.locator("tbody tr").nth(1).wait_for(state="detached")
        assert bars_of_table(page) == ["job-2"]
        assert page.locator(".gantt-mark").count() == 1
        page.wait_for_url("**/gantt?mark=*")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as Chrome trace").click()
        download.value.save_as(tmp_path / "trace.json")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert [each["name"] for each in events if each["ph"] == "X"] == ["job-2 two"]

        # The address has it; the view may be elsewhere.
        address = page.url.removeprefix(server.url)
        page = tab.open(address + "&from=1000&to=2000")
        marked.get_by_text("1 bar, 0.0").wait_for()
        assert bars_of_table(page) == ["job-2"]
        marked.get_by_role("button", name="Zoom to it").click()
        page.get_by_role("heading", name="1\u202fd 02:04").wait_for()
        page.locator(".gantt-box").focus()
        page.keyboard.press("Escape")
        marked.wait_for(state="detached")
        page.get_by_role("region", name="Bars in view", exact=True).wait_for()
        page.wait_for_url(lambda url: "mark=" not in url)


def test_a_time_is_marked_and_changed_by_keys(watched: Callable[..., Watched]) -> None:
    with fake_page_server(TwoBars()) as server:
        page = watched(server.url).open(f"/gantt?from={94_447 - 3_000}&to={94_447}")
        page.locator(".gantt-rows canvas[data-draw-ms]").wait_for()
        page.locator(".gantt-box").focus()
        page.keyboard.press("m")
        # The middle third of 3,000 s; the first bar ends and the second begins in it.
        page.wait_for_url("**&mark=92447.0-93447.0*")
        marked = page.get_by_role("group", name="The marked time")
        marked.get_by_text("2 bars, 0.4 GPU hours, 2 jobs").wait_for()
        for _ in range(5):
            page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+D")
        page.wait_for_url("**&mark=92507.0-93747.0*")
        # 940 s of the one and 800 s of the other.
        marked.get_by_text("2 bars, 0.5 GPU hours, 2 jobs").wait_for()
        page.keyboard.press("Escape")
        marked.wait_for(state="detached")


def test_of_too_many_bars_a_short_marked_time_is_listed(watched: Callable[..., Watched]) -> None:
    class Many(Cluster):
        def gantt(self, query: dict[str, str]) -> dict[str, Any]:
            return super().gantt(query | {"max_bars": "50"})

    with fake_page_server(Many()) as server:
        tab = watched(server.url)
        page = tab.open("/gantt?mark=93000.0-93010.0")
        page.get_by_text("shown is how many of each node's GPUs were taken").wait_for()
        page.get_by_role("region", name="Bars in the marked time", exact=True).wait_for()
        assert len(bars_of_table(page)) > 10
        page = tab.open("/gantt?mark=91000.0-94000.0")
        page.get_by_text("Too many bars for a list: mark a shorter time.").wait_for()
        assert "GPU hours" in page.get_by_role("group", name="The marked time").inner_text()
        assert page.locator("table").count() == 0


def test_the_figures_of_a_marked_time_are_those_of_plain_python(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    page = watched(server.url).open("/reports")
    draw = random.Random(5)
    for _ in range(60):
        bars = []
        for _ in range(draw.randrange(12)):
            start_s = draw.randrange(100)
            end_s = None if draw.random() < 0.2 else start_s + draw.randrange(40)
            bars.append((draw.randrange(3), start_s, end_s, draw.choice(["", "job-1", "job-2"])))
        mark = sorted(draw.sample(range(130), 2))
        now_s = 120
        names = ("gpu", "start_s", "end_s", "job")
        columns = {name: [each[at] for each in bars] for at, name in enumerate(names)}
        found = page.evaluate(
            """async ([bars, from_s, to_s, now_s]) => {
  const { figuresOf } = await import("/static/test/gantt/marking.js");
  return figuresOf({ bars, now_s, occupancy: null, nodes: [], node: [] }, { from_s, to_s }, now_s, "");
}""",
            [columns, *mark, now_s],
        )
        inside = [each for each in bars if each[1] < mark[1] and (now_s if each[2] is None else each[2]) > mark[0]]
        held = {
            (gpu, second)
            for gpu, start_s, end_s, _ in inside
            for second in range(max(start_s, mark[0]), min(now_s if end_s is None else end_s, mark[1]))
        }
        jobs = {job for *_, job in inside}
        assert found == {"bars": len(inside), "gpu_s": len(held), "jobs": len(jobs - {""}), "others": "" in jobs}


def test_the_overview_moves_and_sizes_the_view(watched: Callable[..., Watched]) -> None:
    cluster = Cluster()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/gantt")
        window = page.get_by_role("slider", name="The view")
        page.get_by_role("img", name="GPUs allocated since").wait_for()
        page.locator('.overview canvas[aria-label*="now"]').wait_for()

        def view() -> tuple[float, float]:
            page.wait_for_timeout(150)
            given = page.evaluate(
                "(({fromS, toS}) => [Number(fromS), Number(toS)])(document.querySelector('.gantt-rows canvas').dataset)"
            )
            return given[0], given[1]

        def drag(x: float, to_x: float) -> None:
            strip = page.locator(".overview").bounding_box()
            page.mouse.move(x, strip["y"] + 20)
            page.mouse.down()
            page.mouse.move(to_x, strip["y"] + 20, steps=4)
            page.mouse.up()

        before, place = view(), window.bounding_box()
        strip = page.locator(".overview").bounding_box()
        assert place["x"] + place["width"] == pytest.approx(strip["x"] + strip["width"], abs=4)
        drag(place["x"] + place["width"] / 2, place["x"] + place["width"] / 2 - 300)
        moved = view()
        per_px = 86_400 / strip["width"]
        assert before[0] - moved[0] == pytest.approx(300 * per_px, rel=0.05)
        assert moved[1] - moved[0] == pytest.approx(before[1] - before[0], abs=1)
        page.get_by_role("button", name="Live", pressed=False).wait_for()

        place = window.bounding_box()
        drag(place["x"], place["x"] - 100)
        wider = view()
        assert wider[1] == pytest.approx(moved[1], abs=2)
        assert moved[0] - wider[0] == pytest.approx(100 * per_px, rel=0.1)

        # Beside the window: it comes there.
        page.mouse.click(strip["x"] + 100, strip["y"] + 20)
        middle = sum(view()) / 2
        assert middle == pytest.approx(cluster.now_s - 86_400 + 100 * per_px, abs=400) or view()[0] == pytest.approx(
            cluster.now_s - 86_400, abs=2
        )

        window.focus()
        page.keyboard.press("PageDown")
        there = view()
        page.keyboard.press("ArrowRight")
        assert view()[0] - there[0] == pytest.approx((there[1] - there[0]) / 10, rel=0.01)
        page.keyboard.press("Shift+ArrowLeft")
        assert view()[1] - view()[0] == pytest.approx(0.9 * (there[1] - there[0]), rel=0.01)
        page.keyboard.press("Home")
        assert view()[0] == pytest.approx(cluster.now_s - 86_400, abs=2)
        page.keyboard.press("End")
        page.get_by_role("button", name="Live", pressed=True).wait_for()


def test_too_many_bars_are_shown_as_occupancy_and_it_is_said(watched: Callable[..., Watched]) -> None:
    class Many(Cluster):
        def gantt(self, query: dict[str, str]) -> dict[str, Any]:
            return super().gantt(query | {"max_bars": "10"})

    with fake_page_server(Many()) as server:
        page = watched(server.url).open("/gantt")
        page.get_by_text("shown is how many of each node's GPUs were taken").wait_for()
        page.locator(".gantt-rows canvas[data-draw-ms]").wait_for()
        assert page.get_by_role("region", name="Bars in view").count() == 0


def test_a_slow_answer_about_a_view_that_goes_on_is_shown(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    server.slow_s["gantt"] = 2.5
    tab = watched(server.url)
    tab.page.goto(server.url + "/gantt")
    for second in range(8):  # the clock goes on, and the view with it
        server.cluster.now_s += 1.0 + second / 10
        server.push()
        tab.page.wait_for_timeout(500)
    tab.page.locator("canvas[data-draw-ms]").wait_for(timeout=5_000)


@pytest.mark.parametrize("address", ["/gantt?from=abc&to=7", "/gantt?from=70&to=7"])
def test_an_address_that_names_no_time_shows_the_present(
    server: FakePageServer, watched: Callable[..., Watched], address: str
) -> None:
    page = watched(server.url).open(address)
    page.get_by_role("button", name="Live", pressed=True).wait_for()


def test_the_bar_leads_back_to_the_present(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/gantt?from=100&to=700")
    page.get_by_role("button", name="Live", pressed=False).wait_for()
    page.get_by_role("navigation").get_by_role("link", name="Gantt").click()
    page.get_by_role("button", name="Live", pressed=True).wait_for()
