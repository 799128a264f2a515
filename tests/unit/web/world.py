"""A small cluster as the services tell it, and a model of a page in Python: the oracle of the live stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from adlro.kit.identity import Caller, Role
from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.decisions import Decision, DecisionBasis, RunnerUp, ShadowDecision
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.records.matrices import ClusterPlanes, DriftSummary, GpuDrift
from adlro.records.status import EventLag, GpuModelFigures, OrchestratorStatus, UserCount
from adlro.records.telemetry import Metric
from adlro.services.web.frames import Frame, decode
from adlro.services.web.picture import Picture
from adlro.services.web.viewers import Viewer

NODES = {"volta-0": 3, "turing-0": 2}
CLUSTER = Cluster(
    "default",
    tuple(
        Node(name, 40, 262_144, tuple(Gpu(f"{name}/{at}", name.partition("-")[0], 16_160) for at in range(count)))
        for name, count in NODES.items()
    ),
)
GPU_IDS = tuple(gpu.gpu_id for _, gpu in CLUSTER.gpus())
USERS = ("ann", "bob")

ANN = Viewer.of(Caller("ann", frozenset({Role.SUBMITTER})))
BOB = Viewer.of(Caller("bob", frozenset({Role.SUBMITTER})))
REA = Viewer.of(Caller("rea", frozenset({Role.READER})))
OPS = Viewer.of(Caller("ops", frozenset({Role.OPERATOR})))
BOTH = Viewer.of(Caller("ann", frozenset({Role.READER, Role.SUBMITTER})))
VIEWERS = (ANN, BOB, REA, OPS, BOTH)


def job(number: int, user: str = "ann", **fields: Any) -> Job:
    """A job that waits for resources."""
    spec = {
        name: fields.pop(name)
        for name in list(fields)
        if name in ("name", "priority", "job_type", "gpu_count", "labels", "payload", "shareable", "after", "array")
    }
    given: dict[str, Any] = {"name": f"train {number}", "user": user, "job_type": JobType.MACHINE_LEARNING}
    made = JobSpec(**(given | spec))
    defaults: dict[str, Any] = {
        "state": JobState.PENDING,
        "pending_reason": PendingReason.RESOURCES,
        "message": "waits for a GPU",
        "submit_s": float(number),
        "revision": number,
    }
    return Job(f"job-{number}", made, **(defaults | fields))


def running(made: Job, *gpu_ids: str, start_s: float = 50.0) -> Job:
    """The job, started."""
    placement = Placement.on(*gpu_ids)
    attempt = JobAttempt(len(made.attempts) + 1, placement, "volta", start_s)
    return replace(
        made,
        state=JobState.RUNNING,
        pending_reason=PendingReason.NONE,
        message=f"running on {placement}",
        start_s=start_s,
        placement=placement,
        gpu_model="volta",
        attempts=(*made.attempts, attempt),
        revision=made.revision + 1000,
    )


def ended(made: Job, state: JobState = JobState.SUCCEEDED, end_s: float = 90.0) -> Job:
    """The job, ended."""
    attempts = tuple(replace(each, end_s=end_s, outcome=state.name.lower()) for each in made.attempts)
    return replace(
        made,
        state=state,
        pending_reason=PendingReason.NONE,
        end_s=end_s,
        placement=NOWHERE,
        attempts=attempts,
        revision=made.revision + 1000,
    )


def status(**fields: Any) -> OrchestratorStatus:
    """An acting orchestrator that has taken all events."""
    defaults: dict[str, Any] = {
        "acting": True,
        "instance_id": "one",
        "lease_holder": "one",
        "fencing_token": 1,
        "policy": "dqn",
        "cluster_connected": True,
        "cluster_incarnation": "first",
        "cluster_revision": 10,
        "cluster_time_s": 100.0,
        "queue_length": 0,
        "waiting_for_begin_time_count": 0,
        "running_count": 0,
        "decision_count": 0,
        "drained_node_ids": (),
        "problem": "",
        "deciding_policy": "dqn",
        "deciding_basis": DecisionBasis.POLICY,
        "event_lag": EventLag(0, 0.0, 10),
    }
    return OrchestratorStatus(**(defaults | fields))


def description(lost: tuple[str, ...] = (), **fields: Any) -> ClusterDescription:
    """The cluster's own description."""
    defaults: dict[str, Any] = {
        "clock": Clock(ClockMode.VIRTUAL, 0.0, paused=False, time_s=100.0),
        "incarnation": "first",
        "revision": 10,
        "oldest_revision": 1,
        "capabilities": Capabilities(virtual_clock=True),
    }
    return ClusterDescription(CLUSTER, (), lost, **(defaults | fields))


def queue_status(*jobs: Job) -> OrchestratorStatus:
    """An acting orchestrator that has taken up these jobs, with its numbers of them."""
    waits = [each for each in jobs if each.state is JobState.PENDING]
    runs = [each for each in jobs if each.state is JobState.RUNNING]
    users = Counter(each.spec.user for each in waits)
    models = Counter(each.gpu_model for each in runs)
    return status(
        queue_length=len(waits),
        running_count=len(runs),
        waiting_by_reason=Counter(each.pending_reason for each in waits),
        waiting_by_job_type=Counter(each.spec.job_type for each in waits),
        waiting_by_user=tuple(UserCount(user, count) for user, count in users.most_common()),
        waiting_user_count=len(users),
        gpu_models=tuple(
            GpuModelFigures(model, count, count, models[model], 0, 0, models[model])
            for model, count in (("volta", 3), ("turing", 2))
        ),
    )


def cluster_state(levels: Mapping[str, float] | None = None, flagged: tuple[str, ...] = ()) -> ClusterPlanes:
    """The GPU matrix: the same level in each metric of a GPU; unknown where none is given."""
    values = np.array([(levels or {}).get(each, np.nan) for each in GPU_IDS], np.float32)
    return ClusterPlanes(
        "default",
        tuple((gpu.gpu_id, node.node_id, gpu.gpu_model) for node, gpu in CLUSTER.gpus()),
        dict.fromkeys(Metric, values),
        {},
        {each: GpuDrift(flagged=each in flagged, job_count=20, speed_ratio=0.8) for each in GPU_IDS},
        DriftSummary(flagged_count=len(flagged), suspected_count=len(flagged) + 1, suspected_by_chance_count=0.25),
        1.0,
        1,
    )


def decision(number: int, *, differs: bool = False, basis: DecisionBasis = DecisionBasis.POLICY) -> Decision:
    """A decision with a shadow."""
    return Decision(
        decision_id=f"d-1-{number}",
        job_id=f"job-{number % 5 + 1}",
        placement=Placement.on("volta-0/0"),
        policy="dqn",
        time_s=float(number),
        queue_length=3,
        candidates=(),
        masked=(),
        summary="the best",
        decision_us=10.0,
        attempt=1,
        basis=basis,
        runner_up=RunnerUp("job-2", Placement.on("volta-0/1"), 0.5),
        shadow=ShadowDecision("fcfs", "job-1", Placement.on("volta-0/0"), agrees=not differs),
    )


def tell(picture: Picture, *jobs: Job, asked: Collection[str] = ()) -> None:
    """Changes of jobs: for the table, and all of them for who follows one.

    Args:
        picture: takes them.
        jobs: their present state.
        asked: the first answer about these jobs.
    """
    for each in jobs:
        picture.take_job(each)
    if asked:
        picture.take_details(asked, jobs)
    else:
        for each in jobs:
            picture.take_detail(each)


def known(*jobs: Job) -> Picture:
    """A picture in which every service has answered."""
    picture = Picture()
    picture.take_description(description(), 0.0)
    picture.take_status(queue_status(*jobs))
    picture.take_state(cluster_state())
    picture.take_decisions([])
    picture.begin_snapshot()
    tell(picture, *jobs, asked=[f"job-{number}" for number in range(1, 100)])
    picture.end_snapshot()
    return picture


def frame_of(message: str | bytes) -> Frame:
    """A message that is a frame."""
    assert isinstance(message, bytes)
    return decode(message)


class PageModel:
    """What a page does with the messages of the live stream.

    Attributes:
        state: data of each key, planes by name among it.
        revs: the revision of each key.
        refused: why, by key.
        stale: the keys that are told to be stale.
        broken: keys whose delta did not fit: never, as long as nothing is lost.
    """

    def __init__(self) -> None:
        self.state: dict[str, dict[str, Any]] = {}
        self.revs: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.stale: set[str] = set()
        self.broken: list[str] = []

    def take(self, message: str | bytes) -> tuple[str, int] | None:
        """Shows a message; returns the key and revision to acknowledge."""
        if isinstance(message, str):
            given = json.loads(message)
            if given["op"] == "refused":
                self.refused[given["key"]] = given["error"]
                self.state.pop(given["key"], None)
                self.revs.pop(given["key"], None)
            elif given["op"] == "stale":
                self.stale.add(given["key"])
            return None
        frame = decode(message)
        if frame.base is None:
            self.state[frame.key] = self._snapshot(frame.key, frame.data, frame.body)
        elif frame.base != self.revs.get(frame.key):
            self.broken.append(frame.key)
        else:
            self._change(frame.key, frame.data, frame.body)
        self.revs[frame.key] = frame.rev
        self.stale.discard(frame.key)
        return frame.key, frame.rev

    def forget(self, key: str) -> None:
        """The page follows a key no more."""
        self.state.pop(key, None)
        self.revs.pop(key, None)
        self.stale.discard(key)

    def _snapshot(self, key: str, data: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        made = json.loads(json.dumps(data))
        if key == "gpus":
            made["bytes"] = _planes(data["planes"], body, len(data["gpus"]))
        return dict(made)

    def _change(self, key: str, data: Mapping[str, Any], body: bytes) -> None:
        shown = self.state[key]
        name = key.partition("?")[0]
        if name == "gpus":
            shown["bytes"] |= _planes(data["planes"], body, len(shown["gpus"]))
            for at, jobs in data.get("jobs", {}).items():
                if jobs:
                    shown["jobs"][at] = jobs
                else:
                    shown["jobs"].pop(at, None)
        elif name == "queue":
            shown["total"] = data["total"]
            shown["counts"] = data.get("counts", shown["counts"])
            for offset, row in data["rows"].items():
                shown["rows"][int(offset)] = row
        elif name == "decisions":
            count = int(dict(each.split("=") for each in key.partition("?")[2].split("&"))["count"])
            shown["rows"] = (data["new"] + shown["rows"])[:count]
        else:
            shown.update(data)


def _planes(names: list[str], body: bytes, count: int) -> dict[str, list[int]]:
    assert len(body) == len(names) * count
    return {name: list(body[at * count : (at + 1) * count]) for at, name in enumerate(names)}
