"""The fields of an observation for compiled code: of one type and memory layout. numpy and numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.compiled import compiled_part
from adlro.state.observation import Bools, CandidateTable, Floats, Ints, Observation

CHOOSES, ALONE = 1, 2
"""Parts of `Looked.picky`: the job may not run on each node; it must be alone on its nodes."""


class Looked(NamedTuple):
    """The fields of an observation that compiled code reads, with their names there.

    Attributes:
        picky: (N, J) a sum of CHOOSES and ALONE; 0: neither; J is 0 where no such job waits.
    """

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
    job_spread: Floats
    job_cores: Ints
    job_memory_mib: Ints
    job_gpu_memory_mib: Ints
    kind_duration_s: Floats
    hold_allowed: Bools
    table: CandidateTable
    picky: Ints


_FLOATS = ("time_s", "gpu_remaining_s", "job_priority", "job_submit_s", "job_spread", "kind_duration_s")
_BOOLS = ("gpu_idle", "job_waiting", "hold_allowed")
_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(np.float64 if name in _FLOATS else np.bool_ if name in _BOOLS else np.int64)
    for name in Looked._fields
    if name not in ("table", "picky")
}


def looked_at(observation: Observation) -> Looked:
    """The fields of an observation; copies only those of another type or layout."""
    columns: dict[str, Any] = {name: as_type(getattr(observation, name), wanted) for name, wanted in _TYPES.items()}
    return Looked(**columns, table=observation.table, picky=_picky(observation))


def _picky(observation: Observation) -> Ints:
    rules = observation.nodes
    if rules is None:
        return np.zeros((len(observation.time_s), 0), dtype=np.int64)
    picky: Ints = CHOOSES * rules.job_choosing.astype(np.int64) + ALONE * rules.job_exclusive
    return picky


@compiled_part
def is_picky(looked: Looked, n: int, job: int, how: int) -> bool:
    """Whether a job is picky in one of some ways: CHOOSES, ALONE or their sum."""
    return bool(looked.picky.shape[1] > 0 and (looked.picky[n, job] & how) != 0)


@compiled_part
def may_start_at(looked: Looked, n: int, job: int, gpu: int) -> bool:
    """Whether a job of one GPU that has room on an idle GPU's node may start there: not beside others, if ALONE."""
    if not is_picky(looked, n, job, ALONE):
        return True
    for row in range(looked.table.first[n, job], looked.table.first[n, job + 1]):
        if is_alike(looked, n, looked.table.gpu[row], gpu):
            return True
    return False


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
