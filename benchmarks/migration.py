"""The study's migration in the simulator: where nothing waits, a running job moves to GPUs on which it ends sooner.

A job moves to idle GPUs, its own included, if what it has left here is more than MOVE_FACTOR times what it would have
left there, restart included; of all such moves the one that saves most goes first. The simulator asks a policy only
while a job waits. So each list gets one more job, which waits from the beginning and can never start, and the run is
over when that one alone is left. No policy of the project moves jobs; benchmarks/stop_variants.py plays it.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.compiled import compiled
from adlro.sim.batch import BatchSimulator
from adlro.sim.course import Course, with_room_for_stops
from adlro.sim.starts import _stop
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Ints, Observation

MOVE_FACTOR = 1.3


@compiled
def stop_now(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, gpu: int) -> None:
    """Stops the job on a GPU: it waits again with what it has left."""
    _stop(hardware, machines, jobs, course, n, gpu)


def with_one_that_waits(jobs: JobArrays) -> JobArrays:
    """The same lists, each with one more job at its head, submitted at 0."""
    columns = {}
    for name, column in jobs._asdict().items():
        columns[name] = column + 1 if name == "job_count" else np.insert(column, 0, 0, axis=1)
    more = JobArrays(**columns)
    for column in (more.duration_s, more.expected_s, more.spread_speed, more.expected_spread_speed):
        column[:, 0] = 1.0
    more.gpu_count[:, 0] = 1
    return more


def best_move(simulator: BatchSimulator, seen: Observation, a: int) -> tuple[int, list[int]] | None:
    """The move that saves most in the cluster of row a: a GPU of the job that moves, and those that it moves to."""
    n, hardware, machines = int(simulator.active[a]), simulator._hardware, simulator._machines
    jobs, course = simulator._jobs, simulator._course
    number = int(course.list_of[n])
    gpu_job, idle, node_of = machines.gpu_job[n], seen.gpu_idle[a], hardware.gpu_node[n]
    best, best_s = None, 0.0
    if seen.preemption is None or not idle.any():
        return None
    for job in np.unique(gpu_job[gpu_job != IDLE]).tolist():
        own = np.flatnonzero(gpu_job == job)
        if not seen.preemption.gpu_stoppable[a, own].all():
            continue
        here, size = int(hardware.gpu_model[n, own[0]]), len(own)
        expected_s = jobs.expected_s[number, job]
        full_s = float(expected_s[here])
        if size > 1 and len(np.unique(node_of[own])) > course.job_nodes[n, job, here]:
            full_s /= float(jobs.expected_spread_speed[number, job, here])
        left_s = float(seen.gpu_remaining_s[a, own].max())
        free = idle | (gpu_job == job)
        free &= hardware.gpu_memory_mib[n] >= jobs.gpu_memory_mib[number, job]
        for model in range(len(expected_s)):
            there_s = left_s / full_s * float(expected_s[model]) + float(jobs.restart_s[number, job])
            if not left_s > MOVE_FACTOR * there_s or not left_s - there_s > best_s:
                continue
            packed = 1 if size == 1 else int(course.job_nodes[n, job, model])
            gpus = _packed_set(np.flatnonzero(free & (hardware.gpu_model[n] == model)), node_of, size, packed)
            if gpus:
                best, best_s = (int(own[0]), gpus), left_s - there_s
    return best


def _packed_set(free: Ints, node_of: Ints, size: int, packed: int) -> list[int]:
    """As many of some GPUs on as few nodes, best fit; none: there is no such set."""
    nodes = [free[node_of[free] == node].tolist() for node in np.unique(node_of[free])]
    if packed == 1:
        enough = sorted((gpus for gpus in nodes if len(gpus) >= size), key=len)
        return enough[0][:size] if enough else []
    most = sorted(nodes, key=len, reverse=True)[:packed] if packed > 0 else []
    chosen = [gpu for gpus in most for gpu in gpus][:size]
    return sorted(chosen) if len(chosen) == size else []


def with_moves(simulator: BatchSimulator, seen: Observation, chosen: Ints) -> Ints:
    """The actions, with moves where nothing waits but the job that never starts; what moves is stopped now."""
    widest = max(chosen.shape[1] - 1, simulator._jobs.widest)
    chosen = np.pad(chosen, ((0, 0), (0, widest + 1 - chosen.shape[1])), constant_values=-1)
    alone = simulator._course.waiting_count[simulator.active] == 1
    for a in np.flatnonzero(alone & (chosen[:, 0] == HOLD)).tolist():
        move = best_move(simulator, seen, a)
        if move is None:
            continue
        n, (gpu, gpus) = int(simulator.active[a]), move
        simulator._course = course = with_room_for_stops(simulator._course, 1)
        stop_now(simulator._hardware, simulator._machines, simulator._jobs, course, n, gpu)
        chosen[a] = -1
        chosen[a, 0], chosen[a, 1 : 1 + len(gpus)] = 1, gpus
    return chosen
