"""The plans of the list schedules against the same plan made of a matrix of all pairs of a job and a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies.heft import Heft
from adlro.decide.policies.list_schedule import ListSchedule
from adlro.decide.policies.max_min import MaxMin
from adlro.decide.policies.mct import Mct
from adlro.decide.policies.min_min import MinMin
from adlro.decide.policies.plan import Plan
from adlro.decide.policies.sufferage import Sufferage
from adlro.state.observation import Floats, Observation
from tests.dense import durations_s, fits_now
from tests.unit.decide.decision_points import Waiting, decision, drawn

POLICIES: tuple[ListSchedule, ...] = (Mct(), MinMin(), MaxMin(), Sufferage(), Heft())


def wait_s(observation: Observation) -> Floats:
    """(J, G) the time until each job could start on each GPU, if no other job took it."""
    busy, node = ~observation.gpu_idle[0], observation.gpu_node[0]
    next_end_s = np.full(observation.node_cores_free.shape[1], np.inf)
    np.minimum.at(next_end_s, node[busy], observation.gpu_remaining_s[0, busy])
    lacks = (observation.job_cores[0][:, None] > observation.node_cores_free[0, node]) | (
        observation.job_memory_mib[0][:, None] > observation.node_memory_free_mib[0, node]
    )
    found: Floats = np.where(lacks & ~busy, next_end_s[node], observation.gpu_remaining_s[0])
    return found


def planned(policy: ListSchedule, observation: Observation) -> tuple[tuple[int, float], int]:
    """The job that the plan starts and its score, or (-1, 0), and how many jobs it puts behind others before."""
    duration_s, fits = durations_s(observation)[0], fits_now(observation)[0]
    completion_s = wait_s(observation) + duration_s
    left, free = observation.job_waiting[0].copy(), fits.any(axis=0)
    order, put_count = policy.order(observation), 0
    while free.any():
        in_order = np.sort(completion_s, axis=1)
        left &= np.isfinite(in_order[:, 0])
        if not left.any():
            break
        best_s = np.where(left, in_order[:, 0], 0.0)
        urgency = policy.urgency(order, best_s[None], in_order[None, :, 1])[0]
        job = int(np.argmin(np.where(left, urgency, np.inf)))
        gpu = int(np.argmin(completion_s[job]))
        if fits[job, gpu] and free[gpu]:
            return (job, -float(completion_s[job, gpu])), put_count
        left[job] = free[gpu] = False
        completion_s[:, gpu] += duration_s[job, gpu]
        put_count += 1
    return (-1, 0.0), put_count


def compared(policy: ListSchedule, observation: Observation) -> int:
    (job, score), put_count = planned(policy, observation)
    scores = policy.preferences(observation)
    wanted = np.flatnonzero(scores > -np.inf)
    assert observation.table.job[wanted].tolist() == [job] * len(wanted)
    assert (scores[wanted].max() if len(wanted) else 0.0) == score
    return put_count


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each.name)
def test_a_plan_is_that_of_the_matrix_to_the_last_bit(policy: ListSchedule) -> None:
    for seed in range(40):
        compared(policy, drawn(np.random.default_rng(seed), int(np.random.default_rng(seed).integers(1, 60))))


def deep(jobs: int = 60) -> Observation:
    """All want the eleven busy GPUs of nineteen, before anyone takes an idle one, which are slow."""
    rng = np.random.default_rng(7)
    model, remaining_s = [0] * 11 + [1] * 8, [*rng.exponential(20.0, 11), *[0.0] * 8]
    waiting = []
    for _ in range(jobs):
        fast, slow = float(rng.exponential(5.0)), float(rng.uniform(2e3, 3e3))
        waiting.append(Waiting(tuple(slow if each else fast for each in model)))
    return decision(waiting, remaining_s, model=model)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each.name)
def test_a_deep_plan_is_too(policy: ListSchedule) -> None:
    assert compared(policy, deep()) == 60


@pytest.mark.parametrize("second", [False, True])
def test_sums_are_written_down_where_a_plan_gets_deep(second: bool) -> None:
    """Summed anew for each look, they took sixteen times as long with 3,000 jobs on 128 GPUs."""
    observation = deep(200)
    plan, one = Plan(observation, second=second), np.zeros(1, dtype=np.int64)
    plan.look_at_all(one)
    for job in range(200):
        plan.take(one, np.array([job]), np.empty(0), np.empty(0, dtype=np.int64))
    assert plan.kept.all()
    assert plan.sum_count[0] < 3 * 200 * 19  # pairs
