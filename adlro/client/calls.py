"""Each call of the suite as data: service, method, message, decoder of the answer, whether it may be repeated.

Both clients, the blocking and the asyncio one, run these descriptions. No I/O here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from adlro.client.endpoints import ServiceName
from adlro.client.rules import checked_spec
from adlro.errors import Unsupported
from adlro.records.capacity import ClusterCapacity
from adlro.records.cluster import Cluster
from adlro.records.decisions import Decision, DecisionFilter, DecisionView
from adlro.records.events import Clock, ClockMode, ClusterDescription
from adlro.records.fair_share import FairShare
from adlro.records.history import AttemptHistory
from adlro.records.identity import Identity
from adlro.records.job_requests import JobRequestKind, JobUpdate
from adlro.records.jobs import Job, JobSpec
from adlro.records.matrices import ClusterPlanes, ClusterState, Telemetry
from adlro.records.payloads import LogStream
from adlro.records.predictions import Recollection, RuntimePrediction
from adlro.records.quotas import Quota
from adlro.records.status import OfferedPolicy, OrchestratorStatus
from adlro.records.submitting import Rejection, RequestResult, SubmittedArray, SubmittedJobs
from adlro.records.waiting import WaitingExplanation
from adlro.records.watching import JobFilter, JobOrder, JobPage, JobView
from adlro.v1 import (
    cluster_service_pb2,
    cluster_service_pb2_grpc,
    decompose_service_pb2,
    decompose_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    orchestrator_service_pb2,
    orchestrator_service_pb2_grpc,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
)
from adlro.wire import (
    PlanesAssembly,
    array_from_proto,
    capacity_from_proto,
    clock_from_proto,
    cluster_from_proto,
    cluster_state_from_proto,
    decision_filter_to_proto,
    decision_from_proto,
    description_from_proto,
    fair_share_from_proto,
    filter_to_proto,
    history_from_proto,
    identity_from_proto,
    job_from_proto,
    page_from_proto,
    policy_from_proto,
    prediction_from_proto,
    quota_from_proto,
    recollection_from_proto,
    result_from_proto,
    spec_to_proto,
    status_from_proto,
    submitted_from_proto,
    telemetry_from_proto,
    update_to_proto,
    waiting_from_proto,
)

T = TypeVar("T")

# Jobs in one SubmitJobs stream: small enough that each stream ends well within a call's timeout, and that little is
# sent again after a failure.
SUBMIT_CHUNK = 500
# Jobs in one call about several: each answer has the jobs, and must fit into a message.
REQUESTS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A unary call, or (`messages` set) a stream of messages with one answer."""

    service: ServiceName
    stub: type[Any]
    method: str
    message: Message | None
    read: Callable[[Any], T]
    # A repetition after a lost answer changes nothing more.
    repeatable: bool = True
    messages: Sequence[Message] = ()

    def request(self) -> Message | Iterator[Message]:
        """The message to send; for a stream a new iterator at each try."""
        return self.message if self.message is not None else iter(self.messages)


Requests = Iterator[Call[tuple[RequestResult, ...]]]
"""The calls of a request about many jobs."""


def submit(spec: JobSpec, request_id: str | None) -> Call[Job]:
    """SubmitJob; without a request id a new one is made, so that repetition is safe. Raises InvalidInput."""
    return Call(
        ServiceName.INGEST,
        job_service_pb2_grpc.JobServiceStub,
        "SubmitJob",
        job_service_pb2.SubmitJobRequest(job=checked_spec(spec), request_id=request_id or str(uuid.uuid4())),
        lambda answer: job_from_proto(answer.job),
    )


def submit_chunks(specs: Iterable[JobSpec], request_id_prefix: str | None) -> Iterator[Call[SubmittedJobs]]:
    """SubmitJobs, a call for each chunk of jobs; job i has the request id `<prefix>-<i>`."""
    prefix = request_id_prefix or str(uuid.uuid4())
    numbered = enumerate(specs)
    while chunk := list(islice(numbered, SUBMIT_CHUNK)):
        yield Call(
            ServiceName.INGEST,
            job_service_pb2_grpc.JobServiceStub,
            "SubmitJobs",
            None,
            submitted_from_proto,
            messages=[
                job_service_pb2.SubmitJobsRequest(job=spec_to_proto(spec), request_id=f"{prefix}-{index}")
                for index, spec in chunk
            ],
        )


def join(parts: Sequence[SubmittedJobs]) -> SubmittedJobs:
    """Joins the answers of several chunks; rejections are numbered over all chunks."""
    job_ids: list[str] = []
    rejected: list[Rejection] = []
    for part in parts:
        rejected += [replace(each, index=each.index + len(job_ids)) for each in part.rejected]
        job_ids += part.job_ids
    return SubmittedJobs(tuple(job_ids), tuple(rejected))


def get(job_id: str) -> Call[Job]:
    """GetJob."""
    return Call(
        ServiceName.INGEST,
        job_service_pb2_grpc.JobServiceStub,
        "GetJob",
        job_service_pb2.GetJobRequest(job_id=job_id),
        lambda answer: job_from_proto(answer.job),
    )


def list_page(
    job_filter: JobFilter | None,
    page_size: int,
    page_token: str,
    order: JobOrder = JobOrder.SUBMITTED,
    view: JobView = JobView.FULL,
) -> Call[JobPage]:
    """ListJobs: one page."""
    return Call(
        ServiceName.INGEST,
        job_service_pb2_grpc.JobServiceStub,
        "ListJobs",
        job_service_pb2.ListJobsRequest(
            filter=_filter(job_filter),
            page_size=page_size,
            page_token=page_token,
            order_by=int(order),  # type: ignore[arg-type]  # the numbers of JobOrder
            view=int(view),  # type: ignore[arg-type]  # the numbers of JobView
        ),
        page_from_proto,
    )


def query_attempts(
    from_s: float, to_s: float | None, gpu_ids: Sequence[str], max_bars: int, cluster: str, bucket_count: int
) -> Call[AttemptHistory]:
    """QueryAttempts."""
    return Call(
        ServiceName.INGEST,
        job_service_pb2_grpc.JobServiceStub,
        "QueryAttempts",
        job_service_pb2.QueryAttemptsRequest(
            from_s=from_s, to_s=to_s, gpu_ids=gpu_ids, max_bars=max_bars, cluster=cluster, bucket_count=bucket_count
        ),
        history_from_proto,
    )


def whoami() -> Call[Identity]:
    """WhoAmI."""
    return Call(
        ServiceName.INGEST,
        job_service_pb2_grpc.JobServiceStub,
        "WhoAmI",
        job_service_pb2.WhoAmIRequest(),
        identity_from_proto,
    )


def cluster_capacity() -> Call[ClusterCapacity]:
    """GetClusterCapacity."""
    return _orchestrator(
        "GetClusterCapacity", orchestrator_service_pb2.GetClusterCapacityRequest(), capacity_from_proto
    )


def cancel(job_id: str) -> Call[Job]:
    """CancelJob."""
    return Call(
        ServiceName.INGEST,
        job_service_pb2_grpc.JobServiceStub,
        "CancelJob",
        job_service_pb2.CancelJobRequest(job_id=job_id),
        lambda answer: job_from_proto(answer.job),
    )


def submit_array(
    spec: JobSpec, indexes: Sequence[int], max_running_count: int, request_id: str | None
) -> Call[SubmittedArray]:
    """SubmitArray; without a request id a new one is made, so that repetition is safe."""
    return _jobs(
        "SubmitArray",
        job_service_pb2.SubmitArrayRequest(
            job=checked_spec(spec),
            indexes=indexes,
            max_running_count=max_running_count,
            request_id=request_id or str(uuid.uuid4()),
        ),
        array_from_proto,
    )


def about_jobs(kind: JobRequestKind | None, job_ids: Sequence[str], update: JobUpdate | None = None) -> Requests:
    """CancelJobs (no kind), HoldJobs, ReleaseJobs or UpdateJobs: a call for each so many jobs."""
    request_id = str(uuid.uuid4())
    for start in range(0, len(job_ids), REQUESTS_AT_ONCE):
        part = job_ids[start : start + REQUESTS_AT_ONCE]
        match kind:
            case None:
                yield _jobs("CancelJobs", job_service_pb2.CancelJobsRequest(job_ids=part), _read_results)
            case JobRequestKind.HOLD:
                hold = job_service_pb2.HoldJobsRequest(job_ids=part, request_id=request_id)
                yield _jobs("HoldJobs", hold, _read_results)
            case JobRequestKind.RELEASE:
                release = job_service_pb2.ReleaseJobsRequest(job_ids=part, request_id=request_id)
                yield _jobs("ReleaseJobs", release, _read_results)
            case JobRequestKind.UPDATE:
                change = job_service_pb2.UpdateJobsRequest(
                    job_ids=part, update=update_to_proto(update or JobUpdate()), request_id=request_id
                )
                yield _jobs("UpdateJobs", change, _read_results)


def _read_results(answer: Any) -> tuple[RequestResult, ...]:
    return tuple(result_from_proto(each) for each in answer.results)


def _jobs(method: str, message: Message, read: Callable[[Any], T]) -> Call[T]:
    return Call(ServiceName.INGEST, job_service_pb2_grpc.JobServiceStub, method, message, read)


def watch_request(
    job_filter: JobFilter | None,
    after_revision: int | None,
    view: JobView = JobView.FULL,
    min_interval_s: float = 0.0,
) -> job_service_pb2.WatchJobsRequest:
    """The message of WatchJobs."""
    return job_service_pb2.WatchJobsRequest(
        filter=_filter(job_filter),
        after_revision=after_revision,
        view=int(view),  # type: ignore[arg-type]  # the numbers of JobView
        min_interval_s=min_interval_s,
    )


def log_request(
    job_id: str, stream: LogStream, attempt: int, offset: int | None, tail_bytes: int, *, follow: bool, rank: int = 0
) -> job_service_pb2.ReadJobLogsRequest:
    """The message of ReadJobLogs."""
    return job_service_pb2.ReadJobLogsRequest(
        job_id=job_id,
        attempt=attempt,
        stream=int(stream),  # type: ignore[arg-type]  # the numbers of LogStream
        offset=offset,
        tail_bytes=tail_bytes if offset is None else 0,
        follow=follow,
        rank=rank,
    )


def cluster(name: str) -> Call[Cluster]:
    """GetCluster."""
    return Call(
        ServiceName.INGEST,
        telemetry_service_pb2_grpc.TelemetryServiceStub,
        "GetCluster",
        telemetry_service_pb2.GetClusterRequest(cluster=name),
        lambda answer: cluster_from_proto(answer.cluster),
    )


def telemetry(
    name: str, window_s: float, max_blocks: int, gpu_ids: Sequence[str] = (), step_s: float = 0.0
) -> Call[Telemetry]:
    """GetTelemetry."""
    return Call(
        ServiceName.INGEST,
        telemetry_service_pb2_grpc.TelemetryServiceStub,
        "GetTelemetry",
        telemetry_service_pb2.GetTelemetryRequest(
            cluster=name, window_s=window_s, max_blocks=max_blocks, gpu_ids=gpu_ids, step_s=step_s
        ),
        telemetry_from_proto,
    )


def read_planes(assembly: PlanesAssembly, answer: Any) -> ClusterPlanes:
    """The planes of an answer or of a stream's message.

    Raises:
        Unsupported: decompose is of an earlier release.
    """
    if not answer.HasField("planes"):
        raise Unsupported("decompose does not know the view PLANES: it is of an earlier release; use cluster_state")
    return assembly.add(answer.planes)


def cluster_planes(cluster: str) -> Call[ClusterPlanes]:
    """GetClusterState with the view PLANES."""
    return Call(
        ServiceName.DECOMPOSE,
        decompose_service_pb2_grpc.DecomposeServiceStub,
        "GetClusterState",
        decompose_service_pb2.GetClusterStateRequest(
            cluster=cluster, view=decompose_service_pb2.CLUSTER_STATE_VIEW_PLANES
        ),
        lambda answer: read_planes(PlanesAssembly(), answer),
    )


def cluster_state(name: str) -> Call[ClusterState]:
    """GetClusterState."""
    return Call(
        ServiceName.DECOMPOSE,
        decompose_service_pb2_grpc.DecomposeServiceStub,
        "GetClusterState",
        decompose_service_pb2.GetClusterStateRequest(cluster=name),
        lambda answer: cluster_state_from_proto(answer.state),
    )


def predict(
    specs: Sequence[JobSpec], gpu_models: Sequence[str], max_evidence: int, job_ids: Sequence[str]
) -> Call[list[tuple[RuntimePrediction, ...]]]:
    """PredictRuntime."""
    return Call(
        ServiceName.DECOMPOSE,
        decompose_service_pb2_grpc.DecomposeServiceStub,
        "PredictRuntime",
        decompose_service_pb2.PredictRuntimeRequest(
            jobs=[spec_to_proto(each) for each in specs],
            gpu_models=gpu_models,
            max_evidence=max_evidence,
            job_ids=job_ids,
        ),
        lambda answer: [tuple(prediction_from_proto(each) for each in job.predictions) for job in answer.predictions],
    )


def recall(spec: JobSpec, k: int) -> Call[tuple[Recollection, ...]]:
    """Recall."""
    return Call(
        ServiceName.DECOMPOSE,
        decompose_service_pb2_grpc.DecomposeServiceStub,
        "Recall",
        decompose_service_pb2.RecallRequest(job=spec_to_proto(spec), k=k),
        lambda answer: tuple(recollection_from_proto(each) for each in answer.recollections),
    )


def status() -> Call[OrchestratorStatus]:
    """GetStatus."""
    return _orchestrator("GetStatus", orchestrator_service_pb2.GetStatusRequest(), status_from_proto)


def policies() -> Call[tuple[OfferedPolicy, ...]]:
    """ListPolicies."""
    return _orchestrator(
        "ListPolicies",
        orchestrator_service_pb2.ListPoliciesRequest(),
        lambda answer: tuple(policy_from_proto(each) for each in answer.policies),
    )


def set_policy(name: str) -> Call[str]:
    """SetPolicy; the answer is the previous policy."""
    return _orchestrator(
        "SetPolicy",
        orchestrator_service_pb2.SetPolicyRequest(policy=name),
        lambda answer: str(answer.previous_policy),
    )


def set_shadow_policy(name: str) -> Call[str]:
    """SetShadowPolicy; the answer is the previous one, empty if there was none."""
    return _orchestrator(
        "SetShadowPolicy",
        orchestrator_service_pb2.SetShadowPolicyRequest(policy=name),
        lambda answer: str(answer.previous_policy),
    )


def explain(job_id: str | None, decision_id: str | None) -> Call[Decision]:
    """ExplainDecision, of a job or of a decision."""
    return _orchestrator(
        "ExplainDecision",
        orchestrator_service_pb2.ExplainDecisionRequest(decision_id=decision_id)
        if decision_id is not None
        else orchestrator_service_pb2.ExplainDecisionRequest(job_id=job_id or ""),
        lambda answer: decision_from_proto(answer.decision),
    )


def explain_waiting(job_id: str) -> Call[WaitingExplanation]:
    """ExplainWaiting."""
    return _orchestrator(
        "ExplainWaiting",
        orchestrator_service_pb2.ExplainWaitingRequest(job_id=job_id),
        lambda answer: waiting_from_proto(answer.explanation),
    )


def decision_page(
    decision_filter: DecisionFilter | None, view: DecisionView, page_size: int, page_token: str
) -> Call[tuple[list[Decision], str]]:
    """ListDecisions: one page and the token of the next, empty at the end."""
    return _orchestrator(
        "ListDecisions",
        orchestrator_service_pb2.ListDecisionsRequest(
            filter=None if decision_filter is None else decision_filter_to_proto(decision_filter),
            page_size=page_size,
            page_token=page_token,
            view=int(view),  # type: ignore[arg-type]  # the numbers of DecisionView
        ),
        lambda answer: ([decision_from_proto(each) for each in answer.decisions], str(answer.next_page_token)),
    )


def drain(node_id: str, reason: str) -> Call[tuple[str, ...]]:
    """DrainNode; the answer is the jobs that still run there."""
    return _orchestrator(
        "DrainNode",
        orchestrator_service_pb2.DrainNodeRequest(node_id=node_id, reason=reason),
        lambda answer: tuple(answer.running_job_ids),
    )


def undrain(node_id: str) -> Call[None]:
    """UndrainNode."""
    return _orchestrator(
        "UndrainNode", orchestrator_service_pb2.UndrainNodeRequest(node_id=node_id), lambda _answer: None
    )


def set_quota(user: str, gpu_count: int | None) -> Call[int | None]:
    """SetQuota; the answer is the quota before."""
    return _orchestrator(
        "SetQuota",
        orchestrator_service_pb2.SetQuotaRequest(user=user, gpu_count=gpu_count),
        lambda answer: answer.previous_gpu_count if answer.HasField("previous_gpu_count") else None,
    )


def quotas() -> Call[tuple[Quota, ...]]:
    """ListQuotas."""
    return _orchestrator(
        "ListQuotas",
        orchestrator_service_pb2.ListQuotasRequest(),
        lambda answer: tuple(quota_from_proto(each) for each in answer.quotas),
    )


def set_fair_share(
    account: str, shares: float | None = None, group: str | None = None, *, remove: bool = False
) -> Call[FairShare]:
    """SetFairShare; the answer is what is set now."""
    return _orchestrator(
        "SetFairShare",
        orchestrator_service_pb2.SetFairShareRequest(account=account, shares=shares, group=group, remove=remove),
        lambda answer: fair_share_from_proto(answer.fair_share),
    )


def fair_shares() -> Call[tuple[FairShare, ...]]:
    """ListFairShares."""
    return _orchestrator(
        "ListFairShares",
        orchestrator_service_pb2.ListFairSharesRequest(),
        lambda answer: tuple(fair_share_from_proto(each) for each in answer.fair_shares),
    )


def describe_cluster() -> Call[ClusterDescription]:
    """DescribeCluster."""
    return _cluster_service("DescribeCluster", cluster_service_pb2.DescribeClusterRequest(), description_from_proto)


def set_clock(mode: ClockMode | None, scale: float | None, paused: bool | None) -> Call[Clock]:
    """SetClock; None leaves a value unchanged."""
    return _cluster_service(
        "SetClock",
        cluster_service_pb2.SetClockRequest(
            mode=int(mode or 0),  # type: ignore[arg-type]  # the numbers of ClockMode
            scale=scale,
            paused=paused,
        ),
        lambda answer: clock_from_proto(answer.clock),
    )


def _orchestrator(method: str, message: Message, read: Callable[[Any], T]) -> Call[T]:
    return Call(ServiceName.ORCHESTRATOR, orchestrator_service_pb2_grpc.OrchestratorServiceStub, method, message, read)


def _cluster_service(method: str, message: Message, read: Callable[[Any], T]) -> Call[T]:
    return Call(ServiceName.CLUSTER, cluster_service_pb2_grpc.ClusterServiceStub, method, message, read)


def _filter(job_filter: JobFilter | None) -> job_service_pb2.JobFilter | None:
    return None if job_filter is None else filter_to_proto(job_filter)
