"""Builds the candidate table of an observation, and its kinds of GPUs. numpy and numba only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.cluster_arrays import Hardware
from adlro.state.gangs import NEVER, choose_packed, choose_spread, most_given
from adlro.state.machines import left_of
from adlro.state.observation import Bools, CandidateTable, Floats, Gangs, Ints, NodeRules, Observation, Preemption
from adlro.state.room import node_has_room

_NO_RULES = np.zeros((0, 0), dtype=np.bool_), np.zeros((0, 0), dtype=np.bool_)


def gpu_kinds(hardware: Hardware, known_speed: Floats) -> tuple[Ints, Ints]:
    """Numbers the kinds of GPUs of N clusters; a kind has one model, GPU memory, node size and speed.

    Args:
        hardware: the clusters' hardware.
        known_speed: (N, G) the GPUs' speeds relative to their models.

    Returns:
        (N, G) the number of each GPU's kind, in the order of the kinds' lowest GPUs; (N, S) these GPUs, -1 where a
        cluster has fewer kinds than another.
    """
    batch, gpus = hardware.gpu_model.shape
    gpu_kind, kind_gpu = np.empty((batch, gpus), dtype=np.int64), np.empty((batch, gpus), dtype=np.int64)
    most = _fill_kinds(hardware, known_speed, gpu_kind, kind_gpu)
    return gpu_kind, np.ascontiguousarray(kind_gpu[:, :most])


def split_kinds(gpu_kind: Ints, gpu_node: Ints, allowed: Sequence[Bools]) -> tuple[Ints, Ints]:
    """Splits kinds of GPUs, so that each job may run on the nodes of all GPUs of a kind, or of none.

    Args:
        gpu_kind, gpu_node: (N, G) fields of the observation.
        allowed: for each cluster (J, M), whether each job may run on each node; jobs that may on all may be left out.

    Returns:
        As `gpu_kinds`.
    """
    split = np.empty_like(gpu_kind)
    firsts = []
    for n in range(len(gpu_kind)):
        of_node, classes = _node_classes(allowed[n])
        key = gpu_kind[n] * classes + of_node[gpu_node[n]]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        split[n] = number[inverse]
        firsts.append(first[order])
    kind_gpu = np.full((len(gpu_kind), max(map(len, firsts), default=0)), -1, dtype=np.int64)
    for n, first in enumerate(firsts):
        kind_gpu[n, : len(first)] = first
    return split, kind_gpu


def _node_classes(allowed: Bools) -> tuple[Ints, int]:
    """(M,) numbers of classes of nodes that the same jobs may run on, in no order to rely on; the number of classes.

    Args:
        allowed: (J, M) whether each job may run on each node.
    """
    choosing = allowed[~allowed.all(axis=1)]
    if not len(choosing):
        return np.zeros(allowed.shape[1], dtype=np.int64), 1
    packed = np.ascontiguousarray(np.packbits(choosing, axis=0).T)  # one string of bytes for each node
    classes, of_node = np.unique(packed.view(np.dtype((np.void, packed.shape[1]))).ravel(), return_inverse=True)
    return of_node.ravel(), len(classes)


def candidate_table(
    gpu_kind: Ints,
    gpu_node: Ints,
    gpu_idle: Bools,
    node_cores_free: Ints,
    node_memory_free_mib: Ints,
    job_waiting: Bools,
    job_cores: Ints,
    job_memory_mib: Ints,
    kind_duration_s: Floats,
    gpu_model: Ints,
    gangs: Gangs | None,
    preemption: Preemption | None,
    rules: NodeRules | None = None,
) -> CandidateTable:
    """The table of N decision points; the arguments are fields of the observation."""
    batch, jobs = job_waiting.shape
    alone, node_busy = _NO_RULES if rules is None else (rules.job_exclusive, rules.node_busy)
    if gangs is not None and (gangs.gpu_count > 1).any():
        return _table_with_sets(
            gpu_kind,
            gpu_node,
            gpu_idle,
            node_cores_free,
            node_memory_free_mib,
            job_waiting,
            job_cores,
            job_memory_mib,
            kind_duration_s,
            gpu_model,
            gangs,
            preemption,
            alone,
            node_busy,
        )
    # Room for every job on every idle GPU, and in a batch for more.
    idle = min(np.count_nonzero(gpu_idle), gpu_idle.shape[1])
    room = np.count_nonzero(job_waiting) * idle
    first, duration_s = np.empty((batch, jobs + 1), dtype=np.int64), np.empty(room)
    job, gpu, size = np.empty((3, room), dtype=np.int64)
    rows = _fill_table(
        gpu_kind,
        gpu_node,
        gpu_idle,
        node_cores_free,
        node_memory_free_mib,
        job_waiting,
        job_cores,
        job_memory_mib,
        kind_duration_s,
        alone,
        node_busy,
        np.empty((2, gpu_kind.shape[1]), dtype=np.int64),
        first,
        job,
        gpu,
        size,
        duration_s,
    )
    columns = job[:rows], gpu[:rows], size[:rows], duration_s[:rows]
    if rows < room // 2:  # stored observations must not hold the unused room
        columns = job[:rows].copy(), gpu[:rows].copy(), size[:rows].copy(), duration_s[:rows].copy()
    return CandidateTable(first, *columns, columns[1].reshape(rows, 1), np.zeros(rows, dtype=np.bool_))


def _table_with_sets(
    gpu_kind: Ints,
    gpu_node: Ints,
    gpu_idle: Bools,
    node_cores_free: Ints,
    node_memory_free_mib: Ints,
    job_waiting: Bools,
    job_cores: Ints,
    job_memory_mib: Ints,
    kind_duration_s: Floats,
    gpu_model: Ints,
    gangs: Gangs,
    preemption: Preemption | None,
    alone: Bools,
    node_busy: Bools,
) -> CandidateTable:
    """The table where jobs of several GPUs wait; the arguments are those of `candidate_table` and `_fill_table`."""
    restart_s, share = np.empty((0, 0)), np.empty((0, 0))
    full_s = kind_duration_s
    if preemption is not None:
        restart_s, share, full_s = preemption.job_restart_s, preemption.job_share, preemption.kind_full_s
    batch, jobs = job_waiting.shape
    nodes, models = node_cores_free.shape[1], gangs.nodes.shape[2]
    width = int(gangs.gpu_count.max(initial=1))
    several = int(np.count_nonzero(job_waiting & (gangs.gpu_count > 1)))
    idle = min(np.count_nonzero(gpu_idle), gpu_idle.shape[1])
    room = (int(np.count_nonzero(job_waiting)) - several) * idle + several * 2 * models
    first, duration_s = np.empty((batch, jobs + 1), dtype=np.int64), np.empty(room)
    job, gpu, size = np.empty((3, room), dtype=np.int64)
    gpus, spread = np.full((room, width), -1, dtype=np.int64), np.zeros(room, dtype=np.bool_)
    rows = _fill_table_with_sets(
        gpu_kind,
        gpu_node,
        gpu_idle,
        node_cores_free,
        node_memory_free_mib,
        job_waiting,
        job_cores,
        job_memory_mib,
        kind_duration_s,
        gpu_model,
        gangs,
        restart_s,
        share,
        full_s,
        alone,
        node_busy,
        np.empty((2, gpu_kind.shape[1]), dtype=np.int64),
        np.empty((4, nodes), dtype=np.int64),
        first,
        job,
        gpu,
        size,
        duration_s,
        gpus,
        spread,
    )
    columns = job, gpu, size, duration_s, gpus, spread
    return CandidateTable(first, *(column[:rows].copy() for column in columns))


def with_new_table(observation: Observation) -> Observation:
    """The same observation, with its table rebuilt from its other fields."""
    table = candidate_table(
        observation.gpu_kind,
        observation.gpu_node,
        observation.gpu_idle,
        observation.node_cores_free,
        observation.node_memory_free_mib,
        observation.job_waiting,
        observation.job_cores,
        observation.job_memory_mib,
        observation.kind_duration_s,
        observation.gpu_model,
        observation.gangs,
        observation.preemption,
        observation.nodes,
    )
    return dataclasses.replace(observation, table=table)


def group_members(observation: Observation) -> Ints:
    """(E,) numbers of the GPUs of each row's group, in the order of the rows: `Observation.group` of all rows.

    Of a set the first GPU.
    """
    members = np.empty(int(observation.table.size.sum()), dtype=np.int64)
    place = 0
    for n in range(len(observation.table.first)):
        place = _fill_members(observation, n, observation.table.rows(n), members, place)
    return members


def gpus_of_job(observation: Observation, n: int, job: int) -> Ints:
    """(E,) numbers of the GPUs on which a job of one GPU at a place of cluster n fits now, in the order of its rows."""
    first = observation.table.first
    rows = slice(int(first[n, job]), int(first[n, job + 1]))
    members = np.empty(int(observation.table.size[rows].sum()), dtype=np.int64)
    _fill_members(observation, n, rows, members, 0)
    return members


def _fill_members(observation: Observation, n: int, rows: slice, members: Ints, place: int) -> int:
    """Fills in the GPUs of some rows' groups from a place on, and returns the place after them."""
    gpu, size = observation.table.gpu[rows], observation.table.size[rows]
    idle, node, kind = observation.gpu_idle[n], observation.gpu_node[n], observation.gpu_kind[n]
    return _find_members(gpu, size, idle, node, kind, members, place)


@compiled
def _fill_kinds(hardware: Hardware, known_speed: Floats, gpu_kind: Ints, kind_gpu: Ints) -> int:
    """Fills (N, G): each GPU's kind, and each kind's lowest GPU; returns the largest number of kinds of a cluster."""
    most, gpus = 0, gpu_kind.shape[1]
    for n in range(gpu_kind.shape[0]):
        kinds = find_kinds(hardware, known_speed, n, gpus, gpu_kind[n], kind_gpu[n])
        kind_gpu[n, kinds:] = -1
        most = max(most, kinds)
    return most


@compiled_part
def find_kinds(hardware: Hardware, known_speed: Floats, n: int, gpus: int, gpu_kind: Ints, kind_gpu: Ints) -> int:
    """Finds the kinds of the first GPUs of cluster n.

    Args:
        hardware, known_speed: of all clusters.
        gpus: number of GPUs to group; padding is a kind of its own.
        gpu_kind, kind_gpu: (G,) filled: the kind of each GPU, and the lowest GPU of each kind.

    Returns:
        The number of kinds.
    """
    kinds, before = 0, 0
    for gpu in range(gpus):
        kind = before  # neighbours are mostly of one kind, and on one node
        if kinds == 0 or not (
            (
                hardware.gpu_node[n, gpu - 1] == hardware.gpu_node[n, gpu]
                and hardware.gpu_model[n, gpu - 1] == hardware.gpu_model[n, gpu]
                and hardware.gpu_memory_mib[n, gpu - 1] == hardware.gpu_memory_mib[n, gpu]
                and known_speed[n, gpu - 1] == known_speed[n, gpu]
            )
            or _is_same(hardware, known_speed, n, kind_gpu[before], gpu)
        ):
            kind = 0
            while kind < kinds and not _is_same(hardware, known_speed, n, kind_gpu[kind], gpu):
                kind += 1
        if kind == kinds:
            kind_gpu[kind] = gpu
            kinds += 1
        gpu_kind[gpu] = before = kind
    return kinds


@compiled_part
def _is_same(hardware: Hardware, known_speed: Floats, n: int, one: int, other: int) -> bool:
    """Whether two GPUs of cluster n are of one kind."""
    node, other_node = hardware.gpu_node[n, one], hardware.gpu_node[n, other]
    return bool(
        hardware.gpu_model[n, one] == hardware.gpu_model[n, other]
        and hardware.gpu_memory_mib[n, one] == hardware.gpu_memory_mib[n, other]
        and known_speed[n, one] == known_speed[n, other]
        and hardware.node_cores[n, node] == hardware.node_cores[n, other_node]
        and hardware.node_memory_mib[n, node] == hardware.node_memory_mib[n, other_node]
    )


@compiled
def _fill_table(
    gpu_kind: Ints,
    gpu_node: Ints,
    gpu_idle: Bools,
    node_cores_free: Ints,
    node_memory_free_mib: Ints,
    job_waiting: Bools,
    job_cores: Ints,
    job_memory_mib: Ints,
    kind_duration_s: Floats,
    alone: Bools,
    node_busy: Bools,
    groups: Ints,
    first: Ints,
    row_job: Ints,
    row_gpu: Ints,
    row_size: Ints,
    row_duration_s: Floats,
) -> int:
    """Fills the columns of a table; returns its number of rows.

    Args:
        alone: (N, J) whether the job must be alone on its nodes; (0, 0): none must.
        node_busy: (N, M) whether a job runs on the node; (0, 0) with the former.
        groups: room for two figures of each GPU.
    """
    rows = 0
    lowest, group_size = groups[0], groups[1]
    for n in range(gpu_kind.shape[0]):
        kind_of, node_of = gpu_kind[n], gpu_node[n]
        found = _find_groups(kind_of, node_of, gpu_idle[n], lowest, group_size)
        cores_free, memory_free_mib = node_cores_free[n], node_memory_free_mib[n]
        for job in range(job_waiting.shape[1]):
            first[n, job] = begin = rows
            if not job_waiting[n, job]:
                continue
            cores, memory_mib, durations_s = job_cores[n, job], job_memory_mib[n, job], kind_duration_s[n, job]
            is_alone = alone.shape[0] > 0 and alone[n, job]
            for group in range(found):
                gpu = lowest[group]
                node, duration_s = node_of[gpu], durations_s[kind_of[gpu]]
                if duration_s == np.inf or not node_has_room(
                    cores, memory_mib, cores_free[node], memory_free_mib[node]
                ):
                    continue
                if is_alone and node_busy[n, node]:
                    continue
                if rows > begin and node_of[row_gpu[rows - 1]] == node and kind_of[row_gpu[rows - 1]] == kind_of[gpu]:
                    row_size[rows - 1] += group_size[group]  # on the GPUs between the two the job does not fit
                    continue
                row_job[rows], row_gpu[rows], row_size[rows] = job, gpu, group_size[group]
                row_duration_s[rows] = duration_s
                rows += 1
        first[n, job_waiting.shape[1]] = rows
    return rows


@compiled_part
def _find_groups(kind_of: Ints, node_of: Ints, idle: Bools, lowest: Ints, group_size: Ints) -> int:
    """Fills in the lowest GPU and the size of each group of idle GPUs; returns the number of groups."""
    found = 0
    for gpu in range(kind_of.shape[0]):
        if not idle[gpu]:
            continue
        like = lowest[found - 1]
        if found > 0 and node_of[like] == node_of[gpu] and kind_of[like] == kind_of[gpu]:
            group_size[found - 1] += 1
        else:
            lowest[found], group_size[found] = gpu, 1
            found += 1
    return found


@compiled
def _fill_table_with_sets(
    gpu_kind: Ints,
    gpu_node: Ints,
    gpu_idle: Bools,
    node_cores_free: Ints,
    node_memory_free_mib: Ints,
    job_waiting: Bools,
    job_cores: Ints,
    job_memory_mib: Ints,
    kind_duration_s: Floats,
    gpu_model: Ints,
    gangs: Gangs,
    job_restart_s: Floats,
    job_share: Floats,
    kind_full_s: Floats,
    alone: Bools,
    node_busy: Bools,
    groups: Ints,
    scratch: Ints,
    first: Ints,
    row_job: Ints,
    row_gpu: Ints,
    row_size: Ints,
    row_duration_s: Floats,
    row_gpus: Ints,
    row_spread: Bools,
) -> int:
    """As `_fill_table`, with sets of GPUs for jobs of several.

    Args:
        job_restart_s, job_share: (N, J) of stopped jobs; (0, 0): there is none.
        kind_full_s: (N, J, S) durations of the whole jobs.
        scratch: room for four figures of each node.
    """
    rows = 0
    lowest, group_size = groups[0], groups[1]
    node, gives, taken, lowest_of = scratch[0], scratch[1], scratch[2], scratch[3]
    for n in range(gpu_kind.shape[0]):
        kind_of, node_of = gpu_kind[n], gpu_node[n]
        found = _find_groups(kind_of, node_of, gpu_idle[n], lowest, group_size)
        idle_count = 0
        for group in range(found):
            idle_count += group_size[group]
        for job in range(job_waiting.shape[1]):
            first[n, job] = begin = rows
            gpu_count = gangs.gpu_count[n, job]
            if not job_waiting[n, job] or gpu_count > idle_count:
                continue
            cores, memory_mib, durations_s = job_cores[n, job], job_memory_mib[n, job], kind_duration_s[n, job]
            is_alone = alone.shape[0] > 0 and alone[n, job]
            if gpu_count == 1:
                for group in range(found):
                    gpu = lowest[group]
                    its_node, duration_s = node_of[gpu], durations_s[kind_of[gpu]]
                    if duration_s == np.inf or not node_has_room(
                        cores, memory_mib, node_cores_free[n, its_node], node_memory_free_mib[n, its_node]
                    ):
                        continue
                    if is_alone and node_busy[n, its_node]:
                        continue
                    like = row_gpu[rows - 1]
                    if rows > begin and node_of[like] == its_node and kind_of[like] == kind_of[gpu]:
                        row_size[rows - 1] += group_size[group]
                        continue
                    row_job[rows], row_gpu[rows], row_size[rows] = job, gpu, group_size[group]
                    row_gpus[rows, 0], row_duration_s[rows] = gpu, duration_s
                    rows += 1
                continue
            for model in range(gangs.nodes.shape[2]):
                packed = gangs.nodes[n, job, model]
                if packed == NEVER:
                    continue
                count = 0
                for group in range(found):
                    gpu = lowest[group]
                    if gpu_model[n, gpu] != model or durations_s[kind_of[gpu]] == np.inf:
                        continue
                    if is_alone and node_busy[n, node_of[gpu]]:
                        continue
                    if count > 0 and node[count - 1] == node_of[gpu]:
                        gives[count - 1] += group_size[group]
                    else:
                        node[count], gives[count], lowest_of[count] = node_of[gpu], group_size[group], gpu
                        count += 1
                able = 0
                for i in range(count):
                    given = most_given(
                        gives[i], cores, memory_mib, node_cores_free[n, node[i]], node_memory_free_mib[n, node[i]]
                    )
                    if given > 0:
                        node[able], gives[able], lowest_of[able] = node[i], given, lowest_of[i]
                        able += 1
                for spread in range(2):
                    speed = 1.0
                    if spread == 0:
                        if not choose_packed(gives, able, gpu_count, packed, taken):
                            continue
                    else:
                        speed = gangs.spread_speed[n, job, model]
                        if not (
                            speed > 0.0
                            and choose_spread(gives, able, gpu_count, packed, gangs.max_nodes[n, job], taken)
                        ):
                            continue
                    gpus, whole_s = row_gpus[rows], kind_full_s[n, job]
                    duration_s = _fill_set(
                        lowest_of, taken, able, model, gpu_model[n], kind_of, gpu_idle[n], whole_s, gpus
                    )
                    if spread == 1:
                        duration_s /= speed
                    if job_share.shape[0] > 0:
                        duration_s = left_of(job_restart_s[n, job], job_share[n, job], duration_s)
                    row_job[rows], row_gpu[rows], row_size[rows] = job, gpus[0], 1
                    row_duration_s[rows] = duration_s
                    row_spread[rows] = spread == 1
                    rows += 1
        first[n, job_waiting.shape[1]] = rows
    return rows


@compiled_part
def _fill_set(
    first_gpu: Ints,
    taken: Ints,
    count: int,
    model: int,
    gpu_model: Ints,
    gpu_kind: Ints,
    gpu_idle: Bools,
    durations_s: Floats,
    gpus: Ints,
) -> float:
    """Fills in the GPUs of a set, as chosen by nodes; returns the job's duration on the slowest of them.

    Args:
        first_gpu: number of each node's first GPU that could take the job.
        taken: number of GPUs that each gives.
        durations_s: (S,) of the job on each kind.
        gpus: (W,) filled.
    """
    place, longest_s = 0, 0.0
    for i in range(count):
        gpu, left = first_gpu[i], taken[i]
        while left > 0:
            duration_s = durations_s[gpu_kind[gpu]]
            if gpu_idle[gpu] and gpu_model[gpu] == model and duration_s < np.inf:
                gpus[place] = gpu
                longest_s = max(longest_s, duration_s)
                place += 1
                left -= 1
            gpu += 1
    return longest_s


@compiled
def _find_members(
    row_gpu: Ints, row_size: Ints, gpu_idle: Bools, gpu_node: Ints, gpu_kind: Ints, members: Ints, place: int
) -> int:
    """As `_fill_members`, for the rows of one cluster."""
    for row in range(row_gpu.shape[0]):
        lowest = gpu = row_gpu[row]
        ends = place + row_size[row]
        while place < ends:
            if gpu_idle[gpu] and gpu_node[gpu] == gpu_node[lowest] and gpu_kind[gpu] == gpu_kind[lowest]:
                members[place] = gpu
                place += 1
            gpu += 1
    return place
