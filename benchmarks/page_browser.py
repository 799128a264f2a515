"""What the live page costs a browser: headless Chromium on the page's own server, before simulated services.

Used by `benchmarks.page`. The services of 1,024 GPUs are one process that answers at once (`benchmarks.top.Services`),
since a user's browser does not share its processor with a cluster's services either; Chromium has no GPU here and draws
in software, so frame times are upper bounds. Needs chromium on PATH (or ADLRO_TEST_CHROMIUM) and playwright, of the
`dev` extra.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from adlro.kit.testing import spawn_service
from adlro.v1 import job_service_pb2
from benchmarks.measuring import percentile
from benchmarks.top import Services, serve, simulated

TICK_S = 0.5
SHORT_FRAME_MS = 50.0
_SETTLE_S = 3.0
# Heights in static/screens/gantt.js and static/gantt/rows.js.
_AXIS_PX, _NODE_PX = 22, 20
_DRAWN = "canvas[data-draw-ms]"
_MAIN_THREAD = "CrRendererMain"
# Tasks of the threads, and no more: each further category costs the page time.
_CATEGORIES = ["toplevel"]
# Gaps between frames while the page is left alone, for some seconds.
_FRAME_GAPS = """(seconds) => new Promise((done) => {
  const gaps = [];
  const begin = performance.now();
  let last = begin;
  const next = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - begin < seconds * 1000) requestAnimationFrame(next);
    else done(gaps.slice(2));
  };
  requestAnimationFrame(next);
})"""
# Turns the wheel once a frame: 40 frames one way, 40 back. With Shift it pans, with Ctrl it zooms.
_TURN_WHEEL = """([seconds, keys]) => new Promise((done) => {
  const place = document.querySelector("canvas[data-draw-ms]");
  const box = place.getBoundingClientRect();
  const gaps = [], draws = [];
  const begin = performance.now();
  let last = begin, count = 0;
  const next = (now) => {
    gaps.push(now - last);
    draws.push(Number(place.dataset.drawMs));
    last = now;
    const way = Math.floor(count / 40) % 2 ? -1 : 1;
    count += 1;
    place.dispatchEvent(new WheelEvent("wheel", { deltaY: way * 12, bubbles: true, cancelable: true,
      clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, ...keys }));
    if (now - begin < seconds * 1000) requestAnimationFrame(next);
    else done({ gaps: gaps.slice(2), draws: draws.slice(2) });
  };
  requestAnimationFrame(next);
})"""
# Notes when the page asks for a topic, and when the first frame after that comes.
_NOTE_ANSWERS = """
const Plain = window.WebSocket;
window.answers = [];
window.WebSocket = class extends Plain {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({ data }) => {
      if (typeof data === "string" || this.asked === undefined) return;
      window.answers.push(performance.now() - this.asked);
      this.asked = undefined;
    });
  }
  send(text) {
    if (text.includes('"subscribe"')) this.asked = performance.now();
    super.send(text);
  }
};
"""
# Milliseconds from an act until the queue's rows are others, and drawn: after an order other ids stand first, after a
# filter another number of jobs is told.
_UNTIL_ROWS = """(act) => new Promise((done, fail) => {
  const links = () => [...document.querySelectorAll(".queue-box tbody th a")];
  const first = () => links().slice(0, 8).map((each) => each.textContent).join();
  const told = () => document.querySelector(".queue .panel-head .num.quiet").textContent;
  const total = () => Number(told().split(" job")[0].replace(/\\D/g, ""));
  const [ids, jobs] = [first(), total()];
  const right = act.sort ? () => first() !== ids : act.value ? () => total() < jobs / 2 : () => total() > jobs * 2;
  const begin = performance.now();
  const watch = new MutationObserver(() => {
    if (document.querySelector(".queue-box.moving") || !right()) return;
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
  });
  const parts = { subtree: true, childList: true, characterData: true, attributes: true };
  watch.observe(document.querySelector("main"), parts);
  setTimeout(() => { watch.disconnect(); fail(new Error("the rows did not change")); }, 5000);
  const heads = [...document.querySelectorAll("thead button")];
  if (act.sort) heads.find((each) => each.textContent.startsWith(act.sort)).click();
  else {
    const field = document.querySelector(".filters input.short");
    field.value = act.value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }
})"""


class PageServices(Services):
    """With what the page asks beside."""

    async def ListJobs(self, _request: Any, _: Any) -> Any:  # noqa: N802
        """No job has ended."""
        return job_service_pb2.ListJobsResponse()


@contextlib.contextmanager
def simulated_page(gpus: int, jobs: int, starts_per_s: float) -> Iterator[str]:
    """The page's address, with simulated services behind it."""
    names = ("INGEST", "DECOMPOSE", "ORCHESTRATOR", "CLUSTER")
    with (
        simulated(gpus, jobs, starts_per_s, "benchmarks.page_browser") as address,
        spawn_service("web", {f"ADLRO_WEB_{name}_ADDRESS": address for name in names}) as web,
    ):
        yield web.address


def chromium_options() -> dict[str, Any]:
    """How playwright starts the browser. Raises SystemExit where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("ADLRO_TEST_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise SystemExit("no chromium on PATH: install it, or name it by ADLRO_TEST_CHROMIUM")
    arguments = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
    return {"executable_path": path, "args": arguments}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**chromium_options())
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Any, address: str, path: str, script: str = "") -> Any:
    """A page of the browser that shows a screen with its figures; before it a script of ours runs."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(script)
    page.goto(f"http://{address}{path}")
    page.locator("main h1").first.wait_for(state="attached")
    page.locator(".skeleton").first.wait_for(state="detached")
    time.sleep(_SETTLE_S)
    return page


# ---- the Cluster screen at 2 Hz


def cluster_figures(browser: Any, address: str, seconds: float) -> dict[str, float]:
    """What the map of 1,024 GPUs costs: work of the main thread in each half second, frames, heap."""
    page = opened(browser, address, "/")
    browser.start_tracing(page=page, categories=_CATEGORIES)
    time.sleep(seconds)
    trace = json.loads(browser.stop_tracing())
    work_ms = works_ms(trace["traceEvents"])
    gaps = page.evaluate(_FRAME_GAPS, seconds)
    heap = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
    page.close()
    return {
        "work_p50_ms": percentile(work_ms, 0.5),
        "work_p95_ms": percentile(work_ms, 0.95),
        "work_most_ms": max(work_ms),
        "longest_frame_ms": max(gaps),
        "long_frames": sum(gap > SHORT_FRAME_MS for gap in gaps),
        "frames": len(gaps),
        "heap_mb": heap,
    }


def works_ms(events: list[dict[str, Any]]) -> list[float]:
    """CPU milliseconds of the page's main thread in each half second of a trace, but for the first and the last.

    Script, style, layout and painting count, and what the trace itself costs. The page's is the thread that works most:
    the browser has others of the same name.
    """
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"].get("name") == _MAIN_THREAD
    }
    tasks: dict[tuple[int, int], list[tuple[float, float, float]]] = defaultdict(list)
    for event in events:
        thread = (event.get("pid"), event.get("tid"))
        if event.get("ph") == "X" and event["name"].endswith("RunTask") and thread in threads:
            tasks[thread].append((event["ts"] / 1e3, event["dur"] / 1e3, event.get("tdur", event["dur"]) / 1e3))
    longest = max(tasks.values(), key=lambda each: sum(worked for *_, worked in each))
    begin_ms = min(at for at, *_ in longest)
    found: dict[int, float] = defaultdict(float)
    end_ms = 0.0
    for at, took, worked in sorted(longest):
        if at >= end_ms:  # not a task within another one
            found[int((at - begin_ms) / (1e3 * TICK_S))] += worked
            end_ms = at + took
    return [found[tick] for tick in range(1, max(found))]


# ---- the Gantt with many bars


def made_chart(bars: int, gpus: int, seed: int) -> dict[str, Any]:
    """An answer of /api/gantt: bars of some seconds on all GPUs, without gaps."""
    draw = random.Random(seed)
    nodes = [f"node-{number}" for number in range(gpus // 8)]
    chart: dict[str, Any] = {
        "from_s": 0.0,
        "to_s": 6000.0,
        "now_s": 6000.0,
        "gpus": [f"node-{gpu // 8}/{gpu % 8}" for gpu in range(gpus)],
        "nodes": nodes,
        "node": [gpu // 8 for gpu in range(gpus)],
        "occupancy": None,
        "bar_count": bars,
        "left_out": 0,
    }
    columns: dict[str, list[Any]] = defaultdict(list)
    each = -(-bars // gpus)
    for gpu in range(gpus):
        at_s = 0.0
        for number in range(min(each, bars - gpu * each)):
            took_s = draw.uniform(0.2, 1.8) * 6000.0 / each
            columns["gpu"].append(gpu)
            columns["start_s"].append(round(at_s, 3))
            columns["end_s"].append(round(at_s + took_s, 3))
            columns["job"].append(f"job-{gpu * each + number + 1}")
            columns["name"].append("resnet50")
            columns["user"].append(f"user-{draw.randrange(40)}")
            columns["type"].append(draw.choice(("simulation", "machine_learning", "data_processing")))
            columns["outcome"].append(draw.choice(("succeeded",) * 9 + ("failed",)))
            columns["differs"].append(0)
            at_s += took_s
    return chart | {"bars": columns}


def gantt_figures(browser: Any, address: str, bars: int, seconds: float, seed: int) -> dict[str, float]:
    """Frames while the Gantt of so many bars is panned and zoomed, folded by node and with open nodes."""
    gpus = 1024
    body = json.dumps(made_chart(bars, gpus, seed))
    page = browser.new_page(viewport={"width": 1600, "height": 1024})
    load = {
        "from_s": 0.0,
        "now_s": 6000.0,
        "asked_s": 0.0,
        "allocated": {"time_s": [0.0, 6000.0], "count": [gpus, gpus]},
    }
    load["waiting"] = load["allocated"]
    for path, text in (("gantt", body), ("load", json.dumps(load))):
        page.route(f"**/api/{path}?*", _answer(text))
    page.goto(f"http://{address}/gantt?from=2000&to=4000")
    page.locator(_DRAWN).wait_for()
    time.sleep(_SETTLE_S)
    found: dict[str, float] = {}
    for rows in ("folded", "open"):
        if rows == "open":
            _open_nodes(page)
        for act, keys in (("pan", {"shiftKey": True}), ("zoom", {"ctrlKey": True})):
            seen = page.evaluate(_TURN_WHEEL, [seconds, keys])
            found[f"{rows}_{act}_fps"] = 1e3 * len(seen["gaps"]) / sum(seen["gaps"])
            found[f"{rows}_{act}_draw_p95_ms"] = percentile(seen["draws"], 0.95)
            time.sleep(1.0)
    page.close()
    return found


def _answer(text: str) -> Any:
    return lambda route: route.fulfill(body=text, content_type="application/json")


def _open_nodes(page: Any) -> None:
    """Clicks on all nodes in sight, from the bottom up: each opened one pushes those below it down."""
    box = page.locator(_DRAWN).bounding_box()
    for y in range(int(box["height"]) - 12, _AXIS_PX, -_NODE_PX):
        page.mouse.click(box["x"] + 20, box["y"] + y)
    time.sleep(0.5)


# ---- the Queue with many jobs


def queue_figures(browser: Any, address: str, rounds: int) -> dict[str, float]:
    """Milliseconds from a click on a column's head, or from a chosen filter, until other rows are drawn."""
    page = opened(browser, address, "/queue", _NOTE_ANSWERS)
    told = page.locator(".queue .panel-head .num.quiet").first.inner_text()
    page.evaluate("window.answers.length = 0")
    sorts, filters = [], []
    for number in range(rounds):
        column = ("User", "Waited", "Priority", "Job")[number % 4]
        sorts.append(page.evaluate(_UNTIL_ROWS, {"sort": column}))
        time.sleep(0.7)
        user = f"user-{number % 40}"
        filters.append(page.evaluate(_UNTIL_ROWS, {"value": user}))
        time.sleep(0.7)
        page.evaluate(_UNTIL_ROWS, {"value": ""})
        time.sleep(0.7)
    answers = page.evaluate("window.answers")
    page.close()
    return {
        "answer_p50_ms": percentile(answers, 0.5),
        "answer_p95_ms": percentile(answers, 0.95),
        "jobs": float("".join(filter(str.isdigit, told.split(" job")[0]))),
        "sort_p50_ms": percentile(sorts, 0.5),
        "sort_p95_ms": percentile(sorts, 0.95),
        "filter_p50_ms": percentile(filters, 0.5),
        "filter_p95_ms": percentile(filters, 0.95),
    }


def main() -> None:
    """Serves the simulated services, as `simulated_page` starts them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--starts", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(serve(PageServices(options.gpus, options.jobs, options.starts)))


if __name__ == "__main__":
    main()
