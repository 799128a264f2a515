"""Jobs that are stopped for others and go on later, as text for people. Pure functions on plain records; plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adlro.cli.units_text import seconds
from adlro.records.jobs import AttemptRef, Job, JobState, Preemptible

_PREEMPTED = "preempted: "
"""Begin of the outcome of an attempt that was stopped: `for job-7`, or `on request`, follows."""
_MOST_JOBS = 4


def costs_text(stops: Preemptible) -> str:
    """What a stop costs a job: `each new start takes 60.0 s, 10m 0s of work are lost`."""
    parts = []
    if stops.restart_s:
        parts.append(f"each new start takes {seconds(stops.restart_s)}")
    if stops.lost_s:
        parts.append(f"{seconds(stops.lost_s)} of work are lost")
    if stops.grace_s is not None:
        parts.append(f"{seconds(stops.grace_s)} from SIGTERM to SIGKILL")
    return ", ".join(parts) or "at no cost"


def stop_count(job: Job) -> int:
    """How often a job was stopped for others."""
    return sum(each.preempted for each in job.attempts)


def stops_text(job: Job) -> str:
    """A job's stops: `2 times, for job-7, for job-12; 40% of its work is left`; empty without any."""
    count = stop_count(job)
    if not count:
        return ""
    outcomes = [each.outcome for each in job.attempts if each.preempted]
    reasons = list(dict.fromkeys(each.removeprefix(_PREEMPTED) for each in outcomes if each.startswith(_PREEMPTED)))
    told = f", {_listed(reasons)}" if reasons else ""
    return f"{_times(count)}{told}{_left(job)}"


def short_stops_text(job: Job) -> str:
    """The stops of a waiting job, in a few words: `stopped 2 times, 40% left`; empty for others."""
    count = stop_count(job)
    if not count or job.state is not JobState.PENDING:
        return ""
    return f"stopped {_times(count)}, {_percent(job.remaining_ratio)} left"


def attempts_text(refs: Sequence[AttemptRef]) -> str:
    """Attempts of jobs: `job-3 (attempt 1), job-5 (attempt 2)`."""
    return _listed([f"{each.job_id} (attempt {each.attempt})" for each in refs])


def being_stopped(jobs: Iterable[Job]) -> dict[str, str]:
    """By job that is being stopped for another, that other one: it waits to start."""
    known = list(jobs)
    newest = {job.job_id: job.attempt_count for job in known if job.state is JobState.RUNNING}
    return {
        ref.job_id: job.job_id
        for job in known
        if not job.state.final and job.attempts and job.attempts[-1].start_s is None
        for ref in job.attempts[-1].preempts
        if newest.get(ref.job_id) == ref.attempt
    }


def _left(job: Job) -> str:
    if job.state is JobState.PENDING:
        return f"; {_percent(job.remaining_ratio)} of its work is left"
    return f"; {_percent(job.remaining_ratio)} of its work was left at the last start"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _percent(ratio: float) -> str:
    """A share in percent; a small one must not look like 0, nor a large one like 100."""
    if 0.0 < ratio < 0.005:
        return "less than 1%"
    return f"{100 * ratio:.0f}%" if ratio == 1.0 or ratio < 0.995 else f"{100 * ratio:.1f}%"


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _MOST_JOBS
    return ", ".join(names[:_MOST_JOBS]) + (f" and {left} more" if left > 0 else "")
