"""How much GPU time each user has had: what ended attempts took, and what runs. Plain data and arrays.

Attained service, as the policy `las` (least attained service) needs it. What ended is written down with the record of
the attempt's end (adlro.store), so that a new session goes on from there; what runs is told by the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adlro.state.observation import Floats, Ints


class UserService:
    """GPU seconds of users, who are numbered as they are first met.

    Args:
        ended_s: by user, what ended attempts took so far.
    """

    def __init__(self, ended_s: Mapping[str, float]) -> None:
        self._before_s = ended_s
        self._number: dict[str, int] = {}
        self._ended_s: Floats = np.zeros(16)

    def number_of(self, user: str) -> int:
        """The user's number."""
        number = self._number.get(user)
        if number is None:
            number = self._number[user] = len(self._number)
            if number == len(self._ended_s):
                self._ended_s = np.concatenate((self._ended_s, np.zeros(number)))
            self._ended_s[number] = self._before_s.get(user, 0.0)
        return number

    def add(self, user: str, took_s: float) -> float:
        """An attempt of the user ended; returns what he has had with it, of ended attempts."""
        number = self.number_of(user)
        self._ended_s[number] += took_s
        return float(self._ended_s[number])

    def at(self, time_s: float, running_users: Ints, running_since_s: Floats) -> Floats:
        """(U,) what each user, by number, has had by now.

        Args:
            time_s: now, cluster time.
            running_users: (R,) numbers of the users of what runs.
            running_since_s: (R,) when each of that began.
        """
        had_s = self._ended_s.copy()
        np.add.at(had_s, running_users, np.maximum(time_s - running_since_s, 0.0))
        return had_s
