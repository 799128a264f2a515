"""Expected durations for the ledger: from decompose, or from declared runtimes and the speed table while it is away."""

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
from adlro.services.orchestrator.ports import RuntimePredictor
from adlro.state.observation import Floats
from adlro.workload.estimates import PRIOR_WORK_S

CHUNK = 1000
# Who does not answer is left alone for a second, or as long as it kept us waiting, and twice as long each time that it
# still does not, up to ten times: one that hangs must not hold up every event, one that was slow once is soon back.
LEAST_PAUSE_S = 1.0
PAUSE_RATIO = 10.0
NEVER = -1
# Of a job of which nothing but its type is known, where decompose is away: runtimes within a type differ by a factor of
# about three either way, in the paper's workload and in public traces rather more.
PRIOR_SPREAD = 1.0


class Expected(NamedTuple):
    """What is expected of one job.

    Attributes:
        durations_s: (M,) on each model, seconds.
        spread: how unsure that is: standard deviation of ln(true / expected); 0: exact.
        generation: of the predictions (`ExpectedRuntimes.generation`) that it is from; NEVER: nobody was asked yet.
    """

    durations_s: Floats
    spread: float
    generation: int


class Standing(NamedTuple):
    """How the predictor stands.

    Attributes:
        generation: of its predictions (`ExpectedRuntimes.generation`).
        ask_from_s: before this time, of a clock that passes steadily, nobody asks it.
    """

    generation: int = 0
    ask_from_s: float = -np.inf


class ExpectedRuntimes:
    """A predictor that always answers where there is nothing to fall back on, and else says that it can't.

    Args:
        predictor: asked first.
        on_fallback: called with the error when it does not answer.
        clock_s: seconds that pass steadily.

    Attributes:
        generation: grows whenever an answer is seen to come from a memory that has learned enough to predict anew:
            what was predicted in an earlier one is worth asking for again.
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
        self._failed = 0  # questions in a row, of those that hold up events

    @property
    def is_left_alone(self) -> bool:
        """The predictor did not answer a moment ago, and nobody asks it now."""
        return self._clock_s() < self._ask_from_s

    @property
    def standing(self) -> Standing:
        """How the predictor stands now."""
        return Standing(self.generation, self._ask_from_s)

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected]:
        """The median runtime of each job on each model, and how unsure it is."""
        expected: list[Expected] = []
        for start in range(0, len(specs), CHUNK):
            expected += await self._part(specs[start : start + CHUNK], gpu_models)
        return expected

    async def ask(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected] | None:
        """The same of at most CHUNK jobs of which something is known already.

        Returns:
            None where the predictor does not answer, or did not a moment ago.
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
        """By id, the speed relative to its model of each GPU that was found slower than its kind; None: no answer."""
        try:
            found = await self._predictor.gpu_speeds(cluster)
        except AdlroError:
            return None  # predictions tell of the outage
        return {gpu_id: ratio for gpu_id, ratio in found.items() if 0 < ratio < 1}

    async def _part(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected]:
        answer = await self.ask(specs, gpu_models)
        return [declared(spec, gpu_models, self.generation) for spec in specs] if answer is None else answer

    async def _asked(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> list[Expected]:
        try:
            median_s, revision, _, spread = await self._predictor.predict(specs, gpu_models)
            spread = np.zeros(len(specs)) if spread is None else spread
            if median_s.shape != (len(specs), len(gpu_models)) or not (np.isfinite(median_s) & (median_s > 0)).all():
                raise InternalError("decompose answered with invalid runtimes")
            if spread.shape != (len(specs),) or not (np.isfinite(spread) & (spread >= 0)).all():
                raise InternalError("decompose answered with invalid intervals")
        except AdlroError:
            self._revision = None  # whatever it answers next is newer than what serves meanwhile
            raise
        # Not only greater: one that was started anew counts from the beginning.
        if revision != self._revision:
            self._revision = revision
            self.generation += 1
        # What was declared and not corrected is taken at its word, from the first job on: decompose's intervals begin
        # wide, and how soon they narrow depends on how soon it hears of ends.
        return [
            Expected(row, 0.0 if is_as_declared(spec, float(row[0]), gpu_models[0]) else float(unsure), self.generation)
            for spec, row, unsure in zip(specs, median_s, spread, strict=True)
        ]


def declared(spec: JobSpec, gpu_models: Sequence[str], generation: int = NEVER) -> Expected:
    """What is expected without asking anybody."""
    runtime_s, on_model = _declared(spec)
    return Expected(
        runtime_s * _speed(spec, on_model) / _speeds(spec.application, spec.job_type, tuple(gpu_models)),
        PRIOR_SPREAD if spec.expected_runtime is None else 0.0,
        generation,
    )


def is_as_declared(spec: JobSpec, expected_s: float, gpu_model: str) -> bool:
    """Whether a job is expected to take on a GPU model exactly what was declared."""
    return spec.expected_runtime is not None and math.isclose(
        expected_s, declared_runtime_s(spec, gpu_model), rel_tol=1e-9
    )


def declared_runtime_s(spec: JobSpec, gpu_model: str) -> float:
    """The declared runtime, or the job type's prior, brought to a GPU model by the speed table."""
    runtime_s, on_model = _declared(spec)
    return runtime_s * _speed(spec, on_model) / _speed(spec, gpu_model)


def _declared(spec: JobSpec) -> tuple[float, str]:
    """The declared runtime, or the job type's prior, and the GPU model that it is of."""
    if spec.expected_runtime is not None:
        return spec.expected_runtime.runtime_s, spec.expected_runtime.gpu_model
    return PRIOR_WORK_S[spec.job_type], REFERENCE_GPU_MODEL


def _speed(spec: JobSpec, gpu_model: str) -> float:
    return _speed_of(spec.application, spec.job_type, gpu_model)


@functools.lru_cache(maxsize=4096)
def _speed_of(application: str, job_type: JobType, gpu_model: str) -> float:
    try:
        return speed(application, job_type, gpu_model)
    except (KeyError, ValueError, AdlroError):
        return 1.0  # a model that nobody measured counts like the reference


@functools.lru_cache(maxsize=4096)
def _speeds(application: str, job_type: JobType, gpu_models: tuple[str, ...]) -> Floats:
    return np.array([_speed_of(application, job_type, model) for model in gpu_models])
