"""Simulates job lists on N clusters: arrivals, waits, runs and ends, up to the next decision. numpy and numba.

No Python objects. `adlro/sim/batch.py` calls this module; the state is `adlro/sim/course.py`, the physics of GPUs
`adlro/state/machines.py`.

At one instant ends come first, then changes of GPUs, then submissions; then decisions, until no job fits or the policy
holds. A job of a lost GPU waits again, at its place by submission, and starts from the beginning. A job of several GPUs
starts, ends and is lost on all of them together; the sets of GPUs for it are those of adlro/state/gangs.py.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled, compiled_call, compiled_part
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
from adlro.state.gangs import NEVER, fill_packed_nodes, is_startable, most_given
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import IDLE, Hardware, Machines, next_end_s, occupy, occupy_gang, set_speed, vacate
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
    if has_gangs(course) and jobs.gpu_count[number, job] > 1:
        possible = _fill_nodes_of_gang(hardware, jobs, course, n, job)
    course.arrived_count[n] += 1
    if not possible:
        course.job_state[n, job] = IMPOSSIBLE
        course.impossible_count[n] += 1
        return
    course.priority_sum[n] += jobs.priority[number, job]
    join_queue(course, n, job)


@compiled_part
def has_gangs(course: Course) -> bool:
    """Whether some job of the lists has several GPUs."""
    return bool(course.job_nodes.shape[2] > 0)


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
    for model in range(job_nodes.shape[0]):
        if not jobs.expected_s[number, job, model] < np.inf:
            job_nodes[model] = NEVER
        possible = possible or job_nodes[model] != NEVER
    return possible


@compiled_part
def _end_run(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int, completed: bool
) -> None:
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
    vacate(hardware, machines, n, gpu)
    if completed:
        course.job_state[n, job] = FINISHED
        course.job_end_s[n, job] = time_s
        course.finished_count[n] += 1
        course.priority_sum[n] -= jobs.priority[number, job]
    else:
        join_queue(course, n, job)


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
    _note_start(machines, course, n, job)
    course.job_gpus[n, job, 0] = gpu
    return True


@compiled_part
def _note_start(machines: Machines, course: Course, n: int, job: int) -> None:
    """Notes in the course that a job runs; the caller notes its GPUs."""
    leave_queue(course, n, job)
    course.job_state[n, job] = RUNNING
    course.job_start_s[n, job] = machines.time_s[n]
    course.job_attempts[n, job] += 1
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
    if gpus.shape[0] < size or (gpus.shape[0] > size and gpus[size] >= 0):
        return False
    nodes, on_node, model, before, known_speed = 0, 0, -1, -1, np.inf
    for i in range(size):
        gpu = gpus[i]
        if not before < gpu < hardware.gpu_count[n]:
            return False
        if i == 0:
            model = hardware.gpu_model[n, gpu]
        node = hardware.gpu_node[n, gpu]
        if i == 0 or node != hardware.gpu_node[n, before]:
            nodes, on_node = nodes + 1, 0
        on_node += 1
        if (
            machines.gpu_job[n, gpu] != IDLE
            or machines.gpu_speed[n, gpu] == 0.0
            or hardware.gpu_model[n, gpu] != model
            or not has_room(
                on_node * jobs.cores[number, job],
                on_node * jobs.memory_mib[number, job],
                jobs.gpu_memory_mib[number, job],
                machines.cores_free[n, node],
                machines.memory_free_mib[n, node],
                hardware.gpu_memory_mib[n, gpu],
            )
        ):
            return False
        known_speed = min(known_speed, course.known_speed[n, gpu])
        before = gpu
    packed, duration_s = course.job_nodes[n, job, model], jobs.duration_s[number, job, model]
    expected_s = jobs.expected_s[number, job, model] / known_speed
    if packed == NEVER or duration_s == np.inf or 0 < jobs.max_nodes[number, job] < nodes:
        return False
    if nodes > packed:
        if jobs.spread_speed[number, job, model] == 0.0:
            return False
        duration_s /= jobs.spread_speed[number, job, model]
        expected_s /= jobs.expected_spread_speed[number, job, model]
    occupy_gang(
        hardware,
        machines,
        n,
        gpus[:size],
        job,
        duration_s,
        course.start_cost_s[n],
        expected_s,
        jobs.cores[number, job],
        jobs.memory_mib[number, job],
    )
    _note_start(machines, course, n, job)
    for i in range(course.job_gpus.shape[2]):
        course.job_gpus[n, job, i] = gpus[i] if i < size else -1
    return True


@compiled_part
def find_gives(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, model: int
) -> int:
    """Fills in what nodes can give a job now of a model's GPUs: `course.node` and `gives`; returns their number."""
    number, count = course.list_of[n], 0
    for node in range(hardware.node_cores.shape[1]):
        able = 0
        for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
            # Without branches: which GPUs are idle is hard to predict.
            able += (
                (machines.gpu_job[n, gpu] == IDLE)
                & (machines.gpu_speed[n, gpu] > 0.0)
                & (hardware.gpu_model[n, gpu] == model)
                & gpu_has_memory(jobs.gpu_memory_mib[number, job], hardware.gpu_memory_mib[n, gpu])
            )
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


@compiled_part
def _gang_fits(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, model: int
) -> bool:
    """Whether a waiting job of several GPUs fits on a model's GPUs now."""
    number, packed = course.list_of[n], course.job_nodes[n, job, model]
    if packed == NEVER:
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


@compiled_part
def _takes(hardware: Hardware, jobs: JobArrays, n: int, number: int, job: int, gpu: int) -> bool:
    """Whether the GPU has the memory for the job, and is of a model that the job runs on."""
    return bool(
        gpu_has_memory(jobs.gpu_memory_mib[number, job], hardware.gpu_memory_mib[n, gpu])
        and jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] < np.inf
    )


@compiled_call
def _some_gang_fits(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, model: int
) -> bool:
    """Whether some waiting job of several GPUs fits on a model's GPUs now."""
    number = course.list_of[n]
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        size = jobs.gpu_count[number, job]
        if 1 < size <= machines.idle_count[n] and _gang_fits(hardware, machines, jobs, course, n, job, model):
            return True
    return False


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
    number, several, feasible = course.list_of[n], has_gangs(course), 0
    gang_model, gang_fits = -1, False
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
                if several and jobs.gpu_count[number, job] > 1:
                    # Of the GPUs of a model all count, or none.
                    if hardware.gpu_model[n, gpu] != gang_model:
                        gang_model = hardware.gpu_model[n, gpu]
                        gang_fits = _some_gang_fits(hardware, machines, jobs, course, n, gang_model)
                    if not gang_fits:
                        continue
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
    number, several = course.list_of[n], has_gangs(course)
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
                if not several or jobs.gpu_count[number, job] == 1:
                    return True
                if _gang_fits_somewhere(hardware, machines, jobs, course, n, job):
                    return True
                break
    return False


@compiled_call
def _gang_fits_somewhere(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int
) -> bool:
    """Whether a waiting job of several GPUs fits now."""
    if jobs.gpu_count[course.list_of[n], job] > machines.idle_count[n]:
        return False
    for model in range(course.job_nodes.shape[2]):
        if _gang_fits(hardware, machines, jobs, course, n, job, model):
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
                    if has_gangs(course):
                        end_node = max(end_node, _last_node(hardware, course, n) + 1)
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
        machines.gpu_gang[n, gpu] = 0
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
        for i in range(course.job_gpus.shape[2]):
            course.job_gpus[n, job, i] = -1
        course.job_attempts[n, job] = 0
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
        rows: (A,) the job's place in the queue; below 0: a hold.
        gpus: (A, W) the GPUs in ascending order, then -1.

    Returns:
        -1, or the first place in `clusters` with an impossible action; that and all later ones are not carried out.
    """
    for i in range(clusters.shape[0]):
        n = clusters[i]
        if rows[i] < 0:
            hold(hardware, machines, jobs, course, n)
        elif rows[i] >= course.waiting_count[n]:
            return i
        elif has_gangs(course) or gpus.shape[1] > 1:
            if not start_gang(hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i]):
                return i
        elif not start(hardware, machines, jobs, course, n, course.waiting[n, rows[i]], gpus[i, 0]):
            return i
        advance(hardware, machines, jobs, changes, course, n)
    return -1
