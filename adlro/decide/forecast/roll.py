"""One future of the queue, played event by event until the jobs asked for have started. numpy and numba only.

The order is that of `hold_greedy_fixed` (adlro/decide/hold_rule.py) in short: the pair of a waiting job and a free GPU
with the least

    ln b + alpha ln(d / b) + packing |c / f - 1| - ageing ln(1 + w / b)

starts, unless the job would end sooner on a busy GPU and the queue is short. What makes it cheap: costs are kept by
kind of GPU, only nodes with news are looked at, and the drain of the queue is the mean work before each GPU, where the
rule itself plans every job. It is a forecast's rule, not a policy: the calibration (calibration.py) covers where the
acting policy decides otherwise. Jobs of several GPUs take them of one kind, and the one that waits longest has a
reservation (EASY backfilling). Nothing is stopped for another job, and no GPU is shared.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.forecast.site import (
    HELD_FOR,
    HELD_KIND,
    HELD_UNTIL,
    PICKS,
    RUNNING,
    RUNS,
    TIME,
    WAITING,
    Scratch,
    Site,
    Sorts,
)
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.numeric.exact_compiled import exp, log, log1p
from adlro.state.observation import Bools, Floats, Ints

ALPHA, THETA, BACKLOG, AFFINITY, PACKING, AGEING = 4.0, 1.25, 3.0, 4.0, 0.3, 0.2
"""As `FIXED` of adlro/decide/policies/hold_greedy.py."""

LATE_RATIO = 0.1
"""A run that is over its expected end is expected to take this much longer, of the time that it has had."""


@compiled_part
def _join(scratch: Scratch, job: int, sort: int, since_s: float) -> None:
    place = int(scratch.pick[WAITING])
    scratch.waiting[place] = job
    scratch.sort[place] = sort
    scratch.since_s[place] = since_s
    scratch.new[place] = True
    scratch.pick[WAITING] += 1.0


@compiled_part
def _leave(scratch: Scratch, place: int) -> None:
    last = int(scratch.pick[WAITING]) - 1
    for i in range(place, last):
        scratch.waiting[i] = scratch.waiting[i + 1]
        scratch.sort[i] = scratch.sort[i + 1]
        scratch.since_s[i] = scratch.since_s[i + 1]
        scratch.new[i] = scratch.new[i + 1]
    scratch.pick[WAITING] = last


@compiled_part
def _remaining_s(scratch: Scratch, gpu: int) -> float:
    time_s = scratch.pick[TIME]
    return float(max(scratch.expected_end_s[gpu] - time_s, LATE_RATIO * (time_s - scratch.start_s[gpu])))


@compiled_part
def _gives(site: Site, scratch: Scratch, sorts: Sorts, sort: int, node: int, kind: int, free: int) -> int:
    """How many of `free` GPUs of a node a job can have now, by the node's cores and memory."""
    cores, memory_mib = sorts.jobs.cores[sort], sorts.jobs.memory_mib[sort]
    gives = free
    if cores > 0:
        gives = min(gives, scratch.cores_free[node] // cores)
    if memory_mib > 0:
        gives = min(gives, scratch.memory_free_mib[node] // memory_mib)
    return int(gives)


@compiled_part
def _idle_of(site: Site, scratch: Scratch, node: int, kind: int) -> int:
    count = 0
    for gpu in range(site.node_first[node], site.node_first[node + 1]):
        count += site.gpu_there[gpu] and not scratch.busy[gpu] and site.gpu_kind[gpu] == kind
    return int(count)


@compiled_part
def _occupy(
    site: Site, scratch: Scratch, sorts: Sorts, sort: int, gpu: int, duration_s: float, actual_s: float
) -> None:
    node, time_s = site.gpu_node[gpu], scratch.pick[TIME]
    scratch.busy[gpu] = True
    scratch.start_s[gpu] = time_s
    scratch.expected_end_s[gpu] = time_s + duration_s
    scratch.end_s[gpu] = time_s + actual_s
    scratch.cores[gpu], scratch.memory_mib[gpu] = sorts.jobs.cores[sort], sorts.jobs.memory_mib[sort]
    scratch.run[gpu] = int(scratch.pick[RUNS])
    scratch.cores_free[node] -= scratch.cores[gpu]
    scratch.memory_free_mib[node] -= scratch.memory_mib[gpu]
    scratch.idle[node] -= 1
    scratch.pick[RUNNING] += 1.0


@compiled_call
def _set_of(site: Site, scratch: Scratch, sorts: Sorts, sort: int, kind: int) -> bool:
    """Fills `node_gives` with what each node gives a job of several GPUs; False: there are not enough now."""
    wanted, most = sorts.jobs.gpu_count[sort], sorts.jobs.max_nodes[sort]
    nodes = site.node_cores_free.shape[0]
    for node in range(nodes):
        free = _idle_of(site, scratch, node, kind) if scratch.idle[node] > 0 else 0
        scratch.node_gives[node] = _gives(site, scratch, sorts, sort, node, kind, free)
    left, used = wanted, 0
    while left > 0 and (most == 0 or used < most):
        best = -1
        for node in range(nodes):
            if scratch.node_gives[node] > 0 and (best < 0 or scratch.node_gives[node] > scratch.node_gives[best]):
                best = node
        if best < 0:
            return False
        taken = min(left, scratch.node_gives[best])
        scratch.node_gives[best] = -taken  # below 0: chosen
        left -= taken
        used += 1
    return bool(left == 0)


@compiled_call
def _reserve(site: Site, scratch: Scratch, sorts: Sorts) -> None:
    """Sets the reservation of the job of several GPUs that waits longest, if one waits."""
    scratch.pick[HELD_FOR], first_s = -1.0, np.inf
    for i in range(int(scratch.pick[WAITING])):
        if sorts.jobs.gpu_count[scratch.sort[i]] > 1 and scratch.since_s[i] < first_s:
            first_s = scratch.since_s[i]
            scratch.pick[HELD_FOR] = i
    if scratch.pick[HELD_FOR] < 0.0:
        return
    sort, gpus = scratch.sort[int(scratch.pick[HELD_FOR])], site.gpu_kind.shape[0]
    wanted, soonest_s = sorts.jobs.gpu_count[sort], np.inf
    for kind in range(scratch.kind_wait_s.shape[0]):
        if not sorts.jobs.duration_s[sort, kind] < np.inf:
            continue
        count = 0
        for gpu in range(gpus):
            if site.gpu_there[gpu] and site.gpu_kind[gpu] == kind:
                free_s = _remaining_s(scratch, gpu) if scratch.busy[gpu] else 0.0
                place = count
                while place > 0 and scratch.free_s[place - 1] > free_s:
                    scratch.free_s[place] = scratch.free_s[place - 1]
                    place -= 1
                scratch.free_s[place] = free_s
                count += 1
        if count >= wanted and scratch.free_s[wanted - 1] + sorts.jobs.duration_s[sort, kind] < soonest_s:
            soonest_s = scratch.free_s[wanted - 1] + sorts.jobs.duration_s[sort, kind]
            scratch.pick[HELD_KIND] = kind
            scratch.pick[HELD_UNTIL] = scratch.pick[TIME] + scratch.free_s[wanted - 1]
    if soonest_s == np.inf:
        scratch.pick[HELD_FOR] = -1.0


@compiled_call
def _look(site: Site, scratch: Scratch, sorts: Sorts) -> float:
    """Fills in waits and slowdowns by kind; returns the drain of the queue."""
    kinds, gpus = scratch.kind_wait_s.shape[0], site.gpu_kind.shape[0]
    for kind in range(kinds):
        scratch.kind_wait_s[kind] = scratch.kind_slowdown[kind] = np.inf
    work_s, there, idle = 0.0, 0, 0
    for gpu in range(gpus):
        if site.gpu_there[gpu]:
            there += 1
            if scratch.busy[gpu]:
                rest_s = _remaining_s(scratch, gpu)
                work_s += rest_s
                kind = site.gpu_kind[gpu]
                scratch.kind_wait_s[kind] = min(scratch.kind_wait_s[kind], rest_s)
            else:
                idle += 1
    count = int(scratch.pick[WAITING])
    for i in range(count):
        sort = scratch.sort[i]
        best_s = sorts.best_s[sort]
        work_s += best_s * sorts.jobs.gpu_count[sort]
        for kind in range(kinds):
            slowdown = sorts.jobs.duration_s[sort, kind] / best_s
            scratch.kind_slowdown[kind] = min(scratch.kind_slowdown[kind], slowdown)
    return work_s / there if count > idle else 0.0


@compiled_part
def _refused(scratch: Scratch, sorts: Sorts, sort: int, kind: int, drain_s: float, soonest_s: float) -> bool:
    """Whether the job rather waits for a better GPU."""
    duration_s = sorts.jobs.duration_s[sort, kind]
    if duration_s <= THETA * soonest_s or duration_s <= drain_s or scratch.pick[RUNNING] == 0.0:
        return False
    unsuited = max(duration_s / sorts.best_s[sort] / scratch.kind_slowdown[kind], 1.0)
    return bool(duration_s > BACKLOG * exp(-AFFINITY * log(unsuited)) * drain_s)


@compiled_part
def _kept_free(scratch: Scratch, sorts: Sorts, place: int, kind: int) -> bool:
    """Whether a GPU of the kind is kept for the reservation, against this job."""
    if scratch.pick[HELD_FOR] < 0.0 or place == int(scratch.pick[HELD_FOR]) or kind != int(scratch.pick[HELD_KIND]):
        return False
    end_s = scratch.pick[TIME] + sorts.jobs.duration_s[scratch.sort[place], kind]
    return bool(end_s > scratch.pick[HELD_UNTIL])


@compiled_call
def _place_one(site: Site, scratch: Scratch, sorts: Sorts, factor: Floats, starts_s: Floats) -> bool:
    """Starts the best pair; False: none starts now."""
    kinds, nodes, count = scratch.kind_wait_s.shape[0], site.node_cores_free.shape[0], int(scratch.pick[WAITING])
    drain_s, time_s = _look(site, scratch, sorts), scratch.pick[TIME]
    _reserve(site, scratch, sorts)
    chosen, chosen_kind, chosen_gpu, least = -1, -1, -1, np.inf
    for i in range(count):
        sort = scratch.sort[i]
        best_s = sorts.best_s[sort]
        if best_s == np.inf:
            continue
        several = sorts.jobs.gpu_count[sort] > 1
        any_fits = False
        for kind in range(kinds):
            scratch.kind_fits[kind] = False
            if several and sorts.jobs.duration_s[sort, kind] < np.inf and _set_of(site, scratch, sorts, sort, kind):
                scratch.kind_fits[kind] = any_fits = True
        if not several:
            for node in range(nodes):
                if scratch.idle[node] == 0 or not (scratch.news[node] or scratch.new[i]):
                    continue
                if (
                    sorts.jobs.cores[sort] > scratch.cores_free[node]
                    or sorts.jobs.memory_mib[sort] > scratch.memory_free_mib[node]
                ):
                    continue
                for gpu in range(site.node_first[node], site.node_first[node + 1]):
                    kind = site.gpu_kind[gpu]
                    if site.gpu_there[gpu] and not scratch.busy[gpu] and sorts.jobs.duration_s[sort, kind] < np.inf:
                        scratch.kind_fits[kind] = any_fits = scratch.held[node] = True
        if not any_fits:
            continue
        soonest_s = np.inf
        for kind in range(kinds):
            wait_s = 0.0 if scratch.kind_fits[kind] else scratch.kind_wait_s[kind]
            soonest_s = min(soonest_s, wait_s + sorts.jobs.duration_s[sort, kind])
        aged = AGEING * log1p(max(time_s - scratch.since_s[i], 0.0) / best_s)
        for kind in range(kinds):
            if not scratch.kind_fits[kind] or _kept_free(scratch, sorts, i, kind):
                continue
            cost = sorts.cost[sort, kind] - aged
            if cost >= least or _refused(scratch, sorts, sort, kind, drain_s, soonest_s):
                continue
            if several:
                chosen, chosen_kind, chosen_gpu, least = i, kind, -1, cost
                continue
            for node in range(nodes):
                if scratch.idle[node] == 0 or not (scratch.news[node] or scratch.new[i]):
                    continue
                cores = sorts.jobs.cores[sort]
                if cores > scratch.cores_free[node] or sorts.jobs.memory_mib[sort] > scratch.memory_free_mib[node]:
                    continue
                share = scratch.cores_free[node] / scratch.idle[node]
                fitted = cost + PACKING * abs(cores - share) / max(share, 1.0)
                if fitted >= least:
                    continue
                for gpu in range(site.node_first[node], site.node_first[node + 1]):
                    if site.gpu_there[gpu] and not scratch.busy[gpu] and site.gpu_kind[gpu] == kind:
                        chosen, chosen_kind, chosen_gpu, least = i, kind, gpu, fitted
                        break
    if chosen < 0:
        return False
    job, sort = scratch.waiting[chosen], scratch.sort[chosen]
    duration_s = sorts.jobs.duration_s[sort, chosen_kind]
    scratch.pick[RUNS] += 1.0
    if chosen_gpu >= 0:
        _occupy(site, scratch, sorts, sort, chosen_gpu, duration_s, duration_s * factor[job])
    else:
        _set_of(site, scratch, sorts, sort, chosen_kind)
        for node in range(nodes):
            gpu = site.node_first[node]
            while scratch.node_gives[node] < 0:
                if site.gpu_there[gpu] and not scratch.busy[gpu] and site.gpu_kind[gpu] == chosen_kind:
                    _occupy(site, scratch, sorts, sort, gpu, duration_s, duration_s * factor[job])
                    scratch.node_gives[node] += 1
                gpu += 1
    if job < starts_s.shape[0]:
        starts_s[job] = time_s
    _leave(scratch, chosen)
    return True


@compiled_call
def _begin(site: Site, scratch: Scratch, end_s: Floats) -> None:
    for place in range(PICKS):
        scratch.pick[place] = 0.0
    for node in range(site.node_cores_free.shape[0]):
        scratch.cores_free[node] = site.node_cores_free[node]
        scratch.memory_free_mib[node] = site.node_memory_free_mib[node]
        scratch.idle[node] = 0
        scratch.news[node], scratch.held[node] = True, False
    for gpu in range(site.gpu_kind.shape[0]):
        busy = site.gpu_busy[gpu]
        scratch.busy[gpu] = busy
        scratch.end_s[gpu] = end_s[gpu] if busy else np.inf
        scratch.start_s[gpu] = site.gpu_start_s[gpu]
        scratch.expected_end_s[gpu] = site.gpu_expected_end_s[gpu]
        scratch.cores[gpu], scratch.memory_mib[gpu] = site.gpu_cores[gpu], site.gpu_memory_mib[gpu]
        scratch.run[gpu] = -1 - site.gpu_run[gpu]
        scratch.idle[site.gpu_node[gpu]] += site.gpu_there[gpu] and not busy
        scratch.pick[RUNNING] += 1.0 if busy else 0.0


@compiled
def roll(
    site: Site,
    sorts: Sorts,
    known: int,
    wanted: Bools,
    end_s: Floats,
    arrival_s: Floats,
    arrival_sort: Ints,
    factor: Floats,
    most_work: int,
    scratch: Scratch,
    starts_s: Floats,
) -> int:
    """Plays one future until all wanted jobs have started, or nothing happens any more.

    Args:
        site: the cluster now.
        sorts: the jobs.
        known: number of the first of them that are in the queue, now or from their begin time on.
        wanted: (known,) the jobs whose starts are asked for.
        end_s: (G,) end of each run, from now on.
        arrival_s: (A,) ascending, the submissions that are not known yet.
        arrival_sort: (A,) their sorts.
        factor: (known + A,) true duration of each job against the expected one.
        most_work: after so many looks of a decision at a waiting job the future is left.
        scratch: room.
        starts_s: (known,) filled: start of each job from now on; inf where it was not reached.

    Returns:
        The work done, in looks at waiting jobs.
    """
    _begin(site, scratch, end_s)
    left, work = 0, 0
    for job in range(known):
        starts_s[job] = np.inf
        left += wanted[job]
        if sorts.jobs.submit_s[job] <= 0.0:
            _join(scratch, job, job, sorts.jobs.submit_s[job])
    arrivals, arrived = arrival_s.shape[0], 0
    time_s = 0.0
    while left > 0 and work <= most_work:
        before = int(scratch.pick[WAITING])
        placed = _place_one(site, scratch, sorts, factor, starts_s)
        work += before + 1
        if placed:
            continue
        # Nodes with a GPU that some job refused are looked at again; on the others none fits before there are news.
        for node in range(site.node_cores_free.shape[0]):
            scratch.news[node], scratch.held[node] = scratch.held[node], False
        for i in range(before):
            scratch.new[i] = False
        left = 0
        for job in range(known):
            left += wanted[job] and starts_s[job] == np.inf and sorts.best_s[job] < np.inf
        if left == 0:
            break
        next_s = np.inf
        for gpu in range(site.gpu_kind.shape[0]):
            next_s = min(next_s, scratch.end_s[gpu])
        if arrived < arrivals:
            next_s = min(next_s, arrival_s[arrived])
        for job in range(known):
            if sorts.jobs.submit_s[job] > time_s:
                next_s = min(next_s, sorts.jobs.submit_s[job])
        if next_s == np.inf:
            break
        for job in range(known):
            if time_s < sorts.jobs.submit_s[job] <= next_s:
                _join(scratch, job, job, sorts.jobs.submit_s[job])
        time_s = scratch.pick[TIME] = next_s
        for gpu in range(site.gpu_kind.shape[0]):
            if scratch.end_s[gpu] <= time_s:
                node = site.gpu_node[gpu]
                scratch.busy[gpu] = False
                scratch.end_s[gpu] = np.inf
                scratch.cores_free[node] += scratch.cores[gpu]
                scratch.memory_free_mib[node] += scratch.memory_mib[gpu]
                scratch.idle[node] += site.gpu_there[gpu]
                scratch.news[node] = True
                scratch.pick[RUNNING] -= 1.0
        while arrived < arrivals and arrival_s[arrived] <= time_s:
            _join(scratch, known + arrived, arrival_sort[arrived], time_s)
            arrived += 1
    return work
