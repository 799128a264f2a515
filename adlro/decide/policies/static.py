"""Static affinity: each job type has its GPU model. Arrays only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adlro.decide.policies.base import Policy, first_waiting, lowest_gpu
from adlro.decide.present import kinds_that_hold
from adlro.records.jobs import JobType
from adlro.state.observation import Bools, Floats, Ints, Observation

AFFINITY: Mapping[JobType, str] = {
    JobType.MACHINE_LEARNING: "v100_sxm2",
    JobType.SIMULATION: "rtx_2080_ti",
    JobType.DATA_PROCESSING: "radeon_vii",
}
"""The best of the six maps of three types to three models on the scenario `paper`.

On a cluster without a type's model, the type uses a model by position: the cluster's first model for machine learning,
the second for simulation, the third for data processing, or the last one. A job of unspecified type has the model of
machine learning: the largest share of the programs that ask for a GPU without stating a type.
"""


class Static(Policy):
    """Each job type waits for the GPUs of its own model, in the order of submission.

    If its model's GPUs can never hold a job, it queues for the model of the map's first type (in `AFFINITY` machine
    learning: Volta), and if that cannot hold it either, for the model with the most GPU memory that can. Lost or
    drained GPUs count only for a job that no other GPU can hold. A job of several GPUs counts as one that a model can
    hold if enough of its GPUs can; its packed set goes before its spread one.

    Args:
        affinity: the model of each job type; the first entry's model is also the one for jobs that are too large for
            theirs, and for jobs of unspecified type.
    """

    name = "static"
    description = "each job type on its own GPU model, in order of submission; score: minus the GPU's number"
    advice = "Only where each job type must keep to its own GPU model: mean JCT 35 % above fcfs at load 0.9."

    def __init__(self, affinity: Mapping[JobType, str] = AFFINITY) -> None:
        self._affinity = dict(affinity)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the GPU's number for the first job that waits for the GPU's model."""
        table = observation.table
        home = np.where(observation.job_waiting, self._home_model(observation), -1)
        is_head = np.zeros(home.shape, dtype=np.bool_)
        for model in range(len(observation.gpu_models)):
            is_head |= first_waiting(home == model)
        model_of_row = observation.gpu_model[table.cluster, table.gpu]
        wanted = table.of_job(np.where(is_head, home, -1)) == model_of_row
        return np.where(wanted, -lowest_gpu(observation), -np.inf)

    def _home_model(self, observation: Observation) -> Ints:
        """(N, J) the number of the model a job waits for; -1 if no GPU can hold it."""
        models = observation.gpu_models
        # Whether a GPU can hold a job at all does not depend on the running jobs. Lost or drained GPUs may never
        # return: a job queues for them only if all GPUs that could hold it are lost or drained.
        able = np.isfinite(observation.kind_duration_s)  # (N, J, S)
        present = kinds_that_hold(observation)
        possible = np.where(present.any(axis=2, keepdims=True), present, able)
        of_type = self._model_of_type(models)
        wanted = of_type[observation.job_type]  # (N, J)
        home = np.full(wanted.shape, -1, dtype=np.int64)
        model = np.zeros((len(home), able.shape[2]), dtype=np.int64)  # (N, S)
        np.put_along_axis(model, observation.gpu_kind, observation.gpu_model, axis=1)
        held = self._holds(possible, model, wanted)
        home[held] = wanted[held]
        if not held.all():
            kind_gpu = _lowest_of_kinds(observation)
            rows = np.arange(len(kind_gpu))[:, None]
            memory = np.where(possible, observation.gpu_memory_mib[rows, kind_gpu][:, None, :], -1)
            most = memory == memory.max(axis=2, keepdims=True)
            # Ties by the lowest number.
            gpu = np.where(most & possible, kind_gpu[:, None, :], observation.gpu_model.shape[1] - 1).min(axis=2)
            largest = observation.gpu_model[rows, gpu]
            overflow = np.full(wanted.shape, of_type[next(iter(self._affinity))])
            elsewhere = np.where(self._holds(possible, model, overflow), overflow, largest)
            home = np.where(~held & possible.any(axis=2), elsewhere, home)
        return home

    def _model_of_type(self, models: tuple[str, ...]) -> Ints:
        """(types,) the number of each job type's model on this cluster, by the type's own number."""
        of_type = np.zeros(len(JobType), dtype=np.int64)
        for place, (job_type, model) in enumerate(self._affinity.items()):
            of_type[job_type] = models.index(model) if model in models else min(place, len(models) - 1)
        of_type[JobType.UNSPECIFIED] = of_type[next(iter(self._affinity))]
        return of_type

    @staticmethod
    def _holds(possible: Bools, kind_model: Ints, model: Ints) -> Bools:
        """(N, J) whether some GPU of `model` (N, J) can hold the job."""
        holds: Bools = (possible & (kind_model[:, None, :] == model[:, :, None])).any(axis=2)
        return holds


def _lowest_of_kinds(observation: Observation) -> Ints:
    """(N, S) the lowest GPU of each kind, preferably a present one; 0 if a cluster lacks the kind."""
    batch, gpus = observation.gpu_kind.shape
    lowest = np.zeros((batch, observation.kind_duration_s.shape[2]), dtype=np.int64)
    backwards = np.arange(gpus)[::-1]
    there = np.isfinite(observation.gpu_remaining_s)
    for which in (np.ones_like(there), there):
        n, place = np.nonzero(which[:, backwards])
        gpu = backwards[place]
        lowest[n, observation.gpu_kind[n, gpu]] = gpu  # of a kind's GPUs the lowest is written last
    return lowest
