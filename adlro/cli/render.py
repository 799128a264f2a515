"""Records as text for people: cells, bars, durations. Pure functions on plain records; rich markup, nothing printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adlro.cli.places import At, at_of, pending_text
from adlro.cli.units_text import UNKNOWN as UNKNOWN  # noqa: PLC0414 - commands find all texts here
from adlro.cli.units_text import mib as mib  # noqa: PLC0414
from adlro.cli.units_text import seconds as seconds  # noqa: PLC0414
from adlro.records.jobs import Job, JobAttempt, JobReservation, JobState, JobType
from adlro.records.payloads import EndReason, signal_name
from adlro.terminal import escape

STATE_STYLE = {
    JobState.PENDING: "yellow",
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}

TYPE_SHORT = {
    JobType.UNSPECIFIED: "-",
    JobType.SIMULATION: "simulation",
    JobType.MACHINE_LEARNING: "ml",
    JobType.DATA_PROCESSING: "data",
}

# Names of who decides if the selected policy does not.
WAIT_LIMIT, FALLBACK = "the limit on waits", "hold_gang"
# Names of `DecisionBasis` (not imported, to avoid gRPC): decisions of the policy itself, and of the limit on waits. The
# other decisions are the fallback's.
OWN, OVERDUE = ("policy", "margin"), "overdue"


def policy_text(policy: str, deciding: str, basis: str | None) -> str:
    """The selected policy and, if another one decides, that one: `dqn (out of range: sjf decides)`.

    For an overdue job the limit on waits decides: `dqn (overdue: the limit on waits decides)`.

    Args:
        policy: the selected policy.
        deciding: who made the last decision; empty: unknown.
        basis: the reason, as the name of a `DecisionBasis`.
    """
    if basis is not None and basis.lower() == OVERDUE:
        return f"{escape(policy)} [yellow](overdue: {WAIT_LIMIT} decides)[/]"
    if deciding in ("", policy):
        return escape(policy)
    why = f"{basis.lower().replace('_', ' ')}: " if basis else ""
    return f"{escape(policy)} [yellow]({why}{escape(deciding)} decides)[/]"


def decisions_text(policy: str, by_basis: Mapping[str, int]) -> str:
    """The deciders of a session: `40 by sjf in this session`, or the number of each one's decisions, with shares.

    Args:
        policy: the selected policy.
        by_basis: numbers of decisions by the name of a `DecisionBasis`; at least one.
    """
    total, own, overdue = sum(by_basis.values()), sum(by_basis.get(basis, 0) for basis in OWN), by_basis.get(OVERDUE, 0)
    if own == total:
        return f"{total} by {escape(policy)} [dim]in this session[/]"
    parts = [f"{own} by {escape(policy)} ({_share(own, total)})"]
    if overdue:
        parts.append(f"[yellow]{overdue} by {WAIT_LIMIT} ({_share(overdue, total)})[/]")
    reasons = {basis: count for basis, count in by_basis.items() if count and basis not in (*OWN, OVERDUE)}
    if by_fallback := sum(reasons.values()):
        often_first = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
        told = ", ".join(
            (f"{count} " if len(reasons) > 1 else "") + reason.replace("_", " ") for reason, count in often_first
        )
        parts.append(f"[yellow]{by_fallback} by {FALLBACK} ({_share(by_fallback, total)}: {escape(told)})[/]")
    return f"{total} [dim]in this session:[/] {', '.join(parts)}"


def _share(part: int, whole: int) -> str:
    """A share in percent; a small one must not look like 0, nor a large one like 100."""
    return f"{100 * part / whole:.{0 if 0.1 <= part / whole < 0.995 else 1}f}%"


def mib_of(used: float, total: float) -> str:
    """Used and total memory: `4.2/15.8 GiB`."""
    return f"{used / 1024:.1f}/{total / 1024:.1f} GiB" if math.isfinite(used) else f"{UNKNOWN}/{total / 1024:.1f} GiB"


def percent(ratio: float | None) -> str:
    """A ratio 0..1 in percent."""
    return UNKNOWN if ratio is None or not math.isfinite(ratio) else f"{100 * ratio:.0f}%"


def number(value: float, unit: str = "", digits: int = 0) -> str:
    """A number with its unit; `-` for an unknown one."""
    return f"{value:.{digits}f}{unit}" if math.isfinite(value) else UNKNOWN


def bar(ratio: float, width: int = 10) -> str:
    """A bar of `width` characters for a ratio 0..1, with eighths at its end; dim for an unknown ratio."""
    if not math.isfinite(ratio):
        return f"[dim]{'·' * width}[/]"
    drawn, rest = _bar_parts(ratio, width)
    return f"[{load_style(ratio)}]{drawn}[/][dim]{rest}[/]"


def plain_bar(ratio: float | None, width: int = 10) -> str:
    """A bar as plain text; dots for an unknown ratio."""
    return "·" * width if ratio is None else "".join(_bar_parts(ratio, width))


def load_style(ratio: float) -> str:
    """The colour of a load 0..1; NaN: not known."""
    return "dim" if math.isnan(ratio) else "green" if ratio < 0.5 else "yellow" if ratio < 0.85 else "red"


def _bar_parts(ratio: float, width: int) -> tuple[str, str]:
    full, part = divmod(round(min(max(ratio, 0.0), 1.0) * width * 8), 8)
    drawn = "█" * full + ("" if part == 0 else " ▏▎▍▌▋▊▉"[part])
    return drawn, "░" * (width - len(drawn))


def state(job: Job) -> str:
    """The job's state, in its colour."""
    return f"[{STATE_STYLE[job.state]}]{job.state.name.lower()}[/]"


def why(job: Job, at: At | None = None, reservations: Mapping[str, JobReservation] | None = None) -> str:
    """The reason of a job's state, in a few words; rich markup."""
    return escape(why_text(job, at, reservations))


def why_text(
    job: Job, at: At | None = None, reservations: Mapping[str, JobReservation] | None = None, *, short: bool = False
) -> str:
    """The reason of a job's state, in a few words; plain text.

    Args:
        job: the job.
        at: times of the cluster's clock as text; None: as seconds.
        reservations: by job those that are held now; None: that of the job's record.
        short: of a usual reason little more than its name.
    """
    if job.state is JobState.PENDING:
        return pending_text(job, at or at_of(None), reservations, short=short)
    if job.cancel_requested and not job.state.final:
        return "being cancelled"
    return job.message if job.state in (JobState.FAILED, JobState.CANCELLED) else ""


def exit_text(attempt: JobAttempt | None) -> str:
    """How an attempt's program ended, in a word or two: `0`, `SIGKILL`, `time limit`; empty: not known."""
    status = attempt.exit if attempt is not None else None
    if status is None:
        return ""
    if status.reason is EndReason.EXITED:
        return str(status.code)
    if status.reason is EndReason.SIGNALLED:
        return signal_name(status.signal)
    return status.reason.name.lower().replace("_", " ")


def status_lines(status: dict[str, Any]) -> list[str]:
    """What an orchestrator's document says of its jobs and GPUs, in lines; of lag first, where there is much.

    A document of a server of an earlier release says nothing.
    """
    from adlro.records.status import LATE_EVENT_S

    lines = []
    lag = status["event_lag"]
    if lag is not None and lag["oldest_unapplied_s"] >= LATE_EVENT_S:
        age = seconds(lag["oldest_unapplied_s"])
        lines.append(
            f"[yellow]{lag['unapplied_count']} events behind the cluster, the oldest of {age} ago: these figures are "
            "old[/]"
        )
    if status["launching_count"]:
        lines.append(f"{status['launching_count']} of the running ones are being launched")
    if reasons := status["waiting_by_reason"]:
        texts = (f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.items())
        lines.append(f"waiting for: {', '.join(texts)}")
    if models := status["gpu_models"]:
        texts = (
            f"{each['allocated_count']} of {each['gpu_count']} {escape(each['gpu_model'])}"
            + (f" ({each['lost_count']} lost)" if each["lost_count"] else "")
            for each in models
        )
        lines.append(f"GPUs allocated: {', '.join(texts)}")
    return lines
