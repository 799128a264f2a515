"""Which jobs are forecast for the record, when their forecasts are judged, and how the record outlives a process."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any, cast

import numpy as np
import pytest
import structlog

from adlro.decide.forecast.calibration import KINDS, LEAST_WAIT_S, Calibration, Finished, Forecast, Raw, Setting
from adlro.kit.redis import connect
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.records.waiting import ExpectedStart
from adlro.services.orchestrator.forecasts import forecasting
from adlro.services.orchestrator.forecasts.forecasting import BEGUN_ANEW, Forecasting, played
from adlro.services.orchestrator.forecasts.moments import moment_of, take
from adlro.services.orchestrator.forecasts.record import MOST_ENTRIES, Record
from adlro.services.orchestrator.forecasts.seen import SeenJobs, past_of
from adlro.services.orchestrator.forecasts.tracked import MOST_TRACKED, Forecasts
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.store.keys import FORECASTS

SETTING = Setting(fresh=True, typical_s=10.0, spread=0.0, load=0.9)


def ledger_of(gpus: int = 1) -> Ledger:
    node = Node("n", 64, 1 << 20, tuple(Gpu(f"n/{each}", "m", 16_000) for each in range(gpus)))
    return Ledger(Cluster("c", (node,)))


def enter(ledger: Ledger, number: int, submit_s: float, duration_s: float = 10.0, spread: float = 0.0) -> Entry:
    spec = JobSpec("j", "ada", JobType.SIMULATION, cpu_cores=1, memory_mib=1)
    entry = ledger.enter(Job(f"job-{number}", spec, submit_s=submit_s), 0, np.array([duration_s]), spread)
    ledger.enqueue(entry)
    return entry


def start(ledger: Ledger, entry: Entry, start_s: float, gpu: int = 0) -> None:
    ledger.place(entry, (gpu,), start_s)
    attempt = JobAttempt(1, Placement.on(f"n/{gpu}"), "m", start_s=start_s)
    entry.job = dataclasses.replace(entry.job, state=JobState.RUNNING, attempts=(attempt,), start_s=start_s)


def end(ledger: Ledger, entry: Entry, end_s: float) -> None:
    attempt = dataclasses.replace(entry.job.attempts[0], end_s=end_s, outcome="succeeded")
    entry.job = dataclasses.replace(entry.job, state=JobState.SUCCEEDED, attempts=(attempt,), end_s=end_s)
    ledger.forget(entry, end_s)


def forecast(made_s: float, low_s: float = 0.0) -> Forecast:
    return Calibration().forecast(made_s, Raw(3.0, 0.3, low_s), SETTING)


def test_a_ledger_gives_exact_starts() -> None:
    """The GPU is busy for 7 s more; the shorter job goes first."""
    ledger = ledger_of()
    start(ledger, enter(ledger, 1, 0.0, 12.0), 45.0)
    enter(ledger, 2, 46.0, 9.0)
    enter(ledger, 3, 47.0, 4.0)
    snapshot = take(ledger, 50.0)
    assert moment_of(snapshot).gpu_expected_s == pytest.approx([12.0])
    told = played(snapshot, {"job-2", "job-3"}, [], (), 0, 0.0)
    assert {job_id: np.expm1(raw.middle) for job_id, raw in told.raws.items() if raw} == pytest.approx(
        {"job-2": 11.0, "job-3": 7.0}
    )


def test_the_past_is_the_newest_jobs_at_their_rate() -> None:
    ledger, seen = ledger_of(), SeenJobs()
    first = enter(ledger, 1, 0.0, 10.0, spread=0.5)
    seen.look(ledger)
    start(ledger, first, 1.0)
    end(ledger, first, 1.0 + 10.0 * np.exp(0.5))
    for number in (2, 3, 5):  # 4 came and went between two looks
        enter(ledger, number, 10.0 * number)
    seen.look(ledger)
    seen.look(ledger)
    jobs, errors = seen.entries()
    assert [entry.job.job_id for entry in jobs] == ["job-1", "job-2", "job-3", "job-5"]
    assert errors == pytest.approx((1.0,))
    past = past_of(jobs, errors, ledger.occupancy, 100.0)
    assert len(past.jobs.spread) / past.span_s == pytest.approx(5 / 100.0)


def test_a_burst_is_no_rate() -> None:
    ledger, seen = ledger_of(gpus=2), SeenJobs()
    for number in range(1, 101):
        enter(ledger, number, 0.0, 10.0)
    seen.look(ledger)
    jobs, errors = seen.entries()
    past = past_of(jobs, errors, ledger.occupancy, 0.01)
    assert past.span_s == pytest.approx(100 * 10.0 / (1.5 * 2))


def test_jobs_are_forecast_at_submission_and_as_their_waits_grow() -> None:
    ledger, tracked = ledger_of(), Forecasts()
    old = enter(ledger, 1, 0.0)
    new = enter(ledger, 2, 99.0)
    (due,) = tracked.due(ledger.queued(), 100.0)
    assert due.entry is new  # the old one was not seen when it came
    tracked.made(due, forecast(100.0), fresh=True)
    assert tracked.due(ledger.queued(), 105.0) == []
    assert [each.entry for each in tracked.due(ledger.queued(), 99.0 + 1.5 * LEAST_WAIT_S)] == [new]
    assert old.phase is Phase.QUEUED


def test_a_start_judges_the_first_forecast_and_the_one_nearest_half_the_wait() -> None:
    ledger, tracked = ledger_of(), Forecasts()
    entry = enter(ledger, 1, 0.0)
    (due,) = tracked.due(ledger.queued(), 0.5)
    made = {made_s: forecast(made_s) for made_s in (0.5, 8.0, 16.0, 30.0)}
    for made_s, each in made.items():
        tracked.made(due, each, fresh=made_s == 0.5)
    assert tracked.finished() == []
    start(ledger, entry, 36.0)
    assert tracked.finished() == [(made[0.5], 36.0), (made[16.0], 36.0)]
    assert len(tracked) == 0


def test_what_did_not_wait_or_was_cancelled_teaches_nothing() -> None:
    ledger, tracked = ledger_of(), Forecasts()
    soon, gone = enter(ledger, 1, 0.0), enter(ledger, 2, 0.0)
    for due in tracked.due(ledger.queued(), 0.5):
        tracked.made(due, forecast(0.5), fresh=True)
    start(ledger, soon, LEAST_WAIT_S - 1.0)
    ledger.forget(gone)
    assert tracked.finished() == []
    assert len(tracked) == 0


def test_a_job_that_ran_and_ended_between_two_looks_teaches_too() -> None:
    ledger, tracked = ledger_of(), Forecasts()
    entry = enter(ledger, 1, 0.0)
    (due,) = tracked.due(ledger.queued(), 0.5)
    tracked.made(due, forecast(0.5), fresh=True)
    start(ledger, entry, 20.0)
    end(ledger, entry, 25.0)
    assert [start_s for _, start_s in tracked.finished()] == [20.0]


def test_a_long_queue_is_tracked_in_part() -> None:
    ledger, tracked = ledger_of(), Forecasts()
    for number in range(1, 700):
        enter(ledger, number, 0.0)
    for _ in range(20):
        for due in tracked.due(ledger.queued(), 0.5):
            if due.fresh is None:
                tracked.made(due, forecast(0.5), fresh=True)
    assert len(tracked) == MOST_TRACKED


async def test_the_record_outlives_the_process(redis_url: str) -> None:
    redis = connect(redis_url)
    await redis.delete(FORECASTS)
    first, record = Calibration(), Record(redis)
    learned = []
    for number in range(300):
        made = first.forecast(0.0, Raw(3.0, 0.3, 0.0), SETTING)
        first.learn(made, float(number % 40))
        learned.append((made.kind, first.finished[made.kind][-1]))
    await record.add(learned)
    await redis.xadd(FORECASTS, {"kind": "of_another_release", "error": "1", "in": 1})
    await redis.xadd(FORECASTS, {"kind": KINDS[0], "error": "nonsense", "in": 1})
    await redis.xadd(FORECASTS, {"kind": KINDS[0]})
    second = Calibration()
    assert await Record(redis).load(second) == len(first.finished[learned[0][0]])
    assert second.finished == first.finished
    assert second.tally(fresh=True) == first.tally(fresh=True)
    for _ in range(20):
        await record.add([(KINDS[0], Finished(0.0, True))] * 500)
    assert await redis.xlen(FORECASTS) < 1.2 * MOST_ENTRIES
    await redis.aclose()


async def test_forecasts_are_made_judged_and_kept_in_the_background(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job waits for 20 s of cluster time; a restart of the process knows how its forecast came out."""
    monkeypatch.setattr(forecasting, "LOOK_S", 0.01)
    redis, log = connect(redis_url), structlog.get_logger()
    await redis.delete(FORECASTS)
    ledger, now_s = ledger_of(), [100.0]
    start(ledger, enter(ledger, 1, 90.0, 30.0), 90.0)
    waiting = enter(ledger, 2, 100.0)
    made = Forecasting(redis, log)
    task = asyncio.create_task(made.run(lambda: ledger, lambda: now_s[0]))
    async with asyncio.timeout(60):
        while made.rounds == 0:  # noqa: ASYNC110 - made in a thread
            await asyncio.sleep(0.01)
        start_ = await made.expected(ledger, waiting, lambda: now_s[0])
        assert not isinstance(start_, str)
        assert 100.0 + LEAST_WAIT_S <= start_.low_s <= start_.median_s <= start_.high_s
        assert start_.finished_count == 0
        end(ledger, ledger.entries["job-1"], 120.0)
        start(ledger, waiting, 120.0)
        now_s[0] = 121.0
        while made.calibration.tally(fresh=True).finished_count == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while await redis.xlen(FORECASTS) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    made.close()
    again = Calibration()
    assert await Record(redis).load(again) == 1
    assert again.tally(fresh=True) == made.calibration.tally(fresh=True)
    await redis.aclose()


def test_jobs_that_never_start_take_nobody_the_place_in_the_record() -> None:
    ledger, tracked = ledger_of(), Forecasts()
    tracked.due([], 0.0)
    waiting = []
    for number in range(1, MOST_TRACKED + 10):
        entry = enter(ledger, number, float(number))
        if number % 2:
            entry.job = dataclasses.replace(entry.job, pending_reason=PendingReason.NO_FITTING_GPU)
        waiting.append(entry)
        for each in tracked.due(waiting, float(number)):
            assert each.entry.job.pending_reason is not PendingReason.NO_FITTING_GPU
            tracked.drop(each)  # as after a round in which no future reached its start
    ordinary = enter(ledger, 9999, MOST_TRACKED + 20.0)
    assert [each.entry for each in tracked.due([*waiting, ordinary], MOST_TRACKED + 20.0)] == [ordinary]
    assert len(tracked) == 1


async def test_a_round_of_a_session_that_ended_takes_no_question_of_the_next() -> None:
    made = Forecasting(cast("Any", None), structlog.get_logger())
    ended, present = ledger_of(), ledger_of()
    waiting = [[enter(ledger, number, 0.0) for number in range(1, 4)] for ledger in (ended, present)]
    try:
        made._rests_until = time.monotonic() + 0.3  # as after a round
        asked = asyncio.create_task(made.expected(ended, waiting[0][1], lambda: 6.0))
        await asyncio.sleep(0.05)
        assert isinstance(await made.expected(present, waiting[1][1], lambda: 6.0), ExpectedStart)
        assert await asked == BEGUN_ANEW
    finally:
        made.close()
