"""The rule of the policy `las_preemptive`, compiled, on plain arrays of one cluster. numpy and numba only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.looked import ALONE, CHOOSES, Looked, is_picky
from adlro.decide.stop_rule import Wish, find_stop
from adlro.decide.stops import Stops
from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.gangs import NEVER
from adlro.state.observation import Floats, Gangs, Ints


class LasRoom(NamedTuple):
    """Room for one decision.

    Attributes:
        kind_model: (S,) the model of a kind of GPUs; -1: no GPU of it is present.
        model_s: (K,) a job's shortest duration on present GPUs of each model.
        gpus: (W,) GPUs of a start that stops.
    """

    kind_model: Ints
    model_s: Floats
    gpus: Ints


@compiled
def choose_by_service(
    order: Ints, rank_s: Floats, stops: Stops, looked: Looked, gangs: Gangs, n: int, room: LasRoom
) -> int:
    """The start of cluster n: a row of the table; or -2 less the job that starts by stopping others; -1: none.

    Args:
        order: (J,) places of the jobs, in the order in which they go.
        rank_s: (J,) of the jobs.
        stops: filled in for this decision, with the ranks of the running jobs as worths.
        room: `gpus` is filled.
    """
    factor, table = 1.0, looked.table
    _fill_kinds(stops, room.kind_model)
    for job in order:
        if not looked.job_waiting[n, job]:
            continue
        best, best_s = -1, np.inf
        for row in range(table.first[n, job], table.first[n, job + 1]):
            if table.duration_s[row] < best_s:
                best, best_s = row, table.duration_s[row]
        if best >= 0:
            return best
        if is_picky(looked, n, job, ALONE):
            continue  # it waits for empty nodes
        picky = is_picky(looked, n, job, CHOOSES)
        duration_s, gpu_count = looked.kind_duration_s[n, job], gangs.gpu_count[n, job]
        _fill_model_s(room, duration_s)
        for _ in range(room.model_s.shape[0]):
            model = -1
            for other in range(room.model_s.shape[0]):
                if room.model_s[other] < np.inf and (model < 0 or room.model_s[other] < room.model_s[model]):
                    model = other
            if model < 0:
                break
            room.model_s[model] = np.inf
            nodes = 1 if gpu_count == 1 else gangs.nodes[n, job, model]
            if nodes == NEVER:
                continue
            wish = Wish(
                model,
                gpu_count,
                nodes,
                looked.job_cores[n, job],
                looked.job_memory_mib[n, job],
                looked.job_gpu_memory_mib[n, job],
                duration_s,
                rank_s[job],
            )
            if picky:
                stops.known[0] += 1  # what it can't have others may
            loss = find_stop(factor, stops, wish, room.gpus)
            if picky:
                stops.known[0] += 1
            if loss < np.inf:
                return int(-2 - job)
    return -1


@compiled_part
def _fill_kinds(stops: Stops, kind_model: Ints) -> None:
    """Fills in the model of each kind of which a GPU is present."""
    for kind in range(kind_model.shape[0]):
        kind_model[kind] = -1
    for gpu in range(stops.gpu_kind.shape[0]):
        if stops.outlook.gpu_free_s[gpu] < np.inf:
            kind_model[stops.gpu_kind[gpu]] = stops.outlook.gpu_model[gpu]


@compiled_part
def _fill_model_s(room: LasRoom, duration_s: Floats) -> None:
    """Fills in a job's shortest duration on present GPUs of each model; inf: there are none."""
    for model in range(room.model_s.shape[0]):
        room.model_s[model] = np.inf
    for kind in range(duration_s.shape[0]):
        model = room.kind_model[kind]
        if model >= 0:
            room.model_s[model] = min(room.model_s[model], duration_s[kind])
