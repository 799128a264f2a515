"""The default predictor: ridge regression over records' similarity, residuals, corrected declarations.

Knows plain records and arrays only. Four parts, all learned from the newest finished jobs:

- *outcomes*: log runtime on the reference GPU, by a regression over similarity (`tuned_regression`);
- *declarations*: log(observed / declared), by a regression over users and applications. It corrects a declared runtime,
  which is mixed with the outcomes' estimate in the share that would have predicted the finished jobs best; the
  regression includes the size of declarations, and corrections stay within the observed range;
- *spread jobs*: the speed of jobs of several GPUs on more nodes than needed, as a share of that on as few as can hold
  them (`spread_regression`); by it, their outcomes count as those of packed jobs;
- *calibration*: residuals of finished jobs predicted without them, and without all of their user, application or size,
  give the intervals of equally new jobs; the unexplained shares of left-out configurations make novelty a rank: at most
  5 % of configurations of known kinds are at or above NOVEL. The coverage of given intervals widens them, or moves the
  prediction back to the prior (`interval_coverage`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.records.jobs import JobSpec
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats
from adlro.services.decompose.outcomes.job_groups import (
    application_key,
    job_type_key,
    user_application_key,
)
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, GpuKey, OutcomeMemory, SimilarJob
from adlro.services.decompose.regression.observation_window import ObservationWindow
from adlro.services.decompose.runtimes.drift import DriftDetectors
from adlro.services.decompose.runtimes.interval_coverage import (
    Calibration,
    IntervalCoverage,
    PredictionKind,
    PredictionResidual,
)
from adlro.services.decompose.runtimes.predictor import (
    INTERVAL_COVERAGE,
    PRIOR_LOG_SIGMA,
    Expectation,
    Predictions,
    evidence,
    require_known,
    spread_predictions,
)
from adlro.services.decompose.runtimes.runtime_fit import (
    NO_CORRECTIONS,
    Refit,
    RuntimeFit,
    declaration_features,
    of_outcomes,
)
from adlro.services.decompose.variables.job_features import Category
from adlro.services.decompose.variables.variables import Variables
from adlro.workload.estimates import prior_work_s

REFIT_SHARE = 0.02
"""Newly finished jobs, as a share of the window, after which a refit is due."""
LAZY_REFIT_SHARE = 0.2
"""The same without requests: comparisons of finished jobs allow a slightly older fit."""
LEAST_SPREAD = 0.02
"""Assumed standard deviation of the log runtime for exact predictions."""
NOVEL = 0.95
"""Novelty from which a job is flagged."""
RANK_FROM = 20
"""Number of configurations from which novelty is a rank among them; with fewer it is the unexplained share itself."""
EXACT_FROM = 20
"""Number of exact declarations from which further ones are believed to be exact within LEAST_SPREAD."""
LISTED_FROM = 4
"""Number of an application's finished jobs on a GPU model from which the speed table's uncertainty no longer counts."""
NOTED_LIMIT = 16_384
"""Largest number of (user, application, GPU model) whose GPUs are recorded."""
_LOW, _HIGH = (1 - INTERVAL_COVERAGE) / 2, (1 + INTERVAL_COVERAGE) / 2
_Z = 1.2815515655446004
_MOST_LOG = 700.0  # largest argument of a finite exponential
_AS_LEARNED = Calibration()


class _LearnedRuntimes(NamedTuple):
    """The fit's predictions of J jobs on M models before the calibration by earlier jobs; J x M each.

    median_s. prior_s: the median of an unknown job. low, high: the ends of the interval as logarithms relative to the
    median, low <= 0 <= high. least_s, greatest_s: the allowed range of the median. is_new: J x 1; application, user or
    a size was never seen. strangeness: J x 1; 0 if declarations of about this size were learned, towards 1 with the
    distance from these.
    """

    median_s: Floats
    prior_s: Floats
    low: Floats
    high: Floats
    least_s: Floats
    greatest_s: Floats
    is_new: NDArray[np.bool_]
    strangeness: Floats


class LearnedPredictor:
    """See the module.

    Args:
        memory: the finished jobs.
        variables: the vocabularies of the memory.
        speeds: converts runtimes from model to model.
        cluster_gpu_models: the models of all clusters; None until their descriptions are read.
        drift: receives each finished job's runtime with its prediction; knows the slow GPUs, so that their jobs do not
            count as longer ones.
        refits_itself: refits before an answer if enough was learned; otherwise the caller does, by `refit` and `adopt`.
    """

    def __init__(
        self,
        memory: OutcomeMemory,
        variables: Variables,
        speeds: ModelSpeeds,
        cluster_gpu_models: Callable[[], Collection[str] | None],
        drift: DriftDetectors | None = None,
        *,
        refits_itself: bool = True,
    ) -> None:
        self._fit_count = 0
        self._refits_itself = refits_itself
        self._memory = memory
        self._variables = variables
        self._speeds = speeds
        self._cluster_gpu_models = cluster_gpu_models
        self.drift = drift or DriftDetectors()
        self._features = memory.features
        self._window = ObservationWindow()
        self._features.on_cleared.append(self._window.clear_real)
        self._fit = RuntimeFit()
        self.coverage = IntervalCoverage()
        self.start_over(forget_memory=False)

    @property
    def revision(self) -> int:
        """Grows with each finished job."""
        return self._memory.revision

    @property
    def prediction_revision(self) -> int:
        """Grows with each refit, or when a request would cause one."""
        return self._fit_count + int(self._refits_itself and self.due)

    @property
    def calibrations(self) -> Mapping[PredictionKind, Calibration]:
        """The present calibration by kind of predictions."""
        return self._fit.calibrations

    @property
    def due(self) -> bool:
        """Whether enough was learned since the last fit for a refit before the next answer."""
        if self._pending and self._window.declared_count and self._fit.correction_range == NO_CORRECTIONS:
            return True  # the first declarations set the range of corrections
        return self._pending >= max(1.0, REFIT_SHARE * len(self._window))

    @property
    def overdue(self) -> bool:
        """Whether so much was learned since the last fit that finished jobs should not be compared with it."""
        return self._pending >= max(1.0, LAZY_REFIT_SHARE * len(self._window))

    def refit(self) -> Refit:
        """A refit from the finished jobs so far; pass its result to `adopt`."""
        self._pending = 0
        return Refit(self._fit, self._window.copy(), self.coverage.calibrations(self._window.added_count))

    def adopt(self, refit: Refit, fit: RuntimeFit) -> None:
        """Uses a fit from now on, unless its jobs were forgotten meanwhile."""
        if refit.previous is self._fit:
            self._fit = fit
            self._fit_count += 1

    def _refit_itself(self) -> None:
        refit = self.refit()
        self.adopt(refit, refit.make())

    def start_over(self, *, forget_memory: bool = True) -> None:
        """Forgets all finished jobs."""
        if forget_memory:
            self._memory.clear()
        self._window.clear()
        self.drift.start_over()
        self.coverage.start_over()
        self._fit = RuntimeFit()
        self._pending = 0
        self.all_exact = True
        """Whether all declared runtimes were exact so far: then predictions are the declared ones, whatever the fit."""
        self._fit_count += 1  # earlier predictions are no longer valid
        self._seen_on: dict[tuple[str, str], int] = {}
        self._gpus_of: dict[tuple[str, str, str], set[GpuKey]] = {}  # by user, application, model: their jobs' GPUs

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new."""
        if job.job_id in self._memory:
            return False
        self._compare(job)
        if not self._memory.add(job):
            return False
        spec = job.spec
        categories, reals = self._features.row(spec, learn=True)
        categories[Category.GPU_MODEL] = self._variables.gpu_model.learn(job.gpu_model)
        log_s = math.log(job.runtime_s) + math.log(self._speeds.of(spec, job.gpu_model).ratio)
        if job.spread:
            log_s += math.log(self._speeds.spread(spec, job.gpu_model).ratio)  # a refit corrects it by what is learned
        correction = math.nan
        declared_s = self._declared_s(spec)
        if declared_s is not None:
            # Rounded, so that the last bits of end - start do not count as an error of the declaration.
            correction = round(log_s - math.log(declared_s), 6)
        self.all_exact &= correction == 0.0 or declared_s is None or job.spread
        seen_correction = correction
        # A job that took exactly its declared runtime did not run on a slow GPU, whatever the other jobs.
        if self._ran_elsewhere(job) and correction != 0.0:
            slowdown = self._log_slowdown(job)
            log_s -= slowdown
            correction -= slowdown
        outcome = log_s - math.log(prior_work_s(spec.job_type))
        declared = math.nan if declared_s is None else math.log2(declared_s)
        self._window.add(categories, reals, outcome, correction, declared, seen_correction, spread=job.spread)
        key = (spec.application, job.gpu_model)
        self._seen_on[key] = self._seen_on.get(key, 0) + 1
        self._pending += 1
        return True

    def _ran_elsewhere(self, job: FinishedJob) -> bool:
        """Whether another GPU of the model ran the user's jobs of the application; records this one.

        Without another GPU, longer jobs can't be distinguished from a slower GPU.
        """
        key = (job.spec.user, job.spec.application, job.gpu_model)
        gpus = self._gpus_of.pop(key, set())
        self._gpus_of[key] = gpus  # reinserted at the end: the least recently used go first
        if len(self._gpus_of) > NOTED_LIMIT:
            del self._gpus_of[next(iter(self._gpus_of))]
        gpus.update(job.gpus)
        return bool(gpus.difference(job.gpus))

    def _log_slowdown(self, job: FinishedJob) -> float:
        """The logarithm of the slowdown by the job's GPUs: several are as slow as the slowest."""
        return max((self.drift.gpus.log_slowdown(each) for each in job.gpus), default=0.0)

    def _compare(self, job: FinishedJob) -> None:
        """Passes a job's runtime and its prediction to drift and coverage."""
        spec = job.spec
        self.drift.mix.observe((spec.job_type, spec.application, spec.user))
        if not len(self._window) or not (0 < job.runtime_s < math.inf):
            return
        if self._refits_itself and self.overdue:
            if not job.gpu_id:
                return  # no request for long: the comparison would use an older fit than any answer
            self._refit_itself()
        learned = self._expected(spec, job.gpu_model)
        of_job = learned.median_s, learned.prior_s, learned.low, learned.high
        median_s, prior_s, low, high = (float(each[0, 0]) for each in of_job)
        runtime_s = job.runtime_s
        if job.spread:
            # Compared as a packed job would be, but less certainly.
            log_speed, variance = self._spread_speeds([spec], self._features.rows([spec]), [job.gpu_model])
            runtime_s *= math.exp(min(0.0, float(log_speed[0, 0])))
            added = _Z * math.sqrt(float(variance[0, 0]))
            low, high = -math.hypot(low, added), math.hypot(high, added)
        residual, prior_residual = math.log(runtime_s / median_s), math.log(runtime_s / prior_s)
        if job.gpu_id:
            if spec.gpu_count <= 1:  # of several, the slow one can't be told
                self.drift.gpus.observe(job.gpu, job.gpu_model, residual, max((high - low) / (2 * _Z), LEAST_SPREAD))
            if residual:
                # Predictions for the GPU itself include its speed; a job with its exact declared runtime ran on no slow
                # one.
                slowdown = self._log_slowdown(job)
                residual, prior_residual = residual - slowdown, prior_residual - slowdown
                runtime_s *= math.exp(-slowdown)
        kind = PredictionKind(self._basis(spec), bool(learned.is_new[0, 0]))
        given = self._given(learned, [kind.basis])
        hit = float(given[1][0, 0]) <= runtime_s <= float(given[2][0, 0])
        self.coverage.observe(
            kind, PredictionResidual(residual, prior_residual, low, high, self._window.added_count), hit=hit
        )

    def _expected(self, spec: JobSpec, gpu_model: str) -> _LearnedRuntimes:
        """A job on a model, from `_learned`."""
        if self._fit.exact and self._declared_s(spec) is not None:
            # Outcomes have no weight here, and their estimate is most of the work.
            speeds, _ = self._model_speeds([spec], [gpu_model])
            return self._correct([spec], self._features.rows([spec]), [gpu_model], np.full((1, 1), np.nan), speeds)
        return self._learned([spec], self._features.rows([spec]), [gpu_model])[0]

    def predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        """Predicts each job on each model; see `Predictor.predict`."""
        require_known(gpu_models, self._speeds, self._cluster_gpu_models())
        if self._refits_itself and self.due:
            self._refit_itself()
        return self._predict(jobs, gpu_models)

    def expect(self, job: JobSpec, gpu_models: Sequence[str]) -> Expectation:
        """What a job that has finished was expected to take on each model; see `Predictor.expect`."""
        sigmas = [math.sqrt(self._speed(job, model)[1]) for model in gpu_models]
        found = Expectation.of(self._predict([job], gpu_models), sigmas)
        if not self.all_exact or self._declared_s(job) is None:
            return found
        # Intervals of exact declarations narrow slowly: a finished job may rest on all that was exact so far.
        narrow = self._window.declared_count >= EXACT_FROM
        log_std = np.minimum(found.log_std, LEAST_SPREAD) if narrow else found.log_std
        return found._replace(exact=True, log_std=log_std)

    def evidence(
        self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int, job_ids: Sequence[str] = ()
    ) -> list[list[list[SimilarJob]]]:
        """For each job and model the k most similar finished jobs; the model they ran on counts as a variable."""
        return evidence(self._memory, jobs, gpu_models, k, job_ids)

    def recall(self, job: JobSpec, k: int) -> list[SimilarJob]:
        """The k most similar finished jobs, on any model."""
        return self._memory.nearest(job, k)

    def _predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        features = self._features.rows(jobs)
        learned, unexplained = self._learned(jobs, features, gpu_models)
        basis = [self._basis(job) for job in jobs]
        median_s, low_s, high_s = self._given(learned, basis)
        novelty = self._novelty(jobs, unexplained.min(axis=1), learned.strangeness[:, 0])
        spread = None
        if any(job.gpu_count > 1 for job in jobs):
            spread = spread_predictions(median_s, low_s, high_s, *self._spread_speeds(jobs, features, gpu_models))
        return Predictions(median_s, low_s, high_s, INTERVAL_COVERAGE, basis, novelty, spread)

    def _spread_speeds(
        self, jobs: Sequence[JobSpec], features: Features, gpu_models: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """The logarithm of the speed of spread jobs as a share of the packed one, and its variance; J x M each.

        0 for jobs of one GPU.
        """
        shape = len(jobs), len(gpu_models)
        prior = np.array([[self._speeds.spread(job, model) for model in gpu_models] for job in jobs])
        numbers = [self._variables.gpu_model.number(model) for model in gpu_models]
        categories = np.repeat(features.categories, shape[1], axis=0)
        categories[:, Category.GPU_MODEL] = np.tile(numbers, shape[0])
        rows = Features(categories, np.repeat(features.reals, shape[1], axis=0))
        deviation, unexplained = (each.reshape(shape) for each in self._fit.spread.estimate(rows))
        several = np.array([job.gpu_count > 1 for job in jobs])[:, None]
        return np.log(prior[:, :, 0]) + several * deviation, prior[:, :, 1] ** 2 * unexplained

    def _learned(
        self, jobs: Sequence[JobSpec], features: Features, gpu_models: Sequence[str]
    ) -> tuple[_LearnedRuntimes, Floats]:
        """The fit's predictions, and the unexplained share J x M of the prior's variance of each outcome."""
        shape = len(jobs), len(gpu_models)
        outcomes = self._fit.outcomes
        models = [self._variables.gpu_model.number(model) for model in gpu_models]
        familiarity = outcomes.familiarity(features)
        estimates = outcomes.estimate(features, (Category.GPU_MODEL, models), familiarity)
        mean, variance, unexplained = (each.reshape(shape) for each in estimates)
        assumed = np.log([prior_work_s(job.job_type) for job in jobs])[:, None]
        mean = mean + assumed
        if outcomes.model is None:
            variance = np.full(shape, PRIOR_LOG_SIGMA[PredictionBasis.PRIOR] ** 2)
        speeds, speed_variance = self._model_speeds(jobs, gpu_models)  # J x M
        ends, new = outcomes.ends(features, _LOW, _HIGH, _Z, familiarity)
        spread = np.sqrt(variance + speed_variance)
        learned = _LearnedRuntimes(
            np.exp(mean) / speeds,
            np.exp(assumed + outcomes.centre) / speeds,
            ends[:, :1] * spread,
            ends[:, 1:] * spread,
            np.zeros(shape),
            np.full(shape, np.inf),
            new[:, None],
            np.zeros((len(jobs), 1)),
        )
        declared = [number for number, job in enumerate(jobs) if self._declared_s(job) is not None]
        if declared:
            rows = np.array(declared, dtype=np.intp)
            chosen = [jobs[number] for number in declared]
            outcome = np.where(familiarity.seen[rows, None], mean[rows], np.nan)
            corrected = self._correct(chosen, features.rows(rows), gpu_models, outcome, speeds[rows])
            for values, of_declared in zip(learned, corrected, strict=True):
                values[rows] = of_declared
        return learned, unexplained

    def _given(self, learned: _LearnedRuntimes, basis: Sequence[PredictionBasis]) -> tuple[Floats, Floats, Floats]:
        """Median, low and high end in seconds, J x M, calibrated by earlier jobs of each kind.

        Args:
            learned: predictions of J jobs on M models.
            basis: J.
        """
        kinds = [PredictionKind(each, new) for each, new in zip(basis, learned.is_new[:, 0].tolist(), strict=True)]
        calibrations = [self._fit.calibrations.get(kind, _AS_LEARNED) for kind in kinds]
        share, widening = np.array([(each.share, each.widening_ratio) for each in calibrations]).T[:, :, None]
        median_s = learned.median_s
        if any(each.share != 1.0 for each in calibrations):
            median_s = np.where(share == 1.0, median_s, learned.prior_s * (median_s / learned.prior_s) ** share)
        # The interval is around the learned median: if that is outside its range, the interval shows the uncertainty.
        kept_s = np.clip(median_s, learned.least_s, learned.greatest_s)
        low_s, high_s = median_s * np.exp(learned.low) / widening, median_s * np.exp(learned.high) * widening
        return kept_s, np.minimum(low_s, kept_s), np.maximum(high_s, kept_s)

    def _correct(
        self, jobs: Sequence[JobSpec], features: Features, gpu_models: Sequence[str], outcome: Floats, speeds: Floats
    ) -> _LearnedRuntimes:
        """The fit's predictions of jobs with a declared runtime.

        Args:
            jobs: J.
            features: their rows of features.
            gpu_models: M.
            outcome: J x M; log reference seconds by outcomes, NaN for an unseen configuration of the job.
            speeds: J x M.
        """
        fit = self._fit
        declared_s = np.array([self._declared_s(job) for job in jobs], dtype=np.float64)[:, None]
        variance = np.array([[self._moved_variance(job, model) for model in gpu_models] for job in jobs])
        # exp(0) is 1: an exact declaration stays the same to the last bit.
        correction, new = np.zeros((len(jobs), 1)), np.zeros(len(jobs), dtype=bool)
        strange = np.zeros((len(jobs), 1))
        if fit.exact:
            low, high = fit.declared_residuals.ends(
                _LOW,
                _HIGH,
                -_Z * PRIOR_LOG_SIGMA[PredictionBasis.DECLARED],
                _Z * PRIOR_LOG_SIGMA[PredictionBasis.DECLARED],
            )
            ends = np.array([[low, high]])
        else:
            declarations = declaration_features(features, np.log2(declared_s[:, 0]))
            familiarity = fit.corrections.familiarity(declarations)
            mean, of_correction, _ = fit.corrections.estimate(declarations, familiarity=familiarity)
            ends, new = fit.corrections.ends(declarations, _LOW, _HIGH, _Z, familiarity)
            ends *= np.sqrt(of_correction)[:, None]
            strange = fit.declared.strangeness(declarations)[:, None]
            variance = variance + (strange * PRIOR_LOG_SIGMA[PredictionBasis.PRIOR]) ** 2
            correction = mean[:, None]
            if fit.share < 1.0:
                counted = of_outcomes(fit.share, fit.declared.near(declarations))[:, None]
                by_outcome = np.where(np.isnan(outcome), correction, outcome - np.log(declared_s))
                correction = correction + counted * (by_outcome - correction)
            correction = (1.0 - strange) * correction
        prior_s = declared_s / speeds
        with np.errstate(over="ignore"):  # infinite: no bound
            least_s, greatest_s = (prior_s * math.exp(min(each, _MOST_LOG)) for each in fit.correction_range)
        return _LearnedRuntimes(
            declared_s * np.exp(correction) / speeds,
            prior_s,
            -np.sqrt(ends[:, :1] ** 2 + _Z**2 * variance),
            np.sqrt(ends[:, 1:] ** 2 + _Z**2 * variance),
            least_s,
            greatest_s,
            new[:, None],
            strange,
        )

    def _model_speeds(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> tuple[Floats, Floats]:
        """Speeds, and the variance of their logarithm without finished jobs about them: both J x M."""
        # Jobs of an application have the same speeds: one look-up for all.
        kinds = {(job.application, job.job_type): job for job in jobs}
        number_of = {kind: number for number, kind in enumerate(kinds)}
        table = np.array(
            [[self._speed(job, model) for model in gpu_models] for job in kinds.values()]
        )  # kinds x M x (ratio, variance)
        found = table[[number_of[job.application, job.job_type] for job in jobs]]
        return found[:, :, 0], found[:, :, 1]

    def _speed(self, job: JobSpec, model: str) -> tuple[float, float]:
        speed = self._speeds.of(job, model)
        learned = self._seen_on.get((job.application, model), 0) >= LISTED_FROM
        return speed.ratio, 0.0 if learned else speed.log_sigma**2

    def _moved_variance(self, job: JobSpec, model: str) -> float:
        """The variance of the log speeds that convert a declared runtime to a model; 0 if declared on it."""
        assert job.expected_runtime is not None
        declared_on = job.expected_runtime.gpu_model
        return 0.0 if model == declared_on else self._speed(job, model)[1] + self._speed(job, declared_on)[1]

    def _declared_s(self, job: JobSpec) -> float | None:
        """The declared runtime in seconds on the reference GPU."""
        declared = job.expected_runtime
        if declared is None or not 0 < declared.runtime_s < math.inf:
            return None
        return declared.runtime_s * self._speeds.of(job, declared.gpu_model).ratio

    def _basis(self, job: JobSpec) -> PredictionBasis:
        if self._declared_s(job) is not None:
            return PredictionBasis.DECLARED
        if job.application and self._memory.group(user_application_key(job)) is not None:
            return PredictionBasis.USER_APPLICATION
        if job.application and self._memory.group(application_key(job)) is not None:
            return PredictionBasis.APPLICATION
        return PredictionBasis.PRIOR if self._memory.group(job_type_key(job)) is None else PredictionBasis.JOB_TYPE

    def _novelty(self, jobs: Sequence[JobSpec], unexplained: Floats, strangeness: Floats) -> Floats:
        ranks = self._fit.outcomes.unexplained
        if not len(self._memory):
            return np.ones(len(jobs))
        novelty = unexplained
        if len(ranks) >= RANK_FROM:
            # Minus 1e-9: an equal to the most unexplained configuration ranks with it, not above.
            novelty = np.searchsorted(ranks, unexplained - 1e-9) / len(ranks)
        strange = [bool(job.application) and self._memory.group(application_key(job)) is None for job in jobs]
        return np.maximum(np.where(strange, np.maximum(novelty, NOVEL), novelty), strangeness)
