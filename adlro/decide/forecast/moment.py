"""A cluster and its queue at one moment, as a forecast of starts reads them. numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adlro.state.observation import Bools, Floats, Ints

LARGE_GPUS = 64
"""From so many GPUs on a cluster is large: its futures average out, and jobs are overtaken by hundreds of others."""


class Jobs(NamedTuple):
    """J jobs, waiting or of the past. GPUs of one kind take the same time for every job.

    Attributes:
        duration_s: (J, S) expected duration on each kind of GPU; inf where it, or its node, can never hold the job.
        spread: (J,) standard deviation of ln(true / expected); 0: exact.
        gpu_count: (J,) GPUs, all of one kind.
        max_nodes: (J,) most nodes that the job accepts; 0: any number.
        cores: (J,) CPU cores with each GPU.
        memory_mib: (J,) main memory with each GPU.
        submit_s: (J,) cluster time from which its wait counts; after now: it joins the queue then.
    """

    duration_s: Floats
    spread: Floats
    gpu_count: Ints
    max_nodes: Ints
    cores: Ints
    memory_mib: Ints
    submit_s: Floats

    def rows(self, which: Ints | Bools | slice) -> Jobs:
        """Some of the jobs."""
        columns: dict[str, Any] = {name: column[which] for name, column in self._asdict().items()}
        return Jobs(**columns)


class Moment(NamedTuple):
    """G GPUs of S kinds on M nodes, what runs on them, and the queue. A node's GPUs have consecutive numbers.

    Attributes:
        time_s: the present cluster time.
        gpu_kind: (G,) number of the GPU's kind.
        gpu_node: (G,) number of its node.
        gpu_there: (G,) whether it takes jobs: not lost, not drained.
        gpu_busy: (G,) whether a job runs on it.
        gpu_start_s: (G,) since when; of two jobs the later start.
        gpu_expected_s: (G,) expected duration of this run; of two jobs that of the one that ends last.
        gpu_spread: (G,) spread of it, as of a job.
        gpu_run: (G,) a number that the GPUs of one run share; -1 where none runs.
        gpu_cores: (G,) CPU cores of its node that the run holds here.
        gpu_memory_mib: (G,) main memory of its node that the run holds here.
        node_cores_free: (M,).
        node_memory_free_mib: (M,).
        queue: the J jobs that wait, and those that will with their begin time, in the order of submission.
    """

    time_s: float
    gpu_kind: Ints
    gpu_node: Ints
    gpu_there: Bools
    gpu_busy: Bools
    gpu_start_s: Floats
    gpu_expected_s: Floats
    gpu_spread: Floats
    gpu_run: Ints
    gpu_cores: Ints
    gpu_memory_mib: Ints
    node_cores_free: Ints
    node_memory_free_mib: Ints
    queue: Jobs


class Past(NamedTuple):
    """What the scheduler has seen: future arrivals and errors of expected durations are drawn from it.

    Attributes:
        jobs: the H latest jobs that arrived; `submit_s` is not read.
        span_s: over which they arrived.
        errors: (E,) of the latest finished runs with a spread, ln(true / expected) in units of their spread.
    """

    jobs: Jobs
    span_s: float
    errors: Floats


def no_jobs(kinds: int) -> Jobs:
    """No job at all."""
    whole = np.zeros(0, dtype=np.int64)
    return Jobs(np.zeros((0, kinds)), np.zeros(0), whole, whole, whole, whole, np.zeros(0))
