"""What holds in every random run of the oracle: its own books are kept apart from its physics."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from tests.oracle.acts import anything
from tests.oracle.cluster import Oracle, Rule
from tests.oracle.instances import draw_instance
from tests.oracle.records import Choice, Instance
from tests.oracle.rules import (
    at_random,
    easy_backfill,
    fcfs,
    hold_gang,
    lets_nothing_wait_for_ever,
    shortest_area,
    sjf,
)
from tests.volume import cases

RULES: dict[str, Rule] = {
    "fcfs": fcfs,
    "sjf": sjf,
    "shortest_area": shortest_area,
    "easy_backfill": easy_backfill,
    "hold_gang": hold_gang,
}


def check_books(oracle: Oracle) -> None:
    """Nothing is overbooked, and no gang is there in part."""
    for gpu, here in enumerate(oracle.on_gpu):
        assert len(here) <= 1 + all(oracle.jobs[attempt.job].shareable for attempt in here)
        assert sum(oracle.jobs[attempt.job].gpu_memory_mib for attempt in here) <= oracle.gpus[gpu].memory_mib
        assert not here or oracle.speed[gpu] > 0.0
    for node, has in enumerate(oracle.nodes):
        held = [attempt.job for g, here in enumerate(oracle.on_gpu) if oracle.gpus[g].node == node for attempt in here]
        assert sum(oracle.jobs[job].cores for job in held) <= has.cores
        assert sum(oracle.jobs[job].memory_mib for job in held) <= has.memory_mib
    for job, attempt in oracle.running.items():
        held_by = tuple(gpu for gpu, here in enumerate(oracle.on_gpu) if any(other.job == job for other in here))
        assert held_by == attempt.gpus
        assert len(held_by) == oracle.jobs[job].gpu_count
        assert len({oracle.gpus[gpu].model for gpu in held_by}) == 1
        assert attempt.end_s >= oracle.now_s
        assert job not in oracle.waiting
    assert oracle.waiting == sorted(set(oracle.waiting))
    assert all(0.0 < share <= 1.0 for share in oracle.share)


def check_run(instance: Instance, rule: Rule, asks_always: bool = False) -> Oracle:
    def watched(oracle: Oracle) -> Choice:
        check_books(oracle)
        return rule(oracle)

    oracle = Oracle(instance, asks_always=asks_always)
    outcome = oracle.run(watched)
    check_books(oracle)
    for job, end_s in enumerate(outcome.end_s):
        mine = [run for run in outcome.runs if run.job == job]
        assert [run.end for run in mine].count("completed") == (not math.isnan(end_s))
        assert len(mine) == outcome.attempts[job] - (job in oracle.running)
        for before, after in itertools.pairwise(mine):
            assert before.end_s <= after.start_s
            assert before.end != "completed"
    return oracle


@pytest.mark.parametrize("name", RULES)
def test_books_are_right_under_rules(name):
    for seed in range(25):
        oracle = check_run(draw_instance(seed), lets_nothing_wait_for_ever(RULES[name]))
        if not oracle.instance.changes:
            assert set(oracle.outcome.unfinished) == oracle.impossible


def test_books_are_right_under_random_decisions():
    for seed in range(80):
        check_run(draw_instance(seed), at_random(seed))


def test_books_are_right_with_stops_and_shares():
    for seed in range(80):
        check_run(draw_instance(seed, stops=True, shares=True), anything(seed), asks_always=True)


@pytest.mark.slow
def test_books_are_right_in_many_runs():
    for seed in range(1000, 1000 + cases(2000)):
        check_run(draw_instance(seed, max_jobs=25), at_random(seed, random.Random(seed).choice((0.0, 0.2, 0.6))))
        check_run(draw_instance(seed, stops=True, shares=True), anything(seed), asks_always=True)


def test_progress_is_never_counted_twice():
    """One job on one kind of GPU, stopped at random: its attempts' work is the job's, what was lost again, no less."""
    stops = 0
    for seed in range(300):
        draw = random.Random(seed)
        instance = one_model(draw_instance(seed, stops=True))
        oracle = check_run(instance, anything(seed, stop_share=draw.choice((0.3, 0.8))), asks_always=True)
        for number, job in enumerate(instance.jobs):
            runs = [run for run in oracle.outcome.runs if run.job == number]
            if not runs or runs[-1].end != "completed":
                continue
            stopped = sum(run.end == "stopped" for run in runs)
            stops += stopped
            ran_s = sum(run.end_s - run.start_s for run in runs)
            starts_s = len(runs) * instance.start_cost_s + (len(runs) - 1) * job.restart_s
            least_s = job.duration_s[0] + starts_s
            assert least_s - 1e-6 <= ran_s <= least_s + stopped * job.lost_s + 1e-6
            if job.lost_s == 0.0:
                assert ran_s == pytest.approx(least_s)
    assert stops > 100


def one_model(instance: Instance) -> Instance:
    """The same with one duration everywhere, no changes of GPUs, and no price of being spread."""
    jobs = []
    for job in instance.jobs:
        own_s = min(job.duration_s)
        jobs.append(replace(job, duration_s=(own_s,) * 3, expected_s=(), spread_speed=(1.0,) * 3))
    return replace(instance, jobs=tuple(jobs), changes=())
