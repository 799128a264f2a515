"""What the curves of the page's first screen cost ingest and the page: how many jobs waited, how many GPUs were held.

    python -m benchmarks.page_curves [--waiting 10000] [--ended 10000] [--rounds 15] [--seed 1] [--json]

A store with so many waiting and ended jobs is written directly; ingest is a process of its own. The page's part runs
here: the attempts of the time of all of them as a client gets them, then the curves from them and from the page's table
of jobs. Figures are times at one client, and CPU time of ingest and of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from adlro.client import AsyncClient, Endpoints, JobView
from adlro.records.watching import JobEventKind
from adlro.services.web.jobs_table import JobTable
from adlro.services.web.load import MOST_BARS, PARTS, load_document
from adlro.services.web.picture import Layout
from benchmarks.history import fill
from benchmarks.measuring import command, cpu_s, figures, obey, servers, shown


async def table_of(client: AsyncClient) -> JobTable:
    """The page's table, as its stream fills it."""
    table = JobTable()
    async for event in client.watch(view=JobView.BASIC):
        if event.kind is JobEventKind.SNAPSHOT_END:
            break
        if event.job is not None:
            table.take(event.job, newest=True)
    return table


async def measure(address: str, pid: int, arguments: argparse.Namespace, last_s: float) -> dict[str, Any]:
    """All rounds."""
    rounds: dict[str, list[dict[str, float]]] = {}
    size_bytes = bar_count = 0
    async with AsyncClient(endpoints=Endpoints(*[address] * 4), timeout_s=120.0) as client:
        table = await table_of(client)
        for _ in range(arguments.rounds):
            before_s, begin_s = cpu_s(pid) or 0.0, time.perf_counter()
            # One job ends a second in the store: the range has all that ended.
            history = await client.query_attempts(0.0, last_s, max_bars=MOST_BARS, bucket_count=PARTS)
            asked_s, after_s = time.perf_counter(), cpu_s(pid) or 0.0
            own_s = time.process_time()
            document = load_document(table.lives(0.0, None), history, Layout(), 0.0, 0.0, last_s)
            own_s = time.process_time() - own_s
            size_bytes, bar_count = len(json.dumps(document)), history.bar_count
            found = {"ms": 1e3 * (asked_s - begin_s), "cpu_ms": 1e3 * (after_s - before_s)}
            rounds.setdefault("attempts", []).append(found)
            rounds.setdefault("curves", []).append({"ms": 1e3 * own_s})
    return {"size_bytes": size_bytes, "bars": bar_count, "figures": figures(rounds)}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fills a store and asks."""
    with servers() as (redis_url, targets):
        last_s = asyncio.run(fill(redis_url, arguments.waiting, arguments.ended, arguments.seed))
        ingest = targets["ingest"]
        found = asyncio.run(measure(ingest.address, ingest.pid, arguments, last_s))
    return {"waiting": arguments.waiting, "ended": arguments.ended, **found}


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"{result['waiting']:,} waiting and {result['ended']:,} ended jobs, {result['bars']:,} bars, "
        f"{result['rounds']} rounds, seed {result['seed']}; median (least..greatest)"
    )
    each = result["figures"]
    attempts, cpu = shown(each["attempts"]["ms"], "ms", 0), shown(each["attempts"]["cpu_ms"], "ms", 0)
    print(f"  attempts of ingest: {attempts}; its CPU time {cpu}")
    print(f"  curves: {shown(each['curves']['ms'], 'ms of CPU', 1)}; answer of {result['size_bytes']:,} bytes")


async def _no_client(_: dict[str, Any]) -> dict[str, Any]:
    raise SystemExit("this benchmark has no client processes")


def main() -> None:
    """Parses arguments."""
    parser = command(__doc__, rounds=15, seconds=0.0)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--ended", type=int, default=10_000)
    obey(parser, run, report, _no_client)


if __name__ == "__main__":
    main()
