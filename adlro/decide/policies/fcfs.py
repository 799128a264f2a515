"""First come, first served. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy, first_waiting, only
from adlro.state.observation import Floats, Observation


class Fcfs(Policy):
    """Only the head of the queue may start, on the lowest-numbered GPU that fits now."""

    name = "fcfs"
    description = "head of the queue only, on the lowest-numbered GPU that fits; score: minus the GPU's number"

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the GPU's number for the head of the queue."""
        head = first_waiting(observation.job_waiting)
        return only(observation, head, -observation.table.gpu.astype(np.float64))
