"""Explanations of waits beside the deciding loop: one at a time, shared by all who ask, with a rest after each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from adlro.errors import Unavailable
from adlro.kit.identity import CALLER, Caller, Role
from adlro.records.jobs import Job, JobState, NormalizedJob, PendingReason
from adlro.records.waiting import WaitingExplanation
from adlro.services.orchestrator.forecasts import explaining
from adlro.services.orchestrator.forecasts.explaining import Explaining
from adlro.services.orchestrator.forecasts.forecasting import TOO_FAR, Forecasting
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.store import Move
from tests.ledgers import job, small_cluster
from tests.ledgers import queue as enqueue
from tests.unit.orchestrator.house import House

PATIENCE_S = 30.0


class NoForecasts:
    async def expected(self, *given: Any) -> str:
        return TOO_FAR


class Work:
    """In the place of `explanation`: notes each, and how many were at work at once."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.work_s = work_s
        self.made: list[str] = []
        self.spans: list[tuple[float, float]] = []
        self.at_work = self.most_at_work = 0
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def __call__(self, seen: Any, start: Any, none: str) -> WaitingExplanation:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        self.begun.set()
        self.may_go_on.wait(PATIENCE_S)
        began = time.monotonic()
        while time.monotonic() - began < self.work_s:
            time.sleep(0.001)
        self.at_work -= 1
        self.spans.append((began, time.monotonic()))
        self.made.append(seen.entry.job.job_id)
        return WaitingExplanation(seen.entry.job.job_id, 0.0, PendingReason.RESOURCES, f"number {len(self.made)}", 1, 1)


@pytest.fixture
def queue() -> Ledger:
    made = Ledger(small_cluster())
    for number in range(1, 10):
        enqueue(made, number, (10.0, 10.0, 10.0), submit_s=float(number))
    return made


@pytest.fixture
async def waits() -> Any:
    made = Explaining(cast(Forecasting, NoForecasts()))
    yield made
    made.close()


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    token = CALLER.set(caller)
    yield
    CALLER.reset(token)


def of(queue: Ledger, number: int) -> Job:
    return queue.entries[f"job-{number}"].job


async def test_all_who_ask_for_a_job_at_once_share_one(
    queue: Ledger, waits: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    monkeypatch.setattr(explaining, "explanation", work)
    monkeypatch.setattr(explaining, "SHARED_S", 3600.0)
    told = await asyncio.gather(*(waits.explained(queue, of(queue, 1), lambda: 5.0) for _ in range(50)))
    assert work.made == ["job-1"]
    assert len({id(each) for each in told}) == 1
    assert await waits.explained(queue, of(queue, 1), lambda: 5.0) is told[0], "and who asks just after"
    monkeypatch.setattr(explaining, "SHARED_S", 0.0)
    assert (await waits.explained(queue, of(queue, 2), lambda: 5.0)).sentence == "number 2"
    await asyncio.sleep(0.01)
    assert (await waits.explained(queue, of(queue, 2), lambda: 5.0)).sentence == "number 3"


async def test_one_thread_works_and_rests_after_each(
    queue: Ledger, waits: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(0.02)
    monkeypatch.setattr(explaining, "explanation", work)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(waits.explained(queue, of(queue, number), lambda: 5.0) for number in range(1, 6)))
    assert work.most_at_work == 1
    assert sorted(work.made) == [f"job-{number}" for number in range(1, 6)]
    for (began, ended), (following, _) in zip(work.spans, work.spans[1:], strict=False):
        assert following - ended >= 2.9 * (ended - began), "a quarter of a core at most"


async def test_what_nobody_waits_for_any_more_is_not_worked_out(
    queue: Ledger, waits: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    monkeypatch.setattr(explaining, "explanation", work)
    work.may_go_on.clear()
    first = asyncio.ensure_future(waits.explained(queue, of(queue, 1), lambda: 5.0))
    given_up = asyncio.ensure_future(waits.explained(queue, of(queue, 2), lambda: 5.0))
    assert await asyncio.to_thread(work.begun.wait, PATIENCE_S)
    given_up.cancel()
    last = asyncio.ensure_future(waits.explained(queue, of(queue, 3), lambda: 5.0))
    await asyncio.sleep(0)
    work.may_go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(first, last)
    assert work.made == ["job-1", "job-3"]
    again = await waits.explained(queue, of(queue, 2), lambda: 5.0)
    assert again.job_id == "job-2"


async def test_a_job_that_starts_meanwhile_is_being_launched(
    queue: Ledger, waits: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    monkeypatch.setattr(explaining, "explanation", work)
    work.may_go_on.clear()
    first = asyncio.ensure_future(waits.explained(queue, of(queue, 1), lambda: 5.0))
    second = asyncio.ensure_future(waits.explained(queue, of(queue, 2), lambda: 5.0))
    assert await asyncio.to_thread(work.begun.wait, PATIENCE_S)
    queue.place(queue.entries["job-2"], (0,), 0.0)
    work.may_go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        told = [await first, await second]
    assert told[0].sentence == "number 1"
    assert "launched" in told[1].no_expected_start


async def test_a_submitter_is_not_told_why_nothing_acts(redis_url: str) -> None:
    """The problem of a session may be about anybody's job."""
    house = House(redis_url, small_cluster())
    try:
        house.start()
        await house.kill()
        house.orchestrator.life.problem = "the cluster has an attempt of job-7 that nobody knows"
        for role, named in ((Role.SUBMITTER, False), (Role.READER, True)):
            with called_by(Caller("ann", frozenset({role}))), pytest.raises(Unavailable) as refused:
                house.orchestrator.capacity()
            assert ("job-7" in refused.value.message) == named
            assert "does not act now" in refused.value.message
        with pytest.raises(Unavailable, match="job-7"):
            house.orchestrator.capacity()
    finally:
        await house.close()


async def test_a_user_hears_of_his_own_jobs_also_when_they_ended(redis_url: str) -> None:
    """From the record, since nobody acts; the ledger of a session has no ended jobs either."""
    house = House(redis_url, small_cluster())
    try:
        house.start()
        await house.kill()
        specs = [job(1).spec, replace(job(2).spec, user="bob"), job(3).spec]
        ended, bobs, waits = [(await house.store.create(each, NormalizedJob(), "", 0.0)).job for each in specs]
        gone = replace(ended, submit_s=0.0, end_s=1.0, state=JobState.CANCELLED, pending_reason=PendingReason.NONE)
        text = f"stopped for {bobs.job_id}, after {ended.job_id}"
        moved = replace(waits, submit_s=0.0, pending_reason=PendingReason.RESOURCES, message=text)
        await house.store.move(await house.store.newest_token(), [Move(gone, 0), Move(moved, 0)])
        with called_by(Caller("ann", frozenset({Role.SUBMITTER}))):
            told = await house.orchestrator.answers.waiting(waits.job_id)
        assert told.sentence == f"stopped for another job, after {ended.job_id}"
    finally:
        await house.close()
