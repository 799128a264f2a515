"""Jobs, GPUs and statuses for the tests of `adlro top`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job, JobSpec, JobState, JobType, PendingReason
from adlro.records.matrices import ClusterState, GpuDrift, GpuState, StatePlane
from adlro.records.status import OrchestratorStatus
from adlro.records.telemetry import Metric, Unit
from adlro.records.watching import JobEvent, JobEventKind

CLUSTER = Cluster(
    "lab",
    (
        Node("volta-0", 20, 262144, tuple(Gpu(f"volta-0/{i}", "v100_sxm2", 16384) for i in range(4))),
        Node("turing-0", 20, 262144, tuple(Gpu(f"turing-0/{i}", "rtx_2080_ti", 11264) for i in range(2))),
    ),
)


def spec(name: str = "train", user: str = "ada", **fields: Any) -> JobSpec:
    return JobSpec(name=name, user=user, job_type=fields.pop("job_type", JobType.MACHINE_LEARNING), **fields)


def waiting(number: int, revision: int = 1, *, submit_s: float | None = 10.0, **fields: Any) -> Job:
    reason = fields.pop("pending_reason", PendingReason.RESOURCES)
    of = fields.pop("spec", spec())
    return Job(f"job-{number}", of, revision=revision, submit_s=submit_s, pending_reason=reason, **fields)


def running(number: int, revision: int = 2, *gpu_ids: str, start_s: float = 20.0, **fields: Any) -> Job:
    gpu_id = gpu_ids[0] if gpu_ids else "volta-0/0"
    return replace(
        waiting(number, revision, **fields),
        state=JobState.RUNNING,
        pending_reason=PendingReason.NONE,
        start_s=start_s,
        placement=Placement.on(gpu_id),
        gpu_model="v100_sxm2",
    )


def ended(number: int, revision: int = 3, state: JobState = JobState.SUCCEEDED) -> Job:
    return replace(running(number, revision), state=state, end_s=50.0)


def change(job: Job) -> JobEvent:
    return JobEvent(JobEventKind.CHANGE, job, job.revision)


def snapshot(*jobs: Job, revision: int = 0) -> list[JobEvent]:
    told = [JobEvent(JobEventKind.SNAPSHOT, job, job.revision) for job in jobs]
    return [*told, JobEvent(JobEventKind.SNAPSHOT_END, None, revision)]


def status(**fields: Any) -> OrchestratorStatus:
    given: dict[str, Any] = {
        "acting": True,
        "instance_id": "one",
        "lease_holder": "one",
        "fencing_token": 1,
        "policy": "dqn",
        "cluster_connected": True,
        "cluster_incarnation": "inc",
        "cluster_revision": 100,
        "cluster_time_s": 60.0,
        "queue_length": 0,
        "waiting_for_begin_time_count": 0,
        "running_count": 0,
        "decision_count": 5,
        "drained_node_ids": (),
        "problem": "",
        "deciding_policy": "dqn",
    }
    return OrchestratorStatus(**{**given, **fields})


def description(*, revision: int = 100, clock: Clock | None = None, **fields: Any) -> ClusterDescription:
    shown = clock or Clock(ClockMode.REAL, 1.0, False, 60.0)
    return ClusterDescription(CLUSTER, (), fields.pop("lost_gpu_ids", ()), shown, "inc", revision, 1, **fields)


def gpu_state(utilization: list[float], drift: dict[str, GpuDrift] | None = None) -> ClusterState:
    gpus = tuple(
        GpuState(gpu.gpu_id, node.node_id, gpu.gpu_model, 1.0, (), (drift or {}).get(gpu.gpu_id, GpuDrift()))
        for node, gpu in CLUSTER.gpus()
    )
    values = np.array(utilization, dtype=np.float32)
    return ClusterState("lab", gpus, {Metric.UTILIZATION: StatePlane(Unit.RATIO, values, values)}, 1.0, 1)
