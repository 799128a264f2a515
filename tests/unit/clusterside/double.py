"""A cluster in memory behind ClusterService, written without ADLRO's cluster side: what the check is tried on.

Jobs run for their declared runtime in real time. Each rule stands in a method of its own, for `broken` to break.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from adlro.errors import Conflict, InvalidInput, NotFound, OutOfRange, Stale, Unsupported
from adlro.kit.server import ServiceContext
from adlro.v1 import cluster_pb2
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc

# Rules that are skipped where a cluster runs no jobs of several GPUs.
OF_GANGS = {
    "starts_a_gang_on_all_its_gpus",
    "refuses_a_gang_as_a_whole",
    "keeps_a_gang_on_its_gpus",
    "names_a_gang_of_another_size",
    "stops_a_gang_on_all_its_gpus",
    "loses_a_gang_with_any_of_its_gpus",
}
# Rules that are skipped where a cluster stops no job for another one.
OF_PREEMPTION = {
    "stops_others_for_a_launch",
    "refuses_a_preemption_as_a_whole",
    "answers_a_repeated_preemption",
    "stops_what_waits_for_others",
    "ends_as_stopped_what_its_user_stops_meanwhile",
    "preempts_without_a_successor",
}
# Rules that are skipped where a cluster gives whole GPUs only.
OF_SHARES = {
    "runs_two_jobs_on_a_gpu",
    "refuses_a_third_job_on_a_gpu",
    "refuses_a_whole_gpu_beside_a_part",
    "counts_the_gpu_memory_of_both",
    "answers_a_repeated_launch_of_a_part",
    "refuses_a_part_that_a_job_can_not_have",
    "stops_one_of_two",
    "loses_both_with_their_gpu",
    "stops_both_of_a_gpu_for_a_launch",
}
Key = tuple[str, int]
GPU_MEMORY_MIB, CORES, MEMORY_MIB = 16_000, 8, 64_000


class Double(pb_grpc.ClusterServiceServicer):
    """A service of the kit."""

    name = "double"
    gangs = preemption = shares = False
    service_names: Sequence[str] = ("adlro.v1.ClusterService",)

    def __init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.events: list[pb.ClusterEvent] = []
        self.acknowledged = 0
        self.token = 0
        self.attempts: dict[str, pb.LaunchJobRequest] = {}  # by job its newest
        self.starts: dict[Key, pb.ClusterEvent] = {}
        self.open: dict[str, asyncio.TimerHandle] = {}
        self.began = time.monotonic()
        self.news = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_ClusterServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        self.draining = context.draining

    async def stop(self) -> None:
        for timer in self.open.values():
            timer.cancel()

    # ---- parts

    def now_s(self) -> float:
        return time.monotonic() - self.began

    def members(self, request: pb.LaunchJobRequest) -> list[str]:
        return [each.gpu_id for each in request.placement.gpus] or [request.gpu_id]

    def check_size(self, request: pb.LaunchJobRequest) -> None:
        if len(self.members(request)) > 1 and not self.gangs:
            raise Unsupported("it runs no gangs")
        if len(self.members(request)) != request.spec.gpu_count:
            raise InvalidInput("another number of GPUs", field="placement")

    def check_parts(self, request: pb.LaunchJobRequest) -> None:
        if any(each.share < 1.0 for each in request.placement.gpus):
            raise Unsupported("it gives whole GPUs")

    def check_preemption(self, *, asked: bool) -> None:
        if asked and not self.preemption:
            raise Unsupported("it stops no job for another one")

    def emit(self, kind: int, job_id: str = "", attempt: int = 0, gpu_id: str = "") -> pb.ClusterEvent:
        request = self.attempts.get(job_id)
        event = pb.ClusterEvent(
            placement=None if request is None else request.placement,
            revision=self.next_revision(),
            kind=kind,  # type: ignore[arg-type]  # a number of EventKind
            time_s=self.now_s(),
            job_id=job_id,
            attempt=attempt,
            gpu_id=gpu_id,
        )
        self.events.append(event)
        self.news.set()
        self.news = asyncio.Event()
        return event

    def next_revision(self) -> int:
        return self.events[-1].revision + 1 if self.events else 1

    def check_token(self, token: int) -> None:
        if token < self.token:
            raise Conflict("old", reason="STALE_FENCING_TOKEN", metadata={"fencing_token": str(self.token)})
        if token > self.token:
            raise Conflict("new", reason="UNKNOWN_FENCING_TOKEN", metadata={"fencing_token": str(self.token)})

    def check_incarnation(self, incarnation: str) -> None:
        if incarnation and incarnation != self.incarnation:
            raise Stale("another incarnation")

    def check_gpu(self, request: pb.LaunchJobRequest) -> None:
        for gpu_id in self.members(request):
            if gpu_id not in ("a/0", "a/1"):
                raise NotFound(f"no GPU {gpu_id}")

    def check_busy(self, request: pb.LaunchJobRequest) -> None:
        for gpu_id in self.members(request):
            if any(gpu_id in self.members(self.attempts[job_id]) for job_id in self.open):
                raise Conflict(f"{gpu_id} is busy", reason="GPU_BUSY")

    def check_open(self, request: pb.LaunchJobRequest) -> None:
        if request.job_id in self.open:
            raise Conflict("runs", reason="JOB_RUNNING")

    def check_fit(self, request: pb.LaunchJobRequest) -> None:
        if request.spec.gpu_memory_mib > GPU_MEMORY_MIB:
            raise Conflict("too large", reason="GPU_MEMORY_TOO_SMALL")
        if request.spec.cpu_cores * request.spec.gpu_count > CORES:
            raise Conflict("too many on node a", reason="NODE_CORES_EXHAUSTED")
        if request.spec.memory_mib > MEMORY_MIB:
            raise Conflict("too much", reason="NODE_MEMORY_EXHAUSTED")
        self.check_nodes(request)

    def check_nodes(self, request: pb.LaunchJobRequest) -> None:
        spec = request.spec
        if "a" in spec.excluded_node_ids or (spec.node_ids and "a" not in spec.node_ids):
            raise Conflict("not on node a", reason="NODE_NOT_ACCEPTED")
        for job_id in self.open:
            if self.attempts[job_id].spec.exclusive:
                raise Conflict(f"{job_id} is alone", reason="NODE_EXCLUSIVE")
        if spec.exclusive and self.open:
            raise Conflict("others run", reason="NODE_NOT_EMPTY")

    def known(self, request: pb.LaunchJobRequest) -> bool:
        known = self.attempts.get(request.job_id)
        if known is None or known.attempt < request.attempt:
            return False
        if known.attempt > request.attempt:
            self.refuse_old()
        elif not self.same_place(known, request):
            self.refuse_other_gpu()
        return True

    def same_place(self, known: pb.LaunchJobRequest, request: pb.LaunchJobRequest) -> bool:
        return self.members(known) == self.members(request)

    def refuse_old(self) -> None:
        raise Conflict("old", reason="OLD_ATTEMPT")

    def refuse_other_gpu(self) -> None:
        raise Conflict("elsewhere", reason="ATTEMPT_ON_OTHER_GPU")

    def begin(self, request: pb.LaunchJobRequest) -> None:
        key = (request.job_id, request.attempt)
        self.attempts[request.job_id] = request
        self.starts[key] = self.emit(pb.EVENT_KIND_STARTED, *key, request.gpu_id)
        self.emit(pb.EVENT_KIND_RUNNING, *key, request.gpu_id)
        runtime_s, kind = self.ending(request)
        loop = asyncio.get_running_loop()
        self.open[request.job_id] = loop.call_later(runtime_s + 0.002, self.end, request.job_id, kind)

    def ending(self, request: pb.LaunchJobRequest) -> tuple[float, int]:
        runtime_s, limit_s = request.spec.expected_runtime.runtime_s, request.spec.time_limit_s
        if request.spec.HasField("time_limit_s") and limit_s < runtime_s:
            return limit_s, pb.EVENT_KIND_FAILED
        return runtime_s, pb.EVENT_KIND_FINISHED

    def end(self, job_id: str, kind: int) -> None:
        self.open.pop(job_id).cancel()
        request = self.attempts[job_id]
        self.emit(kind, job_id, request.attempt, request.gpu_id)

    def answer(self, request: pb.LaunchJobRequest, existing: bool) -> pb.LaunchJobResponse:
        start = self.starts[request.job_id, request.attempt]
        state = pb.ATTEMPT_STATE_RUNNING if request.job_id in self.open else pb.ATTEMPT_STATE_ENDED
        return pb.LaunchJobResponse(existing=existing, start_s=start.time_s, revision=start.revision, state=state)

    def running(self) -> list[pb.RunningJob]:
        found = []
        for job_id in self.open:
            request = self.attempts[job_id]
            start_s = self.starts[job_id, request.attempt].time_s
            running = pb.RunningJob(job_id=job_id, attempt=request.attempt, gpu_id=request.gpu_id, start_s=start_s)
            running.placement.CopyFrom(request.placement)
            found.append(running)
        return found

    def clock(self) -> cluster_pb2.Clock:
        return cluster_pb2.Clock(mode=cluster_pb2.CLOCK_MODE_REAL, scale=1.0, time_s=self.now_s())

    # ---- ClusterService

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.ReadLogsResponse]:
        chunks: list[pb.ReadLogsResponse] = []
        for each in chunks:
            yield each
        raise Unsupported("it stores no output")

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Any) -> pb.DescribeClusterResponse:
        gpus = [cluster_pb2.Gpu(gpu_id=f"a/{n}", gpu_model="v100_sxm2", memory_mib=GPU_MEMORY_MIB) for n in range(2)]
        node = cluster_pb2.Node(node_id="a", cpu_cores=CORES, memory_mib=MEMORY_MIB, gpus=gpus)
        return pb.DescribeClusterResponse(
            cluster=cluster_pb2.Cluster(name="double", nodes=[node]),
            running=self.running(),
            clock=self.clock(),
            incarnation=self.incarnation,
            revision=self.next_revision() - 1,
            oldest_revision=1,
            fencing_token=self.token,
            capabilities=pb.Capabilities(stop=True, gangs=self.gangs, preemption=self.preemption, shares=self.shares),
        )

    async def LaunchJob(self, request: pb.LaunchJobRequest, context: Any) -> pb.LaunchJobResponse:
        self.check_incarnation(request.incarnation)
        self.check_token(request.fencing_token)
        self.check_preemption(asked=bool(request.preempts))
        self.check_size(request)
        self.check_parts(request)
        if self.known(request):
            return self.answer(request, existing=True)
        self.check_gpu(request)
        self.check_open(request)
        self.check_busy(request)
        self.check_fit(request)
        self.begin(request)
        return self.answer(request, existing=False)

    async def StopJob(self, request: pb.StopJobRequest, context: Any) -> pb.StopJobResponse:
        self.check_incarnation(request.incarnation)
        self.check_token(request.fencing_token)
        self.check_preemption(asked=request.preempt)
        if request.job_id not in self.open or request.attempt not in (0, self.attempts[request.job_id].attempt):
            return pb.StopJobResponse(stopped=False)
        self.end(request.job_id, pb.EVENT_KIND_STOPPED)
        return pb.StopJobResponse(stopped=True)

    async def WatchEvents(self, request: pb.WatchEventsRequest, context: Any) -> AsyncIterator[pb.WatchEventsResponse]:
        self.check_incarnation(request.incarnation)
        self.check_position(request.after_revision)
        told = request.after_revision
        while not self.draining.is_set():
            news = self.news
            fresh = [event for event in self.events if event.revision > told]
            if fresh:
                yield pb.WatchEventsResponse(incarnation=self.incarnation, events=fresh, clock=self.clock())
                told = fresh[-1].revision
                continue
            waits = [asyncio.create_task(each.wait()) for each in (news, self.draining)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()

    def check_position(self, after_revision: int) -> None:
        if after_revision > len(self.events):
            raise OutOfRange("ahead")

    async def AcknowledgeEvents(
        self, request: pb.AcknowledgeEventsRequest, context: Any
    ) -> pb.AcknowledgeEventsResponse:
        self.check_incarnation(request.incarnation)
        self.check_token(request.fencing_token)
        self.check_position(request.revision)
        self.acknowledged = max(self.acknowledged, request.revision)
        return pb.AcknowledgeEventsResponse()

    async def WakeAt(self, request: pb.WakeAtRequest, context: Any) -> pb.WakeAtResponse:
        clock = self.clock()
        if min(request.times_s) <= clock.time_s:
            self.emit(pb.EVENT_KIND_WAKE_UP)
        for time_s in {time_s for time_s in request.times_s if time_s > clock.time_s}:
            wait_s = time_s - clock.time_s + 0.002
            asyncio.get_running_loop().call_later(wait_s, self.emit, pb.EVENT_KIND_WAKE_UP)
        return pb.WakeAtResponse(clock=clock)

    async def SetClock(self, request: pb.SetClockRequest, context: Any) -> pb.SetClockResponse:
        raise Unsupported("it keeps real time")

    async def SetGpuAvailability(
        self, request: pb.SetGpuAvailabilityRequest, context: Any
    ) -> pb.SetGpuAvailabilityResponse:
        raise Unsupported("its GPUs stay")


class GangDouble(Double):
    """It runs jobs of several GPUs, and its GPUs may be lost."""

    gangs = True

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()

    def check_gpu(self, request: pb.LaunchJobRequest) -> None:
        super().check_gpu(request)
        for gpu_id in self.lost.intersection(self.members(request)):
            raise Conflict(f"{gpu_id} is lost", reason="GPU_LOST")

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Any) -> pb.DescribeClusterResponse:
        answer = await super().DescribeCluster(request, context)
        answer.capabilities.gpu_availability = True
        answer.lost_gpu_ids.extend(sorted(self.lost))
        return answer

    async def SetGpuAvailability(
        self, request: pb.SetGpuAvailabilityRequest, context: Any
    ) -> pb.SetGpuAvailabilityResponse:
        if request.available:
            self.lost.discard(request.gpu_id)
            self.emit(pb.EVENT_KIND_GPU_BACK, gpu_id=request.gpu_id)
            return pb.SetGpuAvailabilityResponse()
        self.lost.add(request.gpu_id)
        self.emit(pb.EVENT_KIND_GPU_LOST, gpu_id=request.gpu_id)
        on_it = self.jobs_on(request.gpu_id)
        for job_id in on_it:
            self.end(job_id, pb.EVENT_KIND_LOST)
        return pb.SetGpuAvailabilityResponse(lost_job_id=on_it[0] if on_it else "")

    def jobs_on(self, gpu_id: str) -> list[str]:
        return [job_id for job_id in self.open if gpu_id in self.members(self.attempts[job_id])]


class PreemptingDouble(GangDouble):
    """It stops jobs for others; each takes a moment to end."""

    preemption = True
    ends_after_s = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.stopping: dict[str, int] = {}
        self.waiting: dict[str, tuple[pb.LaunchJobRequest, set[str]]] = {}

    async def LaunchJob(self, request: pb.LaunchJobRequest, context: Any) -> pb.LaunchJobResponse:
        if not request.preempts:
            return await super().LaunchJob(request, context)
        self.check_token(request.fencing_token)
        if self.known(request):
            return self.answer(request, existing=True)
        self.check_victims(request)
        self.check_gpu(request)
        self.check_open(request)
        before = dict(self.open)
        victims = {each.job_id for each in request.preempts}
        for each in victims:
            del self.open[each]
        try:
            self.check_busy(request)
            self.check_fit(request)
        finally:
            self.open = before
        self.attempts[request.job_id] = request
        self.waiting[request.job_id] = request, victims
        for each in victims:
            self.ask_end(each, pb.EVENT_KIND_PREEMPTED)
        return self.answer(request, existing=False)

    def check_victims(self, request: pb.LaunchJobRequest) -> None:
        if len({each.job_id for each in request.preempts}) < len(request.preempts):
            raise Conflict("named twice", reason="NOT_PREEMPTIBLE")
        for each in request.preempts:
            if each.job_id not in self.open or self.attempts[each.job_id].attempt != each.attempt:
                raise Conflict(f"{each.job_id} does not run", reason="NOT_RUNNING")
            self.check_victim(each.job_id)

    def check_victim(self, job_id: str) -> None:
        if not self.attempts[job_id].spec.HasField("preemptible") or job_id in self.stopping:
            raise Conflict(f"{job_id} is not preemptible", reason="NOT_PREEMPTIBLE")

    def ask_end(self, job_id: str, kind: int) -> None:
        self.stopping[job_id] = kind
        self.open[job_id].cancel()
        loop = asyncio.get_running_loop()
        self.open[job_id] = loop.call_later(self.ends_after_s, lambda: self.end(job_id, self.stopping[job_id]))

    def end(self, job_id: str, kind: int) -> None:
        super().end(job_id, kind)
        self.stopping.pop(job_id, None)
        for waiting, (request, victims) in list(self.waiting.items()):
            victims.discard(job_id)
            if not victims:
                del self.waiting[waiting]
                self.begin(request)

    def answer(self, request: pb.LaunchJobRequest, existing: bool) -> pb.LaunchJobResponse:
        if (request.job_id, request.attempt) in self.starts:
            return super().answer(request, existing)
        state = pb.ATTEMPT_STATE_ACCEPTED if request.job_id in self.waiting else pb.ATTEMPT_STATE_ENDED
        return pb.LaunchJobResponse(existing=existing, state=state)

    async def StopJob(self, request: pb.StopJobRequest, context: Any) -> pb.StopJobResponse:
        job_id = request.job_id
        if job_id in self.waiting:
            self.stop_waiting(job_id)
        elif job_id in self.stopping:
            if request.preempt or self.stopping[job_id] == pb.EVENT_KIND_STOPPED:
                return pb.StopJobResponse(stopped=False)
            self.stop_for_good(job_id)
        elif request.preempt and job_id in self.open:
            self.check_victim(job_id)
            self.ask_end(job_id, pb.EVENT_KIND_PREEMPTED)
        else:
            return await super().StopJob(request, context)
        return pb.StopJobResponse(stopped=True)

    def stop_waiting(self, job_id: str) -> None:
        request, _ = self.waiting.pop(job_id)
        self.emit(pb.EVENT_KIND_STOPPED, job_id, request.attempt, request.gpu_id)

    def stop_for_good(self, job_id: str) -> None:
        self.stopping[job_id] = pb.EVENT_KIND_STOPPED


class SharingDouble(PreemptingDouble):
    """Two shareable jobs may have half of a GPU each."""

    shares = True

    def share(self, request: pb.LaunchJobRequest) -> float:
        return request.placement.gpus[0].share if request.placement.gpus else 1.0

    def check_parts(self, request: pb.LaunchJobRequest) -> None:
        if self.share(request) != 1.0 and not (request.spec.shareable and self.share(request) == 0.5):
            raise InvalidInput("no such part for this job", field="placement")

    def check_busy(self, request: pb.LaunchJobRequest) -> None:
        for gpu_id in self.members(request):
            there = self.jobs_on(gpu_id)
            if sum(self.share(self.attempts[each]) for each in there) + self.share(request) > 1.0:
                raise Conflict(f"{gpu_id} has {' and '.join(there)}", reason="GPU_BUSY")

    def check_fit(self, request: pb.LaunchJobRequest) -> None:
        super().check_fit(request)
        there = [each for gpu_id in self.members(request) for each in self.jobs_on(gpu_id)]
        used_mib = sum(self.attempts[each].spec.gpu_memory_mib for each in there)
        if used_mib + request.spec.gpu_memory_mib > GPU_MEMORY_MIB:
            raise Conflict("too large beside others", reason="GPU_MEMORY_TOO_SMALL")

    def same_place(self, known: pb.LaunchJobRequest, request: pb.LaunchJobRequest) -> bool:
        return super().same_place(known, request) and self.share(known) == self.share(request)
