"""What can be stopped on a cluster, as compiled code reads it. numpy and numba only.

adlro/decide/stop_rule.py searches in it. A *run* is a running job with all its GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.gangs import Outlook
from adlro.state.observation import Bools, Floats, Ints

SLOTS = 256
"""Room for searches that found nothing, by what the job asks for."""

_KEY = 7


class Stops(NamedTuple):
    """What can be stopped on one cluster of G GPUs on M nodes, with room for a search; one per thread.

    Attributes:
        outlook: of the cluster.
        gpu_idle, gpu_kind: (G,) as in an observation.
        closed: (M,) nodes where nothing may start.
        run: (G,) number of the run on each GPU, from 0; -1: none.
        first: (G + 1,) the GPUs of run r are gpus[first[r]:first[r + 1]].
        gpus: (G,) the GPUs by run.
        worth, cost, fixed, share: (G,) of each run; worth -inf: it can't be stopped.
        node_first: (M + 1,) the runs on node v that can be stopped are node_run[node_first[v]:node_first[v + 1]].
        node_run: (G,) these, the greatest worth first.
        model_worth: (K,) the greatest worth on GPUs of each model.
        known: (1,) number of the decision, from 1.
        key, key_x: (SLOTS, _KEY), (SLOTS,) searches that found nothing: what was asked for, and the least x.
        gone: (G,) room: by run, whether it is to be stopped.
        picked: (G,) room: runs to stop on one node.
        chosen, home: (G,) room: all runs to stop, and the node that each of them is stopped for.
        gives: (M,) room: GPUs that a node can give when all that may be is stopped.
        takes: (M,) room: GPUs that are taken from each node.
        taken: (G,) room: by GPU, whether it is taken.
        numbers: (2 G + 1,) room to number the runs.
    """

    outlook: Outlook
    gpu_idle: Bools
    gpu_kind: Ints
    closed: Bools
    run: Ints
    first: Ints
    gpus: Ints
    worth: Floats
    cost: Floats
    fixed: Floats
    share: Floats
    node_first: Ints
    node_run: Ints
    model_worth: Floats
    known: Ints
    key: Ints
    key_x: Floats
    gone: Bools
    picked: Ints
    chosen: Ints
    home: Ints
    gives: Ints
    takes: Ints
    taken: Bools
    numbers: Ints


def room_for_stops(outlook: Outlook, gpu_idle: Bools, gpu_kind: Ints, models: int) -> Stops:
    """Room for a cluster with GPUs of so many models, with all nodes open."""
    gpus, nodes = len(outlook.gpu_node), len(outlook.node_cores_free)
    run, members, node_run, picked, chosen, home = np.zeros((6, gpus), dtype=np.int64)
    gives, takes = np.zeros((2, nodes), dtype=np.int64)
    worth, cost, fixed, share = np.zeros((4, gpus))
    gone, taken = np.zeros((2, gpus), dtype=np.bool_)
    return Stops(
        outlook=outlook,
        gpu_idle=gpu_idle,
        gpu_kind=gpu_kind,
        closed=np.zeros(nodes, dtype=np.bool_),
        run=run,
        first=np.zeros(gpus + 1, dtype=np.int64),
        gpus=members,
        worth=worth,
        cost=cost,
        fixed=fixed,
        share=share,
        node_first=np.zeros(nodes + 1, dtype=np.int64),
        node_run=node_run,
        model_worth=np.zeros(models),
        known=np.zeros(1, dtype=np.int64),
        key=np.zeros((SLOTS, _KEY), dtype=np.int64),
        key_x=np.zeros(SLOTS),
        gone=gone,
        picked=picked,
        chosen=chosen,
        home=home,
        gives=gives,
        takes=takes,
        taken=taken,
        numbers=np.zeros(2 * gpus + 1, dtype=np.int64),
    )


@compiled
def fill_stops(
    gpu_run: Ints, stoppable: Bools, worth: Floats, cost: Floats, fixed: Floats, share: Floats, stops: Stops
) -> int:
    """Fills in what can be stopped, for a new decision; returns the number of runs.

    Args:
        gpu_run: (G,) a number from 0 that the GPUs of one running job share; -1 where none runs.
        stoppable: (G,) whether the job on the GPU may be stopped.
        worth: (G,) of the job on the GPU; the least of its GPUs counts.
        cost, fixed, share: (G,) the same on all GPUs of a job.
        stops: filled.
    """
    outlook = stops.outlook
    stops.known[0] += 1
    runs = _number_runs(gpu_run, stops)
    for run in range(runs):
        first = stops.gpus[stops.first[run]]
        least, may = np.inf, True
        for i in range(stops.first[run], stops.first[run + 1]):
            least = min(least, worth[stops.gpus[i]])
            may &= stoppable[stops.gpus[i]]
        stops.worth[run] = least if may else -np.inf
        stops.cost[run], stops.fixed[run], stops.share[run] = cost[first], fixed[first], share[first]
        stops.gone[run] = False
    for model in range(stops.model_worth.shape[0]):
        stops.model_worth[model] = -np.inf
    place = 0
    for node in range(stops.closed.shape[0]):
        begin = stops.node_first[node] = place
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            run, model = stops.run[gpu], outlook.gpu_model[gpu]
            stops.taken[gpu] = False
            if run < 0 or stops.worth[run] == -np.inf or outlook.gpu_free_s[gpu] == np.inf:
                continue
            stops.model_worth[model] = max(stops.model_worth[model], stops.worth[run])
            known = False
            for i in range(begin, place):
                known |= stops.node_run[i] == run
            if known:
                continue
            at = place
            while at > begin and stops.worth[stops.node_run[at - 1]] < stops.worth[run]:
                stops.node_run[at] = stops.node_run[at - 1]
                at -= 1
            stops.node_run[at] = run
            place += 1
    stops.node_first[stops.closed.shape[0]] = place
    return runs


@compiled_part
def _number_runs(gpu_run: Ints, stops: Stops) -> int:
    """Numbers the runs in the order of their lowest GPUs, and lists their GPUs; returns their number."""
    numbers, size, runs = stops.numbers, stops.numbers.shape[0], 0
    for slot in range(size):
        numbers[slot] = -1  # the lowest GPU of the run in this slot
    for gpu in range(gpu_run.shape[0]):
        stops.run[gpu] = -1
        if gpu_run[gpu] < 0:
            continue
        slot = gpu_run[gpu] % size
        while numbers[slot] >= 0 and gpu_run[numbers[slot]] != gpu_run[gpu]:
            slot = slot + 1 if slot + 1 < size else 0
        if numbers[slot] < 0:
            numbers[slot], stops.run[gpu] = gpu, runs
            stops.first[runs] = 0
            runs += 1
        else:
            stops.run[gpu] = stops.run[numbers[slot]]
        stops.first[stops.run[gpu]] += 1  # how many, at first
    end = 0
    for run in range(runs):
        end += stops.first[run]
        stops.first[run] = end  # then the end; and as the list is filled from behind, the begin
    stops.first[runs] = end
    for gpu in range(gpu_run.shape[0] - 1, -1, -1):
        run = stops.run[gpu]
        if run >= 0:
            stops.first[run] -= 1
            stops.gpus[stops.first[run]] = gpu
    return runs
