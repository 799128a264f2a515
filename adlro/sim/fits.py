"""Which waiting jobs fit in the batched simulator, so that the policy is asked. numpy and numba only.

No Python objects; adlro/sim/kernel.py calls this module. Most nodes have GPUs of one model and memory: there the number
of idle ones says all (`Machines.node_idle`).
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.sim.course import ASKS_SHARES, ASKS_STOPS, Course, has_gangs, has_shares, has_stops
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.gangs import NEVER, is_startable, most_given
from adlro.state.job_arrays import JobArrays
from adlro.state.room import gpu_has_memory, node_has_room


@compiled_part
def takes(hardware: Hardware, jobs: JobArrays, n: int, number: int, job: int, gpu: int) -> bool:
    """Whether the GPU has the memory for the job, and is of a model that the job runs on."""
    return bool(
        gpu_has_memory(jobs.gpu_memory_mib[number, job], hardware.gpu_memory_mib[n, gpu])
        and jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] < np.inf
    )


@compiled_part
def may_run_on(jobs: JobArrays, number: int, job: int, node: int) -> bool:
    """Whether a job may run on a node at all."""
    return bool(jobs.node_allowed.shape[2] == 0 or jobs.node_allowed[number, job, node])


@compiled_part
def may_enter_node(
    hardware: Hardware, machines: Machines, jobs: JobArrays, n: int, number: int, job: int, node: int
) -> bool:
    """Whether a job may start on a node now, as far as its choice and other jobs there are concerned.

    Each job holds a core at least (`check_jobs`): a node is empty where all its cores are free.
    """
    if jobs.exclusive[number, job] and machines.cores_free[n, node] != hardware.node_cores[n, node]:
        return False
    return may_run_on(jobs, number, job, node)


@compiled_part
def is_idle(machines: Machines, n: int, gpu: int) -> bool:
    """Whether the GPU is present and no job holds it."""
    return bool((machines.gpu_job[n, gpu] == IDLE) & (machines.gpu_speed[n, gpu] > 0.0))


@compiled_part
def able_on_node(
    hardware: Hardware, machines: Machines, jobs: JobArrays, n: int, number: int, job: int, model: int, node: int
) -> int:
    """Idle GPUs of a node, of one model, that have the memory for the job."""
    if machines.node_idle[n, node] == 0:
        return 0
    first, gpu_memory_mib = hardware.node_first_gpu[n, node], jobs.gpu_memory_mib[number, job]
    if hardware.node_model[n, node] >= 0:
        if hardware.node_model[n, node] != model or not gpu_has_memory(
            gpu_memory_mib, hardware.gpu_memory_mib[n, first]
        ):
            return 0
        return int(machines.node_idle[n, node])
    able = 0
    for gpu in range(first, hardware.node_first_gpu[n, node + 1]):
        able += (
            is_idle(machines, n, gpu)
            & (hardware.gpu_model[n, gpu] == model)
            & gpu_has_memory(gpu_memory_mib, hardware.gpu_memory_mib[n, gpu])
        )
    return able


@compiled_part
def find_gives(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, model: int
) -> int:
    """Fills in what nodes can give a job now of a model's GPUs: `course.node` and `gives`; returns their number."""
    number, count = course.list_of[n], 0
    for node in range(hardware.node_cores.shape[1]):
        able = able_on_node(hardware, machines, jobs, n, number, job, model, node)
        if able > 0 and not may_enter_node(hardware, machines, jobs, n, number, job, node):
            able = 0
        if able > 0:
            able = most_given(
                able,
                jobs.cores[number, job],
                jobs.memory_mib[number, job],
                machines.cores_free[n, node],
                machines.memory_free_mib[n, node],
            )
        if able > 0:
            course.node[n, count], course.gives[n, count] = node, able
            count += 1
    return count


@compiled_call
def _gang_fits(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, model: int
) -> bool:
    """Whether a waiting job of several GPUs fits on a model's GPUs now."""
    number, packed = course.list_of[n], course.job_nodes[n, job, model]
    if packed == NEVER or jobs.gpu_count[number, job] > machines.idle_count[n]:
        return False
    count = find_gives(hardware, machines, jobs, course, n, job, model)
    return bool(
        is_startable(
            course.gives[n],
            count,
            jobs.gpu_count[number, job],
            packed,
            jobs.max_nodes[number, job],
            jobs.expected_spread_speed[number, job, model],
        )
    )


@compiled_call
def some_gang_fits(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, model: int) -> bool:
    """Whether some waiting job of several GPUs fits on a model's GPUs now."""
    number = course.list_of[n]
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        if jobs.gpu_count[number, job] > 1 and _gang_fits(hardware, machines, jobs, course, n, job, model):
            return True
    return False


@compiled_part
def something_fits(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    first_job: int,
    first_node: int,
    end_node: int,
) -> bool:
    """Whether some waiting job fits on some GPU now.

    Args:
        first_job: jobs from this number on are tested on all nodes.
        first_node, end_node: the other jobs only on these nodes: elsewhere nothing has changed since they fitted on
            none.
    """
    if machines.idle_count[n] == 0:
        return False
    number, several = course.list_of[n], has_gangs(course)
    # From the end, where the newest jobs are.
    for i in range(course.waiting_count[n] - 1, -1, -1):
        job = course.waiting[n, i]
        low, high = (0, hardware.node_cores.shape[1]) if job >= first_job else (first_node, end_node)
        if low >= high:
            return False
        if several and jobs.gpu_count[number, job] > 1:
            if _gang_fits_by_node(hardware, machines, jobs, course, n, job, low, high):
                return True
            continue
        cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
        for node in range(low, high):
            left, memory_left_mib = machines.cores_free[n, node], machines.memory_free_mib[n, node]
            if (
                machines.node_idle[n, node] > 0
                and node_has_room(cores, memory_mib, left, memory_left_mib)
                and may_enter_node(hardware, machines, jobs, n, number, job, node)
                and fits_on_node(hardware, machines, jobs, n, number, job, node)
            ):
                return True
    return False


@compiled_call
def _gang_fits_by_node(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, low: int, high: int
) -> bool:
    """Whether a waiting job of several GPUs fits now on GPUs of a model that some node of a range has idle."""
    number = course.list_of[n]
    if jobs.gpu_count[number, job] > machines.idle_count[n]:
        return False
    before = -1
    for node in range(low, high):
        if machines.node_idle[n, node] == 0:
            continue
        model = hardware.node_model[n, node]
        if model >= 0:
            if model != before and _gang_fits(hardware, machines, jobs, course, n, job, model):
                return True
            before = model
            continue
        for other in range(course.job_nodes.shape[2]):
            if _gang_fits(hardware, machines, jobs, course, n, job, other):
                return True
        return False
    return False


@compiled_part
def fits_on_node(
    hardware: Hardware, machines: Machines, jobs: JobArrays, n: int, number: int, job: int, node: int
) -> bool:
    """Whether some idle GPU of a node that has some has the memory for the job, and is of a model that it runs on."""
    first = hardware.node_first_gpu[n, node]
    if hardware.node_model[n, node] >= 0:
        return takes(hardware, jobs, n, number, job, first)
    for gpu in range(first, hardware.node_first_gpu[n, node + 1]):
        if is_idle(machines, n, gpu) and takes(hardware, jobs, n, number, job, gpu):
            return True
    return False


@compiled_part
def count_feasible_idle(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int) -> int:
    """Idle GPUs that some waiting job fits on; of a job of several GPUs all of the model count, or none."""
    number, several, feasible = course.list_of[n], has_gangs(course), 0
    gang_model, gang_fits = -1, False
    for node in range(hardware.node_cores.shape[1]):
        left = machines.node_idle[n, node]
        gpu = hardware.node_first_gpu[n, node]
        while left > 0:
            while not is_idle(machines, n, gpu):
                gpu += 1
            alike = left if hardware.node_model[n, node] >= 0 else 1
            for i in range(course.waiting_count[n]):
                job = course.waiting[n, i]
                if (
                    node_has_room(
                        jobs.cores[number, job],
                        jobs.memory_mib[number, job],
                        machines.cores_free[n, node],
                        machines.memory_free_mib[n, node],
                    )
                    and takes(hardware, jobs, n, number, job, gpu)
                    and may_enter_node(hardware, machines, jobs, n, number, job, node)
                ):
                    if several and jobs.gpu_count[number, job] > 1:
                        if hardware.gpu_model[n, gpu] != gang_model:
                            gang_model = hardware.gpu_model[n, gpu]
                            gang_fits = some_gang_fits(hardware, machines, jobs, course, n, gang_model)
                        if not gang_fits:
                            continue
                    feasible += alike
                    break
            left -= alike
            gpu += 1
    return feasible


@compiled_call
def is_asked(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int) -> bool:
    """Whether the policy is asked although no waiting job fits."""
    if course.waiting_count[n] == 0:
        return False
    number, asks = course.list_of[n], course.asks[n]
    if has_stops(course) and (asks & ASKS_STOPS) != 0:
        for gpu in range(hardware.gpu_count[n]):
            job = machines.gpu_job[n, gpu]
            if job != IDLE and jobs.preemptible[number, job]:
                return True
        for gpu in range(machines.mate_job.shape[1]):
            job = machines.mate_job[n, gpu]
            if job != IDLE and jobs.preemptible[number, job]:
                return True
    if has_shares(course) and (asks & ASKS_SHARES) != 0:
        for gpu in range(machines.mate_job.shape[1]):
            job = machines.gpu_job[n, gpu]
            if job != IDLE and machines.mate_job[n, gpu] == IDLE and jobs.shareable[number, job]:
                return True
    return False
