"""Plans of N queues, job by job, each on the GPU where it is expected to end first, busy ones included. Compiled.

The expected time until a job could start on a GPU, if no other job took it: 0 if it fits now; on a busy GPU, the
expected remaining time; on an idle GPU whose node lacks cores or memory, the time until the expected end of the node's
next job (which may not free enough); inf without such an end. numpy and numba only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.looked import Looked, is_alike, looked_at, may_start_at
from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.state.room import node_has_room

NONE = -1


class _Planned(NamedTuple):
    """A plan's placements, and the completions of the jobs that are not in it.

    Attributes:
        best_s: (N, J) the earliest completion anywhere in the plan so far; inf: in the plan, or there is none.
        gpu: (N, J) its GPU, of equals the lowest.
        second_s: (N, J) the earliest on any other GPU; only on request.
        next_end_s: (N, M) expected time until a job of the node ends.
        free: (N, G) whether some job could start there, and the plan has no job for it.
        free_count: (N,) number of these GPUs.
        first, last: (N, G) places in the queue of the first and the last job planned on a GPU; NONE.
        behind: (N, J) the next job planned on the same GPU; NONE.
        put_count: (N,) number of planned jobs.
        sum_count: (N,) number of additions since the beginning of the plan, until completions are stored.
        kept: (N,) whether the cluster's expected completions are stored, and no longer summed for each look.
        completion_s: (N, J, G) the stored completions; empty before the first cluster needs them.
    """

    best_s: Floats
    gpu: Ints
    second_s: Floats
    next_end_s: Floats
    free: Bools
    free_count: Ints
    first: Ints
    last: Ints
    behind: Ints
    put_count: Ints
    sum_count: Ints
    kept: Bools
    completion_s: Floats


class Plan:
    """The plans of the queues of an observation.

    A completion is the sum of what is before a job on a GPU, in the order in which it was put there. Most plans end
    after few jobs, and sum it anew for each look. Where that has taken as many additions as there are pairs of a job
    and a GPU, the completions of all pairs are written down once, and each job that is put on a GPU is added there.

    Args:
        observation: its table has rows.
        second: also computes the earliest completion on any other GPU.

    Attributes:
        best_s: (N, J) the earliest completion of a job in the plan so far; inf: it is in the plan, or there is none.
        gpu: (N, J) its GPU, of equals the lowest.
        second_s: (N, J) the earliest on any other GPU, inf if there is none; equals `best_s` without `second`.
        free_count: (N,) GPUs that some job could start on, and for which the plan has no job yet.
        sum_count: (N,) additions that looks again have taken.
        kept: (N,) completions are kept, and no longer summed anew.
    """

    def __init__(self, observation: Observation, *, second: bool) -> None:
        batch, jobs = observation.job_waiting.shape
        gpus, nodes = observation.gpu_node.shape[1], observation.node_cores_free.shape[1]
        self._looked, self._second = looked_at(observation), second
        self._planned = _Planned(
            best_s=np.full((batch, jobs), np.inf),
            gpu=np.zeros((batch, jobs), dtype=np.int64),
            second_s=np.full((batch, jobs), np.inf),
            next_end_s=np.full((batch, nodes), np.inf),
            free=np.zeros((batch, gpus), dtype=np.bool_),
            free_count=np.zeros(batch, dtype=np.int64),
            first=np.full((batch, gpus), NONE),
            last=np.full((batch, gpus), NONE),
            behind=np.full((batch, jobs), NONE),
            put_count=np.zeros(batch, dtype=np.int64),
            sum_count=np.zeros(batch, dtype=np.int64),
            kept=np.zeros(batch, dtype=np.bool_),
            completion_s=np.empty((0, jobs, gpus)),
        )
        self.best_s, self.gpu, self.second_s = self._planned.best_s, self._planned.gpu, self._planned.second_s
        self.free_count = self._planned.free_count
        self.sum_count, self.kept = self._planned.sum_count, self._planned.kept

    def look_at_all(self, clusters: Ints) -> None:
        """Begins empty plans for some clusters."""
        _look_at_all(self._looked, self._planned, clusters, self._second)

    def take(self, clusters: Ints, jobs: Ints, scores: Floats, gpu: Ints) -> Bools:
        """Plans a job in each of some clusters (n,): it starts now, or is planned for later.

        Args:
            clusters, jobs: (n,).
            scores: (C,) filled in the rows of the jobs that start: minus the earliest completion on a GPU of the group.
            gpu: (C,) filled in the same rows: that GPU.

        Returns:
            (n,) whether the job starts; otherwise it is planned after the present work of its GPU or node.
        """
        started = np.zeros(len(clusters), dtype=np.bool_)
        lacks_room = _take(self._looked, self._planned, clusters, jobs, self._second, started, scores, gpu)
        if lacks_room:
            room = np.empty((len(self.free_count), *self._planned.completion_s.shape[1:]))
            self._planned = self._planned._replace(completion_s=room)
        return started


@compiled_part
def _completion_s(looked: Looked, planned: _Planned, n: int, job: int, gpu: int) -> float:
    """Expected completion of a job on a GPU, after the jobs planned there."""
    if planned.kept[n]:
        return float(planned.completion_s[n, job, gpu])
    duration_s = looked.kind_duration_s[n, job, looked.gpu_kind[n, gpu]]
    wait_s = looked.gpu_remaining_s[n, gpu]
    if looked.gpu_idle[n, gpu] and not _fits(looked, n, job, gpu):
        wait_s = planned.next_end_s[n, looked.gpu_node[n, gpu]]
    end_s = wait_s + duration_s
    before = planned.first[n, gpu]
    while before != NONE:
        end_s += looked.kind_duration_s[n, before, looked.gpu_kind[n, gpu]]
        before = planned.behind[n, before]
    return float(end_s)


@compiled_part
def _look(looked: Looked, planned: _Planned, n: int, job: int, second: bool) -> None:
    """Fills in a job's earliest completion, its GPU, and the earliest on any other."""
    best_s, best_gpu, second_s, beyond_s = np.inf, 0, np.inf, np.inf
    gpus, gpu = looked.gpu_node.shape[1], 0
    while gpu < gpus:
        if planned.kept[n] and gpu + 8 <= gpus and not _least_of_8(planned.completion_s[n, job], gpu) < beyond_s:
            gpu += 8
            continue
        for each in range(gpu, min(gpu + 8, gpus)):
            end_s = _completion_s(looked, planned, n, job, each)
            if end_s < best_s:
                best_s, best_gpu, second_s = end_s, each, best_s
            elif end_s < second_s:
                second_s = end_s
        beyond_s = second_s if second else best_s  # what is no earlier changes nothing
        gpu += 8
    planned.best_s[n, job], planned.gpu[n, job] = best_s, best_gpu
    planned.second_s[n, job] = second_s if second else best_s


@compiled_part
def _least_of_8(values: Floats, at: int) -> float:
    """The least of eight values from a place on: without branches, several times as fast as one by one."""
    one, two = _lesser(values[at], values[at + 1]), _lesser(values[at + 2], values[at + 3])
    three, four = _lesser(values[at + 4], values[at + 5]), _lesser(values[at + 6], values[at + 7])
    return float(_lesser(_lesser(one, two), _lesser(three, four)))


@compiled_part
def _lesser(one: float, other: float) -> float:
    return one if one < other else other


@compiled
def _look_at_all(looked: Looked, planned: _Planned, clusters: Ints, second: bool) -> None:
    """Fills in empty plans."""
    for i in range(clusters.shape[0]):
        n = clusters[i]
        for gpu in range(looked.gpu_node.shape[1]):
            if not looked.gpu_idle[n, gpu]:
                node = looked.gpu_node[n, gpu]
                planned.next_end_s[n, node] = min(planned.next_end_s[n, node], looked.gpu_remaining_s[n, gpu])
        _mark_free(looked, planned, n)
        for job in range(looked.job_waiting.shape[1]):
            if looked.job_waiting[n, job]:
                _look(looked, planned, n, job, second)


@compiled_part
def _mark_free(looked: Looked, planned: _Planned, n: int) -> None:
    """Marks the GPUs on which some job could start: those of the table's groups."""
    table, idle_count = looked.table, 0
    for gpu in range(looked.gpu_idle.shape[1]):
        idle_count += looked.gpu_idle[n, gpu]
    row, ends = table.first[n, 0], table.first[n, table.first.shape[1] - 1]
    while row < ends and planned.free_count[n] < idle_count:
        lowest = gpu = table.gpu[row]
        left = table.size[row]
        while left > 0:
            if is_alike(looked, n, lowest, gpu):
                planned.free_count[n] += not planned.free[n, gpu]
                planned.free[n, gpu] = True
                left -= 1
            gpu += 1
        row += 1


@compiled
def _take(
    looked: Looked,
    planned: _Planned,
    clusters: Ints,
    jobs: Ints,
    second: bool,
    started: Bools,
    scores: Floats,
    row_gpu: Ints,
) -> bool:
    """Takes up a job in each of some clusters, as `Plan.take`; returns whether completions are to have room."""
    lacks_room = False
    pair_count = looked.job_waiting.shape[1] * looked.gpu_node.shape[1]
    for i in range(clusters.shape[0]):
        n, job = clusters[i], jobs[i]
        gpu = planned.gpu[n, job]
        started[i] = planned.free[n, gpu] and _fits(looked, n, job, gpu)
        if not started[i]:
            if planned.sum_count[n] > pair_count and not planned.kept[n]:
                if planned.completion_s.shape[0] > 0:
                    _keep(looked, planned, n)
                else:
                    lacks_room = True
            _put(looked, planned, n, job, gpu, second)
            continue
        for row in range(looked.table.first[n, job], looked.table.first[n, job + 1]):
            each, left = looked.table.gpu[row], looked.table.size[row]
            while left > 0:
                if is_alike(looked, n, looked.table.gpu[row], each):
                    score = -_completion_s(looked, planned, n, job, each)
                    if score > scores[row]:
                        scores[row], row_gpu[row] = score, each
                    left -= 1
                each += 1
    return lacks_room


@compiled_part
def _keep(looked: Looked, planned: _Planned, n: int) -> None:
    """Writes down the completions of the jobs that are not in the plan."""
    for job in range(looked.job_waiting.shape[1]):
        if planned.best_s[n, job] < np.inf:
            for gpu in range(looked.gpu_node.shape[1]):
                planned.completion_s[n, job, gpu] = _completion_s(looked, planned, n, job, gpu)
    planned.kept[n] = True


@compiled_part
def _fits(looked: Looked, n: int, job: int, gpu: int) -> bool:
    """Whether a job fits on an idle GPU now."""
    node = looked.gpu_node[n, gpu]
    cores, memory_mib = looked.node_cores_free[n, node], looked.node_memory_free_mib[n, node]
    has_room = node_has_room(looked.job_cores[n, job], looked.job_memory_mib[n, job], cores, memory_mib)
    return bool(has_room and may_start_at(looked, n, job, gpu))


@compiled_part
def _put(looked: Looked, planned: _Planned, n: int, job: int, gpu: int, second: bool) -> None:
    """Plans a job on a GPU, after those planned there; updates the jobs that would have ended first there."""
    planned.best_s[n, job] = np.inf
    duration_s, looks, checks = looked.kind_duration_s[n, job, looked.gpu_kind[n, gpu]], 0, 0
    for other in range(looked.job_waiting.shape[1]):
        elsewhere = second and planned.best_s[n, other] < np.inf and planned.gpu[n, other] != gpu
        if elsewhere:
            checks += 1
            if _completion_s(looked, planned, n, other, gpu) <= planned.second_s[n, other]:
                planned.gpu[n, other] = gpu  # this was its second best
    if planned.free[n, gpu]:
        planned.free[n, gpu] = False
        planned.free_count[n] -= 1
    if planned.first[n, gpu] == NONE:
        planned.first[n, gpu] = job
    else:
        planned.behind[n, planned.last[n, gpu]] = job
    planned.last[n, gpu] = job
    planned.put_count[n] += 1
    for other in range(looked.job_waiting.shape[1]):
        if planned.best_s[n, other] < np.inf:
            if planned.kept[n]:
                planned.completion_s[n, other, gpu] += duration_s
            if planned.gpu[n, other] == gpu:
                _look(looked, planned, n, other, second)
                looks += 1
    # Of a check only what is put on that GPU, of a look all that is put anywhere.
    if not planned.kept[n]:
        planned.sum_count[n] += (looks + checks) * planned.put_count[n] + looks * looked.gpu_node.shape[1]
