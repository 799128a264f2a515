"""The limit on waits where running jobs can be stopped. Time 1000; what runs started a second ago."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.decide.policies.bounded_wait import Busy, bound, spared
from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.decide.policies.srtf import Srtf
from adlro.records.cluster import Cluster
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import Preemptible
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD_LIMIT_S, Observation
from adlro.workload.job_lists import WorkloadJob
from tests.policies import made
from tests.unit.decide.gang_points import HELD as GANG_HELD
from tests.unit.decide.gang_points import Several, action
from tests.unit.decide.stop_points import HELD, chosen, stop_point
from tests.unit.decide.test_bounded_wait_gangs import longest_s, small_for_ever
from tests.unit.sim.test_gang_physics import TURING, V100, cluster, job

INF = np.inf
OLD = Several(1, 50.0, submit_s=1.0)
"""Waits since 999 s."""
YOUNG = Several(1, 1.0, submit_s=999.0)


def bounded(ratio: float) -> Srtf:
    policy = Srtf()
    policy.wait_ratio = ratio
    return policy


def test_an_overdue_job_stops_what_is_shorter_but_was_submitted_later() -> None:
    seen = stop_point([OLD], [[5.0, 5.0]], running_submit_s=[990.0, 990.0], fixed=[1])
    assert chosen(bounded(INF), seen) == HELD
    # The limit is 2 x (50 + 50 + 1).
    assert chosen(bounded(2.0), seen) == (0, (0,), True)
    assert bounded(2.0).judge(seen).basis_of(0) is DecisionBasis.OVERDUE
    assert chosen(bounded(10.0), seen) == HELD
    # Of 16 GPUs it may have one even if another runs an older job; that one goes on, and nothing else can be stopped.
    older = stop_point([OLD], [[5.0] * 16], running_submit_s=[0.9] + [990.0] * 15, fixed=range(1, 16))
    assert chosen(bounded(2.0), older) == HELD


def test_it_goes_before_what_the_policy_would_start() -> None:
    seen = stop_point([OLD, YOUNG], [[30.0, 30.0]], running_submit_s=[980.0, 990.0])
    assert chosen(bounded(INF), seen)[0] == 1
    # Of two on one node the later submitted one.
    assert chosen(bounded(2.0), seen) == (0, (1,), True)


def test_a_policy_that_stops_nothing_reserves_as_before() -> None:
    seen = stop_point([OLD], [[5.0, 5.0]], running_submit_s=[990.0, 0.5])
    policy = made("sjf")
    policy.wait_ratio = 2.0
    assert action(policy.act(seen)[0].tolist()) == GANG_HELD


def test_it_stops_the_fewest_gpus_on_its_fastest_model() -> None:
    job = Several(1, (50.0, 40.0), submit_s=1.0)
    nodes = [[5.0], [5.0, 5.0], [5.0]]
    seen = stop_point([job], nodes, model=[0, 1, 1], runs=[(1, 2)], running_submit_s=[990.0] * 4)
    assert chosen(bounded(2.0), seen) == (0, (3,), True)
    seen = stop_point([job], nodes, model=[0, 1, 1], runs=[(1, 2)], running_submit_s=[990.0] * 4, fixed=[3])
    assert chosen(bounded(2.0), seen) == (0, (1,), True)
    seen = stop_point([job], nodes, model=[0, 1, 1], runs=[(1, 2)], running_submit_s=[990.0] * 4, fixed=[1, 2, 3])
    assert chosen(bounded(2.0), seen) == (0, (0,), True)


def test_an_overdue_running_job_is_not_stopped() -> None:
    # Its limit is 2 x (30 + 1 + 1): 30 s left, the young job's 1 s as the typical one, and an age of 1 s.
    seen = stop_point([YOUNG], [[30.0]], running_submit_s=[935.9])
    assert chosen(bounded(2.0), seen) == HELD
    assert chosen(bounded(2.0), stop_point([YOUNG], [[30.0]], running_submit_s=[936.1])) == (0, (0,), True)
    # What it has run counts if that is longer: 2 x (40 + 1 + 40).
    running: dict[str, Any] = {"running_submit_s": [837.9], "elapsed_s": [40.0]}
    assert chosen(bounded(2.0), stop_point([YOUNG], [[30.0]], **running)) == HELD
    running = {"running_submit_s": [838.1], "elapsed_s": [40.0]}
    assert chosen(bounded(2.0), stop_point([YOUNG], [[30.0]], **running)) == (0, (0,), True)


def test_the_observation_itself_is_left_as_it_was() -> None:
    seen = stop_point([YOUNG], [[30.0]], running_submit_s=[1.0])
    assert seen.preemption is not None
    changed = spared(seen, 2.0)
    assert changed.preemption is not None
    assert seen.preemption.gpu_stoppable.tolist() == [[True]]
    assert changed.preemption.gpu_stoppable.tolist() == [[False]]
    assert spared(replace(seen, preemption=None), 2.0).preemption is None


def test_an_overdue_job_that_started_in_this_instant_is_not_stopped_in_turn() -> None:
    # As after the first test: the old job holds the GPU since now, and would be stopped for the young one.
    seen = stop_point([YOUNG], [[50.0]], running_submit_s=[1.0], elapsed_s=[0.0])
    assert chosen(bounded(INF), seen) == HELD


def test_on_reserved_nodes_nothing_starts_by_stopping_either() -> None:
    # The first overdue job can't stop what runs on node 0, and reserves it: its start is furthest back.
    first = Several(2, (50.0, INF), submit_s=0.0, spread_speed=0.0)
    nodes = [[40.0, 40.0], [40.0, 40.0], [40.0]]
    more: dict[str, Any] = {"elapsed_s": [9.0, 9.0, 1.0, 1.0, 1.0], "model": [0, 0, 1], "fixed": [1, 3]}
    seen = stop_point([first, YOUNG], nodes, running_submit_s=[980.0] * 5, **more)
    assert chosen(bounded(INF), seen)[0] == 1
    busy: dict[int, Busy] = {0: BusyStart(1, (0,), stops=True)}
    scores = np.zeros(len(seen.table.job))
    assert bound(seen, scores, 2.0, dict(busy), may_stop=True).tolist() == [True]
    elsewhere: dict[int, Busy] = {0: BusyStart(1, (2,), stops=True)}
    kept = dict(elsewhere)
    assert bound(seen, scores, 2.0, kept, may_stop=True).tolist() == [False]
    assert kept == elsewhere


def test_a_second_overdue_job_stops_nothing_on_the_nodes_of_the_first() -> None:
    # Of 29 GPUs three may be theirs. The first one waits for node 0, and for the second there is node 1 or 2.
    first = Several(2, (50.0, INF, INF), submit_s=0.0, spread_speed=0.0)
    second = Several(1, (10.0, 90.0, INF), submit_s=0.5)
    nodes = [[40.0, 40.0], [40.0, 40.0], [40.0], *[[40.0] * 4 for _ in range(6)]]
    elapsed_s = [9.0, 9.0, *[1.0] * 27]
    models = [0, 0, 1, *[2] * 6]
    for fixed, expected in (((1, 3), (1, (2,), True)), ((1, 2, 3), (1, (4,), True)), ((1, 2, 3, 4), HELD)):
        cannot = [*fixed, *range(5, 29)]
        seen = stop_point(
            [first, second], nodes, model=models, elapsed_s=elapsed_s, running_submit_s=[980.0] * 29, fixed=cannot
        )
        assert chosen(bounded(2.0), seen) == expected


class Sharing(Policy):
    """Puts the young job beside another."""

    name = "sharing"
    shares = True

    def weigh(self, observation: Observation) -> Judgement:
        judgement = Judgement(np.full(len(observation.table.job), -INF))
        judgement.busy[0] = BusyStart(1, (0,), stops=False)
        return judgement


def test_a_start_beside_another_gives_way_to_an_overdue_job_as_well() -> None:
    seen = stop_point([OLD, YOUNG], [[5.0, 0.0]], running_submit_s=[990.0, 0.0])
    policy = Sharing()
    policy.wait_ratio = INF
    assert chosen(policy, seen) == (1, (0,), False)
    policy.wait_ratio = 2.0
    assert chosen(policy, seen) == (0, (1,), False)
    full = stop_point([OLD, YOUNG], [[5.0]], running_submit_s=[990.0])
    assert chosen(policy, full) == HELD


# ---- the bound, tried


class Stopping(Policy):
    """The last submitted job starts, of those that can; else it stops the first submitted job that runs."""

    name = "stopping"
    preempts = True

    def weigh(self, observation: Observation) -> Judgement:
        judgement = Judgement(observation.table.of_job(observation.job_submit_s))
        stops = observation.preemption
        one_gpu = observation.job_waiting[0]
        if observation.gangs is not None:
            one_gpu = one_gpu & (observation.gangs.gpu_count[0] == 1)
        if len(observation.table.job) or stops is None or not one_gpu.any():
            return judgement
        job = int(np.flatnonzero(one_gpu)[-1])
        can = np.flatnonzero(stops.gpu_stoppable[0] & np.isfinite(observation.durations_s(0, job)))
        if len(can):
            oldest = can[np.argmin(observation.gpu_submit_s[0, can])]
            judgement.busy[0] = BusyStart(job, (int(oldest),), stops=True)
        return judgement


TRIED: dict[str, Callable[[], Policy]] = {
    "srtf": Srtf,
    "las_preemptive": lambda: LasPreemptive(8.0),
    "stopping": Stopping,
}


def stoppable(jobs: list[WorkloadJob], restart_s: float = 0.5, lost_s: float = 0.0) -> list[WorkloadJob]:
    return [replace(each, preemptible=Preemptible(restart_s=restart_s, lost_s=lost_s)) for each in jobs]


def played(there: Cluster, jobs: list[WorkloadJob], policy: Policy, ratio: float) -> BatchOutcome:
    policy.wait_ratio = ratio
    simulator = BatchSimulator(there, pack_jobs([jobs], there), preempts=True)
    while len(simulator.active):
        judgement = policy.judge(seen := simulator.observe())
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return simulator.outcome()


def check_bound(there: Cluster, jobs: list[WorkloadJob], outcome: BatchOutcome, ratio: float) -> None:
    """Of each job's last start; an attempt lasts no longer than its restart and all its work."""
    arrays = pack_jobs([jobs], there)
    submit_s, start_s = arrays.submit_s[0], outcome.start_s[0]
    most_s = longest_s(arrays) + float(arrays.restart_s.max())
    for number in range(len(jobs)):
        late_s = submit_s[number] + 3 * ratio * most_s + max(HOLD_LIMIT_S, 3 * ratio * most_s)
        ahead = int(((submit_s <= submit_s[number]) & (start_s > late_s)).sum()) - 1
        assert start_s[number] <= late_s + 2 * (max(ahead, 0) + 1) * most_s + 1e-6, jobs[number]


def test_a_long_job_that_short_ones_stop_for_ever_ends_with_a_bound() -> None:
    there = cluster((V100, 1))
    short = [job(1, float(at), 0.5) for at in np.arange(1.0, 400.0, 0.8)]
    # It loses all that it has done at each stop.
    jobs = sorted(stoppable([job(1, 0.0, 12.0), *short], 0.4, 12.0), key=lambda each: each.submit_s)
    free, kept = (played(there, jobs, Stopping(), ratio) for ratio in (INF, 3.0))
    assert free.end_s[0, 0] > 400.0
    check_bound(there, jobs, kept, 3.0)
    assert kept.end_s[0, 0] < 250.0


@pytest.mark.parametrize("name", TRIED)
def test_a_gang_of_eight_starts_behind_small_jobs_for_ever(name: str) -> None:
    there = cluster((V100, 4), (V100, 4))
    jobs = stoppable(sorted([*small_for_ever(), job(8, 10.0, 12.0)], key=lambda each: each.submit_s))
    check_bound(there, jobs, played(there, jobs, TRIED[name](), 2.0), 2.0)


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("seed", range(8))
def test_no_job_of_any_list_starts_for_the_last_time_beyond_the_bound(name: str, seed: int) -> None:
    rng = np.random.default_rng(300 + seed)
    models = [V100, TURING]
    there = cluster(*[(models[int(rng.integers(2))], int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 5)))])
    jobs = [
        job(
            int(rng.choice([1, 1, 1, 2, 3, 4])),
            round(float(rng.uniform(0.0, 60.0)), 3),
            float(rng.choice([0.5, 1.0, 3.0, 10.0, 30.0])),
        )
        for _ in range(40)
    ]
    most = max(len(node.gpus) for node in there.nodes)
    jobs = sorted((each for each in jobs if each.gpu_count <= most), key=lambda each: each.submit_s)
    jobs = [each if rng.random() < 0.2 else stoppable([each], float(rng.choice([0.0, 2.0])))[0] for each in jobs]
    ratio = float(rng.choice([0.0, 0.5, 2.0]))
    outcome = played(there, jobs, TRIED[name](), ratio)
    assert not outcome.stuck.any()
    check_bound(there, jobs, outcome, ratio)
