"""What a policy wants to start on busy GPUs is done only where jobs may be stopped for it, or share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import structlog

from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.records.decisions import DecisionBasis
from adlro.services.orchestrator.deciding.guard import Guard, may_share, may_start_busy, may_stop_for
from adlro.state.observation import Observation
from tests.unit.decide.gang_points import Several
from tests.unit.decide.sharing_points import ALONE, shared
from tests.unit.decide.stop_points import stop_point

DEADLINE_S = 60.0
"""Which no policy that is well misses, whatever the machine does meanwhile."""


class Wants(Policy):
    """Wants this start on busy GPUs."""

    name = "wants"
    description = "for tests"
    preempts = True

    def __init__(self, start: BusyStart) -> None:
        self.start = start

    def judge(self, observation: Observation) -> Judgement:
        return Judgement(np.full(len(observation.table.job), -np.inf), busy={0: self.start})


STOPS = stop_point(
    [Several(2, 10.0), Several(1, 10.0, cores=5)],
    [[30.0, 40.0], [30.0, 0.0]],
    fixed=(2,),
    cores_free=[1, 1],
    cores_held=[1, 1, 1, 0],
)


@pytest.mark.parametrize(
    ("job", "gpus", "stops", "sound"),
    [
        (0, (0, 1), True, True),
        (0, (1, 3), True, True),  # one of them is idle
        (0, (0, 1), False, False),  # a second job beside others
        (0, (0, 2), True, False),  # whose job may not be stopped
        (0, (0,), True, False),  # too few
        (0, (0, 0), True, False),
        (0, (0, 9), True, False),
        (1, (0,), True, False),  # the node has too few cores
        (7, (0,), True, False),
        (-1, (0,), True, False),
    ],
)
async def test_what_may_not_be_stopped_is_not(job: int, gpus: tuple[int, ...], stops: bool, sound: bool) -> None:
    guard = Guard(DEADLINE_S, structlog.get_logger())
    try:
        found = await guard.judge(Wants(BusyStart(job, gpus, stops)), STOPS, virtual=False)
        assert (found.basis_of(0) is DecisionBasis.POLICY) == sound
        assert bool(found.busy) == sound
        looked = await guard.look(Wants(BusyStart(job, gpus, stops)), STOPS)
        assert bool(looked.busy) == sound
    finally:
        guard.close()


def test_where_nothing_may_be_stopped_nothing_is() -> None:
    assert not may_stop_for(replace(STOPS, preemption=None), BusyStart(0, (0, 1), True))


# ---- what a policy wants to share

SHARES = shared(
    stop_point([Several(1, 10.0, cores=2), Several(1, 10.0)], [[30.0, 40.0], [30.0, 0.0]], cores_free=[2, 2]),
    [0, ALONE],
    {0: 1, 1: 1, 2: 0},
    {(0, 1): 0.7, (1, 0): 0.6},
)
"""job 0, with two cores, may go beside what runs on GPUs 0 and 1; its own kind runs on GPU 2."""


def on_gpu_0(**columns: object) -> Observation:
    """The point with one figure of what is asked of a pair on GPU 0 changed, by name."""
    sharing, seen = SHARES.sharing, SHARES
    assert sharing is not None
    for name, value in columns.items():
        of = sharing if name in sharing._fields else seen
        column = getattr(of, name).copy()
        column[(0, 0) if column.ndim < 3 else (0, 0, seen.gpu_kind[0, 0])] = value
        if of is sharing:
            sharing = sharing._replace(**{name: column})
        else:
            seen = replace(seen, **{name: column})
    return replace(seen, sharing=sharing)


@pytest.mark.parametrize(
    ("start", "sound"),
    [
        ((0, (0,)), True),
        ((0, (1,)), True),
        ((0, (2,)), False),  # two of its kind can't run together
        ((0, (3,)), False),  # idle: that is no pair
        ((1, (0,)), False),  # it does not share
        ((0, (0, 1)), False),
        ((0, ()), False),
        ((0, (4,)), False),
        ((0, (-1,)), False),
        ((2, (0,)), False),
        ((-1, (0,)), False),
    ],
)
def test_who_may_go_beside_whom(start: tuple[int, tuple[int, ...]], sound: bool) -> None:
    assert may_start_busy(SHARES, BusyStart(*start, stops=False)) == sound


@pytest.mark.parametrize(
    "columns",
    [
        {"job_shareable": False},
        {"gpu_open": False},
        {"gpu_memory_left_mib": -1},
        {"job_gpu_memory_mib": 8001},
        {"node_cores_free": 1},
        {"node_memory_free_mib": -1},
        {"kind_duration_s": np.inf},
        {"job_waiting": False},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_each_condition_of_a_pair_counts_alone(columns: dict[str, object]) -> None:
    start = BusyStart(0, (0,), stops=False)
    assert may_start_busy(on_gpu_0(), start)
    assert not may_start_busy(on_gpu_0(**columns), start)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0)])
def test_a_pair_needs_figures_of_both(pair: tuple[int, int]) -> None:
    assert SHARES.sharing is not None
    kept = SHARES.sharing.kept.copy()
    kept[pair] = 0.0
    assert not may_share(replace(SHARES, sharing=SHARES.sharing._replace(kept=kept)), BusyStart(0, (0,), False))
    assert not may_share(replace(SHARES, sharing=None), BusyStart(0, (0,), False))


@pytest.mark.parametrize(("gpu", "sound"), [(0, True), (2, False)])
async def test_a_pair_that_may_not_be_is_not(gpu: int, sound: bool) -> None:
    guard = Guard(DEADLINE_S, structlog.get_logger())
    try:
        found = await guard.judge(Wants(BusyStart(0, (gpu,), False)), SHARES, virtual=False)
        assert (found.basis_of(0) is DecisionBasis.POLICY) == sound
        assert bool(found.busy) == sound
    finally:
        guard.close()
