"""The beginning of a session: what is written down against what runs, record by record. Pure functions; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from adlro.records.events import ClusterDescription, RunningJob
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.runtimes.predictions import Expected
from adlro.store import Cursor


@dataclass(slots=True)
class Reconciled:
    """Where a session begins.

    Attributes:
        record_changes: the ledger, and the records that bring what is written down up to date.
        same: the cluster is the one whose events were followed before, and its log goes on from there.
        applied: the revision of the cluster's events to follow from.
        now_s: cluster time of that.
        max_attempts: lost attempts after which a job fails.
        unclaimed: what runs, by job and attempt, and no record was found of yet; in the end nobody's.
        relaunch: intents that were written down and are not known to run.
        vanished: what ran by its record and does not any more, with the attempt: events tell why, or have told.
        begins: jobs whose begin time has not come.
        arriving: jobs that were never taken up: (record, version, expected).
    """

    record_changes: RecordChanges
    same: bool
    applied: int
    now_s: float
    max_attempts: int
    unclaimed: dict[tuple[str, int], RunningJob]
    relaunch: list[Entry] = field(default_factory=list)
    vanished: list[tuple[Entry, int]] = field(default_factory=list)
    begins: list[Entry] = field(default_factory=list)
    arriving: list[tuple[Job, int, Expected]] = field(default_factory=list)


def begin(
    description: ClusterDescription,
    cursor: Cursor | None,
    known_s: float,
    drained: Iterable[str],
    max_attempts: int,
    user_service_s: Mapping[str, float],
) -> Reconciled:
    """An empty ledger of the cluster; `take` each record that is not final, in order.

    Args:
        description: the cluster as it is.
        cursor: how far its events were applied; None before the first.
        known_s: the newest cluster time in a record.
        drained: nodes on which nothing more is started.
        max_attempts: lost attempts after which a job fails.
        user_service_s: by user, the GPU time that ended attempts took so far.
    """
    record_changes = RecordChanges(Ledger(description.cluster, drained, user_service_s), max_attempts)
    record_changes.ledger.set_lost(description.lost_gpu_ids, True)
    runs = {(each.job_id, each.attempt): each for each in description.running}
    same = (
        cursor is not None
        and cursor.incarnation == description.incarnation
        and description.oldest_revision - 1 <= cursor.revision <= description.revision
    )
    if cursor is not None and same:
        return Reconciled(record_changes, True, cursor.revision, cursor.time_s, max_attempts, runs)
    # Records may be newer than the cursor: a start is written without it.
    now_s = max(description.clock.time_s, known_s, cursor.time_s if cursor else 0.0)
    return Reconciled(record_changes, False, description.revision, now_s, max_attempts, runs)


def newest_time_s(job: Job) -> float:
    """The newest cluster time in its record at which an attempt began or ended; 0 where none did."""
    if not job.attempts:  # as of nearly all that wait
        return 0.0
    times_s = (time_s for each in job.attempts for time_s in (each.start_s, each.end_s) if time_s is not None)
    return max(times_s, default=0.0)


def is_launched(job: Job) -> bool:
    """Its record says that it runs, or is meant to."""
    return job.state is JobState.RUNNING or job.pending_reason is PendingReason.LAUNCHING


def take(found: Reconciled, version: int, record: Job, expected: Expected) -> None:
    """Brings a record into the ledger, and notes what has to be done about the cluster.

    Args:
        found: is changed.
        version: of the record.
        record: of a job that is not final.
        expected: of it.
    """
    record_changes, ledger, layout, runs = (
        found.record_changes,
        found.record_changes.ledger,
        found.record_changes.ledger.layout,
        found.unclaimed,
    )
    job, launched = record, is_launched(record)
    unknown = None if launched else runs.get((job.job_id, job.attempt_count + 1))
    if unknown is not None:
        # Redis came back without its last changes. It will be stopped, so the next attempt must be another one.
        model = layout.model_of(layout.gpu_number[unknown.gpu_id])
        job = transitions.forgotten(record, unknown.placement, model, unknown.start_s, found.now_s, found.max_attempts)
        record_changes.record_untracked(record, version, job)
        version += 1
        if job.state.final:
            return
    if not launched and job.submit_s is None:
        found.arriving.append((job, version, expected))
        return
    entry = ledger.enter(job, version, *expected)
    if launched:
        _reconcile_launched(found, entry, runs.pop((job.job_id, job.attempt_count), None))
    elif job.submit_s is not None and job.submit_s > found.now_s:
        found.begins.append(entry)
    else:
        ledger.enqueue(entry)


def _reconcile_launched(found: Reconciled, entry: Entry, running: RunningJob | None) -> None:
    job, record_changes = entry.job, found.record_changes
    gpu = record_changes.ledger.layout.gpu_number.get(job.gpu_id)
    if gpu is None and found.same:
        # The events that follow tell how it ended, or that it was lost with its GPU, which left after that.
        record_changes.ledger.place_elsewhere(entry)
        found.vanished.append((entry, job.attempt_count))
        return
    if gpu is None:
        record_changes.lose(entry, f"{job.gpu_id} is no longer part of the cluster", found.now_s, excused=True)
        return
    record_changes.ledger.place(entry, gpu, job.start_s or found.now_s)
    if found.same:
        # The events that follow tell what became of it. Launching again is idempotent, also where it ran and ended.
        if running is None and job.state is JobState.PENDING:
            found.relaunch.append(entry)
        elif running is None:
            found.vanished.append((entry, job.attempt_count))
    elif running is None:
        record_changes.lose(entry, "the cluster was restarted", found.now_s, excused=True)  # nobody's failure
    elif job.state is JobState.PENDING:
        record_changes.record(entry, transitions.started(job, running.start_s))
        record_changes.ledger.runs_since(entry, running.start_s)
