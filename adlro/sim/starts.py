"""Starts, ends and stops of jobs in the batched simulator. numpy and numba only.

No Python objects. `adlro/sim/kernel.py` says when jobs end and when a policy decides; the state is
`adlro/sim/course.py`, the physics of GPUs `adlro/state/machines.py`.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.sim.course import (
    FINISHED,
    RUNNING,
    WAITING,
    Course,
    has_gangs,
    has_shares,
    has_stops,
    join_queue,
    leave_queue,
    restart_s,
    share_left,
)
from adlro.sim.fits import may_enter_node, may_run_on
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.gangs import NEVER
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import (
    WHOLE_NODES,
    has_mates,
    occupy,
    occupy_beside,
    occupy_gang,
    share_at_stop,
    swap_mates,
    vacate,
    works,
)
from adlro.state.observation import Ints
from adlro.state.room import has_room, node_has_room


@compiled_part
def end_run(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int, completed: bool
) -> None:
    """Ends the job on a GPU now: it is complete, or lost, and then waits again."""
    job, time_s = machines.gpu_job[n, gpu], machines.time_s[n]
    number = course.list_of[n]
    run = course.run_count[n]
    course.run_job[n, run] = job
    course.run_gpus[n, run, 0] = gpu
    course.run_start_s[n, run] = machines.gpu_start_s[n, gpu]
    course.run_end_s[n, run] = time_s
    course.run_completed[n, run] = completed
    course.run_count[n] = run + 1
    held_s = time_s - machines.gpu_start_s[n, gpu]
    if has_gangs(course):
        held_s *= machines.gpu_gang[n, gpu]
        for i in range(course.run_gpus.shape[2]):
            course.run_gpus[n, run, i] = course.job_gpus[n, job, i]
    course.user_service_s[n, jobs.user[number, job]] += held_s
    if has_stops(course):
        course.job_attained_s[n, job] += held_s
    vacate(hardware, machines, n, gpu)
    if completed:
        course.job_state[n, job] = FINISHED
        course.job_end_s[n, job] = time_s
        course.finished_count[n] += 1
        course.priority_sum[n] -= jobs.priority[number, job]
    else:
        join_queue(course, n, job)


@compiled_part
def start(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, gpu: int) -> bool:
    """Starts a waiting job of one GPU now; returns False without a change if it does not wait or does not fit."""
    number = course.list_of[n]
    if not (0 <= job < jobs.job_count[number] and 0 <= gpu < hardware.gpu_count[n]):
        return False
    node, model = hardware.gpu_node[n, gpu], hardware.gpu_model[n, gpu]
    duration_s = jobs.duration_s[number, job, model]
    if (
        course.job_state[n, job] != WAITING
        or machines.gpu_job[n, gpu] != IDLE
        or machines.gpu_speed[n, gpu] == 0.0
        or duration_s == np.inf
        or not has_room(
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            jobs.gpu_memory_mib[number, job],
            machines.cores_free[n, node],
            machines.memory_free_mib[n, node],
            hardware.gpu_memory_mib[n, gpu],
        )
        or (has_gangs(course) and jobs.gpu_count[number, job] != 1)
        or not may_enter_node(hardware, machines, jobs, n, number, job, node)
    ):
        return False
    # Schedulers do not know the start cost, here as in service: no cluster reports it.
    expected_s = jobs.expected_s[number, job, model] / course.known_speed[n, gpu]
    occupy(
        hardware,
        machines,
        n,
        gpu,
        job,
        duration_s,
        share_left(course, n, job),
        course.start_cost_s[n],
        restart_s(jobs, course, n, job),
        expected_s,
        WHOLE_NODES if jobs.exclusive[number, job] else jobs.cores[number, job],
        jobs.memory_mib[number, job],
    )
    _note_start(machines, course, n, job, duration_s)
    course.job_gpus[n, job, 0] = gpu
    return True


@compiled_part
def _note_start(machines: Machines, course: Course, n: int, job: int, full_s: float) -> None:
    """Notes in the course that a job runs, with the duration of its whole work; the caller notes its GPUs."""
    leave_queue(course, n, job)
    course.job_state[n, job] = RUNNING
    course.job_start_s[n, job] = machines.time_s[n]
    course.job_attempts[n, job] += 1
    if has_stops(course):
        course.job_full_s[n, job] = full_s
    if course.reserved_job[n] == job:
        course.reserved_job[n] = -1


@compiled_call
def start_gang(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, gpus: Ints
) -> bool:
    """Starts a waiting job now; returns False without a change if it does not wait or does not fit.

    Args:
        gpus: (W,) the GPUs in ascending order, then -1.
    """
    number = course.list_of[n]
    if not (0 <= job < jobs.job_count[number] and course.job_state[n, job] == WAITING):
        return False
    size = jobs.gpu_count[number, job]
    if size == 1:
        return bool((gpus.shape[0] == 1 or gpus[1] < 0) and start(hardware, machines, jobs, course, n, job, gpus[0]))
    if not _may_have(hardware, machines, jobs, course, n, job, gpus, size, False):
        return False
    full_s = _full_s(hardware, jobs, course, n, job, gpus, size)
    if full_s == np.inf:
        return False
    _begin(hardware, machines, jobs, course, n, job, gpus, size, full_s)
    return True


@compiled_call
def start_stopping(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, gpus: Ints
) -> bool:
    """Stops whatever runs on some GPUs, on all of its GPUs, and starts a waiting job there now: one act.

    Returns False without a change if the job does not wait or would not fit then, or one on its GPUs can't be stopped;
    or if it is exclusive: such a job waits for empty nodes.

    Args:
        gpus: (W,) the GPUs in ascending order, then -1.
    """
    number = course.list_of[n]
    if not (0 <= job < jobs.job_count[number] and course.job_state[n, job] == WAITING):
        return False
    size = jobs.gpu_count[number, job]
    if jobs.exclusive[number, job] or not _may_have(hardware, machines, jobs, course, n, job, gpus, size, True):
        return False
    full_s = _full_s(hardware, jobs, course, n, job, gpus, size)
    if full_s == np.inf:
        return False
    for i in range(size):
        while machines.gpu_job[n, gpus[i]] != IDLE:
            _stop(hardware, machines, jobs, course, n, gpus[i])
    _begin(hardware, machines, jobs, course, n, job, gpus, size, full_s)
    return True


@compiled_part
def _may_stop(machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int) -> bool:
    """Whether whatever runs on a GPU may be stopped now."""
    if has_mates(machines) and machines.mate_job[n, gpu] != IDLE:
        swap_mates(machines, n, gpu)
        may = _may_stop_first(machines, jobs, course, n, gpu)
        swap_mates(machines, n, gpu)
        if not may:
            return False
    return _may_stop_first(machines, jobs, course, n, gpu)


@compiled_part
def _may_stop_first(machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int) -> bool:
    """Whether the job on a GPU may be stopped now, of two the first."""
    return bool(
        jobs.preemptible[course.list_of[n], machines.gpu_job[n, gpu]]
        and works(machines, n, gpu)
        and machines.time_s[n] - machines.gpu_start_s[n, gpu] >= course.min_run_s[n]
    )


@compiled_part
def _stop(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int) -> None:
    """Stops the job on a GPU: it waits again with what it has left."""
    job, number = machines.gpu_job[n, gpu], course.list_of[n]
    start_s, end_s = machines.gpu_start_s[n, gpu], machines.time_s[n]
    course.job_share[n, job] = share_at_stop(
        machines, n, gpu, course.job_share[n, job], course.job_full_s[n, job], jobs.lost_s[number, job]
    )
    course.job_stops[n, job] += 1
    stop = course.stop_count[n]
    if stop < course.stop_job.shape[1]:
        course.stop_job[n, stop] = job
        course.stop_start_s[n, stop], course.stop_end_s[n, stop] = start_s, end_s
        for i in range(course.stop_gpus.shape[2]):
            course.stop_gpus[n, stop, i] = course.job_gpus[n, job, i]
    course.stop_count[n] = stop + 1
    held_s = (end_s - start_s) * machines.gpu_gang[n, gpu]
    course.user_service_s[n, jobs.user[number, job]] += held_s
    course.job_attained_s[n, job] += held_s
    vacate(hardware, machines, n, gpu)
    join_queue(course, n, job)


@compiled_call
def _freed(hardware: Hardware, machines: Machines, n: int, node: int, gpus: Ints, size: int) -> tuple[int, int]:
    """Cores and memory of a node that the jobs on some GPUs hold, with all their GPUs there."""
    cores, memory_mib = 0, 0
    for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
        if machines.gpu_job[n, gpu] != IDLE:
            for i in range(size):
                if machines.gpu_job[n, gpus[i]] == machines.gpu_job[n, gpu]:
                    cores += machines.gpu_cores[n, gpu]
                    memory_mib += machines.gpu_memory_mib[n, gpu]
                    break
    if has_mates(machines):
        for i in range(size):
            if hardware.gpu_node[n, gpus[i]] == node and machines.mate_job[n, gpus[i]] != IDLE:
                cores += machines.mate_cores[n, gpus[i]]
                memory_mib += machines.mate_memory_mib[n, gpus[i]]
    return cores, memory_mib


@compiled_call
def start_beside(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, gpu: int
) -> bool:
    """Starts a waiting job now beside the one that is alone on a GPU; returns False without a change if it may not."""
    number = course.list_of[n]
    if not (has_shares(course) and has_mates(machines) and 0 <= job < jobs.job_count[number]):
        return False
    if not 0 <= gpu < hardware.gpu_count[n] or machines.gpu_job[n, gpu] == IDLE or machines.mate_job[n, gpu] != IDLE:
        return False
    first, node, model = machines.gpu_job[n, gpu], hardware.gpu_node[n, gpu], hardware.gpu_model[n, gpu]
    family, first_family = jobs.family[number, job], jobs.family[number, first]
    kept, first_kept = course.kept[family, first_family, model], course.kept[first_family, family, model]
    told, first_told = course.told[family, first_family, model], course.told[first_family, family, model]
    duration_s = jobs.duration_s[number, job, model]
    if not (
        course.job_state[n, job] == WAITING
        and jobs.shareable[number, job]
        and jobs.shareable[number, first]
        and jobs.gpu_count[number, job] == 1
        and may_run_on(jobs, number, job, node)
        and machines.gpu_gang[n, gpu] == 1
        and min(kept, first_kept, told, first_told) > 0.0
        and duration_s < np.inf
        and jobs.gpu_memory_mib[number, job] + jobs.gpu_memory_mib[number, first] <= hardware.gpu_memory_mib[n, gpu]
        and node_has_room(
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            machines.cores_free[n, node],
            machines.memory_free_mib[n, node],
        )
    ):
        return False
    occupy_beside(
        hardware,
        machines,
        n,
        gpu,
        job,
        duration_s,
        share_left(course, n, job),
        course.start_cost_s[n],
        restart_s(jobs, course, n, job),
        jobs.expected_s[number, job, model] / course.known_speed[n, gpu],
        jobs.cores[number, job],
        jobs.memory_mib[number, job],
        kept,
        told,
        first_kept,
        first_told,
    )
    _note_start(machines, course, n, job, duration_s)
    course.job_gpus[n, job, 0] = gpu
    return True


@compiled_part
def _may_have(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    gpus: Ints,
    size: int,
    stops: bool,
) -> bool:
    """Whether these are `size` GPUs of one model, in ascending order, with room for a job.

    Args:
        gpus: any array of numbers.
        stops: the jobs on the GPUs are stopped first, and must allow it; otherwise all must be idle.
    """
    number = course.list_of[n]
    if gpus.shape[0] < size or (gpus.shape[0] > size and gpus[size] >= 0):
        return False
    for i in range(size):
        if not (gpus[i - 1] if i > 0 else -1) < gpus[i] < hardware.gpu_count[n]:
            return False
    on_node, cores_free, memory_free_mib = 0, 0, 0
    for i in range(size):
        gpu, node = gpus[i], hardware.gpu_node[n, gpus[i]]
        if i == 0 or node != hardware.gpu_node[n, gpus[i - 1]]:
            on_node = 0
            if not may_enter_node(hardware, machines, jobs, n, number, job, node):
                return False
            cores_free, memory_free_mib = machines.cores_free[n, node], machines.memory_free_mib[n, node]
            if stops:
                cores, memory_mib = _freed(hardware, machines, n, node, gpus, size)
                cores_free += cores
                memory_free_mib += memory_mib
        on_node += 1
        if (
            (machines.gpu_job[n, gpu] != IDLE and not (stops and _may_stop(machines, jobs, course, n, gpu)))
            or machines.gpu_speed[n, gpu] == 0.0
            or hardware.gpu_model[n, gpu] != hardware.gpu_model[n, gpus[0]]
            or not has_room(
                on_node * jobs.cores[number, job],
                on_node * jobs.memory_mib[number, job],
                jobs.gpu_memory_mib[number, job],
                cores_free,
                memory_free_mib,
                hardware.gpu_memory_mib[n, gpu],
            )
        ):
            return False
    return True


@compiled_part
def _nodes_of(hardware: Hardware, n: int, gpus: Ints, size: int) -> int:
    """The number of nodes of GPUs in ascending order."""
    nodes = 1
    for i in range(1, size):
        nodes += hardware.gpu_node[n, gpus[i]] != hardware.gpu_node[n, gpus[i - 1]]
    return nodes


@compiled_part
def _full_s(hardware: Hardware, jobs: JobArrays, course: Course, n: int, job: int, gpus: Ints, size: int) -> float:
    """Duration of a job's whole work on GPUs of one model, at speed 1; inf: it can't run there."""
    number, model = course.list_of[n], hardware.gpu_model[n, gpus[0]]
    full_s = jobs.duration_s[number, job, model]
    if size > 1:
        packed, nodes = course.job_nodes[n, job, model], _nodes_of(hardware, n, gpus, size)
        if packed == NEVER or 0 < jobs.max_nodes[number, job] < nodes:
            return np.inf
        if nodes > packed:
            if jobs.spread_speed[number, job, model] == 0.0:
                return np.inf
            full_s /= jobs.spread_speed[number, job, model]
    return float(full_s)


@compiled_part
def _begin(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    gpus: Ints,
    size: int,
    full_s: float,
) -> None:
    """Starts a waiting job of any number of GPUs, where it may."""
    number, model, known_speed = course.list_of[n], hardware.gpu_model[n, gpus[0]], np.inf
    for i in range(size):
        known_speed = min(known_speed, course.known_speed[n, gpus[i]])
    expected_s = jobs.expected_s[number, job, model] / known_speed
    if size > 1 and _nodes_of(hardware, n, gpus, size) > course.job_nodes[n, job, model]:
        expected_s /= jobs.expected_spread_speed[number, job, model]
    occupy_gang(
        hardware,
        machines,
        n,
        gpus[:size],
        job,
        full_s,
        share_left(course, n, job),
        course.start_cost_s[n],
        restart_s(jobs, course, n, job),
        expected_s,
        WHOLE_NODES if jobs.exclusive[number, job] else jobs.cores[number, job],
        jobs.memory_mib[number, job],
    )
    _note_start(machines, course, n, job, full_s)
    for i in range(course.job_gpus.shape[2]):
        course.job_gpus[n, job, i] = gpus[i] if i < size else -1
