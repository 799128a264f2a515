"""The ledger at one moment, as forecasts read it: copied on the event loop, worked out beside it. Arrays only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.decide.forecast.moment import Jobs, Moment
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy
from adlro.services.orchestrator.ledger.queue_columns import QueueFigures
from adlro.state.candidate_table import gpu_kinds, split_kinds
from adlro.state.machines import time_left_s
from adlro.state.observation import Bools, Floats, Ints
from adlro.state.room import room
from adlro.state.scene import least_of


class Snapshot(NamedTuple):
    """What is copied of a ledger.

    Attributes:
        time_s: cluster time.
        occupancy: a copy.
        since_s, gpu_spread: (G,) start and spread of what runs there.
        queue: the queue's figures, then those of jobs whose begin time is in the future.
        entries: these jobs.
    """

    time_s: float
    occupancy: Occupancy
    since_s: Floats
    gpu_spread: Floats
    queue: QueueFigures
    entries: Sequence[Entry]


def take(ledger: Ledger, time_s: float, later: Sequence[Entry] = ()) -> Snapshot:
    """Copies a ledger.

    Args:
        later: jobs outside the queue that join it at their begin times.
    """
    occupancy = ledger.occupancy.copy()
    spread_of = {job_id: ledger.entries[job_id].spread for job_id in set(occupancy.holder.tolist()) - {""}}
    gpu_spread = np.array([spread_of.get(job_id, 0.0) for job_id in occupancy.holder.tolist()])
    figures = ledger.queue_figures()
    if later:
        figures = _joined(figures, figures_of(later, ledger.layout))
    return Snapshot(time_s, occupancy, ledger.since_s, gpu_spread, figures, [*ledger.queued(), *later])


def _joined(first: QueueFigures, second: QueueFigures) -> QueueFigures:
    """The figures of some jobs, then those of others."""
    nodes = max(first.node_allowed.shape[1], second.node_allowed.shape[1])
    both = [
        each._replace(node_allowed=np.ones((len(each.submit_s), nodes), dtype=np.bool_))
        if each.node_allowed.shape[1] < nodes
        else each
        for each in (first, second)
    ]
    return QueueFigures(*(np.concatenate(columns) for columns in zip(*both, strict=True)))


def figures_of(entries: Sequence[Entry], layout: Layout) -> QueueFigures:
    """The figures of jobs, queued or not."""
    specs = [entry.job.spec for entry in entries]
    allowed = np.ones((len(specs), 0), dtype=np.bool_)
    if any(spec.chooses_nodes for spec in specs):
        allowed = np.array([layout.allowed_nodes(spec) for spec in specs])
    return QueueFigures(
        np.array([entry.job.submit_s or 0.0 for entry in entries]),
        np.array([entry.expected_s for entry in entries]),
        np.array([entry.spread for entry in entries]),
        np.array([spec.gpu_count for spec in specs], dtype=np.int64),
        np.array([spec.max_node_count for spec in specs], dtype=np.int64),
        np.array([spec.cpu_cores for spec in specs], dtype=np.int64),
        np.array([spec.memory_mib for spec in specs], dtype=np.int64),
        np.array([spec.gpu_memory_mib for spec in specs], dtype=np.int64),
        np.array([entry.job.remaining_ratio for entry in entries]),
        np.array([entry.restart_s for entry in entries]),
        np.array([spec.exclusive for spec in specs], dtype=np.bool_),
        allowed,
    )


def moment_of(snapshot: Snapshot) -> Moment:
    """The moment of a snapshot."""
    occupancy = snapshot.occupancy
    layout, busy = occupancy.layout, ~occupancy.idle
    kind, _ = kinds_of(occupancy, snapshot.queue.node_allowed)
    expected_s = np.where(busy, np.maximum(occupancy.expected_end_s - snapshot.since_s, 0.0), 0.0)
    return Moment(
        snapshot.time_s,
        kind,
        layout.gpu_node,
        occupancy.usable,
        busy,
        np.where(busy, np.minimum(snapshot.since_s, snapshot.time_s), 0.0),
        expected_s,
        snapshot.gpu_spread,
        occupancy.run,
        occupancy.cores_held,
        occupancy.memory_held_mib,
        occupancy.cores_free,
        occupancy.memory_free_mib,
        jobs_of(snapshot.queue, occupancy, snapshot.queue.node_allowed),
    )


def kinds_of(occupancy: Occupancy, allowed: Bools) -> tuple[Ints, Ints]:
    """(G,) the kind of each GPU; (S,) the lowest GPU of each kind.

    Args:
        allowed: (J, M) whether jobs may run on each node; M is 0 where all may.
    """
    kind, lowest = gpu_kinds(occupancy.layout.hardware, occupancy.speed[None].copy())
    if allowed.shape[1]:
        kind, lowest = split_kinds(kind, occupancy.layout.gpu_node[None], [allowed])
    return kind[0], lowest[0]


def jobs_of(figures: QueueFigures, occupancy: Occupancy, allowed: Bools) -> Jobs:
    """Jobs as forecasts read them, with what is left of their work.

    An exclusive job of one GPU asks for the least that a node has which can hold it, as in an observation. One of
    several GPUs is taken for another one.

    Args:
        figures: of the jobs.
        occupancy: the cluster now.
        allowed: as for `kinds_of`.
    """
    _, gpu = kinds_of(occupancy, allowed)
    layout: Layout = occupancy.layout
    node = layout.gpu_node[gpu]
    fits = room(
        figures.cores[:, None],
        figures.memory_mib[:, None],
        figures.gpu_memory_mib[:, None],
        layout.node_cores[node],
        layout.node_memory_mib[node],
        layout.gpu_memory_mib[gpu],
    )
    if figures.node_allowed.shape[1]:
        fits &= figures.node_allowed[:, node]
    cores, memory_mib = figures.cores.copy(), figures.memory_mib.copy()
    alone = figures.exclusive & (figures.gpu_count == 1) & fits.any(axis=1)
    if alone.any():
        cores[alone] = least_of(fits[alone], layout.node_cores[node])
        memory_mib[alone] = least_of(fits[alone], layout.node_memory_mib[node])
    whole_s = figures.expected_s[:, layout.gpu_model[gpu]] / occupancy.speed[gpu]
    left_s = time_left_s(figures.restart_s[:, None], figures.remaining_ratio[:, None], whole_s)
    return Jobs(
        np.where(fits, left_s, np.inf),
        figures.spread,
        figures.gpu_count,
        figures.max_nodes,
        cores,
        memory_mib,
        figures.submit_s,
    )
