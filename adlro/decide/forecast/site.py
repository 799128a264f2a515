"""What one future is played on: the cluster, the jobs, and room for what changes. numpy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.forecast.moment import Jobs, Moment
from adlro.state.observation import Bools, Floats, Ints


class Site(NamedTuple):
    """The cluster at the beginning of every future, times from now on; columns as in `Moment`."""

    gpu_kind: Ints
    gpu_node: Ints
    gpu_there: Bools
    gpu_busy: Bools
    gpu_start_s: Floats
    gpu_expected_end_s: Floats
    gpu_run: Ints
    gpu_cores: Ints
    gpu_memory_mib: Ints
    node_first: Ints
    node_cores_free: Ints
    node_memory_free_mib: Ints


class Sorts(NamedTuple):
    """The jobs that futures are made of: first those of the queue, then those of the past that may come again.

    Attributes:
        jobs: T of them; `submit_s` from now on.
        best_s: (T,) shortest duration; inf: no GPU can hold it.
        cost: (T, S + 1) ln b + alpha ln(d / b) on each kind of GPU, and the least of these.
    """

    jobs: Jobs
    best_s: Floats
    cost: Floats


class Scratch(NamedTuple):
    """Room for one future: the state of GPUs and nodes, and the queue.

    The queue's places are in the order of arrival. That of a job that has left stays for a while, with waiting = -1. At
    a time t a job costs at least `least_cost` (by kind of GPU, and the least of these) - `growth` * t. `open_nodes` has
    the nodes with a free GPU: those with news first, and all of them from the number of nodes on. By node, `open_kind`
    is the kind of its free GPUs, and `node_end_s` the first end of a run.
    """

    end_s: Floats
    expected_end_s: Floats
    start_s: Floats
    run: Ints
    cores: Ints
    memory_mib: Ints
    busy: Bools
    cores_free: Ints
    memory_free_mib: Ints
    idle: Ints
    node_end_s: Floats
    news: Bools
    held: Bools
    open_nodes: Ints
    open_kind: Ints
    waiting: Ints
    sort: Ints
    since_s: Floats
    least_cost: Floats
    growth: Floats
    work_s: Floats
    kind_wait_s: Floats
    kind_slowdown: Floats
    kind_fits: Bools
    kind_idle: Ints
    node_gives: Ints
    free_s: Floats
    pick: Floats


(
    TIME,
    RUNNING,
    RUNS,
    PLACES,
    GONE,
    NEW_FROM,
    GANGS,
    THERE,
    IDLE,
    ENDING,
    ENDS,
    WAITING_S,
    WORK,
    DRAIN,
    HELD_FOR,
    HELD_KIND,
    HELD_UNTIL,
) = range(17)
"""Places in `pick`: the time; GPUs that run; runs so far; places of the queue, how many of their jobs have left, the
first of the jobs that have come since the last decision, jobs of several GPUs; GPUs that are there, the free ones and
the busy ones of them, the sum of the latter's expected ends, and that of waiting work; the work done, in looks at one
GPU, node or place; the drain of the queue (-1: not known); and the reservation: the place of its job in the queue (-1:
none), its kind and its expected start."""
PICKS = 17

MIXED, STALE = -1, -2
"""In `open_kind`: GPUs of several kinds are free, or it is not known."""


def site_of(moment: Moment) -> Site:
    """The cluster of a moment."""
    expected_end_s = np.where(moment.gpu_busy, moment.gpu_start_s + moment.gpu_expected_s - moment.time_s, np.inf)
    nodes = len(moment.node_cores_free)
    return Site(
        moment.gpu_kind.astype(np.int64),
        moment.gpu_node.astype(np.int64),
        moment.gpu_there.astype(np.bool_),
        moment.gpu_busy.astype(np.bool_),
        np.where(moment.gpu_busy, moment.gpu_start_s - moment.time_s, 0.0),
        expected_end_s,
        moment.gpu_run.astype(np.int64),
        np.where(moment.gpu_busy, moment.gpu_cores, 0).astype(np.int64),
        np.where(moment.gpu_busy, moment.gpu_memory_mib, 0).astype(np.int64),
        np.searchsorted(moment.gpu_node, np.arange(nodes + 1)).astype(np.int64),
        moment.node_cores_free.astype(np.int64),
        moment.node_memory_free_mib.astype(np.int64),
    )


def room_for(site: Site, longest: int) -> Scratch:
    """Room for futures of up to `longest` jobs; one per thread."""
    gpus, nodes = len(site.gpu_kind), len(site.node_cores_free)
    kinds = int(site.gpu_kind.max(initial=0)) + 1
    return Scratch(
        end_s=np.zeros(gpus),
        expected_end_s=np.zeros(gpus),
        start_s=np.zeros(gpus),
        run=np.zeros(gpus, dtype=np.int64),
        cores=np.zeros(gpus, dtype=np.int64),
        memory_mib=np.zeros(gpus, dtype=np.int64),
        busy=np.zeros(gpus, dtype=np.bool_),
        cores_free=np.zeros(nodes, dtype=np.int64),
        memory_free_mib=np.zeros(nodes, dtype=np.int64),
        idle=np.zeros(nodes, dtype=np.int64),
        node_end_s=np.zeros(nodes),
        news=np.zeros(nodes, dtype=np.bool_),
        held=np.zeros(nodes, dtype=np.bool_),
        open_nodes=np.zeros(2 * nodes + 1, dtype=np.int64),
        open_kind=np.zeros(nodes, dtype=np.int64),
        waiting=np.zeros(longest, dtype=np.int64),
        sort=np.zeros(longest, dtype=np.int64),
        since_s=np.zeros(longest),
        least_cost=np.zeros((kinds + 1, longest)),
        growth=np.zeros(longest),
        work_s=np.zeros(longest),
        kind_wait_s=np.zeros(kinds),
        kind_slowdown=np.zeros(kinds),
        kind_fits=np.zeros(kinds, dtype=np.bool_),
        kind_idle=np.zeros(kinds, dtype=np.int64),
        node_gives=np.zeros(nodes, dtype=np.int64),
        free_s=np.zeros(gpus),
        pick=np.zeros(PICKS),
    )
