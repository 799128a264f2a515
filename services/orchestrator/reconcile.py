"""The beginning of a session: what is written down against what runs. A pure function; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adlro.events import ClusterDescription, RunningJob
from adlro.jobs import Job, JobState, PendingReason
from adlro.jobstore import Cursor
from services.orchestrator import transitions
from services.orchestrator.book import Book
from services.orchestrator.ledger import Entry, Ledger
from services.orchestrator.predictions import Expected


@dataclass(slots=True)
class Reconciled:
    """Where a session begins.

    Attributes:
        book: the ledger, and the records that bring what is written down up to date.
        same: the cluster is the one whose events were followed before, and its log goes on from there.
        applied: the revision of the cluster's events to follow from.
        now_s: cluster time of that.
        relaunch: intents that were written down and are not known to run.
        begins: jobs whose begin time has not come.
        arriving: jobs that were never taken up: (record, version, expected).
        strays: what runs and no record stands for.
    """

    book: Book
    same: bool
    applied: int
    now_s: float
    relaunch: list[Entry] = field(default_factory=list)
    begins: list[Entry] = field(default_factory=list)
    arriving: list[tuple[Job, int, Expected]] = field(default_factory=list)
    strays: list[RunningJob] = field(default_factory=list)


def reconcile(
    description: ClusterDescription,
    cursor: Cursor | None,
    records: Iterable[tuple[int, Job]],
    expected: Sequence[Expected],
    drained: Iterable[str],
    max_attempts: int,
    attained_s: Mapping[str, float],
) -> Reconciled:
    """Builds the ledger from the records, and says what has to be done about the cluster.

    Args:
        description: the cluster as it is.
        cursor: how far its events were applied; None before the first.
        records: all jobs that are not final, with their versions.
        expected: of the records' jobs.
        drained: nodes on which nothing more is started.
        max_attempts: lost attempts after which a job fails.
        attained_s: by user, the GPU time that ended attempts took so far.
    """
    book = Book(Ledger(description.cluster, drained, attained_s), max_attempts)
    ledger, layout = book.ledger, book.ledger.layout
    ledger.set_lost(description.lost_gpu_ids, True)
    same = (
        cursor is not None
        and cursor.incarnation == description.incarnation
        and cursor.revision >= description.oldest_revision - 1
    )
    if cursor is not None and same:
        found = Reconciled(book, True, cursor.revision, cursor.time_s)
    else:
        known_s = cursor.time_s if cursor else 0.0
        found = Reconciled(book, False, description.revision, max(description.clock.time_s, known_s))

    runs = {(each.job_id, each.attempt): each for each in description.running}
    for (read_version, record), row in zip(records, expected, strict=True):
        version, job = read_version, record
        launched = job.state is JobState.RUNNING or job.pending_reason is PendingReason.LAUNCHING
        unknown = None if launched else runs.get((job.job_id, job.attempt_count + 1))
        if unknown is not None:
            # Redis came back without its last changes. It will be stopped, so the next attempt must be another one.
            model, end_s = layout.model_of(layout.gpu_number[unknown.gpu_id]), max(found.now_s, unknown.start_s)
            job = transitions.forgotten(record, unknown.gpu_id, model, unknown.start_s, end_s, max_attempts)
            book.record_untracked(record, version, job)
            version += 1
            if job.state.final:
                continue
        if not launched and job.submit_s is None:
            found.arriving.append((job, version, row))
            continue
        entry = ledger.enter(job, version, *row)
        if launched:
            _reconcile_launched(found, entry, runs.pop((job.job_id, job.attempt_count), None))
        elif job.submit_s is not None and job.submit_s > found.now_s:
            found.begins.append(entry)
        else:
            ledger.enqueue(entry)
    # Their records are final, or on a later attempt: they must not hold a GPU.
    found.strays = list(runs.values())
    return found


def _reconcile_launched(found: Reconciled, entry: Entry, running: RunningJob | None) -> None:
    job, book = entry.job, found.book
    gpu = book.ledger.layout.gpu_number.get(job.gpu_id)
    if gpu is None:
        book.lose(entry, f"{job.gpu_id} is no longer part of the cluster", found.now_s)
        return
    book.ledger.place(entry, gpu, job.start_s or found.now_s)
    if found.same:
        # The events that follow tell what became of it. Launching again is idempotent, also where it ran and ended.
        if running is None and job.state is JobState.PENDING:
            found.relaunch.append(entry)
    elif running is None:
        book.lose(entry, "the cluster was restarted", found.now_s)
    elif job.state is JobState.PENDING:
        book.record(entry, transitions.started(job, running.start_s))
        book.ledger.runs_since(entry, running.start_s)
