"""The figures at the head of every page, and what needs a person: alerts in words. Pure functions of the picture.

A figure that is not known is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from adlro.records.decisions import DecisionBasis
from adlro.records.events import ClockMode
from adlro.records.status import LATE_EVENT_S, OrchestratorStatus
from adlro.services.web.documents import number
from adlro.services.web.picture import LOST, NOT_REPORTED, WINDOW_S, Picture
from adlro.services.web.viewers import Viewer

_USERS_SHOWN: Final = 20
_NAMES_TOLD: Final = 3
_BASES_IN_WORDS: Final = {
    DecisionBasis.OUT_OF_RANGE: "what it saw was outside its training",
    DecisionBasis.FAILED: "it failed",
    DecisionBasis.LATE: "it was too late",
    DecisionBasis.MISSING: "it could not be loaded",
}


def head(picture: Picture, viewer: Viewer, wall_unix_s: float) -> dict[str, Any] | None:
    """The figures for one viewer; None: nothing is known yet.

    A submitter gets those of his own jobs, and the cluster's size.

    Args:
        picture: the services' state.
        viewer: whose page it is.
        wall_unix_s: now.
    """
    if picture.status is None and picture.described is None and not picture.jobs_complete:
        return None
    now_s = picture.time_s(wall_unix_s)
    common = {
        "wall_unix_s": round(wall_unix_s, 1),
        "time_s": None if now_s is None else round(now_s, 3),
        "cluster": None if picture.cluster is None else picture.cluster.name,
        "clock": _clock(picture),
        **_jobs(picture, viewer, now_s),
        **_gpus(picture),
    }
    if not viewer.sees_all:
        return common  # no `alerts`: an empty list would say that nothing needs anybody
    shown = common | _status(picture) | _busy(picture)
    return shown | {"alerts": alerts(picture, shown)}


def _clock(picture: Picture) -> dict[str, Any] | None:
    clock = picture.clock
    if clock is None:
        return None
    return {"mode": clock.mode.name.lower(), "scale": number(clock.scale), "paused": clock.paused}


def _jobs(picture: Picture, viewer: Viewer, now_s: float | None) -> dict[str, Any]:
    names = ("queue_length", "queue_by_reason", "queue_by_type", "queue_by_user", "running", "running_by_model")
    if not picture.jobs_complete:
        return dict.fromkeys((*names, "wait_p95_s", "failed_ratio_1h"))
    jobs, user = picture.jobs, viewer.only_user
    since_s = (now_s or 0.0) - WINDOW_S
    waits = jobs.waits_s(since_s, user)
    succeeded, failed = jobs.ended_since(since_s, user)
    # The orchestrator's own numbers are of one moment; ingest's are there while it is away, and for one user's jobs.
    status = picture.status if picture.status_live and viewer.sees_all else None
    numbers = _numbers_of_table(picture, viewer) if status is None or not status.acting else _numbers_of_status(status)
    return numbers | {
        "wait_p95_s": round(float(np.percentile(waits, 95)), 3) if len(waits) else None,
        "failed_ratio_1h": round(failed / (succeeded + failed), 4) if succeeded + failed else None,
    }


def _numbers_of_table(picture: Picture, viewer: Viewer) -> dict[str, Any]:
    jobs, user = picture.jobs, viewer.only_user
    counts = jobs.counts(user)
    waiting = counts["state"]["pending"]
    by_user = jobs.waiting_by_user(_USERS_SHOWN) if viewer.sees_all else {viewer.user: waiting} if waiting else {}
    return {
        "queue_length": waiting,
        "queue_by_reason": counts["reason"],
        "queue_by_type": jobs.waiting_by_type(user),
        "queue_by_user": by_user,
        "running": counts["state"]["running"],
        "running_by_model": jobs.running_by_model(user),
    }


def _numbers_of_status(status: OrchestratorStatus) -> dict[str, Any]:
    by_reason = {reason.name.lower(): count for reason, count in status.waiting_by_reason.items() if count}
    # Of these nobody waits in the queue itself.
    before_it = {
        "begin_time": status.waiting_for_begin_time_count,
        "held": status.held_count,
        "dependency": status.dependent_count,
    }
    for reason, count in before_it.items():
        if count:
            by_reason[reason] = by_reason.get(reason, 0) + count
    return {
        "queue_length": status.queue_length + sum(before_it.values()),
        "queue_by_reason": by_reason,
        "queue_by_type": {kind.name.lower(): count for kind, count in status.waiting_by_job_type.items() if count},
        "queue_by_user": {each.user: each.count for each in status.waiting_by_user},
        "running": status.running_count,
        "running_by_model": {each.gpu_model: each.running_count for each in status.gpu_models if each.running_count},
    }


def _gpus(picture: Picture) -> dict[str, Any]:
    """The cluster's size, which everybody may know; of the allocated GPUs those that are usable, as a part of these."""
    if picture.cluster is None:
        return dict.fromkeys(("gpu_count", "usable_gpus", "allocated_gpus", "lost_gpu_count"))
    layout, usable = picture.layout, picture.usable_ids()
    allocated = len(picture.jobs.holders.keys() & usable) if picture.jobs_complete else None
    return {
        "gpu_count": len(layout.gpu_ids),
        "usable_gpus": len(usable),
        "allocated_gpus": allocated,
        "lost_gpu_count": sum(1 for each in picture.lost_gpu_ids if each in layout.index),
    }


def _status(picture: Picture) -> dict[str, Any]:
    status = picture.status
    names = ("policy", "deciding_policy", "deciding_basis", "problem", "policy_problem", "drained")
    if status is None:
        return dict.fromkeys((*names, "event_lag"))
    return {
        "policy": status.policy,
        "deciding_policy": status.deciding_policy or None,
        "deciding_basis": None if status.deciding_basis is None else status.deciding_basis.value,
        "problem": status.problem,
        "policy_problem": status.policy_problem,
        "drained": [
            {"node_id": each, "reason": status.drain_reasons.get(each, "")} for each in status.drained_node_ids
        ],
        "event_lag": None if picture.event_lag is None else picture.event_lag.unapplied_count,
    }


def _busy(picture: Picture) -> dict[str, Any]:
    if picture.state is None:
        return {"busy_ratio": None, "drift": None}
    levels = picture.metric_planes()["utilization"]
    there = (levels != NOT_REPORTED) & ((picture.state_plane() & 15) != LOST)
    drift = picture.state.drift_summary
    return {
        "busy_ratio": round(float(levels[there].mean()) / 254.0, 3) if there.any() else None,
        "drift": {
            "flagged": drift.flagged_count,
            "suspected": max(drift.suspected_count - drift.flagged_count, 0),
            "by_chance": round(max(drift.suspected_by_chance_count, 0.0), 1),
        },
    }


def alerts(picture: Picture, shown: Mapping[str, Any]) -> list[dict[str, str]]:
    """What needs a person: `level` (error, warning), a sentence, and the page that has more.

    Args:
        picture: the services' state.
        shown: the figures.
    """
    told = _status_alerts(picture)
    lag = picture.event_lag
    if lag is not None and lag.oldest_unapplied_s >= LATE_EVENT_S:
        told.append(
            _alert(
                "error",
                f"The orchestrator is {lag.unapplied_count} events behind the cluster, the oldest of them"
                f" {lag.oldest_unapplied_s:.0f} s old: what it says is old.",
                "/",
            )
        )
    reasons = (
        {} if picture.described is None else {each.gpu_id: each.reason for each in picture.described.gpu_conditions}
    )
    lost = [each for each in picture.lost_gpu_ids if each in picture.layout.index]
    if len(lost) == 1:
        why = reasons.get(lost[0], "")
        told.append(
            _alert("error", f"GPU {lost[0]} is lost{f': {why}' if why else '.'}", f"/gpus/{quote(lost[0], safe='')}")
        )
    elif lost:
        told.append(_alert("error", f"{len(lost)} GPUs are lost, {lost[0]} among them.", "/"))
    told += _drift_alerts(picture)
    refused = picture.jobs.counts(None)["reason"].get("no_fitting_gpu", 0) if picture.jobs_complete else 0
    if refused:
        jobs = "1 job asks" if refused == 1 else f"{refused} jobs ask"
        told.append(
            _alert("warning", f"{jobs} for more than any GPU has.", "/queue?reason=no_fitting_gpu&state=pending")
        )
    if picture.clock is not None and picture.clock.paused and picture.clock.mode is not ClockMode.REAL:
        told.append(_alert("warning", "The cluster's clock is paused.", "/"))
    return told


def _drift_alerts(picture: Picture) -> list[dict[str, str]]:
    """GPUs that are flagged as slower: one look in a hundred at the whole cluster flags a healthy one."""
    drifts = {} if picture.state is None else picture.state.drifts
    flagged = {gpu_id: each for gpu_id, each in drifts.items() if each.flagged}
    if not flagged:
        return []
    named = ", ".join(f"{gpu_id} ({each.speed_ratio:.0%})" for gpu_id, each in list(flagged.items())[:_NAMES_TOLD])
    more = f" and {len(flagged) - _NAMES_TOLD} more" if len(flagged) > _NAMES_TOLD else ""
    gpus = "1 GPU is" if len(flagged) == 1 else f"{len(flagged)} GPUs are"
    href = f"/gpus/{quote(next(iter(flagged)), safe='')}" if len(flagged) == 1 else "/"
    return [_alert("warning", f"{gpus} slower than the model: {named}{more} of its speed.", href)]


def _alert(level: str, text: str, href: str) -> dict[str, str]:
    return {"level": level, "text": text, "href": href}


def _status_alerts(picture: Picture) -> list[dict[str, str]]:
    """What the orchestrator says of itself."""
    status = picture.status
    told: list[dict[str, str]] = []
    if status is None:
        return told
    if status.problem:
        told.append(_alert("error", f"No job can be placed: {status.problem}", "/policies"))
    elif not status.acting:
        told.append(_alert("error", "No orchestrator acts: jobs wait until one does.", "/policies"))
    elif not status.cluster_connected:
        told.append(_alert("error", "The orchestrator has lost the cluster: no job starts or ends for it.", "/"))
    if status.policy_problem:
        told.append(
            _alert("error", f"The policy {status.policy} does not decide: {status.policy_problem}", "/policies")
        )
    elif status.deciding_basis is not None and status.deciding_basis.fallback:
        why = _BASES_IN_WORDS[status.deciding_basis]
        told.append(
            _alert("warning", f"{status.deciding_policy} decides in place of {status.policy}: {why}.", "/policies")
        )
    for node_id in status.drained_node_ids:
        reason = status.drain_reasons.get(node_id, "")
        told.append(_alert("warning", f"Node {node_id} is drained{f': {reason}' if reason else '.'}", "/"))
    return told
