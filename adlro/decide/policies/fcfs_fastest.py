"""First come, first served, on the fastest GPU that is free. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy, first_waiting
from adlro.state.observation import Floats, Observation


class FcfsFastest(Policy):
    """Only the head of the queue may start, on the fitting GPU with the shortest expected duration."""

    name = "fcfs_fastest"
    description = "head of the queue only, on the GPU that is fastest for it; score: minus the expected duration in s"

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) minus the expected duration for the head of the queue."""
        head = first_waiting(observation.job_waiting)
        return np.where(head[:, :, None], -observation.duration_s, -np.inf)
