"""What the present GPUs could hold if no job ran: those that are neither lost nor on a drained node.

numpy and numba only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.gangs import NEVER, is_startable, most_given
from adlro.state.observation import Bools, Floats, Gangs, Ints, Observation


def kinds_there(observation: Observation) -> Bools:
    """(N, S) whether the cluster has a GPU of the kind that is neither lost nor on a drained node."""
    there = np.zeros((len(observation.gpu_kind), observation.kind_duration_s.shape[2]), dtype=np.bool_)
    n, gpu = np.nonzero(np.isfinite(observation.gpu_remaining_s))
    there[n, observation.gpu_kind[n, gpu]] = True
    return there


def kinds_that_hold(observation: Observation, clusters: Ints | None = None) -> Bools:
    """(n, J, S) whether present GPUs of the kind can hold the job; several of its model, for a job of several GPUs.

    Args:
        clusters: (n,) of these; None: of all.
    """
    which = np.arange(len(observation.time_s)) if clusters is None else clusters
    duration_s = observation.kind_duration_s if clusters is None else observation.kind_duration_s[clusters]
    able: Bools = np.isfinite(duration_s) & kinds_there(observation)[which][:, None, :]
    gangs = observation.gangs
    if gangs is None:
        return able
    away = (observation.gpu_memory_mib >= 0) & ~np.isfinite(observation.gpu_remaining_s)
    if not away.any():
        return able
    for place in np.flatnonzero((away.any(axis=1) & waiting_gangs(observation))[which]).tolist():
        n = int(which[place])
        cores, memory_mib = _node_sums(observation, n)
        _refuse_lost_sets(
            _ints(observation.gpu_model[n]),
            _ints(observation.gpu_node[n]),
            _ints(observation.gpu_kind[n]),
            np.isfinite(observation.gpu_remaining_s[n]),
            np.ascontiguousarray(observation.kind_duration_s[n]),
            _ints(observation.job_cores[n]),
            _ints(observation.job_memory_mib[n]),
            cores,
            memory_mib,
            in_layout(gangs.of_cluster(n)),
            np.zeros((2, len(cores)), dtype=np.int64),
            able[place],
        )
    return able


def gives_when_empty(observation: Observation, n: int, job: int, model: int) -> Ints:
    """(M,) how many present GPUs of a model each node of cluster n could give the job at a place, if no job ran."""
    cores, memory_mib = _node_sums(observation, n)
    gives = np.zeros(len(cores), dtype=np.int64)
    _fill_gives(
        _ints(observation.gpu_model[n]),
        _ints(observation.gpu_node[n]),
        _ints(observation.gpu_kind[n]),
        np.isfinite(observation.gpu_remaining_s[n]),
        np.ascontiguousarray(observation.kind_duration_s[n, job]),
        int(observation.job_cores[n, job]),
        int(observation.job_memory_mib[n, job]),
        cores,
        memory_mib,
        model,
        gives,
    )
    return gives


def waiting_gangs(observation: Observation) -> Bools:
    """(N,) whether a job of several GPUs waits, in the queue of each cluster."""
    if observation.gangs is None:
        return np.zeros(len(observation.time_s), dtype=np.bool_)
    waits: Bools = np.logical_or.reduce(observation.job_waiting & (observation.gangs.gpu_count > 1), axis=1)
    return waits


def runs_gang(gangs: Gangs, n: int) -> bool:
    """Whether a job of several GPUs runs on cluster n."""
    run = np.sort(gangs.gpu_run[n])
    return bool(((run[1:] == run[:-1]) & (run[1:] >= 0)).any())


def of_one_gpu_only(observation: Observation) -> Bools:
    """(N,) whether all is as if there were jobs of one GPU alone: none of several waits, and nothing is reserved.

    A running job of several GPUs is as many busy GPUs.
    """
    waits = waiting_gangs(observation)
    return ~waits if observation.gangs is None else ~(waits | (observation.gangs.reserved >= 0))


def _node_sums(observation: Observation, n: int) -> tuple[Ints, Ints]:
    """(M,) cores and memory of the nodes of cluster n when empty."""
    cores, memory_mib = _ints(observation.node_cores_free[n]).copy(), _ints(observation.node_memory_free_mib[n]).copy()
    np.add.at(cores, observation.gpu_node[n], observation.gpu_cores_held[n])
    np.add.at(memory_mib, observation.gpu_node[n], observation.gpu_memory_held_mib[n])
    return cores, memory_mib


def in_layout(gangs: Gangs) -> Gangs:
    """The same figures in the layout of compiled code."""
    columns: dict[str, Any] = {name: np.ascontiguousarray(column) for name, column in gangs._asdict().items()}
    return Gangs(**columns)


def _ints(column: Ints) -> Ints:
    return np.require(column, np.int64, ["C"])


@compiled_part
def _sum_gives(
    gpu_model: Ints,
    gpu_node: Ints,
    gpu_kind: Ints,
    there: Bools,
    durations_s: Floats,
    cores: int,
    memory_mib: int,
    node_cores: Ints,
    node_memory_mib: Ints,
    model: int,
    gives: Ints,
) -> None:
    """Fills in `gives_when_empty`."""
    for node in range(gives.shape[0]):
        gives[node] = 0
    for gpu in range(gpu_model.shape[0]):
        if there[gpu] and gpu_model[gpu] == model and durations_s[gpu_kind[gpu]] < np.inf:
            gives[gpu_node[gpu]] += 1
    for node in range(gives.shape[0]):
        if gives[node] > 0:
            gives[node] = most_given(gives[node], cores, memory_mib, node_cores[node], node_memory_mib[node])


@compiled
def _fill_gives(
    gpu_model: Ints,
    gpu_node: Ints,
    gpu_kind: Ints,
    there: Bools,
    durations_s: Floats,
    cores: int,
    memory_mib: int,
    node_cores: Ints,
    node_memory_mib: Ints,
    model: int,
    gives: Ints,
) -> None:
    _sum_gives(
        gpu_model,
        gpu_node,
        gpu_kind,
        there,
        durations_s,
        cores,
        memory_mib,
        node_cores,
        node_memory_mib,
        model,
        gives,
    )


@compiled
def _refuse_lost_sets(
    gpu_model: Ints,
    gpu_node: Ints,
    gpu_kind: Ints,
    there: Bools,
    durations_s: Floats,
    job_cores: Ints,
    job_memory_mib: Ints,
    node_cores: Ints,
    node_memory_mib: Ints,
    gangs: Gangs,
    scratch: Ints,
    able: Bools,
) -> None:
    """Marks the kinds of models whose present GPUs are too few for a job; `gangs` is of one cluster."""
    of_nodes, gives = scratch[0], scratch[1]
    for job in range(job_cores.shape[0]):
        if gangs.gpu_count[0, job] == 1:
            continue
        for model in range(gangs.nodes.shape[2]):
            packed, count = gangs.nodes[0, job, model], 0
            if packed == NEVER:
                continue
            _sum_gives(
                gpu_model,
                gpu_node,
                gpu_kind,
                there,
                durations_s[job],
                job_cores[job],
                job_memory_mib[job],
                node_cores,
                node_memory_mib,
                model,
                of_nodes,
            )
            for node in range(of_nodes.shape[0]):
                if of_nodes[node] > 0:
                    gives[count] = of_nodes[node]
                    count += 1
            if is_startable(
                gives,
                count,
                gangs.gpu_count[0, job],
                packed,
                gangs.max_nodes[0, job],
                gangs.spread_speed[0, job, model],
            ):
                continue
            for gpu in range(gpu_model.shape[0]):
                if gpu_model[gpu] == model:
                    able[job, gpu_kind[gpu]] = False
