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
from services.decompose.groups import (
    application_key,
    job_type_key,
    user_application_key,
)
from services.decompose.kernel import Columns, Floats, Term
from services.decompose.learner import Learner, Settings
from services.decompose.memory import FinishedJob, OutcomeMemory, Recollection
from services.decompose.predict import (
    INTERVAL_COVERAGE,
    PRIOR_LOG_SIGMA,
    Basis,
    Predictions,
    require_known,
)
from services.decompose.regression import Residuals
from services.decompose.speeds import Speeds
from services.decompose.variables import Variables
from services.decompose.window import Window

REFIT_SHARE = 0.02
"""Newly finished jobs, as a share of the window, after which the regressions are made anew."""
LAZY_REFIT_SHARE = 0.2
"""The same while nobody asks: what finished jobs are compared with may be a little older."""
LEAST_SPREAD = 0.02
"""Assumed standard deviation of the log runtime where predictions are exact."""
NOVEL = 0.95
"""Novelty from which a job is flagged."""
RANK_FROM = 20
"""Configurations from which novelty is a rank among them; with fewer it is the unexplained share itself."""
EXACT = 1e-3
"""Declarations off by less than this, in root mean square of the logarithm, are taken as they stand."""
MIX_FROM = 16
"""Finished jobs with a declared runtime from which it is mixed with what outcomes say."""
LISTED_FROM = 4
"""Finished jobs of an application on a GPU model from which the speed table's own uncertainty no longer counts."""
NOTED_LIMIT = 16_384
"""Users' applications on GPU models of which it is noted on which GPUs they ran."""
_LOW, _HIGH = (1 - INTERVAL_COVERAGE) / 2, (1 + INTERVAL_COVERAGE) / 2
_Z = 1.2815515655446004


def correction_terms(settings: Settings, present: Collection[int]) -> list[Term]:
    """How alike two declarations' errors are: by everyone's, the user's and the application's."""
    del present  # what a job asks for says little about how well its user estimates
    s, application, user = settings.jobs, Category.APPLICATION, Category.USER
    return [
        Term(s),
        Term(0.3 * s, (Category.JOB_TYPE,)),
        Term(0.5 * s, (application,)),
        Term(s, (user,)),
        Term(0.5 * s, (application, user)),
    ]


class LearnedPredictor:
    """See the module.

    Args:
        memory: the finished jobs.
        variables: the vocabularies of the memory.
        speeds: brings runtimes from model to model.
        cluster_gpu_models: the models of all clusters; None while their descriptions are not read.
        drift: told how each finished job's runtime compares with its prediction; knows which GPUs are slower than their
            kind, so that their jobs are not taken for longer ones.
    """

    def __init__(
        self,
        memory: OutcomeMemory,
        variables: Variables,
        speeds: Speeds,
        cluster_gpu_models: Callable[[], Collection[str] | None],
        drift: Drift | None = None,
    ) -> None:
        self._fit_count = 0
        self._memory = memory
        self._variables = variables
        self._speeds = speeds
        self._cluster_gpu_models = cluster_gpu_models
        self.drift = drift or Drift()
        self._rows = memory.rows
        self._window = Window()
        self._outcomes = Learner(Settings())
        self._corrections = Learner(Settings(jobs=0.1), correction_terms)
        self.start_over(forget_memory=False)

    @property
    def revision(self) -> int:
        """Grows as finished jobs are learned from."""
        return self._memory.revision

    @property
    def prediction_revision(self) -> int:
        """Grows whenever the regressions are made anew, or would be if something were asked."""
        return self._fit_count + int(self._due)

    @property
    def _due(self) -> bool:
        return self._pending >= max(1.0, REFIT_SHARE * len(self._window))

    def start_over(self, *, forget_memory: bool = True) -> None:
        """Forgets all finished jobs."""
        if forget_memory:
            self._memory.clear()
        self._window.clear()
        self.drift.start_over()
        self._outcomes.start_over()
        self._corrections.start_over()
        self._pending = 0
        self._exact = True  # declarations, so far as they were seen to be
        self._share = 1.0  # of the corrected declaration, beside what outcomes say
        self._declared_residuals = Residuals(np.empty(0))
        self._fit_count += 1  # what was predicted before is another now
        self._seen_on: dict[tuple[str, str], int] = {}
        self._gpus_of: dict[tuple[str, str, str], set[str]] = {}  # by user, application, model: which ran such jobs

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
        if self._ran_elsewhere(job):
            log_s -= self.drift.gpus.log_slowdown(job.gpu_id)
        outcome = log_s - math.log(PRIOR_WORK_S[spec.job_type])
        correction = math.nan
        declared_s = self._declared_s(spec)
        if declared_s is not None:
            # Rounded, so that the last bits of end - start don't look like an error of the declaration.
            correction = round(log_s - math.log(declared_s), 6)
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
            gpus.add(job.gpu_id)
        return bool(gpus - {job.gpu_id})

    def _compare(self, job: FinishedJob) -> None:
        """Tells the drift how a job went compared with what would have been predicted for it."""
        spec = job.spec
        self.drift.mix.observe((spec.job_type, spec.application, spec.user))
        if not job.gpu_id or not len(self._window) or not (0 < job.runtime_s < math.inf):
            return
        if self._pending >= max(1.0, LAZY_REFIT_SHARE * len(self._window)):
            self._refit()
        predicted = self._predict([spec], [job.gpu_model])
        low, median, high = (float(each[0, 0]) for each in (predicted.low_s, predicted.median_s, predicted.high_s))
        residual = math.log(job.runtime_s / median)
        self.drift.gpus.observe(job.gpu_id, job.gpu_model, residual, max(math.log(high / low) / (2 * _Z), LEAST_SPREAD))

    def predict(self, jobs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predictions:
        """Predicts each job on each model; see `Predictor.predict`."""
        require_known(gpu_models, self._speeds, self._cluster_gpu_models())
        if self._due:
            self._refit()
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
        estimates = self._outcomes.estimate(columns, (Category.GPU_MODEL, models))
        mean, variance, unexplained = (each.reshape(shape) for each in estimates)
        mean = mean + np.log([PRIOR_WORK_S[job.job_type] for job in jobs])[:, None]
        if not len(self._window):
            variance = np.full(shape, PRIOR_LOG_SIGMA[Basis.PRIOR] ** 2)
        speeds, speed_variance = self._model_speeds(jobs, gpu_models)  # J x M
        seen = self._outcomes.seen(columns)
        ends = np.array([kind.ends(_LOW, _HIGH, -_Z, _Z) for kind in (self._outcomes.unseen, self._outcomes.known)])[
            seen.astype(np.intp)
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
        correction = np.zeros(len(jobs)) if self._exact else self._corrections.estimate(columns)[0]
        corrected_s = (declared_s * np.exp(correction))[
            :, None
        ]  # exp(0) is 1: an exact declaration stays to the last bit
        mixed = np.where(
            np.isnan(outcome) | (self._share == 1.0),
            corrected_s,
            np.exp(self._share * np.log(corrected_s) + (1 - self._share) * outcome),
        )
        low, high = self._declared_residuals.ends(
            _LOW, _HIGH, -_Z * PRIOR_LOG_SIGMA[Basis.DECLARED], _Z * PRIOR_LOG_SIGMA[Basis.DECLARED]
        )
        variance = np.array([[self._moved_variance(job, model) for model in gpu_models] for job in jobs])
        median_s = mixed / speeds
        return (
            median_s,
            median_s * np.exp(-np.sqrt(low**2 + _Z**2 * variance)),
            median_s * np.exp(np.sqrt(high**2 + _Z**2 * variance)),
        )

    def _refit(self) -> None:
        self._pending = 0
        self._fit_count += 1
        columns, outcomes, corrections = self._window.view()
        self._outcomes.fit(columns, outcomes, self._window.added_count)
        declared = np.flatnonzero(~np.isnan(corrections))
        if not len(declared):
            return
        observed = corrections[declared]
        self._exact = bool(np.sqrt(np.mean(observed**2)) < EXACT)
        if self._exact:
            self._share, self._declared_residuals = 1.0, Residuals(observed)
            return
        self._corrections.fit(columns.rows(declared), observed, self._window.declared_count)
        by_declared = self._corrections.left_out_residual
        by_outcomes = self._outcomes.left_out_residual[declared]
        both = ~(np.isnan(by_declared) | np.isnan(by_outcomes))
        self._share = 1.0
        if both.sum() >= MIX_FROM:
            shares = np.linspace(0, 1, 11)
            mixed = shares[:, None] * by_declared[both] + (1 - shares[:, None]) * by_outcomes[both]
            self._share = float(shares[np.abs(mixed).mean(axis=1).argmin()])
        known = ~np.isnan(by_declared)
        mixed_all = np.where(
            both, self._share * by_declared + (1 - self._share) * np.nan_to_num(by_outcomes), by_declared
        )
        self._declared_residuals = Residuals(mixed_all[known])

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
        ranks = self._outcomes.unexplained
        if not len(self._memory):
            return np.ones(len(jobs))
        novelty = unexplained
        if len(ranks) >= RANK_FROM:
            # Less 1e-9: what is as unexplained as the most unexplained configuration ranks with it, not above.
            novelty = np.searchsorted(ranks, unexplained - 1e-9) / len(ranks)
        strange = [bool(job.application) and self._memory.group(application_key(job)) is None for job in jobs]
        return np.where(strange, np.maximum(novelty, NOVEL), novelty)
