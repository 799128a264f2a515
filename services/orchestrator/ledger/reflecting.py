"""Brings an observation up to date after a placement, which is cheaper than to make it anew. Arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.state.candidate_table import with_new_table
from adlro.state.observation import Gangs, Observation


def reflected(
    observation: Observation, occupancy: Occupancy, job: int, gpus: Sequence[int], *, reserves: bool
) -> Observation:
    """See `Ledger.reflect`.

    Args:
        observation: before the placement.
        occupancy: after it.
        job: its place in the observation.
        gpus: those on which it was placed.
        reserves: GPUs are kept free for another job.
    """
    time_s, placed = float(observation.time_s[0]), list(gpus)
    # Equal to a new observation to the last bit: ties depend on it.
    remaining_s = occupancy.expected_end_s[placed] - time_s
    return with_new_table(
        dataclasses.replace(
            observation,
            job_waiting=_with(observation.job_waiting, job, False),
            gpu_idle=_with(observation.gpu_idle, placed, False),
            gpu_remaining_s=_with(observation.gpu_remaining_s, placed, remaining_s),
            gpu_submit_s=_with(observation.gpu_submit_s, placed, observation.job_submit_s[0, job]),
            gpu_cores_held=_with(observation.gpu_cores_held, placed, observation.job_cores[0, job]),
            gpu_memory_held_mib=_with(observation.gpu_memory_held_mib, placed, observation.job_memory_mib[0, job]),
            node_cores_free=occupancy.cores_free[None].copy(),
            node_memory_free_mib=occupancy.memory_free_mib[None].copy(),
            hold_allowed=np.ones(1, dtype=np.bool_),
            gangs=_gangs_after(observation.gangs, occupancy, job, reserves),
        )
    )


def _gangs_after(gangs: Gangs | None, occupancy: Occupancy, job: int, reserves: bool) -> Gangs | None:
    """What an observation says of jobs of several GPUs, after the placement of its job."""
    if gangs is None:
        return None
    gpu_count = _with(gangs.gpu_count, job, 1)
    if not reserves and not ((gpu_count > 1).any() or (occupancy.gang > 1).any()):
        return None
    ended = gangs.reserved[0] == job
    return Gangs(
        gpu_count=gpu_count,
        max_nodes=_with(gangs.max_nodes, job, 0),
        nodes=_with(gangs.nodes, job, 0),
        spread_speed=_with(gangs.spread_speed, job, 1.0),
        gpu_run=occupancy.run[None].copy(),
        reserved=np.full(1, -1, dtype=np.int64) if ended else gangs.reserved,
    )


def _with(column: NDArray[Any], place: int | list[int], value: Any) -> NDArray[Any]:
    """(1, ...) a copy of a column of an observation, with the values at one or several places replaced."""
    changed = column.copy()
    changed[0, place] = value
    return changed
