"""One picture of the cluster: plain text, or a JSON document. rich draws the text; no Textual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from adlro.cli.documents import document
from adlro.cli.top.gpu_cells import GpuCell, StripMetric, legend, strip
from adlro.cli.top.head import Head, head_lines
from adlro.cli.top.job_rows import JobEntry, Moment, cells_of, columns_for, ran_now_s, row_text, wait_now_s
from adlro.cli.top.lines import Line
from adlro.cli.top.model import TopModel
from adlro.records.jobs import JobState
from adlro.records.telemetry import Metric

STYLES = {
    "": "",
    "dim": "dim",
    "bold": "bold",
    "accent": "cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
}
"""The looks as rich's styles."""

_WIDEST = 160
_STRIP_LINES = 64


def print_once(
    console: Console, model: TopModel, head: Head, entries: Sequence[JobEntry], now: Moment, *, left_out: int
) -> None:
    """Prints head, GPUs and jobs.

    Args:
        console: where; in a pipe at most 160 columns are used.
        model: what is known.
        head: made of it.
        entries: the jobs to show, in their order.
        now: for waits and runtimes.
        left_out: jobs that a limit left out.
    """
    width = min(console.width, _WIDEST)
    lines = head_lines(head, width, most_problems=100)
    cells = model.cells()
    if cells:
        drawn, fold = strip(cells, StripMetric.STATE, width, _STRIP_LINES)
        lines += [[], *drawn, legend(StripMetric.STATE, fold, width)[1:]]
    lines.append([])
    columns = columns_for(width)
    lines.append([(" ".join(row_text({each.head: each.head for each in columns}, columns)).rstrip(), "bold")])
    for entry in entries:
        cells_text = cells_of(entry, now, model.expected.get(entry.job.job_id), model.starts.get(entry.job.job_id))
        texts = row_text(cells_text, columns)
        line: Line = []
        for text, column in zip(texts, columns, strict=True):
            look = row_look(entry, column.head)
            line.append((text + " ", look))
        lines.append(line)
    if not entries:
        lines.append([("no open job is shown", "dim")])
    if left_out:
        lines.append([(f"and {left_out} more jobs", "dim")])
    for each in lines:
        console.print(as_text(each), soft_wrap=True)


def row_look(entry: JobEntry, head: str) -> str:
    """The look of a cell of the job table."""
    if head == "JOB":
        return "accent"
    if head == "STATE":
        return "warn" if entry.waiting else "good"
    if head in ("USER", "TYPE", "PRIO"):
        return "dim"
    return ""


def as_text(line: Line) -> Text:
    """A line as rich's text; nothing in it is markup."""
    text = Text(no_wrap=True)
    for part, look in line:
        text.append(part, STYLES[look])
    text.rstrip()
    return text


# ---- JSON


def once_document(
    model: TopModel, head: Head, entries: Sequence[JobEntry], now: Moment, *, left_out: int
) -> dict[str, Any]:
    """The picture as a document; docs/top.md describes it."""
    told = document(head)
    told["feeds"] = {
        str(feed): {"state": str(state), "why": why, "age_s": document(age_s)}
        for feed, (state, why, age_s) in head.feeds.items()
    }
    return {
        "unix_s": now.unix_s,
        **told,
        "gpus": [_gpu(each) for each in model.cells()],
        "jobs": [_job(each, now, model) for each in entries],
        "jobs_left_out": left_out,
    }


def _gpu(cell: GpuCell) -> dict[str, Any]:
    raw = {metric: document(value) for metric, value in cell.raw.items()}
    return {
        "gpu_id": cell.gpu_id,
        "node_id": cell.node_id,
        "gpu_model": cell.gpu_model,
        "state": str(cell.mode),
        "why": cell.why,
        "job_ids": list(cell.job_ids),
        "utilization_ratio": raw.get(Metric.UTILIZATION),
        "memory_used_mib": raw.get(Metric.MEMORY_USED),
        "memory_mib": cell.memory_mib,
        "memory_bandwidth_gb_per_s": raw.get(Metric.MEMORY_BANDWIDTH),
        "temperature_c": raw.get(Metric.TEMPERATURE),
        "power_w": raw.get(Metric.POWER),
        "speed_ratio": document(cell.drift.speed_ratio) if cell.drift.job_count else None,
        "drift_flagged": cell.drift.flagged,
    }


def _job(entry: JobEntry, now: Moment, model: TopModel) -> dict[str, Any]:
    job = entry.job
    expected = model.expected.get(job.job_id)
    start = model.starts.get(job.job_id)
    start_low_s, start_high_s = start.in_s(now) if start is not None else (None, None)
    return {
        "job_id": job.job_id,
        "name": job.spec.name,
        "user": job.spec.user,
        "job_type": job.spec.job_type.label,
        "state": job.state.name.lower(),
        "pending_reason": job.pending_reason.name.lower() if job.state is JobState.PENDING else None,
        "message": job.message,
        "priority": job.spec.priority,
        "gpu_ids": list(job.placement.gpu_ids),
        "gpu_model": job.gpu_model,
        "gpu_count": job.spec.gpu_count,
        "wait_s": document(wait_now_s(job, now)),
        "ran_s": document(ran_now_s(job, now)),
        "expected_runtime_s": document(expected.median_s) if expected is not None else None,
        "expected_low_s": document(expected.low_s) if expected is not None else None,
        "expected_high_s": document(expected.high_s) if expected is not None else None,
        "start_in_low_s": document(start_low_s),
        "start_in_high_s": document(start_high_s),
        "cancel_requested": job.cancel_requested,
    }
