"""Copies one cluster's state in the batched simulator, so that its future can be simulated from there.

A rollout copies a cluster at a decision to a row of a scratch batch, acts there, and continues the simulation: the
cluster itself stays unchanged. Scratch rows have the hardware, the job lists and the changes of their source. numpy and
numba only.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled_part
from adlro.sim.course import Course, GpuChanges, new_course
from adlro.state.cluster_arrays import Hardware, Machines, empty_machines
from adlro.state.job_arrays import JobArrays


def scratch(hardware: Hardware, jobs: JobArrays, changes: GpuChanges, rows: int) -> tuple[Hardware, Machines, Course]:
    """Room for copies of clusters with the hardware of cluster 0.

    Args:
        hardware: the source's hardware.
        jobs: the lists of the copies: the source's, or longer ones.
        changes: the same for changes of GPUs.
        rows: number of copies at a time.
    """
    same = Hardware(*(np.repeat(column[:1], rows, axis=0) for column in hardware))
    course = new_course(same, jobs, changes, np.zeros(rows, dtype=np.int64), start_cost_s=np.zeros(rows))
    return same, empty_machines(same), course


@compiled_part
def copy_machines(source: Machines, n: int, target: Machines, m: int) -> None:
    """Copies the machines of cluster n of `source` to cluster m of `target`."""
    target.time_s[m] = source.time_s[n]
    target.idle_count[m] = source.idle_count[n]
    target.running_count[m] = source.running_count[n]
    target.launch_count[m] = source.launch_count[n]
    target.gang_count[m] = source.gang_count[n]
    target.lost_count[m] = source.lost_count[n]
    for gpu in range(source.gpu_job.shape[1]):
        target.gpu_job[m, gpu] = source.gpu_job[n, gpu]
        target.gpu_start_s[m, gpu] = source.gpu_start_s[n, gpu]
        target.gpu_end_s[m, gpu] = source.gpu_end_s[n, gpu]
        target.gpu_expected_end_s[m, gpu] = source.gpu_expected_end_s[n, gpu]
        target.gpu_work_from_s[m, gpu] = source.gpu_work_from_s[n, gpu]
        target.gpu_gang[m, gpu] = source.gpu_gang[n, gpu]
        target.gpu_launch[m, gpu] = source.gpu_launch[n, gpu]
        target.gpu_cores[m, gpu] = source.gpu_cores[n, gpu]
        target.gpu_memory_mib[m, gpu] = source.gpu_memory_mib[n, gpu]
        target.gpu_speed[m, gpu] = source.gpu_speed[n, gpu]
    for gpu in range(min(source.mate_job.shape[1], target.mate_job.shape[1])):
        target.gpu_kept[m, gpu] = source.gpu_kept[n, gpu]
        target.gpu_told[m, gpu] = source.gpu_told[n, gpu]
        target.mate_job[m, gpu] = source.mate_job[n, gpu]
        target.mate_start_s[m, gpu] = source.mate_start_s[n, gpu]
        target.mate_end_s[m, gpu] = source.mate_end_s[n, gpu]
        target.mate_expected_end_s[m, gpu] = source.mate_expected_end_s[n, gpu]
        target.mate_work_from_s[m, gpu] = source.mate_work_from_s[n, gpu]
        target.mate_launch[m, gpu] = source.mate_launch[n, gpu]
        target.mate_cores[m, gpu] = source.mate_cores[n, gpu]
        target.mate_memory_mib[m, gpu] = source.mate_memory_mib[n, gpu]
        target.mate_kept[m, gpu] = source.mate_kept[n, gpu]
        target.mate_told[m, gpu] = source.mate_told[n, gpu]
    for node in range(source.cores_free.shape[1]):
        target.cores_free[m, node] = source.cores_free[n, node]
        target.memory_free_mib[m, node] = source.memory_free_mib[n, node]
        target.node_idle[m, node] = source.node_idle[n, node]
        target.node_end_s[m, node] = source.node_end_s[n, node]


@compiled_part
def copy_course(jobs: JobArrays, source: Course, n: int, target: Course, m: int) -> None:
    """Copies the course of cluster n of `source` to cluster m of `target`.

    Omits the fields that a continuation never reads: the record of ended runs stays the target's own.
    """
    number = source.list_of[n]
    target.list_of[m] = number
    target.start_cost_s[m] = source.start_cost_s[n]
    target.status[m] = source.status[n]
    target.waiting_count[m] = source.waiting_count[n]
    target.arrived_count[m] = source.arrived_count[n]
    target.finished_count[m] = source.finished_count[n]
    target.impossible_count[m] = source.impossible_count[n]
    target.next_change[m] = source.next_change[n]
    target.hold_until_s[m] = source.hold_until_s[n]
    target.last_event_s[m] = source.last_event_s[n]
    target.feasible_idle[m] = source.feasible_idle[n]
    target.priority_sum[m] = source.priority_sum[n]
    target.reserved_job[m] = source.reserved_job[n]
    target.run_count[m] = 0
    target.asks[m] = source.asks[n]
    target.min_run_s[m] = source.min_run_s[n]
    target.stop_count[m] = 0
    for job in range(jobs.job_count[number]):
        target.job_state[m, job] = source.job_state[n, job]
        target.job_start_s[m, job] = source.job_start_s[n, job]
        target.job_end_s[m, job] = source.job_end_s[n, job]
        for i in range(source.job_gpus.shape[2]):
            target.job_gpus[m, job, i] = source.job_gpus[n, job, i]
        for model in range(source.job_nodes.shape[2]):
            target.job_nodes[m, job, model] = source.job_nodes[n, job, model]
        target.job_attempts[m, job] = source.job_attempts[n, job]
    stoppable = source.job_share.shape[1] > 0
    for job in range(min(target.job_share.shape[1], jobs.job_count[number])):
        target.job_share[m, job] = source.job_share[n, job] if stoppable else 1.0
        target.job_stops[m, job] = source.job_stops[n, job] if stoppable else 0
        target.job_full_s[m, job] = source.job_full_s[n, job] if stoppable else 0.0
        target.job_attained_s[m, job] = source.job_attained_s[n, job] if stoppable else 0.0
    for i in range(source.waiting_count[n]):
        target.waiting[m, i] = source.waiting[n, i]
    for gpu in range(source.known_speed.shape[1]):
        target.known_speed[m, gpu] = source.known_speed[n, gpu]
    for user in range(source.user_service_s.shape[1]):
        target.user_service_s[m, user] = source.user_service_s[n, user]
    for total in range(source.totals.shape[1]):
        target.totals[m, total] = source.totals[n, total]
