"""Real jobs with their real numbers of GPUs through the running services, in virtual time: each to its end.

    python -m benchmarks.philly_replay TRACE [--format philly] [--jobs 5000] [--cluster gangs_64] [--policy hold_gang]
                                       [--load 0.9] [--restart 60] [--seed 0] [--json]

Starts `adlro up` with a virtual clock on free ports, replays the first jobs of a trace (`--multi-gpu gang`), and
prints: jobs a second of wall time, decisions, CPU time of each service, and waits by number of GPUs. `--load` brings
the arrivals to a load of the cluster, by a linear program; 0 leaves the trace's own times. A client follows the
cluster's event log from its begin. At the end that log is replayed: each attempt got what its job asks for, each job
ended as its record says, and at no event had a GPU two jobs, or a node less cores or memory than its jobs asked for.
With `--restart` each job can be stopped for another one, at that cost, and the orchestrator may stop jobs (`--policy
srtf`). The traces are not part of the project.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from adlro.cli.places import by_node
from adlro.cli.replaying import Board, ReplayOptions, ReplayResult, replay_specs
from adlro.cli.replaying import replay as replay_list
from adlro.cli.stops import stop_count
from adlro.cli.units_text import seconds
from adlro.client import AsyncClient
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.events import ENDS, ClusterEvent, EventKind
from adlro.records.jobs import Job, JobState, Preemptible
from adlro.services.orchestrator.clients import ClusterClient
from adlro.workload.capacity import offered_load, scale_to_load
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import load_cluster
from adlro.workload.traces import TRACE_FORMATS, read_trace
from benchmarks.measuring import cpu_s, machine, percentile

PATIENCE_S, TICK_S = 120.0, 15.0
_END_OF = {
    EventKind.FINISHED: JobState.SUCCEEDED,
    EventKind.FAILED: JobState.FAILED,
    EventKind.STOPPED: JobState.CANCELLED,
}


@contextmanager
def suite(cluster: str, policy: str, *, preemption: bool = False) -> Iterator[dict[str, Any]]:
    """A suite in virtual time; gives its status: addresses and pids."""
    environment = {**os.environ, "ADLRO_ORCHESTRATOR_PREEMPTION": "on"} if preemption else None
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "adlro.cli", "up", "--port", "0", "--data-dir", folder]
        command += ["--cluster", cluster, "--clock", "virtual", "--policy", policy]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            if not any("Ready in" in line for line in process.stdout):
                raise SystemExit("adlro up did not come up: what it said stands above")
            status: dict[str, Any] = json.loads((Path(folder) / "up.json").read_text(encoding="utf-8"))
            yield status
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


class EventLog:
    """A cluster's events from now on; `async with` follows them."""

    def __init__(self, address: str) -> None:
        self.events: list[ClusterEvent] = []
        self._client = ClusterClient(address)

    async def __aenter__(self) -> EventLog:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._client.close()

    async def catch_up(self) -> None:
        """Returns when every event up to now is there."""
        newest = (await self._client.describe()).revision
        async with asyncio.timeout(PATIENCE_S):
            while newest and (not self.events or self.events[-1].revision < newest):
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.05)

    async def _follow(self) -> None:
        async for batch in self._client.events("", 0):
            self.events += batch.events


class Overbooked(AssertionError):
    """What an event log must never say."""


def check_log(events: Sequence[ClusterEvent], jobs: Sequence[Job], cluster: Cluster) -> dict[str, int]:
    """Replays a cluster's event log.

    Returns:
        The number of events, of starts, and the most GPUs in use at once.

    Raises:
        Overbooked: a GPU had more than one job (or shares of more than 1), a node or a GPU had less than its jobs asked
            for, an attempt had other GPUs than its job asked for or ended twice, or the log and a record differ.
    """
    job_of = {job.job_id: job for job in jobs}
    use = _Use(cluster)
    running: dict[tuple[str, int], Placement] = {}
    ends: dict[str, ClusterEvent] = {}
    starts = most = 0
    for event in events:
        key, job = (event.job_id, event.attempt), job_of.get(event.job_id)
        if job is None or event.kind not in (EventKind.STARTED, *ENDS):
            continue
        if event.kind is EventKind.STARTED:
            starts += 1
            _require(key not in running, f"{key} started twice")
            running[key] = event.placement
            use.take(event.placement, job, event.time_s)
        elif key in running:
            use.free(running.pop(key), job)
            ends[event.job_id] = event
        else:  # it ended before it started
            _require(event.kind is not EventKind.FINISHED, f"{key} finished without a start, or twice")
            ends[event.job_id] = event
        most = max(most, use.gpu_count)
    _require(not running, f"{len(running)} attempts never ended: {list(running)[:3]}")
    for job in jobs:
        end = ends.get(job.job_id)
        told = None if end is None else (_END_OF.get(end.kind), end.time_s)
        _require(
            told == (job.state, job.end_s), f"{job.job_id} is {job.state.name} at {job.end_s}; the log says {told}"
        )
    return {"events": len(events), "starts": starts, "most_gpus_in_use": most}


class _Use:
    """What the attempts of a moment hold of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._gpu_of = {gpu.gpu_id: gpu for _, gpu in cluster.gpus()}
        self._node_of = {gpu.gpu_id: node.node_id for node, gpu in cluster.gpus()}
        self._shares: dict[str, float] = defaultdict(float)
        # Left of each node: cores and MiB of memory; of each GPU: MiB of its memory.
        self._left: dict[str, list[int]] = {node.node_id: [node.cpu_cores, node.memory_mib] for node in cluster.nodes}
        self._gpu_left_mib = {gpu_id: gpu.memory_mib for gpu_id, gpu in self._gpu_of.items()}

    @property
    def gpu_count(self) -> int:
        """GPUs with a job."""
        return sum(share > 0 for share in self._shares.values())

    def take(self, placement: Placement, job: Job, time_s: float) -> None:
        """Adds an attempt; raises Overbooked."""
        gpu_ids = placement.gpu_ids
        models = {self._gpu_of[gpu_id].gpu_model for gpu_id in gpu_ids}
        as_asked = len(set(gpu_ids)) == job.spec.gpu_count and len(models) == 1 and job.spec.accepts(min(models))
        _require(as_asked, f"{job.job_id} asked for {job.spec.gpu_count} GPUs of one model, and got {gpu_ids}")
        self._add(placement, job, 1)
        for gpu_id in gpu_ids:
            cores, memory_mib = self._left[self._node_of[gpu_id]]
            least = min(1.0 - self._shares[gpu_id], self._gpu_left_mib[gpu_id], cores, memory_mib)
            _require(least >= 0, f"{gpu_id} or its node was overbooked by {job.job_id} at {time_s} s")

    def free(self, placement: Placement, job: Job) -> None:
        """Takes an attempt away."""
        self._add(placement, job, -1)

    def _add(self, placement: Placement, job: Job, sign: int) -> None:
        for each in placement.gpus:
            self._shares[each.gpu_id] += sign * each.share
            self._gpu_left_mib[each.gpu_id] -= sign * job.spec.gpu_memory_mib
            node = self._left[self._node_of[each.gpu_id]]
            node[0] -= sign * job.spec.cpu_cores
            node[1] -= sign * job.spec.memory_mib


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Overbooked(text)


def waits(jobs: Sequence[Job], reserved: Collection[str]) -> list[dict[str, Any]]:
    """Waits and completion times by number of GPUs, seconds of cluster time; the last row is of all jobs.

    Args:
        jobs: all final.
        reserved: ids of those for which GPUs were kept free.
    """
    rows = []
    for count in [*sorted({job.spec.gpu_count for job in jobs}), 0]:
        of = [job for job in jobs if count in (0, job.spec.gpu_count)]
        waited = [waited_s(job) for job in of]
        took = [jct for job in of if (jct := job.jct_s) is not None]
        rows.append(
            {
                "gpus": count or "all",
                "jobs": len(of),
                "mean_wait_s": sum(waited) / len(waited),
                "p95_wait_s": percentile(waited, 0.95),
                "longest_wait_s": max(waited),
                "mean_jct_s": sum(took) / len(took),
                "mean_nodes": sum(len(by_node(job.placement)) for job in of) / len(of),
                "reserved": sum(job.job_id in reserved for job in of),
            }
        )
    return rows


def waited_s(job: Job) -> float:
    """The time in which an ended job held no GPU, from its submission on; also between its attempts."""
    held = ((each.end_s or 0.0) - each.start_s for each in job.attempts if each.start_s is not None)
    return (job.jct_s or 0.0) - math.fsum(held)


def longest_queue(jobs: Sequence[Job]) -> int:
    """The most jobs that waited at once."""
    changes = [(job.submit_s, 1) for job in jobs] + [(job.start_s, -1) for job in jobs]
    waiting = most = 0
    for _, change in sorted((time_s, change) for time_s, change in changes if time_s is not None):
        waiting += change
        most = max(most, waiting)
    return most


def job_list(asked: argparse.Namespace, cluster: Cluster) -> tuple[list[WorkloadJob], list[str]]:
    """The trace's jobs at the wanted load, and notes about them."""
    jobs, notes = read_trace(
        asked.trace, asked.format, seed=asked.seed, limit=asked.jobs, multi_gpu="gang", cluster=cluster
    )
    offered = offered_load(cluster, jobs)
    told = f"they offer a load of {offered:.3g} at the trace's own times"
    if asked.load > 0:
        jobs = scale_to_load(jobs, offered, asked.load)
        told += f"; arrivals are stretched to {asked.load:g}"
    if asked.restart is not None:
        jobs = [replace(job, preemptible=Preemptible(asked.restart)) for job in jobs]
        told += f"; each can be stopped, with a restart of {asked.restart:g} s"
    return jobs, [*notes.sentences, told]


async def run(
    asked: argparse.Namespace, jobs: Sequence[WorkloadJob], status: Mapping[str, Any]
) -> tuple[dict[str, Any], ReplayResult]:
    """Replays the list on a running suite, and gives the figures."""
    pids: dict[str, int] = dict(status["pids"])
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    async with (
        AsyncClient(status["server"], patience_s=PATIENCE_S) as client,
        EventLog(_cluster_address(status)) as log,
    ):
        reserved: set[str] = set()
        watching = asyncio.create_task(_note_reservations(client, reserved))
        decided = (await client.status()).decision_count
        result = await replay_list(client, replay_specs(jobs), ReplayOptions(patience_s=PATIENCE_S), _Teller())
        state = await client.status()
        cluster = await client.cluster()
        await log.catch_up()
        watching.cancel()
        await asyncio.wait([watching])
    finals = Counter(job.state.name.lower() for job in result.jobs)
    if not all(job.state.final for job in result.jobs):
        raise SystemExit(f"not every job is final: {dict(finals)}")
    used = {name: cpu_s(pid) for name, pid in pids.items()}
    return {
        "jobs": len(result.jobs),
        "final": dict(finals),
        "several_attempts": sum(job.attempt_count > 1 for job in result.jobs),
        "stops": sum(map(stop_count, result.jobs)),
        "elapsed_s": result.elapsed_s,
        "jobs_per_s": len(result.jobs) / result.elapsed_s,
        "decisions": state.decision_count - decided,
        "longest_queue": longest_queue(result.jobs),
        "log": check_log(log.events, result.jobs, cluster),
        "cpu_s": {
            name: round(now - begun, 1)
            for name, now in used.items()
            if now is not None and (begun := before[name]) is not None
        },
        "waits": waits(result.jobs, reserved),
    }, result


def _cluster_address(status: Mapping[str, Any]) -> str:
    return str(status["addresses"]["simcluster"])


async def _note_reservations(client: AsyncClient, reserved: set[str]) -> None:
    """Notes the jobs for which GPUs were kept free, as their records say at each change."""
    async for event in client.watch(patience_s=PATIENCE_S):
        if event.job is not None and event.job.reservation is not None:
            reserved.add(event.job.job_id)


class _Teller:
    """Says on stderr how far a replay is."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, board: Board) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + TICK_S
            told = f"{board.phase}: {board.finished} ended, {board.running} run, {board.waiting} wait"
            print(f"{told}; cluster time {seconds(board.cluster_time_s)}", file=sys.stderr, flush=True)


def report(figures: Mapping[str, Any], notes: Sequence[str], asked: argparse.Namespace) -> None:
    """Prints Markdown."""
    for note in notes:
        print(f"- {note}")
    log, final = figures["log"], ", ".join(f"{count} {name}" for name, count in figures["final"].items())
    told = (
        f"{figures['jobs']} jobs on `{asked.cluster}` under `{asked.policy}`: {final}",
        f"{figures['several_attempts']} of them took several attempts; {figures['stops']} stops for other jobs",
        f"{figures['elapsed_s']:.0f} s of wall time, {figures['jobs_per_s']:.1f} jobs/s",
        f"{figures['decisions']} decisions; at most {figures['longest_queue']} jobs waited at once",
        f"the cluster's log of {log['events']} events and {log['starts']} starts shows nothing overbooked",
        f"at most {log['most_gpus_in_use']} GPUs were in use at once",
    )
    print("", *(f"- {each}" for each in told), sep="\n")
    print("- CPU time: " + ", ".join(f"{name} {used:g} s" for name, used in figures["cpu_s"].items()))
    print("\n| GPUs | jobs | mean wait | p95 wait | longest wait | mean JCT | nodes, mean | GPUs kept free for |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in figures["waits"]:
        times = (row[name] for name in ("mean_wait_s", "p95_wait_s", "longest_wait_s", "mean_jct_s"))
        cells = (row["gpus"], row["jobs"], *map(seconds, times), f"{row['mean_nodes']:.2f}", row["reserved"])
        print("|", " | ".join(map(str, cells)), "|")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints Markdown, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--format", choices=TRACE_FORMATS, default="philly")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--cluster", default="gangs_64", help="a scenario's, or a TOML file")
    parser.add_argument("--policy", default="hold_gang")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--restart", type=float, help="seconds that a restart after a stop takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    jobs, notes = job_list(asked, load_cluster(asked.cluster))
    with suite(asked.cluster, asked.policy, preemption=asked.restart is not None) as status:
        figures, _ = asyncio.run(run(asked, jobs, status))
    if asked.json:
        print(json.dumps({"machine": machine(), "notes": notes, **figures}, indent=1))
    else:
        report(figures, notes, asked)
        print(f"\nMachine: {machine()}")


if __name__ == "__main__":
    main()
