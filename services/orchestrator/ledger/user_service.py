"""The GPU time that each user has received: of ended and of running attempts. Plain data and arrays.

This is the attained service of the policy `las` (least attained service), and of fair share. The time of an ended
attempt is written with the record of its end (adlro.store), so a new session continues from there; the ledger gives the
running ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from adlro.numeric.half_life import counted_s, counted_seconds, kept_ratio, kept_ratios
from adlro.records.attained import AttainedService
from adlro.services.orchestrator.ledger.fair_shares import FairShares
from adlro.state.observation import Floats, Ints

NOTHING = AttainedService(0.0, 0.0)


class UserService:
    """GPU seconds of users, who are numbered in the order of their first jobs.

    Args:
        ended: by user, the GPU time of ended attempts so far.
        half_life_s: after this time GPU time counts half; inf: it is never forgotten.
        shares: the users' shares and groups.
    """

    def __init__(
        self, ended: Mapping[str, AttainedService], half_life_s: float = math.inf, shares: FairShares | None = None
    ) -> None:
        self._half_life_s = half_life_s
        self._before = ended
        self._number: dict[str, int] = {}
        self._names: list[str] = []
        self._ended_s, self._at_s = np.zeros((2, 16))
        # By user, the lowest number of a member of his account, which stands for it.
        self._account: Ints = np.zeros(16, dtype=np.int64)
        self._number_of_account: dict[str, int] = {}
        self.set_shares(shares or FairShares())

    @property
    def names(self) -> list[str]:
        """The users, by number."""
        return self._names

    def set_shares(self, shares: FairShares) -> None:
        """Sets the users' shares and groups."""
        self._shares = shares
        self._number_of_account = {}
        for number, user in enumerate(self._names):
            self._account[number] = self._number_of_account.setdefault(shares.account_of(user), number)
        for user in self._before:  # the members of a group count though they have no job now
            if shares.account_of(user) != user:
                self.number_of(user)

    def number_of(self, user: str) -> int:
        """The user's number."""
        number = self._number.get(user)
        if number is None:
            number = self._number[user] = len(self._number)
            self._names.append(user)
            if number == len(self._ended_s):
                self._ended_s, self._at_s = (
                    np.concatenate((column, np.zeros(number))) for column in (self._ended_s, self._at_s)
                )
                self._account = np.concatenate((self._account, np.zeros(number, dtype=np.int64)))
            self._ended_s[number], self._at_s[number] = self._before.get(user, NOTHING)
            self._account[number] = self._number_of_account.setdefault(self._shares.account_of(user), number)
        return number

    def add(self, user: str, took_s: float, gpu_count: int, time_s: float) -> AttainedService:
        """Adds an ended attempt of the user.

        Args:
            user: his name.
            took_s: its time, on each of its GPUs.
            gpu_count: its GPUs.
            time_s: cluster time of its end.

        Returns:
            The user's total of ended attempts.
        """
        number = self.number_of(user)
        at_s = time_s if math.isnan(self._at_s[number]) else float(self._at_s[number])
        now_s = max(at_s, time_s)
        before_s = float(self._ended_s[number]) * kept_ratio(self._half_life_s, now_s - at_s)
        its_s = counted_s(self._half_life_s, took_s) * gpu_count * kept_ratio(self._half_life_s, now_s - time_s)
        self._ended_s[number], self._at_s[number] = before_s + its_s, now_s
        return AttainedService(before_s + its_s, now_s)

    def at(self, time_s: float, running_users: Ints, running_since_s: Floats) -> Floats:
        """(U,) GPU seconds of each user, by number, until now.

        Args:
            time_s: the present cluster time.
            running_users: (R,) numbers of the users of running jobs, once for each GPU.
            running_since_s: (R,) starts of the running jobs, cluster time.
        """
        since_s = np.where(np.isnan(self._at_s), 0.0, time_s - self._at_s)
        had_s: Floats = self._ended_s * kept_ratios(self._half_life_s, since_s)
        ran_s = counted_seconds(self._half_life_s, np.maximum(time_s - running_since_s, 0.0))
        np.add.at(had_s, running_users, ran_s)
        return had_s

    def number_all(self) -> None:
        """Numbers the users who have had GPU time and no job since the session began."""
        for user in self._before:
            self.number_of(user)

    def of_accounts(self, had_s: Floats) -> dict[str, float]:
        """GPU seconds of each account that has had any; see `number_all`.

        Args:
            had_s: (U,) GPU seconds of each user, from `at`.
        """
        total_s = dict.fromkeys(self._number_of_account, 0.0)
        for user, gpu_s in zip(self._names, had_s.tolist(), strict=False):
            total_s[self._shares.account_of(user)] += gpu_s
        return {name: gpu_s for name, gpu_s in total_s.items() if gpu_s > 0.0}

    def per_share(self, had_s: Floats) -> Floats:
        """(U,) GPU seconds of each user's account for each of its shares.

        The account is the user's group, with the GPU time of all its members, or the user alone.

        Args:
            had_s: (U,) GPU seconds of each user, from `at`.
        """
        if not self._shares:
            return had_s
        count, found = len(self._names), had_s.copy()
        account, total_s, shares = self._account[:count], np.zeros_like(had_s), np.ones_like(had_s)
        np.add.at(total_s, account, had_s[:count])
        for name, number in self._number_of_account.items():
            shares[number] = self._shares.of(name)
        found[:count] = (total_s / shares)[account]
        return found
