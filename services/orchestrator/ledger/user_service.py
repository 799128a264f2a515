"""The GPU time that each user has received: of ended and of running attempts. Plain data and arrays.

This is the attained service of the policy `las` (least attained service). The time of an ended attempt is written with
the record of its end (adlro.store), so a new session continues from there; the ledger gives the running ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adlro.state.observation import Floats, Ints


class UserService:
    """GPU seconds of users, who are numbered in the order of their first jobs.

    Args:
        ended_s: by user, GPU seconds of ended attempts so far.
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
        """Adds an ended attempt of the user; returns the user's total of ended attempts, in seconds."""
        number = self.number_of(user)
        self._ended_s[number] += took_s
        return float(self._ended_s[number])

    def at(self, time_s: float, running_users: Ints, running_since_s: Floats) -> Floats:
        """(U,) GPU seconds of each user, by number, until now.

        Args:
            time_s: the present cluster time.
            running_users: (R,) numbers of the users of running jobs.
            running_since_s: (R,) starts of the running jobs, cluster time.
        """
        had_s = self._ended_s.copy()
        np.add.at(had_s, running_users, np.maximum(time_s - running_since_s, 0.0))
        return had_s
