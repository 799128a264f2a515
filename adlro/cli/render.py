"""Records as text for people: cells, bars, durations. Pure functions on plain records; rich markup, nothing printed."""

from __future__ import annotations

import math

from rich.markup import escape
from rich.table import Table

from adlro.cli.documents import wait_s
from adlro.cli.shell import plain_table
from adlro.jobs import Job, JobState, JobType, PendingReason

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

UNKNOWN = "-"


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


def percent(ratio: float | None) -> str:
    """A ratio 0..1 in percent."""
    return UNKNOWN if ratio is None or not math.isfinite(ratio) else f"{100 * ratio:.0f}%"


def number(value: float, unit: str = "", digits: int = 0) -> str:
    """A number with its unit; `-` where it is not known."""
    return f"{value:.{digits}f}{unit}" if math.isfinite(value) else UNKNOWN


def bar(ratio: float, width: int = 10) -> str:
    """A bar of `width` characters for a ratio 0..1, with eighths at its end; dim where it is not known."""
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
    """In a few words why a job stands where it stands."""
    if job.state is JobState.PENDING:
        name = job.pending_reason.name.lower() if job.pending_reason is not PendingReason.NONE else ""
        return escape(f"{name}: {job.message}" if job.message else name)
    if job.cancel_requested and not job.state.final:
        return "being cancelled"
    return escape(job.message) if job.state in (JobState.FAILED, JobState.CANCELLED) else ""


def job_table(jobs: list[Job]) -> Table:
    """Jobs, one a line."""
    table = plain_table(
        "JOB",
        "NAME",
        "USER",
        "TYPE",
        "PRIO",
        "STATE",
        "GPU",
        "SUBMIT",
        "WAIT",
        "JCT",
        "WHY",
        right=(
            "PRIO",
            "SUBMIT",
            "WAIT",
            "JCT",
        ),
    )
    for job in jobs:
        table.add_row(
            job.job_id,
            escape(job.spec.name),
            escape(job.spec.user),
            TYPE_SHORT[job.spec.job_type],
            f"{job.spec.priority:.2f}",
            state(job),
            job.gpu_id or UNKNOWN,
            seconds(job.submit_s),
            seconds(wait_s(job)),
            seconds(job.jct_s),
            why(job),
        )
    return table
