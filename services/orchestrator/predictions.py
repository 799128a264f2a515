"""Expected durations for the ledger: from decompose, or from declared runtimes and the speed table while it is away."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from adlro.errors import AdlroError, InternalError
from adlro.jobs import JobSpec
from adlro.sim.estimates import PRIOR_WORK_S
from adlro.sim.observation import Floats
from adlro.sim.speeds import REFERENCE_GPU_MODEL, speed
from services.orchestrator.ports import Predictor

CHUNK = 1000


class Predictions:
    """A predictor that always answers.

    Args:
        predictor: asked first.
        on_fallback: called with the error when it does not answer.
    """

    def __init__(self, predictor: Predictor, on_fallback: Callable[[AdlroError], None]) -> None:
        self._predictor = predictor
        self._on_fallback = on_fallback

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Floats:
        """(J, M) the median runtime of each job on each model, seconds."""
        if not specs:
            return np.zeros((0, len(gpu_models)))
        parts = [await self._part(specs[i : i + CHUNK], gpu_models) for i in range(0, len(specs), CHUNK)]
        return np.concatenate(parts)

    async def _part(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Floats:
        try:
            predicted = await self._predictor.predict(specs, gpu_models)
            if predicted.shape != (len(specs), len(gpu_models)) or not (np.isfinite(predicted) & (predicted > 0)).all():
                raise InternalError("decompose answered with runtimes that cannot be")
            return predicted
        except AdlroError as error:
            self._on_fallback(error)
            return np.array([[declared_runtime_s(spec, model) for model in gpu_models] for spec in specs])


def declared_runtime_s(spec: JobSpec, gpu_model: str) -> float:
    """The declared runtime, or the job type's prior, brought to a GPU model by the speed table."""
    if spec.expected_runtime is not None:
        runtime_s, on_model = spec.expected_runtime.runtime_s, spec.expected_runtime.gpu_model
    else:
        runtime_s, on_model = PRIOR_WORK_S[spec.job_type], REFERENCE_GPU_MODEL
    return runtime_s * _speed(spec, on_model) / _speed(spec, gpu_model)


def _speed(spec: JobSpec, gpu_model: str) -> float:
    try:
        return speed(spec.application, spec.job_type, gpu_model)
    except (KeyError, ValueError, AdlroError):
        return 1.0  # a model that nobody measured counts like the reference
