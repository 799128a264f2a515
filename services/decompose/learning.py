"""What finished jobs teach: runtimes, restart costs, kept shares. Plain records and arrays.

Most jobs ran at once and alone: the predictor learns their runtimes. Of a job that was stopped and went on, or that
shared its GPU, the last attempt's runtime is not the whole one, and three things are unknown: its work, its restarts,
its kept shares. Each is learned by what is expected of the others, if that is certain enough:

- *restart costs*: what its attempts took beyond its expected work, divided by its restarts;
- *kept shares*: what it would have taken alone, beside what it took (`pairs.shared_runs`);
- *runtime*: what its attempts took, without restarts, lost work and what neighbours took; only if that is about as
  certain as its prediction. While all declared runtimes were exact, only where the whole is so as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adlro.hardware.shared_speeds import chip_of
from adlro.records.jobs import JobSpec, Preemptible
from adlro.records.outcomes import NeighbourTime
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob
from adlro.services.decompose.outcomes.restart_costs import (
    DEFAULT_RESTART_S,
    AttemptRun,
    ObservedRestart,
    RestartCosts,
    RestartPrediction,
    observed_restart,
)
from adlro.services.decompose.pairs.pair_fits import PairFits
from adlro.services.decompose.pairs.pair_memory import KeptShares, PairKey
from adlro.services.decompose.pairs.shared_runs import SharingKind, TimeBeside, observed_run
from adlro.services.decompose.runtimes.predictor import Predictor

MOST_LOG_STD = 0.5
"""Standard deviation of the logarithm of a whole runtime above which it is not learned. Much more than what jobs of one
kind differ by themselves would be noise alone; with less, longer jobs, which are stopped most, would be missing."""
SMALL_LOG_STD = 0.05
"""The same below which it is learned however certain the prediction."""
MOST_RESTART_ERROR = 1.0
"""Error of an observed restart, as a share of the stated one, above which it is not learned. Jobs that were stopped are
mostly longer ones than expected, so these errors do not average out."""
LOST_ERROR = 0.6
"""Assumed error of the work that a job loses at a stop, as a share of what it states: from nothing to twice that."""
INTERRUPTED_LIMIT = 65_536
"""Number of ids of such jobs that are remembered, so that an outcome that is read twice counts once."""
_EXACT = 1e-6  # as for declared runtimes: what rounding leaves of differences of times
_Z = 1.2815515655446004


class _Attempt(NamedTuple):
    """An attempt's time, and the seconds of the last attempt's GPUs that one second of its own is worth.

    alone_s: what it would have taken without neighbours; alone_std_s: its standard deviation.
    """

    runtime_s: float
    speed: float
    alone_s: float
    alone_std_s: float


class _Whole(NamedTuple):
    """A job's work in seconds of the last attempt's GPUs, at once and alone, and its standard deviation."""

    runtime_s: float
    std_s: float


class _Expected(NamedTuple):
    """What was expected of a job: seconds on the last attempt's GPUs, and the standard deviation of their logarithm.

    moved_std: that of the logarithm of the attempts' speeds, weighted by their times.
    exact: it was declared, and all declarations so far were exact.
    """

    runtime_s: float
    log_std: float
    moved_std: float
    exact: bool = False


def stated_restart_s(spec: JobSpec) -> float | None:
    """The restart time that a job states; None: it states none."""
    stated_s = 0.0 if spec.preemptible is None else spec.preemptible.restart_s
    return stated_s if 0.0 < stated_s < math.inf else None


class Learning:
    """Learns from outcomes.

    Args:
        predictor: learns and expects runtimes.
        speeds: for the uncertainty of what spread jobs keep.
        restarts: the memory of restart costs.
        pairs: the memory of pairs that shared a GPU.
    """

    def __init__(self, predictor: Predictor, speeds: ModelSpeeds, restarts: RestartCosts, pairs: PairFits) -> None:
        self._predictor = predictor
        self._speeds = speeds
        self.restarts = restarts
        self.pairs = pairs
        self._interrupted: dict[str, None] = {}  # the newest at the end
        self._others = 0

    @property
    def revision(self) -> int:
        """Grows by one with each outcome that it learns from, or could."""
        return self._predictor.revision + self._others

    def start_over(self) -> None:
        """Forgets everything."""
        self._predictor.start_over()
        self.restarts.clear()
        self.pairs.start_over()
        self._interrupted.clear()

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new, and said something."""
        if not job.stopped_runs and not job.neighbours:
            return self._predictor.learn(job)
        if job.job_id in self._interrupted or not 0.0 < job.runtime_s < math.inf:
            return False
        self._interrupted[job.job_id] = None
        if len(self._interrupted) > INTERRUPTED_LIMIT:
            del self._interrupted[next(iter(self._interrupted))]
        revision = self._predictor.revision
        learned = self._learn_interrupted(job)
        if self._predictor.revision == revision:
            self._others += 1
        return learned

    def restart(self, spec: JobSpec) -> RestartPrediction | None:
        """The predicted restart of a job; None: it is not preemptible."""
        if spec.preemptible is None:
            return None
        return self.restarts.predict(spec.user, spec.application, stated_restart_s(spec))

    def _learn_interrupted(self, job: FinishedJob) -> bool:
        if not job.gpu_model or not all(each.gpu_model and 0 <= each.runtime_s < math.inf for each in job.stopped_runs):
            return False
        if not all(0 <= each.time_s < math.inf for each in _neighbours(job)):
            return False
        attempts, expected = self._attempts(job)
        cost = job.spec.preemptible or Preemptible()
        # Before this job's own restart is learned: it is not to be explained by itself.
        restart = self.restarts.predict(job.spec.user, job.spec.application, stated_restart_s(job.spec))
        restart_std_s = (restart.high_s - restart.low_s) / (2 * _Z)
        as_stated = self._whole(attempts, cost.lost_s, cost.restart_s, 0.0)
        if math.isclose(as_stated.runtime_s, expected.runtime_s, rel_tol=_EXACT):
            # Everything was as stated, to the last digits.
            exactly = _Expected(as_stated.runtime_s, 0.0, 0.0)
            self._learn_restart(job, attempts, exactly, lost_error=0.0)
            self._learn_pair(job, exactly)
            return self._predictor.learn(_at_once(job, as_stated.runtime_s))
        learned = self._learn_restart(job, attempts, expected) or self._learn_pair(job, expected)
        whole = self._whole(attempts, cost.lost_s, restart.median_s, restart_std_s)
        if whole.runtime_s > 0 and not expected.exact:
            log_std = math.hypot(whole.std_s / whole.runtime_s, expected.moved_std)
            if log_std <= min(MOST_LOG_STD, max(SMALL_LOG_STD, expected.log_std)):
                learned |= self._predictor.learn(_at_once(job, whole.runtime_s))
        return learned

    def _attempts(self, job: FinishedJob) -> tuple[list[_Attempt], _Expected]:
        """The attempts, the last one included, and what was expected of them."""
        on = [(each.gpu_model, each.spread and job.spec.gpu_count > 1) for each in job.stopped_runs]
        on.append((job.gpu_model, job.spread))
        models = list(dict.fromkeys(model for model, _ in on))
        found = self._predictor.expect(job.spec, models)
        full_s = [float((found.spread_s if spread else found.packed_s)[models.index(model)]) for model, spread in on]
        last = models.index(job.gpu_model)
        times_s = [each.runtime_s for each in job.stopped_runs] + [job.runtime_s]
        neighbours = [each.neighbours for each in job.stopped_runs] + [job.neighbours]
        attempts = [
            _Attempt(time_s, full_s[-1] / of_attempt_s, *self._alone(job.spec, model, time_s, beside))
            for (model, _), time_s, of_attempt_s, beside in zip(on, times_s, full_s, neighbours, strict=True)
        ]
        moved_std = [
            math.hypot(
                *(found.speed_log_std[[models.index(model), last]] if model != job.gpu_model else (0.0,)),
                self._speeds.spread(job.spec, model).log_sigma if spread != job.spread else 0.0,
            )
            for model, spread in on
        ]
        shares = np.array([each.runtime_s * each.speed for each in attempts])
        log_std = math.hypot(found.log_std[last], found.spread_log_std[last] if job.spread else 0.0)
        return attempts, _Expected(full_s[-1], log_std, float(np.average(moved_std, weights=shares)), found.exact)

    def _alone(
        self, spec: JobSpec, gpu_model: str, runtime_s: float, neighbours: Sequence[NeighbourTime]
    ) -> tuple[float, float]:
        """What an attempt would have taken without its neighbours, and the standard deviation of that."""
        if not neighbours:
            return runtime_s, 0.0
        times_s: dict[SharingKind, float] = {}
        for each in neighbours:
            kind = SharingKind.of_size(each.neighbour)
            times_s[kind] = times_s.get(kind, 0.0) + each.time_s
        kept = self._kept(spec, gpu_model, list(times_s))
        lost_s = math.fsum(time_s * (1.0 - mean) for time_s, mean in zip(times_s.values(), kept.mean, strict=True))
        std_s = math.hypot(*(time_s * std for time_s, std in zip(times_s.values(), kept.std, strict=True)))
        return runtime_s - lost_s, std_s

    def _kept(self, spec: JobSpec, gpu_model: str, kinds: Sequence[SharingKind]) -> KeptShares:
        """The predicted kept share of a job beside each kind."""
        own, chip = SharingKind.of(spec), chip_of(gpu_model)
        return self.pairs.predict([PairKey(chip, own, kind) for kind in kinds])

    def _learn_pair(self, job: FinishedJob, expected: _Expected) -> bool:
        if job.stopped_runs or not job.neighbours or not job.spec.application:
            return False
        # Jobs without an application have nothing in common.
        kinds = [SharingKind.of_size(each.neighbour) if each.neighbour.application else None for each in job.neighbours]
        if None in kinds:
            return False
        times = [TimeBeside(kind, each.time_s) for kind, each in zip(kinds, job.neighbours, strict=True)]
        times.append(TimeBeside(None, max(0.0, job.runtime_s - math.fsum(each.time_s for each in job.neighbours))))
        run = observed_run(
            chip_of(job.gpu_model),
            SharingKind.of(job.spec),
            times,
            expected.runtime_s,
            expected.log_std,
            lambda kind: float(self._kept(job.spec, job.gpu_model, [kind]).mean[0]),
        )
        if run is None:
            return False
        self.pairs.memory.learn(run)
        return True

    def _learn_restart(
        self, job: FinishedJob, attempts: Sequence[_Attempt], expected: _Expected, lost_error: float = LOST_ERROR
    ) -> bool:
        if _neighbours(job):
            return False
        cost = job.spec.preemptible or Preemptible()
        found = observed_restart(
            [AttemptRun(each.runtime_s, each.speed) for each in attempts],
            expected.runtime_s,
            math.hypot(expected.log_std, expected.moved_std),
            cost.lost_s,
        )
        if found is None:
            return False
        restart_s, std_s = found
        std_s = math.hypot(std_s, lost_error * cost.lost_s / math.sqrt(len(attempts) - 1))
        stated_s = stated_restart_s(job.spec)
        if std_s > MOST_RESTART_ERROR * (stated_s or DEFAULT_RESTART_S):
            return False
        self.restarts.learn(ObservedRestart(job.spec.user, job.spec.application, restart_s, std_s, stated_s))
        return True

    def _whole(self, attempts: Sequence[_Attempt], lost_s: float, restart_s: float, restart_std_s: float) -> _Whole:
        """What a job's attempts would have taken at once and alone."""
        total_s, restarts_std_s, variance = 0.0, 0.0, 0.0
        for number, each in enumerate(attempts):
            work_s = each.alone_s
            variance += (each.alone_std_s * each.speed) ** 2
            if number:
                work_s -= restart_s
                restarts_std_s += restart_std_s * each.speed
            if number < len(attempts) - 1:
                lost = min(lost_s, max(work_s, 0.0))
                work_s -= lost
                variance += (LOST_ERROR * lost * each.speed) ** 2
            total_s += max(work_s, 0.0) * each.speed
        # Every restart has the same error.
        return _Whole(total_s, math.sqrt(restarts_std_s**2 + variance))


def _neighbours(job: FinishedJob) -> list[NeighbourTime]:
    """The times beside others, of all attempts."""
    return [each for run in job.stopped_runs for each in run.neighbours] + list(job.neighbours)


def _at_once(job: FinishedJob, runtime_s: float) -> FinishedJob:
    """The job as if it had run at once and alone. On which GPU it would have been slow nobody can tell."""
    return replace(job, runtime_s=runtime_s, gpu_id="", gpu_ids=(), stopped_runs=(), neighbours=())
