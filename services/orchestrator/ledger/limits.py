"""Limits of what may run at once: of an array's jobs, and of a user's GPUs. Plain data and arrays.

A job over a limit stays in the queue, and no policy is shown it meanwhile: whatever it decides, no limit is exceeded.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from adlro.records.jobs import JobSpec, PendingReason
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.quotas import Quotas
from adlro.services.orchestrator.ledger.user_service import UserService
from adlro.state.observation import Bools, Floats, Ints

NO_ARRAY = -1
"""The number of no array."""


class Limits:
    """What is left of each limit, by the jobs that are placed.

    Args:
        users: numbers the users.
        quotas: the users' GPUs.
    """

    def __init__(self, users: UserService, quotas: Quotas) -> None:
        self._users = users
        self._quotas = quotas
        self._placed: dict[str, Entry] = {}
        self._number: dict[str, int] = {}  # of arrays that have a limit
        self._array_room: Floats = np.full(16, np.inf)
        self._user_room: Floats = np.full(16, np.inf)
        self._known_users = 0

    def number_of(self, spec: JobSpec) -> int:
        """The number of a job's array; NO_ARRAY: it is in none, or in one that has no limit."""
        array = spec.array
        if array is None or not array.max_running_count:
            return NO_ARRAY
        number = self._number.get(array.array_id)
        if number is None:
            number = self._number[array.array_id] = len(self._number)
            self._array_room = _grown(self._array_room, number)
            self._array_room[number] = array.max_running_count
        return number

    def set_quotas(self, quotas: Quotas) -> None:
        """Sets the users' GPUs; what runs beyond them runs on."""
        self._quotas = quotas
        self._known_users = 0
        self._look_at_users()
        for entry in self._placed.values():
            self._user_room[self._users.number_of(entry.job.spec.user)] -= entry.gpu_count

    def place(self, entry: Entry) -> None:
        """A job is placed."""
        self._placed[entry.job.job_id] = entry
        self._add(entry, 1)

    def release(self, entry: Entry) -> None:
        """A job is placed no more, if it was."""
        if self._placed.pop(entry.job.job_id, None) is not None:
            self._add(entry, -1)

    def concern(self, entry: Entry) -> bool:
        """Whether the start or the end of a job changes what others may do."""
        return self.number_of(entry.job.spec) != NO_ARRAY or self._quotas.of(entry.job.spec.user) is not None

    @property
    def any(self) -> bool:
        """Whether there is any limit; cheap."""
        return bool(self._number) or bool(self._quotas)

    def within(self, gpu_count: Ints, user: Ints, array: Ints) -> Bools:
        """(J,) which jobs may start.

        Args:
            gpu_count: (J,) their GPUs.
            user: (J,) numbers of their users.
            array: (J,) numbers of their arrays.
        """
        self._look_at_users()
        out: Bools = (gpu_count <= self._user_room[user]) & ((array < 0) | (self._array_room[array] >= 1))
        return out

    def over(self, entry: Entry) -> tuple[PendingReason, str] | None:
        """The limit that keeps a waiting job from its start, for people; None: none does."""
        spec = entry.job.spec
        user = self._users.number_of(spec.user)
        self._look_at_users()
        number = self.number_of(spec)
        if number != NO_ARRAY and self._array_room[number] < 1:
            assert spec.array is not None
            most = spec.array.max_running_count
            return PendingReason.ARRAY_LIMIT, f"no more than {most} jobs of {spec.array.array_id} may run at once"
        quota = self._quotas.of(spec.user)
        if quota is not None and spec.gpu_count > self._user_room[user]:
            # Without how many he has now: thousands of records would change with each start.
            gpus = "GPU" if quota == 1 else "GPUs"
            others = f"other jobs of {spec.user} leave too few for this one"
            text = f"{spec.user} may have {quota} {gpus} at once, and {others}"
            return PendingReason.QUOTA, text
        return None

    def held_gpu_counts(self) -> Counter[str]:
        """By user, the GPUs of his placed jobs."""
        held: Counter[str] = Counter()
        for entry in self._placed.values():
            held[entry.job.spec.user] += entry.gpu_count
        return held

    def _add(self, entry: Entry, count: int) -> None:
        user = self._users.number_of(entry.job.spec.user)
        self._look_at_users()  # he may be new
        self._user_room[user] -= count * entry.gpu_count
        if (number := self.number_of(entry.job.spec)) != NO_ARRAY:
            self._array_room[number] -= count

    def _look_at_users(self) -> None:
        """Gives users who are new since the last look their quotas."""
        names = self._users.names
        if self._known_users == len(names):
            return
        self._user_room = _grown(self._user_room, len(names))
        for number in range(self._known_users, len(names)):
            quota = self._quotas.of(names[number])
            self._user_room[number] = np.inf if quota is None else quota
        self._known_users = len(names)


def within_rows(limits: Limits, rows: Ints, gpu_count: Ints, user: Ints, array: Ints) -> Bools | None:
    """(J,) which of some rows of the queue's columns may start; None: all of them."""
    if not limits.any:
        return None
    found = limits.within(gpu_count[rows], user[rows], array[rows])
    return None if found.all() else found


def _grown(column: Floats, number: int) -> Floats:
    """The column with a place for this number."""
    if number < len(column):
        return column
    return np.concatenate((column, np.full(max(len(column), number + 1 - len(column)), np.inf)))
