"""The fields of an observation for compiled code: of one type and memory layout. numpy and numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.compiled import compiled_part
from adlro.state.observation import Bools, CandidateTable, Floats, Ints, Observation


class Looked(NamedTuple):
    """The fields of an observation that compiled code reads, with their names there."""

    time_s: Floats
    gpu_memory_mib: Ints
    gpu_node: Ints
    gpu_idle: Bools
    gpu_remaining_s: Floats
    gpu_cores_held: Ints
    gpu_memory_held_mib: Ints
    gpu_kind: Ints
    node_cores_free: Ints
    node_memory_free_mib: Ints
    job_waiting: Bools
    job_type: Ints
    job_priority: Floats
    job_submit_s: Floats
    job_cores: Ints
    job_memory_mib: Ints
    job_gpu_memory_mib: Ints
    kind_duration_s: Floats
    hold_allowed: Bools
    table: CandidateTable


_FLOATS = ("time_s", "gpu_remaining_s", "job_priority", "job_submit_s", "kind_duration_s")
_BOOLS = ("gpu_idle", "job_waiting", "hold_allowed")
_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(np.float64 if name in _FLOATS else np.bool_ if name in _BOOLS else np.int64)
    for name in Looked._fields
    if name != "table"
}


def looked_at(observation: Observation) -> Looked:
    """The fields of an observation; copies only those of another type or layout."""
    columns: dict[str, Any] = {name: as_type(getattr(observation, name), wanted) for name, wanted in _TYPES.items()}
    return Looked(**columns, table=observation.table)


def as_type(column: NDArray[Any], wanted: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
    """The column in the wanted type and layout; copied only if it has another one."""
    flags = column.flags
    if column.dtype == wanted and flags.c_contiguous and flags.writeable:
        return column
    return np.require(column, wanted, ["C", "W"])


@compiled_part
def is_alike(looked: Looked, n: int, lowest: int, gpu: int) -> bool:
    """Whether a GPU is idle, and on the same node and of the same kind as another idle one."""
    node, kind = looked.gpu_node[n], looked.gpu_kind[n]
    return bool(looked.gpu_idle[n, gpu] and node[gpu] == node[lowest] and kind[gpu] == kind[lowest])
