"""Explanations of waits beside the deciding loop: one at a time, shared by all who ask, with a rest after each."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest

from adlro.records.jobs import Job, PendingReason
from adlro.records.waiting import WaitingExplanation
from adlro.services.orchestrator.forecasts import explaining
from adlro.services.orchestrator.forecasts.explaining import Explaining
from adlro.services.orchestrator.forecasts.forecasting import TOO_FAR, Forecasting
from adlro.services.orchestrator.ledger.ledger import Ledger
from tests.ledgers import queue as enqueue
from tests.ledgers import small_cluster

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
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, seen: Any, start: Any, none: str) -> WaitingExplanation:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
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


def of(queue: Ledger, number: int) -> Job:
    return queue.entries[f"job-{number}"].job


async def test_all_who_ask_for_a_job_at_once_share_one(
    queue: Ledger, waits: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    monkeypatch.setattr(explaining, "explanation", work)
    told = await asyncio.gather(*(waits.explained(queue, of(queue, 1), lambda: 5.0) for _ in range(50)))
    assert work.made == ["job-1"]
    assert len({id(each) for each in told}) == 1
    assert await waits.explained(queue, of(queue, 1), lambda: 5.0) is told[0], "and who asks just after"
    await asyncio.sleep(2 * explaining.SHARED_S)
    assert (await waits.explained(queue, of(queue, 1), lambda: 5.0)).sentence == "number 2"


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
    await asyncio.sleep(0.05)
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
    await asyncio.sleep(0.05)
    queue.place(queue.entries["job-2"], (0,), 0.0)
    work.may_go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        told = [await first, await second]
    assert told[0].sentence == "number 1"
    assert "launched" in told[1].no_expected_start
