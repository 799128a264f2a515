"""Jobs that are stopped for others: the batched simulator and the oracle agree, equal floats."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies.sjf import Sjf
from adlro.sim.batch import BatchOutcome, BatchSimulator, Run
from adlro.state.observation import HOLD
from tests.oracle.acts import anything
from tests.oracle.cluster import Rule
from tests.oracle.instances import draw_instance
from tests.oracle.records import Change, Choice, Gpu, Instance, Job, Node
from tests.oracle.test_hand_worked import gang, nodes_of, script
from tests.unit.sim.against_oracle import MODELS, cluster_of, compare_choices, job_arrays, simulator_of
from tests.volume import cases

BATCH = 50
START_COSTS_S = (0.0, 0.7, 2.0)
MIN_RUNS_S = (0.0, 0.0, 1.5)


def draw_batch(seed: int, *, count: int = BATCH, gangs: bool = True, max_jobs: int = 12) -> list[Instance]:
    """Instances with one start cost."""
    cost_s = START_COSTS_S[seed // count % len(START_COSTS_S)]
    drawn = (draw_instance(seed + i, gangs=gangs, max_jobs=max_jobs, stops=True) for i in range(count))
    return [replace(instance, start_cost_s=cost_s) for instance in drawn]


def rules_for(seed: int, count: int) -> list[Rule]:
    draw = random.Random(seed)
    hold, stop = draw.choice((0.05, 0.2, 0.4)), draw.choice((0.3, 0.6, 0.9))
    return [anything(seed + i, hold, stop, moves=False) for i in range(count)]


def agree(seed: int, *, asks: bool = True, count: int = BATCH, **more) -> int:
    """Returns the number of stops."""
    batch = draw_batch(seed, count=count, **more)
    min_run_s = MIN_RUNS_S[seed // count % len(MIN_RUNS_S)]
    outcome = compare_choices(batch, rules_for(seed, count), asks_stops=asks, min_run_s=min_run_s)
    return int(outcome.stops.sum())


@pytest.mark.parametrize("seed", range(0, 4 * BATCH, BATCH))
def test_jobs_are_stopped_in_the_same_way(seed):
    assert agree(seed) > BATCH / 4


def test_jobs_of_one_gpu_are_stopped_in_the_same_way():
    assert agree(0, gangs=False) > BATCH / 4


def test_a_policy_that_is_asked_only_where_something_fits_may_stop_too():
    assert agree(0, asks=False) > BATCH / 4


@pytest.mark.parametrize("actions", [3, 8])
def test_a_list_that_begins_where_jobs_were_stopped_goes_the_same_way(actions):
    for seed in range(0, 4 * BATCH, BATCH):
        batch = draw_batch(seed)
        before = rules_for(-1 - seed, BATCH), actions
        compare_choices(batch, rules_for(seed, BATCH), before=before, asks_stops=True)


def test_stops_that_are_illegal_are_refused_and_change_nothing():
    for seed in range(60):
        compare_choices(draw_batch(seed, count=1), rules_for(seed, 1), tries_illegal=True, asks_stops=True)


# ---- the cases of tests/oracle/test_hand_worked.py, where the times are worked out


def run(
    machines: tuple[tuple[Node, ...], tuple[Gpu, ...]],
    jobs: Sequence[Job],
    rule: Rule,
    *,
    changes: Sequence[tuple[float, int, float]] = (),
    start_cost_s: float = 0.0,
) -> BatchOutcome:
    instance = Instance(*machines, tuple(jobs), tuple(Change(*change) for change in changes), start_cost_s)
    return compare_choices([instance], [rule], asks_stops=True)


def course(outcome: BatchOutcome) -> list[tuple[float, float, tuple[int, ...]]]:
    gpus = [tuple(gpu for gpu in row if gpu >= 0) for row in outcome.gpus[0].tolist()]
    return list(zip(outcome.start_s[0].tolist(), outcome.end_s[0].tolist(), gpus, strict=True))


def test_stop_restore_finish():
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0, lost_s=1.0), gang(1, 4, 3)]
    rule = script((0, Choice(0, (0,))), (4, Choice(1, (0,), stop=True)), (7.5, Choice(0, (0,))))
    outcome = run(nodes_of(1), jobs, rule, start_cost_s=0.5)
    assert course(outcome) == [(7.5, 17.5, (0,)), (4, 7.5, (0,))]
    assert list(outcome.runs(0)) == [
        Run(0, (0,), 0, 4, completed=False, stopped=True),
        Run(1, (0,), 4, 7.5, completed=True),
        Run(0, (0,), 7.5, 17.5, completed=True),
    ]
    assert outcome.busy_s().tolist() == [17.5]


def test_progress_counts_at_the_speed_that_it_had():
    # Here B takes A's GPU at 4, and A goes on at once on the other.
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0, lost_s=1.0), gang(1, 4, 1)]
    rule = script((0, Choice(0, (0,))), (4, Choice(1, (0,), stop=True)), (4, Choice(0, (1,))))
    assert run(nodes_of(2), jobs, rule, changes=[(2, 0, 0.5)], start_cost_s=0.5).end_s[0, 0] == 15
    # If the GPU is lost at 4, nothing was kept: 4 + 0.5 + 10.
    rule = script((0, Choice(0, (0,))), (4, Choice(0, (1,))))
    outcome = run(nodes_of(2), jobs, rule, changes=[(2, 0, 0.5), (4, 0, 0.0)], start_cost_s=0.5)
    assert outcome.end_s[0, 0] == 14.5


def test_a_stop_never_loses_more_than_the_attempt_has_done():
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0, lost_s=5.0), gang(1, 2, 1), gang(1, 7, 1)]
    rule = script(
        (0, Choice(0, (0,))),
        (2, Choice(1, (0,), stop=True)),
        (3, Choice(0, (0,))),
        (7, Choice(2, (0,), stop=True)),
        (8, Choice(0, (0,))),
    )
    outcome = run(nodes_of(1), jobs, rule)
    assert course(outcome)[0] == (8, 20, (0,))
    assert (outcome.stops[0], outcome.attempts[0, 0]) == (2, 3)


def test_whoever_restores_is_not_stopped():
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0), gang(1, 1, 1), gang(1, 3, 1), gang(1, 5, 1)]
    begin = (0, Choice(0, (0,))), (1, Choice(1, (0,), stop=True)), (2, Choice(0, (0,)))
    rule = script(*begin, (5, Choice(3, (0,), stop=True)), (6, Choice(0, (0,))))
    assert run(nodes_of(1), jobs, rule).end_s[0, 0] == 16
    # It restores until 4.
    arrays = job_arrays([Instance(*nodes_of(1), tuple(jobs))])
    simulator = BatchSimulator(cluster_of(Instance(*nodes_of(1), ())), arrays, gpu_models=MODELS, preempts=True)
    for job, stops in ((0, False), (1, True), (0, False)):
        while (seen := simulator.observe()).job_submit_s[0, 0] != jobs[job].submit_s:
            simulator.act(np.full((1, 2), HOLD))
        simulator.act(np.array([[0, 0]]), stops=np.array([stops]))
    seen = simulator.observe()
    assert (seen.time_s[0], seen.preemption is not None and seen.preemption.gpu_stoppable.any()) == (3, False)
    with pytest.raises(ValueError, match=r"cannot start on .*, stopping what runs there"):
        simulator.act(np.array([[0, 0]]), stops=np.array([True]))
    assert (simulator.active.tolist(), simulator.time_s.tolist()) == ([0], [3])


def test_a_gang_is_stopped_whole():
    jobs = [gang(2, 0, 10, preemptible=True), gang(1, 5, 3)]
    rule = script((0, Choice(0, (0, 1))), (5, Choice(1, (1,), stop=True)), (8, Choice(0, (0, 1))))
    outcome = run(nodes_of(2), jobs, rule)
    assert course(outcome) == [(8, 13, (0, 1)), (5, 8, (1,))]
    assert next(outcome.runs(0)).gpus == (0, 1)


def test_a_loss_after_a_stop_goes_back_to_the_stop():
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=1.0), gang(1, 4, 1)]
    rule = script((0, Choice(0, (0,))), (4, Choice(1, (0,), stop=True)), (5, Choice(0, (0,))), (7, Choice(0, (1,))))
    assert run(nodes_of(1, 1), jobs, rule, changes=[(7, 0, 0.0)]).end_s.tolist() == [[14, 5]]


def test_many_stops_are_all_noted():
    # Two jobs of 20 s stop each other each second; the other GPU, lost and back, gives the events.
    jobs = [gang(1, 0, 20, preemptible=True), gang(1, 0, 20, preemptible=True)]
    steps = [(float(at_s), Choice(at_s % 2, (0,), stop=at_s > 0)) for at_s in range(30)]
    changes = [(float(at_s), 1, float(at_s % 2)) for at_s in range(40)]
    outcome = run(nodes_of(1, 1), jobs, script(*steps, (31, Choice(0, (1,)))), changes=changes)
    assert outcome.stops[0] == 29
    assert [run.start_s for run in outcome.runs(0)][:29] == list(range(29))


def test_nothing_is_said_of_stops_where_no_job_may_be_stopped():
    batch = draw_batch(0, count=4)
    whole = [replace(each, jobs=tuple(replace(job, preemptible=False) for job in each.jobs)) for each in batch]
    simulator = simulator_of(whole, asks_stops=True)
    while len(simulator.active):
        seen = simulator.observe()
        assert seen.preemption is None
        simulator.act(Sjf().act(seen))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("max_jobs", [6, 12, 40])
def test_many_lists_with_stops(max_jobs):
    for seed in range(10_000, 10_000 + cases(20) * BATCH, BATCH):
        agree(seed, max_jobs=max_jobs)
        agree(seed, max_jobs=max_jobs, gangs=False)


@pytest.mark.slow
def test_illegal_stops_are_refused_in_many_lists():
    for seed in range(20_000, 20_000 + cases(1000)):
        compare_choices(draw_batch(seed, count=1), rules_for(seed, 1), tries_illegal=True, asks_stops=True)
