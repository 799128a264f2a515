"""Which running jobs a waiting one may stop, and where that costs least, compiled. numpy and numba only.

A *run* is a running job with all its GPUs. Each run has a `worth` and a `cost`; a waiting job with the figure x may
stop it if

    worth > factor (x + cost)

so with the remaining time as worth, its restart as cost and the waiting job's duration as x, a job may stop what is
longer by more than that factor, restart included. What can't be stopped has no worth: it restores, or isn't
preemptible, or is spared.

A waiting job gets a packed set of a model's GPUs (adlro/state/gangs.py). What is free on a node is used first. Of the
node's runs that it may stop, those of greatest worth are stopped first, no more than needed: with one run less the set
would not fit, in GPUs, cores or memory. A run is stopped on all its nodes. The *loss* of a run is

    fixed + share (x + cost) / worth

With the remaining time as worth and a share of 1 that is how much of a job the run would have done meanwhile, and while
it restarts. The node of least loss is taken, on a tie the lowest. For a set of several nodes, node after node of
least loss, of those with which the rest still fits.

A stop names the GPUs of the new job, and each run with a GPU among these is stopped. So a run is stopped only where the
new job takes one of its GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.stops import SLOTS, Stops
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.state.gangs import most_given
from adlro.state.observation import Floats, Ints


class Wish(NamedTuple):
    """What a waiting job asks for on a model.

    Attributes:
        model, gpu_count, nodes: a packed set of so many GPUs is on so many nodes.
        cores, memory_mib, gpu_memory_mib: with each GPU.
        duration_s: (S,) of the job on each kind of GPU; inf: it can't run there.
        x: the job's figure in the formulas above.
    """

    model: int
    gpu_count: int
    nodes: int
    cores: int
    memory_mib: int
    gpu_memory_mib: int
    duration_s: Floats
    x: float


@compiled_part
def _may_stop(factor: float, stops: Stops, run: int, x: float) -> bool:
    return bool(stops.worth[run] > factor * (x + stops.cost[run]))


@compiled_part
def _loss_of(stops: Stops, run: int, x: float) -> float:
    return float(stops.fixed[run] + stops.share[run] * ((x + stops.cost[run]) / stops.worth[run]))


@compiled_part
def _is_able(stops: Stops, wish: Wish, gpu: int) -> bool:
    """Whether a GPU is present, and the job could run on it."""
    outlook = stops.outlook
    return bool(
        outlook.gpu_model[gpu] == wish.model
        and outlook.gpu_memory_mib[gpu] >= wish.gpu_memory_mib
        and outlook.gpu_free_s[gpu] < np.inf
        and wish.duration_s[stops.gpu_kind[gpu]] < np.inf
    )


@compiled_part
def _first_able(stops: Stops, wish: Wish, run: int, node: int) -> int:
    """The lowest GPU of a run on a node that the job could have; -1: none."""
    for i in range(stops.first[run], stops.first[run + 1]):
        gpu = stops.gpus[i]
        if stops.outlook.gpu_node[gpu] == node and _is_able(stops, wish, gpu):
            return int(gpu)
    return -1


@compiled_call
def _gives(stops: Stops, wish: Wish, node: int) -> int:
    """GPUs that a node can give a job once the runs that are `gone` are stopped."""
    outlook = stops.outlook
    able, cores_left, memory_left_mib = 0, outlook.node_cores_free[node], outlook.node_memory_free_mib[node]
    for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
        gone = stops.run[gpu] >= 0 and stops.gone[stops.run[gpu]]
        if gone:
            cores_left += outlook.gpu_cores_held[gpu]
            memory_left_mib += outlook.gpu_memory_held_mib[gpu]
        able += (stops.gpu_idle[gpu] or gone) and _is_able(stops, wish, gpu)
    return most_given(able, wish.cores, wish.memory_mib, cores_left, memory_left_mib)


@compiled_call
def _clear(factor: float, stops: Stops, wish: Wish, node: int, wanted: int, most: float) -> tuple[float, int]:
    """What a node must stop, besides what is gone, to give a job some GPUs.

    Args:
        wanted: the GPUs.
        most: a greater loss is of no interest.

    Returns:
        The loss, inf: it can't, or it is too much; and the number of runs, which are in `picked`.
    """
    given = _gives(stops, wish, node)
    count, i, end = 0, stops.node_first[node], stops.node_first[node + 1]
    while given < wanted and i < end:
        run = stops.node_run[i]
        i += 1
        if not stops.gone[run] and _may_stop(factor, stops, run, wish.x) and _first_able(stops, wish, run, node) >= 0:
            stops.gone[run] = True
            stops.picked[count] = run
            count += 1
            given = _gives(stops, wish, node)
    for i in range(count - 2 if given >= wanted else -1, -1, -1):
        # The last one was needed; of the others the shortest is spared first.
        run = stops.picked[i]
        stops.gone[run] = False
        if _gives(stops, wish, node) < wanted:
            stops.gone[run] = True
    loss, kept = 0.0, 0
    for i in range(count):
        run = stops.picked[i]
        if stops.gone[run]:
            loss += _loss_of(stops, run, wish.x)
            stops.gone[run] = False
            stops.picked[kept] = run
            kept += 1
    if given < wanted or kept > wanted or loss > most:
        loss = np.inf  # more runs than GPUs: a run is stopped only where one of its GPUs is taken
    return loss, kept


@compiled_call
def find_stop(factor: float, stops: Stops, wish: Wish, found: Ints) -> float:
    """Finds the packed set that a job gets with the least loss, by stopping what runs there.

    Args:
        found: (W,) filled: the GPUs in ascending order.

    Returns:
        The loss; inf: there is no such set, or one is free.
    """
    if not stops.model_worth[wish.model] > factor * wish.x:
        return np.inf
    slot = (
        wish.model * 7919
        + wish.gpu_count * 104729
        + wish.nodes * 1299709
        + wish.cores * 31
        + (wish.memory_mib >> 6) * 17
    ) % SLOTS
    key = stops.key[slot]
    if (
        key[0] == stops.known[0]
        and key[1] == wish.model
        and key[2] == wish.gpu_count
        and key[3] == wish.nodes
        and key[4] == wish.cores
        and key[5] == wish.memory_mib
        and key[6] == wish.gpu_memory_mib
        and wish.x >= stops.key_x[slot]
    ):
        return np.inf
    if wish.nodes == 1:
        loss, runs = _on_one_node(factor, stops, wish)
    else:
        loss, runs = _on_nodes(factor, stops, wish)
    if loss == np.inf:
        key[0], key[1], key[2], key[3] = stops.known[0], wish.model, wish.gpu_count, wish.nodes
        key[4], key[5], key[6] = wish.cores, wish.memory_mib, wish.gpu_memory_mib
        stops.key_x[slot] = wish.x
        return loss
    _take(stops, wish, runs, found)
    for i in range(runs):
        stops.gone[stops.chosen[i]] = False
    return loss


@compiled
def search_stop(factor: float, stops: Stops, wish: Wish, found: Ints) -> float:
    """`find_stop`, for callers in Python."""
    return find_stop(factor, stops, wish, found)


@compiled_part
def _has(stops: Stops, node: int, model: int) -> bool:
    """Whether a node is open and has a GPU of a model."""
    has, outlook = False, stops.outlook
    for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
        has |= outlook.gpu_model[gpu] == model
    return has and not stops.closed[node]


@compiled_part
def _on_one_node(factor: float, stops: Stops, wish: Wish) -> tuple[float, int]:
    """`find_stop` of one node: the loss and the number of runs, which are in `chosen`, `home` and `gone`."""
    best, best_node, runs = np.inf, -1, 0
    for node in range(stops.closed.shape[0]):
        stops.takes[node] = 0
        size = stops.outlook.node_first_gpu[node + 1] - stops.outlook.node_first_gpu[node]
        if size < wish.gpu_count or not _has(stops, node, wish.model):
            continue
        loss, count = _clear(factor, stops, wish, node, wish.gpu_count, best)
        if loss == 0.0 and count == 0:
            return np.inf, 0  # it fits as it is
        if loss < best:
            best, best_node, runs = loss, node, count
            for i in range(count):
                stops.chosen[i] = stops.picked[i]
    for i in range(runs):
        stops.gone[stops.chosen[i]], stops.home[i] = True, best_node
    if runs > 0:
        stops.takes[best_node] = wish.gpu_count
    return best, runs


@compiled_part
def _on_nodes(factor: float, stops: Stops, wish: Wish) -> tuple[float, int]:
    """`find_stop` of several nodes."""
    _fill_gives(factor, stops, wish)
    runs, left = 0, wish.gpu_count
    for step in range(wish.nodes):
        more = wish.nodes - step - 1  # nodes after this one
        sum_more, sum_all, least = _greatest(stops, more)
        best, best_node, best_count = np.inf, -1, 0
        for node in range(stops.closed.shape[0]):
            its = stops.gives[node]
            if its == 0 or stops.takes[node] > 0:
                continue
            others = sum_all - its if more > 0 and its >= least else sum_more
            if its + others < left:
                continue
            loss, count = _clear(factor, stops, wish, node, min(its, left), best)
            if loss < best:
                best, best_node, best_count = loss, node, count
                for i in range(count):
                    stops.chosen[runs + i] = stops.picked[i]
        if best_node < 0:
            break
        stops.takes[best_node] = min(stops.gives[best_node], left)
        for i in range(runs, runs + best_count):
            stops.gone[stops.chosen[i]], stops.home[i] = True, best_node
        runs += best_count
        left -= stops.takes[best_node]
        if left == 0:
            break
    total, kept = 0.0, 0
    for i in range(runs):
        # A later run may have freed what an earlier one was stopped for, on more nodes than one.
        run = stops.chosen[i]
        stops.gone[run] = left > 0
        for node in range(stops.closed.shape[0]):
            if not stops.gone[run] and stops.takes[node] > 0 and _gives(stops, wish, node) < stops.takes[node]:
                stops.gone[run] = True
        if stops.gone[run]:
            stops.chosen[kept], stops.home[kept] = run, stops.home[i]
            total += _loss_of(stops, run, wish.x)
            kept += 1
    if left > 0 or kept == 0:
        for i in range(kept):
            stops.gone[stops.chosen[i]] = False
        return np.inf, 0
    return total, kept


@compiled_part
def _fill_gives(factor: float, stops: Stops, wish: Wish) -> None:
    """Fills in what nodes can give when all is stopped that may be; takes nothing yet."""
    for node in range(stops.closed.shape[0]):
        begin, end = stops.node_first[node], stops.node_first[node + 1]
        stops.gives[node] = stops.takes[node] = 0
        if not _has(stops, node, wish.model):
            continue
        for i in range(begin, end):
            stops.gone[stops.node_run[i]] = _may_stop(factor, stops, stops.node_run[i], wish.x)
        stops.gives[node] = _gives(stops, wish, node)
        for i in range(begin, end):
            stops.gone[stops.node_run[i]] = False


@compiled_part
def _greatest(stops: Stops, more: int) -> tuple[int, int, int]:
    """Of the nodes of which nothing is taken: the sum of the greatest `more` gives, and of one more.

    The third figure is the least of those `more`.
    """
    sum_more, sum_all, least, most, seen = 0, 0, 0, 0, 0
    for node in range(stops.gives.shape[0]):
        most = max(most, stops.gives[node])
    for size in range(most, 0, -1):
        for node in range(stops.gives.shape[0]):
            if stops.gives[node] == size and stops.takes[node] == 0 and seen <= more:
                sum_all += size
                if seen < more:
                    sum_more += size
                    least = size
                seen += 1
    return sum_more, sum_all, least


@compiled_part
def _take(stops: Stops, wish: Wish, runs: int, found: Ints) -> None:
    """Fills in the GPUs: one of each run, then what is idle, then others of these runs; of a node the lowest first."""
    for i in range(runs):
        gpu = _first_able(stops, wish, stops.chosen[i], stops.home[i])
        stops.taken[gpu] = True
        stops.takes[stops.home[i]] -= 1
    place = 0
    for node in range(stops.takes.shape[0]):
        begin, end = stops.outlook.node_first_gpu[node], stops.outlook.node_first_gpu[node + 1]
        for busy in range(2):
            for gpu in range(begin, end):
                gone = stops.run[gpu] >= 0 and stops.gone[stops.run[gpu]]
                if (
                    stops.takes[node] > 0
                    and not stops.taken[gpu]
                    and (gone if busy == 1 else stops.gpu_idle[gpu])
                    and _is_able(stops, wish, gpu)
                ):
                    stops.taken[gpu] = True
                    stops.takes[node] -= 1
        for gpu in range(begin, end):
            if stops.taken[gpu]:
                found[place] = gpu
                place += 1
                stops.taken[gpu] = False
