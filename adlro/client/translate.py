"""Converts messages to the client's records. Pure functions; `adlro.wire` converts jobs, clusters and clocks."""

from __future__ import annotations

import grpc
import numpy as np

from adlro.client.records import (
    Candidate,
    ClusterState,
    Decision,
    DecisionBasis,
    Evidence,
    FloatArray,
    GpuDrift,
    GpuState,
    JobEvent,
    JobEventKind,
    JobFilter,
    MaskedCandidate,
    MetricColumn,
    MixDrift,
    OrchestratorStatus,
    Policy,
    PredictionBasis,
    Recollection,
    Rejection,
    RunnerUp,
    RuntimePrediction,
    ShadowDecision,
    ShadowStatus,
    StatePlane,
    SubmittedJobs,
    Telemetry,
    TelemetryBlock,
    Variable,
)
from adlro.records.telemetry import Metric, Unit
from adlro.v1 import (
    decompose_service_pb2,
    job_service_pb2,
    orchestrator_service_pb2,
    telemetry_pb2,
    telemetry_service_pb2,
)
from adlro.wire import job_from_proto, placement_from_proto, spec_from_proto


def filter_to_proto(job_filter: JobFilter | None) -> job_service_pb2.JobFilter | None:
    """The message of a filter."""
    if job_filter is None:
        return None
    return job_service_pb2.JobFilter(
        states=[int(each) for each in job_filter.states],  # type: ignore[misc]  # the numbers of JobState
        job_types=[int(each) for each in job_filter.job_types],  # type: ignore[misc]  # and of JobType
        user=job_filter.user,
        application=job_filter.application,
        labels=job_filter.labels,
        job_ids=job_filter.job_ids,
    )


def job_event(message: job_service_pb2.WatchJobsResponse) -> JobEvent:
    """One message of WatchJobs."""
    kind = JobEventKind(message.kind)
    return JobEvent(
        kind=kind,
        job=None if kind is JobEventKind.SNAPSHOT_END else job_from_proto(message.job),
        revision=message.revision,
    )


def submitted_jobs(message: job_service_pb2.SubmitJobsResponse) -> SubmittedJobs:
    """The answer of SubmitJobs."""
    return SubmittedJobs(
        job_ids=tuple(message.job_ids),
        rejected=tuple(
            Rejection(index=each.index, code=_code_name(each.code), message=each.message) for each in message.rejected
        ),
    )


def telemetry(message: telemetry_service_pb2.GetTelemetryResponse) -> Telemetry:
    """The answer of GetTelemetry."""
    return Telemetry(
        latest=telemetry_block(message.latest), window=tuple(telemetry_block(each) for each in message.window)
    )


def telemetry_block(message: telemetry_pb2.NormalizedBlock) -> TelemetryBlock:
    """One block; its columns become (T, G) arrays."""
    shape = (len(message.sample_times_unix_s), len(message.gpu_ids))
    return TelemetryBlock(
        cluster=message.cluster,
        gpu_ids=tuple(message.gpu_ids),
        sample_times_unix_s=tuple(message.sample_times_unix_s),
        cluster_times_s=tuple(message.cluster_times_s),
        columns={
            Metric(column.metric): MetricColumn(
                unit=Unit(column.unit),
                raw=_floats(column.raw_f32).reshape(shape),
                normalized=_floats(column.normalized_f32).reshape(shape),
            )
            for column in message.columns
        },
        clipped_count=message.clipped_count,
    )


def cluster_state(message: decompose_service_pb2.ClusterState) -> ClusterState:
    """The GPU matrix."""
    return ClusterState(
        cluster=message.cluster,
        gpus=tuple(
            GpuState(
                gpu_id=gpu.gpu_id,
                node_id=gpu.node_id,
                gpu_model=gpu.gpu_model,
                sample_time_unix_s=gpu.sample_time_unix_s if gpu.HasField("sample_time_unix_s") else None,
                variables=tuple(Variable(each.name, each.value, each.index) for each in gpu.variables),
                drift=_gpu_drift(gpu),
            )
            for gpu in message.gpus
        ),
        planes={
            Metric(plane.metric): StatePlane(
                unit=Unit(plane.unit), raw=_floats(plane.raw_f32), normalized=_floats(plane.normalized_f32)
            )
            for plane in message.planes
        },
        newest_sample_unix_s=message.newest_sample_unix_s if message.HasField("newest_sample_unix_s") else None,
        revision=message.revision,
        mix_drift=MixDrift(
            message.mix_drift.score,
            message.mix_drift.flagged,
            message.mix_drift.variable,
            message.mix_drift.total_variation,
        ),
    )


def _gpu_drift(gpu: decompose_service_pb2.GpuState) -> GpuDrift:
    if not gpu.HasField("drift"):
        return GpuDrift()
    return GpuDrift(gpu.drift.score, gpu.drift.flagged, gpu.drift.speed_ratio, gpu.drift.job_count)


def predictions(message: decompose_service_pb2.PredictRuntimeResponse) -> list[tuple[RuntimePrediction, ...]]:
    """The answer of PredictRuntime: for each job one prediction a GPU model."""
    return [tuple(_prediction(each) for each in job.predictions) for job in message.predictions]


def _prediction(message: decompose_service_pb2.RuntimePrediction) -> RuntimePrediction:
    return RuntimePrediction(
        gpu_model=message.gpu_model,
        median_s=message.median_s,
        low_s=message.low_s,
        high_s=message.high_s,
        interval_coverage=message.interval_coverage,
        basis=PredictionBasis(message.basis) if message.basis else None,
        novelty=message.novelty,
        evidence=tuple(
            Evidence(each.job_id, each.similarity, each.gpu_model, each.runtime_s) for each in message.evidence
        ),
    )


def recollections(message: decompose_service_pb2.RecallResponse) -> tuple[Recollection, ...]:
    """The answer of Recall, most similar first."""
    return tuple(
        Recollection(each.job_id, each.similarity, spec_from_proto(each.job), each.gpu_model, each.runtime_s)
        for each in message.recollections
    )


def status(message: orchestrator_service_pb2.GetStatusResponse) -> OrchestratorStatus:
    """The answer of GetStatus."""
    return OrchestratorStatus(
        acting=message.acting,
        instance_id=message.instance_id,
        lease_holder=message.lease_holder,
        fencing_token=message.fencing_token,
        policy=message.policy,
        cluster_connected=message.cluster_connected,
        cluster_incarnation=message.cluster_incarnation,
        cluster_revision=message.cluster_revision,
        cluster_time_s=message.cluster_time_s,
        queue_length=message.queue_length,
        waiting_for_begin_time_count=message.waiting_for_begin_time_count,
        running_count=message.running_count,
        decision_count=message.decision_count,
        drained_node_ids=tuple(message.drained_node_ids),
        drain_reasons=dict(message.drain_reasons),
        problem=message.problem,
        policy_version=message.policy_version,
        policy_problem=message.policy_problem,
        fallbacks={reason: each.count for each in message.fallbacks if (reason := _basis(each.reason)) is not None},
        shadow=ShadowStatus(
            message.shadow.policy,
            message.shadow.agreed_count,
            message.shadow.differed_count,
            message.shadow.failed_count,
            message.shadow.skipped_count,
        )
        if message.HasField("shadow")
        else None,
        wait_ratio=message.wait_ratio,
        checkpoints_loaded_count=message.checkpoints_loaded_count,
        checkpoints_refused_count=message.checkpoints_refused_count,
        deciding_policy=message.deciding_policy,
        deciding_basis=_basis(message.deciding_basis),
        unreadable_job_count=message.unreadable_job_count,
        decisions_by_basis={
            basis: each.count for each in message.decisions_by_basis if (basis := _basis(each.basis)) is not None
        },
    )


def policies(message: orchestrator_service_pb2.ListPoliciesResponse) -> tuple[Policy, ...]:
    """The answer of ListPolicies."""
    return tuple(
        Policy(each.name, each.description, each.acting, each.version, each.problem, each.shadow)
        for each in message.policies
    )


def decision(message: orchestrator_service_pb2.Decision) -> Decision:
    """One decision, with candidates and excluded GPUs."""
    return Decision(
        decision_id=message.decision_id,
        job_id=message.job_id,
        placement=placement_from_proto(message),
        policy=message.policy,
        time_s=message.time_s,
        queue_length=message.queue_length,
        candidates=tuple(
            Candidate(each.gpu_id, each.gpu_model, each.expected_runtime_s, each.score) for each in message.candidates
        ),
        masked=tuple(MaskedCandidate(each.gpu_id, each.gpu_model, each.reason) for each in message.masked),
        summary=message.summary,
        decision_us=message.decision_us,
        attempt=message.attempt,
        basis=_basis(message.basis),
        basis_text=message.basis_text,
        policy_version=message.policy_version,
        runner_up=RunnerUp(message.runner_up.job_id, message.runner_up.gpu_id, message.runner_up.score)
        if message.HasField("runner_up")
        else None,
        hold_score=message.hold_score if message.HasField("hold_score") else None,
        shadow=ShadowDecision(
            message.shadow.policy, message.shadow.job_id, message.shadow.gpu_id, message.shadow.agrees
        )
        if message.HasField("shadow")
        else None,
        deciding_policy=message.deciding_policy,
    )


def _basis(number: int) -> DecisionBasis | None:
    """None: not set, or of a newer version of the contract."""
    return _BASES.get(number)


_BASES = {
    int(orchestrator_service_pb2.DecisionBasis.Value(f"DECISION_BASIS_{basis.name}")): basis for basis in DecisionBasis
}


def _floats(data: bytes) -> FloatArray:
    """Little-endian float32 bytes as a read-only array, without a copy."""
    return np.frombuffer(data, dtype="<f4")


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def _code_name(code: int) -> str:
    return _CODE_NAMES.get(code, str(code))
