"""Conservative backfilling. Arrays and numba only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.looked import ALONE, Looked, is_alike, is_picky, looked_at
from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.present import in_layout
from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.gangs import NEVER, can_give, choose_packed, choose_spread, most_given
from adlro.state.observation import Floats, Gangs, Ints, Observation

DEPTH = 64
"""Number of waiting jobs that have a reservation. Later ones may start if they delay none of these: so a decision takes
about as long with 1,000 waiting jobs as with 64."""

_SAME_INSTANT_S = 1e-6
_NONE = -1
_ALL = 1 << 40  # more cores than a node has


class ConservativeBackfill(Policy):
    """First come, first served; a job may start before an earlier one if it delays the expected start of none of them.

    In the order of submission, each job that may start now without delay to the reservations before it does, on the GPU
    that is fastest for it; each other one has a reservation: the GPU, or the set of GPUs, where it should end first,
    from a time on at which these are free for as long as it takes, beside the running jobs and the earlier
    reservations. A job of several GPUs that could start now on a spread set, and end earlier on another one that is
    free later, waits for that. The first `DEPTH` waiting jobs have reservations, later ones may only start now.

    The reservations are worked out anew at each decision. With exact durations no job starts later than it was
    promised first in a queue within the depth.

    Source: Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the
    IBM SP2 with backfilling" (2001), section 2: conservative backfilling; with the choice of GPUs of this project.
    """

    name = "conservative_backfill"
    description = (
        "each waiting job has a reservation, in order of submission, and one starts if it delays no earlier one's "
        "(64 of them at most); score: minus the expected duration in s"
    )
    advice = "As easy_backfill, and large jobs wait less: those of 4 and 8 GPUs end after 71 s beside 82 s at load 0.9."

    def weigh(self, observation: Observation) -> Judgement:
        """Minus the expected duration, for the first job that may start now."""
        table = observation.table
        scores, gpu = np.full(len(table.job), -np.inf), table.gpu.copy()
        if not len(table.job):
            return Judgement(scores)
        looked, gangs = looked_at(observation), _gangs_of(observation)
        gpu_model = np.require(observation.gpu_model, np.int64, ["C"])
        jobs, nodes = observation.job_waiting.shape[1], observation.node_cores_free.shape[1]
        book = _room(min(DEPTH, jobs), table.gpus.shape[1], nodes)
        for n in np.flatnonzero(table.first[:, -1] > table.first[:, 0]).tolist():
            ends_s = np.unique(observation.gpu_remaining_s[n])
            ends_s = ends_s[(ends_s > _SAME_INSTANT_S) & (ends_s < np.inf)]
            times_s = np.full(len(ends_s) + DEPTH, np.inf)
            times_s[: len(ends_s)] = ends_s
            _start_first(looked, gpu_model, gangs, book, times_s, n, DEPTH, scores, gpu)
        return Judgement(scores, gpu=gpu)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration, for the first job that may start now."""
        return self.weigh(observation).scores


def _gangs_of(observation: Observation) -> Gangs:
    """What concerns jobs of several GPUs, in the layout of compiled code; where there are none, as if told so."""
    if observation.gangs is not None:
        return in_layout(observation.gangs)
    (batch, jobs), models = observation.job_waiting.shape, len(observation.gpu_models)
    return Gangs(
        gpu_count=np.ones((batch, jobs), dtype=np.int64),
        max_nodes=np.zeros((batch, jobs), dtype=np.int64),
        nodes=np.ones((batch, jobs, models), dtype=np.int64),
        spread_speed=np.ones((batch, jobs, models)),
        gpu_run=np.zeros(observation.gpu_idle.shape, dtype=np.int64),
        reserved=np.full(batch, -1, dtype=np.int64),
    )


class _Book(NamedTuple):
    """The reservations, an entry for each of their GPUs; the entries of a node are chained.

    Attributes:
        first: (M,) the node's first entry; -1: none.
        next: (E,) the next one of the same node; -1: none.
        gpu: (E,) the GPU.
        begin_s, end_s: (E,) times from now.
        cores, memory_mib: (E,) what the job takes with the GPU.
        used: (1,) number of entries.
        first_gpu: (M + 1,) a node's GPUs go from its number here to below the next node's.
        node, gives, taken: (M,) room for what nodes can give.
    """

    first: Ints
    next: Ints
    gpu: Ints
    begin_s: Floats
    end_s: Floats
    cores: Ints
    memory_mib: Ints
    used: Ints
    first_gpu: Ints
    node: Ints
    gives: Ints
    taken: Ints


def _room(depth: int, width: int, nodes: int) -> _Book:
    entries = max(depth * width, 1)
    following, gpu, cores, memory_mib = np.zeros((4, entries), dtype=np.int64)
    begin_s, end_s = np.zeros((2, entries))
    first, node, gives, taken = np.zeros((4, nodes), dtype=np.int64)
    used, first_gpu = np.zeros(1, dtype=np.int64), np.zeros(nodes + 1, dtype=np.int64)
    return _Book(first, following, gpu, begin_s, end_s, cores, memory_mib, used, first_gpu, node, gives, taken)


@compiled
def _start_first(
    looked: Looked,
    gpu_model: Ints,
    gangs: Gangs,
    book: _Book,
    times_s: Floats,
    n: int,
    depth: int,
    scores: Floats,
    row_gpu: Ints,
) -> None:
    """Scores the rows of the first job of cluster n that may start now.

    Args:
        times_s: ascending expected ends of the running jobs, then inf as room for those of `depth` reservations.
    """
    book.used[0] = 0
    for node in range(book.first.shape[0]):
        book.first[node] = _NONE
    book.first_gpu[:] = 0
    for gpu in range(looked.gpu_node.shape[1]):
        if looked.gpu_memory_mib[n, gpu] >= 0:  # else padding
            book.first_gpu[looked.gpu_node[n, gpu] + 1] = gpu + 1
    for node in range(book.first.shape[0]):
        book.first_gpu[node + 1] = max(book.first_gpu[node], book.first_gpu[node + 1])
    made = 0
    for job in range(looked.job_waiting.shape[1]):
        begin, end = looked.table.first[n, job], looked.table.first[n, job + 1]
        if not looked.job_waiting[n, job] or (made == depth and begin == end):
            continue
        which, spread, begin_s, end_s = _NONE, False, np.inf, np.inf
        if made < depth and gangs.gpu_count[n, job] > 1:
            # A slow set that is free now is no better than another one later, with an earlier end.
            which, spread, begin_s, end_s = _earliest(looked, gpu_model, gangs, book, times_s, n, job)
        if _score_rows(looked, gangs, book, n, job, begin, end, end_s, scores, row_gpu):
            return
        if made < depth:
            made += 1
            if gangs.gpu_count[n, job] == 1:
                which, spread, begin_s, end_s = _earliest(looked, gpu_model, gangs, book, times_s, n, job)
            if end_s < np.inf:
                _put(looked, gpu_model, gangs, book, times_s, n, job, which, spread, begin_s, end_s)


@compiled_part
def _earliest(
    looked: Looked, gpu_model: Ints, gangs: Gangs, book: _Book, times_s: Floats, n: int, job: int
) -> tuple[int, bool, float, float]:
    """Where and when, after now, a job should end first beside the reservations; on a tie the one looked at first.

    Returns:
        For one GPU its kind, for several their model; whether on a spread set; begin and end, inf if it never can.
    """
    durations_s, several = looked.kind_duration_s[n, job], gangs.gpu_count[n, job] > 1
    best, best_spread, best_begin_s, best_end_s = _NONE, False, np.inf, np.inf
    choices = gangs.nodes.shape[2] if several else durations_s.shape[0]
    for which in range(choices):
        length_s = durations_s[which] if not several else 0.0
        if several:
            if gangs.nodes[n, job, which] == NEVER:
                continue
            # As slow as the slowest GPU of the model that could be among them.
            for gpu in range(gpu_model.shape[1]):
                duration_s = durations_s[looked.gpu_kind[n, gpu]]
                if gpu_model[n, gpu] == which and looked.gpu_remaining_s[n, gpu] < np.inf and duration_s < np.inf:
                    length_s = max(length_s, duration_s)
        for spread in range(2):
            its_s = length_s
            if spread == 1:
                if not several or gangs.spread_speed[n, job, which] == 0.0:
                    continue
                its_s /= gangs.spread_speed[n, job, which]
            for i in range(times_s.shape[0]):
                if not times_s[i] + its_s < best_end_s:
                    break
                if _choose(looked, gpu_model, gangs, book, n, job, which, spread == 1, times_s[i], its_s) > 0:
                    best, best_spread = which, spread == 1
                    best_begin_s, best_end_s = times_s[i], times_s[i] + its_s
                    break
    return best, best_spread, best_begin_s, best_end_s


@compiled_part
def _choose(
    looked: Looked,
    gpu_model: Ints,
    gangs: Gangs,
    book: _Book,
    n: int,
    job: int,
    which: int,
    spread: bool,
    begin_s: float,
    length_s: float,
) -> int:
    """Chooses nodes for a job through some time: `node` and `taken` of the book; returns their number; 0: none."""
    gpu_count, count, durations_s = gangs.gpu_count[n, job], 0, looked.kind_duration_s[n, job]
    several, alone = gpu_count > 1, is_picky(looked, n, job, ALONE)
    for node in range(book.first.shape[0]):
        able = 0
        if alone and not _is_empty(looked, book, n, node, begin_s, length_s):
            continue
        for gpu in range(book.first_gpu[node], book.first_gpu[node + 1]):
            able += _is_able(looked, gpu_model, book, n, node, gpu, several, which, durations_s, begin_s, length_s)
        if able > 0:
            able = _least_given(
                looked,
                book,
                n,
                node,
                able,
                looked.job_cores[n, job],
                looked.job_memory_mib[n, job],
                begin_s,
                length_s,
            )
        if able > 0:
            book.node[count], book.gives[count], book.taken[count] = node, able, 0
            count += 1
            if gpu_count == 1:
                book.taken[count - 1] = 1
                return count
    if gpu_count == 1:
        return 0
    packed, max_nodes = gangs.nodes[n, job, which], gangs.max_nodes[n, job]
    if not can_give(book.gives, count, gpu_count, max_nodes if spread else packed):
        return 0
    if spread:
        return count if choose_spread(book.gives, count, gpu_count, packed, max_nodes, book.taken) else 0
    return count if choose_packed(book.gives, count, gpu_count, packed, book.taken) else 0


@compiled_part
def _is_able(
    looked: Looked,
    gpu_model: Ints,
    book: _Book,
    n: int,
    node: int,
    gpu: int,
    several: bool,
    which: int,
    durations_s: Floats,
    begin_s: float,
    length_s: float,
) -> bool:
    """Whether a GPU is of the kind or the model, can hold the job, and is free through some time."""
    its = gpu_model[n, gpu] if several else looked.gpu_kind[n, gpu]
    return bool(
        its == which
        and looked.gpu_remaining_s[n, gpu] <= begin_s + _SAME_INSTANT_S
        and durations_s[looked.gpu_kind[n, gpu]] < np.inf
        and _gpu_is_free(book, node, gpu, begin_s, length_s)
    )


@compiled_part
def _put(
    looked: Looked,
    gpu_model: Ints,
    gangs: Gangs,
    book: _Book,
    times_s: Floats,
    n: int,
    job: int,
    which: int,
    spread: bool,
    begin_s: float,
    end_s: float,
) -> None:
    """Writes down a job's reservation, and its end among the times."""
    length_s = end_s - begin_s
    several, durations_s = gangs.gpu_count[n, job] > 1, looked.kind_duration_s[n, job]
    nodes = _choose(looked, gpu_model, gangs, book, n, job, which, spread, begin_s, length_s)
    for i in range(nodes):
        node, left = book.node[i], book.taken[i]
        gpu = book.first_gpu[node]
        while left > 0:
            if _is_able(looked, gpu_model, book, n, node, gpu, several, which, durations_s, begin_s, length_s):
                entry = book.used[0]
                book.gpu[entry], book.begin_s[entry], book.end_s[entry] = gpu, begin_s, end_s
                book.cores[entry], book.memory_mib[entry] = looked.job_cores[n, job], looked.job_memory_mib[n, job]
                if is_picky(looked, n, job, ALONE):
                    book.cores[entry] = _ALL
                book.next[entry], book.first[node] = book.first[node], entry
                book.used[0] += 1
                left -= 1
            gpu += 1
    place = times_s.shape[0] - 1
    while place > 0 and times_s[place - 1] > end_s:
        times_s[place] = times_s[place - 1]
        place -= 1
    times_s[place] = end_s


@compiled_part
def _score_rows(
    looked: Looked,
    gangs: Gangs,
    book: _Book,
    n: int,
    job: int,
    begin: int,
    end: int,
    ends_s: float,
    scores: Floats,
    row_gpu: Ints,
) -> bool:
    """Scores the rows of a job that delay no reservation; returns whether there is one.

    Args:
        begin, end: its rows.
        ends_s: when it would end on the best set that is free later; inf: that does not count.
    """
    found = False
    for row in range(begin, end):
        duration_s = looked.table.duration_s[row]
        if duration_s > ends_s + _SAME_INSTANT_S:
            continue
        if gangs.gpu_count[n, job] > 1:
            if _set_is_free(looked, book, n, job, looked.table.gpus[row], duration_s):
                scores[row] = -duration_s
                found = True
            continue
        gpu, left = looked.table.gpu[row], looked.table.size[row]
        while left > 0:
            if is_alike(looked, n, looked.table.gpu[row], gpu):
                if _gpu_is_free(book, looked.gpu_node[n, gpu], gpu, 0.0, duration_s) and _node_keeps(
                    looked, book, n, job, looked.gpu_node[n, gpu], 1, 0.0, duration_s
                ):
                    scores[row], row_gpu[row] = -duration_s, gpu
                    found = True
                    break
                left -= 1
            gpu += 1
    return found


@compiled_part
def _set_is_free(looked: Looked, book: _Book, n: int, job: int, gpus: Ints, duration_s: float) -> bool:
    """Whether a job can have a set of idle GPUs from now on without delay to a reservation."""
    i = 0
    while i < gpus.shape[0] and gpus[i] >= 0:
        node, count = looked.gpu_node[n, gpus[i]], 0
        while i < gpus.shape[0] and gpus[i] >= 0 and looked.gpu_node[n, gpus[i]] == node:
            if not _gpu_is_free(book, node, gpus[i], 0.0, duration_s):
                return False
            count += 1
            i += 1
        if not _node_keeps(looked, book, n, job, node, count, 0.0, duration_s):
            return False
    return True


@compiled_part
def _is_empty(looked: Looked, book: _Book, n: int, node: int, begin_s: float, length_s: float) -> bool:
    """Whether no job runs on a node through some time, and none is to."""
    for gpu in range(book.first_gpu[node], book.first_gpu[node + 1]):
        left_s = looked.gpu_remaining_s[n, gpu]
        if begin_s + _SAME_INSTANT_S < left_s < np.inf or not _gpu_is_free(book, node, gpu, begin_s, length_s):
            return False
    return True


@compiled_part
def _gpu_is_free(book: _Book, node: int, gpu: int, begin_s: float, length_s: float) -> bool:
    """Whether no reservation needs a GPU within some time."""
    entry = book.first[node]
    while entry != _NONE:
        if (
            book.gpu[entry] == gpu
            and book.begin_s[entry] < begin_s + length_s - _SAME_INSTANT_S
            and book.end_s[entry] > begin_s + _SAME_INSTANT_S
        ):
            return False
        entry = book.next[entry]
    return True


@compiled_part
def _node_keeps(
    looked: Looked, book: _Book, n: int, job: int, node: int, gpu_count: int, begin_s: float, length_s: float
) -> bool:
    """Whether a node has the cores and the memory for GPUs of a job within some time, beside the reservations."""
    given = _least_given(
        looked, book, n, node, gpu_count, looked.job_cores[n, job], looked.job_memory_mib[n, job], begin_s, length_s
    )
    return bool(given >= gpu_count)


@compiled_part
def _least_given(
    looked: Looked,
    book: _Book,
    n: int,
    node: int,
    able: int,
    cores: int,
    memory_mib: int,
    begin_s: float,
    length_s: float,
) -> int:
    """How many of `able` GPUs of a node have the cores and the memory for a job through some time.

    What is free only falls where a reservation begins: those moments are looked at, and the beginning.
    """
    cores_free, memory_free_mib = _free_at(looked, book, n, node, begin_s)
    given = most_given(able, cores, memory_mib, cores_free, memory_free_mib)
    entry = book.first[node]
    while entry != _NONE and given > 0:
        at_s = book.begin_s[entry]
        if begin_s < at_s < begin_s + length_s - _SAME_INSTANT_S:
            cores_free, memory_free_mib = _free_at(looked, book, n, node, at_s)
            given = min(given, most_given(able, cores, memory_mib, cores_free, memory_free_mib))
        entry = book.next[entry]
    return int(given)


@compiled_part
def _free_at(looked: Looked, book: _Book, n: int, node: int, at_s: float) -> tuple[int, int]:
    """Cores and memory of a node that are free at a time, without what reservations hold then."""
    cores, memory_mib = looked.node_cores_free[n, node], looked.node_memory_free_mib[n, node]
    for gpu in range(book.first_gpu[node], book.first_gpu[node + 1]):
        if looked.gpu_remaining_s[n, gpu] <= at_s + _SAME_INSTANT_S:
            cores += looked.gpu_cores_held[n, gpu]
            memory_mib += looked.gpu_memory_held_mib[n, gpu]
    entry = book.first[node]
    while entry != _NONE:
        if book.begin_s[entry] <= at_s + _SAME_INSTANT_S and book.end_s[entry] > at_s + _SAME_INSTANT_S:
            cores -= book.cores[entry]
            memory_mib -= book.memory_mib[entry]
        entry = book.next[entry]
    return cores, memory_mib
