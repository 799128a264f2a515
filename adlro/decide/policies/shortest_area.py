"""Shortest area first. Arrays only."""

from __future__ import annotations

from adlro.decide.policies.base import Policy
from adlro.state.observation import Floats, Observation


class ShortestArea(Policy):
    """Of all jobs that fit somewhere now, the one that takes the least GPU time: its GPUs times its duration there.

    Where every job has one GPU it is `sjf`.

    Source: the order by area of Turek et al., "Scheduling parallelizable tasks to minimize average response time"
    (1994): Smith's rule (1956) where jobs take shares of one resource.
    """

    name = "shortest_area"
    description = (
        "the start that takes the least GPU time, GPUs times duration, of those that fit now; "
        "score: minus the expected GPU time in s"
    )
    advice = "For comparisons: sjf that counts all GPUs of a job; hold_gang has a lower mean JCT at every load."

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected GPU time."""
        table = observation.table
        area_s: Floats = table.duration_s * (table.gpus >= 0).sum(axis=1)
        return -area_s
