"""Two jobs on a GPU, alone and with stops: the batched simulator and the oracle agree, equal floats."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies.sjf import Sjf
from adlro.errors import InvalidInput
from adlro.sim.batch import BatchSimulator
from tests.oracle.acts import anything
from tests.oracle.cluster import Rule
from tests.oracle.instances import draw_instance
from tests.oracle.records import Change, Choice, Instance
from tests.oracle.test_hand_worked import gang, nodes_of, script
from tests.unit.sim.against_oracle import MODELS, cluster_of, compare_choices, job_arrays, simulator_of, table_of
from tests.volume import cases

BATCH = 50
START_COSTS_S = (0.0, 0.7, 2.0)
ASKED: dict[str, Any] = {"asks_stops": True, "asks_shares": True}


def draw_batch(
    seed: int, *, count: int = BATCH, gangs: bool = True, stops: bool = False, max_jobs: int = 12
) -> list[Instance]:
    """Instances with one start cost and one table of pairs."""
    cost_s = START_COSTS_S[seed // count % len(START_COSTS_S)]
    drawn = [draw_instance(seed + i, gangs=gangs, max_jobs=max_jobs, stops=stops, shares=True) for i in range(count)]
    kept, told = drawn[0].kept, drawn[0].expected_kept
    return [replace(instance, start_cost_s=cost_s, kept=kept, expected_kept=told) for instance in drawn]


def rules_for(seed: int, count: int) -> list[Rule]:
    draw = random.Random(seed)
    hold, stop = draw.choice((0.05, 0.2, 0.4)), draw.choice((0.1, 0.3, 0.6))
    return [anything(seed + i, hold, stop, moves=False) for i in range(count)]


def agree(seed: int, *, count: int = BATCH, **more) -> int:
    """Returns the number of decisions at which some GPU had two jobs."""
    shared = 0

    def look(seen, n, *_):
        nonlocal shared
        if seen.sharing is not None:
            busy = ~seen.gpu_idle[n] & np.isfinite(seen.gpu_remaining_s[n])
            shared += bool((busy & ~seen.sharing.gpu_open[n] & (seen.gpu_elapsed_s[n] > 0)).any())

    compare_choices(draw_batch(seed, count=count, **more), rules_for(seed, count), looks=look, **ASKED)
    return shared


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("seed", range(0, 3 * BATCH, BATCH))
def test_gpus_are_shared_in_the_same_way(seed, stops):
    assert agree(seed, stops=stops) > BATCH


def test_gpus_are_shared_in_the_same_way_where_all_jobs_have_one():
    assert agree(0, gangs=False) > BATCH
    assert agree(BATCH, gangs=False, stops=True) > BATCH


@pytest.mark.parametrize("actions", [3, 8])
def test_a_list_that_begins_where_gpus_were_shared_goes_the_same_way(actions):
    for seed in range(0, 3 * BATCH, BATCH):
        before = rules_for(-1 - seed, BATCH), actions
        compare_choices(draw_batch(seed, stops=True), rules_for(seed, BATCH), before=before, **ASKED)


def test_pairs_that_are_illegal_are_refused_and_change_nothing():
    for seed in range(60):
        batch = draw_batch(seed, count=1, stops=seed % 2 == 0)
        compare_choices(batch, rules_for(seed, 1), tries_illegal=True, **ASKED)


# ---- the cases of tests/oracle/test_hand_worked.py, where the times are worked out


def test_two_jobs_on_a_gpu():
    jobs = gang(1, 0, 10, shareable=True, family=0), gang(1, 2, 4, shareable=True, family=1)
    instance = Instance(*nodes_of(1), jobs, kept={(0, 1, 0): 0.5, (1, 0, 0): 0.8})
    outcome = compare_choices([instance], [script((0, Choice(0, (0,))), (2, Choice(1, (0,))))], asks_shares=True)
    assert (outcome.start_s.tolist(), outcome.end_s.tolist()) == ([[0, 2]], [[12.5, 7]])
    simulator = simulator_of([replace(instance, kept={(0, 1, 0): 0.5})], asks_shares=True)
    simulator.act(np.array([[0, 0]]))
    with pytest.raises(ValueError, match="cannot start"):  # no figure for the other: never
        simulator.act(np.array([[0, 0]]))


def test_what_is_expected_of_a_pair_moves_only_what_is_expected():
    # A is expected to keep 0.8 of its speed from 2 on: 2 + 8 / 0.8 = 12, while in truth it ends at 18. B, expected to
    # keep all, outlasts 6. (The third job is there for the event at 3.)
    jobs = gang(1, 0, 10, shareable=True), gang(1, 2, 4, shareable=True, family=1), gang(1, 3, 1, shareable=True)
    kept, told = {(0, 1, 0): 0.5, (1, 0, 0): 0.8}, {(0, 1, 0): 0.8, (1, 0, 0): 1.0}
    instance = Instance(*nodes_of(1, 1), jobs, kept=kept, expected_kept=told)
    remaining_s = []

    def look(seen, n, *_):
        remaining_s.append((float(seen.time_s[n]), float(seen.gpu_remaining_s[n, 0])))

    rule = script((0, Choice(0, (0,))), (2, Choice(1, (0,))), (3, Choice(2, (1,))))
    compare_choices([instance], [rule], looks=look, asks_shares=True)
    assert remaining_s == [(0, 0), (2, 8), (3, 9)]


def test_a_lost_gpu_ends_both():
    jobs = gang(1, 0, 10, shareable=True), gang(1, 0, 4, shareable=True)
    instance = Instance(*nodes_of(1), jobs, (Change(3, 0, 0.0),), kept={(0, 0, 0): 0.5})
    outcome = compare_choices([instance], [script((0, Choice(0, (0,))), (0, Choice(1, (0,))))], asks_shares=True)
    assert [(run.job, run.end_s, run.completed) for run in outcome.runs(0)] == [(0, 3, False), (1, 3, False)]


# ---- where nobody shares, and what is refused


def test_without_a_table_no_gpu_is_shared_and_nothing_is_said():
    instance = draw_batch(0, count=1)[0]
    simulator = simulator_of([instance], asks_stops=True)
    while len(simulator.active):
        seen = simulator.observe()
        assert seen.sharing is None
        simulator.act(Sjf().act(seen))


@pytest.mark.parametrize(
    ("kept", "told", "match"),
    [
        (np.ones((1, 1, 3)), None, "kept must be of shape"),
        (np.ones((3, 3, 2)), None, "kept must be of shape"),
        (np.ones((3, 3, 3)), np.ones((4, 4, 3)), "expected_kept must be of shape"),
        (np.full((3, 3, 3), 1.5), None, "kept must be numbers from 0 to 1"),
        (np.full((3, 3, 3), np.nan), None, "kept must be numbers from 0 to 1"),
    ],
)
def test_tables_that_can_be_none_are_refused(kept, told, match):
    jobs = gang(1, 0, 1, shareable=True), gang(1, 0, 1, shareable=True, family=2)
    instance = Instance(*nodes_of(1), jobs)
    with pytest.raises(InvalidInput, match=match):
        BatchSimulator(cluster_of(instance), job_arrays([instance]), gpu_models=MODELS, kept=kept, expected_kept=told)


def test_jobs_that_can_be_none_are_refused():
    instance = Instance(*nodes_of(2), (gang(2, 0, 1), gang(1, 0, 1, preemptible=True, restart_s=-1.0)))
    arrays = job_arrays([instance])
    with pytest.raises(InvalidInput, match="restart_s and lost_s must be numbers from 0"):
        BatchSimulator(cluster_of(instance), arrays, gpu_models=MODELS)
    arrays.preemptible[:] = False
    arrays.shareable[:] = True
    with pytest.raises(InvalidInput, match="several GPUs can't share"):
        BatchSimulator(cluster_of(instance), arrays, gpu_models=MODELS, kept=table_of({}))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("max_jobs", [6, 12, 40])
def test_many_lists_with_shares(max_jobs):
    for seed in range(10_000, 10_000 + cases(20) * BATCH, BATCH):
        agree(seed, max_jobs=max_jobs, stops=seed % (2 * BATCH) == 0)
        agree(seed, max_jobs=max_jobs, stops=seed % (2 * BATCH) != 0, gangs=False)


@pytest.mark.slow
def test_illegal_pairs_are_refused_in_many_lists():
    for seed in range(20_000, 20_000 + cases(1000)):
        batch = draw_batch(seed, count=1, stops=seed % 2 == 0)
        compare_choices(batch, rules_for(seed, 1), tries_illegal=True, **ASKED)
