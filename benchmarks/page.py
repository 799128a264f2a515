"""What the live page costs: the orchestrator that is watched, the page's own process, a browser's tab; and `adlro top`.

    python -m benchmarks.page [--parts assets browser paced flat_out sockets top] [--rounds 16] [--seconds 60]
                              [--minutes 3] [--seed 1] [--json]

- `paced`: 50 light WebSocket clients of one process against none, in turns, before all services of 1,024 GPUs, to which
  12 jobs come each second: the orchestrator's CPU a decision and decisions a second, as ratios within a round, with
  their 95 % interval. The clients stand for browsers of other machines: they run at the lowest priority. A third turn
  has a neighbour in their place that computes and talks to nobody: what two cores that are shared cost by themselves.
- `flat_out`: the same while the orchestrator decides as fast as it can (Valkey, simcluster in virtual time, ingest,
  orchestrator; as in `benchmarks.watching`): who has two cores has none left then, so that whatever else runs counts.
- `browser`: headless Chromium on simulated services of 1,024 GPUs: work of the main thread in each half second, frames;
  100,000 bars panned and zoomed; 10,000 waiting jobs filtered and sorted. Work is CPU time.
- `sockets`: the page before all services of 1,024 GPUs on a scaled clock, 2,000 jobs at once and 12 a second after,
  with 50 clients: bytes a tab, CPU and memory of its process over `--minutes`, and from an event to the screen: a
  job is submitted, and a browser's Queue shows it.
- `top`: `benchmarks.top`'s figures. `assets`: all files of the page, as they are sent.

Each figure stands beside its goal. Needs chromium and the `dev` extra for browser and sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adlro.client import AsyncClient, JobSpec, JobType
from adlro.kit.testing import spawn_service
from adlro.records.jobs import SimulatedWork
from adlro.services.web.assets import Assets
from benchmarks import page_browser, top, watching
from benchmarks.event_lag import jobs_coming, large_suite
from benchmarks.measuring import ClientProcess, command, cpu_s, cpu_since, machine, percentile, spread

SOCKETS = 50
ALONE, WATCHED, NEIGHBOUR = "alone", "watched", "neighbour"
TURNS = (ALONE, WATCHED)
TURN_S = 15.0
# About what the page, its clients and the streams that ingest keeps for it use together.
NEIGHBOUR_CPU_RATIO = 0.07
GOALS: dict[str, tuple[str, float]] = {
    "assets_kb": ("<", 120.0),
    "cpu_ms_ratio_high": ("<", 1.05),
    "decisions_per_s_ratio_low": (">", 0.95),
    "work_p95_ms": ("<", 10.0),
    "long_frames": ("<", 1.0),
    "folded_pan_fps": (">", 55.0),
    "folded_zoom_fps": (">", 55.0),
    "open_pan_fps": (">", 55.0),
    "open_zoom_fps": (">", 55.0),
    "sort_p95_ms": ("<", 50.0),
    "filter_p95_ms": ("<", 50.0),
    "cluster_kb_per_s": ("<", 20.0),
    "queue_kb_per_s": ("<", 20.0),
    "decisions_kb_per_s": ("<", 20.0),
    "resident_mb_most": ("<", 200.0),
    "event_to_screen_p95_s": ("<", 1.0),
    "cpu_ratio": ("<", top.GOAL_CPU_RATIO),
}


# ---- the orchestrator, watched by the page


class Turn:
    """Light browsers of the page in a process of their own, or a neighbour, or nothing.

    Attributes:
        bytes_each: not counted here.
    """

    bytes_each = 0.0

    def __init__(self, address: str, kind: str) -> None:
        self._address, self._kind = address, kind
        self._process: ClientProcess | None = None

    async def __aenter__(self) -> Turn:
        if self._kind == WATCHED:
            given = {"address": self._address, "count": SOCKETS, "seconds": 3600.0}
            self._process = ClientProcess("benchmarks.page_sockets", given)
        elif self._kind == NEIGHBOUR:
            self._process = ClientProcess("benchmarks.page_neighbour", {"cpu_ratio": NEIGHBOUR_CPU_RATIO})
        if self._process is not None:
            await asyncio.to_thread(self._process.wait_ready)
        if self._kind != WATCHED:
            await asyncio.sleep(1.0)  # the streams for those that left are closed
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
            self._process = None

    async def until(self, count: int) -> None:
        """What is told later counts too."""
        del count
        await asyncio.sleep(0.6)


class Page:
    """The page's process, whose streams are open only while somebody looks.

    Args:
        stack: ends it.
        ingest, orchestrator, cluster, decompose: addresses of the services.
    """

    def __init__(
        self, stack: contextlib.ExitStack, ingest: str, orchestrator: str, cluster: str, decompose: str
    ) -> None:
        addresses = {"INGEST": ingest, "ORCHESTRATOR": orchestrator, "CLUSTER": cluster, "DECOMPOSE": decompose}
        env = {f"ADLRO_WEB_{name}_ADDRESS": address for name, address in addresses.items()}
        self.process = stack.enter_context(spawn_service("web", env | {"ADLRO_WEB_STREAMS_IDLE_S": "0"}))

    def turn(self, kind: str) -> Turn:
        """A turn with browsers, or without."""
        return Turn(self.process.address, kind)


async def flat_out(gpus: int, options: Namespace) -> dict[str, Any]:
    """Turns with and without browsers, in virtual time."""
    rng = np.random.default_rng((options.seed, gpus))
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in TURNS}
    decisions = options.decisions * (4 if gpus <= 64 else 1)  # which take a quarter of the time
    with watching.suite(gpus, options.policy) as suite, contextlib.ExitStack() as stack:
        ingest = stack.enter_context(spawn_service("ingest", {"ADLRO_REDIS_URL": suite.redis_url}))
        page = Page(stack, ingest.address, suite.orchestrator.address, suite.cluster.address, "127.0.0.1:1")
        await suite.fill()
        for kind in TURNS:  # to warm up
            await suite.measure(page.turn(kind), decisions, rng)
        for number in range(options.rounds):
            for kind in rng.permutation(TURNS).tolist():
                list_rng = np.random.default_rng((options.seed, gpus, number))  # the same list for both
                rounds[kind].append(await suite.measure(page.turn(kind), decisions, list_rng))
    return compared(rounds)


async def paced(options: Namespace) -> dict[str, Any]:
    """Turns with and without browsers, while jobs come as they do in life."""
    rng = np.random.default_rng(options.seed)
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in (*TURNS, NEIGHBOUR)}
    coming = Namespace(jobs=480, rate=12.0, seed=options.seed)  # as many as then run at a time
    with large_suite(1.0, options.policy) as suite, contextlib.ExitStack() as stack:
        ends = suite.endpoints
        page = Page(stack, ends.ingest, ends.orchestrator, ends.cluster, ends.decompose)
        async with jobs_coming(suite, coming) as client:
            await asyncio.sleep(60.0)  # the jobs that came at once have ended
            for _ in range(options.rounds):
                for kind in rng.permutation(list(rounds)).tolist():
                    async with page.turn(kind):
                        pids = (suite.orchestrator.pid, page.process.pid, suite.ingest.pid)
                        before_s = [cpu_s(pid) for pid in pids]
                        decided, began_s = (await client.status()).decision_count, time.monotonic()
                        await asyncio.sleep(TURN_S)
                        decided, passed_s = (await client.status()).decision_count - decided, time.monotonic() - began_s
                        used_s = [
                            cpu_since(pid, before) or math.nan for pid, before in zip(pids, before_s, strict=True)
                        ]
                    rounds[kind].append(
                        {
                            "cpu_ms": 1e3 * used_s[0] / decided,
                            "decisions_per_s": decided / passed_s,
                            "web_cpu_ratio": used_s[1] / passed_s,
                            "ingest_cpu_ratio": used_s[2] / passed_s,
                        }
                    )
    return compared(rounds)


def compared(rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians of all kinds of turns, and their ratios to that of nobody, within a round."""
    result: dict[str, Any] = {}
    for key in rounds[ALONE][0]:
        for kind, turns in rounds.items():
            result[f"{key}_{kind}"] = spread([each[key] for each in turns])["median"]
    for key in ("cpu_ms", "decisions_per_s"):
        for kind in (each for each in rounds if each != ALONE):
            ratios = [ours[key] / theirs[key] for ours, theirs in zip(rounds[kind], rounds[ALONE], strict=True)]
            name = f"{key}_ratio" if kind == WATCHED else f"{key}_{kind}_ratio"
            result |= {f"{name}_{part}": value for part, value in watching.interval(ratios).items()}
    return result


# ---- the page's process, and from an event to the screen


def resident_mb(pid: int) -> float:
    """Memory of a process that is in use."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1e3


async def socket_figures(options: Namespace) -> dict[str, Any]:
    """The page before a large suite."""
    given = Namespace(jobs=2000, rate=12.0, seed=options.seed)
    with large_suite(options.scale, options.policy) as suite, contextlib.ExitStack() as stack:
        endpoints = suite.endpoints
        names = ("ingest", "decompose", "orchestrator", "cluster")
        env = {f"ADLRO_WEB_{name.upper()}_ADDRESS": getattr(endpoints, name) for name in names}
        web = stack.enter_context(spawn_service("web", env))
        async with jobs_coming(suite, given) as client:
            process = ClientProcess(
                "benchmarks.page_sockets",
                {"address": web.address, "count": SOCKETS, "seconds": 60.0 * options.minutes},
            )
            try:
                await asyncio.to_thread(process.wait_ready)
                cpu_before_s, began_s = cpu_s(web.pid), time.monotonic()
                watch = asyncio.create_task(_memory(web.pid))
                probes = await from_event_to_screen(client, web.address, options.probes)
                result = await asyncio.to_thread(process.result)
                passed_s = time.monotonic() - began_s
                memory = await _ended(watch)
            finally:
                process.stop()
            cpu = cpu_since(web.pid, cpu_before_s)
    half = len(memory) // 2
    found = {f"{screen}_kb_per_s": each["bytes_per_s"] / 1e3 for screen, each in result["screens"].items()}
    found |= {f"{screen}_first_kb": each["first_bytes"] / 1e3 for screen, each in result["screens"].items()}
    hours = 10.0 * np.arange(len(memory) - half) / 3600.0
    return found | {
        "stale": result["stale"],
        "web_cpu_ratio": (cpu or math.nan) / passed_s,
        "resident_mb_first": memory[0],
        "resident_mb_most": max(memory),
        # Of the second half: in the first, the jobs that ended lately are still becoming as many as are kept.
        "resident_mb_per_hour": float(np.polyfit(hours, memory[half:], 1)[0]) if len(memory) > 6 else math.nan,
        "minutes": passed_s / 60.0,
        "probes": len(probes),
        "event_to_screen_p50_s": percentile(probes, 0.5),
        "event_to_screen_p95_s": percentile(probes, 0.95),
    }


async def _memory(pid: int) -> list[float]:
    """Its memory every 10 s, until it is cancelled."""
    found = []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            found.append(resident_mb(pid))
            await asyncio.sleep(10.0)
    return found


async def _ended(task: asyncio.Task[list[float]]) -> list[float]:
    task.cancel()
    return await task


# When a text came on the screen, by the wall's clock in seconds.
_WATCH_ROWS = """() => {
  window.seen = {};
  const look = () => {
    for (const cell of document.querySelectorAll("tbody bdi")) window.seen[cell.textContent] ??= Date.now() / 1000;
  };
  const parts = { subtree: true, childList: true, characterData: true };
  new MutationObserver(look).observe(document.querySelector("main"), parts);
}"""


async def from_event_to_screen(client: AsyncClient, address: str, count: int) -> list[float]:
    """Seconds from ingest's answer to a submission until a browser's Queue shows the job; at random moments."""
    from playwright.async_api import async_playwright

    rng = np.random.default_rng(1)
    names = [f"probe-{number}" for number in range(count)]
    submitted: dict[str, float] = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**page_browser.chromium_options())
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(f"http://{address}/queue?q=probe")
        await page.locator(".queue .panel-head .num.quiet").first.wait_for()
        await page.evaluate(_WATCH_ROWS)
        for name in names:
            spec = JobSpec(name, "probe", JobType.SIMULATION, cpu_cores=1, simulated_work=SimulatedWork(1e6))
            job = await client.submit(spec)
            submitted[name] = time.time()
            await asyncio.sleep(float(rng.uniform(0.5, 1.5)))
            await client.cancel(job.job_id)
        await asyncio.sleep(2.0)
        seen = await page.evaluate("window.seen")
        await browser.close()
    return [seen.get(name, math.inf) - submitted[name] for name in names]


# ---- the parts


def assets(_: Namespace) -> dict[str, Any]:
    """Bytes of all files of the page as they are sent, with gzip."""
    found = Assets()
    sizes = [len(each.packed or each.plain) for each in (found.index, *found.files.values())]
    return {"assets_kb": sum(sizes) / 1e3, "files": len(sizes)}


def browser(options: Namespace) -> dict[str, Any]:
    """Figures of a tab."""
    found: dict[str, Any] = {}
    with page_browser.simulated_page(1024, 2000, 12.0) as address, page_browser.chromium() as chromium:
        found |= page_browser.cluster_figures(chromium, address, options.seconds)
        found |= page_browser.gantt_figures(chromium, address, 100_000, min(options.seconds, 10.0), options.seed)
    with page_browser.simulated_page(1024, 11_024, 12.0) as address, page_browser.chromium() as chromium:
        found |= page_browser.queue_figures(chromium, address, 20)
    return found


def paced_part(options: Namespace) -> dict[str, Any]:
    """Figures of the orchestrator as jobs come in life."""
    return asyncio.run(paced(options))


def flat_out_part(options: Namespace) -> dict[str, Any]:
    """Figures of the orchestrator flat out, by number of GPUs."""
    return {str(gpus): asyncio.run(flat_out(gpus, options)) for gpus in options.gpus}


def sockets(options: Namespace) -> dict[str, Any]:
    """Figures of the page's process."""
    return asyncio.run(socket_figures(options))


def top_part(options: Namespace) -> dict[str, Any]:
    """One round of `benchmarks.top`."""
    given = Namespace(size="150x44", interval="500ms", seconds=min(options.seconds, 30.0), keys=20)
    with top.simulated(1024, 2000, 12.0) as address:
        return dict(top.measure(address, given))


PARTS: dict[str, Callable[[Namespace], dict[str, Any]]] = {
    "assets": assets,
    "browser": browser,
    "paced": paced_part,
    "flat_out": flat_out_part,
    "sockets": sockets,
    "top": top_part,
}


def lines(found: dict[str, Any], indent: str = "  ") -> Iterator[str]:
    """The figures for people."""
    for key, value in found.items():
        if isinstance(value, dict):
            yield f"{indent}{key} GPUs"
            yield from lines(value, indent + "  ")
            continue
        goal = GOALS.get(key)
        told = "" if goal is None else f"  (goal: {goal[0]} {goal[1]:g})"
        yield f"{indent}{key:32} {value:.4g}{told}"


def main() -> None:
    """Measures, and prints."""
    parser = command(__doc__, rounds=16, seconds=60.0)
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--gpus", type=int, nargs="+", choices=sorted(watching.FREE_GPUS), default=[16, 1024])
    parser.add_argument("--decisions", type=int, default=150, help="of a list, with 1,024 GPUs")
    parser.add_argument("--minutes", type=float, default=3.0, help="of the part `sockets`")
    parser.add_argument("--probes", type=int, default=60, help="jobs from whose submission to the screen is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="of the clock of the part `sockets`")
    parser.add_argument("--policy", default="hold_greedy_fixed")
    options = parser.parse_args()
    about = machine()
    result = {}
    for name in options.parts:
        result[name] = PARTS[name](options)
        if not options.json:
            print(name, *lines(result[name]), sep="\n", flush=True)
    if options.json:
        print(json.dumps({"machine": about, "seed": options.seed, **result}, indent=2))
    else:
        print(", ".join(f"{key} {value}" for key, value in about.items()))


if __name__ == "__main__":
    main()
