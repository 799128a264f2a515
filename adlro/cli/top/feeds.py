"""Where the model's records come from: `adlro.client`'s streams, opened again for as long as the screen is.

A failure of one source is noted in the model and leaves the others alone. Nothing here asks for what only one page of
the screen shows (decisions, explanations): that is asked for while the page is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from adlro.cli.top.asking import (
    OPEN_JOBS,
    PREDICTED_AT_ONCE,
    REFUSALS,
    STARTS_AT_ONCE,
    expected_runtimes,
    forecast_starts,
    gpu_states,
    job_events,
    own_view,
    statuses,
    too_old,
)
from adlro.cli.top.feed_states import Feed, FeedState
from adlro.cli.top.model import TopModel, told_runtime
from adlro.errors import AdlroError, Unsupported
from adlro.records.watching import JobEventKind

if TYPE_CHECKING:
    from adlro.client import AsyncClient

STALE_AFTER_S = 5.0
"""A source without a word for longer is stale."""

_ASK_EVERY_S = 1.0
_CHECK_EVERY_S = 1.5
_CHECK_AWAY_EVERY_S = 0.3
_CHECK_TIMEOUT_S = 1.2
_RETRY_S = 0.5
_REFUSED_RETRY_S = 15.0
"""A role may be given later."""
_GPUS_A_SECOND = 256
"""GPUs whose descriptions are read a second, at most: that of a large cluster is read less often."""
_PICTURED_A_SECOND = 2048
"""GPUs whose figures are read a second, at most: those of a larger cluster come less often than the screen is drawn."""
_OWN_VIEW_EVERY_S = 5.0
_START_AGAIN_S = 20.0
"""After so long a job's expected start is asked for again."""


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
        self._serves = {feed: asyncio.Event() for feed in Feed}
        self._picture_every_s = interval_s
        self._starts_asked_s: dict[str, float] = {}

    async def run(self) -> None:
        """Reads all sources, endlessly."""
        from adlro.client import ServiceName

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(Feed.JOBS, self._jobs, _RETRY_S))
            tasks.create_task(self._again(Feed.DECIDER, self._status, _RETRY_S))
            tasks.create_task(self._again(Feed.CLUSTER, self._description, 1.0))
            tasks.create_task(self._again(Feed.GPUS, self._gpus, _RETRY_S))
            tasks.create_task(self._predictions())
            tasks.create_task(self._own_view())
            for feed, service in (
                (Feed.JOBS, ServiceName.INGEST),
                (Feed.DECIDER, ServiceName.ORCHESTRATOR),
                (Feed.CLUSTER, ServiceName.CLUSTER),
                (Feed.GPUS, ServiceName.DECOMPOSE),
            ):
                tasks.create_task(self._check(feed, self._client.endpoints.address(service), str(service)))

    async def _again(self, feed: Feed, read: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            pause_s = every_s
            self._serves[feed].clear()
            try:
                await read()
            except REFUSALS as error:
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
            # A service that is found to serve again is asked at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._serves[feed].wait()

    async def _jobs(self) -> None:
        """The open jobs, then every change. A watch of the open jobs alone would not tell of their ends."""
        self._opened_s[Feed.JOBS] = time.monotonic()
        if self._resume_after is None:
            self._model.begin_jobs()
            async with aclosing(job_events(self._client, None, OPEN_JOBS)) as events:
                async for event in events:
                    self._model.take_job(event)
                    if event.kind is JobEventKind.SNAPSHOT_END:
                        self._resume_after = event.revision
                        break
            self._model.heard(Feed.JOBS, time.monotonic())
        async with aclosing(job_events(self._client, self._resume_after, None)) as events:
            async for event in events:
                if event.kind is not JobEventKind.CHANGE:
                    # The changes in between are no longer stored, and the client begins with all jobs ever recorded.
                    self._resume_after = None
                    return
                self._model.take_job(event)
                self._resume_after = event.revision
                self._model.heard(Feed.JOBS, time.monotonic())

    async def _status(self) -> None:
        self._opened_s[Feed.DECIDER] = time.monotonic()
        async with aclosing(statuses(self._client, self._interval_s)) as found:
            async for status in found:
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
        async with aclosing(gpu_states(self._client, every_s)) as states:
            async for state in states:
                self._model.take_gpus(state)
                self._model.heard(Feed.GPUS, time.monotonic())
                self._picture_every_s = max(self._interval_s, len(state.gpus) / _PICTURED_A_SECOND)
                if self._picture_every_s > 1.5 * every_s:
                    return

    async def _check(self, feed: Feed, address: str, service: str) -> None:
        """A stream without messages says nothing of its service; so does one whose process stands still."""
        from adlro.client.health import ServingCheck

        served = False
        async with aclosing(ServingCheck(address)) as check:
            while True:
                away = self._model.feeds[feed].state is FeedState.AWAY
                await asyncio.sleep(_CHECK_AWAY_EVERY_S if away and served else _CHECK_EVERY_S)
                serves = await check.serves(_CHECK_TIMEOUT_S)
                served = served or serves
                now_s = time.monotonic()
                # A cluster of somebody else may have no health service: its answers alone count.
                if not served or self._model.feeds[feed].state is FeedState.REFUSED:
                    continue
                if not serves:
                    self._model.failed(feed, f"{service} at {address} does not serve", now_s)
                    continue
                self._serves[feed].set()
                if self._model.feeds[feed].heard_s is not None and now_s - self._opened_s.get(feed, now_s) > _RETRY_S:
                    self._model.heard(feed, now_s)

    async def _predictions(self) -> None:
        """Expected runtimes of the jobs on the screen, each asked for once."""
        refused = False
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            jobs = self._model.unasked(self._visible())[:PREDICTED_AT_ONCE]
            if not jobs:
                continue
            found = {job.job_id: told for job in jobs if (told := told_runtime(job)) is not None}
            try:
                if not refused:
                    found |= await expected_runtimes(self._client, jobs)
            except REFUSALS:
                refused = True
            except AdlroError:
                pass  # decompose's own source says so
            self._model.take_expected(found)

    async def _own_view(self) -> None:
        """For a caller who sees only his own jobs: what is free, and when those on the screen are expected to start."""
        asked_s = -_OWN_VIEW_EVERY_S
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            if not self._model.own_jobs_only:
                continue
            problem = ""
            try:
                if time.monotonic() - asked_s >= _OWN_VIEW_EVERY_S:
                    asked_s = time.monotonic()
                    self._model.take_capacity(*await own_view(self._client))
                self._model.take_starts(await forecast_starts(self._client, self._unforecast()))
            except Unsupported as error:
                problem = too_old(error)
            except AdlroError as error:
                problem = error.message
            self._model.own_view_problem = problem
            if problem:
                await asyncio.sleep(_OWN_VIEW_EVERY_S)

    def _unforecast(self) -> list[str]:
        """Waiting jobs on the screen whose expected start was not asked for lately; notes that they are now."""
        now_s = time.monotonic()
        lately = {each: at_s for each, at_s in self._starts_asked_s.items() if now_s - at_s <= _START_AGAIN_S}
        asked = [each for each in self._model.waiting_of(self._visible()) if each not in lately][:STARTS_AT_ONCE]
        self._starts_asked_s = lately | dict.fromkeys(asked, now_s)
        return asked
