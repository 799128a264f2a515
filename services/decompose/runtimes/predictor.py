"""The interface of the predictors of runtimes, and their common code. Plain records and arrays.

There are two: `plain_predictor`, medians of groups, and `learned_predictor`, the default.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput, Unavailable
from adlro.records.jobs import JobSpec
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory, SimilarJob

INTERVAL_COVERAGE = 0.8
"""Intervals reach from the 0.1 to the 0.9 quantile."""
_Z = 1.2815515655446004  # the 0.9 quantile of the normal distribution

PRIOR_LOG_SIGMA = {
    PredictionBasis.DECLARED: 0.5,
    PredictionBasis.USER_APPLICATION: 0.4,
    PredictionBasis.APPLICATION: 0.9,
    PredictionBasis.JOB_TYPE: 0.9,
    PredictionBasis.PRIOR: 1.5,
}
"""Assumed standard deviation of the log runtime about the median, by basis: 0.4 within and 0.9 across users and
applications are the scenario's; users' own estimates are assumed to be within a factor of 1.9 in 80 % of cases; the
prior alone within a factor of 6.8."""


class SpreadPredictions(NamedTuple):
    """Predictions of J jobs on M GPU models, with their GPUs on more nodes than needed; J x M each.

    speed: as a share of the packed speed, in (0, 1]; 1 for a job of one GPU. low_s, high_s: the runtime's interval.
    """

    speed: NDArray[np.float64]
    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted runtimes of J jobs on M GPU models, in seconds, with their GPUs on as few nodes as can hold them.

    median_s, low_s, high_s: J x M; the runtime is in low_s..high_s with probability `coverage`.
    basis: J. novelty: J; 0 close to the jobs so far, 1 unlike any of them. spread: None: all jobs have one GPU.
    """

    median_s: NDArray[np.float64]
    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]
    coverage: float
    basis: list[PredictionBasis]
    novelty: NDArray[np.float64]
    spread: SpreadPredictions | None = None


class Expectation(NamedTuple):
    """What a finished job was expected to take on M GPU models; M each.

    packed_s, spread_s: the median runtime on as few nodes as can hold its GPUs, and on more.
    log_std: standard deviation of the logarithm of packed_s.
    speed_log_std: the same of the model's speed relative to others, as long as no finished jobs tell it.
    spread_log_std: the same of spread_s / packed_s.
    exact: the job's runtime was declared, and all declarations so far were exact.
    """

    packed_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]
    log_std: NDArray[np.float64]
    speed_log_std: NDArray[np.float64]
    spread_log_std: NDArray[np.float64]
    exact: bool = False

    @classmethod
    def of(cls, predictions: Predictions, speed_log_std: Sequence[float]) -> Expectation:
        """From the predictions of one job."""
        median_s, low_s, high_s = (each[0] for each in (predictions.median_s, predictions.low_s, predictions.high_s))
        log_std = np.log(high_s / low_s) / (2 * _Z)
        spread_s, spread_log_std = median_s, np.zeros(len(median_s))
        if predictions.spread is not None:
            spread_s = median_s / predictions.spread.speed[0]
            of_both = np.log(predictions.spread.high_s[0] / predictions.spread.low_s[0]) / (2 * _Z)
            spread_log_std = np.sqrt(np.clip(of_both**2 - log_std**2, 0.0, None))
        return cls(median_s, spread_s, log_std, np.array(speed_log_std), spread_log_std)


class Predictor(Protocol):
    """Learns from finished jobs and predicts. The service uses one of several."""

    @property
    def revision(self) -> int:
        """Grows with each finished job."""

    @property
    def prediction_revision(self) -> int:
        """Grows when predictions may have changed: earlier ones are worth another request."""

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new."""

    def start_over(self) -> None:
        """Forgets all finished jobs."""

    def predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        """Predicts each job on each model.

        Raises:
            InvalidInput: a GPU model is unknown; names it and the known ones.
            Unavailable: a GPU model may be known, but the clusters' descriptions are not read yet.
        """

    def expect(self, job: JobSpec, gpu_models: Sequence[str]) -> Expectation:
        """What a job that has finished was expected to take on each model, known or not."""

    def evidence(
        self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str] = ()
    ) -> list[list[list[SimilarJob]]]:
        """For each job and model the k finished jobs with the most weight in the prediction; never the job itself.

        Args:
            jobs: J.
            gpu_models: M.
            k: largest number.
            job_ids: J, empty for a job without an id; an empty sequence: no job has one.
        """

    def recall(self, job: JobSpec, k: int) -> list[SimilarJob]:
        """The k most similar finished jobs, on any model."""


def spread_predictions(
    median_s: NDArray[np.float64],
    low_s: NDArray[np.float64],
    high_s: NDArray[np.float64],
    log_speed: NDArray[np.float64],
    log_variance: NDArray[np.float64],
) -> SpreadPredictions:
    """Packed runtimes as those of spread jobs; J x M each.

    Args:
        median_s, low_s, high_s: packed.
        log_speed: logarithm of the speed as a share of the packed one; above 0 counts as 0.
        log_variance: its variance; independent of the packed runtime's.
    """
    speed = np.exp(np.minimum(log_speed, 0.0))
    added = _Z**2 * log_variance
    spread_s = median_s / speed
    return SpreadPredictions(
        speed,
        spread_s * np.exp(-np.sqrt(np.log(median_s / low_s) ** 2 + added)),
        spread_s * np.exp(np.sqrt(np.log(high_s / median_s) ** 2 + added)),
    )


def evidence(
    memory: OutcomeMemory, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str]
) -> list[list[list[SimilarJob]]]:
    """The nearest finished jobs of the memory; see `Predictor.evidence`."""
    ids = job_ids or [""] * len(jobs)
    return [
        [memory.nearest(job, k, model, without=job_id) for model in gpu_models]
        for job, job_id in zip(jobs, ids, strict=True)
    ]


def require_known(gpu_models: Sequence[str], speeds: ModelSpeeds, in_clusters: Collection[str] | None) -> None:
    """Checks the GPU models of a request.

    Args:
        gpu_models: the models of the request.
        speeds: has the models with figures.
        in_clusters: the models of all clusters; None until their descriptions are read.

    Raises:
        InvalidInput: a model is unknown; names it and the known ones.
        Unavailable: a model may be known, but the clusters' descriptions are not read yet.
    """
    for number, model in enumerate(gpu_models):
        if model in speeds.gpu_models or (in_clusters is not None and model in in_clusters):
            continue
        field = f"gpu_models[{number}]"
        if in_clusters is None:
            raise Unavailable(
                f"{field}: the speed table does not list the GPU model {model!r}, and the clusters' descriptions "
                "are not read yet, so it can't be told whether one has it; try again",
                reason="CLUSTERS_NOT_READ",
                metadata={"gpu_model": model},
                retry_after_s=1.0,
            )
        known = list(dict.fromkeys([*speeds.gpu_models, *sorted(in_clusters)]))
        raise InvalidInput(
            f"{field}: no GPU model {model!r} is known; known are {', '.join(known)}. A model without speed "
            "figures is taken once a cluster that has it is described (UpsertCluster)",
            field=field,
            reason="UNKNOWN_GPU_MODEL",
            metadata={"gpu_model": model},
        )
