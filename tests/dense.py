"""Observations written out for every pair of a job and a GPU: what the candidate table stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.state.candidate_table import group_members
from adlro.state.observation import Bools, Floats, Observation


def durations_s(observation: Observation) -> Floats:
    """(N, J, G) expected duration; inf where the GPU, or its node when empty, is too small."""
    return np.take_along_axis(observation.kind_duration_s, observation.gpu_kind[:, None, :], axis=2)


def fits_now(observation: Observation) -> Bools:
    """(N, J, G) the job can start there now."""
    return dense(observation, np.ones(len(observation.table.job), dtype=np.bool_), False)


def dense(observation: Observation, values: NDArray[Any], elsewhere: Any = -np.inf) -> NDArray[Any]:
    """(N, J, G) of (C,) values of the table's rows, for every GPU of their groups."""
    table = observation.table
    shape = (*observation.job_waiting.shape, observation.gpu_idle.shape[1])
    written = np.full(shape, elsewhere, dtype=values.dtype)
    row = np.repeat(np.arange(len(table.job)), table.size)
    written[table.cluster[row], table.job[row], group_members(observation)] = values[row]
    return written


def of_rows(observation: Observation, values: NDArray[Any]) -> NDArray[Any]:
    """(C,) of (N, J, G) values those of the table's rows: of the lowest GPU of each group."""
    table = observation.table
    found: NDArray[Any] = values[table.cluster, table.job, table.gpu]
    return found
