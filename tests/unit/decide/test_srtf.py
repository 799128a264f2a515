"""The policy that stops what is longer: by hand, then on lists drawn at random."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.policies.srtf import START, Srtf, SrtfSettings
from adlro.decide.stops import fill_stops, room_for_stops
from adlro.errors import InvalidInput
from adlro.state.observation import Observation
from tests.unit.decide.gang_points import Several
from tests.unit.decide.stop_points import HELD, Start, chosen, stop_point

INF = np.inf
JOB = Several(1, 5.0)


def srtf(factor: float = 1.05) -> Srtf:
    policy = Srtf(SrtfSettings(factor=factor))
    policy.wait_ratio = INF
    return policy


def test_the_longest_is_stopped() -> None:
    assert chosen(srtf(), stop_point([JOB], [[9.0, 8.0], [20.0, 7.0]])) == (0, (2,), True)


def test_what_is_longer_by_less_than_the_factor_and_its_restart_goes_on() -> None:
    # 1.05 x (5 + 1) = 6.3.
    assert chosen(srtf(), stop_point([JOB], [[6.3]])) == HELD
    assert chosen(srtf(), stop_point([JOB], [[6.301]])) == (0, (0,), True)
    assert chosen(srtf(), stop_point([JOB], [[6.301]], restart_s=2.0)) == HELD
    assert chosen(srtf(factor=2.0), stop_point([JOB], [[12.0]])) == HELD
    assert chosen(srtf(factor=2.0), stop_point([JOB], [[12.1]])) == (0, (0,), True)


def test_what_can_not_be_stopped_is_not() -> None:
    assert chosen(srtf(), stop_point([JOB], [[9.0, 8.0], [20.0, 7.0]], fixed=[2])) == (0, (0,), True)
    assert chosen(srtf(), stop_point([JOB], [[9.0, INF]], fixed=[0])) == HELD
    seen = stop_point([JOB], [[9.0, 8.0]])
    assert chosen(srtf(), replace(seen, preemption=None)) == HELD


def test_what_started_at_this_instant_is_not_stopped() -> None:
    assert chosen(srtf(), stop_point([JOB], [[30.0, 20.0]], elapsed_s=[0.0, 1.0])) == (0, (1,), True)


def test_what_is_free_is_used_first_and_no_more_is_stopped_than_needed() -> None:
    gang = Several(2, 5.0)
    assert chosen(srtf(), stop_point([gang], [[9.0, 8.0], [0.0, 7.0]])) == (0, (2, 3), True)
    # Of 9, 8 and 7 the two longest.
    assert chosen(srtf(), stop_point([gang], [[9.0, 7.0, 8.0]])) == (0, (0, 2), True)
    # The gang of 8 s alone is enough; it is found after the one of 9 s, which then is spared.
    assert chosen(srtf(), stop_point([gang], [[9.0, 8.0, 8.0]], runs=[(1, 2)])) == (0, (1, 2), True)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # Shares of jobs lost, with d 5 and c 1: 6/9 + 6/9 beside 6/40 + 6/7.
        ([[9.0, 9.0], [40.0, 7.0]], (0, (2, 3), True)),
        # 6/9 + 6/9 beside 6/40 + 6/5, which is not longer than 1.05 x 6.
        ([[9.0, 9.0], [40.0, 5.0]], (0, (0, 1), True)),
        # On a tie the lower node.
        ([[9.0, 9.0], [9.0, 9.0]], (0, (0, 1), True)),
        ([[5.0, 9.0], [9.0, 6.0]], HELD),
    ],
)
def test_the_node_of_least_loss_is_taken(nodes: list[list[float]], expected: Start) -> None:
    assert chosen(srtf(), stop_point([Several(2, 5.0, spread_speed=0.0)], nodes)) == expected


@pytest.mark.parametrize(("left_s", "slow_s"), [(90.0, 7.0), (9.2, 6.0)])
def test_of_all_models_that_of_least_loss_is_taken(left_s: float, slow_s: float) -> None:
    """Shares of jobs lost: 6/9 on the fast GPU, 8/90 on the slow one; or 7/9.2, where the longer run costs more."""
    seen = stop_point([Several(1, (5.0, slow_s))], [[9.0], [left_s]], model=[0, 1])
    least = int((slow_s + 1.0) / left_s < 6.0 / 9.0)
    assert chosen(srtf(), seen) == (0, (least,), True)
    by_cost = Srtf(SrtfSettings(by_loss=False))
    assert chosen(by_cost, seen) == (0, (0,), True)


def test_a_gang_is_stopped_on_all_its_nodes() -> None:
    seen = stop_point([Several(2, 5.0, spread_speed=0.0)], [[9.0, 12.0], [12.0, 3.0]], runs=[(1, 2)])
    assert chosen(srtf(), seen) == (0, (0, 1), True)
    # On two nodes: node 0 loses 6/9 + 6/12, and then GPU 2 is free; GPU 3 must be stopped as well.
    gang = Several(4, 2.0, spread_speed=0.0)
    seen = stop_point([gang], [[9.0, 12.0], [12.0, 4.0]], runs=[(1, 2)])
    assert chosen(srtf(), seen) == (0, (0, 1, 2, 3), True)
    seen = stop_point([gang], [[9.0, 12.0], [12.0, 3.0]], runs=[(1, 2)])
    assert chosen(srtf(), seen) == HELD


def test_a_set_of_several_nodes_takes_those_of_least_loss() -> None:
    gang = Several(4, 5.0, spread_speed=0.0)
    nodes = [[9.0, 9.0], [30.0, 30.0], [7.0, 0.0], [8.0, 8.0]]
    # 12/9, 12/30, 6/7, 12/8: nodes 1 and 2.
    assert chosen(srtf(), stop_point([gang], nodes)) == (0, (2, 3, 4, 5), True)
    # A gang on nodes 0 and 3 frees half of both: after node 1, node 0 loses 6/9 + 6/20.
    nodes = [[9.0, 20.0], [30.0, 30.0], [7.0, 7.0], [20.0, 8.0]]
    assert chosen(srtf(), stop_point([gang], nodes, runs=[(1, 6)])) == (0, (0, 1, 2, 3), True)


def test_cores_and_memory_of_the_stopped_count_and_only_those() -> None:
    # Node 0 has no core left; the job of 40 s holds 1 core, that of 30 s 4.
    job = Several(1, 5.0, cores=4)
    seen = stop_point([job], [[40.0, 30.0]], cores_free=[0], cores_held=[1, 4])
    assert chosen(srtf(), seen) == (0, (1,), True)
    seen = stop_point([job], [[40.0, 30.0]], cores_free=[3], cores_held=[1, 4])
    assert chosen(srtf(), seen) == (0, (0,), True)
    # An idle GPU without cores: the stopped job's own GPU is taken, as only such jobs are stopped.
    seen = stop_point([job], [[0.0, 30.0]], cores_free=[0], cores_held=[0, 4])
    assert chosen(srtf(), seen) == (0, (1,), True)
    # Both would have to be stopped for one GPU, which no start can say.
    seen = stop_point([job], [[40.0, 30.0]], cores_free=[0], cores_held=[2, 2])
    assert chosen(srtf(), seen) == HELD


def test_what_can_start_on_idle_gpus_goes_before_every_stop() -> None:
    seen = stop_point([JOB], [[0.0, 30.0], [30.0, 30.0]])
    assert chosen(srtf(), seen) == (0, (0,), False)
    # Model 1 is 1.2 times slower: accepted, although the fast GPU could be had. 2.1 times slower it is refused.
    at = lambda slow_s: stop_point([Several(1, (5.0, slow_s))], [[30.0], [0.0]], model=[0, 1])  # noqa: E731
    assert chosen(srtf(), at(6.0)) == (0, (1,), False)
    assert chosen(srtf(), at(10.5)) == (0, (0,), True)
    # Another job that fits goes first; the gang then stops what runs.
    jobs = [Several(2, 1.0, spread_speed=0.0), Several(1, 9.0)]
    assert chosen(srtf(), stop_point(jobs, [[0.0, 30.0], [40.0, 30.0]])) == (1, (0,), False)
    assert chosen(srtf(), stop_point(jobs[:1], [[9.0, 30.0], [40.0, 30.0]])) == (0, (2, 3), True)


def test_of_a_gang_and_a_single_job_alike_the_single_one_is_stopped() -> None:
    # 2 x 6/21 beside 6/20.
    assert chosen(srtf(), stop_point([JOB], [[21.0, 21.0], [20.0, 9.0]], runs=[(0, 1)])) == (0, (2,), True)
    # Beside 6/9 the gang of 21 s loses less.
    assert chosen(srtf(), stop_point([JOB], [[21.0, 21.0], [9.0, 9.0]], runs=[(0, 1)])) == (0, (0,), True)


def test_the_shortest_goes_first_and_too_slow_a_model_is_refused() -> None:
    jobs = [Several(1, 8.0), Several(1, 5.0), Several(1, 6.0)]
    assert chosen(srtf(), stop_point(jobs, [[30.0]])) == (1, (0,), True)
    # Twice as slow is the limit; the fast GPU runs what is not longer.
    slow = lambda times: stop_point([Several(1, (5.0, 5.0 * times))], [[5.5], [90.0]], model=[0, 1])  # noqa: E731
    assert chosen(srtf(), slow(1.4)) == (0, (1,), True)
    assert chosen(srtf(), slow(2.1)) == HELD
    # theta: it is expected to end sooner where it waits 0.75 x 5.5 s for the fast one.
    assert chosen(srtf(), stop_point([Several(1, (5.0, 9.9))], [[1.0], [90.0]], model=[0, 1])) == HELD


def test_the_duration_on_the_slowest_kind_counts() -> None:
    # Two GPUs of one model, on which the job takes 5 and 7 s.
    seen = stop_point([JOB], [[7.5], [7.5]])
    kinds = np.array([[[5.0, 7.0]]])
    seen = replace(seen, gpu_kind=np.array([[0, 1]]), kind_duration_s=kinds)
    assert chosen(srtf(), seen) == HELD
    seen = replace(seen, gpu_remaining_s=np.array([[7.5, 8.5]]))
    assert chosen(srtf(), seen) == (0, (1,), True)


def test_without_what_can_be_stopped_it_starts_as_hold_gang_without_reservations() -> None:
    rule = HoldGang(START)
    rule.wait_ratio = INF
    for jobs, nodes in (
        ([Several(2, 5.0), Several(1, 3.0)], [[0.0, 0.0, 4.0], [0.0, 7.0]]),
        ([Several(2, 5.0), Several(4, 1.0)], [[0.0, 9.0], [0.0, 0.0]]),
    ):
        seen = replace(stop_point(jobs, nodes), preemption=None)
        np.testing.assert_array_equal(srtf().judge(seen).scores, rule.judge(seen).scores)


def test_one_gpu_jobs_are_judged_alike_with_and_without_the_figures_of_gangs() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        nodes = [list(np.where(rng.random(4) < 0.3, 0.0, rng.exponential(20.0, 4))) for _ in range(3)]
        jobs = [Several(1, tuple(rng.exponential(10.0, 2) + 1.0)) for _ in range(4)]
        seen = stop_point(jobs, nodes, model=[0, 0, 1])
        assert chosen(srtf(), seen) == chosen(srtf(), replace(seen, gangs=None))


def test_settings_that_would_go_round_in_circles_are_refused() -> None:
    with pytest.raises(InvalidInput, match="factor"):
        SrtfSettings(factor=0.9)
    with pytest.raises(InvalidInput, match="rho"):
        SrtfSettings(start=replace(START, rho=1.0))
    for name in ("depth", "alpha_deep"):
        with pytest.raises(InvalidInput, match="stops do not look at the queue"):
            SrtfSettings(start=replace(START, **{name: 2.0}))


def test_runs_are_numbered_whatever_numbers_stand_for_them() -> None:
    seen = stop_point([JOB], [[9.0, 8.0, 9.0], [0.0, 7.0]], runs=[(0, 2)])
    assert seen.preemption is not None
    outlook = _outlook(seen)
    stops = room_for_stops(outlook, seen.gpu_idle[0], seen.gpu_kind[0], 1)
    gpu_run = np.array([123_456_789_012, 11, 123_456_789_012, -1, 22])
    none = np.zeros(5)
    runs = fill_stops(gpu_run, seen.preemption.gpu_stoppable[0], outlook.gpu_free_s, none, none, none, stops)
    assert runs == 3
    assert stops.run.tolist() == [0, 1, 0, -1, 2]
    assert stops.first[:4].tolist() == [0, 2, 3, 4]
    assert stops.gpus[:4].tolist() == [0, 2, 1, 4]
    assert stops.node_first.tolist() == [0, 2, 3]
    assert stops.node_run[:3].tolist() == [0, 1, 2]


def _outlook(seen: Observation):
    from adlro.decide.reservation import outlook_of

    return outlook_of(seen, 0)


def drawn_point(rng: np.random.Generator) -> Observation:
    """Three models, nodes of two to four GPUs, jobs of up to six, cores that bind."""
    sizes = [int(rng.integers(2, 5)) for _ in range(5)]
    remaining, runs, held, begin = [], [], [], 0
    for size in sizes:
        left = np.where(rng.random(size) < 0.25, 0.0, np.round(rng.exponential(15.0, size) + 0.5, 1))
        if size > 2 and rng.random() < 0.5 and left[0] > 0.0:
            left[1] = left[0]
            runs.append((begin, begin + 1))
        remaining.append(left.tolist())
        held += np.where(left > 0.0, 2, 0).tolist()
        begin += size
    jobs = [
        Several(
            int(rng.choice([1, 1, 2, 4, 6])),
            tuple(float(x) for x in np.round(rng.exponential(8.0) * rng.choice([1.0, 1.3, 1.8], 3) + 0.5, 1)),
            cores=int(rng.integers(1, 4)),
            submit_s=float(number),
        )
        for number in range(4)
    ]
    return stop_point(
        jobs,
        remaining,
        model=[0, 0, 1, 1, 2],
        runs=runs,
        fixed=[gpu for gpu in range(begin) if rng.random() < 0.1],
        cores_free=[int(rng.integers(0, 4)) for _ in sizes],
        cores_held=held,
        restart_s=float(rng.choice([0.0, 0.3, 3.0])),
    )


@pytest.mark.parametrize("seed", range(300))
def test_a_stop_is_allowed_needed_and_strictly_longer(seed: int) -> None:
    seen = drawn_point(np.random.default_rng(seed))
    job, gpus, stops = chosen(srtf(), seen)
    if not stops:
        return
    assert seen.gangs is not None
    assert seen.preemption is not None
    asked, run = seen.gangs, seen.gangs.gpu_run[0]
    assert len(gpus) == asked.gpu_count[0, job]
    assert len({int(seen.gpu_model[0, gpu]) for gpu in gpus}) == 1
    packed = asked.nodes[0, job, seen.gpu_model[0, gpus[0]]] if len(gpus) > 1 else 1
    assert len({int(seen.gpu_node[0, gpu]) for gpu in gpus}) <= packed
    gone = {int(run[gpu]) for gpu in gpus if run[gpu] >= 0}
    assert gone
    duration_s = max(seen.durations_s(0, job)[list(gpus)])
    for victim in gone:
        its = np.flatnonzero(run == victim)
        assert seen.preemption.gpu_stoppable[0, its].all()
        assert seen.gpu_remaining_s[0, its[0]] > 1.05 * (duration_s + seen.preemption.gpu_restart_s[0, its[0]])
    assert _fits(seen, job, gpus, gone)


def _fits(seen: Observation, job: int, gpus: tuple[int, ...], gone: set[int]) -> bool:
    run = seen.preemption.gpu_run[0]  # type: ignore[union-attr]
    free = [gpu for gpu in range(len(run)) if seen.gpu_idle[0, gpu] or int(run[gpu]) in gone]
    cores = seen.node_cores_free[0].astype(int).tolist()
    for gpu in range(len(run)):
        if int(run[gpu]) in gone:
            cores[int(seen.gpu_node[0, gpu])] += int(seen.gpu_cores_held[0, gpu])
    for gpu in gpus:
        cores[int(seen.gpu_node[0, gpu])] -= int(seen.job_cores[0, job])
    return set(gpus) <= set(free) and all(left >= 0 for left in cores)


@pytest.mark.slow
def test_a_decision_is_quick_on_large_full_clusters() -> None:
    for nodes, most_ms in ((64, 3.0), (256, 12.0)):  # three times what is measured
        rng = np.random.default_rng(nodes)
        remaining = [list(np.round(rng.exponential(20.0, 4) + 0.5, 1)) for _ in range(nodes)]
        jobs = [
            Several(int(rng.choice([1, 2, 4, 8])), float(np.round(rng.exponential(18.0) + 1.0, 2)), cores=0)
            for _ in range(1000)
        ]
        seen = stop_point(jobs, remaining)
        spent = []
        for _ in range(12):
            began = time.process_time()
            srtf().judge(seen)
            spent.append(time.process_time() - began)
        assert sorted(spent)[3] * 1e3 < most_ms
