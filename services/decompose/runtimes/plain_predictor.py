"""The plain predictor: medians and quantiles of groups of finished jobs. Knows plain records and arrays.

It answers from the best of five bases: the declared runtime; the median of finished jobs of the same user and
application; of the same application; of the same job type; a prior. Runtimes are compared in seconds on the reference
GPU, with conversions by the speed tables. It learns no speeds, and does not correct a declared runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from adlro.records.jobs import JobSpec
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.hypervectors.similarity_kernel import Floats
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
from adlro.services.decompose.runtimes.predictor import (
    INTERVAL_COVERAGE,
    PRIOR_LOG_SIGMA,
    Expectation,
    Predictions,
    SpreadPredictions,
    evidence,
    require_known,
    spread_predictions,
)
from adlro.workload.estimates import prior_work_s

_Z = 1.2815515655446004  # the 0.9 quantile of the normal distribution

PRIOR_COUNT = 8
"""The assumed spread has the weight of so many finished jobs."""


class _Estimate(NamedTuple):
    """A log-normal-like estimate: the median on the reference GPU, and its interval's ends as logs relative to it."""

    reference_s: float
    low_log: float
    high_log: float
    basis: PredictionBasis
    # Uncertainty of the speed that converted the estimate to the reference GPU, and the model of that speed.
    from_model: str = ""
    from_log_sigma: float = 0.0


class PlainPredictor:
    """Medians and quantiles of groups of finished jobs.

    Args:
        memory: the finished jobs.
        speeds: converts runtimes from model to model.
        cluster_gpu_models: the models of all clusters; None until their descriptions are read.
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
        """Grows with each finished job."""
        return self._memory.revision

    @property
    def prediction_revision(self) -> int:
        """The same: every finished job changes its groups' medians."""
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
        return self._predict(jobs, gpu_models)

    def expect(self, job: JobSpec, gpu_models: Sequence[str]) -> Expectation:
        """What a job that has finished was expected to take on each model; see `Predictor.expect`."""
        sigmas = [self._speeds.of(job, model).log_sigma for model in gpu_models]
        return Expectation.of(self._predict([job], gpu_models), sigmas)

    def _predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        estimates = [self._estimate(job) for job in jobs]
        # Jobs of an application have the same speeds: one look-up for all.
        kinds = {(job.application, job.job_type): job for job in jobs}
        number_of = {kind: number for number, kind in enumerate(kinds)}
        table = np.array([[self._speeds.of(job, model) for model in gpu_models] for job in kinds.values()])
        speeds = table[[number_of[job.application, job.job_type] for job in jobs]]  # J x M x (ratio, log_sigma)
        reference_s = np.array([estimate.reference_s for estimate in estimates])
        median_s = reference_s[:, None] / speeds[:, :, 0]
        # Independent uncertainties add as squares; an estimate without a conversion adds none.
        from_variance = np.array([estimate.from_log_sigma for estimate in estimates]) ** 2
        moved = np.array([[estimate.from_model != model for model in gpu_models] for estimate in estimates])
        speed_variance = moved * (speeds[:, :, 1] ** 2 + from_variance[:, None])
        added = _Z**2 * speed_variance
        low_log = np.array([estimate.low_log for estimate in estimates])[:, None]
        high_log = np.array([estimate.high_log for estimate in estimates])[:, None]
        low_s, high_s = median_s * np.exp(-np.sqrt(low_log**2 + added)), median_s * np.exp(np.sqrt(high_log**2 + added))
        return Predictions(
            median_s=median_s,
            low_s=low_s,
            high_s=high_s,
            coverage=INTERVAL_COVERAGE,
            basis=[estimate.basis for estimate in estimates],
            novelty=np.array([self._novelty(job) for job in jobs]),
            spread=self._spread(jobs, gpu_models, median_s, low_s, high_s),
        )

    def _spread(
        self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], median_s: Floats, low_s: Floats, high_s: Floats
    ) -> SpreadPredictions | None:
        """The packed predictions at the shipped speeds of spread jobs; None: all jobs have one GPU."""
        if all(job.gpu_count <= 1 for job in jobs):
            return None
        table = np.array([[self._speeds.spread(job, model) for model in gpu_models] for job in jobs])
        return spread_predictions(median_s, low_s, high_s, np.log(table[:, :, 0]), table[:, :, 1] ** 2)

    def evidence(
        self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str] = ()
    ) -> list[list[list[SimilarJob]]]:
        """For each job and model the k most similar finished jobs; the model they ran on counts as a variable."""
        return evidence(self._memory, jobs, gpu_models, k, job_ids)

    def recall(self, job: JobSpec, k: int) -> list[SimilarJob]:
        """The k most similar finished jobs, on any model."""
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
        return _Estimate(prior_work_s(job.job_type), -width, width, PredictionBasis.PRIOR)

    def _from_declared(self, job: JobSpec) -> _Estimate:
        """The declared runtime, with the spread of log(observed / declared) of this user's jobs, or of all jobs."""
        declared = job.expected_runtime
        assert declared is not None
        speed = self._speeds.of(job, declared.gpu_model)
        group = self._memory.group(declared_key(job)) or self._memory.group(ALL_DECLARED)
        prior = _Z * PRIOR_LOG_SIGMA[PredictionBasis.DECLARED]
        low, high = -prior, prior
        if group is not None:
            low_quantile, _, high_quantile = group.quantiles()
            weight = len(group) / (len(group) + PRIOR_COUNT)
            # The median stays the declared runtime, inside the interval even if declarations are always too long.
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
        # The median of n jobs has an error too, with a variance of about pi / (2 n) of theirs.
        prior = (1 - weight) * _Z * PRIOR_LOG_SIGMA[basis] * math.sqrt(1 + math.pi / (2 * count))
        low_log = weight * (low_quantile - median) - prior
        high_log = weight * (high_quantile - median) + prior
        return _Estimate(math.exp(median), low_log, high_log, basis)

    def _novelty(self, job: JobSpec) -> float:
        """The novelty by the closest group with finished jobs."""
        for key, novelty in (
            (user_application_key(job), 0.0),
            (application_key(job), 0.25),
            (job_type_key(job), 0.65),
        ):
            if (job.application or key.kind == "job_type") and self._memory.group(key) is not None:
                return novelty
        return 1.0
