"""What one does on the screens: filter ten thousand jobs, ask why by keyboard alone, cancel, submit, read the Gantt."""

from __future__ import annotations

import json
import math
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import TOKEN, FakePageServer, fake_page_server
from tests.browser.made_up_cluster import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def focused(page: Any) -> str:
    """The text, label or name of what has the focus."""
    return str(page.evaluate("(document.activeElement.innerText || document.activeElement.name || '').trim()"))


def tab_to(page: Any, text: str, limit: int = 60) -> None:
    """Presses Tab until that has the focus, which must be visible."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        if focused(page).startswith(text):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    pytest.fail(f"{text!r} can't be reached by Tab")


def test_keyboard_only_from_login_to_why_a_job_waits(watched: Callable[..., Watched]) -> None:
    with fake_page_server(login=True) as server:
        tab = watched(server.url)
        tab.allowed.append("status of 401")
        page = tab.open("/")
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.name") == "token":
                break
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").filter(has_text="this token is not known").wait_for()
        page.keyboard.press("Control+A")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="What needs you").wait_for()
        tab_to(page, "Queue")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Queue").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("job-26")
        page.get_by_text("1 job of 140").wait_for()
        tab_to(page, "job-26")
        page.keyboard.press("Enter")

        page.get_by_role("region", name="Why it waits").get_by_text("no such GPU is free").wait_for()
        assert page.get_by_text("in 3\u202fm 00\u202fs to 9\u202fm 00\u202fs").count() == 1
        # No token is kept where a script could read it.
        assert TOKEN not in page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )


def test_ten_thousand_jobs_are_a_window(watched: Callable[..., Watched]) -> None:
    with fake_page_server(Cluster(waiting=10_000)) as server:
        page = watched(server.url).open("/queue")
        page.get_by_text("10,020 jobs").wait_for()
        assert page.locator("tbody tr").count() < 120

        page.get_by_role("row", name="job-21").get_by_role("link").focus()
        page.keyboard.press("End")
        page.get_by_role("row", name="job-20 ").get_by_role("link").wait_for()
        page.locator('tr[data-index="10019"] a:focus').wait_for()
        assert page.locator("tbody tr").count() < 120
        page.keyboard.press("ArrowUp")
        page.locator('tr[data-index="10018"] a:focus').wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Cancel job").wait_for()


def test_filter_and_order_stand_in_the_address(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    page = tab.open("/queue")
    page.get_by_role("button", name="Waited").click()
    page.locator('th[aria-sort="descending"]').filter(has_text="Waited").wait_for()
    page.get_by_label("State").select_option("pending")
    page.get_by_label("Name or id").fill("resnet50")
    page.wait_for_url("**/queue?q=resnet50&sort=-wait_s&state=pending")
    other = page.locator("tbody tr:not([aria-hidden])").filter(has_not_text="resnet50").first
    other.wait_for(state="detached")
    before = page.locator("tbody").inner_text()

    tab.open("/queue?q=resnet50&sort=-wait_s&state=pending")
    assert page.locator("tbody").inner_text() == before
    assert "resnet50" in before
    assert page.get_by_label("Name or id").input_value() == "resnet50"


def test_cancel_asks_first_and_tells_a_refusal(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url)
    tab.allowed.append("status of 403")
    page = tab.open("/jobs/job-26")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert server.actions == []

    server.failing["cancel"] = (403, "job-26 is not yours")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("alert").filter(has_text="job-26 is not yours").wait_for()
    server.failing.clear()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert server.actions == [("cancel", {"job_id": "job-26"})]


def test_a_policy_is_set_only_after_its_name_was_typed(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/policies")
    page.get_by_role("button", name="Let it decide fcfs").click()
    act = page.get_by_role("dialog").get_by_role("button", name="Set policy")
    assert act.is_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("fcfs")
    act.click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert server.actions == [("policy", {"policy": "fcfs"})]


def test_the_form_submits_what_its_command_line_says(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/submit")
    page.get_by_label("Name").fill('it\'s "mine"')
    page.get_by_role("textbox", name="GPUs", exact=True).fill("two")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("a whole number from 1 to 1024").wait_for()
    assert server.actions == []
    page.get_by_role("textbox", name="GPUs", exact=True).fill("2")
    page.get_by_label("GPU memory").fill("15,000 MiB")
    page.get_by_label("CPU cores").fill("8")
    page.get_by_label("Time limit").fill("1h30m")
    page.get_by_label("t4", exact=True).check()
    page.get_by_label("it may be stopped").check()
    page.get_by_label("Command", exact=True).fill("python train.py --note 'a b'")

    line = page.get_by_role("group", name="Command line").inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job-9001")

    assert shlex.split(line) == [
        *("adlro", "submit", "--type", "machine_learning", "--name", 'it\'s "mine"', "--gpus", "2"),
        *("--gpu-model", "t4", "--cores", "8", "--gpu-memory", "15000MiB", "--time-limit", "5400", "--preemptible"),
        *("--", "python", "train.py", "--note", "a b"),
    ]
    [(name, content)] = server.actions
    assert name == "submit"
    assert content["job"] | {"expected_runtime": None} == {
        "name": "it's \"mine\"", "job_type": "machine_learning", "application": "", "priority": 0.5, "gpu_count": 2,
        "gpu_models": ["t4"], "max_node_count": 0, "cpu_cores": 8, "memory_mib": 0, "gpu_memory_mib": 15_000,
        "time_limit_s": 5_400, "expected_runtime": None, "preemptible": {"restart_s": 0, "lost_s": 0},
        "shareable": False, "argv": ["python", "train.py", "--note", "a b"], "image": "",
    }  # fmt: skip


def test_the_map_is_one_stop_for_tab_and_arrows_go_on(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/")
    assert page.locator('.heatmap button[tabindex="0"]').count() == 1
    page.locator('.heatmap button[tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.locator(".inspector strong").get_by_text("v100-1/0").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpus/v100-1%2F0")
    page.get_by_role("heading", name="v100-1/0").wait_for()


# --- the curves of the first screen ---


def leftmost(page: Any, label: str, tone_name: str) -> float:
    """Where a curve begins: the first column with its colour, as a share of the canvas' width."""
    return float(
        page.evaluate(
            """([label, colour]) => {
  const canvas = document.querySelector(`[aria-label^="${label}"] canvas`);
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const near = (at) => colour.every((part, index) => Math.abs(data[at + index] - part) < 12) && data[at + 3] > 200;
  for (let x = 0; x < width; x += 1)
    for (let y = 0; y < height; y += 1) if (near((y * width + x) * 4)) return x / width;
  return 1;
}""",
            [label, tone(page, tone_name)],
        )
    )


def test_a_fresh_tab_has_the_curves_of_the_last_hour_and_goes_on_from_there(watched: Callable[..., Watched]) -> None:
    cluster = Cluster()
    with fake_page_server(cluster) as server:
        tab = watched(server.url)
        tab.allowed += ["Multiple readback operations", "WebSocket connection", "ERR_CONNECTION", "Failed to load"]
        page = tab.open("/")
        region = page.get_by_role("region", name="The last hour")
        region.locator("canvas").nth(1).wait_for()
        # Without a single live point: from the left edge of the plot on.
        assert leftmost(page, "Jobs that wait", "--tone-1") < 0.15
        assert leftmost(page, "GPUs allocated", "--tone-3") < 0.15
        early = cluster.head()["queue_by_reason"]["begin_time"]
        region.get_by_role("img", name=f"Last: waiting {120 - early} jobs").wait_for()

        # A live point; jobs whose begin time has not come do not wait.
        server.run(server.tabs[0].delta("head", {"time_s": cluster.now_s + 2, "queue_length": 50, "allocated_gpus": 7}))
        region.get_by_role("img", name=f"Last: waiting {50 - early} jobs").wait_for()
        region.get_by_role("img", name="Last: allocated 7 GPUs").wait_for()
        assert leftmost(page, "Jobs that wait", "--tone-1") < 0.15
        assert server.requests["load"] == 1

        # What happened while the page's server was away is asked for.
        cluster.now_s += 10
        server.restart()
        region.get_by_role("img", name=f"Last: waiting {120 - early} jobs").wait_for()
        assert server.requests["load"] == 2

        page.get_by_role("button", name="10 m", exact=True).click()
        page.get_by_role("region", name="The last 10 minutes").locator("canvas").nth(1).wait_for()
        page.wait_for_url("**/?last=10m")


def test_curves_that_are_not_exact_say_so(watched: Callable[..., Watched]) -> None:
    class Busy(Cluster):
        def load(self, span_s: float) -> dict[str, Any]:
            found = super().load(span_s)
            return found | {"exact": False, "from_s": found["from_s"] + 600}

    with fake_page_server(Busy()) as server:
        page = watched(server.url).open("/")
        page.get_by_text("Too many jobs have ended for all of this time").wait_for()
        page.get_by_text("Too many starts for single ones").wait_for()


# --- the Gantt's canvas ---


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


def tone(page: Any, name: str) -> list[int]:
    """A colour of the style sheet as a pixel."""
    text = page.evaluate("(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()", name)
    return [int(text[at : at + 2], 16) for at in (1, 3, 5)]


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


# --- trainings ---


def test_trainings_are_grouped_and_their_differing_settings_listed(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url)
    page = tab.open("/learning")
    # The mean of three at the last step that all have reached; the baseline and what is alone by themselves.
    # At 290, where the third scored last and the others too.
    mean = sum(0.8 + 0.1 * number - math.exp(-290 / 90) for number in range(3)) / 3
    chart = page.get_by_role("img", name="score by step")
    chart.filter(has=page.locator("canvas")).wait_for()
    said = str(chart.get_attribute("aria-label"))
    assert f"mean of 3: gang {mean:.2f}" in said
    assert "run-a (baseline)" in said
    assert "run-b" not in said
    assert "run-d" in said
    table = page.get_by_role("region", name="Settings that differ, table")
    assert table.get_by_role("row").all_inner_texts() == [
        "Setting\tgang, 3 trainings (with the baseline)\tdqn",
        "learning_rate\t0.001, 0.0003\t0.001",
        "recipe\tgang\tdqn",
        "seed\t1, 2\t1",
    ]

    page.get_by_role("button", name="by equal settings").click()
    page.wait_for_url("**/learning?group=settings")
    page.get_by_role("columnheader", name="gang, learning_rate 0.0003, 2 trainings").wait_for()
    assert "mean of 2: gang, learning_rate 0.0003" in str(chart.get_attribute("aria-label"))

    # Another baseline, pinned by the address too.
    page.get_by_role("radio", name="run-d is the baseline").check()
    page.wait_for_url("**/learning?baseline=run-d&group=settings")
    page.get_by_role("columnheader", name="(baseline)").wait_for()
    assert page.get_by_role("checkbox", name="Show run-d").is_disabled()
    page.get_by_role("checkbox", name="Show run-b").uncheck()
    page.get_by_role("button", name="each alone").click()
    assert table.get_by_role("columnheader").all_inner_texts() == ["Setting", "run-d (baseline)", "run-a", "run-c"]
    tab.open(page.url.removeprefix(server.url))
    assert table.get_by_role("columnheader").all_inner_texts() == ["Setting", "run-d (baseline)", "run-a", "run-c"]


def test_a_training_that_goes_on_is_asked_for_again(watched: Callable[..., Watched]) -> None:
    class Goes(Cluster):
        rows = 40

        def _runs(self) -> dict[str, Any]:
            found = super()._runs()
            found["runs"][1]["row_count"] = self.rows
            return found

    cluster = Goes()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/learning")
        page.get_by_role("img", name="score by step").wait_for()
        first = {name: count for name, count in server.requests.items() if name.startswith("runs/")}
        assert set(first.values()) == {1}
        cluster.rows = 41
        until = page.get_by_role("row", name="run-b").get_by_text("41", exact=True)
        until.wait_for()
        page.wait_for_timeout(300)
        assert server.requests["runs/run-b"] == 2
        assert server.requests["runs/run-a"] == 1


def test_the_mean_of_a_group_is_that_of_plain_python(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/reports")
    draw = random.Random(9)
    for _ in range(40):
        runs = []
        for number in range(draw.randrange(1, 5)):
            steps = sorted(draw.sample(range(20), draw.randrange(0, 8)))
            values = [None if draw.random() < 0.1 else draw.randrange(100) / 4 for _ in steps]
            runs.append({"id": str(number), "columns": {"step": steps, "score": values}, "settings": {}})
        found = page.evaluate(
            """async (runs) => (await import("/static/test/runs.js")).meanOf(runs, "score", "step")""", runs
        )
        columns: list[Any] = [run["columns"] for run in runs]
        curves = [[each for each in zip(*column.values(), strict=True) if each[1] is not None] for column in columns]
        steps = sorted({step for curve in curves for step, _ in curve})
        # Where all have begun and none has ended.
        steps = [each for each in steps if all(curve and curve[0][0] <= each <= curve[-1][0] for curve in curves)]
        assert found["step"] == steps
        whole = [np.array(curve, np.float64).T for curve in curves if steps]
        lines = [np.interp(np.array(steps, np.float64), known, values).tolist() for known, values in whole]
        for name, fold in (("mean", np.mean), ("low", np.min), ("high", np.max)):
            assert found[name] == pytest.approx([fold(each) for each in zip(*lines, strict=True)])


def test_a_report_can_not_touch_the_session(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/reports")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open the whole report").click()
    opened.value.wait_for_load_state()
    assert opened.value.evaluate("window.origin") == "null"


def test_colours_follow_the_system_and_the_switch(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    tab = watched(server.url, color_scheme="dark")
    page = tab.open("/")
    ground = "getComputedStyle(document.body.parentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_label("Colours").select_option("light")
    light = page.evaluate(ground)
    assert light != dark
    tab.open("/queue")
    assert page.evaluate(ground) == light  # kept
    page.get_by_label("Colours").select_option("system")
    assert page.evaluate(ground) == dark


def test_a_path_that_is_no_screen_says_so(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/nothing/here")
    assert page.get_by_role("heading", name="No such page").count() == 1


def test_a_screen_without_a_source_is_not_in_the_navigation(watched: Callable[..., Watched]) -> None:
    class Few(Cluster):
        def me(self, *, users_known: bool) -> dict[str, Any]:
            return super().me(users_known=users_known) | {"screens": ["cluster", "queue"], "actions": []}

    with fake_page_server(Few()) as server:
        tab = watched(server.url)
        page = tab.open("/jobs/job-2")
        assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == ["Cluster", "Queue"]
        assert page.get_by_role("button", name="Cancel job").count() == 0
        assert page.get_by_role("link", name="Decision").count() == 0


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
