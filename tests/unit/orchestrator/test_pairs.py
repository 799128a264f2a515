"""What jobs that share a GPU are expected to keep of their speeds: the table, and how it is kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from adlro.errors import AdlroError, Unavailable
from adlro.hardware.shared_speeds import TURN_SHARE, kept_shares
from adlro.records.jobs import JobSpec, JobType
from adlro.records.outcomes import SIZE_LABEL, ApplicationSize
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.ports import PredictedPairs
from adlro.services.orchestrator.runtimes.pairs import KINDS_KEPT, PAUSE_S, ExpectedPairs, measured

MODELS = ("v100_sxm2", "rtx_2080_ti")


def spec(application: str, size: str = "", **more: object) -> JobSpec:
    fields: dict[str, object] = {"name": "j", "user": "ann", "job_type": JobType.SIMULATION, "shareable": True}
    labels = {SIZE_LABEL: size} if size else {}
    return JobSpec(**{**fields, "application": application, "labels": labels, **more})  # type: ignore[arg-type]


def kinds(count: int, first: int = 0) -> list[ApplicationSize]:
    return [ApplicationSize(f"a{number}") for number in range(first, first + count)]


class Decompose:
    """Answers with figures that tell the kinds, the model and the revision apart; keeps answers back where asked to."""

    def __init__(self) -> None:
        self.revision = 1
        self.away = False
        self.asked: list[tuple[list[str], tuple[str, ...]]] = []
        self.gates: list[asyncio.Event | None] = []  # of the next answers

    def figure(self, kind: ApplicationSize, beside: ApplicationSize, model: str) -> float:
        digits = f"{kind.application}{kind.batch_size}|{beside.application}{beside.batch_size}|{model}|{self.revision}"
        return 0.1 + 0.8 * (sum(map(ord, digits)) * 7919 % 1000) / 1000

    async def pairs(self, kinds: Sequence[ApplicationSize], gpu_models: Sequence[str]) -> PredictedPairs:
        self.asked.append(([kind.application for kind in kinds], tuple(gpu_models)))
        if self.away:
            raise Unavailable("decompose does not answer")
        kept = [[[self.figure(one, other, each) for each in gpu_models] for other in kinds] for one in kinds]
        answer = PredictedPairs(
            np.array(kept).reshape(len(kinds), len(kinds), len(gpu_models)), np.zeros(1), self.revision
        )
        gate = self.gates.pop(0) if self.gates else None
        if gate is not None:
            await gate.wait()
        return answer


class House:
    """The table, decompose, and a clock."""

    def __init__(self) -> None:
        self.decompose, self.now, self.errors = Decompose(), 0.0, list[AdlroError]()
        self.pairs = ExpectedPairs(self.decompose, self.errors.append, lambda: self.now)

    def check(self, known: Sequence[str], models: Sequence[str] = MODELS) -> None:
        """The table has these applications, each figure where it belongs."""
        table = self.pairs.table
        assert {kind.application for kind in table.number_of} == set(known)
        assert table.kept.shape == (len(known) + 1, len(known) + 1, len(models))
        assert not table.kept[-1].any()
        assert not table.kept[:, -1].any()
        for kind, one in table.number_of.items():
            for beside, other in table.number_of.items():
                for number, model in enumerate(models):
                    assert table.kept[one, other, number] == self.decompose.figure(kind, beside, model)


# ---- the table


def test_a_table_has_a_row_for_each_kind_and_one_for_all_others() -> None:
    kept = np.arange(1.0, 9.0).reshape(2, 2, 2) / 10.0
    table = PairTable.of([ApplicationSize("a"), ApplicationSize("b", "32")], kept)
    assert [table.family(each) for each in (spec("a"), spec("b", "32"), spec("b"), spec("c"))] == [0, 1, 2, 2]
    np.testing.assert_array_equal(table.kept[:2, :2], kept)
    assert table.kept.shape == (3, 3, 2)
    assert not table.kept[2].any()
    assert not table.kept[:, 2].any()


def test_what_runs_together_already_is_expected_to_take_turns_where_nothing_is_known() -> None:
    kept = np.array([[[0.9], [0.0]], [[0.7], [0.8]]])
    table = PairTable.of([ApplicationSize("a"), ApplicationSize("b")], kept)
    asked = [("a", "a"), ("b", "a"), ("b", "b"), ("a", "b"), ("a", "c"), ("c", "a")]
    told = [table.kept_by(spec(one), ApplicationSize(other), 0) for one, other in asked]
    assert told == [0.9, 0.7, 0.8, TURN_SHARE, TURN_SHARE, TURN_SHARE]
    empty = PairTable()
    assert [empty.family(spec("a")), empty.kept_by(spec("a"), ApplicationSize("a"), 3)] == [0, TURN_SHARE]


# ---- kept up to date


async def test_new_kinds_are_met_and_known_ones_ask_nobody() -> None:
    house = House()
    assert await house.pairs.meet([spec("a"), spec("b"), spec("a", user="bob")], MODELS) is house.pairs.table
    house.check(["a", "b"])
    assert await house.pairs.meet([spec("b")], MODELS) is None
    assert await house.pairs.meet([], MODELS) is None
    assert await house.pairs.meet([spec("c", shareable=False), spec("c", gpu_count=2)], MODELS) is None
    assert house.decompose.asked == [(["a", "b"], MODELS)]
    assert await house.pairs.meet([spec("c")], MODELS) is house.pairs.table
    house.check(["a", "b", "c"])


async def test_sizes_of_an_application_are_different_kinds() -> None:
    house = House()
    await house.pairs.meet([spec("a"), spec("a", "32"), spec("", "32")], MODELS)
    table = house.pairs.table
    assert sorted(table.number_of.values()) == [0, 1, 2]
    assert table.family(spec("a", "64")) == 3


async def test_of_many_kinds_those_that_arrived_last_are_kept() -> None:
    house = House()
    names = [f"a{number}" for number in range(KINDS_KEPT + 5)]
    await house.pairs.meet([spec(name) for name in names[:KINDS_KEPT]], MODELS)
    await house.pairs.meet([spec("a0"), spec("a1")], MODELS)  # met again
    await house.pairs.meet([spec(name) for name in names[KINDS_KEPT:]], MODELS)
    house.check(["a0", "a1", *names[7:]])
    assert len(house.pairs.table.number_of) == KINDS_KEPT
    assert house.pairs.table.family(spec("a2")) == KINDS_KEPT


async def test_other_gpu_models_need_another_table() -> None:
    house = House()
    await house.pairs.meet([spec("a"), spec("b")], MODELS)
    assert await house.pairs.meet([], MODELS[::-1]) is house.pairs.table
    house.check(["a", "b"], MODELS[::-1])
    await house.pairs.meet([], ("k80",))
    house.check(["a", "b"], ("k80",))


async def test_what_decompose_has_learned_is_used() -> None:
    house = House()
    assert await house.pairs.refresh() is None
    assert not house.decompose.asked, "nobody has come who may share"
    await house.pairs.meet([spec("a"), spec("b")], MODELS)
    assert await house.pairs.refresh() is None
    assert house.decompose.asked[1:] == [(["a"], MODELS)], "one kind tells the revision"
    house.decompose.revision = 2
    assert await house.pairs.refresh() is house.pairs.table
    house.check(["a", "b"])
    assert await house.pairs.refresh() is None


async def test_without_decompose_the_last_figures_stand_and_new_kinds_are_as_measured() -> None:
    house = House()
    await house.pairs.meet([spec("a"), spec("b")], MODELS)
    before = house.pairs.table
    house.decompose.away = True
    assert await house.pairs.refresh() is None
    assert house.pairs.table is before
    await house.pairs.meet([spec("resnet50")], MODELS)
    table = house.pairs.table
    np.testing.assert_array_equal(table.kept[:2, :2], before.kept[:2, :2])
    own = table.kept[2, 2].tolist()
    assert own == measured([ApplicationSize("resnet50")], MODELS)[0, 0].tolist()
    assert not table.kept[2, :2].any(), "nothing is measured of the others"
    assert len(house.errors) == 1, "it is asked once, and then after a pause"
    house.now = PAUSE_S
    assert await house.pairs.refresh() is None
    assert house.pairs.table is table
    house.decompose.away = False
    house.now = 2 * PAUSE_S - 0.1
    assert await house.pairs.refresh() is None
    house.now = 2 * PAUSE_S
    assert await house.pairs.refresh() is house.pairs.table
    house.check(["a", "b", "resnet50"])


async def test_without_decompose_figures_of_other_gpu_models_are_forgotten() -> None:
    house = House()
    await house.pairs.meet([spec("a"), spec("resnet50")], MODELS)
    house.decompose.away = True
    await house.pairs.meet([], ("k80", "p100"))  # as many of them
    the_kinds = [ApplicationSize("a"), ApplicationSize("resnet50")]
    np.testing.assert_array_equal(house.pairs.table.kept[:2, :2], measured(the_kinds, ("k80", "p100")))


async def test_after_an_outage_arrivals_ask_again() -> None:
    """On a virtual clock nobody else would."""
    house = House()
    house.decompose.away = True
    await house.pairs.meet([spec("a")], MODELS)
    house.decompose.away = False
    assert await house.pairs.meet([spec("a")], MODELS) is None, "not at once"
    house.now = PAUSE_S
    assert await house.pairs.meet([spec("a")], MODELS) is house.pairs.table
    house.check(["a"])
    assert await house.pairs.meet([spec("a")], MODELS) is None


async def test_a_late_answer_does_not_undo_a_newer_one() -> None:
    """A session asks for what was learned, while jobs of a new kind arrive."""
    house = House()
    await house.pairs.meet([spec("a")], MODELS)
    house.decompose.revision = 2
    gate = asyncio.Event()
    house.decompose.gates = [None, gate]  # the whole table comes late
    refreshing = asyncio.create_task(house.pairs.refresh())
    for _ in range(5):
        await asyncio.sleep(0)
    meeting = asyncio.create_task(house.pairs.meet([spec("b")], MODELS))
    for _ in range(5):
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(refreshing, meeting)
    house.check(["a", "b"])
    assert meeting.result() is house.pairs.table


def test_measured_figures_are_those_of_the_hardware_table() -> None:
    pair = [ApplicationSize("resnet50"), ApplicationSize("nobody knows it")]
    kept = measured(pair, MODELS)
    assert kept.shape == (2, 2, 2)
    for number, model in enumerate(MODELS):
        figures = kept_shares(model, "resnet50", "resnet50")
        assert kept[0, 0, number] == (0.0 if figures is None else figures[0])
    assert not kept[1].any()
    assert not kept[:, 1].any()
    assert measured([], MODELS).shape == (0, 0, 2)


@pytest.mark.parametrize("count", [0, 3])
def test_a_table_of_no_kinds_has_all_models(count: int) -> None:
    table = PairTable.of(kinds(count), np.ones((count, count, 3)))
    assert table.kept.shape == (count + 1, count + 1, 3)


async def test_a_question_that_is_broken_off_is_asked_again() -> None:
    """A session that ends while decompose thinks leaves the next one no gap."""
    house = House()
    await house.pairs.meet([spec("a")], MODELS)
    house.decompose.gates = [asyncio.Event()]
    meeting = asyncio.create_task(house.pairs.meet([spec("b")], MODELS))
    for _ in range(5):
        await asyncio.sleep(0)
    meeting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await meeting
    assert await house.pairs.meet([spec("b")], MODELS) is house.pairs.table
    house.check(["a", "b"])
