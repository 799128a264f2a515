"""The sets of GPUs on which a job of several GPUs may start, compiled. numpy and numba only.

A set has GPUs of one model. For n GPUs of a model, p is the least number of nodes on which they fit when the cluster is
empty: a set on p nodes is packed, one on more nodes is spread, and slower. Of the many sets of a model two at most are
candidates, with g the number of GPUs that a node can give the job now:

    packed   of one node: that with the least g that is enough (best fit). Of p nodes: the p - 1 with the greatest g,
             and the one with the least g that is enough for the rest.
    spread   nodes in ascending order of g, the fullest first, so that few empty nodes are broken; in descending order
             where that would be more nodes than the job accepts.

On a tie the lower-numbered node; of a node the lowest-numbered GPUs.

What nodes can give is a list of `count` nodes with g above 0, in the order of their numbers: `node` (M,) and `gives`
(M,). A choice is how many GPUs each of these gives: `taken` (M,).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.state.cluster_arrays import Hardware
from adlro.state.observation import Bools, Floats, Ints

NEVER = 0
"""Stands for the number of packed nodes where a model can never hold the job."""


@compiled_part
def most_given(available: int, cores: int, memory_mib: int, cores_free: int, memory_free_mib: int) -> int:
    """GPUs that a node can give a job.

    Args:
        available: its GPUs that could take the job.
        cores, memory_mib: what the job takes of the node with each GPU.
        cores_free, memory_free_mib: of the node.
    """
    given = available
    if cores > 0:
        given = min(given, cores_free // cores)
    if memory_mib > 0:
        given = min(given, memory_free_mib // memory_mib)
    return int(max(given, 0))


@compiled_part
def packed_nodes(
    hardware: Hardware,
    n: int,
    model: int,
    gpu_count: int,
    max_nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    scratch: Ints,
) -> int:
    """The least number of nodes of cluster n, empty, that hold the job on GPUs of a model; NEVER: none do.

    Args:
        gpu_count, max_nodes, cores, memory_mib, gpu_memory_mib: of the job (`adlro.state.job_arrays`).
        scratch: (M,).
    """
    nodes, most = 0, 0
    for node in range(hardware.node_cores.shape[1]):
        able = 0
        for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
            if hardware.gpu_model[n, gpu] == model and hardware.gpu_memory_mib[n, gpu] >= gpu_memory_mib:
                able += 1
        if able > 0:
            able = most_given(able, cores, memory_mib, hardware.node_cores[n, node], hardware.node_memory_mib[n, node])
        if able > 0:
            scratch[nodes] = able
            nodes += 1
            most = max(most, able)
    used, left = 0, gpu_count
    for size in range(most, 0, -1):
        for i in range(nodes):
            if scratch[i] == size and left > 0:
                left -= size
                used += 1
    if left > 0 or (max_nodes > 0 and used > max_nodes):
        return NEVER
    return used


@compiled_part
def can_give(gives: Ints, count: int, gpu_count: int, nodes: int) -> bool:
    """Whether some number of nodes, at most `nodes`, have enough GPUs; 0: any number of nodes."""
    left, most = gpu_count, 0
    for i in range(count):
        left -= gives[i]
        most = max(most, gives[i])
    if left > 0:
        return False
    if nodes == 1:
        return bool(most >= gpu_count)
    if nodes == 0 or nodes >= count:
        return True
    left, used = gpu_count, 0
    for size in range(most, 0, -1):
        for i in range(count):
            if gives[i] == size and used < nodes:
                left -= size
                used += 1
    return left <= 0


@compiled_part
def is_startable(gives: Ints, count: int, gpu_count: int, packed: int, max_nodes: int, spread_speed: float) -> bool:
    """Whether there is a candidate set, packed or spread, with what the nodes can give.

    Args:
        packed: nodes of a packed set, or NEVER.
        max_nodes: that the job accepts; 0: any number.
        spread_speed: 0: the job can't run spread.
    """
    if packed == NEVER:
        return False
    return bool(can_give(gives, count, gpu_count, max_nodes if spread_speed > 0.0 else packed))


@compiled_part
def choose_packed(gives: Ints, count: int, gpu_count: int, packed: int, taken: Ints) -> bool:
    """Chooses the packed set; returns False where there is none now. `taken` is filled in either case."""
    left = gpu_count
    for i in range(count):
        taken[i] = 0
    for _ in range(packed - 1):
        best = -1
        for i in range(count):
            if taken[i] == 0 and (best < 0 or gives[i] > gives[best]):
                best = i
        if best < 0:
            return False
        taken[best] = min(gives[best], left)
        left -= taken[best]
        if left == 0:
            return True
    best = -1
    for i in range(count):
        if taken[i] == 0 and gives[i] >= left and (best < 0 or gives[i] < gives[best]):
            best = i
    if best < 0:
        return False
    taken[best] = left
    return True


@compiled_part
def choose_spread(gives: Ints, count: int, gpu_count: int, packed: int, max_nodes: int, taken: Ints) -> bool:
    """Chooses the spread set; returns False where there is none now. `taken` is filled in either case."""
    used = _in_order(gives, count, gpu_count, False, taken)
    if used > max_nodes > 0:
        used = _in_order(gives, count, gpu_count, True, taken)
        if used > max_nodes:
            return False
    return bool(used > packed)


@compiled_part
def _in_order(gives: Ints, count: int, gpu_count: int, descending: bool, taken: Ints) -> int:
    """Takes GPUs from the nodes in the order of what they give; returns the number of nodes; 0: not enough."""
    most, left, used = 0, gpu_count, 0
    for i in range(count):
        taken[i] = 0
        most = max(most, gives[i])
    for step in range(most):
        size = most - step if descending else step + 1
        for i in range(count):
            if gives[i] == size and left > 0:
                taken[i] = min(size, left)
                left -= taken[i]
                used += 1
        if left == 0:
            return used
    return 0


@compiled
def fill_packed_nodes(
    hardware: Hardware,
    n: int,
    gpu_count: int,
    max_nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    scratch: Ints,
    job_nodes: Ints,
) -> None:
    """`packed_nodes` of a job on each model of cluster n.

    Args:
        job_nodes: (K,) filled.
    """
    for model in range(job_nodes.shape[0]):
        job_nodes[model] = packed_nodes(
            hardware, n, model, gpu_count, max_nodes, cores, memory_mib, gpu_memory_mib, scratch
        )


@compiled
def refuse_models(
    hardware: Hardware,
    n: int,
    allowed: Bools,
    gpu_count: int,
    max_nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    spread_speed: Floats,
    scratch: Ints,
    job_nodes: Ints,
) -> None:
    """Writes NEVER for the models of which a job can't have its GPUs on the nodes that it may run on.

    A packed set has as few nodes as without the choice: on more of them the job runs as slowly, whoever chose them.

    Args:
        allowed: (M,) whether the job may run on each node.
        gpu_count, max_nodes, cores, memory_mib, gpu_memory_mib: of the job.
        spread_speed: (K,) of it.
        scratch: (M,).
        job_nodes: (K,) as filled by `fill_packed_nodes`.
    """
    for model in range(job_nodes.shape[0]):
        count = 0
        for node in range(allowed.shape[0]):
            able = 0
            if allowed[node]:
                for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
                    able += hardware.gpu_model[n, gpu] == model and hardware.gpu_memory_mib[n, gpu] >= gpu_memory_mib
            if able > 0:
                able = most_given(
                    able, cores, memory_mib, hardware.node_cores[n, node], hardware.node_memory_mib[n, node]
                )
            if able > 0:
                scratch[count] = able
                count += 1
        if not is_startable(scratch, count, gpu_count, job_nodes[model], max_nodes, spread_speed[model]):
            job_nodes[model] = NEVER


class Outlook(NamedTuple):
    """When GPUs, cores and memory of one cluster are expected to be free.

    Attributes:
        gpu_model, gpu_memory_mib, gpu_node: (G,) of each GPU; a node's GPUs have consecutive numbers.
        gpu_free_s: (G,) expected time until it is idle; 0 where idle, inf where lost or drained.
        gpu_cores_held, gpu_memory_held_mib: (G,) of its node that the job on the GPU holds; 0 where none runs.
        node_cores_free, node_memory_free_mib: (M,).
        node_first_gpu: (M + 1,) a node's GPUs go from its number here to below the next node's.
        able, cores, memory_mib: (M,) room: of each node, the GPUs that a job could take, and what is free.
        node, gives, taken: (M,) room for what nodes can give.
    """

    gpu_model: Ints
    gpu_memory_mib: Ints
    gpu_node: Ints
    gpu_free_s: Floats
    gpu_cores_held: Ints
    gpu_memory_held_mib: Ints
    node_cores_free: Ints
    node_memory_free_mib: Ints
    node_first_gpu: Ints
    able: Ints
    cores: Ints
    memory_mib: Ints
    node: Ints
    gives: Ints
    taken: Ints


def room_for_outlook(gpus: int, nodes: int) -> Outlook:
    """Room for the outlooks of a cluster of this size; one per thread."""
    gpu_model, gpu_memory_mib, gpu_node, cores_held, memory_held_mib = np.zeros((5, gpus), dtype=np.int64)
    cores_free, memory_free_mib, *room = np.zeros((8, nodes), dtype=np.int64)
    return Outlook(
        gpu_model,
        gpu_memory_mib,
        gpu_node,
        np.zeros(gpus),
        cores_held,
        memory_held_mib,
        cores_free,
        memory_free_mib,
        np.zeros(nodes + 1, dtype=np.int64),
        *room,
    )


@compiled_part
def gives_by(outlook: Outlook, free_s: float, model: int, cores: int, memory_mib: int, gpu_memory_mib: int) -> int:
    """Fills in what nodes can give a job of a model's GPUs after some time: `node` and `gives`; returns their number.

    The jobs that are expected to have ended by then have given back their GPUs, cores and memory.

    Args:
        free_s: the time from now.
        cores, memory_mib: what the job takes of a node with each GPU.
        gpu_memory_mib: that each GPU must have.
    """
    count = 0
    for node in range(outlook.node_cores_free.shape[0]):
        able, cores_left, memory_left_mib = 0, outlook.node_cores_free[node], outlook.node_memory_free_mib[node]
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            # Without branches: which jobs end by then is hard to predict.
            ends = outlook.gpu_free_s[gpu] <= free_s
            cores_left += outlook.gpu_cores_held[gpu] * ends
            memory_left_mib += outlook.gpu_memory_held_mib[gpu] * ends
            able += ends & (outlook.gpu_model[gpu] == model) & (outlook.gpu_memory_mib[gpu] >= gpu_memory_mib)
        outlook.able[node], outlook.cores[node], outlook.memory_mib[node] = able, cores_left, memory_left_mib
        if able > 0:
            given = most_given(able, cores, memory_mib, cores_left, memory_left_mib)
            if given > 0:
                outlook.node[count], outlook.gives[count] = node, given
                count += 1
    return count


@compiled_call
def free_at_s(
    outlook: Outlook, model: int, gpu_count: int, nodes: int, cores: int, memory_mib: int, gpu_memory_mib: int
) -> float:
    """The expected time until some number of nodes can give a job its GPUs of a model; inf: never.

    It is 0, or the expected end of a running job.

    Args:
        gpu_count: the GPUs that the job asks for.
        nodes: of a packed set; for a spread one the most that the job accepts, 0: any number.
        cores, memory_mib, gpu_memory_mib: of the job.
    """
    if nodes == 1:
        return _free_on_a_node_s(outlook, model, gpu_count, cores, memory_mib, gpu_memory_mib)
    # What nodes can give only grows with time: bisection over the ends, without sorting them.
    below_s, above_s = -1.0, np.inf
    pivot_s = 0.0
    while True:
        count = gives_by(outlook, pivot_s, model, cores, memory_mib, gpu_memory_mib)
        if can_give(outlook.gives, count, gpu_count, nodes):
            above_s = pivot_s
            if pivot_s == 0.0:
                return 0.0
        else:
            below_s = pivot_s
        between = 0
        for gpu in range(outlook.gpu_free_s.shape[0]):
            between += below_s < outlook.gpu_free_s[gpu] < above_s
        if between == 0:
            return above_s
        left = between // 2
        for gpu in range(outlook.gpu_free_s.shape[0]):
            if below_s < outlook.gpu_free_s[gpu] < above_s:
                if left == 0:
                    pivot_s = outlook.gpu_free_s[gpu]
                    break
                left -= 1


@compiled_part
def ends_sooner(
    outlook: Outlook,
    model: int,
    gpu_count: int,
    nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    length_s: float,
    kappa: float,
    theta: float,
    duration_s: float,
) -> bool:
    """Whether duration_s > theta (kappa free_at_s + length_s), in one pass: what ends early enough for that is enough.

    The other arguments are those of `free_at_s`.
    """
    count = 0
    for node in range(outlook.node_cores_free.shape[0]):
        able, cores_left, memory_left_mib = 0, outlook.node_cores_free[node], outlook.node_memory_free_mib[node]
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            ends = duration_s > theta * (kappa * outlook.gpu_free_s[gpu] + length_s)
            cores_left += outlook.gpu_cores_held[gpu] * ends
            memory_left_mib += outlook.gpu_memory_held_mib[gpu] * ends
            able += ends & (outlook.gpu_model[gpu] == model) & (outlook.gpu_memory_mib[gpu] >= gpu_memory_mib)
        if able > 0:
            given = most_given(able, cores, memory_mib, cores_left, memory_left_mib)
            if given > 0:
                outlook.node[count], outlook.gives[count] = node, given
                count += 1
    return bool(can_give(outlook.gives, count, gpu_count, nodes))


@compiled_part
def _free_on_a_node_s(
    outlook: Outlook, model: int, gpu_count: int, cores: int, memory_mib: int, gpu_memory_mib: int
) -> float:
    """`free_at_s` of one node: the first of all."""
    first_s = np.inf
    for node in range(outlook.node_cores_free.shape[0]):
        begin, end = outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]
        able = 0
        for gpu in range(begin, end):
            able += (
                (outlook.gpu_free_s[gpu] < first_s)
                & (outlook.gpu_model[gpu] == model)
                & (outlook.gpu_memory_mib[gpu] >= gpu_memory_mib)
            )
        if able < gpu_count:
            continue
        able, cores_left, memory_left_mib = 0, outlook.node_cores_free[node], outlook.node_memory_free_mib[node]
        before_s, now_s = -1.0, 0.0
        while now_s < first_s:
            later_s = np.inf
            for gpu in range(begin, end):
                free_s = outlook.gpu_free_s[gpu]
                if before_s < free_s <= now_s:
                    cores_left += outlook.gpu_cores_held[gpu]
                    memory_left_mib += outlook.gpu_memory_held_mib[gpu]
                    able += outlook.gpu_model[gpu] == model and outlook.gpu_memory_mib[gpu] >= gpu_memory_mib
                elif free_s > now_s:
                    later_s = min(later_s, free_s)
            if able >= gpu_count and most_given(able, cores, memory_mib, cores_left, memory_left_mib) >= gpu_count:
                first_s = now_s
            before_s, now_s = now_s, later_s
    return first_s


def gpus_of(row: Ints) -> tuple[int, ...]:
    """The GPUs of a row of an action or of a table, without the padding."""
    return tuple(int(gpu) for gpu in row if gpu >= 0)
