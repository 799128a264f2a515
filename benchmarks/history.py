"""What pages of a queue and of a history, and a Gantt's ranges, cost ingest beside a plain page of the list.

    python -m benchmarks.history [--waiting 10000] [--ended 100000] [--page 60] [--rounds 15] [--seed 1] [--json]

A store with so many waiting and ended jobs is written directly; ingest is a process of its own. In each round every
call is made ten times (that of the whole history once), in turns with the plain page (SUBMITTED, FULL, of the same
length); figures are times at one client, ingest's CPU time, and ratios of times to the plain page of the same round.
`first` figures are of the first call after ingest's start; that of the whole history reads every record, later ones
what ingest keeps. `plain_beside` is the longest plain page while the whole history is asked for: how long others wait.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from adlro.client import AsyncClient, Endpoints, JobFilter, JobOrder, JobView
from adlro.kit.redis import connect
from adlro.placement import Placement
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, NormalizedJob, PendingReason
from adlro.store import Created, JobStore, Move, NewJob
from benchmarks.measuring import command, cpu_s, figures, obey, ratios, servers, shown

WAITING = (JobState.PENDING, JobState.RUNNING)
GPU_COUNT = 1024
# A call is made so often in a round: CPU time is told in steps of 10 ms. But for the long one.
REPEATED = 10
LONG = "attempts_of_all"
_AT_ONCE = 500
Call = Callable[[], Awaitable[Any]]


async def fill(redis_url: str, waiting: int, ended: int, seed: int) -> float:
    """Writes the jobs; returns the cluster time of the last end."""
    draw = random.Random(seed)
    async with connect(redis_url) as redis:
        store = JobStore(redis)
        for first in range(0, ended + waiting, _AT_ONCE):
            news = [_new(draw, number) for number in range(first, min(first + _AT_ONCE, ended + waiting))]
            made = [each.job for each in await store.create_many(news) if isinstance(each, Created)]
            moves = [
                Move(_ended(job, first + n) if first + n < ended else _waits(job), 0) for n, job in enumerate(made)
            ]
            await store.move(0, moves)
    return float(ended)


def _new(draw: random.Random, number: int) -> NewJob:
    spec = JobSpec(
        f"train-{number}",
        f"user-{draw.randrange(50)}",
        draw.choice(list(JobType)[1:]),
        f"application-{draw.randrange(40)}",
        round(draw.random(), 2),
        gpu_memory_mib=8000,
    )
    return NewJob(spec, NormalizedJob(), "", 0.0)


def _ended(job: Job, number: int) -> Job:
    """One job ends a second; each took ten minutes."""
    end_s = float(number)
    placement = Placement.on(f"node-{number % GPU_COUNT // 8}/{number % 8}")
    attempt = JobAttempt(1, placement, "v100_sxm2", max(0.0, end_s - 600.0), end_s, "succeeded")
    return replace(
        job,
        state=JobState.SUCCEEDED,
        pending_reason=PendingReason.NONE,
        message="",
        submit_s=max(0.0, end_s - 900.0),
        start_s=attempt.start_s,
        end_s=end_s,
        placement=placement,
        gpu_model="v100_sxm2",
        attempts=(attempt,),
    )


def _waits(job: Job) -> Job:
    message = "waits for a GPU with 8,000 MiB of memory"
    return replace(job, submit_s=1000.0, pending_reason=PendingReason.RESOURCES, message=message)


def calls(client: AsyncClient, page: int, last_s: float) -> dict[str, Call]:
    """What is measured, by name."""
    queue = JobFilter(states=WAITING)
    some = JobFilter(states=WAITING, name_contains="7", pending_reasons=(PendingReason.RESOURCES,))
    ended = JobFilter(states=(JobState.SUCCEEDED,))

    def of(job_filter: JobFilter, order: JobOrder, view: JobView = JobView.BASIC) -> Call:
        return lambda: client.list_page(job_filter, page_size=page, order=order, view=view)

    def ran(begin_s: float, end_s: float) -> Call:
        return lambda: client.query_attempts(begin_s, end_s)

    return {
        "plain": of(JobFilter(), JobOrder.SUBMITTED, JobView.FULL),
        "priority": of(queue, JobOrder.PRIORITY),
        "priority_full": of(queue, JobOrder.PRIORITY, JobView.FULL),
        "priority_filtered": of(some, JobOrder.PRIORITY),
        "wait": of(queue, JobOrder.WAIT),
        "newest": of(JobFilter(), JobOrder.NEWEST_FIRST),
        "ended": of(ended, JobOrder.ENDED),
        "ended_of_user": of(replace(ended, user="user-7"), JobOrder.ENDED),
        "attempts_of_5_minutes": ran(last_s - 300.0, last_s),
        "attempts_of_5_minutes_long_ago": ran(last_s / 10, last_s / 10 + 300.0),
        "attempts_of_an_hour": ran(last_s / 2, last_s / 2 + 3600.0),
        LONG: ran(0.0, last_s),
    }


async def _took_ms(call: Call) -> float:
    begin_s = time.perf_counter()
    await call()
    return 1e3 * (time.perf_counter() - begin_s)


async def _longest_beside_ms(call: Call, long: Call) -> float:
    """The longest of many calls while a long one is answered."""
    answered, took_ms = asyncio.ensure_future(long()), [0.0]
    while not answered.done():
        took_ms.append(await _took_ms(call))
    await answered
    return max(took_ms)


async def measure(address: str, pid: int, arguments: argparse.Namespace, last_s: float) -> dict[str, Any]:
    """All rounds."""
    rounds: dict[str, list[dict[str, float]]] = {}
    async with AsyncClient(endpoints=Endpoints(*[address] * 4), timeout_s=120.0) as client:
        made = calls(client, arguments.page, last_s)
        first_ms, first_cpu_ms = {}, {}
        for name in ("plain", "priority", "ended", "attempts_of_5_minutes", LONG):
            before_s = cpu_s(pid)
            first_ms[name] = await _took_ms(made[name])
            after_s = cpu_s(pid)
            if before_s is not None and after_s is not None:
                first_cpu_ms[name] = 1e3 * (after_s - before_s)
        for _ in range(arguments.rounds):
            for name, call in made.items():
                times = 1 if name == LONG else REPEATED
                before_s = cpu_s(pid)
                found = {"ms": statistics.median([await _took_ms(call) for _ in range(times)])}
                after_s = cpu_s(pid)
                if before_s is not None and after_s is not None:
                    found["cpu_ms"] = 1e3 * (after_s - before_s) / times
                rounds.setdefault(name, []).append(found)
            rounds.setdefault("plain_beside", []).append({"ms": await _longest_beside_ms(made["plain"], made[LONG])})
    beside = {name: ratios(rounds, "ms", name, "plain") for name in rounds if name != "plain"}
    return {"first_ms": first_ms, "first_cpu_ms": first_cpu_ms, "figures": figures(rounds), "ratios": beside}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fills a store and asks."""
    with servers() as (redis_url, targets):
        last_s = asyncio.run(fill(redis_url, arguments.waiting, arguments.ended, arguments.seed))
        ingest = targets["ingest"]
        found = asyncio.run(measure(ingest.address, ingest.pid, arguments, last_s))
    return {"waiting": arguments.waiting, "ended": arguments.ended, "page": arguments.page, **found}


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"{result['waiting']:,} waiting and {result['ended']:,} ended jobs, pages of {result['page']}, "
        f"{result['rounds']} rounds in turn, seed {result['seed']}; median (least..greatest)"
    )
    for name, each in result["figures"].items():
        beside = f"{shown(result['ratios'][name], 'x', 2)} of plain" if name in result["ratios"] else ""
        cpu = shown(each["cpu_ms"], "ms of CPU", 1) if "cpu_ms" in each else ""
        print(f"  {name:32s} {shown(each['ms'], 'ms', 1):30s} {cpu:30s} {beside}")
    print("  first call: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in result["first_ms"].items()))
    print("  its CPU: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in result["first_cpu_ms"].items()))


async def _no_client(_: dict[str, Any]) -> dict[str, Any]:
    raise SystemExit("this benchmark has no client processes")


def main() -> None:
    """Parses arguments."""
    parser = command(__doc__, rounds=15, seconds=0.0)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--page", type=int, default=60)
    obey(parser, run, report, _no_client)


if __name__ == "__main__":
    main()
