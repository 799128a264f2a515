"""Records as text for people: cells, bars, durations. Pure functions on plain records; rich markup, nothing printed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table

from adlro.cli.documents import runtime_s, wait_s
from adlro.cli.shell import plain_table
from adlro.records.jobs import Job, JobState, JobType, PendingReason
from adlro.terminal import escape

STATE_STYLE = {
    JobState.PENDING: "yellow",
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}

TYPE_SHORT = {
    JobType.SIMULATION: "simulation",
    JobType.MACHINE_LEARNING: "ml",
    JobType.DATA_PROCESSING: "data",
}

# Names of who decides if the selected policy does not.
WAIT_LIMIT, FALLBACK = "the limit on waits", "hold_greedy_fixed"
# Names of `DecisionBasis` (not imported, to avoid gRPC): decisions of the policy itself, and of the limit on waits. The
# other decisions are the fallback's.
OWN, OVERDUE = ("policy", "margin"), "overdue"

UNKNOWN = "-"
# Width of a screen, in columns, from which tables show all columns.
WIDE = 110


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


def seconds(value: float | None) -> str:
    """A duration or a time of the cluster's clock: `8.3 s`, `12m 5s`, `3h 20m`, `50d 4h`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value < 99.95:
        return f"{sign}{value:.1f} s"
    whole = round(value)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{sign}{days}d {hours}h"
    if hours:
        return f"{sign}{hours}h {minutes}m"
    return f"{sign}{minutes}m {left}s"


def mib(value: float | None) -> str:
    """Memory: `512 MiB`, `15.8 GiB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


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
    eighths = round(min(max(ratio, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + ("" if part == 0 else " ▏▎▍▌▋▊▉"[part])
    style = "green" if ratio < 0.5 else "yellow" if ratio < 0.85 else "red"
    return f"[{style}]{drawn}[/][dim]{'░' * (width - len(drawn))}[/]"


def state(job: Job) -> str:
    """The job's state, in its colour."""
    return f"[{STATE_STYLE[job.state]}]{job.state.name.lower()}[/]"


def why(job: Job) -> str:
    """The reason of a job's state, in a few words."""
    if job.state is JobState.PENDING:
        name = job.pending_reason.name.lower() if job.pending_reason is not PendingReason.NONE else ""
        return escape(f"{name}: {job.message}" if job.message else name)
    if job.cancel_requested and not job.state.final:
        return "being cancelled"
    return escape(job.message) if job.state in (JobState.FAILED, JobState.CANCELLED) else ""


def job_table(jobs: list[Job], now_s: float | None = None, width: int = WIDE) -> Table:
    """Jobs, one per line; on a screen of less than `WIDE` columns only the most important columns.

    With the cluster time, also the times that unfinished jobs have waited or run so far.
    """
    shown = ["JOB", "NAME", "USER", "TYPE", "PRIO", "STATE", "GPU", "WAIT", "RUN", "JCT", "WHY"]
    if width < WIDE:
        shown = ["JOB", "NAME", "STATE", "GPU", "WAIT", "RUN", "WHY"]
    table = plain_table(*shown, right={"PRIO", "WAIT", "RUN", "JCT"}, wrapped={"WHY"})
    table.columns[1].max_width = 24 if width >= WIDE else 16
    for job in jobs:
        waited_s, ran_s = wait_s(job), runtime_s(job)
        if now_s is not None and job.state is JobState.PENDING:
            waited_s = now_s - job.submit_s if job.submit_s is not None and now_s >= job.submit_s else None
        elif now_s is not None and job.state is JobState.RUNNING and job.start_s is not None:
            ran_s = max(now_s - job.start_s, 0.0)
        cells = {
            "JOB": escape(job.job_id),
            "NAME": escape(job.spec.name),
            "USER": escape(job.spec.user),
            "TYPE": TYPE_SHORT[job.spec.job_type],
            "PRIO": f"{job.spec.priority:.2f}",
            "STATE": state(job),
            "GPU": escape(job.gpu_id or UNKNOWN),
            "WAIT": seconds(waited_s),
            "RUN": seconds(ran_s),
            "JCT": seconds(job.jct_s),
            "WHY": why(job),
        }
        table.add_row(*(cells[name] for name in shown))
    return table
