"""How fast an application runs on a GPU model, from `data/speeds.csv`; 1 is the reference GPU, v100_sxm2.

An application that the table does not list runs at the geometric mean of its job type's rows: speeds are ratios, and
the geometric mean is the one that does not depend on which GPU is taken as the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adlro.cluster import Cluster
from adlro.errors import InvalidInput
from adlro.jobs import JobType
from adlro.sim.tables import csv_rows

REFERENCE_GPU_MODEL = "v100_sxm2"

_ROWS = csv_rows("speeds.csv")
GPU_MODELS: tuple[str, ...] = tuple(list(_ROWS[0])[2 : list(_ROWS[0]).index("radeon_basis")])
APPLICATIONS: tuple[str, ...] = tuple(row["application"] for row in _ROWS)
"""Every listed application, in the order of the table (their numbers in the scenario's rule for users)."""
JOB_TYPE_OF: dict[str, JobType] = {row["application"]: JobType[row["job_type"].upper()] for row in _ROWS}

_SPEED: dict[str, dict[str, float]] = {
    row["application"]: {model: float(row[model]) for model in GPU_MODELS} for row in _ROWS
}
_MEAN_SPEED: dict[JobType, dict[str, float]] = {
    job_type: {
        model: float(
            np.exp(np.mean([np.log(_SPEED[name][model]) for name in APPLICATIONS if JOB_TYPE_OF[name] is job_type]))
        )
        for model in GPU_MODELS
    }
    for job_type in JobType
}


def speed(application: str, job_type: JobType, gpu_model: str) -> float:
    """Speed relative to the reference GPU: a job's duration is its work divided by it.

    Args:
        application: such as "resnet50_fp16"; one that is not listed, or "", gets the mean of its job type.
        job_type: used for applications that are not listed.
        gpu_model: one of `GPU_MODELS`.

    Raises:
        InvalidInput: no speeds are known for the GPU model.
    """
    row = _SPEED.get(application) or _MEAN_SPEED[job_type]
    try:
        return row[gpu_model]
    except KeyError:
        raise _unknown_model(gpu_model) from None


def speeds(applications: Sequence[str], job_types: Sequence[JobType], gpu_models: Sequence[str]) -> NDArray[np.float64]:
    """Speeds of J jobs on M GPU models, as an array of shape (J, M).

    Raises:
        InvalidInput: no speeds are known for one of the GPU models.
    """
    for gpu_model in gpu_models:
        if gpu_model not in GPU_MODELS:
            raise _unknown_model(gpu_model)
    table = np.empty((len(applications), len(gpu_models)))
    for j, (application, job_type) in enumerate(zip(applications, job_types, strict=True)):
        row = _SPEED.get(application) or _MEAN_SPEED[job_type]
        table[j] = [row[gpu_model] for gpu_model in gpu_models]
    return table


def require_speeds(cluster: Cluster) -> None:
    """Checks that every GPU model of a cluster can be simulated.

    Raises:
        InvalidInput: naming the first GPU model without speeds.
    """
    for gpu_model in cluster.gpu_models:
        if gpu_model not in GPU_MODELS:
            raise _unknown_model(gpu_model)


def _unknown_model(gpu_model: str) -> InvalidInput:
    return InvalidInput(
        f"no speeds are known for GPU model '{gpu_model}'; the simulator knows {', '.join(GPU_MODELS)}",
        field="gpu_model",
        reason="UNKNOWN_GPU_MODEL",
        metadata={"gpu_model": gpu_model},
    )
