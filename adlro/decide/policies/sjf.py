"""Shortest job first. Arrays only."""

from __future__ import annotations

from adlro.decide.policies.base import Policy
from adlro.state.observation import Floats, Observation


class Sjf(Policy):
    """Of all jobs that fit somewhere now, the one whose shortest fitting duration is least, on that GPU or set of GPUs.

    The number of GPUs doesn't count: `shortest_area` is the policy that counts it.
    """

    name = "sjf"
    description = "the shortest (job, GPU) pair that fits now; score: minus the expected duration in s"
    advice = "For short jobs alone: mean JCT 41 % below fcfs at load 0.9, but the longest wait is 2.9 times as long."

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration."""
        return -observation.table.duration_s
