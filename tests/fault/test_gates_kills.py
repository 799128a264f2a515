"""Dependencies, arrays, holds and quotas through the running services, while two processes at a time are killed.

What a watcher was told is judged: nothing starts before what it waits for, nothing is forgotten, each starts once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from adlro.client import (
    AsyncClient,
    DependencyCondition,
    ExpectedRuntime,
    Job,
    JobDependency,
    JobSpec,
    JobState,
    JobType,
    JobUpdate,
    PendingReason,
    SimulatedWork,
)
from tests.e2e.running_suite import RunningSuite, marked_pids, start_suite
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.replaying import kill
from tests.fault.verdict import check_no_two_at_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("ADLRO_TEST_GATES_ROUNDS", "1"))
SEED = int(os.environ.get("ADLRO_TEST_GATES_SEED", "1"))
GROUPS = 60
PAIRS = (("orchestrator", "valkey"), ("ingest", "orchestrator"), ("simcluster", "orchestrator"), ("valkey", "ingest"))
OK, ENDED, FAILED = DependencyCondition.SUCCEEDED, DependencyCondition.ENDED, DependencyCondition.NOT_SUCCEEDED
CONDITIONS = (OK, OK, ENDED, ENDED, FAILED)


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[RunningSuite]:
    running = start_suite(tmp_path / "data", "--port", "0", "--clock", "scaled", "--scale", "30")
    yield running
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


@dataclass
class Graph:
    """What was submitted.

    Attributes:
        arrays: the jobs of each array.
        held: ids of jobs that were held, by submission or later; all are released in the end.
    """

    draw: random.Random
    names: list[str] = field(default_factory=list)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    job_ids: list[str] = field(default_factory=list)

    async def submit(self, client: AsyncClient, number: int) -> None:
        """A job or an array, after some of those before."""
        draw, work_s = self.draw, self.draw.uniform(5.0, 60.0)
        chosen = draw.sample(self.names, min(len(self.names), draw.choice([0, 0, 1, 2])))
        fails = draw.random() < 0.2
        spec = JobSpec(
            name=f"group-{number}",
            user=draw.choice(["ann", "bob"]),
            job_type=JobType.SIMULATION,
            expected_runtime=ExpectedRuntime("v100_sxm2", work_s),
            simulated_work=SimulatedWork(work_s, 0.5 if fails else None),
            after=tuple(JobDependency(each, draw.choice(CONDITIONS)) for each in chosen),
            held=draw.random() < 0.2,
        )
        if draw.random() < 0.25:
            most = draw.choice([0, 1, 2])
            made = await client.submit_array(spec, range(draw.randint(2, 6)), max_running=most, request_id=spec.name)
            self.arrays[made.array_id] = made.job_ids
            new: tuple[str, ...] = made.job_ids
            self.names.append(made.array_id)
        else:
            new = ((await client.submit(spec, spec.name)).job_id,)
            self.names += new
        self.job_ids += new
        if spec.held:
            self.held.update(new)


def ended_s(graph: Graph, jobs: Mapping[str, Job], target: str) -> tuple[float, bool]:
    """When what a job waits for had ended, and whether all of it succeeded."""
    of_target = [jobs[each] for each in graph.arrays.get(target, (target,))]
    return max(job.end_s or 0.0 for job in of_target), all(job.state is JobState.SUCCEEDED for job in of_target)


def check_dependencies(graph: Graph, jobs: Mapping[str, Job]) -> None:
    for job in jobs.values():
        wanted = [(each, *ended_s(graph, jobs, each.job_id)) for each in job.spec.after]
        met = [{OK: well, ENDED: True, FAILED: not well}[each.condition] for each, _, well in wanted]
        if job.cancel_requested:
            continue
        if not all(met):
            assert job.state is JobState.CANCELLED, f"{job.job_id} ran, and could never start: {job.message}"
            assert not job.attempts
            continue
        assert job.state is not JobState.CANCELLED, f"{job.job_id} could start: {job.message}"
        for attempt in job.attempts:
            for each, end_s, _ in wanted:
                assert attempt.start_s is None or attempt.start_s >= end_s, f"{job.job_id} before {each.job_id}"
        succeeded = [each.outcome for each in job.attempts].count("succeeded")
        assert succeeded == (job.state is JobState.SUCCEEDED)


def check_limits(graph: Graph, jobs: Mapping[str, Job], quota_of: Mapping[str, int]) -> None:
    groups: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in jobs.values():
        if job.spec.array is not None and job.spec.array.max_running_count:
            groups[job.spec.array.array_id, job.spec.array.max_running_count].append(job)
        if job.spec.user in quota_of:
            groups[job.spec.user, quota_of[job.spec.user]].append(job)
    for (name, most), members in groups.items():
        spans = [
            (each.start_s, each.end_s)
            for job in members
            for each in job.attempts
            if each.start_s is not None and each.end_s is not None
        ]
        for start_s, _ in spans:
            running = sum(begin_s <= start_s < end_s for begin_s, end_s in spans)
            assert running <= most, f"{running} of {name} ran at {start_s} s, of at most {most}"


def check_holds(graph: Graph, watched: JobFollower) -> None:
    """Between two changes of a record no held job starts."""
    held: set[str] = set()
    seen: set[str] = set()
    for event in watched.changes:
        job = event.job
        assert job is not None
        if job.job_id in held:
            assert job.state is not JobState.RUNNING, f"{job.job_id} is held, and runs"
            assert job.pending_reason is not PendingReason.LAUNCHING, f"{job.job_id} is held, and is launched"
        (held.add if job.hold is not None else held.discard)(job.job_id)
        if job.hold is not None:
            seen.add(job.job_id)
    assert seen >= graph.held & set(watched.latest)


async def a_round(suite: RunningSuite, seed: int) -> None:
    draw = random.Random(seed)
    graph, quota_of = Graph(draw), {"bob": 3}
    async with (
        JobFollower(suite.server) as watched,
        ClusterFollower(suite.status["addresses"]["simcluster"]) as cluster_log,
        AsyncClient(suite.server, patience_s=120.0) as client,
    ):
        for user, gpu_count in quota_of.items():
            await client.set_quota(user, gpu_count)
        killing = asyncio.create_task(kill_pairs(suite, watched, draw))
        begin = len(watched.changes)
        for number in range(GROUPS):
            await graph.submit(client, number + seed * GROUPS)
            if draw.random() < 0.3:
                waiting = draw.choice(graph.job_ids)
                for result in await client.hold([waiting]):
                    if result.accepted:  # it may start before the orchestrator hears of it
                        await client.release([waiting])
                await client.update([waiting], JobUpdate(priority=draw.random(), set_labels={"seen": str(number)}))
            if draw.random() < 0.05:
                await client.cancel_many([draw.choice(graph.job_ids)])
        await watched.until(lambda: len(watched.changes) > begin + 3 * GROUPS, "half of the changes")
        await killing
        while open_ids := [each for each in graph.job_ids if each not in watched.final]:
            await client.release(open_ids)
            count = len(watched.changes)
            await watched.until(partial(more_than, watched, count, open_ids), "an end", 300.0)
        await cluster_log.catch_up()
        jobs = {job_id: watched.latest[job_id] for job_id in graph.job_ids}
        check_dependencies(graph, jobs)
        check_limits(graph, jobs, quota_of)
        check_holds(graph, watched)
        check_no_two_at_once(cluster_log)
        await client.set_quota("bob", None)


def more_than(watched: JobFollower, count: int, open_ids: list[str]) -> bool:
    """Whether something has changed since, or all have ended."""
    return len(watched.changes) > count or watched.final.issuperset(open_ids)


async def kill_pairs(suite: RunningSuite, watched: JobFollower, draw: random.Random) -> None:
    begin = len(watched.changes)
    for moment in sorted(draw.sample(range(10, 3 * GROUPS), 3)):

        def reached(moment: int = moment) -> bool:
            return len(watched.changes) >= begin + moment

        await watched.until(reached, f"change {moment}", 300.0)
        for name in draw.choice(PAIRS):
            # Of the pair before, one may be dead still: `up.json` has its number until it is restarted.
            with contextlib.suppress(ProcessLookupError):
                kill(suite, name)


async def test_nothing_starts_before_its_time_and_nothing_is_forgotten(suite: RunningSuite) -> None:
    for number in range(ROUNDS):
        await a_round(suite, SEED + number)
    assert suite.text.count("restarting it in") >= 2 * ROUNDS
