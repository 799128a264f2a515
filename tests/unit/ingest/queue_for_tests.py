"""A store with jobs in all states, changed as orchestrator and users change it, and what reads from it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import redis.asyncio as aioredis

from adlro.placement import GpuShare, Placement
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, NormalizedJob, PendingReason
from adlro.services.ingest.active import ActiveJobs
from adlro.services.ingest.listing import JobList
from adlro.store import JobStore, Move, NewJob
from adlro.store.ended import EndedJobs
from adlro.store.pages import PageTokens

USERS = ("ann", "bob", "cy")
NAMES = ("train-a", "Train-B", "fold", "STRASSE", "straße")
REASONS = (PendingReason.POLICY, PendingReason.RESOURCES, PendingReason.BEGIN_TIME)
GPUS = tuple(f"{node}/{gpu}" for node in ("volta-0", "odd-0", "gone-0") for gpu in range(2))


class Queue:
    """Jobs, by number as they are in the store."""

    def __init__(self, redis: aioredis.Redis) -> None:
        self.redis: Any = redis
        self.store = JobStore(redis)
        self.active = ActiveJobs(self.store)
        self.ended = EndedJobs(redis, self.store)
        self.list = JobList(self.store, PageTokens(redis), self.active, self.ended)
        self.jobs: dict[int, Job] = {}
        self.versions: dict[int, int] = {}
        self.now_s = 0.0

    async def submit(self, random: Random, count: int = 1) -> None:
        """So many jobs of anybody."""
        specs = [
            JobSpec(
                random.choice(NAMES),
                random.choice(USERS),
                random.choice(list(JobType)[1:]),
                application=random.choice(("cfd", "")),
                priority=random.choice((0.0, 0.5, 0.5, 0.75, 1.0)),
                labels={"team": "x"} if random.random() < 0.2 else {},
            )
            for _ in range(count)
        ]
        made = await self.store.create_many([NewJob(spec, NormalizedJob(), "", 0.0) for spec in specs])
        for each in made:
            job = each.job  # type: ignore[union-attr]  # none is refused
            self.jobs[int(job.job_id[4:])] = job
            self.versions[int(job.job_id[4:])] = 0

    async def move(self, number: int, **changes: Any) -> None:
        """One change of a record, as the orchestrator makes it."""
        job = replace(self.jobs[number], **changes)
        await self.store.move(0, [Move(job, self.versions[number])])
        self.jobs[number] = await self.store.get(job.job_id)
        self.versions[number] += 1

    async def step(self, number: int, random: Random) -> None:
        """The job's next change: taken up, started, lost, or ended."""
        job = self.jobs[number]
        self.now_s += random.choice((0.0, 0.25, 1.0, 30.0))
        if job.state.final:
            return
        if job.submit_s is None:
            begin_s = self.now_s + random.choice((0.0, 0.0, 500.0))
            await self.move(number, submit_s=begin_s, pending_reason=random.choice(REASONS), message="waits")
        elif job.state is JobState.PENDING and random.random() < 0.15:
            await self.move(
                number, state=JobState.CANCELLED, end_s=self.now_s, pending_reason=PendingReason.NONE, message="x"
            )
        elif job.state is JobState.PENDING:
            gpus = random.sample(GPUS, random.choice((1, 1, 3)))
            placement = Placement(tuple(GpuShare(gpu, random.choice((1.0, 1.0, 0.5))) for gpu in gpus))
            attempt = JobAttempt(len(job.attempts) + 1, placement, "v100", start_s=self.now_s)
            await self.move(
                number,
                state=JobState.RUNNING,
                start_s=self.now_s,
                placement=placement,
                attempts=(*job.attempts, attempt),
                pending_reason=PendingReason.NONE,
                message="runs",
            )
        else:
            await self._end_attempt(number, random)

    async def _end_attempt(self, number: int, random: Random) -> None:
        job = self.jobs[number]
        outcome, state = random.choice(
            (
                ("succeeded", JobState.SUCCEEDED),
                ("succeeded", JobState.SUCCEEDED),
                ("failed: exit status 1", JobState.FAILED),
                ("stopped", JobState.CANCELLED),
                ("lost: GPU lost", JobState.PENDING),
                ("preempted: for job-1", JobState.PENDING),
            )
        )
        attempt = replace(job.attempts[-1], end_s=self.now_s, outcome=outcome, preempted=outcome.startswith("pre"))
        waits = state is JobState.PENDING
        await self.move(
            number,
            state=state,
            attempts=(*job.attempts[:-1], attempt),
            end_s=None if waits else self.now_s,
            start_s=None if waits else job.start_s,
            pending_reason=PendingReason.RESOURCES if waits else PendingReason.NONE,
            message="x",
        )

    async def fill(self, random: Random, jobs: int, steps: int) -> None:
        """Jobs in all states."""
        await self.submit(random, jobs)
        for _ in range(steps):
            await self.step(random.choice(list(self.jobs)), random)
