"""Decisions are stored behind the deciding path: a store that is away delays none, and what is lost is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
import structlog
from prometheus_client import CollectorRegistry
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from adlro.decide.policies.sjf import Sjf
from adlro.records.cluster import Cluster
from adlro.services.orchestrator.deciding import storing as module
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.deciding.storing import BEHIND, CAUSES, SUPERSEDED, StoringDecisions
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.store.decisions import StoredDecision
from tests.ledgers import queue

WAIT_S = 30.0


class Store:
    """Notes what is appended; `answers` are raised or returned first."""

    def __init__(self) -> None:
        self.keeps = True
        self.entries: list[str] = []
        self.answers: list[Exception | int] = []
        self.allowed = asyncio.Event()
        self.allowed.set()

    async def append(self, entries: Sequence[StoredDecision]) -> int:
        await self.allowed.wait()
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        self.entries += [each.entry_id for each in entries]
        return answer


@pytest.fixture
def first(cluster: Cluster) -> Made:
    ledger = Ledger(cluster)
    entry, observation = queue(ledger, 1, (1.0, 2.0, 3.0)), ledger.observe(5.0)
    now = Made.now("d-1-1", entry, Sjf(), ledger, 5.0)
    return now.placed((0,), Sjf().judge(observation), observation, 0, 1, None, 9.0)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def metrics() -> OrchestratorMetrics:
    made = OrchestratorMetrics(CollectorRegistry())
    made.declare_unstored_causes(CAUSES)
    return made


@pytest.fixture
async def storing(
    store: Store, metrics: OrchestratorMetrics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StoringDecisions]:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(module, "BUFFER", 20)
    monkeypatch.setattr(module, "TOGETHER", 4)
    worker = SideThread("store decisions")
    made = StoringDecisions(store, worker, metrics.count_stored, metrics.count_unstored, structlog.get_logger())  # type: ignore[arg-type]
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    worker.close()


def value(metrics: OrchestratorMetrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(f"adlro_orchestrator_{name}_decisions_total", labels)
    assert found is not None
    return found


def tell(storing: StoringDecisions, first: Made, numbers: Sequence[int]) -> None:
    for number in numbers:
        storing.take(replace(first, decision_id=f"d-1-{number}"))


async def test_all_are_stored_in_order_and_counted(
    storing: StoringDecisions, store: Store, metrics: OrchestratorMetrics, first: Made
) -> None:
    tell(storing, first, range(1, 11))
    await asyncio.wait_for(storing.flush(WAIT_S), WAIT_S)
    assert store.entries == [f"1-{number}" for number in range(1, 11)]
    assert value(metrics, "stored") == 10
    assert [value(metrics, "unstored", cause=cause) for cause in CAUSES] == [0, 0]


async def test_a_slow_store_delays_nothing_and_the_oldest_that_wait_are_dropped(
    storing: StoringDecisions, store: Store, metrics: OrchestratorMetrics, first: Made
) -> None:
    store.allowed.clear()
    tell(storing, first, range(1, 3))
    await asyncio.sleep(0.1)  # they are being written now
    tell(storing, first, range(3, 43))
    assert value(metrics, "unstored", cause=BEHIND) == 22
    store.allowed.set()
    await asyncio.wait_for(storing.flush(WAIT_S), WAIT_S)
    assert store.entries == [f"1-{number}" for number in (1, 2, *range(25, 43))]
    assert value(metrics, "stored") == 20


async def test_a_store_that_is_away_gets_them_when_it_is_back(
    storing: StoringDecisions, store: Store, metrics: OrchestratorMetrics, first: Made
) -> None:
    # The answer to the first try is lost: all four are there when they are repeated.
    store.answers = [RedisConnectionError("gone"), ResponseError("OOM command not allowed"), 4]
    tell(storing, first, range(1, 5))
    await asyncio.wait_for(storing.flush(WAIT_S), WAIT_S)
    assert store.answers == []
    assert store.entries == [f"1-{number}" for number in range(1, 5)]
    assert value(metrics, "unstored", cause=SUPERSEDED) == 0


async def test_what_another_instance_has_overtaken_is_counted(
    storing: StoringDecisions, store: Store, metrics: OrchestratorMetrics, first: Made
) -> None:
    store.answers = [3]
    tell(storing, first, range(1, 5))
    await asyncio.wait_for(storing.flush(WAIT_S), WAIT_S)
    assert (value(metrics, "stored"), value(metrics, "unstored", cause=SUPERSEDED)) == (1, 3)


async def test_one_that_can_t_be_made_keeps_no_other_away(storing: StoringDecisions, store: Store, first: Made) -> None:
    storing.take(replace(first, decision_id="no id"))
    tell(storing, first, [2])
    await asyncio.wait_for(storing.flush(WAIT_S), WAIT_S)
    assert store.entries == ["1-2"]


async def test_none_is_taken_where_none_is_kept(storing: StoringDecisions, store: Store, first: Made) -> None:
    store.keeps = False
    tell(storing, first, range(1, 5))
    await storing.flush(0.0)
    assert store.entries == []


async def test_a_flush_ends_in_time(storing: StoringDecisions, store: Store, first: Made) -> None:
    store.allowed.clear()
    tell(storing, first, range(1, 5))
    await asyncio.wait_for(storing.flush(0.05), WAIT_S)
    assert store.entries == []
