"""Static affinity: each job type has its GPU model. Arrays only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.records.jobs import JobType
from adlro.state.observation import Bools, Floats, Ints, Observation

AFFINITY: Mapping[JobType, str] = {
    JobType.MACHINE_LEARNING: "v100_sxm2",
    JobType.SIMULATION: "rtx_2080_ti",
    JobType.DATA_PROCESSING: "radeon_vii",
}
"""The best of the six maps of three types to three models on the scenario `paper`.

On a cluster that lacks a type's model, the type takes the model that stands in its place: the cluster's first model for
machine learning, the second for simulation, the third for data processing, or the last there is.
"""


class Static(Policy):
    """Each job type waits for the GPUs of its own model, first come, first served there.

    A job that its model's GPUs can never hold queues for the model of the map's first type (in `AFFINITY` machine
    learning: Volta), and where that cannot hold it either, for the model with the most GPU memory that can. GPUs that
    are lost or drained count only for a job that no other can hold.

    Args:
        affinity: the model of each job type; the first entry's is where memory overflows to.
    """

    name = "static"
    description = "each job type on its own GPU model, in order of submission; score: minus the GPU's number"

    def __init__(self, affinity: Mapping[JobType, str] = AFFINITY) -> None:
        self._affinity = dict(affinity)

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) minus the GPU's number for the first job that waits for the GPU's model."""
        fits = observation.fits_now
        scores = np.full(fits.shape, -np.inf)
        if not fits.size:
            return scores
        home = np.where(observation.job_waiting, self._home_model(observation), -1)
        row = np.arange(len(fits))
        for model in range(len(observation.gpu_models)):
            waits = home == model  # (N, J)
            head = np.argmax(waits, axis=1)
            allowed = waits[row, head][:, None] & (observation.gpu_model == model)  # (N, G)
            rows, gpus = np.nonzero(allowed)
            scores[rows, head[rows], gpus] = -gpus.astype(np.float64)
        return scores

    def _home_model(self, observation: Observation) -> Ints:
        """(N, J) the number of the model a job waits for; -1 where no GPU can hold it."""
        models = observation.gpu_models
        # Whether a GPU can hold a job at all does not depend on what runs now. Those that are away may never come back:
        # a job queues for them only if all that could hold it are.
        able = np.isfinite(observation.duration_s)  # (N, J, G)
        present = able & np.isfinite(observation.gpu_remaining_s)[:, None, :]
        possible = np.where(present.any(axis=2, keepdims=True), present, able)
        of_type = self._model_of_type(models)
        wanted = of_type[observation.job_type]  # (N, J)
        home = np.full(wanted.shape, -1, dtype=np.int64)
        held = self._holds(possible, observation.gpu_model, wanted)
        home[held] = wanted[held]
        if not held.all():
            memory = np.where(possible, observation.gpu_memory_mib[:, None, :], -1)
            # Ties by the lowest number: argmax takes the first.
            largest = np.take_along_axis(observation.gpu_model, np.argmax(memory, axis=2), axis=1)
            overflow = np.full(wanted.shape, of_type[next(iter(self._affinity))])
            elsewhere = np.where(self._holds(possible, observation.gpu_model, overflow), overflow, largest)
            home = np.where(~held & possible.any(axis=2), elsewhere, home)
        return home

    def _model_of_type(self, models: tuple[str, ...]) -> Ints:
        """(types,) the number of each job type's model on this cluster, by the type's own number."""
        of_type = np.zeros(max(int(job_type) for job_type in JobType) + 1, dtype=np.int64)
        for place, (job_type, model) in enumerate(self._affinity.items()):
            of_type[job_type] = models.index(model) if model in models else min(place, len(models) - 1)
        return of_type

    @staticmethod
    def _holds(possible: Bools, gpu_model: Ints, model: Ints) -> Bools:
        """(N, J) some GPU of `model` (N, J) can hold the job."""
        holds: Bools = (possible & (gpu_model[:, None, :] == model[:, :, None])).any(axis=2)
        return holds
