"""`adlro nodes`: every node with what is free of it, as `sinfo -N` and `kubectl get nodes` have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.listing.columns import Column, Kind, Listing
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Reading, View
from adlro.cli.reading import described, patience_s
from adlro.cli.shell import ServerOption, connect
from adlro.cli.units_text import UNKNOWN, mib
from adlro.errors import AdlroError, NotFound, PermissionDenied
from adlro.placement import NOWHERE
from adlro.records.cluster import Cluster, Node
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client

_STATE_STYLE = {"open": "green", "draining": "yellow", "drained": "yellow", "lost": "red"}


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of the table. What jobs hold is that of all jobs that run or are being launched.

    Attributes:
        node_id: its id.
        state: open, draining (drained, and jobs still run), drained, or lost: all of its GPUs are; None: the
            orchestrator does not answer.
        reason: of the drain, or why GPUs are lost.
        gpu_models: number of its GPUs by model.
        gpu_count: its GPUs.
        free_gpu_count: those that a job can have now: held by none, not lost, the node not drained; None: not known.
        lost_gpu_count: lost ones; None: the cluster does not answer.
        cpu_cores, memory_mib: what it has.
        used_cpu_cores, used_memory_mib: what jobs hold.
        job_ids: jobs on it.
    """

    node_id: str
    state: str | None
    reason: str
    gpu_models: Mapping[str, int]
    gpu_count: int
    free_gpu_count: int | None
    lost_gpu_count: int | None
    cpu_cores: int
    used_cpu_cores: int
    memory_mib: int
    used_memory_mib: int
    job_ids: tuple[str, ...] = field(default=())


def node_views(
    cluster: Cluster,
    holding: Iterable[Job],
    lost: Mapping[str, str] | None,
    drained: Mapping[str, str] | None,
) -> list[NodeView]:
    """The nodes of a cluster in its order.

    Args:
        cluster: its nodes and GPUs.
        holding: all jobs that hold GPUs.
        lost: lost GPUs, and why; None: not known.
        drained: drained nodes, and why; None: not known.
    """
    free, node_of = cluster.free(), {gpu.gpu_id: node.node_id for node, gpu in cluster.gpus()}
    jobs_on: dict[str, list[str]] = {}
    for job in holding:
        if not all(gpu_id in node_of for gpu_id in job.placement.gpu_ids):
            continue  # on a GPU that has left the cluster, with its node
        job.placement.take(free, job.spec, overdrawn=True)
        for node_id in dict.fromkeys(node_of[gpu_id] for gpu_id in job.placement.gpu_ids):
            jobs_on.setdefault(node_id, []).append(job.job_id)

    def view(node: Node) -> NodeView:
        gpu_ids = [gpu.gpu_id for gpu in node.gpus]
        gone = None if lost is None else [each for each in gpu_ids if each in lost]
        idle = [each for each in gpu_ids if free.gpus[each].has(1.0) and each not in (gone or ())]
        jobs = tuple(jobs_on.get(node.node_id, ()))
        state = None if drained is None else "open"
        reason = ""
        if drained is not None and node.node_id in drained:
            state, reason, idle = "draining" if jobs else "drained", drained[node.node_id], []
        if gone:
            state = "lost" if len(gone) == len(gpu_ids) else state
            why = ", ".join(dict.fromkeys(text for each in gone if (text := (lost or {})[each])))
            count = "" if state == "lost" else f"{len(gone)} lost"
            reason = "; ".join(each for each in (reason, ": ".join(part for part in (count, why) if part)) if each)
        left = free.nodes[node.node_id]
        if left.alone:
            idle, reason = [], "; ".join(each for each in (reason, f"{', '.join(jobs)}: exclusive") if each)
        return NodeView(
            node_id=node.node_id,
            state=state,
            reason=reason,
            gpu_models=Counter(gpu.gpu_model for gpu in node.gpus),
            gpu_count=len(gpu_ids),
            free_gpu_count=None if drained is None or gone is None else len(idle),
            lost_gpu_count=None if gone is None else len(gone),
            cpu_cores=node.cpu_cores,
            used_cpu_cores=node.cpu_cores - left.cpu_cores,
            memory_mib=node.memory_mib,
            used_memory_mib=node.memory_mib - left.memory_mib,
            job_ids=jobs,
        )

    return [view(node) for node in cluster.nodes]


def read_nodes(client: Client) -> tuple[list[NodeView], list[str]]:
    """All nodes now, and notes about what is not known. Needs only ingest.

    Raises:
        PermissionDenied: the caller may read only own jobs, so that what others hold would look free.
    """
    drained: Mapping[str, str] | None = None
    notes = []
    try:
        status = client.status()
        drained = {each: status.drain_reasons.get(each, "") for each in status.drained_node_ids}
    except PermissionDenied:
        raise
    except AdlroError as error:
        notes.append(f"which nodes are drained is not known: {error.message}")
    known = described(client)
    cluster = client.cluster() if known is None else known.cluster
    lost: dict[str, str] | None = None
    if known is None:
        notes.append("which GPUs are lost is not known: the cluster does not answer")
    else:
        lost = dict.fromkeys(known.lost_gpu_ids, "")
        lost |= {each.gpu_id: each.reason for each in known.gpu_conditions if each.gpu_id in lost}
    return node_views(cluster, holding_jobs(client), lost, drained), notes


def holding_jobs(client: Client) -> list[Job]:
    """The jobs that hold GPUs: they run, or are being launched."""
    from adlro.client import JobFilter

    found: dict[str, Job] = {}
    # In this order: one that starts meanwhile is in the second list.
    launching = JobFilter(states=(JobState.PENDING,), pending_reasons=(PendingReason.LAUNCHING,))
    for wanted in (launching, JobFilter(states=(JobState.RUNNING,))):
        for job in client.list(wanted):
            found[job.job_id] = job
    return [job for job in found.values() if job.placement != NOWHERE]


def models_text(models: Mapping[str, int]) -> str:
    """GPUs by model in a few words: `8x v100_sxm2`."""
    return ", ".join(f"{count}x {model}" for model, count in models.items()) or "none"


def _of(used: int, total: int) -> str:
    return f"{used}/{total}"


def _memory(values: Sequence[Any]) -> list[str]:
    return [f"{used / 1024:.0f}/{total / 1024:.0f}" for used, total in values]


def _mib(values: Sequence[Any]) -> list[str]:
    return [mib(each) for each in values]


def _pairs(values: Sequence[Any]) -> list[str]:
    return [_of(*each) for each in values]


def _state_style(view: NodeView) -> str:
    return _STATE_STYLE.get(view.state or "", "dim")


def _job_count(view: NodeView) -> int:
    return len(view.job_ids)


_NAMES = ("node", "state", "gpus", "free", "lost", "cores", "memory", "jobs", "reason")

NODES: Listing[NodeView] = Listing(
    "nodes",
    (
        Column("node", "id", lambda view: view.node_id, key="node_id"),
        Column("state", "open, draining, drained or lost", lambda view: view.state, style=_state_style),
        Column(
            "gpus",
            "its GPUs by model",
            lambda view: models_text(view.gpu_models),
            key="gpu_models",
            floors=(24, 17, 12),
            cut_after=1,
        ),
        Column("count", "number of its GPUs", lambda view: view.gpu_count, Kind.NUMBER, "gpu_count"),
        Column("free", "GPUs that a job can have now", lambda view: view.free_gpu_count, Kind.NUMBER, "free_gpu_count"),
        Column(
            "lost",
            "lost GPUs",
            lambda view: view.lost_gpu_count,
            Kind.NUMBER,
            key="lost_gpu_count",
            only_if=lambda view: bool(view.lost_gpu_count),
            style=lambda view: "red" if view.lost_gpu_count else "",
        ),
        Column(
            "cores",
            "CPU cores that jobs hold, of all",
            lambda view: (view.used_cpu_cores, view.cpu_cores),
            Kind.NUMBER,
            texts=_pairs,
            key="used_and_all_cpu_cores",
        ),
        Column(
            "memory",
            "memory that jobs hold, of all, in GiB",
            lambda view: (view.used_memory_mib, view.memory_mib),
            Kind.NUMBER,
            texts=_memory,
            head="MEM GIB",
            key="used_and_all_memory_mib",
        ),
        Column("used_cores", "CPU cores that jobs hold", lambda v: v.used_cpu_cores, Kind.NUMBER, "used_cpu_cores"),
        Column("all_cores", "CPU cores", lambda view: view.cpu_cores, Kind.NUMBER, "cpu_cores"),
        Column(
            "used_memory",
            "memory that jobs hold",
            lambda view: view.used_memory_mib,
            Kind.NUMBER,
            key="used_memory_mib",
            texts=_mib,
        ),
        Column("all_memory", "memory", lambda view: view.memory_mib, Kind.NUMBER, "memory_mib", texts=_mib),
        Column("jobs", "number of jobs on it", _job_count, Kind.NUMBER, "job_count"),
        Column("job_ids", "jobs on it", lambda view: ",".join(view.job_ids), floors=(40, 24, 12)),
        Column(
            "reason",
            "why it is drained, or GPUs are lost",
            lambda view: view.reason,
            floors=(24, 12, 6),
            only_if=lambda view: bool(view.reason),
        ),
    ),
    narrow=tuple(each for each in _NAMES if each != "lost"),
    standard=_NAMES,
    broad=_NAMES,
    wide=(
        *("node", "state", "gpus", "count", "free", "lost", "used_cores", "all_cores", "used_memory", "all_memory"),
        *("jobs", "reason", "job_ids"),
    ),
    row_id=lambda view: view.node_id,
    record=lambda view: view,
    example=NodeView("", None, "", {}, 0, None, None, 0, 0, 0, 0),
)


@with_view(NODES)
def nodes(
    view: View[NodeView],
    node: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Only these nodes. adlro describe node NODE has one in full."),
    ] = None,
    state: Annotated[
        str, typer.Option("--state", "-s", metavar="STATE", help="Only nodes that are open, draining, drained or lost.")
    ] = "",
    server: ServerOption = None,
) -> None:
    """Show every node: its GPUs and how many are free, the cores and memory that jobs hold, and why it is drained.

    What jobs hold is what they asked for, not what they use: adlro gpus shows that.
    """
    if state and state not in _STATE_STYLE:
        raise typer.BadParameter(f"{state!r}: there are {', '.join(_STATE_STYLE)}", param_hint="--state")

    def read() -> Reading[NodeView]:
        found, notes = read_nodes(client)
        chosen = only(found, node or ())
        rows = [each for each in chosen if not state or each.state == state]
        empty = f"No node is {state}." if state else "No nodes: nothing has described the cluster yet (adlro status)."
        told = [f"[yellow]{escape(each)}[/]" for each in notes]
        return Reading(rows, lambda rows: {"nodes": rows}, notes=[*told, *_total(rows)], empty=empty)

    with connect(server, patience_s=patience_s(view.every_s)) as client:
        view.show(read)


def only(found: Sequence[NodeView], names: Sequence[str]) -> list[NodeView]:
    """The nodes of these names, in the order of the cluster; without names all.

    Raises:
        NotFound: there is no node of a name.
    """
    known = {each.node_id for each in found}
    for name in names:
        if name not in known:
            raise NotFound(f"there is no node {name}; adlro nodes lists them")
    return [each for each in found if not names or each.node_id in names]


def _total(views: Sequence[NodeView]) -> list[str]:
    if len(views) < 2:
        return []
    free = [each.free_gpu_count for each in views]
    known = UNKNOWN if None in free else str(sum(each or 0 for each in free))
    return [f"[dim]{len(views)} nodes, {sum(each.gpu_count for each in views)} GPUs, {known} of them free[/]"]
