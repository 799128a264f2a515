"""The beginning of a session: each record reconciled with the running attempts. Pure functions; no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adlro.records.attained import AttainedService
from adlro.records.events import ClusterDescription, RunningJob
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.runtimes.predictions import Expected
from adlro.store import Cursor


@dataclass(slots=True)
class Reconciled:
    """The result of the reconciliation.

    Attributes:
        record_changes: the ledger, and the new records.
        same: the cluster has the incarnation of the stored cursor, and its log continues from there.
        applied: the session follows the cluster's events after this revision.
        now_s: cluster time of that revision.
        max_attempts: lost attempts after which a job fails.
        unclaimed: running attempts, by job and attempt, for which no record was found yet; at the end, attempts without
            one.
        relaunch: recorded intents whose attempts are not known to run.
        vanished: entries and attempts that run by their records, but not on the cluster; an event reports or has
            reported why.
        begins: jobs whose begin time is in the future.
        arriving: jobs that no session has taken up, or that are held or wait for others: (record, version, expected).
        preempting: launched jobs for which others were stopped; `settle` places them, by job.
        parted: launched jobs that have a part of their GPU; `settle` places them too.
        reserved_job_id, reserved_since_s: the job that GPUs are kept free for, if it still waits; empty: none.
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
    preempting: dict[str, tuple[Entry, RunningJob | None]] = field(default_factory=dict)
    parted: list[tuple[Entry, RunningJob | None]] = field(default_factory=list)
    reserved_job_id: str = ""
    reserved_since_s: float = 0.0


def begin(
    description: ClusterDescription,
    cursor: Cursor | None,
    known_s: float,
    drained: Iterable[str],
    max_attempts: int,
    user_service: Mapping[str, AttainedService],
    min_run_s: float | None = None,
    pairs: PairTable | None = None,
    user_rules: UserRules | None = None,
) -> Reconciled:
    """A ledger of the cluster without jobs.

    The caller then calls `take` for each record that is not final, in order, and `settle` after the last.

    Args:
        description: the cluster's state.
        cursor: position of the last applied event; None before the first.
        known_s: the newest cluster time in a record.
        drained: ids of the drained nodes.
        max_attempts: lost attempts after which a job fails.
        user_service: by user, the GPU time of ended attempts so far.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.
        pairs: what jobs that share a GPU are expected to keep of their speeds.
        user_rules: quotas, shares and groups of users.
    """
    can = description.capabilities
    if can is None or not can.preemption:
        min_run_s = None
    shares = can is not None and can.shares
    reasons = {each.gpu_id: each.reason for each in description.gpu_conditions}
    # Records of earlier versions have no time: what they tell counts as of now.
    begun = known_s if cursor is None else max(known_s, cursor.time_s)
    user_service = {
        user: had._replace(at_s=begun) if math.isnan(had.at_s) else had for user, had in user_service.items()
    }
    ledger = Ledger(
        description.cluster, drained, user_service, min_run_s, shares=shares, pairs=pairs, user_rules=user_rules
    )
    record_changes = RecordChanges(ledger, max_attempts)
    record_changes.ledger.set_lost({each: reasons.get(each, "") for each in description.lost_gpu_ids}, True)
    runs = {(each.job_id, each.attempt): each for each in description.running}
    same = (
        cursor is not None
        and cursor.incarnation == description.incarnation
        and description.oldest_revision - 1 <= cursor.revision <= description.revision
    )
    if cursor is not None and same:
        found = Reconciled(record_changes, True, cursor.revision, cursor.time_s, max_attempts, runs)
    else:
        # Records may be newer than the cursor: the record of a start is written without it.
        now_s = max(description.clock.time_s, known_s, cursor.time_s if cursor else 0.0)
        found = Reconciled(record_changes, False, description.revision, now_s, max_attempts, runs)
    if cursor is not None:
        found.reserved_job_id, found.reserved_since_s = cursor.reserved_job_id, cursor.reserved_since_s
    return found


def newest_time_s(job: Job) -> float:
    """The newest cluster time in the record at which an attempt began or ended; 0 without one."""
    if not job.attempts:  # true of nearly all waiting jobs
        return 0.0
    times_s = (time_s for each in job.attempts for time_s in (each.start_s, each.run_s, each.end_s))
    return max((time_s for time_s in times_s if time_s is not None), default=0.0)


def is_launched(job: Job) -> bool:
    """Whether the job runs by its record, or has a recorded launch."""
    return job.state is JobState.RUNNING or job.pending_reason is PendingReason.LAUNCHING


def take(found: Reconciled, version: int, record: Job, expected: Expected) -> None:
    """Adds a record to the ledger, and notes the actions that reconcile it with the cluster.

    Args:
        found: the result so far; changed.
        version: the record's version.
        record: the record of a job that is not final.
        expected: the job's expected durations.
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
        # Redis has lost its last changes. The unknown attempt will be stopped, so the next one needs another number.
        model = layout.model_of(layout.gpu_number[unknown.gpu_id])
        job = transitions.forgotten(record, unknown.placement, model, unknown.start_s, found.now_s, found.max_attempts)
        record_changes.record_untracked(record, version, job)
        version += 1
        if job.state.final:
            return
    if not launched and (job.submit_s is None or job.hold is not None):
        found.arriving.append((job, version, expected))
        return
    entry = ledger.enter(job, version, *expected)
    if launched:
        running = runs.pop((job.job_id, job.attempt_count), None)
        if job.attempts[-1].preempts:
            found.preempting[job.job_id] = (entry, running)
        elif not job.placement.whole:
            found.parted.append((entry, running))
        else:
            _place_again(found, entry)
            if entry.gpus:
                _follow(found, entry, running)
    elif job.submit_s is not None and job.submit_s > found.now_s:
        found.begins.append(entry)
    else:
        ledger.enqueue(entry)
        if job.job_id == found.reserved_job_id and ledger.can_ever_start(entry):
            ledger.reserve(entry, found.reserved_since_s)


def settle(found: Reconciled) -> None:
    """Places the jobs that share GPUs, and those for which others were stopped: some of these may not have ended.

    In the order of their starts: of two jobs on a GPU the first comes first. What has become of them is asked once all
    are placed: who shared a GPU until then shall be in the records of both.
    """
    launched = sorted([*found.parted, *found.preempting.values()], key=lambda pair: _start_s(pair[0].job))
    for entry, _ in launched:
        if entry.job.attempts[-1].preempts:
            _settle(found, entry.job.job_id)
        else:
            _place_again(found, entry)
    found.parted.clear()
    for entry, running in launched:
        if entry.gpus:
            _follow(found, entry, running)


def _settle(found: Reconciled, job_id: str) -> None:
    pair = found.preempting.pop(job_id, None)
    if pair is None:
        return
    entry, victims = pair[0], []
    entries = found.record_changes.ledger.entries
    for ref in entry.job.attempts[-1].preempts:
        before = found.preempting.get(ref.job_id)
        if before is not None and before[0].job.attempt_count == ref.attempt:
            _settle(found, ref.job_id)  # others were stopped for it, and now it is
        victim = entries.get(ref.job_id)
        if victim is not None and victim.is_placed(ref.attempt) and victim.gpus and victim.preemptor is None:
            victims.append(victim)
    _place_again(found, entry, victims)


def _place_again(found: Reconciled, entry: Entry, victims: Sequence[Entry] = ()) -> None:
    """Places a launched job; one whose GPUs are no longer there has none then."""
    job, record_changes = entry.job, found.record_changes
    gpu_number = record_changes.ledger.layout.gpu_number
    left = [gpu_id for gpu_id in job.placement.gpu_ids if gpu_id not in gpu_number]
    if left and found.same:
        # Later events report the attempt's end, or its loss with a GPU, which left the cluster afterwards.
        record_changes.ledger.place_elsewhere(entry)
        found.vanished.append((entry, job.attempt_count))
        return
    if left:
        record_changes.lose(entry, f"{left[0]} is no longer part of the cluster", found.now_s, excused=True)
        return
    gpus = [gpu_number[gpu_id] for gpu_id in job.placement.gpu_ids]
    share = min(each.share for each in job.placement.gpus)
    since_s = found.now_s if job.start_s is None else job.start_s
    record_changes.ledger.place(entry, gpus, since_s, victims, share)
    record_changes.ledger.has_run(entry)


def _follow(found: Reconciled, entry: Entry, running: RunningJob | None) -> None:
    """What has become of a launched job, which is placed."""
    job, record_changes = entry.job, found.record_changes
    if found.same:
        # Later events report the attempt's fate. A repeated launch is idempotent, also after the attempt's end.
        if running is None and job.state is JobState.PENDING:
            found.relaunch.append(entry)
        elif running is None:
            found.vanished.append((entry, job.attempt_count))
    elif running is None:
        # Not the job's failure; nobody is stopped for it.
        record_changes.lose(entry, "the cluster was restarted", found.now_s, excused=True, stops_asked=False)
    elif job.state is JobState.PENDING:
        record_changes.record(entry, transitions.started(job, running.start_s))
        record_changes.ledger.runs_since(entry, running.start_s)


def _start_s(job: Job) -> float:
    """Cluster time of a launched job's start; inf before it."""
    return math.inf if job.start_s is None else job.start_s
