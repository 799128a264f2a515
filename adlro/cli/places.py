"""Where jobs run and what is kept free for them, as text for people. Pure functions on plain records; plain text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from adlro.cli.units_text import mib, seconds
from adlro.placement import GpuShare, Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job, JobReservation, JobSpec, PendingReason

At = Callable[[float], str]
"""A time of the cluster's clock as text: `about 14:05`."""

_MOST_NODES = 4
# Reasons whose names say nearly all to those who know them.
_PLAIN_REASONS = (PendingReason.RESOURCES, PendingReason.GANG_NODES, PendingReason.POLICY)
_DAY_S = 86400.0


def by_node(placement: Placement) -> dict[str, list[str]]:
    """A placement's GPUs by node, both by their ids: of `volta-0/2`, 2 on volta-0. Other ids stand for themselves."""
    found: dict[str, list[str]] = {}
    for each in placement.gpus:
        node, _, number = each.gpu_id.rpartition("/")
        found.setdefault(node, []).append(number + _share_text(each))
    return found


def _share_text(each: GpuShare) -> str:
    return "" if each.share == 1.0 else f" ({each.share:g} of it)"


def ranges(numbers: list[str]) -> str:
    """Numbers in a row as ranges: `0-3,6`; what is no number stands for itself."""
    if len(numbers) < 2 or not all(each.isdecimal() for each in numbers):
        return ",".join(numbers)
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def placement_text(placement: Placement, most_nodes: int = _MOST_NODES) -> str:
    """A placement in a few words: `volta-0/0-3, volta-1/0`; empty without a GPU.

    Args:
        placement: what to name, in the order of its ranks.
        most_nodes: of more nodes, the number of the others' GPUs stands at the end.
    """
    nodes = list(by_node(placement).items())
    shown = nodes[:most_nodes] if len(nodes) > most_nodes else nodes
    parts = [f"{node}/{ranges(numbers)}" if node else ranges(numbers) for node, numbers in shown]
    left = sum(len(numbers) for _, numbers in nodes[len(shown) :])
    return ", ".join(parts) + (f" and {left} more" if left else "")


def at_of(clock: Clock | None, now_unix_s: float | None = None) -> At:
    """Times of a cluster's clock as text: as the time of day where the clock runs with that of the wall.

    Args:
        clock: the cluster's clock now; None: not known.
        now_unix_s: wall time now.
    """
    now_s = time.time() if now_unix_s is None else now_unix_s
    if clock is None or clock.paused or clock.mode is ClockMode.VIRTUAL or clock.scale <= 0.0:
        return lambda time_s: f"about {seconds(time_s)} of cluster time" if math.isfinite(time_s) else "an unknown time"
    speed = clock.scale if clock.mode is ClockMode.SCALED else 1.0

    def at(time_s: float) -> str:
        away_s = (time_s - clock.time_s) / speed
        if not math.isfinite(away_s) or abs(away_s) > 1000 * _DAY_S:
            return "an unknown time"
        moment = datetime.fromtimestamp(now_s + away_s).astimezone()
        same_day = moment.date() == datetime.fromtimestamp(now_s).astimezone().date()
        return f"about {moment:%H:%M}" if same_day else f"about {moment:%a %d %b %H:%M}"

    return at


def needs_text(spec: JobSpec) -> str:
    """What a job asks for: `4 GPUs (v100_sxm2) on at most 2 nodes, each with 15.6 GiB, 2 cores, 8.0 GiB`."""
    several = spec.gpu_count > 1
    gpus = f"{spec.gpu_count} GPU{'s' if several else ''}"
    if spec.gpu_models:
        gpus += f" ({' or '.join(spec.gpu_models)})"
    if several and spec.max_node_count:
        gpus += " on one node" if spec.max_node_count == 1 else f" on at most {spec.max_node_count} nodes"
    gpus += " on nodes of its own" if spec.exclusive else ""
    cores = "1 core" if spec.cpu_cores == 1 else f"{spec.cpu_cores} cores"
    parts = [cores, mib(spec.memory_mib)]
    if several:
        return f"{gpus}, each with " + ", ".join([mib(spec.gpu_memory_mib)] * bool(spec.gpu_memory_mib) + parts)
    return gpus + (f" with {mib(spec.gpu_memory_mib)}" if spec.gpu_memory_mib else "") + ", " + ", ".join(parts)


def reservation_text(reservation: JobReservation, at: At) -> str:
    """Where and when a job is expected to start: `4 v100_sxm2 on volta-0, volta-1 from about 14:05`."""
    nodes = list(reservation.node_ids)
    shown = ", ".join(nodes[:_MOST_NODES])
    more = f" and {len(nodes) - _MOST_NODES} more nodes" if len(nodes) > _MOST_NODES else ""
    where = f" on {shown}{more}" if nodes else ""
    return f"{reservation.gpu_count} {reservation.gpu_model}{where} from {at(reservation.expected_start_s)}"


def pending_text(
    job: Job, at: At, reservations: Mapping[str, JobReservation] | None = None, *, short: bool = False
) -> str:
    """The reason why a pending job waits, with what is reserved for it or for the job that it waits for.

    Args:
        job: the job.
        at: times of the cluster's clock as text.
        reservations: by job those that are held now; None: that of the job's record.
        short: leaves out what the names of usual reasons say.
    """
    name = job.pending_reason.name.lower() if job.pending_reason is not PendingReason.NONE else ""
    text = "" if short and job.pending_reason in _PLAIN_REASONS else job.message
    if job.pending_reason is PendingReason.RESERVED and job.reserved_for_job_id:
        held = (reservations or {}).get(job.reserved_for_job_id)
        until_s = held.expected_start_s if held is not None else job.reserved_until_s
        until = f" until {at(until_s)}" if until_s is not None else ""
        text = f"{'for' if short else 'GPUs are kept free for'} {job.reserved_for_job_id}{until}"
    if job.pending_reason is PendingReason.HELD:  # its message says so
        name = ""
    own = job.reservation if reservations is None else reservations.get(job.job_id)
    if own is not None:
        text = f"{text}; " * bool(text) + f"reserved from {at(own.expected_start_s)}"
    return f"{name}: {text}" if text and name else text or name
