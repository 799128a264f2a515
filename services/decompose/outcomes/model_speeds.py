"""Speeds of GPU models, and of spread jobs, for the predictor: a ratio and its uncertainty.

Knows plain records and the tables.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from adlro.hardware import gang_speeds
from adlro.hardware import speeds as table
from adlro.records.jobs import JobSpec, JobType

APPLICATION_NOT_LISTED_LOG_SIGMA = 0.3
"""Assumed standard deviation of the log speed if the job type's mean replaces the application's (the table's own spread
within a type is 0.2 to 0.4)."""
MODEL_NOT_LISTED_LOG_SIGMA = 0.7
"""Assumed standard deviation of the log speed of a GPU model outside the table: as fast as the reference GPU, within a
factor of 2.5 at 80 %."""

# Both tables' V100: 1 by definition, for all applications.
_REFERENCES = (table.REFERENCE_GPU_MODEL, table.GAVEL_REFERENCE_GPU_MODEL)


SPREAD_LISTED_LOG_SIGMA = 0.3
"""Assumed standard deviation of the log share of its speed that a spread job keeps, for a listed application: Gavel's
configurations of a family differ by 0.15 to 0.45."""
SPREAD_NOT_LISTED_LOG_SIGMA = 0.5
"""The same for other applications: as Gavel's families differ."""


class ModelSpeed(NamedTuple):
    """Speed relative to the reference GPU, and the standard deviation of its logarithm; 0 for a speed in the table."""

    ratio: float
    log_sigma: float


class ModelSpeeds:
    """Speeds by application, or job type for an unlisted one; 1, with uncertainty, for models without figures."""

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models in the table."""
        return table.SHIPPED.gpu_models

    def of(self, spec: JobSpec, gpu_model: str) -> ModelSpeed:
        """The speed of a job on a GPU model."""
        return _speed(spec.application, spec.job_type, gpu_model)

    def spread(self, spec: JobSpec, gpu_model: str) -> ModelSpeed:
        """The speed of a job on more nodes than needed, as a share, at most 1, of its speed on as few as can hold it.

        A job of one GPU: 1.
        """
        if spec.gpu_count <= 1:
            return _PACKED
        return _spread_speed(spec.application, spec.job_type, spec.gpu_count, gpu_model)


_PACKED = ModelSpeed(1.0, 0.0)


@functools.lru_cache(maxsize=65_536)
def _spread_speed(application: str, job_type: JobType, gpu_count: int, gpu_model: str) -> ModelSpeed:
    listed = application in gang_speeds.FAMILY_OF
    return ModelSpeed(
        gang_speeds.spread_speed(application, job_type, gpu_count, gpu_model),
        SPREAD_LISTED_LOG_SIGMA if listed else SPREAD_NOT_LISTED_LOG_SIGMA,
    )


@functools.lru_cache(maxsize=65_536)
def _speed(application: str, job_type: JobType, gpu_model: str) -> ModelSpeed:
    if gpu_model not in table.SHIPPED.gpu_models:
        return ModelSpeed(1.0, MODEL_NOT_LISTED_LOG_SIGMA)
    listed = table.SHIPPED.lists(application, gpu_model) or gpu_model in _REFERENCES
    return ModelSpeed(
        table.speed(application, job_type, gpu_model), 0.0 if listed else APPLICATION_NOT_LISTED_LOG_SIGMA
    )
