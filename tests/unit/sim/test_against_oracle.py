"""The batched simulator and the oracle agree job for job, attempt for attempt, set for set: equal floats."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from adlro.decide.policies.base import Policy
from adlro.decide.policies.easy_backfill import EasyBackfill
from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.policies.shortest_area import ShortestArea
from adlro.decide.policies.sjf import Sjf
from tests.oracle import rules
from tests.oracle.acts import any_set
from tests.oracle.cluster import Rule
from tests.oracle.instances import draw_instance
from tests.oracle.records import Instance, Job
from tests.unit.sim.against_oracle import Differs, compare_choices, compare_policy
from tests.volume import cases

BATCH = 50
START_COSTS_S = (0.0, 0.7, 2.0)

POLICIES: dict[str, tuple[type[Policy], Rule]] = {
    "fcfs": (Fcfs, rules.fcfs),
    "sjf": (Sjf, rules.sjf),
    "shortest_area": (ShortestArea, rules.shortest_area),
    "easy_backfill": (EasyBackfill, rules.easy_backfill_that_waits),
    "hold_gang": (HoldGang, rules.hold_gang),
}
"""Policies that place gangs, and the same by the oracle."""


def draw_batch(seed: int, *, gangs: bool = True, max_jobs: int = 12, count: int = BATCH) -> list[Instance]:
    """Instances with one start cost."""
    cost_s = START_COSTS_S[seed // count % len(START_COSTS_S)]
    drawn = (draw_instance(seed + i, gangs=gangs, max_jobs=max_jobs) for i in range(count))
    return [replace(instance, start_cost_s=cost_s) for instance in drawn]


def agree_under_random_choices(seed: int, **more) -> None:
    share = random.Random(seed).choice((0.0, 0.2, 0.6))
    batch = draw_batch(seed, **more)
    compare_choices(batch, [any_set(seed + i, share) for i in range(len(batch))])


def agree_under_a_policy(seed: int, name: str, *, only_gangs: bool = False, **more) -> None:
    policy, rule = POLICIES[name]
    made = policy()
    made.wait_ratio = math.inf  # the oracle's rules have no limit on waits
    batch = draw_batch(seed, **more)
    if only_gangs:
        batch = [replace(each, jobs=tuple(job for job in each.jobs if job.gpu_count > 1)) for each in batch]
    if name == "hold_gang":
        # Without gangs it is hold_greedy_fixed. Of a model with lost GPUs the oracle counts only sets that still exist.
        batch = [replace(each, jobs=tuple(job for job in each.jobs if job.gpu_count > 1), changes=()) for each in batch]
    compare_policy(batch, made, rules.lets_nothing_wait_for_ever(rule))


@pytest.mark.parametrize("seed", range(0, 3 * BATCH, BATCH))
def test_gangs_go_the_same_way_under_random_choices(seed):
    agree_under_random_choices(seed)


def test_jobs_of_one_gpu_go_the_same_way_under_random_choices():
    agree_under_random_choices(0, gangs=False)


@pytest.mark.parametrize("actions", [3, 8])
def test_a_list_that_begins_where_gangs_ran_goes_the_same_way(actions):
    for seed in range(0, 4 * BATCH, BATCH):
        batch = draw_batch(seed)
        others = [any_set(-1 - i) for i in range(len(batch))]
        compare_choices(batch, [any_set(seed + i) for i in range(len(batch))], before=(others, actions))


def test_what_is_illegal_is_refused():
    for seed in range(40):
        compare_choices(draw_batch(seed, count=1), [any_set(seed)], tries_illegal=True)


@pytest.mark.parametrize("name", POLICIES)
def test_gangs_go_the_same_way_under_a_policy(name):
    agree_under_a_policy(0, name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gangs_go_the_same_way_in_a_deep_queue():
    """All at once, before few GPUs: each setting of `hold_gang` that looks at the depth of the queue decides there."""
    batch = [
        replace(each, jobs=tuple(replace(job, submit_s=0.0) for job in each.jobs if job.gpu_count > 1), changes=())
        for each in draw_batch(0, max_jobs=60, count=30)
    ]
    policy = HoldGang()
    policy.wait_ratio = math.inf
    compare_policy(batch, policy, rules.lets_nothing_wait_for_ever(rules.HoldGang()))
    others = rules.HoldGang(alpha_deep=6.0), rules.HoldGang(beta=0.0), rules.HoldGang(defer=0.0)
    for other in (*others, rules.HoldGang(affinity=0.0)):
        with pytest.raises(Differs):
            compare_policy(batch, policy, rules.lets_nothing_wait_for_ever(other))
    # With it no slow start is accepted on these clusters, of which each has jobs that any model suits.
    policy = HoldGang(replace(ONE_SETTING, affinity=0.0))
    policy.wait_ratio = math.inf
    compare_policy(batch, policy, rules.lets_nothing_wait_for_ever(rules.HoldGang(affinity=0.0)))
    with pytest.raises(Differs):
        compare_policy(batch, policy, rules.lets_nothing_wait_for_ever(rules.HoldGang(affinity=0.0, backlog=0.0)))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("max_jobs", [6, 12, 40])
def test_many_lists_under_random_choices(max_jobs):
    for seed in range(10_000, 10_000 + cases(20) * BATCH, BATCH):
        agree_under_random_choices(seed, max_jobs=max_jobs)
        agree_under_random_choices(seed, max_jobs=max_jobs, gangs=False)


@pytest.mark.slow
def test_what_is_illegal_is_refused_in_many_lists():
    for seed in range(20_000, 20_000 + cases(1000)):
        compare_choices(draw_batch(seed, count=1), [any_set(seed)], tries_illegal=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", POLICIES)
def test_many_lists_under_a_policy(name):
    # EASY's reservation for a job of one GPU is its own: tests/unit/decide/test_easy_backfill.py has an oracle for it.
    easy = name == "easy_backfill"
    for seed in range(10_000, 10_000 + cases(20) * BATCH, BATCH):
        agree_under_a_policy(seed, name, only_gangs=easy)
        if not easy:
            agree_under_a_policy(seed, name, gangs=False)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("duration_s", math.inf), ("expected_s", 0.0), ("spread_speed", 0.0)],
)
def test_the_comparison_notices_the_last_bit(name, wanted):
    """The simulator gets figures of another last bit than the oracle."""

    def spoil(job: Job) -> Job:
        figures = tuple(s if s in (0.0, math.inf) else math.nextafter(s, wanted) for s in getattr(job, name))
        spoiled: dict[str, Any] = {name: figures}
        if name == "spread_speed":
            spoiled["expected_spread_speed"] = figures
        return replace(job, **spoiled)

    batch = draw_batch(0, count=10)
    spoiled = [replace(instance, jobs=tuple(spoil(job) for job in instance.jobs)) for instance in batch]
    choices = [any_set(seed) for seed in range(len(batch))]
    with pytest.raises(Differs):
        compare_choices(batch, choices, given=spoiled)
