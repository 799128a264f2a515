"""`adlro gpus`: every GPU with its job and its metrics; also the GPU view of the demo."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table

from adlro.cli import render
from adlro.cli.option_types import TIME, interval
from adlro.cli.shell import (
    PATIENCE_S,
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    emit_json_line,
    ended_by_sigterm,
    plain_table,
    stdout,
)
from adlro.errors import AdlroError, PermissionDenied
from adlro.records.jobs import Job, JobState
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client, Metric, Telemetry
    from adlro.records.cluster import Cluster


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of the tables; NaN: not reported. `state` is idle, busy, drained or lost.

    `drain_reason`: the reason of its node's drain, also while jobs still run there. `condition`: the reason why it is
    lost, where the cluster knows it. `partner_job_id`: the second of two jobs that share it.
    """

    gpu_id: str
    node_id: str
    gpu_model: str
    state: str
    job_id: str
    job_name: str
    utilization_ratio: float
    memory_used_mib: float
    memory_mib: int
    memory_bandwidth_gb_per_s: float
    temperature_c: float
    power_w: float
    sample_age_s: float
    drain_reason: str = ""
    condition: str = ""
    partner_job_id: str = ""


def gpu_views(
    cluster: Cluster,
    running: Sequence[Job],
    telemetry: Telemetry | None,
    lost_gpu_ids: Sequence[str] = (),
    drained_node_ids: Sequence[str] = (),
    drain_reasons: Mapping[str, str] | None = None,
    now_unix_s: float | None = None,
    conditions: Mapping[str, str] | None = None,
) -> list[GpuView]:
    """The GPUs of a cluster in its order, with their jobs and newest samples."""
    from adlro.client import Metric

    jobs_on: dict[str, list[Job]] = {}
    for each in running:
        for gpu_id in each.placement.gpu_ids:
            jobs_on.setdefault(gpu_id, []).append(each)
    latest = telemetry.latest if telemetry is not None else None
    column_of = {gpu_id: number for number, gpu_id in enumerate(latest.gpu_ids)} if latest is not None else {}
    now_s = time.time() if now_unix_s is None else now_unix_s

    def value(metric: Metric, gpu_id: str) -> float:
        if latest is None or metric not in latest.columns or gpu_id not in column_of or not latest.sample_times_unix_s:
            return float("nan")
        return float(latest.columns[metric].raw[-1, column_of[gpu_id]])

    views = []
    for node, gpu in cluster.gpus():
        job, partner = [*jobs_on.get(gpu.gpu_id, ()), None, None][:2]
        state = "idle" if job is None else "busy"
        if gpu.gpu_id in lost_gpu_ids:
            state = "lost"
        elif job is None and node.node_id in drained_node_ids:
            state = "drained"
        known = latest is not None and gpu.gpu_id in column_of and bool(latest.sample_times_unix_s)
        views.append(
            GpuView(
                gpu_id=gpu.gpu_id,
                node_id=node.node_id,
                gpu_model=gpu.gpu_model,
                state=state,
                job_id=job.job_id if job else "",
                job_name=job.spec.name if job else "",
                utilization_ratio=value(Metric.UTILIZATION, gpu.gpu_id),
                memory_used_mib=value(Metric.MEMORY_USED, gpu.gpu_id),
                memory_mib=gpu.memory_mib,
                memory_bandwidth_gb_per_s=value(Metric.MEMORY_BANDWIDTH, gpu.gpu_id),
                temperature_c=value(Metric.TEMPERATURE, gpu.gpu_id),
                power_w=value(Metric.POWER, gpu.gpu_id),
                sample_age_s=now_s - latest.sample_times_unix_s[-1] if known and latest is not None else float("nan"),
                drain_reason=(drain_reasons or {}).get(node.node_id, ""),
                condition=(conditions or {}).get(gpu.gpu_id, ""),
                partner_job_id=partner.job_id if partner else "",
            )
        )
    return views


def read_gpus(client: Client) -> list[GpuView]:
    """All GPUs now. Needs only ingest; without an answer, data of the cluster and the orchestrator are left out.

    Raises:
        PermissionDenied: the caller may read only own jobs, so other users' GPUs would look idle.
    """
    from adlro.client import JobFilter

    cluster = client.cluster()
    telemetry: Telemetry | None = None
    try:
        telemetry = client.telemetry()
    except PermissionDenied:
        raise
    except AdlroError:
        pass
    running = list(client.list(JobFilter(states=(JobState.RUNNING,))))
    lost: tuple[str, ...] = ()
    conditions: dict[str, str] = {}
    drained: tuple[str, ...] = ()
    drain_reasons: Mapping[str, str] = {}
    with contextlib.suppress(AdlroError):
        described = client.describe_cluster()
        lost = described.lost_gpu_ids
        conditions = {each.gpu_id: each.reason for each in described.gpu_conditions}
    with contextlib.suppress(AdlroError):
        status = client.status()
        drained, drain_reasons = status.drained_node_ids, status.drain_reasons
    return gpu_views(cluster, running, telemetry, lost, drained, drain_reasons, conditions=conditions)


def drift_text(client: Client) -> str:
    """What is known of GPUs that are slower than their model, in a line; empty: nothing is."""
    try:
        planes = client.cluster_planes()
    except AdlroError:  # the table needs ingest alone
        return ""
    summary = planes.drift_summary
    flagged = {gpu_id: drift for gpu_id, drift in planes.drifts.items() if drift.flagged}
    text = ""
    if flagged:
        names = ", ".join(f"{escape(gpu_id)} ({each.speed_ratio:.0%})" for gpu_id, each in list(flagged.items())[:5])
        more = f" and {len(flagged) - 5} more" if len(flagged) > 5 else ""
        text = f"[yellow]{len(flagged)} slower than their model: {names}{more} of its speed[/]"
    if suspected := summary.suspected_count - len(flagged):
        about = max(0.0, summary.suspected_by_chance_count)
        text += f"{'; ' if text else ''}{suspected} suspected, about {about:.1g} by chance"
    return text


_STATE_STYLE = {"idle": "dim", "busy": "cyan", "drained": "yellow", "lost": "red"}


def gpu_table(views: Sequence[GpuView], width: int = render.WIDE) -> Table:
    """One GPU per line; on a narrow screen without the jobs' names."""
    wide = width >= render.WIDE
    table = plain_table("GPU", "MODEL", "JOB", "BUSY", "", "MEMORY", "TEMP", "POWER", right=("", "TEMP", "POWER"))
    for each in views:
        job = f"[cyan]{escape(each.job_id)}[/]" if each.job_id else f"[{_STATE_STYLE[each.state]}]{each.state}[/]"
        if each.partner_job_id:
            job += f" and [cyan]{escape(each.partner_job_id)}[/]"
        elif wide and each.job_name and each.job_name != each.job_id:
            job += f" [dim]{escape(each.job_name)}[/]"
        if each.state == "drained" and each.drain_reason:
            job += f" [dim]{escape(each.drain_reason)}[/]"
        if each.condition:
            job += f" [red]{escape(each.condition)}[/]"
        table.add_row(
            escape(each.gpu_id),
            escape(each.gpu_model),
            job,
            render.bar(each.utilization_ratio, 10 if wide else 6),
            render.percent(each.utilization_ratio),
            render.mib_of(each.memory_used_mib, each.memory_mib),
            render.number(each.temperature_c, " °C"),
            render.number(each.power_w, " W"),
        )
    return table


def gpus(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the display until Ctrl-C.")] = False,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval", "--interval-s", parser=interval, metavar=TIME, help="With --watch: time between updates."
        ),
    ] = 1.0,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every GPU: its job, utilization, memory, temperature, power.

    With --watch -o json: one document a line.
    """
    with connect(server, patience_s=30.0 if watch else PATIENCE_S) as client:
        if output is Output.JSON:
            emit = emit_json_line if watch else emit_json
            emit({"gpus": read_gpus(client)})
            while watch:
                time.sleep(interval_s)
                emit({"gpus": read_gpus(client)})
            return
        console = stdout()
        if not watch:
            console.print(gpu_table(read_gpus(client), console.width))
            if drift := drift_text(client):
                console.print(f"[dim]drift[/] {drift}")
        elif not console.is_terminal:
            while True:
                console.print(gpu_table(read_gpus(client), console.width))
                console.print()
                time.sleep(interval_s)
        else:
            table = gpu_table(read_gpus(client), console.width)
            with ended_by_sigterm(), Live(table, console=console, auto_refresh=False) as live:
                while True:
                    time.sleep(interval_s)
                    live.update(gpu_table(read_gpus(client), console.width), refresh=True)
