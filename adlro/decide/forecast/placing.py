"""The next start of a future: the best pair of a waiting job and a free GPU, or none. numpy and numba only.

The order is that of `hold_greedy_fixed` (adlro/decide/hold_rule.py) in short: the pair of a waiting job and a free GPU
with the least

    ln b + alpha ln(d / b) + packing |c / f - 1| - ageing ln(1 + w / b)

starts, unless the job would end sooner on a busy GPU and the queue is short. What makes it cheap: costs are kept by
kind of GPU; only nodes with news are looked at; a job is left out by a bound of its cost, before its fit and its
logarithm are worked out; the drain of the queue is the mean work before each GPU, where the rule itself plans every
job, and is worked out when a job asks for it. It is a forecast's rule, not a policy: the calibration (calibration.py)
covers where the acting policy decides otherwise. Jobs of several GPUs take them of one kind, and the one that waits
longest has a reservation (EASY backfilling). Nothing is stopped for another job, and no GPU is shared.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.forecast.site import (
    DRAIN,
    ENDING,
    ENDS,
    GANGS,
    GONE,
    HELD_FOR,
    HELD_KIND,
    HELD_UNTIL,
    IDLE,
    MIXED,
    NEW_FROM,
    PLACES,
    RUNNING,
    RUNS,
    STALE,
    THERE,
    TIME,
    WAITING_S,
    WORK,
    Scratch,
    Site,
    Sorts,
)
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.numeric.exact_compiled import exp, log, log1p
from adlro.state.observation import Floats

ALPHA, THETA, BACKLOG, AFFINITY, PACKING, AGEING = 4.0, 1.25, 3.0, 4.0, 0.3, 0.2
"""As `FIXED` of adlro/decide/policies/hold_greedy.py."""

LATE_RATIO = 0.1
"""A run that is over its expected end is expected to take this much longer, of the time that it has had."""

_ROUNDING = 1e-6
"""A bound of a cost is taken to be off by no more."""

UNKNOWN, NOBODY = -2.0, -1.0
"""What has not been worked out in this decision; no job of several GPUs has a reservation."""


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
    scratch.pick[IDLE] -= 1.0
    scratch.pick[ENDING] += 1.0
    scratch.kind_idle[site.gpu_kind[gpu]] -= 1
    scratch.open_kind[node] = STALE
    scratch.node_end_s[node] = min(scratch.node_end_s[node], scratch.end_s[gpu])
    scratch.pick[RUNNING] += 1.0
    scratch.pick[ENDS] += scratch.expected_end_s[gpu]


@compiled_part
def aged_of(scratch: Scratch, sorts: Sorts, place: int) -> float:
    """What a job's wait takes off its cost; its bound is renewed.

    What it takes off grows ever slower, so its present growth bounds what it will be later.
    """
    sort = scratch.sort[place]
    best_s, waited_s = sorts.best_s[sort], max(scratch.pick[TIME] - scratch.since_s[place], 0.0)
    aged = AGEING * log1p(waited_s / best_s)
    growth = AGEING / (best_s + waited_s)
    scratch.growth[place] = growth
    off = growth * scratch.pick[TIME] - aged - _ROUNDING
    for kind in range(sorts.cost.shape[1]):
        scratch.least_cost[kind, place] = sorts.cost[sort, kind] + off
    return float(aged)


@compiled_call
def _set_of(site: Site, scratch: Scratch, sorts: Sorts, sort: int, kind: int) -> bool:
    """Fills `node_gives` with what each node gives a job of several GPUs; False: there are not enough now."""
    wanted, most = sorts.jobs.gpu_count[sort], sorts.jobs.max_nodes[sort]
    if scratch.kind_idle[kind] < wanted:
        return False
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
    scratch.pick[HELD_FOR], first_s = NOBODY, np.inf
    for i in range(int(scratch.pick[PLACES])):
        if scratch.waiting[i] >= 0 and sorts.jobs.gpu_count[scratch.sort[i]] > 1 and scratch.since_s[i] < first_s:
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
                count += 1
                # The first `wanted` in order; what is later than all of these does not matter.
                place = min(count - 1, wanted)
                if place == wanted:
                    if free_s >= scratch.free_s[wanted - 1]:
                        continue
                    place -= 1
                while place > 0 and scratch.free_s[place - 1] > free_s:
                    scratch.free_s[place] = scratch.free_s[place - 1]
                    place -= 1
                scratch.free_s[place] = free_s
        if count >= wanted and scratch.free_s[wanted - 1] + sorts.jobs.duration_s[sort, kind] < soonest_s:
            soonest_s = scratch.free_s[wanted - 1] + sorts.jobs.duration_s[sort, kind]
            scratch.pick[HELD_KIND] = kind
            scratch.pick[HELD_UNTIL] = scratch.pick[TIME] + scratch.free_s[wanted - 1]
    if soonest_s == np.inf:
        scratch.pick[HELD_FOR] = NOBODY


@compiled_part
def _drain_at_least_s(site: Site, scratch: Scratch) -> float:
    """A bound of the drain, from sums that are kept: of expected ends, and of waiting work."""
    if scratch.pick[PLACES] - scratch.pick[GONE] <= scratch.pick[IDLE]:
        return 0.0
    ends_s, work_s = scratch.pick[ENDS] - scratch.pick[ENDING] * scratch.pick[TIME], scratch.pick[WAITING_S]
    return float((ends_s + work_s - _ROUNDING * (1.0 + abs(ends_s) + work_s)) / scratch.pick[THERE])


@compiled_call
def _look_at_runs(site: Site, scratch: Scratch) -> None:
    """Fills in the time until the first GPU of each kind is expected to be free."""
    for kind in range(scratch.kind_wait_s.shape[0]):
        scratch.kind_wait_s[kind] = np.inf
    for gpu in range(site.gpu_kind.shape[0]):
        if site.gpu_there[gpu] and scratch.busy[gpu]:
            kind = site.gpu_kind[gpu]
            scratch.kind_wait_s[kind] = min(scratch.kind_wait_s[kind], _remaining_s(scratch, gpu))
    scratch.pick[WORK] += site.gpu_kind.shape[0]


@compiled_call
def _drain_s(site: Site, scratch: Scratch, sorts: Sorts) -> float:
    """The drain of the queue: the mean work before each GPU."""
    if scratch.pick[DRAIN] != UNKNOWN:
        return float(scratch.pick[DRAIN])
    work_s, there, idle = 0.0, 0, 0
    for gpu in range(site.gpu_kind.shape[0]):
        if site.gpu_there[gpu]:
            there += 1
            if scratch.busy[gpu]:
                work_s += _remaining_s(scratch, gpu)
            else:
                idle += 1
    places = int(scratch.pick[PLACES])
    for i in range(places):
        work_s += scratch.work_s[i]
    scratch.pick[WORK] += site.gpu_kind.shape[0] + places
    scratch.pick[DRAIN] = work_s / there if places - int(scratch.pick[GONE]) > idle else 0.0
    return float(scratch.pick[DRAIN])


@compiled_call
def _kind_slowdown(scratch: Scratch, sorts: Sorts, kind: int) -> float:
    """The least slowdown of a waiting job on a kind of GPU."""
    if scratch.kind_slowdown[kind] == UNKNOWN:
        least = np.inf
        for i in range(int(scratch.pick[PLACES])):
            if scratch.waiting[i] >= 0:
                least = min(least, sorts.jobs.duration_s[scratch.sort[i], kind] / sorts.best_s[scratch.sort[i]])
                scratch.pick[WORK] += 1.0
                if least == 1.0:  # there is no less
                    break
        scratch.kind_slowdown[kind] = least
    return float(scratch.kind_slowdown[kind])


@compiled_part
def _refused(site: Site, scratch: Scratch, sorts: Sorts, sort: int, kind: int) -> bool:
    """Whether the job rather waits for a better GPU. `kind_fits` has the kinds on which it fits now."""
    duration_s = sorts.jobs.duration_s[sort, kind]
    if duration_s <= _drain_at_least_s(site, scratch) or scratch.pick[RUNNING] == 0.0:
        return False
    if scratch.kind_wait_s[0] == UNKNOWN:
        _look_at_runs(site, scratch)
    soonest_s = np.inf
    for other in range(scratch.kind_wait_s.shape[0]):
        wait_s = 0.0 if scratch.kind_fits[other] else scratch.kind_wait_s[other]
        soonest_s = min(soonest_s, wait_s + sorts.jobs.duration_s[sort, other])
    if duration_s <= THETA * soonest_s:
        return False
    drain_s = _drain_s(site, scratch, sorts)
    if duration_s <= drain_s:
        return False
    unsuited = max(duration_s / sorts.best_s[sort] / _kind_slowdown(scratch, sorts, kind), 1.0)
    return bool(duration_s > BACKLOG * exp(-AFFINITY * log(unsuited)) * drain_s)


@compiled_part
def _kept_free(scratch: Scratch, sorts: Sorts, place: int, kind: int) -> bool:
    """Whether a GPU of the kind is kept for the reservation, against this job."""
    if scratch.pick[HELD_FOR] < 0.0 or place == int(scratch.pick[HELD_FOR]) or kind != int(scratch.pick[HELD_KIND]):
        return False
    end_s = scratch.pick[TIME] + sorts.jobs.duration_s[scratch.sort[place], kind]
    return bool(end_s > scratch.pick[HELD_UNTIL])


@compiled_part
def _fits(site: Site, scratch: Scratch, sorts: Sorts, sort: int, nodes: int, first: int) -> bool:
    """Fills `kind_fits` for a job of one GPU, by `nodes` of the open nodes from the place `first` on."""
    cores, memory_mib, any_fits = sorts.jobs.cores[sort], sorts.jobs.memory_mib[sort], False
    for at in range(first, first + nodes):
        node = scratch.open_nodes[at]
        if cores > scratch.cores_free[node] or memory_mib > scratch.memory_free_mib[node]:
            continue
        only = scratch.open_kind[node]
        if only >= 0:
            if sorts.jobs.duration_s[sort, only] < np.inf:
                scratch.kind_fits[only] = any_fits = scratch.held[node] = True
            continue
        for gpu in range(site.node_first[node], site.node_first[node + 1]):
            kind = site.gpu_kind[gpu]
            if site.gpu_there[gpu] and not scratch.busy[gpu] and sorts.jobs.duration_s[sort, kind] < np.inf:
                scratch.kind_fits[kind] = any_fits = scratch.held[node] = True
    return any_fits


@compiled_call
def _open(site: Site, scratch: Scratch) -> int:
    """Lists the nodes with a free GPU, those with news in front of all of them; returns the number of the former."""
    nodes, count, all_count = site.node_cores_free.shape[0], 0, 0
    for node in range(nodes):
        if scratch.idle[node] > 0:
            if scratch.news[node]:
                scratch.open_nodes[count] = node
                count += 1
            scratch.open_nodes[nodes + all_count] = node
            all_count += 1
            if scratch.open_kind[node] == STALE:
                only = MIXED
                for gpu in range(site.node_first[node], site.node_first[node + 1]):
                    if site.gpu_there[gpu] and not scratch.busy[gpu]:
                        if only == MIXED:
                            only = site.gpu_kind[gpu]
                        elif only != site.gpu_kind[gpu]:
                            only = MIXED
                            break
                scratch.open_kind[node] = only
    scratch.open_nodes[2 * nodes] = all_count
    scratch.pick[WORK] += nodes
    return count


@compiled_call
def _offer(
    site: Site, scratch: Scratch, sorts: Sorts, place: int, of_kind: int, first: int, count: int, least: float
) -> tuple[int, int, float]:
    """The cheapest start of one job: kind, GPU (-1: of several) and cost.

    Args:
        place: of the job in the queue.
        of_kind: the kind of all free GPUs that are looked at; the number of kinds: any.
        first, count: the open nodes that are looked at.
        least: what costs no less is not told: (-1, -1, least).
    """
    sort, kinds = scratch.sort[place], scratch.kind_wait_s.shape[0]
    aged = aged_of(scratch, sorts, place)
    scratch.pick[WORK] += 8.0
    if sorts.cost[sort, of_kind] - aged >= least:
        return -1, -1, least
    several = sorts.jobs.gpu_count[sort] > 1
    any_fits = False
    for kind in range(kinds):
        scratch.kind_fits[kind] = False
        if several and sorts.jobs.duration_s[sort, kind] < np.inf and _set_of(site, scratch, sorts, sort, kind):
            scratch.kind_fits[kind] = any_fits = True
    if not several:
        any_fits = _fits(site, scratch, sorts, sort, count, first)
    scratch.pick[WORK] += count + 4.0
    if not any_fits:
        return -1, -1, least
    if scratch.pick[GANGS] > 0.0 and scratch.pick[HELD_FOR] == UNKNOWN:
        _reserve(site, scratch, sorts)
    chosen_kind, chosen_gpu = -1, -1
    for kind in range(kinds):
        if not scratch.kind_fits[kind] or _kept_free(scratch, sorts, place, kind):
            continue
        cost = sorts.cost[sort, kind] - aged
        if cost >= least or _refused(site, scratch, sorts, sort, kind):
            continue
        if several:
            chosen_kind, least = kind, cost
            continue
        cores = sorts.jobs.cores[sort]
        for at in range(first, first + count):
            node = scratch.open_nodes[at]
            if cores > scratch.cores_free[node] or sorts.jobs.memory_mib[sort] > scratch.memory_free_mib[node]:
                continue
            if scratch.open_kind[node] >= 0 and scratch.open_kind[node] != kind:
                continue
            share = scratch.cores_free[node] / scratch.idle[node]
            fitted = cost + PACKING * abs(cores - share) / max(share, 1.0)
            if fitted >= least:
                continue
            for gpu in range(site.node_first[node], site.node_first[node + 1]):
                if site.gpu_there[gpu] and not scratch.busy[gpu] and site.gpu_kind[gpu] == kind:
                    chosen_kind, chosen_gpu, least = kind, gpu, fitted
                    break
    return chosen_kind, chosen_gpu, least


@compiled_part
def leave(scratch: Scratch, sorts: Sorts, place: int) -> None:
    """Takes a job out of the queue; its place stays until the next `close_up`."""
    scratch.pick[GANGS] -= 1.0 if sorts.jobs.gpu_count[scratch.sort[place]] > 1 else 0.0
    scratch.pick[GONE] += 1.0
    scratch.waiting[place] = -1
    for kind in range(sorts.cost.shape[1]):
        scratch.least_cost[kind, place] = np.inf
    scratch.pick[WAITING_S] -= scratch.work_s[place]
    scratch.growth[place] = scratch.work_s[place] = 0.0


@compiled_call
def place_one(site: Site, scratch: Scratch, sorts: Sorts, factor: Floats, starts_s: Floats) -> int:
    """Starts the best pair; returns the number of its job, -1: none starts now."""
    kinds, nodes, places = scratch.kind_wait_s.shape[0], site.node_cores_free.shape[0], int(scratch.pick[PLACES])
    with_news, new_from, has_gangs = _open(site, scratch), int(scratch.pick[NEW_FROM]), scratch.pick[GANGS] > 0.0
    open_count = scratch.open_nodes[2 * nodes]
    # Mostly one node has news, with a free GPU of one kind: its costs bound those of the jobs that were there before.
    any_kind, of_news = kinds, kinds
    if with_news > 0 and not has_gangs:
        of_news = scratch.open_kind[scratch.open_nodes[0]]
        for at in range(1, with_news):
            if scratch.open_kind[scratch.open_nodes[at]] != of_news:
                of_news = MIXED
        if of_news == MIXED:
            of_news = any_kind
    if open_count == 0 or (with_news == 0 and new_from >= places and not has_gangs):
        return -1
    time_s, start = scratch.pick[TIME], 0 if with_news > 0 or has_gangs else new_from
    scratch.pick[HELD_FOR], scratch.pick[DRAIN] = UNKNOWN, UNKNOWN
    for kind in range(kinds):
        scratch.kind_wait_s[kind] = scratch.kind_slowdown[kind] = UNKNOWN
    # A first job, which seems to cost least, gives a limit; what seems to cost more is left out below.
    first, first_bound, limit = -1, np.inf, np.inf
    for i in range(start, new_from):
        bound = scratch.least_cost[of_news, i] - scratch.growth[i] * time_s
        if bound < first_bound:
            first, first_bound = i, bound
    if first >= 0:
        _, _, limit = _offer(site, scratch, sorts, first, of_news, 0, with_news, np.inf)
    chosen, chosen_kind, chosen_gpu, least = -1, -1, -1, np.inf
    for i in range(start, places):
        of_kind = of_news if i < new_from else any_kind
        bound = scratch.least_cost[of_kind, i] - scratch.growth[i] * time_s
        if bound >= least or bound > limit:
            continue
        if bound == np.inf:  # the place of a job that has left, or one that never starts
            continue
        from_node, count = (nodes, open_count) if i >= new_from else (0, with_news)
        kind, gpu, cost = _offer(site, scratch, sorts, i, of_kind, from_node, count, min(least, limit + _ROUNDING))
        if kind >= 0:
            chosen, chosen_kind, chosen_gpu, least = i, kind, gpu, cost
    scratch.pick[WORK] += 2.0 * (places - start)
    if chosen < 0:
        return -1
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
    leave(scratch, sorts, chosen)
    return int(job)
