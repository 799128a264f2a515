"""Simulates job lists on N clusters: arrivals, waits, runs and ends, up to the next decision. numpy and numba.

No Python objects. `adlro/sim/batch.py` calls this module; starts, ends and stops of jobs are `adlro/sim/starts.py`, the
state is `adlro/sim/course.py`, the physics of GPUs `adlro/state/machines.py`.

At one instant ends come first, then changes of GPUs, then submissions; then decisions, until no job fits or the policy
holds. A job of a lost GPU waits again, at its place by submission, and starts from the beginning, or from its last
stop. A job of several GPUs starts, ends, is stopped and is lost on all of them together; the sets of GPUs for it are
those of adlro/state/gangs.py.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.sim.course import (
    DECISION,
    DONE,
    FEASIBLE_IDLE_S,
    FUTURE,
    IDLE_S,
    IMPOSSIBLE,
    JOBS_S,
    NOT_HOLDING,
    PRIORITY_S,
    STUCK,
    Course,
    GpuChanges,
    has_gangs,
    has_shares,
    join_queue,
)
from adlro.sim.decision_points import may_hold
from adlro.sim.fits import count_feasible_idle, is_asked, something_fits, takes
from adlro.sim.starts import end_run, start, start_beside, start_gang, start_stopping
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.gangs import NEVER, fill_packed_nodes, refuse_models
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import has_mates, next_end_s, set_speed, swap_mates
from adlro.state.observation import HOLD_LIMIT_S, HOLD_ROUNDING_MS, Bools, Ints
from adlro.state.room import node_has_room


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
    if possible and jobs.node_allowed.shape[2] > 0:
        possible = _may_run_somewhere(hardware, jobs, n, number, job)
    if has_gangs(course) and jobs.gpu_count[number, job] > 1:
        possible = _fill_nodes_of_gang(hardware, jobs, course, n, job)
    course.arrived_count[n] += 1
    if not possible:
        course.job_state[n, job] = IMPOSSIBLE
        course.impossible_count[n] += 1
        return
    course.priority_sum[n] += jobs.priority[number, job]
    join_queue(course, n, job)


@compiled_call
def _may_run_somewhere(hardware: Hardware, jobs: JobArrays, n: int, number: int, job: int) -> bool:
    """Whether one GPU of a job fits on an empty node that it may run on."""
    for gpu in range(hardware.gpu_count[n]):
        node = hardware.gpu_node[n, gpu]
        if (
            jobs.node_allowed[number, job, node]
            and takes(hardware, jobs, n, number, job, gpu)
            and node_has_room(
                jobs.cores[number, job],
                jobs.memory_mib[number, job],
                hardware.node_cores[n, node],
                hardware.node_memory_mib[n, node],
            )
        ):
            return True
    return False


@compiled_call
def _fill_nodes_of_gang(hardware: Hardware, jobs: JobArrays, course: Course, n: int, job: int) -> bool:
    """Fills in the packed nodes of a job of several GPUs; returns whether some model can ever hold it."""
    number, possible = course.list_of[n], False
    job_nodes = course.job_nodes[n, job]
    fill_packed_nodes(
        hardware,
        n,
        jobs.gpu_count[number, job],
        jobs.max_nodes[number, job],
        jobs.cores[number, job],
        jobs.memory_mib[number, job],
        jobs.gpu_memory_mib[number, job],
        course.gives[n],
        job_nodes,
    )
    if jobs.node_allowed.shape[2] > 0:
        refuse_models(
            hardware,
            n,
            jobs.node_allowed[number, job],
            jobs.gpu_count[number, job],
            jobs.max_nodes[number, job],
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            jobs.gpu_memory_mib[number, job],
            jobs.expected_spread_speed[number, job],
            course.gives[n],
            job_nodes,
        )
    for model in range(job_nodes.shape[0]):
        if not jobs.expected_s[number, job, model] < np.inf:
            job_nodes[model] = NEVER
        possible = possible or job_nodes[model] != NEVER
    return possible


@compiled_call
def _last_node(hardware: Hardware, course: Course, n: int) -> int:
    """The highest-numbered node of the attempt that ended last."""
    gpus = course.run_gpus[n, course.run_count[n] - 1]
    last = 0
    for i in range(gpus.shape[0]):
        if gpus[i] >= 0:
            last = gpus[i]  # in ascending order
    return int(hardware.gpu_node[n, last])


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
    course.feasible_idle[n] = count_feasible_idle(hardware, machines, jobs, course, n)


@compiled_part
def _one_ends(machines: Machines, n: int, gpu: int) -> bool:
    """Whether the job on a GPU ends now; one of two that does is the first then."""
    return bool(machines.gpu_end_s[n, gpu] <= machines.time_s[n] or _mate_ends(machines, n, gpu))


@compiled_part
def _mate_ends(machines: Machines, n: int, gpu: int) -> bool:
    """Whether the second job on a GPU ends now; it is the first then."""
    if has_mates(machines) and machines.mate_end_s[n, gpu] <= machines.time_s[n]:
        swap_mates(machines, n, gpu)
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
        if not holding and (
            something_fits(hardware, machines, jobs, course, n, first_job, first_node, end_node)
            or (course.asks[n] != 0 and is_asked(hardware, machines, jobs, course, n))
        ):
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
            for node in range(machines.node_end_s.shape[1]):
                ends = machines.node_end_s[n, node] == time_s
                while ends:
                    gpu = hardware.node_first_gpu[n, node]
                    while machines.gpu_end_s[n, gpu] != time_s and not _mate_ends(machines, n, gpu):
                        gpu += 1
                    end_run(hardware, machines, jobs, course, n, gpu, ends)
                    first_node = min(first_node, node)
                    end_node = max(end_node, node + 1)
                    if has_gangs(course):
                        end_node = max(end_node, _last_node(hardware, course, n) + 1)
                    happened = True
                    ends = machines.node_end_s[n, node] == time_s
        while change < change_count and changes.time_s[number, change] == time_s:
            gpu, speed = changes.gpu[number, change], changes.speed[number, change]
            ends = speed > 0.0
            while not ends and machines.gpu_job[n, gpu] != IDLE:
                end_run(hardware, machines, jobs, course, n, gpu, ends)
            # A change of speed alone is no event: only a loss or a return is.
            if (speed == 0.0) != (machines.gpu_speed[n, gpu] == 0.0):
                first_job = 0
                happened = True
            set_speed(hardware, machines, n, gpu, speed)
            while _one_ends(machines, n, gpu):
                # The rest of its work, the last bit of a float, is dropped: it ends now, and not after a decision.
                end_run(hardware, machines, jobs, course, n, gpu, ends)
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
        machines.gpu_gang[n, gpu] = 0
        machines.gpu_speed[n, gpu] = 1.0 if gpu < hardware.gpu_count[n] else 0.0
    for gpu in range(machines.mate_job.shape[1]):
        machines.gpu_kept[n, gpu] = machines.gpu_told[n, gpu] = 1.0
        machines.mate_job[n, gpu] = IDLE
        machines.mate_end_s[n, gpu] = np.inf
        machines.mate_expected_end_s[n, gpu] = np.inf
    machines.idle_count[n] = hardware.gpu_count[n]
    machines.running_count[n] = 0
    machines.launch_count[n] = 0
    for node in range(hardware.node_cores.shape[1]):
        machines.cores_free[n, node] = hardware.node_cores[n, node]
        machines.memory_free_mib[n, node] = hardware.node_memory_mib[n, node]
        machines.node_idle[n, node] = hardware.node_first_gpu[n, node + 1] - hardware.node_first_gpu[n, node]
        machines.node_end_s[n, node] = np.inf
    machines.gang_count[n] = machines.lost_count[n] = 0
    course.list_of[n] = number
    for job in range(course.job_state.shape[1]):
        course.job_state[n, job] = FUTURE
        course.job_start_s[n, job] = np.nan
        course.job_end_s[n, job] = np.nan
        for i in range(course.job_gpus.shape[2]):
            course.job_gpus[n, job, i] = -1
        course.job_attempts[n, job] = 0
    for job in range(course.job_share.shape[1]):
        course.job_share[n, job] = 1.0
        course.job_stops[n, job] = 0
        course.job_attained_s[n, job] = 0.0
    course.waiting_count[n] = 0
    course.arrived_count[n] = 0
    course.finished_count[n] = 0
    course.impossible_count[n] = 0
    course.reserved_job[n] = -1
    course.next_change[n] = 0
    course.hold_until_s[n] = NOT_HOLDING
    course.last_event_s[n] = 0.0
    course.feasible_idle[n] = 0
    course.priority_sum[n] = 0.0
    for user in range(course.user_service_s.shape[1]):
        course.user_service_s[n, user] = 0.0
    course.run_count[n] = 0
    course.stop_count[n] = 0
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
    stops: Bools,
) -> int:
    """Carries out one action for each of `clusters`, in whole-queue order, and advances to the next decisions.

    Args:
        rows: (A,) the job's place in the queue; below 0: a hold.
        gpus: (A, W) the GPUs in ascending order, then -1.
        stops: (A,) whether the jobs on these GPUs are stopped; (0,): none is.

    Returns:
        -1, or the first place in `clusters` with an impossible action; that and all later ones are not carried out.
    """
    for i in range(clusters.shape[0]):
        n = clusters[i]
        if rows[i] < 0:
            hold(hardware, machines, jobs, course, n)
        elif rows[i] >= course.waiting_count[n]:
            return i
        elif stops.shape[0] > 0 and stops[i]:
            if not start_stopping(hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i]):
                return i
        elif has_shares(course) and 0 <= gpus[i, 0] < hardware.gpu_count[n] and machines.gpu_job[n, gpus[i, 0]] != IDLE:
            alone = gpus.shape[1] == 1 or gpus[i, 1] < 0
            if not (
                alone and start_beside(hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i, 0])
            ):
                return i
        elif has_gangs(course) or gpus.shape[1] > 1:
            if not start_gang(hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i]):
                return i
        elif not start(hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i, 0]):
            return i
        advance(hardware, machines, jobs, changes, course, n)
    return -1
