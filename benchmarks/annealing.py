"""Clairvoyant annealing: the best schedule that a search finds for a job list known beforehand. Arrays only.

A schedule is, for each node, the order in which its jobs are placed: each at the earliest time from its submission on
at which the node has a GPU, cores and memory for it to its end (serial schedule generation; for objectives that grow
with each completion time some order gives an optimal schedule: Kolisch, "Serial and parallel resource-constrained
project scheduling methods revisited", European Journal of Operational Research 90, 1996). The search moves jobs within
and between nodes by simulated annealing. What it finds is played in the simulator, and counts as what it costs there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.cluster_arrays import Hardware
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints

HOTTEST_S, COLDEST_S = 15.0, 0.05
"""Temperatures of the first and the last move, seconds of total completion time."""

MOST_SHIFT = 6
"""Places that a job moves within a node, or beside its time's place in another."""


class Problem(NamedTuple):
    """One list of J jobs for M nodes, each of like GPUs.

    Attributes:
        submit_s: (J,).
        duration_s: (J, M) inf where the node cannot hold the job.
        cores, memory_mib: (J,).
        node_gpus, node_cores, node_memory_mib: (M,).
    """

    submit_s: Floats
    duration_s: Floats
    cores: Ints
    memory_mib: Ints
    node_gpus: Ints
    node_cores: Ints
    node_memory_mib: Ints


class Schedule(NamedTuple):
    """The order of jobs on each node, and when they start.

    Attributes:
        order: (M, J) numbers of jobs.
        job_count: (M,) jobs of each node.
        node: (J,).
        start_s: (J,).
    """

    order: Ints
    job_count: Ints
    node: Ints
    start_s: Floats


class Profile(NamedTuple):
    """Scratch: what one node has in use from each time to the next, (2 J + 2,) each."""

    time_s: Floats
    gpus: Ints
    cores: Ints
    memory_mib: Ints


def problem_of(hardware: Hardware, jobs: JobArrays, number: int) -> Problem:
    """List `number` on cluster 0.

    Raises:
        InvalidInput: a node has different GPUs.
    """
    count, gpus = int(jobs.job_count[number]), int(hardware.gpu_count[0])
    node = hardware.gpu_node[0, :gpus]
    nodes = int(node.max()) + 1
    first = np.array([int(np.argmax(node == m)) for m in range(nodes)])
    alike = (hardware.gpu_model[0, :gpus] == hardware.gpu_model[0, first[node]]) & (
        hardware.gpu_memory_mib[0, :gpus] == hardware.gpu_memory_mib[0, first[node]]
    )
    if not alike.all():
        raise InvalidInput("the GPUs of a node must be alike", field="cluster")
    row = (number, slice(0, count))
    holds = (
        (jobs.gpu_memory_mib[row][:, None] <= hardware.gpu_memory_mib[0, first])
        & (jobs.cores[row][:, None] <= hardware.node_cores[0, :nodes])
        & (jobs.memory_mib[row][:, None] <= hardware.node_memory_mib[0, :nodes])
    )
    return Problem(
        submit_s=jobs.submit_s[row].copy(),
        duration_s=np.where(holds, jobs.duration_s[row][:, hardware.gpu_model[0, first]], np.inf),
        cores=jobs.cores[row].copy(),
        memory_mib=jobs.memory_mib[row].copy(),
        node_gpus=np.bincount(node, minlength=nodes),
        node_cores=hardware.node_cores[0, :nodes].copy(),
        node_memory_mib=hardware.node_memory_mib[0, :nodes].copy(),
    )


def schedule_of(problem: Problem, node: Ints, start_s: Floats) -> Schedule:
    """A schedule by the node and the start of each job."""
    size, nodes = len(problem.submit_s), len(problem.node_gpus)
    schedule = Schedule(
        np.zeros((nodes, size), dtype=np.int64), np.zeros(nodes, dtype=np.int64), node.astype(np.int64), start_s.copy()
    )
    for job in np.argsort(start_s, kind="stable"):
        schedule.order[node[job], schedule.job_count[node[job]]] = job
        schedule.job_count[node[job]] += 1
    return schedule


def _copied(schedule: Schedule) -> Schedule:
    return Schedule(schedule.order.copy(), schedule.job_count.copy(), schedule.node.copy(), schedule.start_s.copy())


def anneal(problem: Problem, start: Schedule, moves: int, rng: np.random.Generator) -> Schedule:
    """The best schedule of one search.

    Args:
        problem: the list.
        start: where the search begins; what it returns costs no more than the placing of this order.
        moves: tried.
        rng: for the search.
    """
    size = len(problem.submit_s)
    current, best, spare = _copied(start), _copied(start), _copied(start)
    points = 2 * size + 2
    profile = Profile(np.zeros(points), *(np.zeros(points, dtype=np.int64) for _ in range(3)))
    _search(problem, current, best, spare, profile, rng.random((moves, 4)))
    return best


def total_jct_s(problem: Problem, schedule: Schedule) -> float:
    """Sum of the completion times of a schedule's jobs."""
    jobs = np.arange(len(problem.submit_s))
    return float((schedule.start_s + problem.duration_s[jobs, schedule.node] - problem.submit_s).sum())


@compiled_part
def _split(profile: Profile, count: int, time_s: float) -> int:
    """Makes sure that something begins at a time; how many points there are then."""
    i = count
    while i > 0 and profile.time_s[i - 1] > time_s:
        i -= 1
    if i > 0 and profile.time_s[i - 1] == time_s:
        return count
    for k in range(count, i, -1):
        profile.time_s[k] = profile.time_s[k - 1]
        profile.gpus[k] = profile.gpus[k - 1]
        profile.cores[k] = profile.cores[k - 1]
        profile.memory_mib[k] = profile.memory_mib[k - 1]
    profile.time_s[i] = time_s
    profile.gpus[i] = profile.gpus[i - 1]
    profile.cores[i] = profile.cores[i - 1]
    profile.memory_mib[i] = profile.memory_mib[i - 1]
    return count + 1


@compiled
def _place(problem: Problem, schedule: Schedule, node: int, profile: Profile) -> float:
    """Places the jobs of a node in their order; the sum of their completion times."""
    total_s, count = 0.0, 1
    profile.time_s[0] = -np.inf
    profile.gpus[0] = profile.cores[0] = profile.memory_mib[0] = 0
    for place in range(schedule.job_count[node]):
        job = schedule.order[node, place]
        cores, memory_mib = problem.cores[job], problem.memory_mib[job]
        duration_s, start_s = problem.duration_s[job, node], problem.submit_s[job]
        i = count - 1
        while profile.time_s[i] > start_s:
            i -= 1
        while i < count and profile.time_s[i] < start_s + duration_s:
            if (
                profile.gpus[i] + 1 > problem.node_gpus[node]
                or profile.cores[i] + cores > problem.node_cores[node]
                or profile.memory_mib[i] + memory_mib > problem.node_memory_mib[node]
            ):
                start_s = profile.time_s[i + 1]  # the last point has nothing in use
            i += 1
        end_s = start_s + duration_s
        count = _split(profile, count, start_s)
        count = _split(profile, count, end_s)
        for k in range(count):
            if start_s <= profile.time_s[k] < end_s:
                profile.gpus[k] += 1
                profile.cores[k] += cores
                profile.memory_mib[k] += memory_mib
        schedule.start_s[job] = start_s
        total_s += end_s - problem.submit_s[job]
    return total_s


@compiled_part
def _remove(schedule: Schedule, node: int, place: int) -> None:
    schedule.job_count[node] -= 1
    for k in range(place, schedule.job_count[node]):
        schedule.order[node, k] = schedule.order[node, k + 1]


@compiled_part
def _insert(schedule: Schedule, node: int, place: int, job: int) -> None:
    for k in range(schedule.job_count[node], place, -1):
        schedule.order[node, k] = schedule.order[node, k - 1]
    schedule.order[node, place] = job
    schedule.job_count[node] += 1
    schedule.node[job] = node


@compiled_part
def _copy_node(source: Schedule, target: Schedule, node: int) -> None:
    target.job_count[node] = source.job_count[node]
    for k in range(source.job_count[node]):
        job = source.order[node, k]
        target.order[node, k] = job
        target.node[job] = node
        target.start_s[job] = source.start_s[job]


@compiled
def _search(
    problem: Problem, current: Schedule, best: Schedule, spare: Schedule, profile: Profile, draws: NDArray[np.float64]
) -> None:
    size, nodes, moves = problem.submit_s.shape[0], problem.node_gpus.shape[0], draws.shape[0]
    cost_s = 0.0
    for node in range(nodes):
        cost_s += _place(problem, current, node, profile)
        _copy_node(current, spare, node)
        _copy_node(current, best, node)
    best_s = cost_s
    for move in range(moves):
        temperature_s = HOTTEST_S * (COLDEST_S / HOTTEST_S) ** (move / moves)
        job = int(draws[move, 0] * size)
        source = current.node[job]
        # Half of the moves stay on the node.
        target = source if draws[move, 1] < 0.5 else int((draws[move, 1] - 0.5) * 2.0 * nodes)
        if problem.duration_s[job, target] == np.inf:
            continue
        place = 0
        while current.order[source, place] != job:
            place += 1
        shift = int(draws[move, 2] * (2 * MOST_SHIFT + 1)) - MOST_SHIFT
        goal = place
        if target != source:
            goal = 0
            while (
                goal < current.job_count[target] and current.start_s[current.order[target, goal]] < current.start_s[job]
            ):
                goal += 1
        elif shift == 0:
            continue
        before_s = 0.0
        for node in (source, target):
            if node == target and target == source and before_s > 0.0:
                continue
            for k in range(current.job_count[node]):
                other = current.order[node, k]
                before_s += current.start_s[other] + problem.duration_s[other, node] - problem.submit_s[other]
        _remove(current, source, place)
        goal = min(max(goal + shift, 0), current.job_count[target])
        _insert(current, target, goal, job)
        after_s = _place(problem, current, target, profile)
        if target != source:
            after_s += _place(problem, current, source, profile)
        rise_s = after_s - before_s
        if rise_s <= 0.0 or draws[move, 3] < np.exp(-rise_s / temperature_s):
            cost_s += rise_s
            _copy_node(current, spare, source)
            _copy_node(current, spare, target)
            if cost_s < best_s - 1e-6:
                best_s = cost_s
                for node in range(nodes):
                    _copy_node(current, best, node)
        else:
            _copy_node(spare, current, source)
            _copy_node(spare, current, target)
