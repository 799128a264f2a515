"""An observation with its waiting jobs in another order, or with some of them alone. Arrays only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.state.observation import Bools, CandidateTable, Gangs, Ints, NodeRules, Observation, Preemption, Sharing

_OF_JOBS = (
    "job_waiting",
    "job_type",
    "job_priority",
    "job_user_service_s",
    "job_submit_s",
    "job_cores",
    "job_memory_mib",
    "job_gpu_memory_mib",
    "job_spread",
    "kind_duration_s",
)
_OF_ROWS = ("gpu", "size", "duration_s", "gpus", "spread")
_OF_GANGS = ("gpu_count", "max_nodes", "nodes", "spread_speed")
_OF_PREEMPTION = ("job_restart_s", "job_attained_s", "job_share", "kind_full_s")
_OF_SHARING = ("job_shareable", "job_family")
_OF_NODES = ("job_exclusive", "job_choosing")
COLUMNS_OF_JOBS: dict[type, tuple[str, ...]] = {
    Observation: _OF_JOBS,
    Gangs: _OF_GANGS,
    Preemption: _OF_PREEMPTION,
    Sharing: _OF_SHARING,
    NodeRules: _OF_NODES,
}
"""The columns with a place for each waiting job."""


def reordered(observation: Observation, order: Ints) -> tuple[Observation, Ints]:
    """The observation with the jobs in another order.

    Args:
        order: (N, J) the present place of the job that comes to each place.

    Returns:
        The observation, and (C,) the present row of each row of its table.
    """
    table, rows = _table(observation.table, order)
    moved = _moved(observation, order)
    for name in ("gangs", "preemption", "sharing", "nodes"):
        part = getattr(observation, name)
        if part is not None:
            moved[name] = part._replace(**_moved(part, order))
    if observation.gangs is not None:
        moved["gangs"] = moved["gangs"]._replace(reserved=new_places(observation.gangs.reserved, order))
    return replace(observation, **moved, table=table), rows


def only_jobs(observation: Observation, shown: Bools) -> tuple[Observation, Ints]:
    """The observation in which other jobs do not wait.

    Args:
        shown: (N, J) the jobs that wait still, if they do.

    Returns:
        The observation, with the jobs at their places, and with no reservation of a job that is not shown; and (C,) the
        present row of each row of its table.
    """
    table, count = observation.table, np.where(shown, observation.table.rows_of_job, 0)
    rows: Ints = np.flatnonzero(table.of_job(shown))
    ends = np.cumsum(count.ravel()).reshape(count.shape)
    first = np.column_stack((ends[:, :1] - count[:, :1], ends))
    kept: dict[str, NDArray[Any]] = {name: getattr(table, name)[rows] for name in ("job", *_OF_ROWS)}
    fewer = CandidateTable(first=first, **kept)
    gangs = observation.gangs
    if gangs is not None:
        held = np.take_along_axis(shown, np.maximum(gangs.reserved, 0)[:, None], axis=1)[:, 0]
        gangs = gangs._replace(reserved=np.where(held, gangs.reserved, -1))
    return replace(observation, job_waiting=observation.job_waiting & shown, table=fewer, gangs=gangs), rows


def new_places(places: Ints, order: Ints) -> Ints:
    """(N,) the places of jobs, -1: none, in the order."""
    found = np.full(len(places), -1, dtype=np.int64)
    clusters = np.flatnonzero(places >= 0)
    found[clusters] = np.argmax(order[clusters] == places[clusters, None], axis=1)
    return found


def _table(table: CandidateTable, order: Ints) -> tuple[CandidateTable, Ints]:
    count = np.take_along_axis(table.rows_of_job, order, axis=1)
    first = np.empty_like(table.first)
    first[:, 0] = table.first[:, 0]
    np.cumsum(count, axis=1, out=first[:, 1:])
    first[:, 1:] += table.first[:, :1]
    counts = count.ravel()
    begin = np.repeat(np.take_along_axis(table.first[:, :-1], order, axis=1).ravel(), counts)
    rows: Ints = begin + np.arange(counts.sum()) - np.repeat(first[:, :-1].ravel(), counts)
    place = np.repeat(np.broadcast_to(np.arange(order.shape[1]), order.shape).ravel(), counts)
    moved: dict[str, NDArray[Any]] = {name: getattr(table, name)[rows] for name in _OF_ROWS}
    return CandidateTable(first=first, job=place, **moved), rows


def _moved(part: object, order: Ints) -> dict[str, Any]:
    cluster = np.arange(len(order))[:, None]
    return {name: getattr(part, name)[cluster, order] for name in COLUMNS_OF_JOBS[type(part)]}
