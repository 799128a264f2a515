"""One future of the queue, played event by event until the jobs asked for have started. numpy and numba only.

Between two events jobs are placed by the rule of placing.py, as long as one starts.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.forecast.placing import aged_of, place_one
from adlro.decide.forecast.site import (
    ENDING,
    ENDS,
    GANGS,
    GONE,
    IDLE,
    NEW_FROM,
    PICKS,
    PLACES,
    RUNNING,
    STALE,
    THERE,
    TIME,
    WAITING_S,
    WORK,
    Scratch,
    Site,
    Sorts,
)
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.state.observation import Bools, Floats, Ints

MOST_GONE = 16
"""Places of jobs that have left are given back when there are more, and more than a quarter of all."""


@compiled_part
def _join(scratch: Scratch, sorts: Sorts, job: int, sort: int, since_s: float) -> None:
    place = int(scratch.pick[PLACES])
    scratch.pick[PLACES] += 1.0
    scratch.waiting[place] = job
    scratch.sort[place] = sort
    scratch.since_s[place] = since_s
    scratch.work_s[place] = sorts.best_s[sort] * sorts.jobs.gpu_count[sort]
    scratch.pick[WAITING_S] += scratch.work_s[place]
    scratch.pick[GANGS] += 1.0 if sorts.jobs.gpu_count[sort] > 1 else 0.0
    if sorts.best_s[sort] < np.inf:
        aged_of(scratch, sorts, place)
    else:  # it never starts
        scratch.least_cost[:, place], scratch.growth[place] = np.inf, 0.0


@compiled_call
def _close_up(scratch: Scratch, sorts: Sorts) -> None:
    """Gives the places of jobs that have left to those behind them."""
    to = 0
    for i in range(int(scratch.pick[PLACES])):
        if scratch.waiting[i] >= 0:
            scratch.waiting[to] = scratch.waiting[i]
            scratch.sort[to] = scratch.sort[i]
            scratch.since_s[to] = scratch.since_s[i]
            for kind in range(sorts.cost.shape[1]):
                scratch.least_cost[kind, to] = scratch.least_cost[kind, i]
            scratch.growth[to] = scratch.growth[i]
            scratch.work_s[to] = scratch.work_s[i]
            to += 1
    scratch.pick[WORK] += scratch.pick[PLACES]
    scratch.pick[PLACES], scratch.pick[GONE] = to, 0.0


@compiled_call
def _begin(site: Site, scratch: Scratch, end_s: Floats) -> None:
    for place in range(PICKS):
        scratch.pick[place] = 0.0
    for node in range(site.node_cores_free.shape[0]):
        scratch.cores_free[node] = site.node_cores_free[node]
        scratch.memory_free_mib[node] = site.node_memory_free_mib[node]
        scratch.idle[node] = 0
        scratch.node_end_s[node] = np.inf
        scratch.open_kind[node] = STALE
        scratch.news[node], scratch.held[node] = True, False
    for kind in range(scratch.kind_idle.shape[0]):
        scratch.kind_idle[kind] = 0
    for gpu in range(site.gpu_kind.shape[0]):
        busy = site.gpu_busy[gpu]
        scratch.busy[gpu] = busy
        scratch.end_s[gpu] = end_s[gpu] if busy else np.inf
        scratch.start_s[gpu] = site.gpu_start_s[gpu]
        scratch.expected_end_s[gpu] = site.gpu_expected_end_s[gpu]
        scratch.cores[gpu], scratch.memory_mib[gpu] = site.gpu_cores[gpu], site.gpu_memory_mib[gpu]
        scratch.run[gpu] = -1 - site.gpu_run[gpu]
        node = site.gpu_node[gpu]
        scratch.node_end_s[node] = min(scratch.node_end_s[node], scratch.end_s[gpu])
        if busy:
            scratch.pick[RUNNING] += 1.0
        if site.gpu_there[gpu]:
            scratch.pick[THERE] += 1.0
            if busy:
                scratch.pick[ENDING] += 1.0
                scratch.pick[ENDS] += scratch.expected_end_s[gpu]
            else:
                scratch.pick[IDLE] += 1.0
                scratch.idle[node] += 1
                scratch.kind_idle[site.gpu_kind[gpu]] += 1


@compiled_call
def _end(site: Site, scratch: Scratch, node: int) -> None:
    """Ends the runs of a node that are over, and finds the first end of the others."""
    time_s, next_s = scratch.pick[TIME], np.inf
    for gpu in range(site.node_first[node], site.node_first[node + 1]):
        if scratch.end_s[gpu] > time_s:
            next_s = min(next_s, scratch.end_s[gpu])
            continue
        scratch.busy[gpu] = False
        scratch.end_s[gpu] = np.inf
        scratch.cores_free[node] += scratch.cores[gpu]
        scratch.memory_free_mib[node] += scratch.memory_mib[gpu]
        scratch.pick[RUNNING] -= 1.0
        if site.gpu_there[gpu]:
            scratch.idle[node] += 1
            scratch.kind_idle[site.gpu_kind[gpu]] += 1
            scratch.pick[IDLE] += 1.0
            scratch.pick[ENDING] -= 1.0
            scratch.pick[ENDS] -= scratch.expected_end_s[gpu]
    scratch.open_kind[node] = STALE
    scratch.news[node] = True
    scratch.node_end_s[node] = next_s


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
        most_work: after so many looks at a GPU, a node or a waiting job the future is left.
        scratch: room.
        starts_s: (known,) filled: start of each job from now on; inf where it was not reached.

    Returns:
        The work done, in such looks.
    """
    _begin(site, scratch, end_s)
    left, later = 0, 0
    for job in range(known):
        starts_s[job] = np.inf
        left += wanted[job] and sorts.best_s[job] < np.inf
        if sorts.jobs.submit_s[job] <= 0.0:
            _join(scratch, sorts, job, job, sorts.jobs.submit_s[job])
        else:
            later += 1
    arrivals, arrived, nodes = arrival_s.shape[0], 0, site.node_cores_free.shape[0]
    time_s = 0.0
    while scratch.pick[WORK] <= most_work:
        job = place_one(site, scratch, sorts, factor, starts_s)
        if job >= 0:
            left -= job < known and wanted[job]
            continue
        if left == 0:
            break
        # Nodes with a GPU that some job refused are looked at again; on the others none fits before there are news.
        for node in range(nodes):
            scratch.news[node], scratch.held[node] = scratch.held[node], False
        if scratch.pick[GONE] > MOST_GONE and 4.0 * scratch.pick[GONE] > scratch.pick[PLACES]:
            _close_up(scratch, sorts)
        scratch.pick[NEW_FROM] = scratch.pick[PLACES]
        next_s = np.inf
        for node in range(nodes):
            next_s = min(next_s, scratch.node_end_s[node])
        if arrived < arrivals:
            next_s = min(next_s, arrival_s[arrived])
        if later > 0:
            for job in range(known):
                if sorts.jobs.submit_s[job] > time_s:
                    next_s = min(next_s, sorts.jobs.submit_s[job])
        if next_s == np.inf:
            break
        if later > 0:
            for job in range(known):
                if time_s < sorts.jobs.submit_s[job] <= next_s:
                    _join(scratch, sorts, job, job, sorts.jobs.submit_s[job])
                    later -= 1
            scratch.pick[WORK] += 2.0 * known
        scratch.pick[WORK] += 4.0 * nodes
        time_s = scratch.pick[TIME] = next_s
        for node in range(nodes):
            if scratch.node_end_s[node] <= time_s:
                _end(site, scratch, node)
        while arrived < arrivals and arrival_s[arrived] <= time_s:
            _join(scratch, sorts, known + arrived, arrival_sort[arrived], time_s)
            arrived += 1
    return int(scratch.pick[WORK])
