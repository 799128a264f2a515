"""The default predictor: ridge regression over records' similarity, residuals of the rest, corrected declarations.

Knows plain records and arrays only. Three parts, all learned from the newest finished jobs:

- *outcomes*: log runtime on the reference GPU, by a regression over similarity (`learner`);
- *declarations*: log(observed / declared), by a regression over users and applications. A declared runtime is
  corrected by it, and mixed with what outcomes say in the share that would have predicted the finished jobs best;
- *calibration*: residuals of finished jobs predicted without them make the intervals; how little was known of those
  whose configuration was left out makes novelty a rank: at or above NOVEL are at most 5 % of configurations of known
  kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from adlro.jobs import JobSpec
from adlro.sim.estimates import PRIOR_WORK_S
from services.decompose.columns import Category
from services.decompose.drift import Drift
from services.decompose.fit import Fit, Refit
from services.decompose.groups import (
    application_key,
    job_type_key,
    user_application_key,
)
from services.decompose.kernel import Columns, Floats
from services.decompose.memory import FinishedJob, GpuKey, OutcomeMemory, Recollection
from services.decompose.predict import (
    INTERVAL_COVERAGE,
    PRIOR_LOG_SIGMA,
    Basis,
    Predictions,
    require_known,
)
from services.decompose.speeds import Speeds
from services.decompose.variables import Variables
from services.decompose.window import Window

REFIT_SHARE = 0.02
"""Newly finished jobs, as a share of the window, after which the fit is made anew."""
LAZY_REFIT_SHARE = 0.2
"""The same while nobody asks: what finished jobs are compared with may be a little older."""
LEAST_SPREAD = 0.02
"""Assumed standard deviation of the log runtime where predictions are exact."""
NOVEL = 0.95
"""Novelty from which a job is flagged."""
RANK_FROM = 20
"""Configurations from which novelty is a rank among them; with fewer it is the unexplained share itself."""
LISTED_FROM = 4
"""Finished jobs of an application on a GPU model from which the speed table's own uncertainty no longer counts."""
NOTED_LIMIT = 16_384
"""Users' applications on GPU models of which it is noted on which GPUs they ran."""
_LOW, _HIGH = (1 - INTERVAL_COVERAGE) / 2, (1 + INTERVAL_COVERAGE) / 2
_Z = 1.2815515655446004


class LearnedPredictor:
    """See the module.

    Args:
        memory: the finished jobs.
        variables: the vocabularies of the memory.
        speeds: brings runtimes from model to model.
        cluster_gpu_models: the models of all clusters; None while their descriptions are not read.
        drift: told how each finished job's runtime compares with its prediction; knows which GPUs are slower than their
            kind, so that their jobs are not taken for longer ones.
        refits_itself: makes its fit anew before it answers, if enough was learned; otherwise whoever holds it does, by
            `refit` and `adopt`.
    """

    def __init__(
        self,
        memory: OutcomeMemory,
        variables: Variables,
        speeds: Speeds,
        cluster_gpu_models: Callable[[], Collection[str] | None],
        drift: Drift | None = None,
        *,
        refits_itself: bool = True,
    ) -> None:
        self._fit_count = 0
        self._refits_itself = refits_itself
        self._memory = memory
        self._variables = variables
        self._speeds = speeds
        self._cluster_gpu_models = cluster_gpu_models
        self.drift = drift or Drift()
        self._rows = memory.rows
        self._window = Window()
        self._rows.on_cleared.append(self._window.clear_real)
        self._fit = Fit()
        self.start_over(forget_memory=False)

    @property
    def revision(self) -> int:
        """Grows as finished jobs are learned from."""
        return self._memory.revision

    @property
    def prediction_revision(self) -> int:
        """Grows whenever the fit is made anew, or would be if something were asked."""
        return self._fit_count + int(self._refits_itself and self.due)

    @property
    def due(self) -> bool:
        """Enough was learned since the last fit to make it anew before something is asked."""
        return self._pending >= max(1.0, REFIT_SHARE * len(self._window))

    @property
    def overdue(self) -> bool:
        """So much was learned since the last fit that finished jobs should not be compared with it."""
        return self._pending >= max(1.0, LAZY_REFIT_SHARE * len(self._window))

    def refit(self) -> Refit:
        """The work of making the fit anew from what was learned so far; give what it makes to `adopt`."""
        self._pending = 0
        return Refit(self._fit, self._window.copy())

    def adopt(self, refit: Refit, fit: Fit) -> None:
        """Answers from a fit from now on, unless what it was made from was forgotten meanwhile."""
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
        self._fit = Fit()
        self._pending = 0
        self.all_exact = True
        """Every declared runtime was exact so far: those that are declared are predicted to be, whatever the fit."""
        self._fit_count += 1  # what was predicted before is another now
        self._seen_on: dict[tuple[str, str], int] = {}
        self._gpus_of: dict[tuple[str, str, str], set[GpuKey]] = {}  # by user, application, model: which ran such jobs

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new."""
        if job.job_id in self._memory:
            return False
        self._compare(job)
        if not self._memory.add(job):
            return False
        spec = job.spec
        categories, reals = self._rows.row(spec, learn=True)
        categories[Category.GPU_MODEL] = self._variables.gpu_model.learn(job.gpu_model)
        log_s = math.log(job.runtime_s) + math.log(self._speeds.of(spec, job.gpu_model).ratio)
        correction = math.nan
        declared_s = self._declared_s(spec)
        if declared_s is not None:
            # Rounded, so that the last bits of end - start don't look like an error of the declaration.
            correction = round(log_s - math.log(declared_s), 6)
        self.all_exact &= correction == 0.0 or declared_s is None
        # A job that took exactly what was declared did not run on a GPU that is slow, whatever others' jobs say.
        if self._ran_elsewhere(job) and correction != 0.0:
            slowdown = self.drift.gpus.log_slowdown(job.gpu)
            log_s -= slowdown
            correction -= slowdown
        outcome = log_s - math.log(PRIOR_WORK_S[spec.job_type])
        self._window.add(categories, reals, outcome, correction)
        key = (spec.application, job.gpu_model)
        self._seen_on[key] = self._seen_on.get(key, 0) + 1
        self._pending += 1
        return True

    def _ran_elsewhere(self, job: FinishedJob) -> bool:
        """Whether another GPU of the model ran the user's jobs of the application; notes that this one did.

        Where none did, that the jobs became longer can't be told from that their GPU became slow.
        """
        key = (job.spec.user, job.spec.application, job.gpu_model)
        gpus = self._gpus_of.pop(key, set())
        self._gpus_of[key] = gpus  # at the end: those that ran nothing for longest go first
        if len(self._gpus_of) > NOTED_LIMIT:
            del self._gpus_of[next(iter(self._gpus_of))]
        if job.gpu_id:
            gpus.add(job.gpu)
        return bool(gpus - {job.gpu})

    def _compare(self, job: FinishedJob) -> None:
        """Tells the drift how a job went compared with what would have been predicted for it."""
        spec = job.spec
        self.drift.mix.observe((spec.job_type, spec.application, spec.user))
        if not job.gpu_id or not len(self._window) or not (0 < job.runtime_s < math.inf):
            return
        if self._refits_itself and self.overdue:
            self._refit_itself()
        low, median, high = self._expected(spec, job.gpu_model)
        residual = math.log(job.runtime_s / median)
        self.drift.gpus.observe(job.gpu, job.gpu_model, residual, max(math.log(high / low) / (2 * _Z), LEAST_SPREAD))

    def _expected(self, spec: JobSpec, gpu_model: str) -> tuple[float, float, float]:
        """Low end, median and high end of a job's runtime in seconds, as `_predict` has them."""
        if self._fit.exact and self._declared_s(spec) is not None:
            # Outcomes have no say, and asking them is most of the work.
            speeds, _ = self._model_speeds([spec], [gpu_model])
            found = self._correct([spec], self._rows.rows([spec]), [gpu_model], np.full((1, 1), np.nan), speeds)
            median, low, high = (float(each[0, 0]) for each in found)
            return low, median, high
        predicted = self._predict([spec], [gpu_model])
        return float(predicted.low_s[0, 0]), float(predicted.median_s[0, 0]), float(predicted.high_s[0, 0])

    def predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        """Predicts each job on each model; see `Predictor.predict`."""
        require_known(gpu_models, self._speeds, self._cluster_gpu_models())
        if self._refits_itself and self.due:
            self._refit_itself()
        return self._predict(jobs, gpu_models)

    def evidence(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str], k: int) -> list[list[list[Recollection]]]:
        """For each job and model the k finished jobs most like it; the model they ran on counts as a variable."""
        return [[self._memory.nearest(job, k, model) for model in gpu_models] for job in jobs]

    def recall(self, job: JobSpec, k: int) -> list[Recollection]:
        """The k finished jobs most like a job, whatever they ran on."""
        return self._memory.nearest(job, k)

    def _predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        shape = len(jobs), len(gpu_models)
        columns = self._rows.rows(jobs)
        models = [self._variables.gpu_model.number(model) for model in gpu_models]
        estimates = self._fit.outcomes.estimate(columns, (Category.GPU_MODEL, models))
        mean, variance, unexplained = (each.reshape(shape) for each in estimates)
        mean = mean + np.log([PRIOR_WORK_S[job.job_type] for job in jobs])[:, None]
        if self._fit.outcomes.model is None:
            variance = np.full(shape, PRIOR_LOG_SIGMA[Basis.PRIOR] ** 2)
        speeds, speed_variance = self._model_speeds(jobs, gpu_models)  # J x M
        seen = self._fit.outcomes.seen(columns)
        kinds = (self._fit.outcomes.novel, self._fit.outcomes.unseen, self._fit.outcomes.known)
        ends = np.array([kind.ends(_LOW, _HIGH, -_Z, _Z) for kind in kinds])[
            self._fit.outcomes.knows_application(columns).astype(np.intp) + seen
        ]
        spread = np.sqrt(variance + speed_variance)
        low, high = mean + ends[:, :1] * spread, mean + ends[:, 1:] * spread
        median_s, low_s, high_s = (np.exp(each) / speeds for each in (mean, low, high))
        declared = [number for number, job in enumerate(jobs) if self._declared_s(job) is not None]
        if declared:
            rows = np.array(declared, dtype=np.intp)
            chosen = [jobs[number] for number in declared]
            corrected = self._correct(
                chosen, columns.rows(rows), gpu_models, np.where(seen[rows, None], mean[rows], np.nan), speeds[rows]
            )
            median_s[rows], low_s[rows], high_s[rows] = corrected
        return Predictions(
            median_s,
            low_s,
            high_s,
            INTERVAL_COVERAGE,
            [self._basis(job) for job in jobs],
            self._novelty(jobs, unexplained.min(axis=1)),
        )

    def _correct(
        self, jobs: Sequence[JobSpec], columns: Columns, gpu_models: Sequence[str], outcome: Floats, speeds: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Median, low and high end, J x M, of jobs with a declared runtime.

        Args:
            jobs: J.
            columns: their rows.
            gpu_models: M.
            outcome: J x M; log reference seconds by outcomes, NaN where the job's configuration was not seen.
            speeds: J x M.
        """
        declared_s = np.array([self._declared_s(job) for job in jobs], dtype=np.float64)
        correction = np.zeros(len(jobs)) if self._fit.exact else self._fit.corrections.estimate(columns)[0]
        corrected_s = (declared_s * np.exp(correction))[
            :, None
        ]  # exp(0) is 1: an exact declaration stays to the last bit
        mixed = np.where(
            np.isnan(outcome) | (self._fit.share == 1.0),
            corrected_s,
            np.exp(self._fit.share * np.log(corrected_s) + (1 - self._fit.share) * outcome),
        )
        low, high = self._fit.declared_residuals.ends(
            _LOW, _HIGH, -_Z * PRIOR_LOG_SIGMA[Basis.DECLARED], _Z * PRIOR_LOG_SIGMA[Basis.DECLARED]
        )
        variance = np.array([[self._moved_variance(job, model) for model in gpu_models] for job in jobs])
        median_s = mixed / speeds
        return (
            median_s,
            median_s * np.exp(-np.sqrt(low**2 + _Z**2 * variance)),
            median_s * np.exp(np.sqrt(high**2 + _Z**2 * variance)),
        )

    def _model_speeds(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> tuple[Floats, Floats]:
        """Speeds, and the variance of their logarithm as long as no finished jobs speak about it: both J x M."""
        # Jobs of an application run at the same speeds: these are looked up once.
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
        """Of the log speeds by which a declared runtime is brought to a model; none where it was declared on it."""
        assert job.expected_runtime is not None
        declared_on = job.expected_runtime.gpu_model
        return 0.0 if model == declared_on else self._speed(job, model)[1] + self._speed(job, declared_on)[1]

    def _declared_s(self, job: JobSpec) -> float | None:
        """The declared runtime in seconds on the reference GPU."""
        declared = job.expected_runtime
        if declared is None or not 0 < declared.runtime_s < math.inf:
            return None
        return declared.runtime_s * self._speeds.of(job, declared.gpu_model).ratio

    def _basis(self, job: JobSpec) -> Basis:
        if self._declared_s(job) is not None:
            return Basis.DECLARED
        if job.application and self._memory.group(user_application_key(job)) is not None:
            return Basis.USER_APPLICATION
        if job.application and self._memory.group(application_key(job)) is not None:
            return Basis.APPLICATION
        return Basis.PRIOR if self._memory.group(job_type_key(job)) is None else Basis.JOB_TYPE

    def _novelty(self, jobs: Sequence[JobSpec], unexplained: Floats) -> Floats:
        ranks = self._fit.outcomes.unexplained
        if not len(self._memory):
            return np.ones(len(jobs))
        novelty = unexplained
        if len(ranks) >= RANK_FROM:
            # Less 1e-9: what is as unexplained as the most unexplained configuration ranks with it, not above.
            novelty = np.searchsorted(ranks, unexplained - 1e-9) / len(ranks)
        strange = [bool(job.application) and self._memory.group(application_key(job)) is None for job in jobs]
        return np.where(strange, np.maximum(novelty, NOVEL), novelty)
