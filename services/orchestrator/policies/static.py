"""Static affinity: each job type has its GPU model. Arrays only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adlro.jobs import JobType
from adlro.sim.observation import Floats, Observation
from services.orchestrator.policies.base import Policy, first_waiting

# The best of the six maps of three types to three models on the scenario `paper`.
AFFINITY: Mapping[JobType, str] = {
    JobType.SIMULATION: "rtx_2080_ti",
    JobType.MACHINE_LEARNING: "v100_sxm2",
    JobType.DATA_PROCESSING: "radeon_vii",
}

OVERFLOW = "v100_sxm2"


class Static(Policy):
    """Each job type waits for the GPUs of its own model, first come, first served there.

    A job that its model's GPUs can never hold, or whose type has no model here, queues for the overflow model
    (Volta), and where that cannot hold it either, for the model with the most GPU memory that can.
    """

    name = "static"
    description = "each job type on its own GPU model, in order of submission; score: minus the GPU's number"

    def __init__(self, affinity: Mapping[JobType, str] = AFFINITY, overflow: str = OVERFLOW) -> None:
        self._affinity = dict(affinity)
        self._overflow = overflow

    def scores(self, observation: Observation) -> Floats:
        """(N, J, G) minus the GPU's number for the first job that waits for the GPU's model."""
        gpus = observation.fits_now.shape[2]
        # Whether a GPU can hold a job at all does not depend on what runs now.
        possible = np.isfinite(observation.duration_s)  # (N, J, G)
        home = self._home_model(observation, possible)  # (N, J)
        scores = np.full(observation.fits_now.shape, -np.inf)
        numbers = -np.arange(gpus, dtype=np.float64)
        for model in range(len(observation.gpu_models)):
            head = first_waiting(observation.job_waiting & (home == model))  # (N, J)
            pairs = head[:, :, None] & (observation.gpu_model == model)[:, None, :]
            scores = np.where(pairs, numbers, scores)
        return scores

    def _home_model(self, observation: Observation, possible: np.ndarray) -> np.ndarray:
        """(N, J) the number of the model a job waits for; -1 where no GPU can hold it."""
        home = np.full(observation.job_waiting.shape, -1, dtype=np.int64)
        memory = np.where(possible, observation.gpu_memory_mib[:, None, :], -1)
        # Ties by the lowest number: argmax takes the first.
        largest = np.argmax(memory, axis=2) if memory.shape[2] else home
        home = np.where(possible.any(axis=2), np.take_along_axis(observation.gpu_model, largest, axis=1), home)
        holds = [
            (possible & (observation.gpu_model == number)[:, None, :]).any(axis=2)
            for number in range(len(observation.gpu_models))
        ]
        if self._overflow in observation.gpu_models:
            number = observation.gpu_models.index(self._overflow)
            home = np.where(holds[number], number, home)
        for number, model in enumerate(observation.gpu_models):
            wants = np.isin(observation.job_type, [int(t) for t, m in self._affinity.items() if m == model])
            home = np.where(wants & holds[number], number, home)
        return home
