"""Every policy on random courses with jobs of several GPUs: nothing impossible is named, and the lists end."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD, Floats, Observation
from adlro.workload.job_lists import WorkloadJob
from tests.policies import made
from tests.unit.sim.test_gang_physics import TURING, V100, check_rows, cluster, draw, job

SEEDS = 12
MOST_DECISIONS = 3000

NAMES = [*POLICIES, DqnLookahead.name]


def policy_of(name: str) -> Policy:
    return DqnLookahead() if name == DqnLookahead.name else made(name)


def check_action(seen: Observation, policy: Policy) -> None:
    """The judgement has a score for each row, and the action is one of them, all of a set or one GPU of a group."""
    judgement = policy.judge(seen)
    assert judgement.scores.shape == seen.table.job.shape
    assert not np.isnan(judgement.scores).any()
    assert (judgement.scores < np.inf).all()
    action = policy.choose(seen, judgement)[0]
    if judgement.reserve is not None:
        assert -1 <= judgement.reserve[0] < seen.job_waiting.shape[1]
    if action[0] == HOLD:
        assert (action == HOLD).all()
        return
    rows = range(int(seen.table.first[0, action[0]]), int(seen.table.first[0, action[0] + 1]))
    assert any(
        (seen.table.gpus[row] == action[1:]).all()
        or ((seen.table.gpus[row, 1:] < 0).all() and action[1] in seen.group(0, row) and (action[2:] < 0).all())
        for row in rows
    )


@pytest.mark.parametrize("name", NAMES)
def test_random_courses_end_without_an_impossible_start(name: str) -> None:
    for seed in range(SEEDS):
        there, jobs, changes = draw(np.random.default_rng(seed))
        gpus = sum(len(node.gpus) for node in there.nodes)
        changes += [(200.0, gpu, 1.0) for gpu in range(gpus)]  # all that was lost comes back
        policy = policy_of(name)
        policy.wait_ratio = (20.0, 0.5, np.inf)[seed % 3]
        made_of = BatchSimulator(there, jobs, gpu_changes=[changes])
        for _ in range(MOST_DECISIONS):
            if not len(made_of.active):
                break
            seen = made_of.observe()
            if seen.gangs is not None:
                check_rows(seen)
            if name != DqnLookahead.name:  # which remembers what it was shown
                check_action(seen, policy)
            judgement = policy.judge(seen)
            made_of.act(policy.choose(seen, judgement), judgement.reserve)
        assert not len(made_of.active), f"seed {seed}: no end"
        outcome = made_of.outcome()
        finished = {run.job for run in outcome.runs(0) if run.completed}
        possible = {number for number in range(30) if np.isfinite(outcome.start_s[0, number])}
        assert finished == possible
        # What never started, no empty cluster could hold: a list of it alone is stuck at once.
        for number in set(range(30)) - possible:
            assert BatchSimulator(there, alone(jobs, number)).stuck[0]


def alone(jobs: JobArrays, number: int) -> JobArrays:
    """A list of one of the jobs."""
    columns: dict[str, Any] = jobs._asdict()
    one = {name: column[:, number : number + 1] if column.ndim > 1 else column for name, column in columns.items()}
    return JobArrays(**one | {"job_count": np.array([1])})


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_with_gangs_is_its_members(name: str) -> None:
    policy = policy_of(name)
    there = cluster((V100, 4), (V100, 2), (TURING, 4), cores=16)
    rng = np.random.default_rng(4)
    lists = []
    for number in range(6):
        sizes = [1] if number % 3 == 0 else [1, 1, 2, 3, 4, 6]
        lists.append(
            [
                job(int(rng.choice(sizes)), float(at // 3), float(rng.choice([2.0, 5.0, 9.0])), cpu_cores=2)
                for at in range(16)
            ]
        )
    outcome = ends(there, lists, policy)
    for number, each in enumerate(lists):
        np.testing.assert_array_equal(ends(there, [each], policy)[0], outcome[number])


def ends(there: Cluster, lists: list[list[WorkloadJob]], policy: Policy) -> Floats:
    made_of = BatchSimulator(there, pack_jobs(lists, there))
    while len(made_of.active):
        seen = made_of.observe()
        judgement = policy.judge(seen)
        made_of.act(policy.choose(seen, judgement), judgement.reserve)
    found: Floats = made_of.outcome().end_s
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_a_decision_with_gangs_leaves_the_observation_as_it_was(name: str) -> None:
    there, jobs, changes = draw(np.random.default_rng(5))
    made_of, policy = BatchSimulator(there, jobs, gpu_changes=[changes]), policy_of(name)
    for _ in range(12):
        seen = made_of.observe()
        before = copy.deepcopy(seen)
        action = policy.act(seen)
        for field in Observation.__slots__:
            np.testing.assert_equal(getattr(seen, field), getattr(before, field))
        made_of.act(action)


def test_where_all_jobs_have_one_gpu_the_shortest_area_is_the_shortest_job() -> None:
    there = cluster((V100, 4), (TURING, 4))
    rng = np.random.default_rng(6)
    lists = [[job(1, float(at // 4), float(rng.exponential(5.0))) for at in range(60)]]
    np.testing.assert_array_equal(ends(there, lists, made("shortest_area")), ends(there, lists, made("sjf")))
