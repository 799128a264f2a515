"""Weighted shortest processing time. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.state.observation import Floats, Observation

LEAST_WEIGHT = 1e-6
"""Jobs of priority 0 come last, in the order of their durations."""


class Wspt(Policy):
    """Of all pairs that fit now, the one with the greatest priority per second.

    A job of several GPUs has its priority over its duration, as any other.

    Source: Smith, "Various optimizers for single-stage production" (1956): on one machine this order has the least
    weighted sum of completion times.
    """

    name = "wspt"
    description = "the pair with the greatest priority per second that fits now; score: priority / expected duration"
    advice = (
        "Where users set priorities: the greatest priority per second goes first, mean JCT 41 % below fcfs at load 0.9."
    )

    def preferences(self, observation: Observation) -> Floats:
        """(C,) priority over expected duration, 1/s."""
        weight = np.maximum(observation.job_priority, LEAST_WEIGHT)
        rate: Floats = observation.table.of_job(weight) / observation.table.duration_s
        return rate
