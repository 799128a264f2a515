"""Expected starts of waiting jobs, made in a thread beside the event loop.

The loop copies the ledger (a fraction of a millisecond); the futures are played in the thread. Callers share a round of
forecasts: one round runs at a time, with a pause after it, and answers all who asked meanwhile. In the background a few
jobs are forecast for the record, at submission and as their waits grow longer; a job's start judges its forecasts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import redis.asyncio as aioredis
import structlog

from adlro.decide.forecast.calibration import (
    LEAST_WAIT_S,
    Calibration,
    Raw,
    Setting,
    raw_of,
    setting_of,
)
from adlro.decide.forecast.futures import Size, play_futures
from adlro.records.waiting import ExpectedStart
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.forecasts.moments import Snapshot, moment_of, take
from adlro.services.orchestrator.forecasts.record import Record
from adlro.services.orchestrator.forecasts.seen import SeenJobs, past_of
from adlro.services.orchestrator.forecasts.tracked import Forecasts
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger

SIZE = Size(most_work=480_000_000, fewest=5)
"""About a second and a half of a core at most."""

SHARED_QUEUE = 256
"""In a longer queue a round answers for the jobs alone that were asked for."""

SHARED_S = 0.3
"""A forecast that is no older answers a caller without another one, in wall seconds."""

LOOK_S = 1.0
"""Wall seconds between two looks for jobs that are due for a forecast for the record."""

CALLERS_PAUSE, RECORD_PAUSE = 3.0, 30.0
"""The thread rests this many times as long as a round took: callers use a quarter of a core at most, the record a
thirtieth."""

TOO_FAR = "so many jobs are before it that its start is too far ahead to be forecast"
STARTS_NOW = "it has left the queue just now"
BEGUN_ANEW = "the orchestrator has just begun anew; ask again in a moment"


class Round(NamedTuple):
    """One round of forecasts.

    Attributes:
        made_s: cluster time of the state.
        setting: of the moment, without the job's age.
        raws: by job id what the futures said; None: the job was asked for, and starts in too few of them.
        made_at: time.monotonic() of the state.
    """

    made_s: float
    setting: Setting
    raws: dict[str, Raw | None]
    made_at: float


class Forecasting:
    """The forecasts of one orchestrator.

    Args:
        redis: keeps the record.
        log: a structlog logger.
    """

    def __init__(self, redis: aioredis.Redis, log: structlog.typing.FilteringBoundLogger) -> None:
        self.calibration = Calibration()
        self.rounds = 0
        self._record = Record(redis)
        self._log = log
        self._thread = SideThread("forecasts")
        self._tracked = Forecasts()
        self._seen = SeenJobs()
        self._ledger: Ledger | None = None
        self._latest: Round | None = None
        self._asked: dict[str, Entry] = {}
        self._next: asyncio.Task[Round] | None = None
        self._playing = asyncio.Lock()
        self._rests_until = 0.0
        self._rng = np.random.default_rng()

    # ---- callers

    async def expected(self, ledger: Ledger, entry: Entry, now_s: Callable[[], float]) -> ExpectedStart | str:
        """The expected start of a job that waits, or the reason why none can be given.

        Args:
            ledger: of the present session.
            entry: the job, in the queue or before its begin time.
            now_s: the cluster time.
        """
        job_id, latest = entry.job.job_id, self._latest
        fresh_enough = latest is not None and time.monotonic() - latest.made_at < SHARED_S
        if latest is None or not fresh_enough or self._ledger is not ledger or job_id not in latest.raws:
            latest = await self._round_with(ledger, [entry], now_s)
        raw = latest.raws.get(job_id)
        if self._ledger is not ledger:
            return BEGUN_ANEW
        if raw is None:
            return TOO_FAR if entry.phase in (Phase.QUEUED, Phase.BEGIN) else STARTS_NOW
        waits_from_s = entry.job.submit_s if entry.job.submit_s is not None else latest.made_s
        fresh = latest.made_s - waits_from_s < LEAST_WAIT_S
        from_s = max(latest.made_s, waits_from_s)
        interval = self.calibration.forecast(from_s, raw, latest.setting._replace(fresh=fresh)).interval
        tally = self.calibration.tally(fresh)
        return ExpectedStart(
            low_s=from_s + interval.low_s,
            median_s=from_s + interval.median_s,
            high_s=from_s + interval.high_s,
            made_s=latest.made_s,
            finished_count=tally.finished_count,
            came_in_ratio=tally.ratio,
        )

    async def _round_with(self, ledger: Ledger, entries: Sequence[Entry], now_s: Callable[[], float]) -> Round:
        """The next round, with these jobs; all who ask before it begins share it."""
        if self._ledger is not ledger:
            self._begin(ledger)
        self._asked.update((entry.job.job_id, entry) for entry in entries)
        if self._next is None:
            self._next = asyncio.create_task(self._play(ledger, now_s), name="forecast")
        return await asyncio.shield(self._next)

    def _begin(self, ledger: Ledger) -> None:
        """Another session has another ledger: what was tracked are records that are read anew."""
        self._ledger, self._latest, self._asked, self._next = ledger, None, {}, None
        self._tracked.forget()
        self._seen = SeenJobs()

    async def _play(self, ledger: Ledger, now_s: Callable[[], float]) -> Round:
        async with self._playing:
            await asyncio.sleep(self._rests_until - time.monotonic())
            if self._ledger is not ledger:  # the jobs that are asked for now are another session's
                return Round(now_s(), Setting(False, 1.0, 0.0, 0.0), {}, 0.0)
            self._next = None  # who asks from now on asks for the round after this one
            asked, self._asked = self._asked, {}
            began = time.monotonic()
            self._seen.look(ledger)
            jobs, errors = self._seen.entries()
            queued = {job_id: entry for job_id, entry in asked.items() if entry.phase is Phase.QUEUED}
            later = [entry for entry in asked.values() if entry.phase is Phase.BEGIN]
            snapshot = take(ledger, now_s(), later)
            seed = int(self._rng.integers(2**63))
            wanted = {*queued, *(entry.job.job_id for entry in later)}
            latest = await self._thread.run(lambda: played(snapshot, wanted, jobs, errors, seed, began))
            self.rounds += 1
            self._rests_until = time.monotonic() + max(SHARED_S, CALLERS_PAUSE * (time.monotonic() - began))
            if self._ledger is ledger:
                self._latest = latest
            return latest

    # ---- the record

    async def run(
        self, present: Callable[[], Ledger | None], now_s: Callable[[], float], waits: Callable[[], bool] = lambda: True
    ) -> None:
        """Makes and judges forecasts for the record until it is cancelled.

        Args:
            present: the present session's ledger; None: there is none.
            now_s: the cluster time.
            waits: whether the cluster's clock goes on meanwhile; on a virtual one nothing is forecast for the record.
        """
        loaded = False
        while True:
            began = time.monotonic()
            try:
                ledger = present()
                if ledger is None:
                    loaded = False  # another instance may add to the record
                elif not loaded:
                    count = await self._record.load(self.calibration)
                    loaded = True
                    self._log.info("forecasts of starts", finished=count)
                if ledger is not None and waits():
                    await self._look(ledger, now_s)
            except (aioredis.RedisError, OSError) as error:
                self._log.info("the record of forecasts is not stored now", problem=str(error))
            except Exception:
                self._log.exception("forecasting failed; it goes on")
            await asyncio.sleep(max(LOOK_S, RECORD_PAUSE * self._took_s, began + LOOK_S - time.monotonic()))

    _took_s = 0.0

    async def _look(self, ledger: Ledger, now_s: Callable[[], float]) -> None:
        if self._ledger is not ledger:
            self._begin(ledger)
        self._seen.look(ledger)
        await self._learn()
        self._took_s = 0.0
        due = self._tracked.due(ledger.queued(), now_s())
        if not due:
            return
        began = time.monotonic()
        latest = await self._round_with(ledger, [each.entry for each in due], now_s)
        self._took_s = min(time.monotonic() - began, time.monotonic() - latest.made_at)
        for each in due:
            raw = latest.raws.get(each.entry.job.job_id)
            if raw is None:
                self._tracked.drop(each)
            if raw is None or latest.made_s < each.submit_s:
                continue
            fresh = latest.made_s - each.submit_s < LEAST_WAIT_S
            forecast = self.calibration.forecast(latest.made_s, raw, latest.setting._replace(fresh=fresh))
            self._tracked.made(each, forecast, fresh=fresh)

    async def _learn(self) -> None:
        """Judges the forecasts of jobs that have started."""
        learned = []
        for forecast, start_s in self._tracked.finished():
            self.calibration.learn(forecast, start_s)
            learned.append((forecast.kind, self.calibration.finished[forecast.kind][-1]))
        if learned:
            await self._record.add(learned)

    def close(self) -> None:
        """Ends the thread."""
        self._thread.close()


def played(
    snapshot: Snapshot, wanted: set[str], jobs: list[Entry], errors: Sequence[float], seed: int, began: float
) -> Round:
    """One round; for the thread. Jobs that were not asked for are in it where all futures reached their starts."""
    moment = moment_of(snapshot)
    past = past_of(jobs, errors, snapshot.occupancy, snapshot.time_s, snapshot.queue.node_allowed)
    ids = [entry.job.job_id for entry in snapshot.entries]
    asked = np.array([job_id in wanted for job_id in ids], dtype=np.bool_)
    if not asked.any():  # they have all started meanwhile
        return Round(snapshot.time_s, setting_of(moment, past, fresh=False), {}, began)
    starts_s = play_futures(moment, past, asked, np.random.default_rng(seed), SIZE)
    raws: dict[str, Raw | None] = {}
    for place, job_id in enumerate(ids):
        if not asked[place] and (len(ids) > SHARED_QUEUE or not np.isfinite(starts_s[:, place]).all()):
            continue
        waited_s = snapshot.time_s - float(moment.queue.submit_s[place])
        # Before its begin time a job does not wait: its forecast is one from then on.
        raws[job_id] = raw_of(starts_s[:, place] - max(-waited_s, 0.0), max(waited_s, 0.0))
    return Round(snapshot.time_s, setting_of(moment, past, fresh=False), raws, began)


def warm(ledger: Ledger) -> None:
    """Compiles the code for forecasts, or loads it from numba's cache: see `ledger.warm.warm`."""
    jobs = ledger.queued()
    wanted = {entry.job.job_id for entry in jobs}
    played(take(ledger, 1.0), wanted, jobs, (0.0,), 0, 0.0)
