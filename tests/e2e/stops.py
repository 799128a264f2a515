"""Lists of jobs that are stopped and go on, replayed by the running suite: what must have become of each attempt."""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np

from adlro.cli.replaying import ReplayOptions, ReplayResult, replay, replay_specs
from adlro.client import AsyncClient
from adlro.decide.policies import Policy
from adlro.records.jobs import JobState
from adlro.sim.batch import BatchSimulator
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario

CLUSTER = load_scenario("paper").cluster
ROUNDING_S = 1e-6
PATIENCE_S = 240.0
"""Of clients with services that were killed: on a busy machine one takes long to come back."""
ALLOWED = {"ADLRO_ORCHESTRATOR_PREEMPTION": "on", "ADLRO_ORCHESTRATOR_PREEMPTION_MIN_RUN_S": "0"}
"""Settings of an owner who lets jobs be stopped at any time."""


def drawn(scenario: str, load: float, count: int, seed: int, share: float = 1.0) -> list[WorkloadJob]:
    """A list for the cluster of a suite, each job with a user of its own list.

    Args:
        share: of the jobs that may be stopped.
    """
    rules = replace(load_scenario(scenario), preemptible_share=share)
    jobs = draw_jobs(rules, load=load, count=count, rng=np.random.default_rng(seed))
    # What users have had of GPU time outlasts a replay. The nodes of the scenario have more cores than these.
    mark = uuid.uuid4().hex[:8]
    return [replace(job, user=f"{job.user}.{mark}", cpu_cores=min(job.cpu_cores, 5)) for job in jobs]


async def replayed(server: str, jobs: list[WorkloadJob], policy: str) -> ReplayResult:
    """A replay in virtual time, at the end of which all jobs have succeeded."""
    async with AsyncClient(server, patience_s=PATIENCE_S) as client:
        options = ReplayOptions(policy=policy, patience_s=PATIENCE_S)
        result = await replay(client, replay_specs(jobs), options)
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    return result


def check_as_simulated(result: ReplayResult, jobs: list[WorkloadJob], policy: Policy) -> int:
    """Every attempt started and ended when and where it does in the simulator; returns how many were stopped."""
    gpu_ids = [gpu.gpu_id for _, gpu in result.cluster.gpus()]
    simulator = BatchSimulator(CLUSTER, pack_jobs([jobs], CLUSTER), preempts=policy.preempts)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    assert not outcome.stuck.any()
    assert [len(job.attempts) for job in result.jobs] == outcome.attempts[0].tolist()
    runs = sorted((run.job, run.start_s, run.end_s, run.gpus, run.stopped) for run in outcome.runs(0))
    found = sorted(
        (
            number,
            (each.start_s or 0.0) - result.begin_s,
            (each.end_s or 0.0) - result.begin_s,
            tuple(map(gpu_ids.index, each.placement.gpu_ids)),
            each.preempted,
        )
        for number, job in enumerate(result.jobs)
        for each in job.attempts
    )
    assert [(run[0], run[3], run[4]) for run in found] == [(run[0], run[3], run[4]) for run in runs]
    for place in (1, 2):
        ours, theirs = ([run[place] for run in each] for each in (found, runs))
        np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=0, atol=ROUNDING_S)
    ends_s = [job.end_s for job in result.jobs]
    np.testing.assert_allclose(np.array(ends_s) - result.begin_s, outcome.end_s[0], rtol=0, atol=ROUNDING_S)
    last = [tuple(map(gpu_ids.index, job.attempts[-1].placement.gpu_ids)) for job in result.jobs]
    assert last == [gpus_of(row) for row in outcome.gpus[0]]
    return int(outcome.stops[0])
