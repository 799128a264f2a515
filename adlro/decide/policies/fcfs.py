"""First come, first served. Arrays only."""

from __future__ import annotations

from adlro.decide.policies.base import Policy, first_waiting, lowest_gpu, only
from adlro.state.observation import Floats, Observation


class Fcfs(Policy):
    """Only the head of the queue may start, on the lowest-numbered GPU that fits now.

    A head of several GPUs starts on the packed set with the lowest-numbered GPU; on a spread set, whose score is lower
    by the number of GPUs, only if there is no packed one now.
    """

    name = "fcfs"
    description = "head of the queue only, on the lowest-numbered GPU that fits; score: minus the GPU's number"
    advice = "The yardstick: strict order of arrival, without runtimes; others are measured against it."

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the GPU's number for the head of the queue."""
        head = first_waiting(observation.job_waiting)
        return only(observation, head, -lowest_gpu(observation))
