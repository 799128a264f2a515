"""The limit on waits where jobs share GPUs, tried with streams made to starve a job that does not share."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.decide.policies.share_pairs import SharePairs, SharePairsSettings
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD_LIMIT_S, Observation
from adlro.workload.job_lists import WorkloadJob
from tests.unit.sim.test_gang_physics import V100, cluster, job

INF = np.inf
KEPT = np.full((1, 1, 1), 0.75)
"""Everybody beside everybody: a job of 4 s takes at most 16/3 s."""
LONGEST_S = 16.0 / 3.0


class Greedy(SharePairs):
    """Puts the newest job beside another one wherever it may, rather than on an idle GPU."""

    name = "greedy"

    def __init__(self) -> None:
        super().__init__(SharePairsSettings(s_min=0.0, pen=0.0))

    def weigh(self, observation: Observation) -> Judgement:
        judgement = super().weigh(observation)
        if observation.sharing is None:
            return judgement
        pairs = self.pairs_of(observation, None)
        for n in range(len(pairs.gpu)):
            there = np.flatnonzero(pairs.gpu[n] >= 0)
            if len(there):
                newest = int(there[-1])
                judgement.busy[n] = BusyStart(newest, (int(pairs.gpu[n, newest]),), stops=False)
        return judgement


def simulated(jobs: list[WorkloadJob], policy: Policy, ratio: float) -> BatchOutcome:
    there = cluster((V100, 2), (V100, 2))
    policy.wait_ratio = ratio
    simulator = BatchSimulator(there, pack_jobs([jobs], there), kept=KEPT, shares=True)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return simulator.outcome()


def jobs_that_starve(every_s: float, *others: WorkloadJob) -> list[WorkloadJob]:
    """Jobs of 4 s that share, more than four GPUs can take, and others."""
    stream = [job(1, float(at), 4.0, shareable=True) for at in np.arange(0.0, 300.0, every_s)]
    return sorted([*stream, *others], key=lambda each: each.submit_s)


def check_bound(jobs: list[WorkloadJob], outcome: BatchOutcome, ratio: float, longest_s: float) -> None:
    submit_s, start_s = np.array([each.submit_s for each in jobs]), outcome.start_s[0]
    for number in range(len(jobs)):
        late_s = submit_s[number] + 3 * ratio * longest_s + max(HOLD_LIMIT_S, 3 * ratio * longest_s)
        ahead = int(((submit_s <= submit_s[number]) & (start_s > late_s)).sum()) - 1
        assert start_s[number] <= late_s + 2 * (max(ahead, 0) + 1) * longest_s + 1e-6, jobs[number]


@pytest.mark.parametrize("make", [Greedy, SharePairs])
@pytest.mark.parametrize("every_s", [0.4, 0.7])
def test_a_job_that_shares_no_gpu_starts_behind_a_stream_that_does(make: type[SharePairs], every_s: float) -> None:
    alone = job(1, 10.0, 9.0)
    jobs = jobs_that_starve(every_s, alone)
    outcome = simulated(jobs, make(), 2.0)
    check_bound(jobs, outcome, 2.0, 9.0)
    assert outcome.start_s[0, jobs.index(alone)] < 120.0


def test_without_the_limit_it_would_starve() -> None:
    alone = job(1, 10.0, 9.0)
    jobs = jobs_that_starve(0.4, alone)
    assert simulated(jobs, Greedy(), INF).start_s[0, jobs.index(alone)] > 250.0


@pytest.mark.parametrize("make", [Greedy, SharePairs])
def test_a_gang_starts_behind_a_stream_that_shares(make: type[SharePairs]) -> None:
    gang = job(4, 10.0, 6.0)
    jobs = jobs_that_starve(0.4, gang, job(1, 12.0, 9.0))
    outcome = simulated(jobs, make(), 2.0)
    check_bound(jobs, outcome, 2.0, max(9.0, float(np.nanmax(outcome.end_s[0] - outcome.start_s[0]))))


def test_a_long_job_that_shares_starts_too() -> None:
    long = job(1, 10.0, 60.0, shareable=True)
    jobs = jobs_that_starve(0.4, long)
    outcome = simulated(jobs, Greedy(), 2.0)
    check_bound(jobs, outcome, 2.0, 80.0)
