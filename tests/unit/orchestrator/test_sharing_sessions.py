"""An orchestrator whose cluster lets two jobs share a GPU: what it asks decompose, and what it tells operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from adlro.hardware.shared_speeds import KEPT_SHARES
from adlro.records.events import ClockMode
from adlro.records.jobs import Job
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.ports import PredictedPairs
from adlro.services.orchestrator.session import session as session_module
from tests.unit.orchestrator.house import Declared, House
from tests.unit.orchestrator.test_gangs import V100, nodes


class Tells(Declared):
    """Notes which kinds it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def pairs(self, kinds: Sequence[ApplicationSize], gpu_models: Sequence[str]) -> PredictedPairs:
        self.asked.append([kind.application for kind in kinds])
        return await super().pairs(kinds, gpu_models)


@pytest.fixture
async def house(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(session_module, "PAIRS_S", 0.05)
    made = House(redis_url, nodes((V100, 1)), Tells())
    made.cluster.shares, made.cluster.kept = True, 0.8
    yield made
    await made.close()


def asked(house: House) -> list[list[str]]:
    assert isinstance(house.predictor, Tells)
    return house.predictor.asked


def table(house: House) -> PairTable:
    session = house.orchestrator.life.ready_session()
    assert session is not None
    return session.ledger._pairs


def is_true(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()

    return asked


async def submit(house: House, work_s: float, application: str, **spec: object) -> Job:
    return await house.submit(work_s, application=application, **{"shareable": True, **spec})


async def test_two_jobs_share_a_gpu_also_across_lives_of_the_orchestrator(house: House) -> None:
    house.start("share_pairs")
    await house.until_acting()
    await house.pause()
    await submit(house, 100.0, "a")
    await submit(house, 40.0, "b")
    await house.until(is_true(lambda: len(house.cluster.running) == 2))
    assert asked(house)[-1] == ["a", "b"] or asked(house)[-2:] == [["a"], ["a", "b"]]
    await house.kill()
    house.start()
    await house.until_acting()
    assert await house.orchestrator.drain("n0", "to be repaired") == ["job-1", "job-2"]
    await house.orchestrator.undrain("n0")
    await house.cluster.set_clock(replace(house.cluster.clock, paused=False))
    first, second = await house.until_final(2)
    assert [first.end_s, second.end_s] == pytest.approx([110.0, 50.0])
    assert [each.time_s for each in first.attempts[0].neighbours] == [pytest.approx(50.0)]
    assert [each.neighbour for each in second.attempts[0].neighbours] == [ApplicationSize("a")]


async def test_nobody_is_asked_of_pairs_where_gpus_are_not_shared(house: House) -> None:
    house.cluster.shares = False
    house.start("share_pairs")
    await submit(house, 10.0, "a")
    await submit(house, 10.0, "b")
    first, second = await house.until_final(2)
    assert second.start_s == first.end_s == 10.0
    assert asked(house) == []


async def test_on_a_real_clock_what_decompose_learns_is_used_while_a_session_lasts(house: House) -> None:
    house.cluster.clock = replace(house.cluster.clock, mode=ClockMode.REAL, paused=True)
    house.start("share_pairs")
    await house.until_acting()
    await submit(house, 100.0, "a")
    await house.until(is_true(lambda: bool(house.cluster.running)))
    assert table(house).kept[0, 0, 0] == 0.8
    house.predictor.kept, house.predictor.revision = 0.6, 2
    await house.until(is_true(lambda: table(house).kept[0, 0, 0] == 0.6))
    house.predictor.away = True
    await submit(house, 100.0, "b")
    await house.until(is_true(lambda: table(house).number_of.keys() == {ApplicationSize("a"), ApplicationSize("b")}))
    assert table(house).kept[0, 0, 0] == 0.6, "what was told stands"
    assert not table(house).kept[1].any(), "nothing is measured of it"


async def test_on_a_virtual_clock_pairs_are_brought_up_to_date_as_jobs_arrive_alone(house: House) -> None:
    """At any other moment an answer would decide how a list of jobs runs."""
    house.start("share_pairs")
    await house.until_acting()
    await house.pause()
    await submit(house, 100.0, "a")
    await house.until(is_true(lambda: bool(house.cluster.running)))
    house.predictor.kept, house.predictor.revision = 0.6, 2
    before = len(asked(house))
    await asyncio.sleep(5.0 * session_module.PAIRS_S)
    assert len(asked(house)) == before
    assert table(house).kept[0, 0, 0] == 0.8
    await submit(house, 1.0, "a")
    await house.until(is_true(lambda: table(house).kept[0, 0, 0] == 0.6))
    await submit(house, 1.0, "b")
    await house.until(is_true(lambda: len(table(house).number_of) == 2))
    assert asked(house)[-1] == ["a", "b"]


async def test_without_decompose_pairs_are_as_measured(house: House) -> None:
    house.predictor.away, house.cluster.cluster = True, nodes(("v100", 1))  # as measured
    _, one, other = next(key for key in KEPT_SHARES if key[0] == "v100" and key[1] != key[2])
    house.start("share_pairs")
    await submit(house, 10.0, one)
    await submit(house, 10.0, other)
    await house.until_final(2)
    found = table(house)
    kinds = ApplicationSize(one), ApplicationSize(other)
    rows = [found.number_of[kind] for kind in kinds]
    assert found.kept[rows[0], rows[1], 0] == KEPT_SHARES["v100", one, other][0]
    assert found.kept[rows[1], rows[0], 0] == KEPT_SHARES["v100", one, other][1]
