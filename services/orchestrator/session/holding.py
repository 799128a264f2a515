"""A policy's answer "nothing now", and when it is asked again: at the next event, or when the hold ends. No I/O.

The simulator follows the same rule (adlro.state.observation.hold_until_s). A cluster cannot forget a wake-up that it
was asked for, so one may come for a hold that is over: it is no event, and must not lead to a decision, or a list of
jobs would not go here as it goes there.
"""

from __future__ import annotations

import math

from adlro.state.observation import hold_until_s

# A cluster may wake us as much too early.
ROUNDING_S = 1.0


class Holding:
    """Whether a hold is in force, and which wake-up is asked for.

    Attributes:
        last_event_s: when a job last joined the queue or ended, or a GPU last changed.
        until_s: end of the hold, if nothing happens before; None: the policy is to be asked.
    """

    def __init__(self, last_event_s: float, until_s: float | None = None) -> None:
        self.last_event_s = last_event_s
        self.until_s = until_s
        self._wake_up_s = math.inf  # the one to come; inf: none

    def happened(self, time_s: float) -> None:
        """A job joined the queue or ended, or a GPU changed: the policy is to be asked."""
        self.last_event_s = max(self.last_event_s, time_s)
        self.until_s = None

    def ask_again(self) -> None:
        """The policy is to be asked, for another reason than an event of the cluster."""
        self.until_s = None

    def in_force(self, time_s: float) -> bool:
        """Nothing is to be started now."""
        return self.until_s is not None and time_s < self.until_s

    def begin(self, time_s: float) -> None:
        """The policy holds, though something could start."""
        self.until_s = hold_until_s(time_s, self.last_event_s)

    def woken(self, time_s: float) -> None:
        """A wake-up came; it may be the one that was asked for, from a cluster whose clock rounds."""
        if self._wake_up_s <= time_s + ROUNDING_S:
            self._wake_up_s = math.inf

    def next_wake_up_s(self, time_s: float) -> float | None:
        """The wake-up to ask for now; None where none is needed, or one comes before the hold ends anyway.

        It counts as asked for.
        """
        if self.until_s is None or self.until_s <= time_s or time_s < self._wake_up_s <= self.until_s:
            return None
        self._wake_up_s = self.until_s
        return self.until_s
