"""The report of a replay: figures from the jobs' own times, as a JSON document and as tables.

Times are cluster time in seconds. Definitions: JCT = end - submission (or begin time); wait = last start - submission;
makespan = first submission to last end; throughput = ended jobs / makespan; utilization of a GPU model = time that
attempts held its GPUs / (its GPUs x makespan).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from adlro.cli import render
from adlro.cli.documents import wait_s
from adlro.cli.replaying import ReplayResult
from adlro.cli.shell import plain_table
from adlro.cli.stops import stop_count
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job, JobState, JobType
from adlro.terminal import escape


def build_report(result: ReplayResult, source: dict[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    """The document of a replay.

    Args:
        result: the jobs and the cluster.
        source: description of the replayed list; copied into the document.
        notes: notes about the figures, for readers.
    """
    jobs = result.jobs
    # A job cancelled before the orchestrator took it up has no times.
    submits = [job.submit_s for job in jobs if job.submit_s is not None]
    ends = [job.end_s for job in jobs if job.end_s is not None]
    first_s, last_s = (min(submits), max(ends)) if submits and ends else (result.begin_s, result.begin_s)
    makespan_s = last_s - first_s
    return {
        "replay_id": result.replay_id,
        "source": source,
        "policy": result.policy,
        "jobs": {
            "total": len(jobs),
            **{state.name.lower(): sum(job.state is state for job in jobs) for state in JobState if state.final},
            "several_attempts": sum(job.attempt_count > 1 for job in jobs),
            "stops": sum(map(stop_count, jobs)),
        },
        "jct_s": _statistics(job.jct_s for job in jobs),
        "wait_s": _statistics(wait_s(job) for job in jobs),
        "by_job_type": {
            job_type.label: {
                "jobs": len(of_type),
                "jct_s": _statistics(job.jct_s for job in of_type),
                "wait_s": _statistics(wait_s(job) for job in of_type),
            }
            for job_type in JobType
            if (of_type := [job for job in jobs if job.spec.job_type is job_type])
        },
        "first_submit_s": first_s,
        "last_end_s": last_s,
        "makespan_s": makespan_s,
        "throughput_jobs_per_h": 3600.0 * len(ends) / makespan_s if makespan_s > 0 else None,
        "utilization": _utilization(jobs, result.cluster, makespan_s),
        "elapsed_s": result.elapsed_s,
        "notes": list(notes),
    }


def placements(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Each job of the list, in its order: its requested index, its GPUs (`gpu_id`: the first) and its times."""
    return [
        {
            "index": index,
            "job_id": job.job_id,
            "state": job.state.name.lower(),
            "job_type": job.spec.job_type.label,
            "submit_s": job.submit_s,
            "start_s": job.start_s,
            "end_s": job.end_s,
            "jct_s": job.jct_s,
            "gpu_id": job.gpu_id,
            "gpu_ids": list(job.placement.gpu_ids),
            "gpu_model": job.gpu_model,
            "attempts": job.attempt_count,
            "stops": stop_count(job),
        }
        for index, job in enumerate(jobs)
    ]


def _statistics(values: Iterable[float | None]) -> dict[str, float | None]:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not known.size:
        return dict.fromkeys(("mean", "median", "p95", "p99", "max"))
    median, p95, p99 = np.percentile(known, [50, 95, 99])
    return {
        "mean": float(known.mean()),
        "median": float(median),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(known.max()),
    }


def _utilization(jobs: Sequence[Job], cluster: Cluster, makespan_s: float) -> dict[str, Any]:
    gpu_count = dict.fromkeys(cluster.gpu_models, 0)
    for _, gpu in cluster.gpus():
        gpu_count[gpu.gpu_model] += 1
    busy_s = dict.fromkeys(gpu_count, 0.0)
    for job in jobs:
        for attempt in job.attempts:
            if attempt.start_s is not None and attempt.end_s is not None and attempt.gpu_model in busy_s:
                busy_s[attempt.gpu_model] += len(attempt.placement.gpus) * (attempt.end_s - attempt.start_s)

    def ratio(busy: float, gpus: int) -> float | None:
        return busy / (gpus * makespan_s) if makespan_s > 0 and gpus else None

    return {
        "overall": ratio(sum(busy_s.values()), sum(gpu_count.values())),
        "by_gpu_model": {
            model: {"gpus": count, "utilization": ratio(busy_s[model], count)} for model, count in gpu_count.items()
        },
    }


def print_report(console: Console, report: dict[str, Any]) -> None:
    """The report for people."""
    jobs = report["jobs"]
    rest = [f"{jobs[name]} {name}" for name in ("failed", "cancelled") if jobs[name]]
    if jobs["several_attempts"]:
        rest.append(f"{jobs['several_attempts']} took several attempts")
    if stops := jobs["stops"]:
        rest.append("1 stop for another job" if stops == 1 else f"{stops} stops for other jobs")
    console.print(
        f"\n[bold]{jobs['total']} jobs under {escape(report['policy'])}[/]: {jobs['succeeded']} succeeded"
        + "".join(f", {each}" for each in rest)
    )
    table = plain_table(
        "",
        "JOBS",
        "MEAN JCT",
        "P95 JCT",
        "P99 JCT",
        "MEAN WAIT",
        "P95 WAIT",
        right=("JOBS", "MEAN JCT", "P95 JCT", "P99 JCT", "MEAN WAIT", "P95 WAIT"),
    )
    for name, row in [*report["by_job_type"].items(), ("all", {**report, "jobs": jobs["total"]})]:
        table.add_row(
            name.replace("_", " "),
            str(row["jobs"]),
            render.seconds(row["jct_s"]["mean"]),
            render.seconds(row["jct_s"]["p95"]),
            render.seconds(row["jct_s"]["p99"]),
            render.seconds(row["wait_s"]["mean"]),
            render.seconds(row["wait_s"]["p95"]),
            style="bold" if name == "all" else "",
        )
    console.print(table)
    throughput = report["throughput_jobs_per_h"]
    console.print(
        f"\nmakespan {render.seconds(report['makespan_s'])}, throughput "
        + (f"{throughput:,.0f} jobs/h" if throughput is not None else render.UNKNOWN)
        + f"; replayed in {report['elapsed_s']:.1f} s of wall time"
    )
    models = report["utilization"]["by_gpu_model"]
    console.print(
        "utilization "
        + ", ".join(
            f"{model} ({each['gpus']}) [bold]{render.percent(each['utilization'])}[/]" for model, each in models.items()
        )
        + f", all [bold]{render.percent(report['utilization']['overall'])}[/]"
    )
    if report["notes"]:
        console.print()
        for note in report["notes"]:
            console.print(f"[dim]- {escape(note)}[/]")


def comparison_table(reports: Sequence[dict[str, Any]]) -> Table:
    """A table of several replays of one job list, the policies as groups of columns."""
    names = [report["policy"] for report in reports]
    columns = [f"{kind} {name}" for kind in ("mean JCT", "p95 JCT") for name in names]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("jobs", justify="right")
    for column in columns:
        table.add_column(column, justify="right")
    for job_type in reports[0]["by_job_type"]:
        rows = [report["by_job_type"][job_type] for report in reports]
        table.add_row(job_type.replace("_", " "), str(rows[0]["jobs"]), *_jct_cells(rows))
    table.add_row("all", str(reports[0]["jobs"]["total"]), *_jct_cells(reports), style="bold")
    return table


def _jct_cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [render.seconds(row["jct_s"][key]) for key in ("mean", "p95") for row in rows]


def whole_table(reports: Sequence[dict[str, Any]]) -> Table:
    """A table of the figures of whole replays, one column per policy."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for report in reports:
        table.add_column(report["policy"], justify="right")
    table.add_row("throughput, jobs/h", *(f"{report['throughput_jobs_per_h']:,.0f}" for report in reports))
    table.add_row("makespan", *(render.seconds(report["makespan_s"]) for report in reports))
    for model, first in reports[0]["utilization"]["by_gpu_model"].items():
        table.add_row(
            f"utilization of {first['gpus']} {model}",
            *(render.percent(report["utilization"]["by_gpu_model"][model]["utilization"]) for report in reports),
        )
    table.add_row("utilization of all", *(render.percent(report["utilization"]["overall"]) for report in reports))
    return table
