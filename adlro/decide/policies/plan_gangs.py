"""The plan of one queue in which jobs of several GPUs wait. numpy and numba only.

As adlro/decide/policies/plan.py: each job is planned where it should end first, after what runs there and what is
planned there. A job of one GPU goes to a GPU; one of several to n planned GPUs of a node set, of all models and of
packed and spread sets the one with which it ends first, and it starts when the last of these GPUs is free
(`adlro.decide.reservation.reserve`, with the planned times instead of the running jobs' expected ends). From then on
these GPUs have the time of its end: a plan never puts a job before one that it planned earlier, and GPUs that are idle
now, but in the set of a job that starts later, are kept for it.

Cores and memory that a planned job takes beyond those of the job before it on the GPU count as taken from now on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.looked import ALONE, CHOOSES, Looked, is_alike, is_picky, looked_at, may_start_at
from adlro.decide.present import in_layout
from adlro.decide.reservation import MODEL, SPREAD, Kept, look_again, look_as, outlook_of, reserve, room_to_keep
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.state.gangs import Outlook, choose_packed, choose_spread, gives_by
from adlro.state.observation import Bools, Floats, Gangs, Ints, Observation
from adlro.state.room import node_has_room


class _Planned(NamedTuple):
    """The plan.

    Attributes:
        outlook: with the planned times.
        kept: room.
        gangs: what concerns jobs of several GPUs.
        best_s, second_s: (J,) as those of `GangPlan`.
        gpu: (J,) the GPU where a job of one GPU ends first.
        on_node: (J, M) whether the best or second best place of a job is on the node: it is looked at again if the plan
            of the node changes.
        next_end_s: (M,) expected time until a job of the node ends.
        free: (G,) whether some job could start there, and the plan has no job for it.
        free_count: (1,) number of these GPUs.
        duration_s: (K,) room for a job's durations on each model.
        hidden_s: (G,) room for times while some are hidden for a look.
        plain_s: (G,) room for times while one job looks that is picky.
        gpus: (W,) room for a set.
        changed: (M,) room: nodes whose plan has changed.
    """

    outlook: Outlook
    kept: Kept
    gangs: Gangs
    best_s: Floats
    second_s: Floats
    gpu: Ints
    on_node: Bools
    next_end_s: Floats
    free: Bools
    free_count: Ints
    duration_s: Floats
    hidden_s: Floats
    plain_s: Floats
    gpus: Ints
    changed: Bools


class GangPlan:
    """The plan of the queue of cluster n.

    Args:
        observation: a job of several GPUs waits in cluster n.
        second: also computes the earliest completion on other GPUs.
        in_order: the order of the jobs is fixed: each is looked at only when it is taken up.

    Attributes:
        best_s: (J,) the earliest completion of a job in the plan so far; inf: it is in the plan, or there is none. With
            `in_order` 0 for jobs that are not taken up yet.
        second_s: (J,) the earliest without any of these GPUs, inf if there is none; equals `best_s` without `second`.
    """

    def __init__(self, observation: Observation, n: int, *, second: bool, in_order: bool = False) -> None:
        assert observation.gangs is not None
        jobs, gpus = observation.job_waiting.shape[1], observation.gpu_node.shape[1]
        nodes, models = observation.node_cores_free.shape[1], len(observation.gpu_models)
        outlook = outlook_of(observation, n)
        changed = ("gpu_free_s", "gpu_cores_held", "gpu_memory_held_mib", "node_cores_free", "node_memory_free_mib")
        columns = {name: getattr(outlook, name).copy() for name in changed}
        self._looked, self._n, self._second, self._in_order = looked_at(observation), n, second, in_order
        self._planned = _Planned(
            outlook=outlook._replace(**columns),
            kept=room_to_keep(nodes),
            gangs=in_layout(observation.gangs.of_cluster(n)),
            best_s=np.full(jobs, np.inf),
            second_s=np.full(jobs, np.inf),
            gpu=np.zeros(jobs, dtype=np.int64),
            on_node=np.zeros((jobs, nodes), dtype=np.bool_),
            next_end_s=np.full(nodes, np.inf),
            free=np.zeros(gpus, dtype=np.bool_),
            free_count=np.zeros(1, dtype=np.int64),
            duration_s=np.zeros(models),
            hidden_s=np.zeros(gpus),
            plain_s=np.zeros(gpus),
            gpus=np.zeros(observation.table.gpus.shape[1], dtype=np.int64),
            changed=np.zeros(nodes, dtype=np.bool_),
        )
        self.best_s, self.second_s = self._planned.best_s, self._planned.second_s
        _begin(self._looked, self._planned, n, second, in_order)

    @property
    def is_open(self) -> bool:
        """Whether some job could start on GPUs for which the plan has no job yet."""
        return bool(self._planned.free_count[0])

    def take(self, job: int, scores: Floats, gpu: Ints) -> bool:
        """Plans a job; returns whether it starts now, and otherwise plans it for later.

        A job of several GPUs that could start now, but on none of its sets in the table without GPUs that are kept for
        others, is left out.

        Args:
            job: its place.
            scores: (C,) filled in the rows of a job that starts: minus the earliest completion there.
            gpu: (C,) filled in the same rows of a job of one GPU: the GPU of the group.
        """
        return bool(_take(self._looked, self._planned, self._n, job, self._second, self._in_order, scores, gpu))


@compiled
def _begin(looked: Looked, planned: _Planned, n: int, second: bool, in_order: bool) -> None:
    """Fills in an empty plan."""
    for gpu in range(looked.gpu_node.shape[1]):
        if not looked.gpu_idle[n, gpu]:
            node = looked.gpu_node[n, gpu]
            planned.next_end_s[node] = min(planned.next_end_s[node], looked.gpu_remaining_s[n, gpu])
    table = looked.table
    for row in range(table.first[n, 0], table.first[n, table.first.shape[1] - 1]):
        if table.gpus.shape[1] > 1 and table.gpus[row, 1] >= 0:
            for i in range(table.gpus.shape[1]):
                if table.gpus[row, i] >= 0:
                    _free(planned, table.gpus[row, i])
            continue
        gpu, left = table.gpu[row], table.size[row]
        while left > 0:
            if is_alike(looked, n, table.gpu[row], gpu):
                _free(planned, gpu)
                left -= 1
            gpu += 1
    for job in range(looked.job_waiting.shape[1]):
        if looked.job_waiting[n, job]:
            if in_order:
                planned.best_s[job] = planned.second_s[job] = 0.0
            else:
                _look(looked, planned, n, job, second)


@compiled_part
def _free(planned: _Planned, gpu: int) -> None:
    planned.free_count[0] += not planned.free[gpu]
    planned.free[gpu] = True


@compiled_part
def _look(looked: Looked, planned: _Planned, n: int, job: int, second: bool) -> None:
    """Fills in a job's earliest completion, and the earliest on other GPUs."""
    planned.on_node[job, :] = False
    if planned.gangs.gpu_count[0, job] == 1:
        _look_at_gpus(looked, planned, n, job)
    else:
        _look_at_sets(looked, planned, n, job, second)
    if not second:
        planned.second_s[job] = planned.best_s[job]


@compiled_part
def _wait_s(looked: Looked, planned: _Planned, n: int, job: int, gpu: int) -> float:
    """Expected time until a job of one GPU could start on a GPU."""
    outlook, node = planned.outlook, looked.gpu_node[n, gpu]
    wait_s = outlook.gpu_free_s[gpu]
    if wait_s == 0.0 and not (
        node_has_room(
            looked.job_cores[n, job],
            looked.job_memory_mib[n, job],
            outlook.node_cores_free[node],
            outlook.node_memory_free_mib[node],
        )
        and may_start_at(looked, n, job, gpu)
    ):
        wait_s = planned.next_end_s[node]
    return float(wait_s)


@compiled_part
def _look_at_gpus(looked: Looked, planned: _Planned, n: int, job: int) -> None:
    """`_look` for a job of one GPU."""
    best_s, best_gpu, second_s, second_gpu = np.inf, -1, np.inf, -1
    for gpu in range(looked.gpu_node.shape[1]):
        duration_s = looked.kind_duration_s[n, job, looked.gpu_kind[n, gpu]]
        if planned.outlook.gpu_free_s[gpu] + duration_s >= second_s:
            continue
        end_s = _wait_s(looked, planned, n, job, gpu) + duration_s
        if end_s < best_s:
            second_s, second_gpu = best_s, best_gpu
            best_s, best_gpu = end_s, gpu
        elif end_s < second_s:
            second_s, second_gpu = end_s, gpu
    planned.best_s[job], planned.second_s[job] = best_s, second_s
    planned.gpu[job] = max(best_gpu, 0)
    if best_gpu >= 0:
        planned.on_node[job, looked.gpu_node[n, best_gpu]] = True
    if second_gpu >= 0:
        planned.on_node[job, looked.gpu_node[n, second_gpu]] = True


@compiled_part
def _look_at_sets(looked: Looked, planned: _Planned, n: int, job: int, second: bool) -> None:
    """`_look` for a job of several GPUs."""
    planned.second_s[job] = np.inf
    wait_s, length_s, count = _find_set(looked, planned, n, job)
    planned.best_s[job] = wait_s + length_s
    if not wait_s < np.inf:
        return
    for i in range(count):
        planned.on_node[job, looked.gpu_node[n, planned.gpus[i]]] = True
    if not second:
        return
    free_s = planned.outlook.gpu_free_s
    for gpu in range(free_s.shape[0]):
        planned.hidden_s[gpu] = free_s[gpu]
    for i in range(count):
        free_s[planned.gpus[i]] = np.inf
    wait_s, length_s, count = _find_set(looked, planned, n, job)
    planned.second_s[job] = wait_s + length_s
    for i in range(count):
        planned.on_node[job, looked.gpu_node[n, planned.gpus[i]]] = True
    for gpu in range(free_s.shape[0]):
        free_s[gpu] = planned.hidden_s[gpu]


@compiled_part
def _find_set(looked: Looked, planned: _Planned, n: int, job: int) -> tuple[float, float, int]:
    """`_find_seen_set`, as the job sees the GPUs."""
    if not is_picky(looked, n, job, CHOOSES + ALONE):
        return _find_seen_set(looked, planned, n, job)
    alone = is_picky(looked, n, job, ALONE)
    look_as(planned.outlook, looked.kind_duration_s[n, job], looked.gpu_kind[n], alone, planned.plain_s)
    found = _find_seen_set(looked, planned, n, job)
    look_again(planned.outlook, planned.plain_s)
    return found


@compiled_call
def _find_seen_set(looked: Looked, planned: _Planned, n: int, job: int) -> tuple[float, float, int]:
    """Finds the set with which a job of several GPUs ends first: `planned.gpus`.

    Returns:
        The time until it is free, inf if there is none; the duration there; the number of GPUs.
    """
    outlook, gangs = planned.outlook, planned.gangs
    for model in range(planned.duration_s.shape[0]):
        planned.duration_s[model] = np.inf
    for gpu in range(outlook.gpu_model.shape[0]):
        if outlook.gpu_free_s[gpu] < np.inf:
            model, duration_s = outlook.gpu_model[gpu], looked.kind_duration_s[n, job, looked.gpu_kind[n, gpu]]
            planned.duration_s[model] = min(planned.duration_s[model], duration_s)
    gpu_count, max_nodes = gangs.gpu_count[0, job], gangs.max_nodes[0, job]
    cores, memory_mib = looked.job_cores[n, job], looked.job_memory_mib[n, job]
    gpu_memory_mib = looked.job_gpu_memory_mib[n, job]
    wait_s = reserve(
        outlook,
        gpu_count,
        max_nodes,
        cores,
        memory_mib,
        gpu_memory_mib,
        gangs.nodes[0, job],
        planned.duration_s,
        gangs.spread_speed[0, job],
        planned.kept,
    )
    if not wait_s < np.inf:
        return np.inf, 0.0, 0
    model = planned.kept.figures[MODEL]
    length_s, packed = planned.duration_s[model], gangs.nodes[0, job, model]
    count = gives_by(outlook, wait_s, model, cores, memory_mib, gpu_memory_mib)
    found = False
    if planned.kept.figures[SPREAD] == 1:
        length_s /= gangs.spread_speed[0, job, model]
        found = choose_spread(outlook.gives, count, gpu_count, packed, max_nodes, outlook.taken)
    if not found:
        choose_packed(outlook.gives, count, gpu_count, packed, outlook.taken)
    place = 0
    for i in range(count):
        gpu, left = outlook.node_first_gpu[outlook.node[i]], outlook.taken[i]
        while left > 0:
            if (
                outlook.gpu_model[gpu] == model
                and outlook.gpu_memory_mib[gpu] >= gpu_memory_mib
                and outlook.gpu_free_s[gpu] <= wait_s
            ):
                planned.gpus[place] = gpu
                place += 1
                left -= 1
            gpu += 1
    return wait_s, length_s, place


@compiled
def _take(
    looked: Looked, planned: _Planned, n: int, job: int, second: bool, in_order: bool, scores: Floats, row_gpu: Ints
) -> bool:
    """As `GangPlan.take`."""
    table, outlook = looked.table, planned.outlook
    first, last = table.first[n, job], table.first[n, job + 1]
    if in_order:
        _look(looked, planned, n, job, second)
    if not planned.best_s[job] < np.inf:
        return False
    if planned.gangs.gpu_count[0, job] > 1:
        wait_s, length_s, count = _find_set(looked, planned, n, job)
        if wait_s == 0.0:
            started = False
            for row in range(first, last):
                is_free = True
                for i in range(table.gpus.shape[1]):
                    gpu = table.gpus[row, i]
                    is_free = is_free and (gpu < 0 or outlook.gpu_free_s[gpu] == 0.0)
                if is_free:
                    scores[row] = -table.duration_s[row]
                    started = True
            planned.best_s[job] = np.inf
            return started
        _put(looked, planned, n, job, count, wait_s + length_s, second, in_order)
        return False
    gpu = planned.gpu[job]
    node = looked.gpu_node[n, gpu]
    if not (
        planned.free[gpu]
        and node_has_room(
            looked.job_cores[n, job],
            looked.job_memory_mib[n, job],
            looked.node_cores_free[n, node],
            looked.node_memory_free_mib[n, node],
        )
        and _wait_s(looked, planned, n, job, gpu) == 0.0
    ):
        planned.gpus[0] = gpu
        _put(looked, planned, n, job, 1, planned.best_s[job], second, in_order)
        return False
    for row in range(first, last):
        each, left = table.gpu[row], table.size[row]
        while left > 0:
            if is_alike(looked, n, table.gpu[row], each):
                wait_s = _wait_s(looked, planned, n, job, each)
                if wait_s == 0.0 and scores[row] == -np.inf:
                    scores[row], row_gpu[row] = -table.duration_s[row], each
                left -= 1
            each += 1
    return True


@compiled_part
def _put(
    looked: Looked, planned: _Planned, n: int, job: int, count: int, end_s: float, second: bool, in_order: bool
) -> None:
    """Plans a job on the first `count` of `planned.gpus` until `end_s`; looks again at the jobs that it concerns."""
    outlook = planned.outlook
    planned.best_s[job] = np.inf
    for i in range(count):
        gpu = planned.gpus[i]
        node = outlook.gpu_node[gpu]
        more = max(looked.job_cores[n, job] - outlook.gpu_cores_held[gpu], 0)
        more_mib = max(looked.job_memory_mib[n, job] - outlook.gpu_memory_held_mib[gpu], 0)
        outlook.node_cores_free[node] -= more
        outlook.node_memory_free_mib[node] -= more_mib
        outlook.gpu_cores_held[gpu] += more
        outlook.gpu_memory_held_mib[gpu] += more_mib
        outlook.gpu_free_s[gpu] = end_s
        if planned.free[gpu]:
            planned.free[gpu] = False
            planned.free_count[0] -= 1
        planned.changed[node] = not in_order
    if in_order:
        return
    for other in range(looked.job_waiting.shape[1]):
        if planned.best_s[other] < np.inf:
            touched = False
            for node in range(planned.changed.shape[0]):
                touched = touched or (planned.changed[node] and planned.on_node[other, node])
            if touched:
                _look(looked, planned, n, other, second)
    for node in range(planned.changed.shape[0]):
        planned.changed[node] = False
