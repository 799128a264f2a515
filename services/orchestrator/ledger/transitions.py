"""Transitions of a job's record: pure functions from a record and an event to the next record.

Only the orchestrator changes records after their creation, and each state change of a job is one of these functions.
They move an end before the attempt's start to that start: the time of a loss that is noticed late may be too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from adlro.placement import NOWHERE, Placement
from adlro.records.job_requests import JobHold, JobRequest, JobUpdate
from adlro.records.jobs import AttemptRef, Job, JobAttempt, JobReservation, JobState, PendingReason
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.payloads import ExitStatus

_REFUSED = "refused by the cluster: "
_GIVEN_UP = "given up: "
_GPUS_NAMED = 8  # at most, in a message,
_JOBS_NAMED = 4  # and so many jobs
_PREEMPTED = "preempted"
_NEIGHBOURS_KEPT = 64
"""Kinds of neighbours that an attempt's record names; all others count as one, of no stated application."""
_RUNS_ON = "its end was asked for, but this cluster can't end what runs: it ends by itself"


def cancel_requested(job: Job) -> Job:
    """Its user has requested its cancellation (ingest has recorded that)."""
    return replace(job, cancel_requested=True)


def taken_up(job: Job, submit_s: float, reason: PendingReason, message: str) -> Job:
    """The orchestrator has taken the job up; its completion time counts from `submit_s`."""
    return replace(job, submit_s=submit_s, pending_reason=reason, message=message)


def hold_after(before: JobHold | None, request: JobRequest) -> JobHold:
    """The hold after a request to hold: an operator's stays an operator's."""
    if before is not None and before.by_operator and not request.by_operator:
        return before
    return JobHold(request.user, request.by_operator)


def held(job: Job, hold: JobHold) -> Job:
    """It does not start before its release; a job without attempts counts its completion time from then."""
    by = f" by {hold.user}" if hold.user else ""
    way_out = "an operator must release it" if hold.by_operator else f"`adlro release {job.job_id}` lets it start"
    text = f"held{by}; {way_out}"
    return replace(waiting(job, PendingReason.HELD, text), hold=hold, submit_s=job.submit_s if job.attempts else None)


def released(job: Job) -> Job:
    """It is held no more, and waits as any other job."""
    return replace(waiting(job, PendingReason.RESOURCES, "released"), hold=None)


def updated(job: Job, update: JobUpdate) -> Job:
    """Its request is changed."""
    spec = update.applied_to(job.spec)
    return replace(job, spec=spec, normalized=replace(job.normalized, priority=spec.priority))


def request_applied(job: Job, number: int) -> Job:
    """Its requests up to this one are applied, or came too late to change anything."""
    return replace(job, applied_request=number)


def depends(job: Job, on: Sequence[str]) -> Job:
    """It waits for the end of these jobs and arrays; its completion time counts from then."""
    named = ", ".join(on[:_JOBS_NAMED]) + (f" and {len(on) - _JOBS_NAMED} more" if len(on) > _JOBS_NAMED else "")
    return replace(waiting(job, PendingReason.DEPENDENCY, f"waits for the end of {named}"), submit_s=None)


def cancelled_by_dependency(job: Job, end_s: float, why: str) -> Job:
    """What it waits for has ended otherwise than it must, so nothing could start it any more."""
    return replace(
        waiting(job, PendingReason.NONE, f"cancelled: {why}"),
        state=JobState.CANCELLED,
        end_s=_not_before_last_attempt(job, end_s),
    )


def waiting(
    job: Job,
    reason: PendingReason,
    message: str,
    *,
    reservation: JobReservation | None = None,
    reserved_for: str = "",
    reserved_until_s: float | None = None,
) -> Job:
    """The job still waits, for another reason.

    Args:
        job: the job.
        reason, message: why it waits.
        reservation: what it holds.
        reserved_for, reserved_until_s: the job for which GPUs are kept free, and the cluster time until about which,
            where it waits because of that.
    """
    return replace(
        job,
        pending_reason=reason,
        message=message,
        reservation=reservation,
        reserved_for_job_id=reserved_for,
        reserved_until_s=reserved_until_s,
    )


def launching_message(placement: Placement, preempts: Sequence[AttemptRef] = ()) -> str:
    """The message of a job whose launch is requested and not answered.

    Args:
        preempts: the attempts of other jobs that it waits for: they are stopped to make room.
    """
    if preempts:
        return f"waits until {jobs_in_words(preempts)} stopped, then starts on {in_words(placement)}"
    return f"being launched on {in_words(placement)}"


def jobs_in_words(preempts: Sequence[AttemptRef]) -> str:
    """Jobs that are stopped, with the verb: `job-3 has`, `job-3 and job-4 have`."""
    names = [ref.job_id for ref in preempts[:_JOBS_NAMED]]
    if len(preempts) > _JOBS_NAMED:
        return f"{', '.join(names)} and {len(preempts) - _JOBS_NAMED} more have"
    return f"{names[0]} has" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} have"


def in_words(placement: Placement) -> str:
    """A placement for people: all of a few GPUs, or the first of many and their number."""
    count = len(placement.gpus)
    if count <= _GPUS_NAMED:
        return str(placement)
    return f"{count} GPUs ({', '.join(placement.gpu_ids[: _GPUS_NAMED - 1])}, ...)"


def launching(job: Job, placement: Placement, gpu_model: str, preempts: tuple[AttemptRef, ...] = ()) -> Job:
    """Its placement is chosen and the attempt recorded, before the call to the cluster.

    Args:
        preempts: the attempts of other jobs that are stopped to make room.
    """
    attempt = JobAttempt(job.attempt_count + 1, placement, gpu_model, preempts=preempts)
    return replace(
        waiting(job, PendingReason.LAUNCHING, launching_message(placement, preempts)),
        placement=placement,
        gpu_model=gpu_model,
        attempts=(*job.attempts, attempt),
    )


def unanswered(job: Job, why: str, *, given_up: bool = False) -> Job:
    """The cluster has not answered the launch of the last attempt.

    Args:
        job: the job that is being launched.
        why: the reason, for people.
        given_up: the attempt will be stopped. The attempt's outcome says so until its end replaces it.
    """
    told = replace(job, message=f"{launching_message(job.placement, job.attempts[-1].preempts)}: {why}")
    return _with_last_attempt(told, outcome=f"{_GIVEN_UP}{why}") if given_up else told


def is_given_up(job: Job) -> bool:
    """Whether its last attempt is being stopped because its launch got no answer."""
    return bool(job.attempts) and job.attempts[-1].outcome.startswith(_GIVEN_UP)


def runs_on(job: Job) -> Job:
    """Its user wants its end, and the cluster can't end what runs."""
    return replace(job, message=_RUNS_ON)


def started(job: Job, start_s: float) -> Job:
    """The cluster runs its last attempt."""
    return replace(
        _with_last_attempt(job, start_s=start_s, outcome=job.attempts[-1].outcome),
        state=JobState.RUNNING,
        pending_reason=PendingReason.NONE,
        message=job.message if job.message == _RUNS_ON else f"running on {in_words(job.placement)}",
        start_s=start_s,
    )


def program_runs(job: Job, run_s: float) -> Job:
    """The program of its last attempt, which has started, runs; before, the cluster prepared it.

    Who has left its GPU before was no neighbour of the program.
    """
    last = job.attempts[-1]
    run_s = max(run_s, job.start_s or run_s)
    return replace(job, attempts=(*job.attempts[:-1], replace(last, run_s=run_s, neighbours=())))


def waits_for(job: Job, preempts: Sequence[AttemptRef]) -> Job:
    """It is accepted, and starts once these attempts of other jobs have ended; none: it is to start now."""
    return replace(job, message=launching_message(job.placement, preempts))


def being_stopped(job: Job, for_job_id: str) -> Job:
    """It runs, and its stop is asked for: another job has its GPUs then."""
    return replace(job, message=f"being stopped for {for_job_id}")


def preempted(job: Job, end_s: float, why: str, remaining_ratio: float, exit_status: ExitStatus | None = None) -> Job:
    """Its attempt was stopped for another job: the job waits, and goes on later with what is left of its work.

    Args:
        job: the job with the attempt.
        end_s: cluster time of the end.
        why: such as "for job-12"; empty: not known.
        remaining_ratio: the share of its work that is left.
        exit_status: how its program ended, where that is known.
    """
    outcome = f"{_PREEMPTED}: {why}" if why else _PREEMPTED
    ended = _with_last_attempt(job, end_s=end_s, outcome=outcome, exit_status=exit_status, preempted=True)
    ended = replace(ended, remaining_ratio=remaining_ratio)
    if job.cancel_requested:
        return _final(ended, JobState.CANCELLED, "cancelled on request")
    return _for_another(ended, preempted_message(ended))


def was_beside(job: Job, neighbour: NeighbourTime) -> Job:
    """Its last attempt has run beside another job on its GPU; times beside jobs of one kind are added up."""
    last = job.attempts[-1]
    known = {each.neighbour: each.time_s for each in last.neighbours}
    kind = neighbour.neighbour
    if kind not in known and len(known) >= _NEIGHBOURS_KEPT:
        kind = ApplicationSize("")
    known[kind] = known.get(kind, 0.0) + neighbour.time_s
    beside = tuple(NeighbourTime(kind, time_s) for kind, time_s in known.items())
    return replace(job, attempts=(*job.attempts[:-1], replace(last, neighbours=beside)))


def preempted_message(job: Job) -> str:
    """The message of a job whose last attempt was just stopped for another job."""
    why = job.attempts[-1].outcome.removeprefix(_PREEMPTED).removeprefix(": ")
    return f"stopped{f' {why}' if why else ''}; goes on later with {left_in_words(job)}"


def left_in_words(job: Job) -> str:
    """What is left of a job, for people: `40 % of its work left`."""
    percent = 100.0 * job.remaining_ratio
    return f"{percent:.0f} % of its work left" if percent >= 1.0 else "less than 1 % of its work left"


def succeeded(job: Job, end_s: float, exit_status: ExitStatus | None = None) -> Job:
    """The job ended by itself, without error."""
    return _ended(job, JobState.SUCCEEDED, end_s, "succeeded", "", exit_status)


def failed(job: Job, end_s: float, why: str, exit_status: ExitStatus | None = None) -> Job:
    """The job ended by itself with an error, or by its time limit.

    Args:
        job: the job with the attempt.
        end_s: cluster time of the end.
        why: the cluster's words; may be empty, or say what `exit_status` says.
        exit_status: how its program ended, where that is known.
    """
    why = _with_exit(why, exit_status)
    return _ended(job, JobState.FAILED, end_s, f"failed: {why}" if why else "failed", why, exit_status)


def stopped(job: Job, end_s: float, exit_status: ExitStatus | None = None) -> Job:
    """The job was stopped on request while it ran."""
    why = "cancelled on request" if job.cancel_requested else "stopped on the cluster, not through ADLRO"
    return _ended(job, JobState.CANCELLED, end_s, "stopped", why, exit_status)


def cancelled_while_waiting(job: Job, end_s: float) -> Job:
    """The job was cancelled before it ran."""
    when = "while it waited for another attempt" if job.attempts else "before it ran"
    return replace(
        waiting(job, PendingReason.NONE, f"cancelled on request {when}"),
        state=JobState.CANCELLED,
        end_s=_not_before_last_attempt(job, end_s),
    )


def lost(
    job: Job,
    end_s: float,
    why: str,
    max_attempts: int,
    *,
    excused: bool = False,
    exit_status: ExitStatus | None = None,
) -> Job:
    """Its attempt was lost with a GPU or the cluster: the job waits for another one, or fails after its last one.

    Args:
        job: the job with the attempt.
        end_s: cluster time of the loss.
        why: the reason, for people.
        max_attempts: lost attempts after which the job fails.
        excused: this attempt does not count as lost.
        exit_status: how its program ended, where that is known.
    """
    why = _with_exit(why, exit_status)
    ended = _with_last_attempt(job, end_s=end_s, outcome=f"lost: {why}", excused=excused, exit_status=exit_status)
    if job.cancel_requested:
        return _final(ended, JobState.CANCELLED, "cancelled on request")
    excused_count = sum(each.excused for each in ended.attempts)
    counted = ended.attempt_count - excused_count - sum(each.preempted for each in ended.attempts)
    if counted >= max_attempts and not excused:
        message = f"attempt {counted} of at most {max_attempts} was lost: {why}"
        if excused_count:
            message += f" (those lost to restarts of the cluster, {excused_count}, are not counted)"
        return _final(ended, JobState.FAILED, message)
    return _for_another(ended, f"attempt {job.attempt_count} was lost ({why}); waits for another one")


def _for_another(ended: Job, message: str) -> Job:
    """The job waits for another attempt."""
    return replace(
        ended,
        state=JobState.PENDING,
        pending_reason=PendingReason.RESOURCES,
        message=message,
        start_s=None,
        placement=NOWHERE,
        gpu_model="",
    )


def forgotten(job: Job, placement: Placement, gpu_model: str, start_s: float, end_s: float, max_attempts: int) -> Job:
    """The cluster runs an attempt that the store has lost: the attempt keeps its number, and counts as lost."""
    return lost(started(launching(job, placement, gpu_model), start_s), end_s, "the store forgot it", max_attempts)


def refused(
    job: Job,
    end_s: float,
    why: str,
    max_attempts: int,
    *,
    retry_s: float | None = None,
    final: bool = False,
    excused: bool = False,
) -> Job:
    """The cluster refused the attempt: the job waits for another one, or fails after its last one.

    Args:
        job: the job with the attempt.
        end_s: cluster time of the refusal.
        why: the reason, for people.
        max_attempts: lost attempts after which the job fails.
        retry_s: cluster time of the next attempt; None: as soon as possible.
        final: the job itself is the reason: the cluster would refuse another attempt as well.
        excused: other jobs are the reason: the attempt does not count.
    """
    next_job = lost(job, end_s, f"{_REFUSED}{why}", max_attempts, excused=excused)
    if next_job.state is not JobState.PENDING:
        return next_job
    if final:
        return _final(next_job, JobState.FAILED, f"attempt {job.attempt_count} was {_REFUSED}{why}")
    if retry_s is None or retry_s <= end_s:
        return next_job
    message = f"attempt {job.attempt_count} was {_REFUSED}{why}; the next one is at {retry_s:.6g} s of cluster time"
    return replace(next_job, pending_reason=PendingReason.LAUNCH_REFUSED, message=message)


def refusals_in_a_row(job: Job) -> int:
    """Number of consecutive refused attempts before the present one."""
    outcomes = [each.outcome for each in job.attempts[:-1]]
    ran = [number for number, outcome in enumerate(outcomes) if not outcome.startswith(f"lost: {_REFUSED}")]
    return len(outcomes) - (ran[-1] + 1 if ran else 0)


class EndedAttempt(NamedTuple):
    """An attempt that has ended: how long it held each of its GPUs, their number, and the cluster time of its end."""

    took_s: float
    gpu_count: int
    end_s: float


def ended_attempt(before: Job, after: Job) -> EndedAttempt | None:
    """The attempt that ended between two records of a job; None: none did, or it never started."""
    if not after.attempts:
        return None
    last = after.attempts[-1]
    ended_before = before.attempt_count == after.attempt_count and before.attempts[-1].end_s is not None
    if ended_before or last.start_s is None or last.end_s is None:
        return None
    return EndedAttempt(max(last.end_s - last.start_s, 0.0), len(last.placement.gpus), last.end_s)


def _with_exit(why: str, exit_status: ExitStatus | None) -> str:
    """The cluster's words and the exit status, each said once."""
    text = "" if exit_status is None else exit_status.text
    if not text or text in why:
        return why
    return text if why in text else f"{why} ({text})"


def _ended(
    job: Job, state: JobState, end_s: float, outcome: str, message: str, exit_status: ExitStatus | None = None
) -> Job:
    return _final(_with_last_attempt(job, end_s=end_s, outcome=outcome, exit_status=exit_status), state, message)


def _final(job: Job, state: JobState, message: str) -> Job:
    """Its last record, after the end of its last attempt."""
    end_s = job.attempts[-1].end_s
    return replace(job, state=state, pending_reason=PendingReason.NONE, message=message, end_s=end_s)


def _with_last_attempt(
    job: Job,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    outcome: str = "",
    excused: bool = False,
    preempted: bool = False,
    exit_status: ExitStatus | None = None,
) -> Job:
    last = job.attempts[-1]
    last = replace(
        last,
        start_s=last.start_s if start_s is None else start_s,
        end_s=None if end_s is None else _not_before_last_attempt(job, end_s),
        outcome=outcome,
        excused=excused,
        preempted=preempted,
        exit=exit_status,
    )
    return replace(job, attempts=(*job.attempts[:-1], last))


def _not_before_last_attempt(job: Job, time_s: float) -> float:
    """The given time, or the last attempt's start or end if that is later."""
    of_last = (t for each in job.attempts[-1:] for t in (each.start_s, each.run_s, each.end_s) if t is not None)
    return max([time_s, *of_last])
