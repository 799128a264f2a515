"""EASY backfilling. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.sim.observation import Bools, Floats, Ints, Observation
from services.orchestrator.policies.base import Policy, expected_wait_s, first_waiting


class EasyBackfill(Policy):
    """First come, first served; while the head waits, others may start that do not delay its expected start.

    The head, where it does not fit now, has a reservation on the GPU where it could start first by the expected
    durations (the faster GPU on a tie). Behind it, in order of submission, a job may start on a GPU of another node;
    on the reserved GPU's node if it is expected to end before the head starts, or if it takes another GPU and leaves
    the head its cores and memory even now. Each job takes the GPU that is fastest for it.

    Source: Lifka, "The ANL/IBM SP scheduling system" (1995); Mu'alem and Feitelson, "Utilization, predictability,
    workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling" (2001), section 2.
    """

    name = "easy_backfill"
    description = (
        "the head of the queue on its fastest GPU, and behind a head that waits what does not delay it; "
        "score: minus the expected duration in s"
    )

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) minus the expected duration, for the head or else the first job that may be backfilled."""
        fits, waiting = observation.fits_now, observation.job_waiting
        batch = np.arange(len(fits))
        if not waiting.shape[1]:
            return np.full(fits.shape, -np.inf)
        head = np.argmax(waiting, axis=1)  # (N,)
        wait_s = expected_wait_s(observation)[batch, head]  # (N, G) of the head
        duration_s = observation.duration_s[batch, head]
        wait_s = np.where(np.isfinite(duration_s), wait_s, np.inf)
        start_s = wait_s.min(axis=1)  # (N,)
        reserved = np.argmin(np.where(wait_s == start_s[:, None], duration_s, np.inf), axis=1)  # (N,)

        node = observation.gpu_node
        elsewhere = node != node[batch, reserved][:, None]  # (N, G)
        in_time = observation.duration_s <= start_s[:, None, None]
        may = fits & (elsewhere[:, None, :] | in_time | self._spares(observation, head, reserved))
        may[batch, head] = fits[batch, head]
        job = first_waiting(may.any(axis=2))
        return np.where(job[:, :, None] & may, -observation.duration_s, -np.inf)

    @staticmethod
    def _spares(observation: Observation, head: Ints, reserved: Ints) -> Bools:
        """(N, J, G) not the reserved GPU, and the node has room for both the job and the head."""
        batch = np.arange(len(head))
        others = np.arange(observation.gpu_node.shape[1]) != reserved[:, None]  # (N, G)
        room: Bools = others[:, None, :]
        for free, asked in (
            (observation.node_cores_free, observation.job_cores),
            (observation.node_memory_free_mib, observation.job_memory_mib),
        ):
            on_gpu = np.take_along_axis(free, observation.gpu_node, axis=1) - asked[batch, head][:, None]
            room = room & (asked[:, :, None] <= on_gpu[:, None, :])
        return room
