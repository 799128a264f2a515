"""Where the model's records come from: `adlro.client`'s streams and calls, opened again for as long as the screen is.

A failure of one source is noted in the model and leaves the others alone. Nothing here asks for what only one page of
the screen shows (decisions, explanations): that is asked for while the page is open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from adlro.cli.top.feed_states import Feed, FeedState
from adlro.cli.top.job_rows import Expected
from adlro.cli.top.model import TopModel, told_runtime
from adlro.errors import AdlroError, PermissionDenied, Unauthenticated, Unsupported
from adlro.records.jobs import Job, JobState
from adlro.records.watching import JobEvent, JobEventKind, JobFilter

if TYPE_CHECKING:
    from adlro.client import AsyncClient
    from adlro.records.decisions import Decision
    from adlro.records.matrices import ClusterState

OPEN_JOBS = JobFilter(states=(JobState.PENDING, JobState.RUNNING))
STALE_AFTER_S = 5.0
"""A source without a word for longer is stale."""

_STATUS_EVERY_S = 1.0
_CHECK_EVERY_S = 1.5
_CHECK_TIMEOUT_S = 1.2
_STATUS_TIMEOUT_S = 2.0
_RETRY_S = 0.5
_REFUSED_RETRY_S = 15.0
"""A role may be given later."""
_GPUS_A_SECOND = 256
"""GPUs whose descriptions are read a second, at most: that of a large cluster is read less often."""
_PREDICTED_AT_ONCE = 40
_REFUSALS = (PermissionDenied, Unauthenticated, Unsupported)


class Feeds:
    """Fills a model until it is cancelled.

    Args:
        client: asks once and does not retry: what fails is shown at once.
        model: to fill.
        interval_s: between two pictures of the GPUs, at least.
        visible: the jobs that are on the screen, whose runtimes are asked for.
    """

    def __init__(
        self,
        client: AsyncClient,
        model: TopModel,
        interval_s: float,
        visible: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._client = client
        self._model = model
        self._interval_s = interval_s
        self._visible = visible
        self._resume_after: int | None = None
        self._opened_s: dict[Feed, float] = {}
        self._picture_every_s = interval_s

    async def run(self) -> None:
        """Reads all sources, endlessly."""
        from adlro.client import ServiceName

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(Feed.JOBS, self._jobs, _RETRY_S))
            tasks.create_task(self._again(Feed.DECIDER, self._status, _STATUS_EVERY_S))
            tasks.create_task(self._again(Feed.CLUSTER, self._description, 1.0))
            tasks.create_task(self._again(Feed.GPUS, self._gpus, _RETRY_S))
            tasks.create_task(self._predictions())
            for feed, service in (
                (Feed.JOBS, ServiceName.INGEST),
                (Feed.CLUSTER, ServiceName.CLUSTER),
                (Feed.GPUS, ServiceName.DECOMPOSE),
            ):
                tasks.create_task(self._check(feed, self._client.endpoints.address(service), str(service)))

    async def _again(self, feed: Feed, read: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            pause_s = every_s
            try:
                await read()
            except _REFUSALS as error:
                self._model.failed(feed, error.message, time.monotonic(), refused=True)
                pause_s = _REFUSED_RETRY_S
            except AdlroError as error:
                self._model.failed(feed, error.message, time.monotonic())
                pause_s = _RETRY_S
            except TimeoutError:
                self._model.failed(feed, "does not answer in time", time.monotonic())
                pause_s = _RETRY_S
            finally:
                self._opened_s.pop(feed, None)
            await asyncio.sleep(pause_s)

    async def _jobs(self) -> None:
        """The open jobs, then every change. A watch of the open jobs alone would not tell of their ends."""
        self._opened_s[Feed.JOBS] = time.monotonic()
        if self._resume_after is None:
            self._model.begin_jobs()
            async with aclosing(_job_events(self._client, None, OPEN_JOBS)) as events:
                async for event in events:
                    self._model.take_job(event)
                    if event.kind is JobEventKind.SNAPSHOT_END:
                        self._resume_after = event.revision
                        break
            self._model.heard(Feed.JOBS, time.monotonic())
        async with aclosing(_job_events(self._client, self._resume_after, None)) as events:
            async for event in events:
                if event.kind is not JobEventKind.CHANGE:
                    # The changes in between are no longer stored, and the client begins with all jobs ever recorded.
                    self._resume_after = None
                    return
                self._model.take_job(event)
                self._resume_after = event.revision
                self._model.heard(Feed.JOBS, time.monotonic())

    async def _status(self) -> None:
        async with asyncio.timeout(_STATUS_TIMEOUT_S):
            status = await self._client.status()
        now_s = time.monotonic()
        self._model.take_status(status, now_s)
        self._model.heard(Feed.DECIDER, now_s)

    async def _description(self) -> None:
        description = await self._client.describe_cluster()
        now_s = time.monotonic()
        self._model.take_description(description, now_s)
        self._model.heard(Feed.CLUSTER, now_s)
        self._opened_s[Feed.CLUSTER] = 0.0
        gpu_count = sum(len(node.gpus) for node in description.cluster.nodes)
        await asyncio.sleep(max(gpu_count / _GPUS_A_SECOND - 1.0, 0.0))

    async def _gpus(self) -> None:
        self._opened_s[Feed.GPUS] = time.monotonic()
        every_s = self._picture_every_s
        async with aclosing(_gpu_states(self._client, every_s)) as states:
            async for state in states:
                self._model.take_gpus(state)
                self._model.heard(Feed.GPUS, time.monotonic())
                # The larger the cluster, the larger its pictures: read less often.
                self._picture_every_s = max(self._interval_s, len(state.gpus) / _GPUS_A_SECOND)
                if self._picture_every_s > 2.0 * every_s:
                    return

    async def _check(self, feed: Feed, address: str, service: str) -> None:
        """A stream without messages says nothing of its service; so does one whose process stands still."""
        from adlro.client.health import check

        served = False
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            serves = await check(address, _CHECK_TIMEOUT_S)
            served = served or serves
            now_s = time.monotonic()
            # A cluster of somebody else may have no health service: its answers alone count.
            if not served or self._model.feeds[feed].state is FeedState.REFUSED:
                continue
            if not serves:
                self._model.failed(feed, f"{service} at {address} does not serve", now_s)
            elif self._model.feeds[feed].heard_s is not None and now_s - self._opened_s.get(feed, now_s) > _RETRY_S:
                self._model.heard(feed, now_s)

    async def _predictions(self) -> None:
        """Expected runtimes of the jobs on the screen, each asked for once."""
        refused = False
        while True:
            await asyncio.sleep(_STATUS_EVERY_S)
            jobs = self._model.unasked(self._visible())[:_PREDICTED_AT_ONCE]
            if not jobs:
                continue
            found = {job.job_id: told for job in jobs if (told := told_runtime(job)) is not None}
            try:
                if not refused:
                    found |= await expected_runtimes(self._client, jobs)
            except _REFUSALS:
                refused = True
            except AdlroError:
                pass  # decompose's own source says so
            self._model.take_expected(found)


# What the services are asked, each in one place.


def _job_events(
    client: AsyncClient, after_revision: int | None, job_filter: JobFilter | None
) -> AsyncGenerator[JobEvent]:
    return cast("AsyncGenerator[JobEvent]", client.watch(after_revision, job_filter, patience_s=0.0))


def _gpu_states(client: AsyncClient, interval_s: float) -> AsyncGenerator[ClusterState]:
    return cast("AsyncGenerator[ClusterState]", client.watch_cluster_state(min_interval_s=interval_s))


def decisions(client: AsyncClient, history: int) -> AsyncGenerator[Decision]:
    """Past decisions, then new ones. Each costs the orchestrator work: only while somebody looks."""
    return cast("AsyncGenerator[Decision]", client.watch_decisions(history))


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
        model.take_gpus(await client.cluster_state())

    async def read(feed: Feed, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await ask()
        except AdlroError as error:
            errors[feed] = error
            model.failed(feed, error.message, time.monotonic(), refused=isinstance(error, _REFUSALS))
        else:
            model.heard(feed, time.monotonic())

    # The status after the description, so that what the latter has more of events is truly behind.
    await asyncio.gather(read(Feed.JOBS, jobs), read(Feed.CLUSTER, cluster), read(Feed.GPUS, gpus))
    await read(Feed.DECIDER, decider)
    return [errors[feed] for feed in Feed if feed in errors]


async def read_expected(client: AsyncClient, model: TopModel, job_ids: Sequence[str]) -> None:
    """Expected runtimes of the named jobs that run; without an answer those that their users told."""
    jobs = model.unasked(job_ids)
    found = {job.job_id: told for job in jobs if (told := told_runtime(job)) is not None}
    for start in range(0, len(jobs), _PREDICTED_AT_ONCE):
        try:
            found |= await expected_runtimes(client, jobs[start : start + _PREDICTED_AT_ONCE])
        except AdlroError:
            break
    model.take_expected(found)
