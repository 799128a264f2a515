"""All services of the suite in one small server, state in memory, failures on demand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import asdict, dataclass, replace
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from adlro.client import Endpoints
from adlro.errors import (
    AdlroError,
    AlreadyExists,
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    Unavailable,
)
from adlro.kit.status import to_code, to_status
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterDescription, GpuCondition
from adlro.records.fair_share import FairShare
from adlro.records.job_requests import JobHold, JobRequest, JobRequestKind
from adlro.records.jobs import ArrayTask, Job, JobAttempt, JobReservation, JobSpec, JobState, PendingReason
from adlro.records.payloads import ExitStatus, LogChunk, LogStream
from adlro.records.quotas import Quota
from adlro.records.submitting import RequestResult
from adlro.records.watching import JobOrder, JobPage, JobView
from adlro.v1 import (
    cluster_service_pb2,
    cluster_service_pb2_grpc,
    decompose_service_pb2,
    decompose_service_pb2_grpc,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
    orchestrator_service_pb2,
    orchestrator_service_pb2_grpc,
    telemetry_pb2,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
)
from adlro.wire import (
    PlanesNow,
    chunk_to_proto,
    clock_to_proto,
    cluster_to_proto,
    description_to_proto,
    fair_share_to_proto,
    filter_from_proto,
    job_from_proto,
    job_to_proto,
    page_to_proto,
    planes_to_proto,
    quota_to_proto,
    result_to_proto,
    spec_from_proto,
    update_from_proto,
)

CLUSTER = Cluster(
    "default",
    (
        Node("volta-0", 20, 262144, tuple(Gpu(f"volta-0/{i}", "v100_sxm2", 16160) for i in range(2))),
        Node("turing-0", 20, 262144, (Gpu("turing-0/0", "rtx_2080_ti", 11264),)),
    ),
)


@dataclass
class FakeLog:
    """One stream of an attempt's output. `kept`: the first byte that is there; `ended`: no more comes."""

    data: bytes = b""
    kept: int = 0
    ended: bool = False


class FakeSuite:
    """A running fake. `with FakeSuite() as suite: Client(endpoints=suite.endpoints)`.

    Jobs run when the clock is virtual and not paused: one after the other, each for its work.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, str] = {}
        self.changes: list[Job] = []
        self.oldest_revision = 0
        self.policy = "sjf"
        self.shadow = ""
        self.policy_problem = ""
        self.unreadable_job_count = 0
        self.preemption_min_run_s: float | None = None
        self.fallbacks: dict[Any, int] = {}
        self.decisions_by_basis: dict[Any, int] = {}
        self.decision_lists: list[Any] = []
        self.job_lists: list[Any] = []
        self.arrays: dict[str, tuple[str, int]] = {}  # by request id: array and its number of jobs
        self.requests_about: list[list[str]] = []  # the jobs of each call about several
        self.quotas: dict[str, int] = {}
        self.fair_shares: dict[str, FairShare] = {}
        self.ignores_requests = False  # they come too late
        self.state_requests: list[Any] = []
        self.planes: PlanesNow | None = None  # None: a decompose of an earlier release
        self.event_lag: orchestrator_service_pb2.EventLag | None = None
        self.waiting_by_reason: dict[Any, int] = {}
        self.gpu_models: list[orchestrator_service_pb2.GpuModelFigures] = []
        self.deciding_basis: Any = orchestrator_service_pb2.DECISION_BASIS_POLICY
        self.drained: list[str] = []
        self.drain_reasons: dict[str, str] = {}
        self.reservations: list[JobReservation] = []
        self.clock = Clock(ClockMode.REAL, 1.0, False, 100.0)
        self.clock_calls: list[Clock] = []
        self.capabilities = Capabilities(virtual_clock=True, gpu_availability=True, stop=True)
        self.predicted_ids: list[str] = []
        self.calls: Counter[str] = Counter()
        self.failures: defaultdict[str, list[AdlroError | grpc.StatusCode | None]] = defaultdict(list)
        self.user, self.tokens_needed = "ada", True
        self.takes_up = True
        self.room = 1_000_000  # jobs beyond it are refused
        self.stands_by = False  # another orchestrator acts
        self.hold_jobs = False
        self.logs: dict[tuple[str, int, LogStream], FakeLog] = {}
        self.chunk_bytes = 1000
        self.cancels_at_once = True
        # After how many pieces the next streams of logs break; below 0: they end without an error.
        self.log_breaks: list[int] = []
        self.gpu_conditions: tuple[GpuCondition, ...] = ()
        self.log_requests: list[Any] = []
        self._streams: set[grpc.ServicerContext] = set()

    def __enter__(self) -> FakeSuite:
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        services: Any = _Services(self)
        job_service_pb2_grpc.add_JobServiceServicer_to_server(services, self.server)
        telemetry_service_pb2_grpc.add_TelemetryServiceServicer_to_server(services, self.server)
        decompose_service_pb2_grpc.add_DecomposeServiceServicer_to_server(services, self.server)
        orchestrator_service_pb2_grpc.add_OrchestratorServiceServicer_to_server(services, self.server)
        cluster_service_pb2_grpc.add_ClusterServiceServicer_to_server(services, self.server)
        health_servicer = health.HealthServicer()
        health_servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.endpoints = Endpoints(self.address, self.address, self.address, self.address)
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.break_streams()
        self.server.stop(0).wait()

    def environment(self) -> dict[str, str]:
        keys = ("ADLRO_SERVER", "ADLRO_DECOMPOSE_SERVER", "ADLRO_ORCHESTRATOR_SERVER", "ADLRO_CLUSTER_SERVER")
        return dict.fromkeys(keys, self.address)

    # What tests do to it

    def fail(self, method: str, *failures: AdlroError | grpc.StatusCode | None) -> None:
        """The next calls of a method end so; None: one that goes well."""
        self.failures[method] += failures

    def break_streams(self) -> None:
        """Ends every open watch as a connection that breaks."""
        with self.condition:
            for context in self._streams:
                context.cancel()
            self._streams.clear()
            self.condition.notify_all()

    def change(self, job_id: str, **fields: Any) -> Job:
        """Moves a job on."""
        with self.condition:
            return self._record(replace(self.jobs[job_id], **fields))

    def add(self, spec: JobSpec) -> Job:
        """A job, without a call."""
        with self.condition:
            taken = PendingReason.RESOURCES if self.takes_up else PendingReason.SUBMITTED
            return self._record(
                Job(f"job-{len(self.jobs) + 1}", spec, pending_reason=taken, created_unix_s=time.time())
            )

    def start(self, job_id: str) -> None:
        """A new attempt of a job runs, with nothing written yet."""
        with self.condition:
            number = self.jobs[job_id].attempt_count + 1
            for stream in LogStream:
                self.logs[job_id, number, stream] = FakeLog()
            attempt = JobAttempt(number, Placement.on("volta-0/0"), "v100_sxm2", self.clock.time_s)
            self.change(
                job_id,
                state=JobState.RUNNING,
                pending_reason=PendingReason.NONE,
                message="",
                attempts=(*self.jobs[job_id].attempts, attempt),
                placement=Placement.on("volta-0/0"),
            )

    def write(self, job_id: str, data: bytes, stream: LogStream = LogStream.STDOUT) -> None:
        """The newest attempt of a job writes."""
        with self.condition:
            self.logs[job_id, self.jobs[job_id].attempt_count, stream].data += data
            self.condition.notify_all()

    def end(self, job_id: str, status: ExitStatus, state: JobState | None = None, **fields: Any) -> None:
        """The newest attempt of a job ends, and the job with it; state PENDING: it runs again later."""
        with self.condition:
            job = self.jobs[job_id]
            for stream in LogStream:
                if (log := self.logs.get((job_id, job.attempt_count, stream))) is not None:
                    log.ended = True
            done = replace(job.attempts[-1], end_s=self.clock.time_s, outcome=status.text, exit=status)
            final = state or (JobState.SUCCEEDED if status.succeeded else JobState.FAILED)
            message = {} if final is JobState.SUCCEEDED else {"message": status.text}
            self.change(job_id, state=final, attempts=(*job.attempts[:-1], done), **message, **fields)

    def _record(self, job: Job) -> Job:
        job = replace(job, revision=len(self.changes) + 1)
        self.jobs[job.job_id] = job
        self.changes.append(job)
        self.condition.notify_all()
        return job

    def run_jobs(self) -> None:
        """Runs all pending jobs, one after the other, on the first GPU."""
        with self.condition:
            now_s = self.clock.time_s
            for job in list(self.jobs.values()):
                if job.state is not JobState.PENDING or job.pending_reason is PendingReason.NO_FITTING_GPU:
                    continue
                submit_s = job.spec.begin_time_s if job.spec.begin_time_s is not None else now_s
                start_s = max(now_s, submit_s)
                now_s = start_s + (job.spec.simulated_work.work_s if job.spec.simulated_work else 1.0)
                attempt = JobAttempt(1, Placement.on("volta-0/0"), "v100_sxm2", start_s)
                fields = {
                    "submit_s": submit_s,
                    "start_s": start_s,
                    "placement": Placement.on("volta-0/0"),
                    "gpu_model": "v100_sxm2",
                }
                self.change(
                    job.job_id,
                    state=JobState.RUNNING,
                    pending_reason=PendingReason.NONE,
                    message="",
                    attempts=(attempt,),
                    **fields,
                )
                done = replace(attempt, end_s=now_s, outcome="succeeded")
                self.change(job.job_id, state=JobState.SUCCEEDED, end_s=now_s, attempts=(done,))
            self.clock = replace(self.clock, time_s=now_s)


class _Services:
    """Every method of every service."""

    def __init__(self, suite: FakeSuite) -> None:
        self.suite = suite

    def __getattr__(self, name: str) -> Any:
        if not hasattr(type(self), f"do_{name}"):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda _request, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, name)
        if name.startswith("Watch") or name == "ReadJobLogs":
            return lambda request, context: self._stream(name, request, context)
        return lambda request, context: self._unary(name, request, context)

    def _unary(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin(name, context)
        try:
            with self.suite.condition:
                # Looked up at the call: a test may have replaced it after the server's start.
                return getattr(self, f"do_{name}")(request)
        except AdlroError as error:
            _abort(context, error)

    def _stream(self, name: str, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._begin(name, context)
        with self.suite.condition:
            self.suite._streams.add(context)
        try:
            yield from getattr(self, f"do_{name}")(request, context)
        except AdlroError as error:
            _abort(context, error)

    def _begin(self, name: str, context: grpc.ServicerContext) -> None:
        self.suite.calls[name] += 1
        if not name.startswith(("Watch", "ReadJobLogs")) and (
            context.time_remaining() is None or context.time_remaining() > 3600
        ):
            _abort(context, InvalidInput("a call without a deadline"))
        if self.suite.failures[name]:
            failure = self.suite.failures[name].pop(0)
            if isinstance(failure, grpc.StatusCode):
                context.abort(failure, "injected")
            elif failure is not None:
                _abort(context, failure)

    # JobService

    def _submit(self, spec: JobSpec, request_id: str) -> tuple[Job, bool]:
        assert request_id
        if spec.priority > 1:
            raise InvalidInput("must be at most 1", field="job.priority")
        if request_id in self.suite.requests:
            job = self.suite.jobs[self.suite.requests[request_id]]
            if job.spec != spec:
                raise AlreadyExists(f"request id {request_id} was used for another job")
            return job, True
        if len(self.suite.jobs) >= self.suite.room:
            raise LimitExceeded("there is no room for another job", field="job.user")
        job = self.suite.add(spec)
        self.suite.requests[request_id] = job.job_id
        return job, False

    def do_SubmitJob(self, request: Any) -> Any:
        job, existing = self._submit(spec_from_proto(request.job), request.request_id)
        return job_service_pb2.SubmitJobResponse(job=job_to_proto(job), existing=existing)

    def do_SubmitJobs(self, requests: Any) -> Any:
        answer = job_service_pb2.SubmitJobsResponse()
        for index, request in enumerate(requests):
            try:
                job, _ = self._submit(spec_from_proto(request.job), request.request_id)
                answer.job_ids.append(job.job_id)
                answer.accepted_count += 1
            except AdlroError as error:
                answer.job_ids.append("")
                answer.rejected.add(index=index, code=3, message=error.message)
        return answer

    def _job(self, job_id: str) -> Job:
        if job_id not in self.suite.jobs:
            raise NotFound(f"there is no job {job_id}")
        return self.suite.jobs[job_id]

    def do_WhoAmI(self, _request: Any) -> Any:
        if not self.suite.tokens_needed:
            return job_service_pb2.WhoAmIResponse(roles=job_service_pb2.Role.values()[1:])
        roles = [job_service_pb2.ROLE_SUBMITTER, job_service_pb2.ROLE_READER]
        return job_service_pb2.WhoAmIResponse(user=self.suite.user, roles=roles, tokens_needed=True)

    def do_GetJob(self, request: Any) -> Any:
        return job_service_pb2.GetJobResponse(job=job_to_proto(self._job(request.job_id)))

    def do_ListJobs(self, request: Any) -> Any:
        """The request is kept; orders of jobs that have not ended are those of submission."""
        self.suite.job_lists.append(request)
        wanted = filter_from_proto(request.filter)
        found = [job for job in self.suite.jobs.values() if wanted.matches(job)]
        if request.order_by in (JobOrder.ENDED, JobOrder.NEWEST_FIRST):
            found.reverse()
        if request.order_by == JobOrder.ENDED:
            found.sort(key=lambda job: np.inf if job.end_s is None else job.end_s, reverse=True)
        start, size = int(request.page_token or 0), min(request.page_size or 100, 1000)
        page = found[start : start + size]
        more = str(start + size) if start + size < len(found) else ""
        return page_to_proto(JobPage(page, more), JobView(request.view or JobView.FULL))

    def do_CancelJob(self, request: Any) -> Any:
        job = self._job(request.job_id)
        if job.state.final:
            raise Conflict(f"{job.job_id} has ended")
        if not self.suite.cancels_at_once:
            job = self.suite.change(job.job_id, cancel_requested=True)
            return job_service_pb2.CancelJobResponse(job=job_to_proto(job))
        job = self.suite.change(
            job.job_id,
            state=JobState.CANCELLED,
            pending_reason=PendingReason.NONE,
            cancel_requested=True,
            submit_s=self.suite.clock.time_s,
            end_s=self.suite.clock.time_s,
        )
        return job_service_pb2.CancelJobResponse(job=job_to_proto(job))

    def do_SubmitArray(self, request: Any) -> Any:
        known = self.suite.arrays.get(request.request_id)
        if known is None:
            array_id = f"array-{len(self.suite.jobs) + 1}"
            for index in request.indexes:
                task = ArrayTask(array_id, index, len(request.indexes), request.max_running_count)
                spec = spec_from_proto(request.job)
                self.suite.add(replace(spec, name=f"{spec.name}[{index}]", array=task))
            known = self.suite.arrays[request.request_id] = (array_id, len(request.indexes))
        array_id, count = known
        first = array_id.replace("array", "job")
        return job_service_pb2.SubmitArrayResponse(array_id=array_id, first_job_id=first, job_count=count)

    def _about(self, job_ids: Any, change: Callable[[Job], Job]) -> list[Any]:
        """What becomes of a request about several jobs."""
        self.suite.requests_about.append(list(job_ids))
        results = []
        for job_id in job_ids:
            try:
                job = self._job(job_id)
                if job.state.final:
                    raise Conflict(f"{job_id} has ended", reason="JOB_FINAL")
                results.append(RequestResult(job_id, change(job)))
            except AdlroError as error:
                results.append(RequestResult(job_id, None, to_code(error).name, error.message, error.reason))
        return list(map(result_to_proto, results))

    def do_CancelJobs(self, request: Any) -> Any:
        def cancel(job: Job) -> Job:
            return job_from_proto(self.do_CancelJob(job_service_pb2.CancelJobRequest(job_id=job.job_id)).job)

        return job_service_pb2.CancelJobsResponse(results=self._about(request.job_ids, cancel))

    def _apply(self, job: Job, **changes: Any) -> Job:
        """As the orchestrator does: it has applied the request when it is read next."""
        number = job.applied_request + 1
        self.suite.change(job.job_id, applied_request=number, **({} if self.suite.ignores_requests else changes))
        return replace(job, requests=(JobRequest(JobRequestKind.UPDATE, number=number),))

    def do_HoldJobs(self, request: Any) -> Any:
        def hold(job: Job) -> Job:
            return self._apply(job, hold=JobHold(), pending_reason=PendingReason.HELD, message="held")

        return job_service_pb2.HoldJobsResponse(results=self._about(request.job_ids, hold))

    def do_ReleaseJobs(self, request: Any) -> Any:
        def release(job: Job) -> Job:
            return self._apply(job, hold=None, pending_reason=PendingReason.POLICY, message="")

        return job_service_pb2.ReleaseJobsResponse(results=self._about(request.job_ids, release))

    def do_UpdateJobs(self, request: Any) -> Any:
        update = update_from_proto(request.update)
        results = self._about(request.job_ids, lambda job: self._apply(job, spec=update.applied_to(job.spec)))
        return job_service_pb2.UpdateJobsResponse(results=results)

    def do_SetQuota(self, request: Any) -> Any:
        before = self.suite.quotas.pop(request.user, None)
        if request.HasField("gpu_count"):
            self.suite.quotas[request.user] = request.gpu_count
        return orchestrator_service_pb2.SetQuotaResponse(previous_gpu_count=before)

    def do_SetFairShare(self, request: Any) -> Any:
        before = self.suite.fair_shares.pop(request.account, FairShare(request.account))
        if request.remove:
            now = FairShare(request.account)
        else:
            shares = request.shares if request.HasField("shares") else before.shares
            group = request.group if request.HasField("group") else before.group
            now = self.suite.fair_shares[request.account] = FairShare(request.account, shares, group)
        return orchestrator_service_pb2.SetFairShareResponse(fair_share=fair_share_to_proto(now))

    def do_ListFairShares(self, _request: Any) -> Any:
        shares = map(fair_share_to_proto, self.suite.fair_shares.values())
        return orchestrator_service_pb2.ListFairSharesResponse(fair_shares=shares)

    def do_ListQuotas(self, _request: Any) -> Any:
        quotas = [quota_to_proto(Quota(user, count)) for user, count in sorted(self.suite.quotas.items())]
        return orchestrator_service_pb2.ListQuotasResponse(quotas=quotas)

    def do_WatchJobs(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        response, kinds = job_service_pb2.WatchJobsResponse, job_service_pb2.WatchJobsResponse.Kind
        suite = self.suite
        if request.HasField("after_revision"):
            position = request.after_revision
            if position < suite.oldest_revision:
                raise OutOfRange(f"revision {position} is no longer kept")
        else:
            with suite.condition:
                snapshot, position = list(suite.jobs.values()), len(suite.changes)
            for job in snapshot:
                if matches(job, request.filter):
                    yield response(kind=kinds.KIND_SNAPSHOT, job=job_to_proto(job), revision=job.revision)
            yield response(kind=kinds.KIND_SNAPSHOT_END, revision=position)
        while context.is_active():
            with suite.condition:
                if len(suite.changes) == position:
                    suite.condition.wait(0.5)
                news = suite.changes[position:]
            for job in news:
                position = job.revision
                if matches(job, request.filter):
                    yield response(kind=kinds.KIND_CHANGE, job=job_to_proto(job), revision=job.revision)

    def do_ReadJobLogs(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        suite, stream = self.suite, LogStream(request.stream)
        with suite.condition:
            suite.log_requests.append(request)
            attempts = self._job(request.job_id).attempts
            attempt = request.attempt or (attempts[-1].attempt if attempts else 0)
            log = suite.logs.get((request.job_id, attempt, stream))
            if log is None:
                raise NotFound(f"there is no output of {request.job_id}")
            begin = request.offset if request.HasField("offset") else 0
            if not request.HasField("offset") and request.tail_bytes:
                begin = max(len(log.data) - request.tail_bytes, 0)
            until = len(log.data)
            breaks_after = suite.log_breaks.pop(0) if suite.log_breaks else 0
        count = 0
        while context.is_active():
            with suite.condition:
                begin = max(begin, log.kept)
                data = log.data[begin : begin + suite.chunk_bytes]
                end = log.ended and begin + len(data) == len(log.data)
                chunk = LogChunk(begin, data, len(log.data), end)
                begin += len(data)
            yield job_service_pb2.ReadJobLogsResponse(chunk=chunk_to_proto(chunk), attempt=attempt)
            count += 1
            if end or (begin >= until and not request.follow) or count == -breaks_after:
                return
            if count == breaks_after:
                raise Unavailable("the connection breaks")
            with suite.condition:
                if begin == len(log.data) and not log.ended:
                    suite.condition.wait(0.5)

    # TelemetryService

    def do_GetCluster(self, _request: Any) -> Any:
        return telemetry_service_pb2.GetClusterResponse(cluster=cluster_to_proto(CLUSTER))

    def do_GetTelemetry(self, request: Any) -> Any:
        block = telemetry_pb2.NormalizedBlock(
            cluster="default",
            gpu_ids=[gpu.gpu_id for _, gpu in CLUSTER.gpus()],
            sample_times_unix_s=[time.time()],
            cluster_times_s=[self.suite.clock.time_s],
        )
        for metric, unit, values in (
            (telemetry_pb2.METRIC_UTILIZATION, telemetry_pb2.UNIT_RATIO, [0.97, 0.0, np.nan]),
            (telemetry_pb2.METRIC_MEMORY_USED, telemetry_pb2.UNIT_MIB, [8000, 400, np.nan]),
            (telemetry_pb2.METRIC_TEMPERATURE, telemetry_pb2.UNIT_CELSIUS, [61, 35, np.nan]),
            (telemetry_pb2.METRIC_POWER, telemetry_pb2.UNIT_W, [250, 40, np.nan]),
        ):
            raw = np.array(values, dtype="<f4").tobytes()
            block.columns.add(metric=metric, unit=unit, raw_f32=raw, normalized_f32=raw)
        window = [block] if request.window_s else []
        return telemetry_service_pb2.GetTelemetryResponse(latest=block, window=window)

    # DecomposeService

    def _state(self) -> Any:
        state = decompose_service_pb2.ClusterState(cluster="default", newest_sample_unix_s=5.0, revision=3)
        for node, gpu in CLUSTER.gpus():
            row = state.gpus.add(gpu_id=gpu.gpu_id, node_id=node.node_id, gpu_model=gpu.gpu_model)
            row.variables.add(name="gpu_model", value=gpu.gpu_model, index=0)
        raw = np.array([0.97, 0.0, np.nan], dtype="<f4").tobytes()
        state.planes.add(metric=1, unit=1, raw_f32=raw, normalized_f32=raw)
        return state

    def do_GetClusterState(self, request: Any) -> Any:
        if request.view == decompose_service_pb2.CLUSTER_STATE_VIEW_PLANES and self.suite.planes is not None:
            return decompose_service_pb2.GetClusterStateResponse(planes=planes_to_proto(self.suite.planes))
        return decompose_service_pb2.GetClusterStateResponse(state=self._state())

    def do_WatchClusterState(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.suite.state_requests.append(request)
        if request.view == decompose_service_pb2.CLUSTER_STATE_VIEW_PLANES and self.suite.planes is not None:
            yield decompose_service_pb2.WatchClusterStateResponse(planes=planes_to_proto(self.suite.planes))
        else:
            yield decompose_service_pb2.WatchClusterStateResponse(state=self._state())
        with self.suite.condition:
            self.suite.condition.wait_for(lambda: not context.is_active(), 5)

    def do_PredictRuntime(self, request: Any) -> Any:
        self.suite.predicted_ids += request.job_ids
        answer = decompose_service_pb2.PredictRuntimeResponse(memory_revision=1)
        for number in range(len(request.jobs)):
            prediction = answer.predictions.add()
            itself = request.job_ids[number] if request.job_ids else ""
            for model in request.gpu_models:
                one = prediction.predictions.add(
                    gpu_model=model, median_s=10, low_s=8, high_s=13, interval_coverage=0.8, basis=2, novelty=0.1
                )
                if request.max_evidence and itself != "job-900":
                    one.evidence.add(job_id="job-900", similarity=0.9, gpu_model=model, runtime_s=9.5)
        return answer

    def do_Recall(self, request: Any) -> Any:
        answer = decompose_service_pb2.RecallResponse()
        answer.recollections.add(
            job_id="job-900", similarity=0.9, job=request.job, gpu_model="v100_sxm2", runtime_s=9.5
        )
        return answer

    # OrchestratorService

    def do_WatchStatus(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        before = None
        while context.is_active():
            with self.suite.condition:
                status = self.do_GetStatus(request)
            if status != before:
                before = status
                yield orchestrator_service_pb2.WatchStatusResponse(status=status)
            with self.suite.condition:
                self.suite.condition.wait(0.1)

    def do_GetStatus(self, _request: Any) -> Any:
        states = Counter(job.state for job in self.suite.jobs.values())
        return orchestrator_service_pb2.GetStatusResponse(
            acting=not self.suite.stands_by,
            instance_id="fake",
            lease_holder="another" if self.suite.stands_by else "fake",
            policy=self.suite.policy,
            cluster_connected=True,
            cluster_time_s=self.suite.clock.time_s,
            queue_length=states[JobState.PENDING],
            running_count=states[JobState.RUNNING],
            drained_node_ids=self.suite.drained,
            drain_reasons=self.suite.drain_reasons,
            reservations=[job_pb2.JobReservation(**asdict(each)) for each in self.suite.reservations],
            policy_version="0123456789ab",
            policy_problem=self.suite.policy_problem,
            fallbacks=[
                orchestrator_service_pb2.FallbackCount(reason=reason, count=count)
                for reason, count in self.suite.fallbacks.items()
            ],
            shadow=orchestrator_service_pb2.ShadowStatus(policy=self.suite.shadow, agreed_count=30, differed_count=10)
            if self.suite.shadow
            else None,
            wait_ratio=20,
            event_lag=self.suite.event_lag,
            waiting_by_reason=[
                orchestrator_service_pb2.PendingReasonCount(reason=reason, count=count)
                for reason, count in self.suite.waiting_by_reason.items()
            ],
            gpu_models=self.suite.gpu_models,
            deciding_policy="hold_gang" if self.suite.policy_problem else self.suite.policy,
            deciding_basis=orchestrator_service_pb2.DECISION_BASIS_OUT_OF_RANGE
            if self.suite.policy_problem
            else self.suite.deciding_basis,
            decisions_by_basis=[
                orchestrator_service_pb2.BasisCount(basis=basis, count=count)
                for basis, count in self.suite.decisions_by_basis.items()
            ],
            unreadable_job_count=self.suite.unreadable_job_count,
            preemption=self.suite.preemption_min_run_s is not None,
            preemption_min_run_s=self.suite.preemption_min_run_s or 0.0,
        )

    def do_ListPolicies(self, _request: Any) -> Any:
        answer = orchestrator_service_pb2.ListPoliciesResponse()
        for name, text in (("fcfs", "first come, first served"), ("sjf", "shortest job first")):
            answer.policies.add(
                name=name, description=text, acting=name == self.suite.policy, shadow=name == self.suite.shadow
            )
        return answer

    def do_SetPolicy(self, request: Any) -> Any:
        if self.suite.stands_by:
            raise Unavailable("standing by: another holds the lease", reason="STANDING_BY")
        if request.policy not in ("fcfs", "sjf"):
            raise NotFound(f"there is no policy {request.policy}; there are fcfs and sjf")
        previous, self.suite.policy = self.suite.policy, request.policy
        return orchestrator_service_pb2.SetPolicyResponse(policy=request.policy, previous_policy=previous)

    def do_SetShadowPolicy(self, request: Any) -> Any:
        if request.policy not in ("", "fcfs", "sjf"):
            raise NotFound(f"there is no policy {request.policy}; there are fcfs and sjf")
        previous, self.suite.shadow = self.suite.shadow, request.policy
        return orchestrator_service_pb2.SetShadowPolicyResponse(policy=request.policy, previous_policy=previous)

    def _decision(self, job_id: str) -> Any:
        decision = orchestrator_service_pb2.Decision(
            decision_id="d-1", job_id=job_id, gpu_id="volta-0/0", policy="sjf", time_s=101, queue_length=2,
            summary="shortest of the jobs that fit", decision_us=85, attempt=1, hold_score=-3,
            basis=orchestrator_service_pb2.DECISION_BASIS_MARGIN, basis_text="its base's choice: within the margin",
            policy_version="0123456789ab",
        )  # fmt: skip
        decision.runner_up.job_id, decision.runner_up.gpu_id, decision.runner_up.score = "job-7", "volta-0/1", -11
        decision.shadow.policy, decision.shadow.agrees = "fcfs", False
        decision.deciding_policy = "hold_gang" if self.suite.policy_problem else "sjf"
        if self.suite.policy_problem:
            decision.basis = orchestrator_service_pb2.DECISION_BASIS_OUT_OF_RANGE
        decision.candidates.add(gpu_id="volta-0/0", gpu_model="v100_sxm2", expected_runtime_s=10, score=-10)
        decision.masked.add(gpu_id="turing-0/0", gpu_model="rtx_2080_ti", reason="busy with job-12 for about 8 s")
        return decision

    def do_ExplainDecision(self, request: Any) -> Any:
        if request.job_id:
            self._job(request.job_id)
        return orchestrator_service_pb2.ExplainDecisionResponse(decision=self._decision(request.job_id or "job-1"))

    def do_ExplainWaiting(self, request: Any) -> Any:
        job = self._job(request.job_id)
        told = orchestrator_service_pb2.WaitingExplanation(
            job_id=job.job_id, time_s=100.0, sentence=job.message,
            queue_place=37, queue_length=640,
            reason=job_to_proto(job).pending_reason,
        )  # fmt: skip
        told.obstacles.add(obstacle=orchestrator_service_pb2.GPU_OBSTACLE_BUSY, gpu_count=15)
        told.obstacles.add(obstacle=orchestrator_service_pb2.GPU_OBSTACLE_NODE_FULL, gpu_count=1)
        told.changes.add(
            kind=orchestrator_service_pb2.WAITING_CHANGE_KIND_CPU_CORES, value=4, gpu_count=1,
            sentence="ask for 4 cores: 1 GPU fits now",
        )  # fmt: skip
        start = told.expected_start
        start.low_s, start.median_s, start.high_s, start.made_s = 280.0, 400.0, 640.0, 99.5
        start.finished_count, start.came_in_ratio = 200, 0.83
        return orchestrator_service_pb2.ExplainWaitingResponse(explanation=told)

    def do_GetClusterCapacity(self, _request: Any) -> Any:
        clock = clock_to_proto(self.suite.clock)
        answer = orchestrator_service_pb2.GetClusterCapacityResponse(cluster="default", clock=clock)
        answer.gpu_models.add(
            gpu_model="v100_sxm2", gpu_count=2, usable_gpu_count=2, free_gpu_count=1,
            largest_free_cpu_cores=16, largest_free_memory_mib=131072,
        )  # fmt: skip
        answer.gpu_models.add(gpu_model="rtx_2080_ti", gpu_count=1, usable_gpu_count=1, free_gpu_count=0)
        return answer

    def do_WatchDecisions(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if self.suite.stands_by:
            raise Unavailable("standing by: another holds the lease", reason="STANDING_BY")
        for _ in range(request.history):
            decision = self._decision("job-1")
            if request.view == orchestrator_service_pb2.DECISION_VIEW_SUMMARY:
                yield orchestrator_service_pb2.WatchDecisionsResponse(decisions=[decision], missed_count=3)
                return
            yield orchestrator_service_pb2.WatchDecisionsResponse(decision=decision)
        with self.suite.condition:
            self.suite.condition.wait_for(lambda: not context.is_active(), 5)

    def do_ListDecisions(self, request: Any) -> Any:
        """Two pages of two decisions; the request is kept."""
        self.suite.decision_lists.append(request)
        first = 4 - 2 * int(request.page_token or 0)
        answer = orchestrator_service_pb2.ListDecisionsResponse(next_page_token="" if request.page_token else "1")
        for number in (first, first - 1):
            decision = self._decision(f"job-{number}")
            decision.decision_id = f"d-1-{number}"
            decision.prediction.median_s, decision.prediction.interval_coverage = 11.5, 0.8
            answer.decisions.append(decision)
        return answer

    def do_DrainNode(self, request: Any) -> Any:
        if request.node_id not in [node.node_id for node in CLUSTER.nodes]:
            raise NotFound(f"there is no node {request.node_id}")
        self.suite.drained.append(request.node_id)
        if request.reason:
            self.suite.drain_reasons[request.node_id] = request.reason
        running = [job.job_id for job in self.suite.jobs.values() if job.state is JobState.RUNNING]
        return orchestrator_service_pb2.DrainNodeResponse(running_job_ids=running)

    def do_UndrainNode(self, request: Any) -> Any:
        self.suite.drained.remove(request.node_id)
        self.suite.drain_reasons.pop(request.node_id, None)
        return orchestrator_service_pb2.UndrainNodeResponse()

    # ClusterService

    def do_DescribeCluster(self, _request: Any) -> Any:
        conditions = self.suite.gpu_conditions
        return description_to_proto(
            ClusterDescription(
                CLUSTER,
                (),
                tuple(each.gpu_id for each in conditions),
                self.suite.clock,
                "inc-1",
                7,
                1,
                capabilities=self.suite.capabilities,
                gpu_conditions=conditions,
            )
        )

    def do_SetClock(self, request: Any) -> Any:
        clock = self.suite.clock
        clock = replace(
            clock,
            mode=ClockMode(request.mode) if request.mode else clock.mode,
            scale=request.scale if request.HasField("scale") else clock.scale,
            paused=request.paused if request.HasField("paused") else clock.paused,
        )
        self.suite.clock = clock
        self.suite.clock_calls.append(clock)
        if clock.mode is ClockMode.VIRTUAL and not clock.paused and not self.suite.hold_jobs:
            self.suite.run_jobs()
        return cluster_service_pb2.SetClockResponse(clock=clock_to_proto(self.suite.clock))


def matches(job: Job, job_filter: Any) -> bool:
    return (
        (not job_filter.states or job.state in job_filter.states)
        and (not job_filter.job_types or job.spec.job_type in job_filter.job_types)
        and (not job_filter.user or job.spec.user == job_filter.user)
        and (not job_filter.application or job.spec.application == job_filter.application)
        and (not job_filter.job_ids or job.job_id in job_filter.job_ids)
        and all(job.spec.labels.get(key) == value for key, value in job_filter.labels.items())
    )


def _abort(context: grpc.ServicerContext, error: AdlroError) -> None:
    from grpc_status import rpc_status

    context.abort_with_status(rpc_status.to_status(to_status(error)))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what happens in other threads or processes, and cannot be awaited."""
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
