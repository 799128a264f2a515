"""The batched simulator and the oracle agree job for job, attempt for attempt, view for view: equal floats."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from adlro.decide.policies.base import Policy
from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.fcfs_fastest import FcfsFastest
from adlro.decide.policies.sjf import Sjf
from tests.unit.sim import oracle_rules
from tests.unit.sim.oracle import Rule
from tests.unit.sim.oracle_instances import Instance, assert_same, compare, draw_instance, run_batch
from tests.volume import cases

RULES: dict[str, tuple[type[Policy], Rule]] = {
    "fcfs": (Fcfs, oracle_rules.fcfs),
    "fcfs_fastest": (FcfsFastest, oracle_rules.fcfs_fastest),
    "sjf": (Sjf, oracle_rules.sjf),
}

start_costs = st.sampled_from((0.0, 0.0, 0.7, 2.0))
hold_shares = st.sampled_from((0.0, 0.2, 0.6))
seeds = st.integers(0, 2**32 - 1)
# Drawn through hypothesis, so that a failing instance is made small before it is shown: that takes minutes.
shrinking = st.randoms(use_true_random=False)
unshrunk = (Phase.explicit, Phase.reuse, Phase.generate)

# The same examples each time; the thorough tests draw new ones, and print how to repeat one that fails.
quick = settings(max_examples=40, deadline=None, derandomize=True, phases=unshrunk)
thorough = settings(max_examples=cases(600), deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


def instances(draw: random.Random, lists: int, max_jobs: int) -> list[Instance]:
    """Clusters of different shapes with lists of different lengths, for one batch."""
    return [draw_instance(draw, draw.randint(0, max_jobs)) for _ in range(draw.randint(1, lists))]


def show(batch: list[Instance]) -> None:
    """With a failure, if it is small enough to be read."""
    if sum(len(instance.jobs) for instance in batch) <= 12:
        note("\n".join(str(instance) for instance in batch))


def agree_at_random(
    draw: random.Random, lists: int, max_jobs: int, seed: int, hold_share: float, start_cost_s: float
) -> None:
    batch = instances(draw, lists, max_jobs)
    show(batch)
    compare(batch, seed, hold_share=hold_share, start_cost_s=start_cost_s)


def agree_under_a_rule(draw: random.Random, max_jobs: int, name: str, start_cost_s: float) -> None:
    policy, rule = RULES[name]
    batch = instances(draw, 4, max_jobs)
    show(batch)
    made = policy()
    made.wait_ratio = math.inf  # the oracle's rules have no limit on waits
    outcome = run_batch(batch, made.act, start_cost_s=start_cost_s)
    for number, instance in enumerate(batch):
        assert_same(outcome, number, instance.oracle(oracle_rules.lets_nothing_wait_for_ever(rule), start_cost_s))


@quick
@given(seeds, hold_shares, start_costs)
def test_small_instances_go_the_same_way_under_random_decisions(seed, hold_share, start_cost_s):
    agree_at_random(random.Random(seed), 2, 5, seed, hold_share, start_cost_s)


@quick
@example(1294, 0.6, 0.7)  # a change of speed takes the last bit of a job that was about to end
@given(seeds, hold_shares, start_costs)
def test_larger_instances_go_the_same_way_under_random_decisions(seed, hold_share, start_cost_s):
    agree_at_random(random.Random(seed), 4, 50, seed, hold_share, start_cost_s)


@pytest.mark.parametrize("name", RULES)
@settings(quick, max_examples=20)
@given(seeds, start_costs)
def test_instances_go_the_same_way_under_a_rule(name, seed, start_cost_s):
    agree_under_a_rule(random.Random(seed), 40, name, start_cost_s)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(thorough, max_examples=cases(400))
@given(shrinking, seeds, hold_shares, start_costs)
def test_many_small_instances(draw, seed, hold_share, start_cost_s):
    agree_at_random(draw, 2, 8, seed, hold_share, start_cost_s)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(thorough, phases=unshrunk)
@given(seeds, hold_shares, start_costs)
def test_many_larger_instances(seed, hold_share, start_cost_s):
    agree_at_random(random.Random(seed), 4, 50, seed, hold_share, start_cost_s)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RULES)
@settings(thorough, max_examples=cases(400), phases=unshrunk)
@given(seeds, start_costs)
def test_many_instances_under_a_rule(name, seed, start_cost_s):
    agree_under_a_rule(random.Random(seed), 40, name, start_cost_s)


def differs(spoil: Callable[[Instance], Instance]) -> bool:
    """Whether the comparison notices when the oracle is given something else than the simulator."""
    batch = [draw_instance(random.Random(seed), 12) for seed in range(8)]
    outcome = run_batch(batch, Sjf().act)
    for number, instance in enumerate(batch):
        try:
            assert_same(outcome, number, spoil(instance).oracle(oracle_rules.sjf))
        except AssertionError:
            return True
    return False


def test_the_comparison_notices_what_differs():
    def later(instance: Instance) -> Instance:
        jobs = tuple(
            dataclasses.replace(job, duration_s=tuple(math.nextafter(s, math.inf) for s in job.duration_s))
            for job in instance.jobs
        )
        return dataclasses.replace(instance, jobs=jobs)

    assert not differs(lambda instance: instance)
    assert differs(later)
    assert differs(lambda instance: dataclasses.replace(instance, changes=()))
