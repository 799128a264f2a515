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


class Static(Policy):
    """Each job type waits for the GPUs of its own model, first come, first served there.

    A job whose type has no model in this cluster, or that its model's GPUs can never hold, goes to the model with the
    most GPU memory of those that can hold it, and queues there.
    """

    name = "static"
    description = "each job type on its own GPU model, in order of submission; score: minus the GPU's number"

    def __init__(self, affinity: Mapping[JobType, str] = AFFINITY) -> None:
        self._affinity = dict(affinity)

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
        overflow = np.take_along_axis(observation.gpu_model, largest, axis=1)
        home = np.where(possible.any(axis=2), overflow, home)
        for number, model in enumerate(observation.gpu_models):
            wants = np.isin(observation.job_type, [int(t) for t, m in self._affinity.items() if m == model])
            holds = (possible & (observation.gpu_model == number)[:, None, :]).any(axis=2)
            home = np.where(wants & holds, number, home)
        return home
