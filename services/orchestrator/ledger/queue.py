"""The queue of a ledger: its jobs in order, and their rows of the columns. Plain data and arrays."""

from __future__ import annotations

import bisect
from array import array

import numpy as np

from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.preempting import attained_s
from adlro.services.orchestrator.ledger.queue_columns import QueueColumns
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.state.observation import Bools, Ints


class Queue:
    """Waiting jobs, in the order of `Entry.order`.

    Args:
        models: GPU models of the cluster.

    Attributes:
        entries: the jobs in order.
        columns: their figures, by `Entry.row`.
    """

    def __init__(self, models: int) -> None:
        # The entries, their sort keys and their rows. Each round of decisions reads all of them, so arrays in order
        # save a lookup for each job.
        self.entries: list[Entry] = []
        self.columns = QueueColumns(models)
        self._places: list[tuple[float, int]] = []
        self._rows = array("q")

    @property
    def rows(self) -> Ints:
        """The rows of the jobs, in order."""
        return np.array(self._rows, dtype=np.int64)

    def place_of(self, entry: Entry) -> int:
        """The place of a waiting job."""
        return bisect.bisect_left(self._places, entry.order)

    def add(self, entry: Entry, user: int, pairs: PairTable, array: int = -1, allowed: Bools | None = None) -> None:
        """Inserts a job at its place.

        Args:
            entry: the job.
            user: the user's number.
            pairs: what jobs that share a GPU are expected to keep of their speeds.
            array: the number of its array, as in `Limits`.
            allowed: (M,) whether it may run on each node; None: on all.
        """
        spec, submit_s, family = entry.job.spec, entry.job.submit_s or 0.0, pairs.family(entry.job.spec)
        entry.row = self.columns.add(
            spec, submit_s, user, entry.expected_s, entry.spread, entry.spread_speed, family, array, allowed
        )
        if entry.job.attempts:
            had_s = attained_s(entry.job)
            self.columns.go_on(entry.row, entry.job.resumes, entry.job.remaining_ratio, entry.restart_s, had_s)
        place, at = entry.order, len(self._places)
        if self._places and place < self._places[-1]:  # rare, and never while a session loads
            at = bisect.bisect_left(self._places, place)
        self.entries.insert(at, entry)
        self._places.insert(at, place)
        self._rows.insert(at, entry.row)

    def remove(self, entry: Entry) -> None:
        """Removes a waiting job."""
        at = self.place_of(entry)
        assert self.entries[at] is entry
        del self.entries[at], self._places[at], self._rows[at]
        self.columns.remove(entry.row)
        entry.row = -1

    def expect(self, entry: Entry) -> None:
        """Writes the expectations of a waiting job to its row."""
        jobs = self.columns.jobs
        jobs.expected_s[0, entry.row] = entry.expected_s
        jobs.expected_spread[0, entry.row] = entry.spread
        jobs.expected_spread_speed[0, entry.row] = entry.spread_speed
        self.columns.restart_s[0, entry.row] = entry.restart_s

    def update(self, entry: Entry) -> None:
        """Writes what a request can change of a waiting job to its row."""
        self.columns.jobs.priority[0, entry.row] = entry.job.spec.priority

    def set_pairs(self, pairs: PairTable) -> None:
        """Writes the rows of the jobs in another table of pairs."""
        for entry in self.entries:
            self.columns.jobs.family[0, entry.row] = pairs.family(entry.job.spec)
