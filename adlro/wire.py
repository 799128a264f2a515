"""Plain records to protobuf messages and back. The one place that knows both; no I/O.

Messages that arrive have been validated by the rules in the .proto; these functions only translate.
"""

from __future__ import annotations

from typing import Protocol

from adlro.errors import InvalidInput
from adlro.placement import NOWHERE, GpuShare, Placement
from adlro.records.cluster import Cluster, Gpu, GpuSpec, Node
from adlro.records.events import (
    Capabilities,
    Clock,
    ClockMode,
    ClusterDescription,
    ClusterEvent,
    EventBatch,
    EventKind,
    RunningJob,
)
from adlro.records.jobs import (
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobSpec,
    JobState,
    JobType,
    NormalizedJob,
    PendingReason,
    SimulatedWork,
)
from adlro.v1 import cluster_pb2, cluster_service_pb2, job_pb2, orchestrator_service_pb2, placement_pb2

# Looked up: a session of the orchestrator reads each job that waits, and to call an enumeration takes longer.
_JOB_TYPES = {int(each): each for each in JobType}
_JOB_STATES = {int(each): each for each in JobState}
_PENDING_REASONS = {int(each): each for each in PendingReason}

DEFAULT_PRIORITY = 0.5
DEFAULT_MEMORY_MIB_PER_CORE = 4096


def spec_from_proto(message: job_pb2.JobSpec) -> JobSpec:
    """A job's specification with the defaults that job.proto states filled in."""
    # Each part is taken once: a session of the orchestrator reads each job that waits.
    cpu_cores = message.cpu_cores or 1
    runtime = message.expected_runtime if message.HasField("expected_runtime") else None
    work = message.simulated_work if message.HasField("simulated_work") else None
    return JobSpec(
        name=message.name,
        user=message.user,
        job_type=_JOB_TYPES.get(message.job_type) or JobType(message.job_type),
        application=message.application,
        priority=message.priority if message.HasField("priority") else DEFAULT_PRIORITY,
        cpu_cores=cpu_cores,
        memory_mib=message.memory_mib or DEFAULT_MEMORY_MIB_PER_CORE * cpu_cores,
        gpu_memory_mib=message.gpu_memory_mib,
        gpu_count=message.gpu_count or 1,
        expected_runtime=None if runtime is None else ExpectedRuntime(runtime.gpu_model, runtime.runtime_s),
        time_limit_s=message.time_limit_s if message.HasField("time_limit_s") else None,
        begin_time_s=message.begin_time_s if message.HasField("begin_time_s") else None,
        labels=dict(labels) if (labels := message.labels) else {},
        simulated_work=(
            None
            if work is None
            else SimulatedWork(work.work_s, work.fails_at_ratio if work.HasField("fails_at_ratio") else None)
        ),
    )


def spec_to_proto(spec: JobSpec) -> job_pb2.JobSpec:
    """The message of a specification; every default is written out."""
    message = job_pb2.JobSpec(
        name=spec.name,
        user=spec.user,
        job_type=int(spec.job_type),  # type: ignore[arg-type]  # enum numbers are those of JobType
        application=spec.application,
        priority=spec.priority,
        cpu_cores=spec.cpu_cores,
        memory_mib=spec.memory_mib,
        gpu_memory_mib=spec.gpu_memory_mib,
        gpu_count=spec.gpu_count,
        time_limit_s=spec.time_limit_s,
        begin_time_s=spec.begin_time_s,
        labels=spec.labels,
    )
    if spec.expected_runtime is not None:
        message.expected_runtime.gpu_model = spec.expected_runtime.gpu_model
        message.expected_runtime.runtime_s = spec.expected_runtime.runtime_s
    if spec.simulated_work is not None:
        message.simulated_work.work_s = spec.simulated_work.work_s
        if spec.simulated_work.fails_at_ratio is not None:
            message.simulated_work.fails_at_ratio = spec.simulated_work.fails_at_ratio
    return message


FORMAT = 2
"""Of what is kept of jobs, clusters and telemetry (adlro/store/format.py): each message says its own."""


class _Kept(Protocol):
    """A message of something that is kept."""

    @property
    def format(self) -> int: ...


def check_format(message: _Kept) -> None:
    """Refuses what a newer release has written in a format that this one does not know.

    Raises:
        ValueError: it is of such a format.
    """
    if message.format > FORMAT:
        raise ValueError(f"it is of format {message.format}, and this release reads formats 1 to {FORMAT}")


_Placed = (
    job_pb2.Job
    | job_pb2.JobAttempt
    | cluster_service_pb2.ClusterEvent
    | cluster_service_pb2.LaunchJobRequest
    | cluster_service_pb2.RunningJob
    | orchestrator_service_pb2.Decision
)
"""Messages with a placement, and its first GPU beside it."""


def placement_from_proto(message: _Placed) -> Placement:
    """Where something is placed, from the message that says so; one without a placement means all of its GPU.

    Raises:
        ValueError: it names a GPU twice, or a share is not above 0 and at most 1.
    """
    gpus = message.placement.gpus
    if gpus:
        return Placement(tuple([GpuShare(each.gpu_id, each.share) for each in gpus]))
    return Placement.on(message.gpu_id) if message.gpu_id else NOWHERE


def launch_placement(request: cluster_service_pb2.LaunchJobRequest) -> Placement:
    """Where a launch is meant for.

    Raises:
        InvalidInput: the placement is none, or not that of `gpu_id`.
    """
    try:
        placement = placement_from_proto(request)
    except ValueError as error:
        raise InvalidInput(f"placement: {error}", field="placement") from None
    if placement.gpu_id != request.gpu_id:
        raise InvalidInput(
            f"placement: its first GPU is {placement.gpu_id!r} and gpu_id is {request.gpu_id!r}; name the same",
            field="placement",
        )
    return placement


def placement_to_proto(placement: Placement) -> placement_pb2.Placement | None:
    """The message of a placement; None where there is none."""
    if not placement.gpus:
        return None
    return placement_pb2.Placement(
        gpus=[placement_pb2.GpuShare(gpu_id=each.gpu_id, share=each.share) for each in placement.gpus]
    )


def job_from_proto(message: job_pb2.Job) -> Job:
    """A job record from its message."""
    attempts, normalized = message.attempts, message.normalized
    return Job(
        job_id=message.job_id,
        spec=spec_from_proto(message.spec),
        state=_JOB_STATES.get(message.state) or JobState(message.state),
        pending_reason=_PENDING_REASONS.get(message.pending_reason) or PendingReason(message.pending_reason),
        message=message.message,
        created_unix_s=message.created_unix_s,
        submit_s=message.submit_s if message.HasField("submit_s") else None,
        start_s=message.start_s if message.HasField("start_s") else None,
        end_s=message.end_s if message.HasField("end_s") else None,
        placement=placement_from_proto(message),
        gpu_model=message.gpu_model,
        attempts=tuple(
            JobAttempt(
                attempt=each.attempt,
                placement=placement_from_proto(each),
                gpu_model=each.gpu_model,
                start_s=each.start_s if each.HasField("start_s") else None,
                end_s=each.end_s if each.HasField("end_s") else None,
                outcome=each.outcome,
                excused=each.excused,
            )
            for each in attempts
        )
        if attempts
        else (),
        revision=message.revision,
        cancel_requested=message.cancel_requested,
        normalized=NormalizedJob(
            priority=normalized.priority,
            cpu_cores=normalized.cpu_cores,
            memory=normalized.memory,
            gpu_memory=normalized.gpu_memory,
            expected_runtime=normalized.expected_runtime,
        ),
    )


def job_to_proto(job: Job) -> job_pb2.Job:
    """The message of a job record."""
    return job_pb2.Job(
        job_id=job.job_id,
        spec=spec_to_proto(job.spec),
        state=int(job.state),  # type: ignore[arg-type]  # enum numbers are those of JobState
        pending_reason=int(job.pending_reason),  # type: ignore[arg-type]  # and of PendingReason
        message=job.message,
        created_unix_s=job.created_unix_s,
        submit_s=job.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        format=FORMAT,
        gpu_id=job.gpu_id,
        placement=placement_to_proto(job.placement),
        gpu_model=job.gpu_model,
        attempt_count=job.attempt_count,
        attempts=[
            job_pb2.JobAttempt(
                attempt=each.attempt,
                gpu_id=each.gpu_id,
                placement=placement_to_proto(each.placement),
                gpu_model=each.gpu_model,
                start_s=each.start_s,
                end_s=each.end_s,
                outcome=each.outcome,
                excused=each.excused,
            )
            for each in job.attempts
        ],
        revision=job.revision,
        cancel_requested=job.cancel_requested,
        normalized=job_pb2.NormalizedJob(
            priority=job.normalized.priority,
            cpu_cores=job.normalized.cpu_cores,
            memory=job.normalized.memory,
            gpu_memory=job.normalized.gpu_memory,
            expected_runtime=job.normalized.expected_runtime,
        ),
    )


def cluster_from_proto(message: cluster_pb2.Cluster) -> Cluster:
    """A cluster's description from its message."""
    return Cluster(
        name=message.name,
        nodes=tuple(
            Node(
                node_id=node.node_id,
                cpu_cores=node.cpu_cores,
                memory_mib=node.memory_mib,
                gpus=tuple(
                    Gpu(
                        gpu_id=gpu.gpu_id,
                        gpu_model=gpu.gpu_model,
                        memory_mib=gpu.memory_mib,
                        interconnect_bandwidth_gb_per_s=gpu.interconnect_bandwidth_gb_per_s,
                        interconnect=gpu.interconnect,
                        spec=(
                            GpuSpec(
                                gpu.spec.memory_bandwidth_gb_per_s,
                                gpu.spec.power_limit_w,
                                gpu.spec.max_temperature_c,
                            )
                            if gpu.HasField("spec")
                            else None
                        ),
                    )
                    for gpu in node.gpus
                ),
            )
            for node in message.nodes
        ),
    )


def cluster_to_proto(cluster: Cluster) -> cluster_pb2.Cluster:
    """The message of a cluster's description."""
    return cluster_pb2.Cluster(
        format=FORMAT,
        name=cluster.name,
        nodes=[
            cluster_pb2.Node(
                node_id=node.node_id,
                cpu_cores=node.cpu_cores,
                memory_mib=node.memory_mib,
                gpus=[
                    cluster_pb2.Gpu(
                        gpu_id=gpu.gpu_id,
                        gpu_model=gpu.gpu_model,
                        memory_mib=gpu.memory_mib,
                        interconnect_bandwidth_gb_per_s=gpu.interconnect_bandwidth_gb_per_s,
                        interconnect=gpu.interconnect,
                        spec=(
                            cluster_pb2.GpuSpec(
                                memory_bandwidth_gb_per_s=gpu.spec.memory_bandwidth_gb_per_s,
                                power_limit_w=gpu.spec.power_limit_w,
                                max_temperature_c=gpu.spec.max_temperature_c,
                            )
                            if gpu.spec is not None
                            else None
                        ),
                    )
                    for gpu in node.gpus
                ],
            )
            for node in cluster.nodes
        ],
    )


def clock_from_proto(message: cluster_pb2.Clock) -> Clock:
    """A clock from its message."""
    return Clock(ClockMode(message.mode), message.scale, message.paused, message.time_s)


def clock_to_proto(clock: Clock) -> cluster_pb2.Clock:
    """The message of a clock."""
    return cluster_pb2.Clock(
        mode=int(clock.mode),  # type: ignore[arg-type]  # enum numbers are those of ClockMode
        scale=clock.scale,
        paused=clock.paused,
        time_s=clock.time_s,
    )


def batch_from_proto(message: cluster_service_pb2.WatchEventsResponse) -> EventBatch:
    """The events of one moment from their message."""
    return EventBatch(
        incarnation=message.incarnation,
        events=tuple(
            ClusterEvent(
                each.revision,
                EventKind(each.kind),
                each.time_s,
                each.job_id,
                each.attempt,
                placement_from_proto(each),
                each.message,
            )
            for each in message.events
        ),
        clock=clock_from_proto(message.clock),
    )


def batch_to_proto(batch: EventBatch) -> cluster_service_pb2.WatchEventsResponse:
    """The message of the events of one moment."""
    return cluster_service_pb2.WatchEventsResponse(
        incarnation=batch.incarnation,
        events=[
            cluster_service_pb2.ClusterEvent(
                revision=each.revision,
                kind=int(each.kind),  # type: ignore[arg-type]  # enum numbers are those of EventKind
                time_s=each.time_s,
                job_id=each.job_id,
                attempt=each.attempt,
                gpu_id=each.gpu_id,
                placement=placement_to_proto(each.placement),
                message=each.message,
            )
            for each in batch.events
        ],
        clock=clock_to_proto(batch.clock),
    )


def description_from_proto(message: cluster_service_pb2.DescribeClusterResponse) -> ClusterDescription:
    """A cluster's description from its message."""
    return ClusterDescription(
        cluster=cluster_from_proto(message.cluster),
        running=tuple(
            RunningJob(each.job_id, each.attempt, placement_from_proto(each), each.start_s) for each in message.running
        ),
        lost_gpu_ids=tuple(message.lost_gpu_ids),
        clock=clock_from_proto(message.clock),
        incarnation=message.incarnation,
        revision=message.revision,
        oldest_revision=message.oldest_revision,
        fencing_token=message.fencing_token,
        capabilities=capabilities_from_proto(message.capabilities) if message.HasField("capabilities") else None,
    )


def description_to_proto(description: ClusterDescription) -> cluster_service_pb2.DescribeClusterResponse:
    """The message of a cluster's description."""
    can = description.capabilities
    return cluster_service_pb2.DescribeClusterResponse(
        cluster=cluster_to_proto(description.cluster),
        running=[
            cluster_service_pb2.RunningJob(
                job_id=each.job_id,
                attempt=each.attempt,
                gpu_id=each.gpu_id,
                placement=placement_to_proto(each.placement),
                start_s=each.start_s,
            )
            for each in description.running
        ],
        lost_gpu_ids=list(description.lost_gpu_ids),
        clock=clock_to_proto(description.clock),
        incarnation=description.incarnation,
        revision=description.revision,
        oldest_revision=description.oldest_revision,
        fencing_token=description.fencing_token,
        capabilities=None if can is None else capabilities_to_proto(can),
    )


def capabilities_from_proto(message: cluster_service_pb2.Capabilities) -> Capabilities:
    """What a cluster can do, from its message."""
    return Capabilities(
        virtual_clock=message.virtual_clock,
        gpu_availability=message.gpu_availability,
        stop=message.stop,
        logs=message.logs,
        gangs=message.gangs,
        shares=message.shares,
        containers=message.containers,
    )


def capabilities_to_proto(can: Capabilities) -> cluster_service_pb2.Capabilities:
    """The message of what a cluster can do."""
    return cluster_service_pb2.Capabilities(
        virtual_clock=can.virtual_clock,
        gpu_availability=can.gpu_availability,
        stop=can.stop,
        logs=can.logs,
        gangs=can.gangs,
        shares=can.shares,
        containers=can.containers,
    )
