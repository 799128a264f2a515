"""The figures of a ledger in the orchestrator's status: what waits, and what GPUs do. Plain data and arrays.

They are cheap whatever the length of the queue: the ledger counts its jobs as they move.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from adlro.records.jobs import JobType, PendingReason
from adlro.records.status import GpuModelFigures, UserCount
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.metrics import GpuReading

USERS_SHOWN = 20


class LedgerFigures(TypedDict, total=False):
    """Fields of `OrchestratorStatus`; none without a ledger."""

    launching_count: int
    waiting_by_reason: dict[PendingReason, int]
    waiting_by_job_type: dict[JobType, int]
    waiting_by_user: tuple[UserCount, ...]
    waiting_user_count: int
    gpu_models: tuple[GpuModelFigures, ...]


def figures_of(ledger: Ledger) -> LedgerFigures:
    """The figures of a ledger, the most frequent reason and type first."""
    counts = ledger.counts
    # Users with as many jobs in the order of their names: two answers about the same jobs are equal.
    users = sorted(counts.by_user.items(), key=lambda each: (-each[1], each[0]))
    return LedgerFigures(
        launching_count=counts.launching,
        waiting_by_reason=dict(sorted(counts.by_reason.items(), key=lambda each: (-each[1], each[0]))),
        waiting_by_job_type=dict(sorted(counts.by_job_type.items(), key=lambda each: (-each[1], each[0]))),
        waiting_by_user=tuple(UserCount(user, count) for user, count in users[:USERS_SHOWN]),
        waiting_user_count=len(users),
        gpu_models=_gpu_models(ledger),
    )


def _gpu_models(ledger: Ledger) -> tuple[GpuModelFigures, ...]:
    layout, occupancy = ledger.layout, ledger.occupancy
    of_model, count = layout.gpu_model, len(layout.gpu_models)
    drained = occupancy.drained[layout.gpu_node]
    gpus, usable, allocated, lost, on_drained = (
        np.bincount(of_model[chosen], minlength=count).tolist()
        for chosen in (slice(None), occupancy.usable, ~occupancy.idle, occupancy.lost, drained)
    )
    return tuple(
        GpuModelFigures(
            model, gpus[at], usable[at], allocated[at], lost[at], on_drained[at], ledger.counts.by_model[at]
        )
        for at, model in enumerate(layout.gpu_models)
    )


def gpu_views(ledger: Ledger) -> list[GpuReading]:
    """Each GPU in the ledger."""
    layout, occupancy = ledger.layout, ledger.occupancy
    return [
        GpuReading(
            gpu_id,
            layout.node_ids[layout.gpu_node[gpu]],
            layout.model_of(gpu),
            bool(occupancy.holder[gpu]),
            bool(occupancy.lost[gpu]),
            bool(occupancy.drained[layout.gpu_node[gpu]]),
        )
        for gpu, gpu_id in enumerate(layout.gpu_ids)
    ]
