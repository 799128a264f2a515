"""What must hold of every course of the batched simulator, read off its outcome alone."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.sjf import Sjf
from adlro.sim.batch import BatchOutcome, BatchSimulator, Run
from adlro.state.observation import HOLD, Ints, Observation
from tests.unit.sim.oracle import OracleChange, OracleGpu, OracleJob, OracleNode
from tests.unit.sim.oracle_instances import MODELS, Instance, SeenPolicy, draw_instance, job_arrays, run_batch
from tests.volume import cases

seeds = st.integers(0, 2**32 - 1)
# A seed says nothing of the size of what it draws: no use in looking for a smaller one.
unshrunk = (Phase.explicit, Phase.reuse, Phase.generate)
quick = settings(max_examples=40, deadline=None, derandomize=True, phases=unshrunk)
thorough = settings(max_examples=cases(300), deadline=None, print_blob=True, phases=unshrunk)

START_COSTS_S = (0.0, 0.0, 0.7)


def check_course(instance: Instance, outcome: BatchOutcome, number: int, start_cost_s: float) -> None:
    runs = list(outcome.runs(number))
    check_jobs_are_conserved(instance, outcome, number, runs)
    check_time(instance, runs)
    for gpu in range(len(instance.gpus)):
        check_gpu(
            instance, sorted((run for run in runs if run.gpu == gpu), key=lambda run: (run.start_s, run.end_s)), gpu
        )
    check_nodes(instance, runs)
    for run in runs:
        check_work(instance, run, start_cost_s)


def check_jobs_are_conserved(instance: Instance, outcome: BatchOutcome, number: int, runs: list[Run]) -> None:
    """Each job ends at most once, those that don't are `stuck`, and every attempt is accounted for."""
    count = len(instance.jobs)
    ended = [run.job for run in runs if run.completed]
    left = [job for job in range(count) if math.isnan(outcome.end_s[number, job])]
    assert sorted(ended + left) == list(range(count))
    assert bool(outcome.stuck[number]) == bool(left)
    for job in range(count):
        assert outcome.attempts[number, job] == sum(run.job == job for run in runs)
    for run in runs:
        if run.completed:
            assert outcome.start_s[number, run.job] == run.start_s
            assert outcome.end_s[number, run.job] == run.end_s
            assert outcome.gpu[number, run.job] == run.gpu
    assert np.isnan(outcome.end_s[number, count:]).all()
    assert not outcome.attempts[number, count:].any()


def check_time(instance: Instance, runs: list[Run]) -> None:
    """Nothing starts before it is submitted or ends before it starts; ends are told in order."""
    for run in runs:
        assert instance.jobs[run.job].submit_s <= run.start_s <= run.end_s
    assert [run.end_s for run in runs] == sorted(run.end_s for run in runs)


def check_gpu(instance: Instance, runs: list[Run], gpu: int) -> None:
    """One job at a time, that it can hold, and none while it is lost."""
    for earlier, later in itertools.pairwise(runs):
        assert earlier.end_s <= later.start_s
    card = instance.gpus[gpu]
    changes = [change for change in instance.changes if change.gpu == gpu]
    lost_at = {change.time_s for change in changes if change.speed_factor == 0.0}
    for run in runs:
        assert instance.jobs[run.job].gpu_memory_mib <= card.memory_mib
        assert speed_at(instance, gpu, run.start_s) > 0.0
        assert not any(run.start_s < time_s < run.end_s for time_s in lost_at)
        assert run.completed or run.end_s in lost_at


def check_nodes(instance: Instance, runs: list[Run]) -> None:
    """Cores and memory are never over-committed: what is held grows only at starts, so those are looked at."""
    for node, size in enumerate(instance.nodes):
        here = [run for run in runs if instance.gpus[run.gpu].node == node]
        for at in here:
            held = [instance.jobs[run.job] for run in here if run.start_s <= at.start_s < run.end_s]
            assert sum(job.cores for job in held) <= size.cores
            assert sum(job.memory_mib for job in held) <= size.memory_mib


def speed_at(instance: Instance, gpu: int, time_s: float) -> float:
    """After the changes at that time."""
    changes = [change for change in instance.changes if change.gpu == gpu]
    place = bisect_right([change.time_s for change in changes], time_s)
    return changes[place - 1].speed_factor if place else 1.0


def check_work(instance: Instance, run: Run, start_cost_s: float) -> None:
    """A completed run is long enough for its work, to the end and no longer; a lost one is shorter."""
    times = [change.time_s for change in instance.changes if change.gpu == run.gpu]
    corners = [run.start_s, *(time_s for time_s in times if run.start_s < time_s < run.end_s), run.end_s]
    done = sum((until - since) * speed_at(instance, run.gpu, since) for since, until in itertools.pairwise(corners))
    duration_s = instance.jobs[run.job].duration_s[instance.gpus[run.gpu].model]
    # The start cost is time of the speed at the start.
    wanted = duration_s + start_cost_s * speed_at(instance, run.gpu, run.start_s)
    if run.completed:
        assert done == pytest.approx(wanted, rel=1e-9, abs=1e-9)
        if len(corners) == 2 and speed_at(instance, run.gpu, run.start_s) == 1.0:
            assert run.end_s == run.start_s + (start_cost_s + duration_s)
    else:
        assert done < wanted * (1 + 1e-9)


def hold_properties(seed: int, max_jobs: int) -> None:
    draw = random.Random(seed)
    batch = [draw_instance(draw, draw.randint(0, max_jobs)) for _ in range(draw.randint(1, 4))]
    start_cost_s = draw.choice(START_COSTS_S)
    policy = SeenPolicy(batch, seed, draw.choice((0.0, 0.2, 0.6)))
    outcome = run_batch(batch, policy.act, start_cost_s=start_cost_s)
    for number, instance in enumerate(batch):
        check_course(instance, outcome, number, start_cost_s)
        times = [view.time_s for view in policy.views[number]]
        assert times == sorted(times)
        assert all(view.fitting for view in policy.views[number])


@quick
@given(seeds)
def test_every_course_holds_to_the_physics(seed):
    hold_properties(seed, 30)


@pytest.mark.slow
@pytest.mark.timeout(600)
@thorough
@given(seeds)
def test_many_courses_hold_to_the_physics(seed):
    hold_properties(seed, 50)


# ---- a batch


@quick
@given(seeds)
def test_a_list_goes_the_same_way_alone_as_in_a_batch(seed):
    draw = random.Random(seed)
    batch = [draw_instance(draw, draw.randint(0, 20)) for _ in range(4)]
    together = run_batch(batch, Sjf().act)
    for number, instance in enumerate(batch):
        alone, count = run_batch([instance], Sjf().act), len(instance.jobs)
        for name in ("start_s", "end_s", "gpu", "attempts"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[number, :count])
        assert list(alone.runs(0)) == list(together.runs(number))
        assert alone.stuck[0] == together.stuck[number]


def test_the_same_seed_gives_the_same_event_log():
    def logs(seed: int) -> list[list[Run]]:
        batch = [draw_instance(random.Random(seed), 40) for _ in range(3)]
        outcome = run_batch(batch, SeenPolicy(batch, seed, 0.2).act)
        return [list(outcome.runs(number)) for number in range(3)]

    assert logs(5) == logs(5)
    assert logs(5) != logs(6)


def test_an_empty_list_and_an_empty_batch_are_over_at_once():
    empty = Instance((OracleNode(1, 1),), (OracleGpu(0, 0, 1),), ())
    outcome = run_batch([empty], Fcfs().act)
    assert (outcome.end_s.shape, outcome.stuck.tolist(), list(outcome.runs(0))) == ((1, 0), [False], [])


# ---- Little's law


@quick
@given(seeds)
def test_littles_law_the_integral_of_jobs_in_the_system_is_the_sum_of_completion_times(seed):
    draw = random.Random(seed)
    batch = [draw_instance(draw, draw.randint(1, 40)) for _ in range(4)]
    outcome = run_batch(batch, SeenPolicy(batch, seed, 0.2).act)
    for number, instance in enumerate(batch):
        ends = outcome.end_s[number, : len(instance.jobs)]
        if np.isnan(ends).any():
            continue
        pairs = [
            (Fraction(job.submit_s), Fraction(float(end_s))) for job, end_s in zip(instance.jobs, ends, strict=True)
        ]
        jct_s = sum((end_s - submit_s for submit_s, end_s in pairs), Fraction(0))
        # What the simulator integrates from event to event, with the count that it keeps itself.
        assert outcome.jobs_integral_s[number] == pytest.approx(float(jct_s), rel=1e-9)
        # And, in exact arithmetic, the integral of a count made from the outcome.
        steps = sorted([(submit_s, 1) for submit_s, _ in pairs] + [(end_s, -1) for _, end_s in pairs])
        integral_s, jobs, before_s = Fraction(0), 0, Fraction(0)
        for time_s, step in steps:
            integral_s, jobs, before_s = integral_s + jobs * (time_s - before_s), jobs + step, time_s
        assert (integral_s, jobs) == (jct_s, 0)


# ---- single cases


def one_gpu(*jobs: OracleJob, changes: tuple[OracleChange, ...] = ()) -> Instance:
    return Instance((OracleNode(8, 8),), (OracleGpu(0, 0, 16),), jobs, changes)


def test_a_change_that_changes_nothing_moves_no_end():
    # 0.2 + (0.9 - 0.2) is not 0.9 in floats.
    same = one_gpu(OracleJob(0.0, (0.9,) * 3), changes=(OracleChange(0.2, 0, 1.0),))
    assert run_batch([same], Fcfs().act).end_s.tolist() == [[0.9]]


def test_a_hold_where_nothing_could_end_it_leaves_the_job():
    def never(observation: Observation) -> Ints:
        assert not observation.hold_allowed.any()
        return np.full((len(observation.time_s), 2), HOLD, dtype=np.int64)

    outcome = run_batch([one_gpu(OracleJob(0.0, (1.0,) * 3))], never)
    assert outcome.stuck.tolist() == [True]
    assert outcome.attempts.tolist() == [[0]]


@pytest.mark.parametrize(
    "action",
    [
        pytest.param((0, 0), id="busy"),
        pytest.param((1, 1), id="gpu-memory"),
        pytest.param((2, 1), id="cores"),
        pytest.param((3, 1), id="memory"),
        pytest.param((0, 2), id="lost"),
        pytest.param((0, 3), id="model"),
        pytest.param((0, 4), id="no-such-gpu"),
        pytest.param((0, -1), id="gpu-below-0"),
        pytest.param((4, 1), id="no-such-row"),
    ],
)
def test_an_action_that_starts_what_cannot_start_is_refused_and_changes_nothing(action):
    cards = (OracleGpu(0, 0, 16), OracleGpu(0, 0, 8), OracleGpu(0, 0, 16), OracleGpu(1, 1, 16))
    jobs = (
        OracleJob(0.0, (5.0,) * 3, cores=2, memory_mib=2),
        OracleJob(0.0, (5.0, math.inf, 5.0)),
        OracleJob(0.0, (5.0,) * 3, gpu_memory_mib=16),
        OracleJob(0.0, (5.0,) * 3, cores=3),
        OracleJob(0.0, (5.0,) * 3, memory_mib=7),
        OracleJob(1.0, (5.0,) * 3),
    )
    instance = Instance((OracleNode(4, 8), OracleNode(4, 8)), cards, jobs, (OracleChange(0.0, 2, 0.0),))
    simulator = BatchSimulator(
        [instance.cluster], job_arrays([instance]), gpu_models=MODELS, gpu_changes=[instance.gpu_changes]
    )
    # Job 0 on GPU 0: node 0 has 2 cores and 6 MiB left, rows 0 to 3 are jobs 1 to 4, job 5 is still to come.
    simulator.act(np.array([[0, 0]]))
    before = simulator.observe()
    with pytest.raises(ValueError, match="cannot start"):
        simulator.act(np.array([action]))
    after = simulator.observe()
    assert simulator.active.tolist() == [0]
    for name in ("time_s", "job_waiting", "table", "gpu_idle", "node_cores_free", "node_memory_free_mib"):
        np.testing.assert_equal(getattr(before, name), getattr(after, name))
    assert int(simulator.outcome().attempts.sum()) == 1
