"""What each topic shows a viewer, and the difference between two such states. Pure functions of the picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from adlro.errors import AdlroError, NotFound, PermissionDenied
from adlro.records.decisions import Decision
from adlro.records.dependencies import CONDITION_WORDS
from adlro.records.jobs import Job
from adlro.records.telemetry import Metric
from adlro.services.web.documents import decision_row, job_document, number
from adlro.services.web.figures import head
from adlro.services.web.picture import ALLOCATED, IDLE, LOST, NOT_REPORTED, SHARED, Picture, Plane
from adlro.services.web.topics import Topic
from adlro.services.web.viewers import Viewer

# The parts of the picture that a topic is made of; `head` also has the time, so it is made at each tick.
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "head": ("jobs", "complete", "status", "described", "cluster", "state"),
    "gpus": ("jobs", "complete", "status", "described", "cluster", "state"),
    "gpu": ("jobs", "complete", "status", "described", "cluster", "state", "readings"),
    "job": ("details", "jobs", "cluster", "described"),
    "queue": ("jobs", "complete"),
    "decisions": ("decisions",),
}
# The time alone is told once a second; rounds come twice a second, a little late or early.
_TIME_EVERY_S: Final = 0.9
_TIMES: Final = ("wall_unix_s", "time_s")
# If more rows changed than this part of a window, the whole window is smaller.
_MOST_ROWS_RATIO: Final = 0.5
_STATES: Final = {IDLE: "idle", ALLOCATED: "allocated", SHARED: "shared", LOST: "lost"}


@dataclass(frozen=True, slots=True)
class Content:
    """What a topic shows: values for JSON, and planes of one byte a GPU.

    Attributes:
        data: compared by value; without the planes.
        planes: by name, in the order of the body.
        layout: identity of what the planes are about: another one needs a snapshot.
    """

    data: Mapping[str, Any]
    planes: Mapping[str, Plane] = field(default_factory=dict)
    layout: object = None

    def same(self, other: Content) -> bool:
        """Whether both show the same."""
        return (
            self.data == other.data
            and self.layout is other.layout
            and list(self.planes) == list(other.planes)
            and all(np.array_equal(plane, other.planes[name]) for name, plane in self.planes.items())
        )

    def snapshot(self) -> tuple[Mapping[str, Any], bytes]:
        """Data and body of a whole frame."""
        return self.data, b"".join(plane.tobytes() for plane in self.planes.values())


def check(topic: Topic, viewer: Viewer, picture: Picture) -> AdlroError | None:
    """Why a viewer can't follow a topic; None: he can."""
    if not viewer.may_follow(topic.name):
        roles = " and ".join(sorted(viewer.roles)) or "nobody"
        return PermissionDenied(f"{viewer.user} is {roles}; {topic.name} needs the role reader or operator")
    if topic.name == "job" and topic.params["id"] in picture.details_known:
        job = picture.details.get(topic.params["id"])
        if job is None or not viewer.sees(job):
            return NotFound(f"there is no job {topic.params['id']}", field="id")
    if topic.name == "gpu" and picture.cluster is not None and topic.params["id"] not in picture.layout.index:
        return NotFound("there is no GPU of this id", field="id")
    return None


def content(topic: Topic, viewer: Viewer, picture: Picture, wall_unix_s: float) -> Content | None:
    """What a topic shows now; None: it is not known yet.

    Args:
        topic: the topic; `check` has let the viewer follow it.
        viewer: one of those who share it.
        picture: the services' state.
        wall_unix_s: now.
    """
    found: Mapping[str, Any] | None
    match topic.name:
        case "head":
            found = head(picture, viewer, wall_unix_s)
        case "gpus":
            return _gpus(viewer, picture)
        case "gpu":
            found = gpu_document(topic.params["id"], picture)
        case "job":
            found = _job(topic, viewer, picture)
        case "queue":
            found = _queue(topic, viewer, picture)
        case _:
            found = _decisions(topic, picture)
    return None if found is None else Content(found)


def only_time_passed(topic: Topic, before: Content, after: Content) -> bool:
    """Whether two states of the head differ in the time alone, and by less than what is worth a frame."""
    if topic.name != "head" or after.data["wall_unix_s"] - before.data["wall_unix_s"] >= _TIME_EVERY_S:
        return False
    return after.data.keys() == before.data.keys() and all(
        value == before.data[name] for name, value in after.data.items() if name not in _TIMES
    )


def delta(topic: Topic, before: Content, after: Content) -> tuple[Mapping[str, Any], bytes] | None:
    """Data and body of a frame that leads from one state to the next; None: the whole state is needed."""
    match topic.name:
        case "gpus":
            return _gpus_delta(before, after)
        case "queue":
            return _queue_delta(before.data, after.data)
        case "decisions":
            return _decisions_delta(before.data["rows"], after.data["rows"])
        case _:
            if before.data.keys() != after.data.keys():
                return None
            return {key: value for key, value in after.data.items() if value != before.data[key]}, b""


def _gpus(viewer: Viewer, picture: Picture) -> Content | None:
    if picture.cluster is None or not picture.jobs_complete:
        return None
    layout = picture.layout
    state = picture.state_plane()
    planes: dict[str, Plane] = {"state": state}
    if viewer.sees_all:
        holders: Mapping[str, tuple[str, ...]] = picture.jobs.holders
        planes |= picture.metric_planes()
    else:
        # A submitter may know the cluster's GPUs, and of what happens there his own jobs alone.
        holders = picture.holders_of(viewer.user)
        planes["state"] = np.full(len(state), NOT_REPORTED, np.uint8)
        planes["state"][[layout.index[each] for each in holders if each in layout.index]] = ALLOCATED
    keys = layout.keys
    jobs_by_index = {keys[gpu_id]: jobs for gpu_id, jobs in holders.items() if gpu_id in keys}
    data = {
        "gpus": layout.gpu_ids,
        "models": layout.models,
        "model": layout.model,
        "nodes": layout.nodes,
        "node": layout.node,
        "metrics": [each for each in planes if each != "state"],
        "planes": list(planes),
        "jobs": jobs_by_index,
    }
    return Content(data, planes, layout)


def _gpus_delta(before: Content, after: Content) -> tuple[Mapping[str, Any], bytes] | None:
    if before.layout is not after.layout or list(before.planes) != list(after.planes):
        return None
    changed = [name for name, plane in after.planes.items() if not np.array_equal(plane, before.planes[name])]
    data: dict[str, Any] = {"planes": changed}
    old, new = before.data["jobs"], after.data["jobs"]
    if old != new:
        data["jobs"] = {each: new.get(each, ()) for each in old.keys() | new.keys() if old.get(each) != new.get(each)}
    return data, b"".join(after.planes[name].tobytes() for name in changed)


def gpu_document(gpu_id: str, picture: Picture) -> dict[str, Any] | None:
    """A GPU with its newest values; None: it is not known."""
    if picture.cluster is None or gpu_id not in picture.layout.index or not picture.jobs_complete:
        return None
    node, gpu = next((node, gpu) for node, gpu in picture.cluster.gpus() if gpu.gpu_id == gpu_id)
    holders = picture.jobs.holders.get(gpu_id, ())
    drained = node.node_id in picture.drained_node_ids
    level = LOST if gpu_id in picture.lost_gpu_ids else min(len(holders), SHARED)
    drift = None if picture.state is None else picture.state.drifts.get(gpu_id)
    return {
        "id": gpu_id,
        "model": gpu.gpu_model,
        "node": node.node_id,
        "memory_mib": gpu.memory_mib,
        "state": "drained" if drained and level == IDLE else _STATES[level],
        "drained": drained,
        "jobs": list(holders),
        "drift": None
        if drift is None
        else {
            "score": number(drift.score),
            "flagged": drift.flagged,
            "speed_ratio": number(drift.speed_ratio),
            "job_count": drift.job_count,
        },
        "spec": None
        if gpu.spec is None
        else {
            "power_limit_w": gpu.spec.power_limit_w,
            "max_temperature_c": gpu.spec.max_temperature_c,
            "memory_bandwidth_gb_per_s": gpu.spec.memory_bandwidth_gb_per_s,
        },
        "values": values_of(picture.readings.get(gpu_id, {})),
    }


VALUES: Final = {
    Metric.UTILIZATION: "utilization_ratio",
    Metric.MEMORY_USED: "memory_used_mib",
    Metric.TEMPERATURE: "temperature_c",
    Metric.POWER: "power_w",
}
"""The metrics of a GPU with raw values, by their names for the page; units as the services store them."""


def values_of(readings: Mapping[Metric, float]) -> dict[str, float | None]:
    """The newest raw values of a GPU by their names for the page."""
    found = {name: readings.get(metric, math.nan) for metric, name in VALUES.items()}
    return {name: round(value, 4) if math.isfinite(value) else None for name, value in found.items()}


def _job(topic: Topic, viewer: Viewer, picture: Picture) -> dict[str, Any] | None:
    job = picture.details.get(topic.params["id"])
    if job is None or not viewer.sees(job):
        return None
    if viewer.only_user is not None:
        job = picture.jobs.as_seen(job, viewer.only_user)
    return job_document(
        job,
        picture.layout.node_of,
        may_change=viewer.may_change(job),
        may_release=viewer.may_release(job),
        has_logs=picture.capabilities.logs,
    ) | beside(job, viewer, picture)


def beside(job: Job, viewer: Viewer, picture: Picture) -> dict[str, Any]:
    """What the table of jobs adds to a job's document: its place, its array's progress, and what it waits for.

    Jobs that ended long ago are not in the table: nothing is said of their state.
    """
    jobs, array = picture.jobs, job.spec.array
    after: list[dict[str, Any]] = []
    for each in job.spec.after:
        waits: dict[str, Any] = {"id": each.job_id, "condition": CONDITION_WORDS[each.condition]}
        if each.job_id.startswith("array-"):
            first = jobs.get(each.job_id.replace("array-", "job-", 1))
            states = jobs.array_states(each.job_id) if first is not None and viewer.sees(first) else {}
            after.append(waits | {"states": states})
        else:
            other = jobs.get(each.job_id)
            known = other is not None and viewer.sees(other)
            after.append(waits | {"state": other.state.name.lower() if other is not None and known else None})
    return {
        "place": jobs.place(job),
        "after": after,
        "array_states": None if array is None else jobs.array_states(array.array_id),
    }


def _queue(topic: Topic, viewer: Viewer, picture: Picture) -> dict[str, Any] | None:
    if not picture.jobs_complete:
        return None
    params = topic.params
    found = picture.jobs.window(params["filter"], params["sort"], params["from"], params["count"], viewer.only_user)
    return {"total": found.total, "from": found.first, "rows": found.rows, "counts": found.counts}


def _queue_delta(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes] | None:
    old, new = before["rows"], after["rows"]
    if len(old) != len(new):
        return None
    rows = {str(at): row for at, row in enumerate(new) if row != old[at]}
    if len(rows) > len(new) * _MOST_ROWS_RATIO:
        return None
    data: dict[str, Any] = {"total": after["total"], "rows": rows}
    if before["counts"] != after["counts"]:
        data["counts"] = after["counts"]
    return data, b""


def _decisions(topic: Topic, picture: Picture) -> dict[str, Any] | None:
    if not picture.decisions_known:
        return None
    rows = []
    for decision in picture.decisions:
        if _asked_for(decision, topic.params):
            rows.append(decision_row(decision))
            if len(rows) == topic.params["count"]:
                break
    return {"rows": rows}


def _asked_for(decision: Decision, params: Mapping[str, Any]) -> bool:
    return (
        (not params["job"] or decision.job_id == params["job"])
        and (not params["basis"] or (decision.basis is not None and decision.basis.value == params["basis"]))
        and (not params["differs"] or (decision.shadow is not None and not decision.shadow.agrees))
    )


def _decisions_delta(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> tuple[Mapping[str, Any], bytes] | None:
    if not old:
        return ({"new": new}, b"") if new else None
    first = old[0]
    added = next((count for count, row in enumerate(new) if row["id"] == first["id"]), None)
    if added is None or new[added:] != old[: len(new) - added]:
        return None
    return {"new": new[:added]}, b""
