"""Expected durations for the ledger: from decompose or, without an answer, declared runtimes and the speed table."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from adlro.errors import AdlroError, InternalError
from adlro.hardware.speeds import REFERENCE_GPU_MODEL, speed
from adlro.records.jobs import JobSpec, JobType
from adlro.records.predictions import PredictedInterval
from adlro.services.orchestrator.ports import RuntimePredictor
from adlro.state.observation import Floats
from adlro.workload.estimates import prior_work_s

CHUNK = 1000
# After a failed call, decompose is not called for a second, or for as long as that call took; the pause doubles with
# each further failure, up to ten times: a hanging decompose must not delay every event, and one that was slow once is
# soon called again.
LEAST_PAUSE_S = 1.0
PAUSE_RATIO = 10.0
NEVER = -1
# Spread of a job of which only the type is known, without an answer from decompose: runtimes within a type differ by a
# factor of about three either way in the paper's workload, and by somewhat more in public traces.
PRIOR_SPREAD = 1.0


class Expected(NamedTuple):
    """The expected durations of one job.

    Attributes:
        durations_s: (M,) expected seconds on each model, with the job's GPUs on few nodes; inf where the job does not
            accept the model.
        spread: uncertainty: standard deviation of ln(true / expected); 0: exact.
        generation: generation of these predictions (`ExpectedRuntimes.generation`); NEVER: not predicted yet.
        spread_speed: (M,) speed of a job of several GPUs on more nodes than it needs, as a share of that on few; None:
            that of the speed table.
        restart_s: seconds that each start of a preemptible job after a stop takes before its work goes on.
        interval: around durations_s, as decompose reported it; None: it did not.
    """

    durations_s: Floats
    spread: float
    generation: int
    spread_speed: Floats | None = None
    restart_s: float = 0.0
    interval: PredictedInterval | None = None


class Standing(NamedTuple):
    """The predictor's state.

    Attributes:
        generation: generation of its predictions (`ExpectedRuntimes.generation`).
        ask_from_s: before this time, of a monotonic clock, it is not called.
    """

    generation: int = 0
    ask_from_s: float = -np.inf


class ExpectedRuntimes:
    """Predictions with a fallback: `predict` always answers; `ask` and `gpu_speeds` return None without an answer.

    Args:
        predictor: the predictor, called first.
        on_fallback: called with the predictor's error.
        clock_s: seconds of a monotonic clock.

    Attributes:
        generation: grows with each answer that shows that the predictor has learned enough for other predictions;
            predictions of earlier generations are then requested again.
    """

    def __init__(
        self,
        predictor: RuntimePredictor,
        on_fallback: Callable[[AdlroError], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.generation = 0
        self._predictor = predictor
        self._on_fallback = on_fallback
        self._clock_s = clock_s
        self._revision: int | None = None
        self._ask_from_s = -np.inf
        self._failed = 0  # failed calls in a row, of those that delay events

    @property
    def is_left_alone(self) -> bool:
        """Whether a call failed a moment ago, so that the predictor is not called now."""
        return self._clock_s() < self._ask_from_s

    @property
    def standing(self) -> Standing:
        """The predictor's present state."""
        return Standing(self.generation, self._ask_from_s)

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected]:
        """The median runtime of each job on each model, and its spread."""
        expected: list[Expected] = []
        for start in range(0, len(specs), CHUNK):
            expected += await self._part(specs[start : start + CHUNK], gpu_models)
        return expected

    async def ask(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected] | None:
        """The same for at most CHUNK jobs that have expectations already.

        Returns:
            None if the predictor does not answer, or did not a moment ago.
        """
        if self.is_left_alone:
            return None
        began_s = self._clock_s()
        try:
            answer = await self._asked(specs, gpu_models)
            self._failed = 0
            return answer
        except AdlroError as error:
            now_s = self._clock_s()
            ratio = min(2.0**self._failed, PAUSE_RATIO)
            self._ask_from_s = now_s + max(LEAST_PAUSE_S, ratio * (now_s - began_s))
            self._failed = min(self._failed + 1, 10)
            self._on_fallback(error)
            return None

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float] | None:
        """By id, the speed relative to its model of each GPU found slower than its model; None: no answer."""
        try:
            found = await self._predictor.gpu_speeds(cluster)
        except AdlroError:
            return None  # predictions report the outage
        return {gpu_id: ratio for gpu_id, ratio in found.items() if 0 < ratio < 1}

    async def _part(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected]:
        answer = await self.ask(specs, gpu_models)
        return [declared(spec, gpu_models, self.generation) for spec in specs] if answer is None else answer

    async def _asked(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected]:
        try:
            answer = await self._predictor.predict(specs, gpu_models)
            median_s, revision, _, spread, spread_speed, restart_s, intervals = answer
            spread = np.zeros(len(specs)) if spread is None else spread
            if median_s.shape != (len(specs), len(gpu_models)) or not (np.isfinite(median_s) & (median_s > 0)).all():
                raise InternalError("decompose answered with invalid runtimes")
            if spread.shape != (len(specs),) or not (np.isfinite(spread) & (spread >= 0)).all():
                raise InternalError("decompose answered with invalid intervals")
            if spread_speed is not None and (
                spread_speed.shape != median_s.shape or ((spread_speed <= 0) | (spread_speed > 1)).any()
            ):
                raise InternalError("decompose answered with invalid speeds of spread jobs")
            if restart_s is not None and (
                restart_s.shape != (len(specs),) or (np.isinf(restart_s) | (restart_s < 0)).any()
            ):
                raise InternalError("decompose answered with invalid restart times")
            if intervals is not None and len(intervals) != len(specs):
                raise InternalError("decompose answered with intervals of other jobs")
        except AdlroError:
            self._revision = None  # its next answer is newer than the fallback
            raise
        # Not only greater: a restarted predictor counts from the beginning.
        if revision != self._revision:
            self._revision = revision
            self.generation += 1
        # A declared runtime without a correction counts as exact from the first job on: decompose's intervals begin
        # wide, and their narrowing depends on how soon decompose learns of ends.
        return [
            Expected(
                accepted_s(spec, row, gpu_models),
                0.0 if is_as_declared(spec, float(row[0]), gpu_models[0]) else float(unsure),
                self.generation,
                None if spread_speed is None else _as_reported(spread_speed[number]),
                _restart_s(spec, math.nan if restart_s is None else float(restart_s[number])),
                None if intervals is None else intervals[number],
            )
            for number, (spec, row, unsure) in enumerate(zip(specs, median_s, spread, strict=True))
        ]


def declared(spec: JobSpec, gpu_models: Sequence[str], generation: int = NEVER) -> Expected:
    """Expectations without a prediction."""
    runtime_s, on_model = _declared(spec)
    durations_s = runtime_s * _speed(spec, on_model) / _speeds(spec.application, spec.job_type, tuple(gpu_models))
    return Expected(
        accepted_s(spec, durations_s, gpu_models),
        PRIOR_SPREAD if spec.expected_runtime is None else 0.0,
        generation,
        restart_s=_restart_s(spec, math.nan),
    )


def accepted_s(spec: JobSpec, durations_s: Floats, gpu_models: Sequence[str]) -> Floats:
    """(M,) the durations, and inf on models that the job does not accept."""
    if not spec.gpu_models:
        return durations_s
    return np.where([spec.accepts(model) for model in gpu_models], durations_s, np.inf)


def _restart_s(spec: JobSpec, reported_s: float) -> float:
    """A job's restart time as reported; where it is not (nan), what the job states."""
    if spec.preemptible is None:
        return 0.0
    return spec.preemptible.restart_s if math.isnan(reported_s) else reported_s


def _as_reported(spread_speed: Floats) -> Floats | None:
    return None if np.isnan(spread_speed).any() else spread_speed


def is_as_declared(spec: JobSpec, expected_s: float, gpu_model: str) -> bool:
    """Whether a job's expected duration on a GPU model is exactly the declared one."""
    return spec.expected_runtime is not None and math.isclose(
        expected_s, declared_runtime_s(spec, gpu_model), rel_tol=1e-9
    )


def declared_runtime_s(spec: JobSpec, gpu_model: str) -> float:
    """The declared runtime, or the job type's prior, converted to a GPU model by the speed table."""
    runtime_s, on_model = _declared(spec)
    return runtime_s * _speed(spec, on_model) / _speed(spec, gpu_model)


def _declared(spec: JobSpec) -> tuple[float, str]:
    """The declared runtime, or the job type's prior, and its GPU model."""
    if spec.expected_runtime is not None:
        return spec.expected_runtime.runtime_s, spec.expected_runtime.gpu_model
    return prior_work_s(spec.job_type), REFERENCE_GPU_MODEL


def _speed(spec: JobSpec, gpu_model: str) -> float:
    return _speed_of(spec.application, spec.job_type, gpu_model)


@functools.lru_cache(maxsize=4096)
def _speed_of(application: str, job_type: JobType, gpu_model: str) -> float:
    try:
        return speed(application, job_type, gpu_model)
    except (KeyError, ValueError, AdlroError):
        return 1.0  # a model without a measured speed counts as the reference


@functools.lru_cache(maxsize=4096)
def _speeds(application: str, job_type: JobType, gpu_models: tuple[str, ...]) -> Floats:
    return np.array([_speed_of(application, job_type, model) for model in gpu_models])
