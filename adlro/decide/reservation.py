"""Reservations: GPUs that are kept free for one waiting job. numpy and numba only.

As EASY's (Lifka, "The ANL/IBM SP scheduling system", 1995), on a cluster with GPUs of several models. For the reserved
job, of all models and of packed and spread sets the one with which it is expected to end first counts (on a tie the
lower-numbered model, the packed set first). That gives

    the nodes     packed: those of the set that the job would get at the start; spread: all nodes of the model;
    the start     when the running jobs' expected ends have freed enough there;
    the slack     how many GPUs more the nodes can give it then than it asks for.

Another job may start on these nodes only if it is expected to end by then, or if the nodes can still give the reserved
job its GPUs: it costs them no more than the slack. With enough cores and memory that is the number of its GPUs there
that the reserved job could take; without, also what its cores and memory take away. So no start delays the expected
start. A reservation is worked out anew at each decision; only whose it is is kept.

The compiled functions read plain arrays of one cluster (`adlro.state.gangs.Outlook`); `reservation_of` and `may_enter`
do the same with an observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adlro.decide.looked import Looked, as_type
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.state.gangs import NEVER, Outlook, choose_packed, free_at_s, gives_by, most_given
from adlro.state.observation import Bools, Floats, Ints, Observation

SAME_INSTANT_S = 1e-6
"""Times closer together than this are one instant: sums of floats depend on the clock's time. So what ends this much
after a start is free at it, and an end counts as earlier only by more than this."""

MODEL, SPREAD, SLACK, CORES, MEMORY_MIB, GPU_MEMORY_MIB, WHOLE = range(7)
"""Places in `Kept.figures`."""


class Kept(NamedTuple):
    """Room for what is kept free for a job, for compiled code.

    Attributes:
        start_s: (1,) expected time until the job starts; inf: it can never start.
        figures: (7,) by MODEL and so on: of the set the model, whether it is spread, and the slack; then of the job;
            and whether it must be alone on the nodes: then there is no slack.
        node: (M,) whether the node is kept.
        able, cores, memory_mib: (M,) of a kept node at the start: GPUs that the job could take, and what is free.
        taken: (M,) room.
    """

    start_s: Floats
    figures: Ints
    node: Bools
    able: Ints
    cores: Ints
    memory_mib: Ints
    taken: Ints


def room_to_keep(nodes: int) -> Kept:
    """Room for a cluster of up to this many nodes; one per thread."""
    able, cores, memory_mib, taken = np.zeros((4, nodes), dtype=np.int64)
    return Kept(
        np.full(1, np.inf), np.zeros(7, dtype=np.int64), np.zeros(nodes, dtype=np.bool_), able, cores, memory_mib, taken
    )


@compiled_call
def reserve(
    outlook: Outlook,
    gpu_count: int,
    max_nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    nodes: Ints,
    duration_s: Floats,
    spread_speed: Floats,
    kept: Kept,
) -> float:
    """Works out a job's reservation; returns the expected time until its start; inf: it can never start.

    Args:
        outlook: of the cluster.
        gpu_count, max_nodes, cores, memory_mib, gpu_memory_mib: of the job.
        nodes: (K,) nodes of a packed set of each model, or NEVER.
        duration_s: (K,) expected duration on a packed set of each model; inf: it can't run there.
        spread_speed: (K,) expected speed of a spread set relative to a packed one; 0: it can't run spread.
        kept: filled.
    """
    best_model, best_nodes, best_s, end_s = -1, 0, np.inf, np.inf
    spread_is_best = False
    for model in range(nodes.shape[0]):
        if nodes[model] == NEVER or not duration_s[model] < np.inf:
            continue
        for spread in range(2):
            its_nodes, length_s = nodes[model], duration_s[model]
            if spread == 1:
                if gpu_count == 1 or spread_speed[model] == 0.0:
                    continue
                its_nodes, length_s = max_nodes, length_s / spread_speed[model]
            if length_s >= end_s:
                continue
            wait_s = free_at_s(outlook, model, gpu_count, its_nodes, cores, memory_mib, gpu_memory_mib)
            if wait_s + length_s < end_s - SAME_INSTANT_S:
                best_model, best_nodes, best_s, end_s = model, its_nodes, wait_s, wait_s + length_s
                spread_is_best = spread == 1
    kept.start_s[0] = best_s
    figures = kept.figures
    figures[MODEL], figures[SPREAD], figures[SLACK] = best_model, 0, 0
    figures[CORES], figures[MEMORY_MIB], figures[GPU_MEMORY_MIB] = cores, memory_mib, gpu_memory_mib
    figures[WHOLE] = 0
    for node in range(kept.node.shape[0]):
        kept.node[node] = False
    if best_model < 0:
        return best_s
    count = gives_by(outlook, best_s + SAME_INSTANT_S, best_model, cores, memory_mib, gpu_memory_mib)
    if not spread_is_best:
        choose_packed(outlook.gives, count, gpu_count, best_nodes, kept.taken)
    slack = -gpu_count
    for i in range(count):
        if spread_is_best or kept.taken[i] > 0:
            node = outlook.node[i]
            kept.node[node] = True
            kept.able[node], kept.cores[node] = outlook.able[node], outlook.cores[node]
            kept.memory_mib[node] = outlook.memory_mib[node]
            slack += outlook.gives[i]
    figures[SPREAD], figures[SLACK] = spread_is_best, slack
    return best_s


@compiled_part
def lessens(kept: Kept, node: int, taken: int, able: int, cores: int, memory_mib: int) -> int:
    """By how many GPUs a start lessens what a kept node can give the reserved job.

    Args:
        node: a kept node.
        taken: GPUs of the node that the start takes.
        able: those of them that the reserved job could take.
        cores, memory_mib: what the start takes of the node with each GPU.
    """
    its_cores, its_memory_mib = kept.figures[CORES], kept.figures[MEMORY_MIB]
    before = most_given(kept.able[node], its_cores, its_memory_mib, kept.cores[node], kept.memory_mib[node])
    after = most_given(
        kept.able[node] - able,
        its_cores,
        its_memory_mib,
        kept.cores[node] - taken * cores,
        kept.memory_mib[node] - taken * memory_mib,
    )
    return int(before - after)


@compiled_part
def may_start(
    outlook: Outlook, kept: Kept, gpus: Ints, gpu_count: int, duration_s: float, cores: int, memory_mib: int
) -> bool:
    """Whether a job may start on some GPUs beside a reservation.

    Args:
        outlook: of the cluster.
        kept: what `reserve` filled in.
        gpus: (W,) the GPUs in ascending order, then anything.
        gpu_count: their number.
        duration_s: expected duration there.
        cores, memory_mib: what the job takes with each GPU.
    """
    if duration_s <= kept.start_s[0] + SAME_INSTANT_S:
        return True
    model, gpu_memory_mib = kept.figures[MODEL], kept.figures[GPU_MEMORY_MIB]
    lost, i = 0, 0
    while i < gpu_count:
        node, taken, able = outlook.gpu_node[gpus[i]], 0, 0
        while i < gpu_count and outlook.gpu_node[gpus[i]] == node:
            gpu = gpus[i]
            able += outlook.gpu_model[gpu] == model and outlook.gpu_memory_mib[gpu] >= gpu_memory_mib
            taken += 1
            i += 1
        if kept.node[node] and kept.figures[WHOLE] == 1:
            return False
        if kept.node[node]:
            lost += lessens(kept, node, taken, able, cores, memory_mib)
    return bool(lost <= kept.figures[SLACK])


@compiled_part
def keep_whole(kept: Kept) -> None:
    """Keeps whole nodes: no job may start there that isn't expected to end by then."""
    kept.figures[WHOLE], kept.figures[SLACK] = 1, 0


@compiled_part
def look_as(outlook: Outlook, duration_s: Floats, gpu_kind: Ints, alone: bool, plain_s: Floats) -> None:
    """Lets an outlook be as a picky job sees it, until `look_again`.

    GPUs are never free on nodes where the job must not run, and if it must be alone, none of a node is free before all
    are whose time is known.

    Args:
        duration_s: (S,) expected duration of the job on each kind.
        gpu_kind: (G,).
        alone: whether it must be alone on its nodes.
        plain_s: (G,) room: as the others see it.
    """
    for gpu in range(plain_s.shape[0]):
        plain_s[gpu] = outlook.gpu_free_s[gpu]
    for node in range(outlook.node_first_gpu.shape[0] - 1):
        latest_s, may = 0.0, False
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            may = may or duration_s[gpu_kind[gpu]] < np.inf
            if plain_s[gpu] < np.inf:
                latest_s = max(latest_s, plain_s[gpu])
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            if not may:
                outlook.gpu_free_s[gpu] = np.inf
            elif alone and plain_s[gpu] < np.inf:
                outlook.gpu_free_s[gpu] = latest_s


@compiled_part
def look_again(outlook: Outlook, plain_s: Floats) -> None:
    """Lets an outlook be as it was before `look_as`."""
    for gpu in range(plain_s.shape[0]):
        outlook.gpu_free_s[gpu] = plain_s[gpu]


@compiled
def _look_as(outlook: Outlook, duration_s: Floats, gpu_kind: Ints, alone: bool, plain_s: Floats) -> None:
    look_as(outlook, duration_s, gpu_kind, alone, plain_s)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept free for a waiting job of one cluster.

    Attributes:
        job: its place in the observation.
        model: number of the GPU model.
        spread: whether for a spread set.
        nodes: (M,) whether the node is kept.
        start_s: cluster time of the expected start.
        slack: GPUs that the nodes can give it then beyond those that it asks for.
    """

    job: int
    model: int
    spread: bool
    nodes: Bools
    start_s: float
    slack: int
    _kept: Kept


def reservation_of(observation: Observation, n: int, job: int) -> Reservation | None:
    """A job's reservation; None: it can never start on the GPUs that are present.

    Args:
        observation: of any jobs, of several GPUs or not.
        n: number of the cluster.
        job: place of the job, of one GPU or more, whether or not it is reserved now.
    """
    outlook, nodes, duration_s, speed, figures = job_outlook(observation, n, job)
    kept = room_to_keep(len(outlook.node_cores_free))
    wait_s = _reserve(outlook, *figures, nodes, duration_s, speed, kept)
    if not wait_s < np.inf:
        return None
    if observation.nodes is not None and observation.nodes.job_exclusive[n, job]:
        kept.figures[WHOLE], kept.figures[SLACK] = 1, 0
    return Reservation(
        job,
        int(kept.figures[MODEL]),
        bool(kept.figures[SPREAD]),
        kept.node,
        float(observation.time_s[n]) + wait_s,
        int(kept.figures[SLACK]),
        kept,
    )


def may_enter(observation: Observation, n: int, reservation: Reservation) -> Bools:
    """(R,) which rows of the table of cluster n may start beside a reservation; all rows of the reserved job may.

    Of a group of GPUs, its lowest one is what counts.
    """
    table = observation.table.of_cluster(n)
    may = np.ones(len(table.job), dtype=np.bool_)
    _fill_may_enter(
        outlook_of(observation, n),
        reservation._kept,
        reservation.job,
        table.job,
        table.gpus,
        table.duration_s,
        observation.job_cores[n].astype(np.int64),
        observation.job_memory_mib[n].astype(np.int64),
        may,
    )
    return may


def outlook_of(observation: Observation, n: int) -> Outlook:
    """The outlook of cluster n of an observation."""
    nodes = observation.node_cores_free.shape[1]
    gpu_node = observation.gpu_node[n]
    first = np.searchsorted(_in_order(gpu_node, observation.gpu_memory_mib[n]), np.arange(nodes + 1))
    able, cores, memory_mib, node, gives, taken = np.zeros((6, nodes), dtype=np.int64)
    columns = (
        _ints(observation.gpu_model[n]),
        _ints(observation.gpu_memory_mib[n]),
        _ints(gpu_node),
        np.ascontiguousarray(observation.gpu_remaining_s[n], dtype=np.float64),
        _ints(observation.gpu_cores_held[n]),
        _ints(observation.gpu_memory_held_mib[n]),
        _ints(observation.node_cores_free[n]),
        _ints(observation.node_memory_free_mib[n]),
    )
    return Outlook(*columns, _ints(first), able, cores, memory_mib, node, gives, taken)


@compiled_part
def fill_outlook(outlook: Outlook, looked: Looked, gpu_model: Ints) -> None:
    """Fills in the outlook of an observation's only cluster, as `outlook_of` gives it.

    Args:
        gpu_model: (G,) of the observation.
    """
    gpus = 0
    for gpu in range(gpu_model.shape[0]):
        outlook.gpu_model[gpu], outlook.gpu_node[gpu] = gpu_model[gpu], looked.gpu_node[0, gpu]
        outlook.gpu_memory_mib[gpu] = looked.gpu_memory_mib[0, gpu]
        outlook.gpu_free_s[gpu] = looked.gpu_remaining_s[0, gpu]
        outlook.gpu_cores_held[gpu] = looked.gpu_cores_held[0, gpu]
        outlook.gpu_memory_held_mib[gpu] = looked.gpu_memory_held_mib[0, gpu]
        gpus += looked.gpu_memory_mib[0, gpu] >= 0  # the others are padding
    gpu = 0
    for node in range(looked.node_cores_free.shape[1]):
        outlook.node_cores_free[node] = looked.node_cores_free[0, node]
        outlook.node_memory_free_mib[node] = looked.node_memory_free_mib[0, node]
        outlook.node_first_gpu[node] = gpu
        while gpu < gpus and outlook.gpu_node[gpu] == node:
            gpu += 1
    outlook.node_first_gpu[looked.node_cores_free.shape[1]] = gpu


def _in_order(gpu_node: Ints, gpu_memory_mib: Ints) -> Ints:
    """The nodes of GPUs, without the padding behind them, which has node 0 and memory -1."""
    return gpu_node[: int(np.count_nonzero(gpu_memory_mib >= 0))]


def _ints(column: Ints) -> Ints:
    return as_type(column, np.int64)


def job_outlook(
    observation: Observation, n: int, job: int
) -> tuple[Outlook, Ints, Floats, Floats, tuple[int, int, int, int, int]]:
    """What `reserve` reads of a job: the outlook, packed nodes, durations and spread speeds by model, and figures.

    The duration on a model is the shortest expected one on its GPUs. The outlook is as the job sees it (`look_as`).
    """
    gangs, models = observation.gangs, len(observation.gpu_models)
    outlook = outlook_of(observation, n)
    there = np.isfinite(outlook.gpu_free_s)
    rules = observation.nodes
    if rules is not None and (rules.job_choosing[n, job] or rules.job_exclusive[n, job]):
        outlook = outlook._replace(gpu_free_s=outlook.gpu_free_s.copy())
        its_s = np.ascontiguousarray(observation.kind_duration_s[n, job], dtype=np.float64)
        alone, plain_s = bool(rules.job_exclusive[n, job]), np.zeros(len(there))
        _look_as(outlook, its_s, _ints(observation.gpu_kind[n]), alone, plain_s)
    duration_s = np.full(models, np.inf)
    np.minimum.at(duration_s, outlook.gpu_model[there], observation.durations_s(n, job)[there])
    nodes, spread_speed, gpu_count, max_nodes = np.ones(models, dtype=np.int64), np.ones(models), 1, 0
    if gangs is not None and gangs.gpu_count[n, job] > 1:
        gpu_count, max_nodes = int(gangs.gpu_count[n, job]), int(gangs.max_nodes[n, job])
        nodes = _ints(gangs.nodes[n, job])
        spread_speed = np.ascontiguousarray(gangs.spread_speed[n, job])
    figures = (
        gpu_count,
        max_nodes,
        int(observation.job_cores[n, job]),
        int(observation.job_memory_mib[n, job]),
        int(observation.job_gpu_memory_mib[n, job]),
    )
    return outlook, nodes, duration_s, spread_speed, figures


@compiled
def _reserve(
    outlook: Outlook,
    gpu_count: int,
    max_nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    nodes: Ints,
    duration_s: Floats,
    spread_speed: Floats,
    kept: Kept,
) -> float:
    """`reserve`, for callers in Python."""
    return reserve(
        outlook, gpu_count, max_nodes, cores, memory_mib, gpu_memory_mib, nodes, duration_s, spread_speed, kept
    )


@compiled
def _fill_may_enter(
    outlook: Outlook,
    kept: Kept,
    reserved: int,
    row_job: Ints,
    row_gpus: Ints,
    row_duration_s: Floats,
    job_cores: Ints,
    job_memory_mib: Ints,
    may: Bools,
) -> None:
    for row in range(row_job.shape[0]):
        job = row_job[row]
        if job == reserved:
            continue
        gpu_count = 0
        while gpu_count < row_gpus.shape[1] and row_gpus[row, gpu_count] >= 0:
            gpu_count += 1
        may[row] = may_start(
            outlook, kept, row_gpus[row], gpu_count, row_duration_s[row], job_cores[job], job_memory_mib[job]
        )
