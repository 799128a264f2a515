"""On which GPUs a job fits, and from when. Standard library only.

For a job of n GPUs and a model, c_v is what node v can give: the least of its free GPUs of the model that have the GPU
memory, its free cores // the job's cores, its free memory // the job's memory (0 asked: no limit).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.oracle.records import Placement

if TYPE_CHECKING:
    from tests.oracle.cluster import Oracle

Room = dict[int, list[int]]
"""Of each node that can give any: its c_v GPUs of lowest number."""


def models(oracle: Oracle) -> range:
    return range(1 + max(gpu.model for gpu in oracle.gpus))


def able_gpus(oracle: Oracle, job: int, model: int) -> list[int]:
    """GPUs of a model, whatever runs there, with the GPU memory for a job."""
    asked_mib = oracle.jobs[job].gpu_memory_mib
    return [g for g, gpu in enumerate(oracle.gpus) if gpu.model == model and asked_mib <= gpu.memory_mib]


def times(asked: int, there: int) -> float:
    return there // asked if asked else math.inf


def limited(oracle: Oracle, job: int, found: list[int], free: dict[int, tuple[int, int]]) -> Room:
    room: Room = {}
    wants = oracle.jobs[job]
    for node, (cores, memory_mib) in free.items():
        here = [gpu for gpu in found if oracle.gpus[gpu].node == node]
        count = min(len(here), times(wants.cores, cores), times(wants.memory_mib, memory_mib))
        if count > 0:
            room[node] = here[: int(count)]
    return room


def room_empty(oracle: Oracle, job: int, model: int) -> Room:
    """What nodes could give if the cluster were empty and whole."""
    free = {v: (node.cores, node.memory_mib) for v, node in enumerate(oracle.nodes)}
    return limited(oracle, job, able_gpus(oracle, job, model), free)


def room_now(oracle: Oracle, job: int, model: int) -> Room:
    """What nodes can give now."""
    found = [gpu for gpu in able_gpus(oracle, job, model) if oracle.idle(gpu)]
    return limited(oracle, job, found, {v: oracle.free(v) for v in range(len(oracle.nodes))})


def room_by(oracle: Oracle, job: int, model: int, by_s: float) -> Room:
    """What nodes can give in `by_s` seconds, if jobs end as expected."""
    found = [gpu for gpu in able_gpus(oracle, job, model) if oracle.remaining_s(gpu) <= by_s]
    return limited(oracle, job, found, {v: oracle.free(v, by_s) for v in range(len(oracle.nodes))})


def packed_nodes(oracle: Oracle, job: int, model: int) -> int | None:
    """p(n): the fewest nodes that could give n GPUs if the cluster were empty; None: never so many."""
    needed, nodes = oracle.jobs[job].gpu_count, 0
    for size in sorted((len(gpus) for gpus in room_empty(oracle, job, model).values()), reverse=True):
        if needed > 0:
            needed -= size
            nodes += 1
    return nodes if needed <= 0 else None


def holds(oracle: Oracle, job: int, model: int) -> int | None:
    """`packed_nodes` of a model that could ever hold the job and on which it is expected to run; None: never there."""
    wants, nodes = oracle.jobs[job], packed_nodes(oracle, job, model)
    if nodes is None or (0 < wants.max_nodes < nodes) or wants.full_s(model, False, expected=True) == math.inf:
        return None
    return nodes


def can_ever_hold(oracle: Oracle, job: int) -> bool:
    return any(holds(oracle, job, model) is not None for model in models(oracle))


def may_spread(oracle: Oracle, job: int, model: int, nodes: int) -> bool:
    """Whether more than p nodes could ever share the job."""
    wants = oracle.jobs[job]
    return (
        wants.gpu_count > 1
        and wants.spreads_at(model, True) > 0.0
        and (wants.max_nodes == 0 or wants.max_nodes > nodes)
        and len(room_empty(oracle, job, model)) > nodes
    )


def packed(room: Room, count: int, nodes: int) -> list[int] | None:
    """The GPUs of the packed set: best fit on one node, or the greatest p - 1 nodes and the best fit beside them."""
    taken: list[int] = []
    left = sorted(room, key=lambda v: (-len(room[v]), v))
    for node in left[: nodes - 1]:
        taken += room[node][: count - len(taken)]
    needed = count - len(taken)
    last = [node for node in left[nodes - 1 :] if len(room[node]) >= needed]
    if not last:
        return None
    return sorted(taken + room[min(last, key=lambda v: (len(room[v]), v))][:needed])


def spread(room: Room, count: int, nodes: int, max_nodes: int) -> list[int] | None:
    """The GPUs of the spread set: the fullest nodes first; if these are too many, the emptiest first."""
    for sign in (1, -1):
        taken: list[int] = []
        used = 0
        for node in sorted(room, key=lambda v: (sign * len(room[v]), v)):
            if len(taken) < count:
                taken += room[node][: count - len(taken)]
                used += 1
        if len(taken) < count:
            return None
        if max_nodes == 0 or used <= max_nodes:
            return sorted(taken) if used > nodes else None
    return None


def candidates(oracle: Oracle, job: int) -> Iterator[Placement]:
    """The sets on which a job fits now, in order: one GPU each by number; a gang's by model, packed before spread."""
    wants = oracle.jobs[job]
    if wants.gpu_count == 1:
        found = []
        for model in models(oracle):
            if holds(oracle, job, model) is None:
                continue
            free = {v: oracle.free(v) for v in range(len(oracle.nodes))}
            for gpu in able_gpus(oracle, job, model):
                cores, memory_mib = free[oracle.gpus[gpu].node]
                if oracle.idle(gpu) and wants.cores <= cores and wants.memory_mib <= memory_mib:
                    found.append(Placement(job, (gpu,), model, False))
        yield from sorted(found, key=lambda placement: placement.gpus)
        return
    for model in models(oracle):
        nodes = holds(oracle, job, model)
        if nodes is None:
            continue
        room = room_now(oracle, job, model)
        gpus = packed(room, wants.gpu_count, nodes)
        if gpus is not None:
            yield Placement(job, tuple(gpus), model, False)
        if wants.spreads_at(model, True) > 0.0:
            gpus = spread(room, wants.gpu_count, nodes, wants.max_nodes)
            if gpus is not None:
                yield Placement(job, tuple(gpus), model, True)


def fitting(oracle: Oracle) -> Iterator[Placement]:
    """All that fits now, in the order of submission."""
    for job in oracle.waiting:
        yield from candidates(oracle, job)


def is_spread(oracle: Oracle, job: int, gpus: tuple[int, ...]) -> bool:
    nodes = packed_nodes(oracle, job, oracle.gpus[gpus[0]].model)
    return nodes is not None and len({oracle.gpus[gpu].node for gpu in gpus}) > nodes


def is_legal(oracle: Oracle, job: int, gpus: tuple[int, ...]) -> bool:
    """Whether a job can start on these GPUs now, beside another where it is one GPU that both share."""
    wants, used = oracle.jobs[job], {oracle.gpus[gpu].node for gpu in gpus}
    model = oracle.gpus[gpus[0]].model
    if len(set(gpus)) != wants.gpu_count or any(oracle.gpus[gpu].model != model for gpu in gpus):
        return False
    if 0 < wants.max_nodes < len(used) or not set(gpus) <= set(able_gpus(oracle, job, model)):
        return False
    if wants.full_s(model, is_spread(oracle, job, gpus)) == math.inf:
        return False
    if not all(oracle.idle(gpu) or (len(gpus) == 1 and may_share(oracle, job, gpu)) for gpu in gpus):
        return False
    for node in used:
        here = sum(oracle.gpus[gpu].node == node for gpu in gpus)
        cores, memory_mib = oracle.free(node)
        if here * wants.cores > cores or here * wants.memory_mib > memory_mib:
            return False
    return True


def may_share(oracle: Oracle, job: int, gpu: int) -> bool:
    """Whether a job may run beside the one that is on a GPU alone."""
    if oracle.speed[gpu] == 0.0 or len(oracle.on_gpu[gpu]) != 1:
        return False
    wants, has = oracle.jobs[job], oracle.jobs[oracle.on_gpu[gpu][0].job]
    model, table = oracle.gpus[gpu].model, oracle.instance.kept
    return (
        wants.shareable
        and has.shareable
        and wants.gpu_count == has.gpu_count == 1
        and wants.gpu_memory_mib + has.gpu_memory_mib <= oracle.gpus[gpu].memory_mib
        and (wants.family, has.family, model) in table
        and (has.family, wants.family, model) in table
    )


# ---- expected waits

SAME_INSTANT_S = 1e-6
"""Expected times closer together than this are one instant: sums of floats depend on the clock's time."""


def free_at_s(oracle: Oracle, job: int, model: int, is_packed: bool) -> float:
    """The expected time until a job fits on a model, packed or spread; inf: never, as GPUs are lost."""
    wants, nodes = oracle.jobs[job], holds(oracle, job, model)
    if nodes is None or not (is_packed or may_spread(oracle, job, model, nodes)):
        return math.inf
    most = nodes if is_packed else wants.max_nodes or len(oracle.nodes)
    for by_s in sorted({oracle.remaining_s(gpu) for gpu in range(len(oracle.gpus))} - {math.inf}):
        sizes = sorted((len(gpus) for gpus in room_by(oracle, job, model, by_s).values()), reverse=True)
        if sum(sizes[:most]) >= wants.gpu_count:
            return by_s
    return math.inf


@dataclass(frozen=True)
class Reservation:
    """What is kept for a job.

    Attributes:
        nodes: where it is to run.
        wait_s: the expected time until it can; `start_s` is that moment.
        slack: GPUs there that it does not need then.
    """

    job: int
    model: int
    spread: bool
    nodes: frozenset[int]
    wait_s: float
    start_s: float
    slack: int

    def allows(self, oracle: Oracle, other: Placement) -> bool:
        """Whether another job may start on a placement: it is gone in time, or the nodes still give the job enough."""
        if oracle.expected_s(other) <= self.wait_s + SAME_INSTANT_S:
            return True
        return self.gives(oracle) - self.gives(oracle, other) <= self.slack

    def gives(self, oracle: Oracle, other: Placement | None = None) -> int:
        """What the nodes can give the job at its start, with another job on a placement from now on until after it."""
        by_s, taken = self.wait_s + SAME_INSTANT_S, () if other is None else other.gpus
        found = [
            gpu
            for gpu in able_gpus(oracle, self.job, self.model)
            if gpu not in taken and oracle.remaining_s(gpu) <= by_s and oracle.gpus[gpu].node in self.nodes
        ]
        free = {node: oracle.free(node, by_s) for node in self.nodes}
        if other is not None:
            wants = oracle.jobs[other.job]
            for node in {oracle.gpus[gpu].node for gpu in other.gpus} & self.nodes:
                here, (cores, memory_mib) = sum(oracle.gpus[gpu].node == node for gpu in other.gpus), free[node]
                free[node] = cores - here * wants.cores, memory_mib - here * wants.memory_mib
        return sum(len(gpus) for gpus in limited(oracle, self.job, found, free).values())


def reservation(oracle: Oracle, job: int) -> Reservation | None:
    """The reservation of a job, where it is expected to end first; None: it can't run on what is there."""
    wants, best_s, best = oracle.jobs[job], math.inf, None
    for model in models(oracle):
        for is_packed in (True, False):
            wait_s = free_at_s(oracle, job, model, is_packed)
            if wait_s == math.inf:
                continue
            end_s = wait_s + oracle.expected_s(Placement(job, (), model, not is_packed))
            if end_s < best_s - SAME_INSTANT_S:
                best_s, best = end_s, (model, is_packed, wait_s)
    if best is None:
        return None
    model, is_packed, wait_s = best
    room = room_by(oracle, job, model, wait_s + SAME_INSTANT_S)
    if is_packed:
        nodes = holds(oracle, job, model)
        assert nodes is not None
        gpus = packed(room, wants.gpu_count, nodes)
        assert gpus is not None
        used = frozenset(oracle.gpus[gpu].node for gpu in gpus)
    else:
        used = frozenset(gpu.node for gpu in oracle.gpus if gpu.model == model)
    free = sum(len(gpus) for node, gpus in room.items() if node in used)
    return Reservation(job, model, not is_packed, used, wait_s, oracle.now_s + wait_s, free - wants.gpu_count)


def fits_reserved(oracle: Oracle, kept: Reservation) -> Placement | None:
    """The set of the reserved job, if it fits there now."""
    for placement in candidates(oracle, kept.job):
        if (placement.model, placement.spread) == (kept.model, kept.spread):
            inside = {oracle.gpus[gpu].node for gpu in placement.gpus} <= kept.nodes
            return placement if inside else None
    return None
