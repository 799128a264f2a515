"""The fields of an observation as compiled code takes them: of one type and memory layout. numpy and numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.compiled import compiled_part
from adlro.state.observation import Bools, CandidateTable, Floats, Ints, Observation


class Looked(NamedTuple):
    """The fields of an observation that compiled code looks at, by their names there."""

    time_s: Floats
    gpu_model: Ints
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


_COLUMNS = tuple(name for name in Looked._fields if name != "table")
_TYPES = {"f": np.dtype(np.float64), "i": np.dtype(np.int64), "b": np.dtype(np.bool_)}


def looked_at(observation: Observation) -> Looked:
    """Copies only what is of another type or layout."""
    columns: dict[str, Any] = {name: _as_looked(getattr(observation, name)) for name in _COLUMNS}
    table = CandidateTable(*map(_as_looked, observation.table))
    return Looked(**columns, table=table)


def as_type(column: NDArray[Any], wanted: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
    """As compiled code takes it: copied only where it is of another type or layout."""
    flags = column.flags
    if column.dtype == wanted and flags.c_contiguous and flags.writeable:
        return column
    return np.require(column, wanted, ["C", "W"])


def _as_looked(column: NDArray[Any]) -> NDArray[Any]:
    return as_type(column, _TYPES[column.dtype.kind])


@compiled_part
def is_alike(looked: Looked, n: int, lowest: int, gpu: int) -> bool:
    """A GPU is idle, and on the same node and of the same kind as another idle one."""
    node, kind = looked.gpu_node[n], looked.gpu_kind[n]
    return bool(looked.gpu_idle[n, gpu] and node[gpu] == node[lowest] and kind[gpu] == kind[lowest])
