"""Lists of jobs that share GPUs, replayed by the running suite: what must have become of each attempt."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, ReplayResult, replay, replay_specs
from adlro.client import AsyncClient
from adlro.records.jobs import Job, JobAttempt, JobState
from adlro.sim.batch import BatchOutcome
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.pairs import pair_table
from adlro.workload.scenario import load_scenario

SCENARIO = load_scenario("shared")
MODELS = SCENARIO.cluster.gpu_models
ROUNDING_S = 1e-6
PATIENCE_S = 240.0
"""Of clients with services that were killed: on a busy machine one takes long to come back."""


def drawn(load: float, count: int, seed: int) -> list[WorkloadJob]:
    """A list for the cluster of the scenario, each job with a user of its own list."""
    jobs = draw_jobs(SCENARIO, load=load, count=count, rng=np.random.default_rng(seed))
    mark = uuid.uuid4().hex[:8]  # what users have had of GPU time outlasts a replay
    return [replace(job, user=f"{job.user}.{mark}") for job in jobs]


async def replayed(server: str, jobs: list[WorkloadJob], policy: str) -> ReplayResult:
    """A replay in virtual time, at the end of which all jobs have succeeded."""
    async with AsyncClient(server, patience_s=PATIENCE_S) as client:
        result = await replay(client, replay_specs(jobs), ReplayOptions(policy=policy, patience_s=PATIENCE_S))
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    return result


def check_as_simulated(result: ReplayResult, outcome: BatchOutcome) -> None:
    """Every job started and ended when and where it does in the simulator."""
    gpu_ids = [gpu.gpu_id for _, gpu in result.cluster.gpus()]
    runs = {run.job: run for run in outcome.runs(0)}
    for number, job in enumerate(result.jobs):
        (attempt,), run = job.attempts, runs[number]
        assert tuple(map(gpu_ids.index, attempt.placement.gpu_ids)) == run.gpus, job.job_id
        assert (attempt.start_s or 0.0) - result.begin_s == pytest.approx(run.start_s, abs=ROUNDING_S)
        assert (attempt.end_s or 0.0) - result.begin_s == pytest.approx(run.end_s, abs=ROUNDING_S)


def check_shared_work(result: ReplayResult, jobs: list[WorkloadJob]) -> int:
    """The last attempt of each job did all its work: at full speed alone, beside each other at the share that it keeps.

    Its record has the time beside each. Returns how many had a neighbour.
    """
    table, durations_s = pair_table(MODELS), pack_jobs([jobs], SCENARIO.cluster).duration_s[0]
    family = table.families([job.application for job in jobs])
    shared = 0
    for number, job in enumerate(result.jobs):
        last = job.attempts[-1]
        assert [each.share for each in last.placement.gpus] == [0.5]
        model = MODELS.index(last.gpu_model)
        worked_s, beside_s = (last.end_s or 0.0) - (last.start_s or 0.0), 0.0
        for other, together_s in _others(job, last, result.jobs):
            worked_s -= together_s * (1.0 - table.kept[family[number], family[other], model])
            beside_s += together_s
        assert worked_s == pytest.approx(durations_s[number, model], abs=1e-5), job.job_id
        assert sum(each.time_s for each in last.neighbours) == pytest.approx(beside_s, abs=ROUNDING_S), job.job_id
        shared += beside_s > 0.0
    return shared


def _others(job: Job, attempt: JobAttempt, jobs: Sequence[Job]) -> Iterator[tuple[int, float]]:
    """The numbers of the jobs that ran on the attempt's GPU with it, and how long."""
    for number, other in enumerate(jobs):
        for each in other.attempts:
            if other is job or each.placement.gpu_ids != attempt.placement.gpu_ids or each.start_s is None:
                continue
            end_s = min(attempt.end_s or 0.0, each.end_s or 0.0)
            yield number, max(0.0, end_s - max(attempt.start_s or 0.0, each.start_s))
