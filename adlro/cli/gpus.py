"""`adlro gpus`: every GPU with its job and its metrics; also the GPU view of the demo."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli import render
from adlro.cli.listing.columns import BROAD, Column, Kind, Listing
from adlro.cli.listing.layout import TextTable
from adlro.cli.listing.options import make_view, with_view
from adlro.cli.listing.view import Reading, View
from adlro.cli.option_types import TIME, interval
from adlro.cli.reading import patience_s
from adlro.cli.shell import ServerOption, connect
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


def _job(view: GpuView) -> str:
    """Its jobs, or why it has none."""
    text = view.job_id or view.state
    if view.partner_job_id:
        text += f" and {view.partner_job_id}"
    if view.state == "drained" and view.drain_reason:
        text += f" {view.drain_reason}"
    return f"{text} {view.condition}" if view.condition else text


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _unit(unit: str) -> Callable[[Sequence[Any]], list[str]]:
    return lambda values: [render.UNKNOWN if each is None else f"{each:.0f}{unit}" for each in values]


def _percents(values: Sequence[Any]) -> list[str]:
    return [render.percent(each) for each in values]


def _mib(values: Sequence[Any]) -> list[str]:
    return [render.mib(each) for each in values]


def _bars(values: Sequence[Any]) -> list[str]:
    return [render.plain_bar(each, 6) for each in values]


def _load_style(view: GpuView) -> str:
    return render.load_style(view.utilization_ratio)


def _of_gpu(name: str, about: str, value: Callable[[GpuView], float], unit: str, key: str) -> Column[GpuView]:
    return Column(name, about, lambda view: _known(value(view)), Kind.NUMBER, key, texts=_unit(unit))


_NARROW = ("gpu", "model", "job", "bar", "busy", "memory", "temp", "power")

_STANDARD = (*_NARROW[:3], "name", *_NARROW[3:])

GPUS: Listing[GpuView] = Listing(
    "gpus",
    (
        Column("gpu", "id", lambda view: view.gpu_id, key="gpu_id"),
        Column("node", "its node", lambda view: view.node_id, key="node_id"),
        Column("model", "GPU model", lambda view: view.gpu_model, key="gpu_model"),
        Column("state", "idle, busy, drained or lost", lambda view: view.state, style=lambda v: _STATE_STYLE[v.state]),
        Column("job", "its jobs, or why it has none", _job, floors=(30, 18, 10), style=lambda v: _STATE_STYLE[v.state]),
        Column("name", "name of its job", lambda view: view.job_name, floors=(24, 16, 8), style=lambda _: "dim"),
        Column(
            "bar",
            "utilization, drawn",
            lambda view: _known(view.utilization_ratio),
            head="BUSY",
            texts=_bars,
            style=_load_style,
        ),
        Column(
            "busy",
            "utilization",
            lambda view: _known(view.utilization_ratio),
            Kind.NUMBER,
            "utilization_ratio",
            head=" ",
            texts=_percents,
        ),
        Column(
            "memory",
            "used and total memory",
            lambda view: (view.memory_used_mib, view.memory_mib),
            texts=lambda values: [render.mib_of(*each) for each in values],
            key="memory_used_and_total_mib",
        ),
        Column("used", "used memory", lambda v: _known(v.memory_used_mib), Kind.NUMBER, "memory_used_mib", texts=_mib),
        Column("total", "total memory", lambda view: view.memory_mib, Kind.NUMBER, "memory_mib", texts=_mib),
        _of_gpu("bandwidth", "memory bandwidth", lambda v: v.memory_bandwidth_gb_per_s, " GB/s", "bandwidth_gb_per_s"),
        _of_gpu("temp", "temperature", lambda view: view.temperature_c, " °C", "temperature_c"),
        _of_gpu("power", "power", lambda view: view.power_w, " W", "power_w"),
    ),
    narrow=_NARROW,
    standard=_STANDARD,
    broad=_STANDARD,
    wide=("gpu", "node", "model", "state", "job", "name", "busy", "used", "total", "bandwidth", "temp", "power"),
    row_id=lambda view: view.gpu_id,
    record=lambda view: view,
    example=GpuView("", "", "", "idle", "", "", 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0),
)


def gpu_table(views: Sequence[GpuView], width: int = BROAD) -> TextTable[GpuView]:
    """One GPU per line; on a narrow screen without the jobs' names."""
    return TextTable(make_view(GPUS).columns(width, views), views)


@with_view(GPUS)
def gpus(
    view: View[GpuView],
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval",
            "--interval-s",
            parser=interval,
            metavar=TIME,
            help="With --watch: time between updates, as --watch TIME.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Show every GPU: its job, utilization, memory, temperature, power.

    With --watch -o json: one document a line.
    """
    if view.every_s is not None and interval_s is not None:
        view = replace(view, every_s=interval_s)
    with connect(server, patience_s=patience_s(view.every_s)) as client:
        view.show(lambda: _read(client, view))


def _read(client: Client, view: View[GpuView]) -> Reading[GpuView]:
    drift = drift_text(client) if view.every_s is None and view.format.is_table else ""
    return Reading(
        read_gpus(client),
        lambda rows: {"gpus": rows},
        findings=[f"[dim]drift[/] {drift}"] if drift else [],
        empty="No GPUs: the cluster has none, or nothing has described it yet (adlro status).",
    )
