"""A policy's hold, which ends at the next event or at its time limit. No I/O.

The simulator follows the same rule (adlro.state.observation.hold_until_s). A requested wake-up can't be withdrawn, so
one may arrive after its hold is over: it is no event and must not lead to a decision, or a list of jobs would give
another schedule here than in the simulator.
"""

from __future__ import annotations

import math

from adlro.state.observation import hold_until_s

# Rounding in the cluster's clock may make a wake-up this many seconds early.
ROUNDING_S = 1.0


class Holding:
    """Whether a hold is in force, and the requested wake-up.

    Attributes:
        last_event_s: time of the last queue entry, job end or GPU change.
        until_s: end of the hold, unless an event comes before; None: no hold is in force.
    """

    def __init__(self, last_event_s: float, until_s: float | None = None) -> None:
        self.last_event_s = last_event_s
        self.until_s = until_s
        self._wake_up_s = math.inf  # the next requested wake-up; inf: none

    def happened(self, time_s: float) -> None:
        """A job joined the queue or ended, or a GPU changed: the hold ends."""
        self.last_event_s = max(self.last_event_s, time_s)
        self.until_s = None

    def ask_again(self) -> None:
        """Ends the hold, for a reason other than an event of the cluster."""
        self.until_s = None

    def in_force(self, time_s: float) -> bool:
        """Whether a hold is in force, so that no job may start now."""
        return self.until_s is not None and time_s < self.until_s

    def begin(self, time_s: float) -> None:
        """Begins a hold: the policy starts no job, though it could."""
        self.until_s = hold_until_s(time_s, self.last_event_s)

    def woken(self, time_s: float) -> None:
        """Handles a wake-up; it may be the requested one, from a cluster whose clock rounds."""
        if self._wake_up_s <= time_s + ROUNDING_S:
            self._wake_up_s = math.inf

    def next_wake_up_s(self, time_s: float) -> float | None:
        """The wake-up to request now; None if none is needed, or an earlier one ends the hold anyway.

        The wake-up then counts as requested.
        """
        if self.until_s is None or self.until_s <= time_s or time_s < self._wake_up_s <= self.until_s:
            return None
        self._wake_up_s = self.until_s
        return self.until_s
