"""The policies of jobs of one GPU, and of two that share it, job for job as the oracle has them: equal floats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.decide.policies.share_pairs import SharePairs, SharePairsSettings
from tests.oracle.instances import draw_instance
from tests.oracle.records import Instance
from tests.oracle.sharing import HoldGreedy
from tests.oracle.sharing import SharePairs as PlainSharePairs
from tests.unit.sim.against_oracle import check_outcome, compare_policy, ran, simulator_of
from tests.volume import cases

BATCH = 25
START_COSTS_S = (0.0, 0.7, 2.0)


def batch_of(seed: int, **more: bool) -> list[Instance]:
    """Instances with one start cost, and one table of pairs."""
    cost_s = START_COSTS_S[seed // BATCH % len(START_COSTS_S)]
    drawn = [draw_instance(seed + i, gangs=False, max_jobs=12, **more) for i in range(BATCH)]
    kept, told = drawn[0].kept, drawn[0].expected_kept
    return [replace(instance, start_cost_s=cost_s, kept=kept, expected_kept=told) for instance in drawn]


@pytest.mark.parametrize("seed", range(0, 4 * BATCH, BATCH))
def test_hold_greedy_fixed_goes_as_its_text_says(seed: int) -> None:
    policy = HoldGreedyFixed()
    policy.wait_ratio = math.inf  # the oracle's rules have no limit on waits
    compare_policy(batch_of(seed), policy, HoldGreedy())


def shared_runs(seed: int) -> int:
    """Lists under share_pairs go as the oracle's; returns how many starts were beside another job."""
    settings = SharePairsSettings(s_min=(1.0, 1.2, 1.4)[seed // BATCH % 3], pen=(0.5, 1.0, 2.0)[seed // BATCH % 3])
    policy, rule = SharePairs(settings), PlainSharePairs(s_min=settings.s_min, pen=settings.pen)
    policy.wait_ratio = math.inf
    batch, beside = batch_of(seed, shares=True), 0
    simulator = simulator_of(batch, asks_shares=True)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        beside += len(judgement.busy)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    for number, oracle in enumerate(ran(batch, [rule] * len(batch), asks_shares=True)):
        check_outcome(outcome, number, oracle)
    return beside


@pytest.mark.parametrize("seed", range(0, 6 * BATCH, BATCH))
def test_share_pairs_goes_as_its_text_says(seed: int) -> None:
    assert shared_runs(seed) >= 5


@pytest.mark.slow
def test_share_pairs_goes_as_its_text_says_on_many_lists() -> None:
    assert sum(shared_runs(seed) for seed in range(10_000, 10_000 + cases(1000), BATCH)) > cases(300)
