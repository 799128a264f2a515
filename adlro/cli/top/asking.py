"""What `adlro top` asks the services, each question in one place; servers of an earlier release lack some answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from adlro.cli.top.feed_states import Feed
from adlro.cli.top.job_rows import Expected, StartForecast
from adlro.cli.top.model import TopModel, told_runtime
from adlro.errors import AdlroError, PermissionDenied, Unauthenticated, Unsupported
from adlro.records.capacity import ClusterCapacity
from adlro.records.decisions import Decision, DecisionView
from adlro.records.identity import Identity
from adlro.records.jobs import Job, JobState
from adlro.records.matrices import ClusterPlanes, ClusterState
from adlro.records.status import OrchestratorStatus
from adlro.records.waiting import WaitingExplanation
from adlro.records.watching import JobEvent, JobEventKind, JobFilter

if TYPE_CHECKING:
    from adlro.client import AsyncClient

OPEN_JOBS = JobFilter(states=(JobState.PENDING, JobState.RUNNING))
PREDICTED_AT_ONCE = 40
STARTS_AT_ONCE = 10
REFUSALS = (PermissionDenied, Unauthenticated, Unsupported)

_STATUS_EVERY_S = 1.0
_STATUS_TIMEOUT_S = 2.0
_LEAST_STATUS_S = 0.1
_STATE_EVERY_S = 4.0
"""Between two pictures in full, 230 kB of 1,024 GPUs, of a decompose that knows no others."""
_NEWEST_AGAIN = 20
"""Decisions between a list and the begin of a watch, at most; a list has a decision a second after it was made."""


def too_old(error: Unsupported) -> str:
    """A call that the orchestrator does not have, in words."""
    return f"the orchestrator is of an earlier release than this command ({error.message})"


def job_events(
    client: AsyncClient, after_revision: int | None, job_filter: JobFilter | None
) -> AsyncGenerator[JobEvent]:
    """Jobs and their changes, in full.

    The basic view lacks what filters search (application, labels), the GPU models that a job asks for, its stops, for
    whom GPUs are kept from it, and what its runtime is predicted from. It would save
    little: what the screen costs is drawing.
    """
    return cast("AsyncGenerator[JobEvent]", client.watch(after_revision, job_filter, patience_s=0.0))


async def statuses(client: AsyncClient, interval_s: float) -> AsyncGenerator[OrchestratorStatus]:
    """The orchestrator's status as it changes; one of an earlier release is asked every second."""
    stream = cast("AsyncGenerator[OrchestratorStatus]", client.watch_status(max(interval_s, _LEAST_STATUS_S)))
    try:
        async with aclosing(stream):
            async for status in stream:
                yield status
    except Unsupported:
        while True:
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                status = await client.status()
            yield status
            await asyncio.sleep(_STATUS_EVERY_S)


async def gpu_states(client: AsyncClient, interval_s: float) -> AsyncGenerator[ClusterPlanes | ClusterState]:
    """What the GPUs report as it changes: in short or, by a decompose of an earlier release, in full and less often."""
    planes = cast("AsyncGenerator[ClusterPlanes]", client.watch_cluster_planes(min_interval_s=interval_s))
    try:
        async with aclosing(planes):
            async for each in planes:
                yield each
    except Unsupported:
        every_s = max(interval_s, _STATE_EVERY_S)
        states = cast("AsyncGenerator[ClusterState]", client.watch_cluster_state(min_interval_s=every_s))
        async with aclosing(states):
            async for state in states:
                yield state


async def decisions(client: AsyncClient, history: int) -> AsyncGenerator[Decision]:
    """Past decisions, the oldest first, also of processes before; then new ones. Some come twice.

    Summaries: an orchestrator of an earlier release sends all of each decision, and none of earlier processes.
    """
    past: list[Decision] = []
    try:
        listed = cast("AsyncGenerator[Decision]", client.decisions(page_size=history))
        async with aclosing(listed):
            async for decision in listed:
                past.append(decision)
                if len(past) >= history:
                    break
    except Unsupported:
        pass
    for decision in reversed(past):
        yield decision
    again = _NEWEST_AGAIN if past else history
    made = cast("AsyncGenerator[Decision]", client.watch_decisions(again, view=DecisionView.SUMMARY))
    async with aclosing(made):
        async for decision in made:
            yield decision


async def expected_runtimes(client: AsyncClient, jobs: Sequence[Job]) -> dict[str, Expected]:
    """The predicted runtimes of running jobs where they run, by job."""
    models = sorted({job.gpu_model for job in jobs if job.gpu_model})
    if not models:
        return {}
    answers = await client.predict([job.spec for job in jobs], models, job_ids=[job.job_id for job in jobs])
    found = {}
    for job, predictions in zip(jobs, answers, strict=True):
        for each in predictions:
            if each.gpu_model == job.gpu_model:
                found[job.job_id] = Expected(each.median_s, each.low_s, each.high_s)
    return found


async def own_view(client: AsyncClient) -> tuple[ClusterCapacity, Identity | None]:
    """What any caller may know: what is free, and who he is; None: ingest is of an earlier release, or away."""
    capacity, identity = await asyncio.gather(client.cluster_capacity(), client.whoami(), return_exceptions=True)
    if isinstance(capacity, BaseException):
        raise capacity
    if isinstance(identity, BaseException) and not isinstance(identity, AdlroError):
        raise identity
    return capacity, None if isinstance(identity, AdlroError) else identity


async def forecast_starts(client: AsyncClient, job_ids: Sequence[str]) -> dict[str, StartForecast]:
    """When jobs are expected to start, by job; those left out of which nothing can be said."""

    async def one(job_id: str) -> StartForecast | None:
        try:
            return forecast_of(await client.explain_waiting(job_id))
        except REFUSALS:
            raise
        except AdlroError:
            return None  # it has started, or ended

    told = await asyncio.gather(*map(one, job_ids))
    return {job_id: each for job_id, each in zip(job_ids, told, strict=True) if each is not None}


def forecast_of(told: WaitingExplanation) -> StartForecast | None:
    """The expected start of an explanation; None: it has none."""
    start = told.expected_start
    return None if start is None else StartForecast(start.low_s, start.median_s, start.high_s, told.time_s)


async def read_once(client: AsyncClient, model: TopModel) -> list[AdlroError]:
    """Fills a model with one answer of each source; returns the errors, the first that of the jobs."""
    errors: dict[Feed, AdlroError] = {}

    async def jobs() -> None:
        model.begin_jobs()
        async for job in client.list(OPEN_JOBS):
            model.take_job(JobEvent(JobEventKind.SNAPSHOT, job, job.revision))
        model.take_job(JobEvent(JobEventKind.SNAPSHOT_END, None, 0))

    async def cluster() -> None:
        model.take_description(await client.describe_cluster(), time.monotonic())

    async def decider() -> None:
        model.take_status(await client.status(), time.monotonic())

    async def gpus() -> None:
        # In full: once it costs little, and its figures are exact.
        model.take_gpus(await client.cluster_state())

    async def read(feed: Feed, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await ask()
        except AdlroError as error:
            errors[feed] = error
            model.failed(feed, error.message, time.monotonic(), refused=isinstance(error, REFUSALS))
        else:
            model.heard(feed, time.monotonic())

    await asyncio.gather(
        read(Feed.JOBS, jobs), read(Feed.CLUSTER, cluster), read(Feed.GPUS, gpus), read(Feed.DECIDER, decider)
    )
    return [errors[feed] for feed in Feed if feed in errors]


async def read_expected(client: AsyncClient, model: TopModel, job_ids: Sequence[str]) -> None:
    """Expected runtimes of the named jobs that run; without an answer those that their users told.

    For a caller who sees only his own jobs also what is free, and when they are expected to start.
    """
    jobs = model.unasked(job_ids)
    found = {job.job_id: told for job in jobs if (told := told_runtime(job)) is not None}
    for start in range(0, len(jobs), PREDICTED_AT_ONCE):
        try:
            found |= await expected_runtimes(client, jobs[start : start + PREDICTED_AT_ONCE])
        except AdlroError:
            break
    model.take_expected(found)
    if not model.own_jobs_only:
        return
    waiting = model.waiting_of(job_ids)
    try:
        model.take_capacity(*await own_view(client))
        for start in range(0, len(waiting), STARTS_AT_ONCE):
            model.take_starts(await forecast_starts(client, waiting[start : start + STARTS_AT_ONCE]))
    except Unsupported as error:
        model.own_view_problem = too_old(error)
    except AdlroError as error:
        model.own_view_problem = error.message
