"""How long jobs would take on GPU models: the predictors' interface and the plain one. Knows plain records and arrays.

The plain predictor answers from the best of five bases: the declared runtime; the median of finished jobs of the same
user and application; of the same application; of the same job type; a prior. Runtimes are compared in seconds on the
reference GPU, to and from which the speed table brings them. Nothing is learned about speeds, and a declared runtime is
taken as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput, Unavailable
from adlro.records.jobs import JobSpec
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.outcomes.job_groups import (
    ALL_DECLARED,
    GroupKey,
    application_key,
    declared_key,
    job_type_key,
    user_application_key,
)
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory, SimilarJob
from adlro.workload.estimates import PRIOR_WORK_S

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
applications are the scenario's; users' own estimates are taken to be within a factor of 1.9 in 80 % of cases; the prior
alone within a factor of 6.8."""

PRIOR_COUNT = 8
"""The assumed spread weighs as much as so many finished jobs."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted runtimes of J jobs on M GPU models, in seconds.

    median_s, low_s, high_s: J x M; the runtime lies in low_s..high_s with probability `coverage`.
    basis: J. novelty: J; 0 much like what was seen, 1 unlike anything.
    """

    median_s: NDArray[np.float64]
    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]
    coverage: float
    basis: list[PredictionBasis]
    novelty: NDArray[np.float64]


class Predictor(Protocol):
    """Learns from finished jobs and predicts. One of several stands behind the service."""

    @property
    def revision(self) -> int:
        """Grows as finished jobs are learned from."""

    @property
    def prediction_revision(self) -> int:
        """Grows when predictions may have become others: those asked for before are worth asking for again."""

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new."""

    def start_over(self) -> None:
        """Forgets all finished jobs."""

    def predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        """Predicts each job on each model.

        Raises:
            InvalidInput: a GPU model is not known; names it and those that are.
            Unavailable: a GPU model may be known, but the clusters' descriptions are not read yet.
        """

    def evidence(
        self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str] = ()
    ) -> list[list[list[SimilarJob]]]:
        """For each job and model the k finished jobs that speak most for the prediction; never the job itself.

        Args:
            jobs: J.
            gpu_models: M.
            k: at most so many.
            job_ids: J, empty where a job has none; none at all: no job has one.
        """

    def recall(self, job: JobSpec, k: int) -> list[SimilarJob]:
        """The k finished jobs most like a job, whatever they ran on."""


class _Estimate(NamedTuple):
    """A log-normal-like guess: the median on the reference GPU, and its interval's ends as logs relative to it."""

    reference_s: float
    low_log: float
    high_log: float
    basis: PredictionBasis
    # Uncertainty of the speed by which the estimate was brought to the reference GPU, and the model it came from.
    from_model: str = ""
    from_log_sigma: float = 0.0


class PlainPredictor:
    """Medians and quantiles of groups of finished jobs.

    Args:
        memory: the finished jobs.
        speeds: brings runtimes from model to model.
        cluster_gpu_models: the models of all clusters; None while their descriptions are not read.
    """

    def __init__(
        self,
        memory: OutcomeMemory,
        speeds: ModelSpeeds,
        cluster_gpu_models: Callable[[], Collection[str] | None],
    ) -> None:
        self._memory = memory
        self._speeds = speeds
        self._cluster_gpu_models = cluster_gpu_models

    @property
    def revision(self) -> int:
        """Grows as finished jobs are learned from."""
        return self._memory.revision

    @property
    def prediction_revision(self) -> int:
        """The same: every finished job moves its groups' medians."""
        return self._memory.revision

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new."""
        return self._memory.add(job)

    def start_over(self) -> None:
        """Forgets all finished jobs."""
        self._memory.clear()

    def predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        """Predicts each job on each model; see `Predictor.predict`."""
        require_known(gpu_models, self._speeds, self._cluster_gpu_models())
        estimates = [self._estimate(job) for job in jobs]
        # Jobs of an application run at the same speeds: these are looked up once.
        kinds = {(job.application, job.job_type): job for job in jobs}
        number_of = {kind: number for number, kind in enumerate(kinds)}
        table = np.array([[self._speeds.of(job, model) for model in gpu_models] for job in kinds.values()])
        speeds = table[[number_of[job.application, job.job_type] for job in jobs]]  # J x M x (ratio, log_sigma)
        reference_s = np.array([estimate.reference_s for estimate in estimates])
        median_s = reference_s[:, None] / speeds[:, :, 0]
        # Independent uncertainties add as squares; none is added where nothing was brought from model to model.
        from_variance = np.array([estimate.from_log_sigma for estimate in estimates]) ** 2
        moved = np.array([[estimate.from_model != model for model in gpu_models] for estimate in estimates])
        speed_variance = moved * (speeds[:, :, 1] ** 2 + from_variance[:, None])
        added = _Z**2 * speed_variance
        low_log = np.array([estimate.low_log for estimate in estimates])[:, None]
        high_log = np.array([estimate.high_log for estimate in estimates])[:, None]
        return Predictions(
            median_s=median_s,
            low_s=median_s * np.exp(-np.sqrt(low_log**2 + added)),
            high_s=median_s * np.exp(np.sqrt(high_log**2 + added)),
            coverage=INTERVAL_COVERAGE,
            basis=[estimate.basis for estimate in estimates],
            novelty=np.array([self._novelty(job) for job in jobs]),
        )

    def evidence(
        self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str] = ()
    ) -> list[list[list[SimilarJob]]]:
        """For each job and model the k finished jobs most like it; the model they ran on counts as a variable."""
        return evidence(self._memory, jobs, gpu_models, k, job_ids)

    def recall(self, job: JobSpec, k: int) -> list[SimilarJob]:
        """The k finished jobs most like a job, whatever they ran on."""
        return self._memory.nearest(job, k)

    def _estimate(self, job: JobSpec) -> _Estimate:
        if job.expected_runtime is not None:
            return self._from_declared(job)
        if job.application:
            for key, basis in (
                (user_application_key(job), PredictionBasis.USER_APPLICATION),
                (application_key(job), PredictionBasis.APPLICATION),
            ):
                estimate = self._from_group(key, basis)
                if estimate is not None:
                    return estimate
        estimate = self._from_group(job_type_key(job), PredictionBasis.JOB_TYPE)
        if estimate is not None:
            return estimate
        width = _Z * PRIOR_LOG_SIGMA[PredictionBasis.PRIOR]
        return _Estimate(PRIOR_WORK_S[job.job_type], -width, width, PredictionBasis.PRIOR)

    def _from_declared(self, job: JobSpec) -> _Estimate:
        """The declared runtime, with the spread of log(observed / declared) of this user's jobs, or of everyone's."""
        declared = job.expected_runtime
        assert declared is not None
        speed = self._speeds.of(job, declared.gpu_model)
        group = self._memory.group(declared_key(job)) or self._memory.group(ALL_DECLARED)
        prior = _Z * PRIOR_LOG_SIGMA[PredictionBasis.DECLARED]
        low, high = -prior, prior
        if group is not None:
            low_quantile, _, high_quantile = group.quantiles()
            weight = len(group) / (len(group) + PRIOR_COUNT)
            # The median stays what was declared, inside the interval even where declarations are always too long.
            low = min(0.0, weight * low_quantile + (1 - weight) * low)
            high = max(0.0, weight * high_quantile + (1 - weight) * high)
        return _Estimate(
            declared.runtime_s * speed.ratio, low, high, PredictionBasis.DECLARED, declared.gpu_model, speed.log_sigma
        )

    def _from_group(self, key: GroupKey, basis: PredictionBasis) -> _Estimate | None:
        """The group's median, with the quantiles of its log residuals, shrunk towards the basis' assumed spread."""
        group = self._memory.group(key)
        if group is None:
            return None
        count = len(group)
        low_quantile, median, high_quantile = group.quantiles()
        weight = count / (count + PRIOR_COUNT)
        # The median of n jobs is itself off, with a variance of about pi / (2 n) of theirs.
        prior = (1 - weight) * _Z * PRIOR_LOG_SIGMA[basis] * math.sqrt(1 + math.pi / (2 * count))
        low_log = weight * (low_quantile - median) - prior
        high_log = weight * (high_quantile - median) + prior
        return _Estimate(math.exp(median), low_log, high_log, basis)

    def _novelty(self, job: JobSpec) -> float:
        """By the closest group that has finished jobs."""
        for key, novelty in (
            (user_application_key(job), 0.0),
            (application_key(job), 0.25),
            (job_type_key(job), 0.65),
        ):
            if (job.application or key.kind == "job_type") and self._memory.group(key) is not None:
                return novelty
        return 1.0


def evidence(
    memory: OutcomeMemory, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str]
) -> list[list[list[SimilarJob]]]:
    """The memory's nearest finished jobs; see `Predictor.evidence`."""
    ids = job_ids or [""] * len(jobs)
    return [
        [memory.nearest(job, k, model, without=job_id) for model in gpu_models]
        for job, job_id in zip(jobs, ids, strict=True)
    ]


def require_known(gpu_models: Sequence[str], speeds: ModelSpeeds, in_clusters: Collection[str] | None) -> None:
    """Checks GPU models that a caller names.

    Args:
        gpu_models: as asked for.
        speeds: lists the models with figures.
        in_clusters: the models of all clusters; None while their descriptions are not read.

    Raises:
        InvalidInput: a model is not known; names it and those that are.
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
