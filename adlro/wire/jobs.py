"""Jobs and their messages.

Written out by hand: an orchestrator's session reads each waiting job, and defaults of the contract depend on each
other.
"""

from __future__ import annotations

from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.records.job_requests import JobHold, JobRequest, JobUpdate
from adlro.records.jobs import (
    ArrayTask,
    AttemptRef,
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobReservation,
    JobSpec,
    JobState,
    JobType,
    NormalizedJob,
    PendingReason,
    Preemptible,
    SimulatedWork,
)
from adlro.v1 import job_pb2
from adlro.wire.fields import Part, Translation
from adlro.wire.formats import FORMAT
from adlro.wire.outcomes import neighbour_time_from_proto, neighbour_time_to_proto
from adlro.wire.payloads import exit_from_proto, exit_to_proto, payload_from_proto, payload_to_proto
from adlro.wire.placements import placement_from_proto, placement_to_proto

# Look-up tables: an orchestrator's session reads each waiting job, and calling an enumeration is slower.
_JOB_TYPES = {int(each): each for each in JobType}
_JOB_STATES = {int(each): each for each in JobState}
_PENDING_REASONS = {int(each): each for each in PendingReason}

_RESERVATION = Translation(JobReservation, job_pb2.JobReservation)
_PREEMPTIBLE = Translation(Preemptible, job_pb2.Preemptible)
_ATTEMPT_REF = Translation(AttemptRef, job_pb2.AttemptRef)
attempt_ref_to_proto, attempt_ref_from_proto = _ATTEMPT_REF.to_proto, _ATTEMPT_REF.from_proto
_DEPENDENCY = Translation(
    JobDependency,
    job_pb2.JobDependency,
    parts={
        "condition": Part(
            {"condition": int},
            lambda message: DependencyCondition(message.condition or DependencyCondition.SUCCEEDED),
        )
    },
)
_ARRAY_TASK = Translation(ArrayTask, job_pb2.ArrayTask)
_UPDATE = Translation(JobUpdate, job_pb2.JobUpdate)
update_to_proto, update_from_proto = _UPDATE.to_proto, _UPDATE.from_proto
_REQUEST = Translation(JobRequest, job_pb2.JobRequest)
request_to_proto = _REQUEST.to_proto
_HOLD = Translation(JobHold, job_pb2.JobHold)

DEFAULT_PRIORITY = 0.5
DEFAULT_MEMORY_MIB_PER_CORE = 4096


def spec_from_proto(message: job_pb2.JobSpec) -> JobSpec:
    """A job's specification with the defaults of job.proto."""
    # Reads each part once: an orchestrator's session reads each waiting job.
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
        payload=payload_from_proto(message.payload) if message.HasField("payload") else None,
        max_node_count=message.max_node_count,
        gpu_models=tuple(models) if (models := message.gpu_models) else (),
        preemptible=_PREEMPTIBLE.from_proto(message.preemptible) if message.HasField("preemptible") else None,
        shareable=message.shareable,
        after=tuple(map(_DEPENDENCY.from_proto, after)) if (after := message.after) else (),
        held=message.held,
        array=_ARRAY_TASK.from_proto(message.array) if message.HasField("array") else None,
        exclusive=message.exclusive,
        node_ids=tuple(nodes) if (nodes := message.node_ids) else (),
        excluded_node_ids=tuple(nodes) if (nodes := message.excluded_node_ids) else (),
    )


def spec_to_proto(spec: JobSpec) -> job_pb2.JobSpec:
    """The message of a specification, with every default written out."""
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
        payload=None if spec.payload is None else payload_to_proto(spec.payload),
        max_node_count=spec.max_node_count,
        gpu_models=spec.gpu_models,
        preemptible=None if spec.preemptible is None else _PREEMPTIBLE.to_proto(spec.preemptible),
        shareable=spec.shareable,
        after=[_DEPENDENCY.to_proto(each) for each in spec.after],
        held=spec.held,
        array=None if spec.array is None else _ARRAY_TASK.to_proto(spec.array),
        exclusive=spec.exclusive,
        node_ids=spec.node_ids,
        excluded_node_ids=spec.excluded_node_ids,
    )
    if spec.expected_runtime is not None:
        message.expected_runtime.gpu_model = spec.expected_runtime.gpu_model
        message.expected_runtime.runtime_s = spec.expected_runtime.runtime_s
    if spec.simulated_work is not None:
        message.simulated_work.work_s = spec.simulated_work.work_s
        if spec.simulated_work.fails_at_ratio is not None:
            message.simulated_work.fails_at_ratio = spec.simulated_work.fails_at_ratio
    return message


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
                run_s=each.run_s if each.HasField("run_s") else None,
                exit=exit_from_proto(each.exit) if each.HasField("exit") else None,
                preempted=each.preempted,
                preempts=tuple(map(attempt_ref_from_proto, preempts)) if (preempts := each.preempts) else (),
                neighbours=tuple(map(neighbour_time_from_proto, beside)) if (beside := each.neighbours) else (),
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
        reservation=_RESERVATION.from_proto(message.reservation) if message.HasField("reservation") else None,
        reserved_for_job_id=message.reserved_for_job_id,
        reserved_until_s=message.reserved_until_s if message.HasField("reserved_until_s") else None,
        remaining_ratio=message.remaining_ratio if message.HasField("remaining_ratio") else 1.0,
        requests=tuple(map(_REQUEST.from_proto, requests)) if (requests := message.requests) else (),
        applied_request=message.applied_request,
        hold=_HOLD.from_proto(message.hold) if message.HasField("hold") else None,
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
                run_s=each.run_s,
                exit=None if each.exit is None else exit_to_proto(each.exit),
                preempted=each.preempted,
                preempts=[attempt_ref_to_proto(ref) for ref in each.preempts],
                neighbours=[neighbour_time_to_proto(beside) for beside in each.neighbours],
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
        reservation=None if job.reservation is None else _RESERVATION.to_proto(job.reservation),
        reserved_for_job_id=job.reserved_for_job_id,
        reserved_until_s=job.reserved_until_s,
        remaining_ratio=None if job.remaining_ratio == 1.0 else job.remaining_ratio,
        requests=[_REQUEST.to_proto(each) for each in job.requests],
        applied_request=job.applied_request,
        hold=None if job.hold is None else _HOLD.to_proto(job.hold),
    )


def basic_job_to_proto(job: Job) -> job_pb2.Job:
    """The message of a job record with what JOB_VIEW_BASIC has of it."""
    spec = job.spec
    return job_pb2.Job(
        job_id=job.job_id,
        spec=job_pb2.JobSpec(
            name=spec.name,
            user=spec.user,
            job_type=int(spec.job_type),  # type: ignore[arg-type]  # enum numbers are those of JobType
            priority=spec.priority,
            gpu_count=spec.gpu_count,
            begin_time_s=spec.begin_time_s,
            array=None if spec.array is None else _ARRAY_TASK.to_proto(spec.array),
        ),
        state=int(job.state),  # type: ignore[arg-type]  # enum numbers are those of JobState
        pending_reason=int(job.pending_reason),  # type: ignore[arg-type]  # and of PendingReason
        message=job.message,
        created_unix_s=job.created_unix_s,
        submit_s=job.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        gpu_id=job.gpu_id,
        placement=placement_to_proto(job.placement),
        gpu_model=job.gpu_model,
        attempt_count=job.attempt_count,
        revision=job.revision,
        cancel_requested=job.cancel_requested,
        hold=None if job.hold is None else _HOLD.to_proto(job.hold),
    )
