"""Columns of the queued jobs, so that an observation is a few array look-ups. Plain data and arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.records.jobs import JobSpec
from adlro.services.orchestrator.ledger.sharing import asks_for_a_part
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.observation import Bools, Floats, Ints

FIRST_SIZE = 256


class QueueFigures(NamedTuple):
    """A copy of the figures of J queued jobs, in order; columns as in `JobArrays` and `QueueColumns`."""

    submit_s: Floats
    expected_s: Floats
    spread: Floats
    gpu_count: Ints
    max_nodes: Ints
    cores: Ints
    memory_mib: Ints
    gpu_memory_mib: Ints
    remaining_ratio: Floats
    restart_s: Floats
    exclusive: Bools
    node_allowed: Bools


class QueueColumns:
    """Job arrays whose rows are added and removed; removed rows are reused.

    Args:
        models: GPU models of the cluster.

    Attributes:
        jobs: one list (L = 1), its rows in no order.
        stopped: (1, J) whether it was stopped for another job.
        remaining_ratio: (1, J) share of its work that a job has left.
        restart_s: (1, J) seconds that its next start takes before its work goes on; 0: it was never stopped.
        attained_s: (1, J) GPU time that it has had.
        array: (J,) the number of its array, as in `Limits`.

    `jobs.node_allowed` has nodes while some job chooses its own.
    """

    def __init__(self, models: int) -> None:
        self._choosing: set[int] = set()  # rows of jobs that choose their nodes
        self.jobs: JobArrays = empty_job_arrays(1, FIRST_SIZE, models)
        self.stopped: Bools = np.zeros((1, FIRST_SIZE), dtype=np.bool_)
        self.remaining_ratio, self.restart_s, self.attained_s = np.zeros((3, 1, FIRST_SIZE))
        self.array: Ints = np.full(FIRST_SIZE, -1, dtype=np.int64)
        self._free = list(range(FIRST_SIZE - 1, -1, -1))

    def add(
        self,
        spec: JobSpec,
        submit_s: float,
        user: int,
        expected_s: Floats,
        spread: float = 0.0,
        spread_speed: Floats | float = 1.0,
        family: int = 0,
        array: int = -1,
        allowed: Bools | None = None,
    ) -> int:
        """Adds a job.

        Args:
            submit_s: time from which its completion time counts.
            user: the user's number.
            expected_s: (K,) expected duration on each GPU model.
            spread: uncertainty of expected_s: standard deviation of ln(true / expected).
            spread_speed: (K,) expected speed on a spread set of GPUs, relative to a packed one.
            family: its row in the table of kept shares.
            array: the number of its array.
            allowed: (M,) whether it may run on each node; None: on all.

        Returns:
            Its row.
        """
        if not self._free:
            self._grow()
        row, jobs = self._free.pop(), self.jobs
        jobs.submit_s[0, row] = submit_s
        jobs.expected_s[0, row] = expected_s
        jobs.expected_spread[0, row] = spread
        jobs.gpu_count[0, row] = spec.gpu_count
        jobs.max_nodes[0, row] = spec.max_node_count
        jobs.expected_spread_speed[0, row] = spread_speed
        jobs.cores[0, row] = spec.cpu_cores
        jobs.memory_mib[0, row] = spec.memory_mib
        jobs.gpu_memory_mib[0, row] = spec.gpu_memory_mib
        jobs.job_type[0, row] = int(spec.job_type)
        jobs.priority[0, row] = spec.priority
        jobs.user[0, row] = user
        jobs.shareable[0, row] = asks_for_a_part(spec)
        jobs.family[0, row] = family
        jobs.exclusive[0, row] = spec.exclusive
        if allowed is not None:
            if not self._choosing:
                every = np.ones((1, jobs.submit_s.shape[1], len(allowed)), dtype=np.bool_)
                self.jobs = jobs._replace(node_allowed=every)
            self._choosing.add(row)
        if self._choosing:
            self.jobs.node_allowed[0, row] = True if allowed is None else allowed
        self.array[row] = array
        self.go_on(row, False, 1.0, 0.0, 0.0)
        return row

    def go_on(self, row: int, stopped: bool, remaining_ratio: float, restart_s: float, attained_s: float) -> None:
        """Sets what a job has had and has left, after attempts of it."""
        self.stopped[0, row] = stopped
        self.remaining_ratio[0, row] = remaining_ratio
        self.restart_s[0, row] = restart_s
        self.attained_s[0, row] = attained_s

    def remove(self, row: int) -> None:
        """Frees a row."""
        self._free.append(row)
        if row in self._choosing:
            self._choosing.remove(row)
            if not self._choosing:  # observations need not look at them any more
                none = np.ones((1, self.jobs.submit_s.shape[1], 0), dtype=np.bool_)
                self.jobs = self.jobs._replace(node_allowed=none)

    def figures(self, rows: Ints) -> QueueFigures:
        """A copy of the figures of some rows."""
        jobs = self.jobs
        return QueueFigures(
            jobs.submit_s[0, rows],
            jobs.expected_s[0, rows],
            jobs.expected_spread[0, rows],
            jobs.gpu_count[0, rows],
            jobs.max_nodes[0, rows],
            jobs.cores[0, rows],
            jobs.memory_mib[0, rows],
            jobs.gpu_memory_mib[0, rows],
            self.remaining_ratio[0, rows],
            self.restart_s[0, rows],
            jobs.exclusive[0, rows],
            jobs.node_allowed[0, rows],
        )

    def _grow(self) -> None:
        old = self.jobs
        _, rows, models = old.expected_s.shape
        self.jobs = empty_job_arrays(1, 2 * rows, models)
        if self._choosing:
            every = np.ones((1, 2 * rows, old.node_allowed.shape[2]), dtype=np.bool_)
            self.jobs = self.jobs._replace(node_allowed=every)
        for column, before in zip(self.jobs[1:], old[1:], strict=True):
            column[:, :rows] = before
        for name in ("stopped", "remaining_ratio", "restart_s", "attained_s"):
            setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, rows))))
        self.array = np.pad(self.array, (0, rows), constant_values=-1)
        self._free = list(range(2 * rows - 1, rows - 1, -1))
