"""When a message is tried again, and when it is given up. Pure: chance and time come from outside."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
MOST_TRIES = 600
"""Of one message; with the shortest pauses of the default (150 s) that is more than the day that it is tried for."""
MOST_REFUSED_TRIES = 5
"""Of a message that the receiver refuses by its answer (3xx, 4xx): another try hardly helps, and others wait behind."""
_GROWTH = 2.0
_LEAST_SHARE = 0.5
# A receiver that asks for more time gets it, up to this.
_LONGEST_ASKED_S = 3600.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that has failed.

    Attributes:
        problem: why, for people.
        refused: the receiver has answered that it does not take the message.
        retry_after_s: how long the receiver asks to wait; None: it does not.
    """

    problem: str
    refused: bool = False
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of tries.

    Attributes:
        longest_pause_s: between two tries.
        give_up_after_s: age of a message at which it gets no further try.
    """

    longest_pause_s: float
    give_up_after_s: float

    def pause_s(self, failures: int, chance: float, failure: Failure) -> float:
        """The pause before the next try.

        Args:
            failures: tries of this webhook that have failed since the last delivery, this one included.
            chance: in 0..1, drawn anew for each pause: receivers that were away together are not asked together.
            failure: of this try.
        """
        # The exponent is bounded: 2 ** 2000 is no float.
        longest_s = min(FIRST_PAUSE_S * _GROWTH ** min(failures - 1, 60), self.longest_pause_s)
        pause_s = longest_s * (_LEAST_SHARE + (1.0 - _LEAST_SHARE) * chance)
        return max(pause_s, min(failure.retry_after_s or 0.0, _LONGEST_ASKED_S))

    def gives_up(self, tries: int, age_s: float, failure: Failure) -> bool:
        """Whether a message gets no further try.

        Args:
            tries: of this message that have failed, this one included.
            age_s: since its event was noted.
            failure: of this try.
        """
        most_tries = MOST_REFUSED_TRIES if failure.refused else MOST_TRIES
        return tries >= most_tries or age_s >= self.give_up_after_s
