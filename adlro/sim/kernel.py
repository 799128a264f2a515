"""Simulates job lists on N clusters: arrivals, waits, runs and ends, up to the next decision. numpy and numba.

No Python objects. `adlro/sim/batch.py` calls this module; the state is `adlro/sim/course.py`, the physics of GPUs
`adlro/state/machines.py`.

At one instant ends come first, then changes of GPUs, then submissions; then decisions, until no job fits or the policy
holds. A job of a lost GPU waits again, at its place by submission, and starts from the beginning.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled, compiled_part
from adlro.sim.course import (
    DECISION,
    DONE,
    FEASIBLE_IDLE_S,
    FINISHED,
    FUTURE,
    IDLE_S,
    IMPOSSIBLE,
    JOBS_S,
    NOT_HOLDING,
    PRIORITY_S,
    RUNNING,
    STUCK,
    WAITING,
    Course,
    GpuChanges,
    join_queue,
    leave_queue,
)
from adlro.sim.decision_points import may_hold
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import IDLE, Hardware, Machines, next_end_s, occupy, set_speed, vacate
from adlro.state.observation import HOLD_LIMIT_S, HOLD_ROUNDING_MS, Ints
from adlro.state.room import gpu_has_memory, has_room, node_has_room


@compiled_part
def _arrive(hardware: Hardware, jobs: JobArrays, course: Course, n: int, job: int) -> None:
    number = course.list_of[n]
    possible = False
    for i in range(hardware.shape_count[n]):
        model, gpu_memory_mib, node_cores, node_memory_mib = hardware.shape[n, i]
        possible = possible or (
            jobs.gpu_memory_mib[number, job] <= gpu_memory_mib
            and jobs.cores[number, job] <= node_cores
            and jobs.memory_mib[number, job] <= node_memory_mib
            and jobs.expected_s[number, job, model] < np.inf
        )
    course.arrived_count[n] += 1
    if not possible:
        course.job_state[n, job] = IMPOSSIBLE
        course.impossible_count[n] += 1
        return
    course.priority_sum[n] += jobs.priority[number, job]
    join_queue(course, n, job)


@compiled_part
def _end_run(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int, completed: bool
) -> None:
    job, time_s = machines.gpu_job[n, gpu], machines.time_s[n]
    number = course.list_of[n]
    run = course.run_count[n]
    course.run_job[n, run] = job
    course.run_gpu[n, run] = gpu
    course.run_start_s[n, run] = machines.gpu_start_s[n, gpu]
    course.run_end_s[n, run] = time_s
    course.run_completed[n, run] = completed
    course.run_count[n] = run + 1
    course.user_service_s[n, jobs.user[number, job]] += time_s - machines.gpu_start_s[n, gpu]
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
    """Starts a waiting job now; returns False without a change if it does not wait or does not fit."""
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
    ):
        return False
    cost_s = course.start_cost_s[n]
    # Schedulers do not know the start cost, here as in service: no cluster reports it.
    expected_s = jobs.expected_s[number, job, model] / course.known_speed[n, gpu]
    occupy(
        hardware,
        machines,
        n,
        gpu,
        job,
        duration_s,
        cost_s,
        expected_s,
        jobs.cores[number, job],
        jobs.memory_mib[number, job],
    )
    leave_queue(course, n, job)
    course.job_state[n, job] = RUNNING
    course.job_start_s[n, job] = machines.time_s[n]
    course.job_gpu[n, job] = gpu
    course.job_attempts[n, job] += 1
    return True


@compiled_part
def _takes(hardware: Hardware, jobs: JobArrays, n: int, number: int, job: int, gpu: int) -> bool:
    """Whether the GPU has the memory for the job, and is of a model that the job runs on."""
    return bool(
        gpu_has_memory(jobs.gpu_memory_mib[number, job], hardware.gpu_memory_mib[n, gpu])
        and jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] < np.inf
    )


@compiled_part
def hold_is_allowed(machines: Machines, jobs: JobArrays, course: Course, n: int) -> bool:
    """Whether a job runs or will be submitted: its event ends a hold."""
    return bool(may_hold(machines.running_count[n], course.arrived_count[n], jobs.job_count[course.list_of[n]]))


@compiled_part
def hold(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int) -> None:
    """Starts no more jobs until an event, or the end of the hold (`adlro.state.observation.hold_until_s`)."""
    time_s = machines.time_s[n]
    if hold_is_allowed(machines, jobs, course, n):
        wait_s = max(HOLD_LIMIT_S, time_s - course.last_event_s[n])
        course.hold_until_s[n] = np.ceil((time_s + wait_s) * 1000.0 - HOLD_ROUNDING_MS) / 1000.0
    else:
        course.hold_until_s[n] = np.inf
    number, feasible = course.list_of[n], 0
    for gpu in range(hardware.gpu_count[n]):
        if machines.gpu_job[n, gpu] != IDLE or machines.gpu_speed[n, gpu] == 0.0:
            continue
        node = hardware.gpu_node[n, gpu]
        for i in range(course.waiting_count[n]):
            job = course.waiting[n, i]
            if node_has_room(
                jobs.cores[number, job],
                jobs.memory_mib[number, job],
                machines.cores_free[n, node],
                machines.memory_free_mib[n, node],
            ) and _takes(hardware, jobs, n, number, job, gpu):
                feasible += 1
                break
    course.feasible_idle[n] = feasible


@compiled_part
def _something_fits(
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
        first_node, end_node: the other jobs only on these nodes.
    """
    if machines.idle_count[n] == 0:
        return False
    number = course.list_of[n]
    # From the end, where the newest jobs are.
    for i in range(course.waiting_count[n] - 1, -1, -1):
        job = course.waiting[n, i]
        low, high = (0, hardware.node_cores.shape[1]) if job >= first_job else (first_node, end_node)
        if low >= high:
            return False
        cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
        for node in range(low, high):
            left, memory_left_mib = machines.cores_free[n, node], machines.memory_free_mib[n, node]
            if node_has_room(cores, memory_mib, left, memory_left_mib) and _fits_on_node(
                hardware, machines, jobs, n, number, job, node
            ):
                return True
    return False


@compiled_part
def _fits_on_node(
    hardware: Hardware, machines: Machines, jobs: JobArrays, n: int, number: int, job: int, node: int
) -> bool:
    """Whether some idle GPU of the node has the memory for the job, and is of a model that it runs on."""
    for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
        if (
            machines.gpu_job[n, gpu] == IDLE
            and machines.gpu_speed[n, gpu] > 0.0
            and _takes(hardware, jobs, n, number, job, gpu)
        ):
            return True
    return False


@compiled_part
def advance(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
) -> None:
    """Advances cluster n to its next decision, when a waiting job fits, or to the end."""
    number = course.list_of[n]
    count, change_count = jobs.job_count[number], changes.time_s.shape[1]
    # If no job fitted before an event, only its changes can fit: new jobs anywhere, or any job on a freed node.
    first_job, first_node, end_node = 0, 0, 0
    while True:
        holding = course.hold_until_s[n] != NOT_HOLDING
        if not holding and _something_fits(hardware, machines, jobs, course, n, first_job, first_node, end_node):
            course.status[n] = DECISION
            return
        arrived = course.arrived_count[n]
        gone = course.finished_count[n] + course.impossible_count[n]
        if gone == count:
            course.status[n] = DONE if course.impossible_count[n] == 0 else STUCK
            return
        time_s = next_end_s(machines, n)
        if arrived < count:
            time_s = min(time_s, jobs.submit_s[number, arrived])
        change = course.next_change[n]
        if change < change_count:
            time_s = min(time_s, changes.time_s[number, change])
        if holding:
            time_s = min(time_s, course.hold_until_s[n])
        if time_s == np.inf:
            course.status[n] = STUCK
            return
        passed_s = time_s - machines.time_s[n]
        if passed_s > 0.0:
            course.totals[n, JOBS_S] += passed_s * (arrived - gone)
            course.totals[n, PRIORITY_S] += passed_s * course.priority_sum[n]
            course.totals[n, IDLE_S] += passed_s * machines.idle_count[n]
            if holding:
                course.totals[n, FEASIBLE_IDLE_S] += passed_s * course.feasible_idle[n]
            machines.time_s[n] = time_s
        happened = False
        first_job, first_node, end_node = 0 if holding else arrived, hardware.node_cores.shape[1], 0
        if machines.running_count[n] > 0:
            for gpu in range(hardware.gpu_count[n]):
                ends = machines.gpu_end_s[n, gpu] == time_s
                if ends:
                    _end_run(hardware, machines, jobs, course, n, gpu, ends)
                    first_node = min(first_node, hardware.gpu_node[n, gpu])
                    end_node = max(end_node, hardware.gpu_node[n, gpu] + 1)
                    happened = True
        while change < change_count and changes.time_s[number, change] == time_s:
            gpu, speed = changes.gpu[number, change], changes.speed[number, change]
            ends = speed > 0.0
            if not ends and machines.gpu_job[n, gpu] != IDLE:
                _end_run(hardware, machines, jobs, course, n, gpu, ends)
            # A change of speed alone is no event: only a loss or a return is.
            if (speed == 0.0) != (machines.gpu_speed[n, gpu] == 0.0):
                first_job = 0
                happened = True
            set_speed(machines, n, gpu, speed)
            if machines.gpu_job[n, gpu] != IDLE and machines.gpu_end_s[n, gpu] <= time_s:
                # The rest of its work, the last bit of a float, is dropped: it ends now, and not after a decision.
                _end_run(hardware, machines, jobs, course, n, gpu, ends)
                first_job = 0
                happened = True
            change += 1
        course.next_change[n] = change
        while arrived < count and jobs.submit_s[number, arrived] == time_s:
            _arrive(hardware, jobs, course, n, arrived)
            arrived += 1
            happened = True
        if happened:
            course.last_event_s[n] = time_s
        if happened or time_s == course.hold_until_s[n]:
            course.hold_until_s[n] = NOT_HOLDING


@compiled_part
def begin(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    number: int,
) -> None:
    """Empties cluster n, gives it list `number` from time 0 on, and advances to its first decision."""
    machines.time_s[n] = 0.0
    for gpu in range(machines.gpu_speed.shape[1]):
        machines.gpu_job[n, gpu] = IDLE
        machines.gpu_end_s[n, gpu] = np.inf
        machines.gpu_expected_end_s[n, gpu] = np.inf
        machines.gpu_speed[n, gpu] = 1.0 if gpu < hardware.gpu_count[n] else 0.0
    machines.idle_count[n] = hardware.gpu_count[n]
    machines.running_count[n] = 0
    machines.launch_count[n] = 0
    for node in range(hardware.node_cores.shape[1]):
        machines.cores_free[n, node] = hardware.node_cores[n, node]
        machines.memory_free_mib[n, node] = hardware.node_memory_mib[n, node]
    course.list_of[n] = number
    for job in range(course.job_state.shape[1]):
        course.job_state[n, job] = FUTURE
        course.job_start_s[n, job] = np.nan
        course.job_end_s[n, job] = np.nan
        course.job_gpu[n, job] = -1
        course.job_attempts[n, job] = 0
    course.waiting_count[n] = 0
    course.arrived_count[n] = 0
    course.finished_count[n] = 0
    course.impossible_count[n] = 0
    course.next_change[n] = 0
    course.hold_until_s[n] = NOT_HOLDING
    course.last_event_s[n] = 0.0
    course.feasible_idle[n] = 0
    course.priority_sum[n] = 0.0
    for user in range(course.user_service_s.shape[1]):
        course.user_service_s[n, user] = 0.0
    course.run_count[n] = 0
    for total in range(course.totals.shape[1]):
        course.totals[n, total] = 0.0
    advance(hardware, machines, jobs, changes, course, n)


@compiled
def begin_all(hardware: Hardware, machines: Machines, jobs: JobArrays, changes: GpuChanges, course: Course) -> None:
    """`begin` of every cluster, with its present list."""
    for n in range(hardware.gpu_count.shape[0]):
        begin(hardware, machines, jobs, changes, course, n, course.list_of[n])


@compiled
def begin_some(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    clusters: Ints,
    lists: Ints,
) -> None:
    """`begin` of some clusters, each with a list."""
    for i in range(clusters.shape[0]):
        begin(hardware, machines, jobs, changes, course, clusters[i], lists[i])


@compiled
def act_all(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    clusters: Ints,
    rows: Ints,
    gpus: Ints,
) -> int:
    """Carries out one action for each of `clusters`, in whole-queue order, and advances to the next decisions.

    Args:
        rows: the job's place in the queue; below 0: a hold.

    Returns:
        -1, or the first place in `clusters` with an impossible action; that and all later ones are not carried out.
    """
    for i in range(clusters.shape[0]):
        n = clusters[i]
        if rows[i] < 0:
            hold(hardware, machines, jobs, course, n)
        elif rows[i] >= course.waiting_count[n] or not start(
            hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i]
        ):
            return i
        advance(hardware, machines, jobs, changes, course, n)
    return -1
