"""What forecasts draw the future from: the newest jobs that arrived, and the errors of expected durations. No I/O."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from adlro.decide.forecast.moment import Past, no_jobs
from adlro.records.jobs import JobState
from adlro.services.orchestrator.forecasts.moments import figures_of, jobs_of, kinds_of
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.state.observation import Bools
from adlro.store import sequence_of

KEPT_JOBS, KEPT_ERRORS = 512, 256

MOST_LOAD = 1.5
"""More than this share of the cluster's GPU time does not arrive for long: a burst is no rate."""


class SeenJobs:
    """The newest jobs of one cluster."""

    def __init__(self) -> None:
        self._jobs: deque[Entry] = deque(maxlen=KEPT_JOBS)
        self._running: dict[str, Entry] = {}
        self._errors: deque[float] = deque(maxlen=KEPT_ERRORS)
        self._newest = 0

    def look(self, ledger: Ledger) -> None:
        """Takes in the jobs that have arrived since the last look, and the ends of those that ran."""
        new = itertools.takewhile(
            lambda entry: sequence_of(entry.job.job_id) > self._newest, reversed(ledger.entries.values())
        )
        for entry in reversed(list(itertools.islice(new, KEPT_JOBS))):
            self._jobs.append(entry)
            self._running[entry.job.job_id] = entry
            self._newest = max(self._newest, sequence_of(entry.job.job_id))
        if len(self._running) > 2 * KEPT_JOBS:
            for job_id in list(itertools.islice(self._running, len(self._running) - KEPT_JOBS)):
                del self._running[job_id]
        ended = [entry for entry in self._running.values() if entry.phase is Phase.GONE]
        for entry in ended:
            del self._running[entry.job.job_id]
            error = _error_of(entry, ledger.layout.gpu_models)
            if error is not None:
                self._errors.append(error)

    def entries(self) -> tuple[list[Entry], tuple[float, ...]]:
        """A copy for a thread: the jobs in the order of their arrival, and the errors."""
        return list(self._jobs), tuple(self._errors)


def past_of(
    jobs: list[Entry], errors: Iterable[float], occupancy: Occupancy, time_s: float, allowed: Bools | None = None
) -> Past:
    """The past of a moment; for a thread of its own.

    Args:
        jobs: that have arrived.
        errors: of finished jobs.
        occupancy: the cluster at the moment.
        time_s: the moment's cluster time.
        allowed: (J, M) whether the jobs that wait then may run on each node; None: all may. What past jobs chose does
            not count.
    """
    none = np.ones((0, 0), dtype=np.bool_)
    allowed = none if allowed is None else allowed
    known = [entry for entry in jobs if entry.job.submit_s is not None and entry.job.submit_s <= time_s]
    if not known:
        kinds = len(kinds_of(occupancy, allowed)[1])
        return Past(no_jobs(kinds), 0.0, np.array(tuple(errors)))
    figures = figures_of(known, occupancy.layout)
    # A job that arrives again has all its work before it.
    ones = np.ones(len(known))
    figures = figures._replace(remaining_ratio=ones, restart_s=np.zeros(len(known)))
    figures = figures._replace(node_allowed=np.ones((len(known), 0), dtype=np.bool_))
    of_past = jobs_of(figures, occupancy, allowed)
    best_s = of_past.duration_s.min(axis=1)
    work_s = float((best_s * of_past.gpu_count)[np.isfinite(best_s)].sum())
    # Jobs that came and went between two looks are not among them, and count by their numbers.
    came = max(sequence_of(known[-1].job.job_id) - sequence_of(known[0].job.job_id) + 1, len(known))
    there = max(int(np.count_nonzero(occupancy.usable)), 1)
    span_s = max((time_s - float(figures.submit_s.min())) * len(known) / came, work_s / (MOST_LOAD * there), 1e-3)
    return Past(of_past, span_s, np.array(tuple(errors)))


def _error_of(entry: Entry, gpu_models: Iterable[str]) -> float | None:
    """The error of a finished job's expected duration in units of its spread; None: it tells nothing."""
    job, models = entry.job, list(gpu_models)
    if job.state is not JobState.SUCCEEDED or len(job.attempts) != 1 or entry.spread <= 0.0:
        return None
    last = job.attempts[0]
    if last.runs_from_s is None or last.end_s is None or last.neighbours or last.gpu_model not in models:
        return None
    expected_s, ran_s = float(entry.expected_s[models.index(last.gpu_model)]), last.end_s - last.runs_from_s
    if not (ran_s > 0.0 and 0.0 < expected_s < math.inf) or entry.gpu_count > 1:
        return None
    return math.log(ran_s / expected_s) / entry.spread
