"""Counts of a ledger's jobs, kept as jobs move: who asks for them does not go through the queue. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

from adlro.records.jobs import JobState, JobType, PendingReason
from adlro.services.orchestrator.ledger.entry import Entry, Phase

K = TypeVar("K", bound=Hashable)

ELSEWHERE = -1
"""The model of a job whose GPUs have left the cluster."""


class Counts:
    """Numbers of jobs; those that have none are left out.

    Attributes:
        phases: by phase.
        launching: placed jobs whose start is not reported, or not applied, yet.
        by_reason, by_job_type, by_user: the jobs that wait, in the queue or for their next launch.
        by_model: placed jobs by the number of their GPUs' model, or ELSEWHERE.
    """

    def __init__(self) -> None:
        self.phases: Counter[Phase] = Counter()
        self.launching = 0
        self.by_reason: Counter[PendingReason] = Counter()
        self.by_job_type: Counter[JobType] = Counter()
        self.by_user: Counter[str] = Counter()
        self.by_model: Counter[int] = Counter()

    def note(self, entry: Entry, model: int) -> None:
        """Counts a job as it is now; call it after each change of its phase, its reason, or its GPUs.

        Args:
            entry: the job.
            model: of its GPUs.
        """
        phase, job = entry.phase, entry.job
        waits = phase is Phase.QUEUED or phase is Phase.PAUSED
        launching = phase is Phase.PLACED and job.state is JobState.PENDING
        now = (phase, job.pending_reason if waits else None, model if phase is Phase.PLACED else ELSEWHERE, launching)
        if now == entry.counted:
            return
        if entry.counted is not None:
            self._add(entry, entry.counted, -1)
        entry.counted = None if phase is Phase.GONE else now
        if entry.counted is not None:
            self._add(entry, now, 1)

    def _add(self, entry: Entry, counted: tuple[Phase, PendingReason | None, int, bool], by: int) -> None:
        phase, reason, model, launching = counted
        _add(self.phases, phase, by)
        self.launching += by * launching
        if reason is not None:
            spec = entry.job.spec
            _add(self.by_reason, reason, by)
            _add(self.by_job_type, spec.job_type, by)
            _add(self.by_user, spec.user, by)
        if phase is Phase.PLACED:
            _add(self.by_model, model, by)


def _add(counter: Counter[K], key: K, by: int) -> None:
    count = counter[key] + by
    if count:
        counter[key] = count
    else:
        del counter[key]
