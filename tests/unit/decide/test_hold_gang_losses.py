"""hold_gang's reservations where GPUs are lost and come back: worked out anew, kept for nobody in vain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.reservation import may_enter, reservation_of
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD, Observation
from tests.unit.decide.gang_points import Several, point
from tests.unit.decide.test_gang_courses import MOST_DECISIONS, check_action
from tests.unit.sim.test_gang_physics import TURING, V100, check_rows, cluster, job

EAGER = replace(ONE_SETTING, rho=0.2)
"""Reservations for gangs that have hardly waited, so that most decisions have one."""


def holder_after(seen: Observation, policy: HoldGang) -> int:
    reserve = policy.judge(seen).reserve
    assert reserve is not None
    return int(reserve[0])


@pytest.mark.parametrize("ratio", [np.inf, 0.5, 2.0])
def test_reservations_of_random_courses_follow_what_is_lost_and_comes_back(ratio: float) -> None:
    assert sum(reservations_of_course(seed, ratio) for seed in range(20)) > 100


def reservations_of_course(seed: int, ratio: float) -> int:
    """Runs one random course to its end; returns the number of decisions with a reservation."""
    rng = np.random.default_rng(900 + seed)
    models = [V100, TURING]
    sizes = [(models[int(rng.integers(2))], int(rng.integers(1, 5))) for _ in range(int(rng.integers(2, 6)))]
    there = cluster(*sizes, cores=int(rng.choice([6, 16, 64])))
    gpus = sum(size for _, size in sizes)
    jobs = [
        job(
            int(rng.choice([1, 1, 2, 3, 4, 8])),
            float(number // 3),
            float(rng.choice([2.0, 5.0, 9.0])),
            cpu_cores=int(rng.choice([0, 1, 2, 4])),
            max_node_count=int(rng.choice([0, 0, 1, 2])),
            gpu_models=[(), (), (V100,), (TURING,)][int(rng.integers(4))],
        )
        for number in range(30)
    ]
    changes = []
    for _ in range(int(rng.integers(1, 12))):
        gpu, lost_s = int(rng.integers(gpus)), float(rng.uniform(0.0, 60.0))
        changes += [(lost_s, gpu, 0.0), (lost_s + float(rng.uniform(0.5, 40.0)), gpu, 1.0)]
    back_s = 200.0  # by then all are back
    changes += [(back_s, gpu, 1.0) for gpu in range(gpus)]
    policy = HoldGang(EAGER)
    policy.wait_ratio = ratio
    made = BatchSimulator(there, pack_jobs([jobs], there), gpu_changes=[sorted(changes)])
    held = 0
    for _ in range(MOST_DECISIONS):
        if not len(made.active):
            break
        seen = made.observe()
        if seen.gangs is not None:
            check_rows(seen)
        check_action(seen, policy)
        judgement = policy.judge(seen)
        action = policy.choose(seen, judgement)
        if not seen.hold_allowed[0] and len(seen.table.job):
            assert action[0, 0] != HOLD  # nothing runs or will come: what could run on what is left does
        holder = HOLD if judgement.reserve is None else int(judgement.reserve[0])
        if holder != HOLD:
            held += 1
            kept = reservation_of(seen, 0, holder)
            assert kept is not None  # never for a job that the GPUs present can't hold
            assert kept.start_s < np.inf
            present = np.isfinite(seen.gpu_remaining_s[0])
            assert set(np.flatnonzero(kept.nodes)) <= set(seen.gpu_node[0, present].tolist())
            chosen = (seen.table.job == action[0, 0]) & (seen.table.gpus[:, 0] == action[0, 1])
            if ratio == np.inf and seen.hold_allowed[0] and action[0, 0] not in (HOLD, holder):
                assert may_enter(seen, 0, kept)[chosen].any()
            if ratio == np.inf and kept.start_s == seen.time_s[0]:
                assert action[0, 0] == holder  # its time has come
        made.act(action, judgement.reserve)
    assert not len(made.active), f"seed {seed}: no end"
    outcome = made.outcome()
    finished = {run.job for run in outcome.runs(0) if run.completed}
    for number in set(range(len(jobs))) - finished:  # no empty cluster could hold it: alone it is stuck at once
        assert BatchSimulator(there, pack_jobs([[jobs[number]]], there)).stuck[0]
    return held


def test_a_gang_that_lost_gpus_make_impossible_leaves_the_reservation_to_the_next_of_equal_wait() -> None:
    # A GPU of node 0 is lost: four on one node are nowhere, three are once it is empty.
    nodes = [[np.inf, 9.0, 9.0, 0.0], [0.0, 9.0]]
    alike = [Several(4, 5.0, spread_speed=0.0, max_nodes=1), Several(3, 5.0, spread_speed=0.0, max_nodes=1)]
    small = Several(1, 50.0, submit_s=999.0)
    for jobs, wanted in (([*alike, small], 1), ([*alike[::-1], small], 0)):
        seen = point(jobs, nodes)
        assert reservation_of(seen, 0, 1 - wanted) is None
        assert holder_after(seen, HoldGang()) == wanted


def test_a_reservation_ends_with_the_loss_of_what_it_needs_and_comes_with_its_return() -> None:
    jobs = [Several(4, 5.0, spread_speed=0.0, max_nodes=1), Several(1, 50.0, submit_s=999.0)]
    whole, broken = [[9.0, 9.0, 9.0, 0.0]], [[np.inf, 9.0, 9.0, 0.0]]
    assert holder_after(point(jobs, whole), HoldGang()) == 0
    seen = point(jobs, broken, reserved=0)
    assert holder_after(seen, HoldGang()) == HOLD
    assert HoldGang().act(seen)[0, 0] == 1  # and the other job need not wait for it
    assert holder_after(point(jobs, whole, reserved=-1), HoldGang()) == 0
