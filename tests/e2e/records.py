"""What must hold for the records of jobs that ended, whatever placed them. From the records alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.records.cluster import Cluster
from adlro.records.jobs import Job


@dataclass(frozen=True, slots=True)
class Hold:
    """One attempt's hold on a GPU, and on cores and memory of its node."""

    job: Job
    gpu_id: str
    start_s: float
    end_s: float


def holds(jobs: Iterable[Job]) -> list[Hold]:
    """Every attempt that ran, once for each of its GPUs, in the order of start."""
    found = [
        Hold(job, gpu_id, attempt.start_s, attempt.end_s)
        for job in jobs
        for attempt in job.attempts
        if attempt.start_s is not None and attempt.end_s is not None
        for gpu_id in attempt.placement.gpu_ids
    ]
    return sorted(found, key=lambda hold: (hold.start_s, hold.end_s))


def check_placements(jobs: Sequence[Job], cluster: Cluster) -> None:
    """AssertionError where a GPU had two jobs at once, or a node or a GPU had less than its jobs asked for."""
    node_of = {gpu.gpu_id: node for node, gpu in cluster.gpus()}
    gpu_of = {gpu.gpu_id: gpu for _, gpu in cluster.gpus()}
    free_from: dict[str, float] = {}
    changes: dict[str, list[tuple[float, int, int, int]]] = defaultdict(list)
    for job in jobs:
        for attempt in job.attempts:
            gpu_ids = attempt.placement.gpu_ids
            assert len(set(gpu_ids)) == job.spec.gpu_count, f"{job.job_id} asked for other GPUs than {gpu_ids}"
            assert {gpu_of[each].gpu_model for each in gpu_ids if each in gpu_of} <= {attempt.gpu_model}
    for hold in holds(jobs):
        spec, name = hold.job.spec, hold.job.job_id
        assert hold.gpu_id in gpu_of, f"{name} ran on {hold.gpu_id}, which is no GPU of the cluster"
        assert spec.gpu_memory_mib <= gpu_of[hold.gpu_id].memory_mib, f"{name} does not fit {hold.gpu_id}"
        assert hold.job.spec.begin_time_s is None or hold.start_s >= hold.job.spec.begin_time_s, f"{name} is early"
        assert hold.end_s >= hold.start_s
        assert free_from.get(hold.gpu_id, -np.inf) <= hold.start_s, f"{name} started on {hold.gpu_id} while it was busy"
        free_from[hold.gpu_id] = hold.end_s
        # At one moment ends come before starts.
        there = changes[node_of[hold.gpu_id].node_id]
        there.append((hold.start_s, 1, spec.cpu_cores, spec.memory_mib))
        there.append((hold.end_s, 0, -spec.cpu_cores, -spec.memory_mib))
    for node in cluster.nodes:
        cores = memory_mib = 0
        for time_s, _, more_cores, more_memory_mib in sorted(changes[node.node_id]):
            cores += more_cores
            memory_mib += more_memory_mib
            assert cores <= node.cpu_cores, f"{cores} cores were in use on {node.node_id} at {time_s}"
            assert memory_mib <= node.memory_mib, f"{memory_mib} MiB were in use on {node.node_id} at {time_s}"
        assert (cores, memory_mib) == (0, 0)


def mean_jct_s(jobs: Sequence[Job]) -> float:
    """Mean over all jobs of end minus submission."""
    return float(np.mean([_end_s(job) - _submit_s(job) for job in jobs]))


def makespan_s(jobs: Sequence[Job]) -> float:
    """First submission to last end."""
    return max(map(_end_s, jobs)) - min(map(_submit_s, jobs))


def mean_jobs_in_system(jobs: Sequence[Job], samples: int = 20_000) -> float:
    """Jobs submitted and not ended, looked at in even steps over the makespan."""
    submits, ends = np.sort([_submit_s(job) for job in jobs]), np.sort([_end_s(job) for job in jobs])
    times_s = submits[0] + (np.arange(samples) + 0.5) / samples * makespan_s(jobs)
    counts = np.searchsorted(submits, times_s, side="right") - np.searchsorted(ends, times_s, side="right")
    return float(counts.mean())


def _submit_s(job: Job) -> float:
    assert job.submit_s is not None, f"{job.job_id} has no submission"
    return job.submit_s


def _end_s(job: Job) -> float:
    assert job.end_s is not None, f"{job.job_id} has not ended"
    return job.end_s
