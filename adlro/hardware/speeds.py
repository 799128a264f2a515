"""Speeds of applications on GPU models: tables of measured ratios. Arrays and plain records only.

ADLRO includes two tables: `data/speeds.csv`, relative to v100_sxm2, and `data/gavel_throughputs.csv`, measured steps/s
on v100, p100 and k80, here relative to v100. Work is in seconds on a V100, for the GPUs of both tables: this assumes
that their V100s are alike. A cluster file may add rows of its own (`adlro.hardware.cluster_files`).

If a table has no row of an application on a GPU model, the speed is the geometric mean of its job type's rows, or of
all rows if the table has none of that job type (Gavel's are all machine learning): speeds are ratios, and the geometric
mean does not depend on the choice of the reference GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.numeric.exact import exp, log
from adlro.package_data import csv_rows
from adlro.records.cluster import Cluster
from adlro.records.jobs import KINDS_OF_WORK, JobType

REFERENCE_GPU_MODEL = "v100_sxm2"


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One application's speeds by GPU model, with their source."""

    application: str
    job_type: JobType
    speeds: Mapping[str, float]
    source: str = ""


class SpeedTable:
    """Speeds of applications on GPU models.

    Args:
        rows: a later row replaces an earlier one of the same application, GPU model by GPU model.
    """

    def __init__(self, rows: Sequence[SpeedRow]) -> None:
        self._speed = {(row.application, model): each for row in rows for model, each in row.speeds.items()}
        job_types = {row.application: row.job_type for row in rows}
        self._of_type: dict[tuple[JobType, str], float] = {}
        self._of_model: dict[str, float] = {}
        for model in dict.fromkeys(model for _, model in self._speed):
            listed = {name: each for (name, on), each in self._speed.items() if on == model}
            self._of_model[model] = _geometric_mean(list(listed.values()))
            for job_type in KINDS_OF_WORK:
                of_type = [each for name, each in listed.items() if job_types[name] is job_type]
                if of_type:
                    self._of_type[job_type, model] = _geometric_mean(of_type)

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPU models with speeds."""
        return tuple(self._of_model)

    def lists(self, application: str, gpu_model: str) -> bool:
        """Whether this very pair has a row, so that `speed` needs no mean."""
        return (application, gpu_model) in self._speed

    def speed(self, application: str, job_type: JobType, gpu_model: str) -> float:
        """Speed relative to the reference GPU: a job's duration is its work divided by it.

        Args:
            application: such as "resnet50_fp16"; an unlisted one, or "", has the mean of its job type.
            job_type: used for applications that are not listed on this GPU model.
            gpu_model: one of `gpu_models`.

        Raises:
            InvalidInput: no speeds are known for the GPU model.
        """
        listed = self._speed.get((application, gpu_model))
        return listed if listed is not None else self.type_speed(job_type, gpu_model)

    def type_speed(self, job_type: JobType, gpu_model: str) -> float:
        """The geometric mean of a job type's rows; of all rows if it has none.

        Raises:
            InvalidInput: no speeds are known for the GPU model.
        """
        of_type = self._of_type.get((job_type, gpu_model))
        return of_type if of_type is not None else self.model_speed(gpu_model)

    def model_speed(self, gpu_model: str) -> float:
        """The geometric mean of all of a GPU model's rows.

        Raises:
            InvalidInput: no speeds are known for the GPU model.
        """
        try:
            return self._of_model[gpu_model]
        except KeyError:
            raise self._unknown_model(gpu_model) from None

    def speeds(
        self, applications: Sequence[str], job_types: Sequence[JobType], gpu_models: Sequence[str]
    ) -> NDArray[np.float64]:
        """Speeds of J jobs on M GPU models, as an array of shape (J, M).

        Raises:
            InvalidInput: no speeds are known for one of the GPU models.
        """
        self.require(gpu_models)
        # Lists have few kinds of jobs: one look-up per kind.
        numbers: dict[tuple[str, JobType], int] = {}
        kinds = [numbers.setdefault(pair, len(numbers)) for pair in zip(applications, job_types, strict=True)]
        table = np.empty((len(numbers), len(gpu_models)))
        for (application, job_type), number in numbers.items():
            table[number] = [self.speed(application, job_type, gpu_model) for gpu_model in gpu_models]
        found: NDArray[np.float64] = table[kinds] if kinds else np.empty((0, len(gpu_models)))
        return found

    def require(self, gpu_models: Sequence[str]) -> None:
        """Checks that GPU models can be simulated.

        Raises:
            InvalidInput: naming the first without speeds.
        """
        for gpu_model in gpu_models:
            if gpu_model not in self._of_model:
                raise self._unknown_model(gpu_model)

    def extended(self, rows: Sequence[SpeedRow]) -> SpeedTable:
        """This table with further rows, which go before its own; means of its own GPU models stay the same."""
        own = SpeedTable(rows)
        combined = SpeedTable([])
        combined._speed = {**self._speed, **own._speed}
        combined._of_type = {**own._of_type, **self._of_type}
        combined._of_model = dict(self._of_model)
        for model, mean in own._of_model.items():
            combined._of_model.setdefault(model, mean)
        return combined

    def _unknown_model(self, gpu_model: str) -> InvalidInput:
        return InvalidInput(
            f"no speeds are known for GPU model '{gpu_model}'; the simulator knows {', '.join(self.gpu_models)}",
            field="gpu_model",
            reason="UNKNOWN_GPU_MODEL",
            metadata={"gpu_model": gpu_model},
        )


def _geometric_mean(values: Sequence[float]) -> float:
    return exp(float(np.mean([log(each) for each in values])))


_MEASURED = csv_rows("adlro.hardware", "speeds.csv")
GPU_MODELS: tuple[str, ...] = tuple(list(_MEASURED[0])[2 : list(_MEASURED[0]).index("radeon_basis")])
"""The GPU models of `data/speeds.csv`, those of the scenario `paper`; `SHIPPED.gpu_models` has all."""
APPLICATIONS: tuple[str, ...] = tuple(row["application"] for row in _MEASURED)
"""The applications of `data/speeds.csv`, in its order (their numbers in the scenario's rule for users)."""
JOB_TYPE_OF: dict[str, JobType] = {row["application"]: JobType[row["job_type"].upper()] for row in _MEASURED}

GAVEL_REFERENCE_GPU_MODEL = "v100"
GAVEL_STEPS_PER_S: dict[str, dict[str, float]] = {
    row["application"]: {
        key.removesuffix("_steps_per_s"): float(value) for key, value in row.items() if key.endswith("_steps_per_s")
    }
    for row in csv_rows("adlro.hardware", "gavel_throughputs.csv")
}
"""Gavel's job configurations, each alone on one GPU: measured steps/s by GPU model."""
GAVEL_APPLICATIONS: tuple[str, ...] = tuple(GAVEL_STEPS_PER_S)
GAVEL_GPU_MODELS: tuple[str, ...] = tuple(next(iter(GAVEL_STEPS_PER_S.values())))

SHIPPED = SpeedTable(
    [
        *(
            SpeedRow(
                row["application"],
                JOB_TYPE_OF[row["application"]],
                {model: float(row[model]) for model in GPU_MODELS},
                row["source"],
            )
            for row in _MEASURED
        ),
        *(
            SpeedRow(
                application,
                JobType.MACHINE_LEARNING,
                {model: each / steps_per_s[GAVEL_REFERENCE_GPU_MODEL] for model, each in steps_per_s.items()},
                "data/gavel_throughputs.csv",
            )
            for application, steps_per_s in GAVEL_STEPS_PER_S.items()
        ),
    ]
)
"""Both included tables."""


def speed(application: str, job_type: JobType, gpu_model: str) -> float:
    """`SpeedTable.speed` of the included tables."""
    return SHIPPED.speed(application, job_type, gpu_model)


def speeds(applications: Sequence[str], job_types: Sequence[JobType], gpu_models: Sequence[str]) -> NDArray[np.float64]:
    """`SpeedTable.speeds` of the included tables: shape (J, M)."""
    return SHIPPED.speeds(applications, job_types, gpu_models)


def require_speeds(cluster: Cluster) -> None:
    """Checks that the included tables have speeds for every GPU model of a cluster.

    Raises:
        InvalidInput: naming the first GPU model without speeds.
    """
    SHIPPED.require(cluster.gpu_models)
