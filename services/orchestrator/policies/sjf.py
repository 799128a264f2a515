"""Shortest job first. Arrays only."""

from __future__ import annotations

from adlro.sim.observation import Floats, Observation
from services.orchestrator.policies.base import Policy


class Sjf(Policy):
    """Of all jobs that fit somewhere now, the one whose shortest fitting duration is least, on that GPU."""

    name = "sjf"
    description = "the shortest (job, GPU) pair that fits now; score: minus the expected duration in s"

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) minus the expected duration."""
        return -observation.duration_s
