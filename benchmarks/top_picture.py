"""Draws docs/page/top.svg and docs/page/top_job.svg: `adlro top` on a fixed list of jobs in virtual time.

    python -m benchmarks.top_picture [--at 400] [--size 120x36]

Starts a suite of its own, submits the list while the clock stands still, lets virtual time run to `at` seconds, stops
it there and draws. Which jobs run then depends on the policy and the list alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from adlro.cli.shell import connect_async
from adlro.cli.top.screen.app import TopApp
from adlro.client import Client, ClockMode, JobSpec, JobType, SimulatedWork
from benchmarks.measuring import ROOT
from tests.e2e.running_suite import start_suite

OUT = ROOT / "docs" / "page"
_SCALE = 60.0
_KINDS = (
    ("resnet50", JobType.MACHINE_LEARNING, "resnet50_fp16", 240.0),
    ("bert-finetune", JobType.MACHINE_LEARNING, "bert_base_fp16", 420.0),
    ("lattice-md", JobType.SIMULATION, "", 300.0),
    ("tokenize-shards", JobType.DATA_PROCESSING, "", 90.0),
)


def jobs() -> list[JobSpec]:
    """The list: 40 jobs of four users within seven minutes."""
    chance = random.Random(7)
    found = []
    for number in range(40):
        name, kind, application, work_s = chance.choice(_KINDS)
        found.append(
            JobSpec(
                name=f"{name}-{number}",
                user=chance.choice(("ada", "grace", "linus", "mia")),
                job_type=kind,
                application=application,
                priority=round(chance.uniform(0.1, 0.9), 2),
                cpu_cores=chance.choice((1, 2, 4)),
                gpu_memory_mib=chance.choice((0, 6000, 12000)),
                begin_time_s=10.0 + 10.0 * number,
                simulated_work=SimulatedWork(work_s * chance.uniform(0.6, 1.6)),
            )
        )
    return found


def without_fonts(svg: str) -> str:
    """A picture that asks no other host for its fonts."""
    return re.sub(r"@font-face\s*\{[^}]*\}", "", svg)


async def draw(server: str, size: tuple[int, int]) -> None:
    """Draws the pages."""
    app = TopApp(connect_async(server, patience_s=0.0))
    async with app.run_test(size=size) as pilot:

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():  # noqa: ASYNC110 - services answer when they do
                await asyncio.sleep(0.1)

        async def save(name: str) -> None:
            await pilot.pause(1.0)
            (OUT / name).write_text(without_fonts(app.export_screenshot()), encoding="utf-8")

        await until(lambda: bool(app.cells) and app.model.state is not None and bool(app.head.policy))
        await until(lambda: bool(app.jobs_page.table.visible_keys))
        await until(lambda: not app.model.unasked(app.jobs_page.table.visible_keys))
        await save("top.svg")
        await pilot.press("enter")
        await pilot.pause(3.0)
        await save("top_job.svg")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--at", type=float, default=400.0, help="cluster time, seconds")
    parser.add_argument("--size", default="120x36", help="columns x lines")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        suite = start_suite(Path(folder) / "data", "--port", "0", "--clock", "virtual")
        try:
            with Client(suite.server) as client:
                client.set_clock(paused=True)
                client.submit_many(jobs())
                client.set_clock(ClockMode.VIRTUAL, scale=_SCALE, paused=False)
                while client.clock().time_s < options.at:
                    time.sleep(0.05)
                client.set_clock(paused=True)
            asyncio.run(draw(suite.server, (width, height)))
        finally:
            suite.end()


if __name__ == "__main__":
    main()
