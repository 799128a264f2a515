"""A service on JobService's contract whose handlers do what a test needs; also a process: `python .../fake_service.py`.

What GetJob does is the job id: see `_GET`. Tests of the kit use it in place of a real service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar

import grpc

from adlro.errors import InvalidInput
from adlro.kit.redis import connect, watch_redis
from adlro.kit.server import ServiceContext, main
from adlro.kit.settings import ServiceSettings
from adlro.kit.validation import attempt_each
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class FakeSettings(ServiceSettings):
    service_name: ClassVar[str] = "ingest"

    use_redis: bool = False
    crash_after_s: float = 0
    start_problem: str = ""
    stop_s: float = 0


# Some methods are left to the generated class on purpose; its stubs call them abstract.
_Base: Any = job_service_pb2_grpc.JobServiceServicer


class FakeService(_Base):  # type: ignore[misc]
    """Raises what it is told to raise."""

    name = "ingest"
    service_names: Sequence[str] = ("adlro.v1.JobService",)

    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        # What GetJob does by job id, besides that which is built in; a test adds to it.
        self.get: dict[str, Callable[[], Awaitable[Any]]] = {}
        self.watch: Callable[[], AsyncIterator[Any]] = self._watch_until_draining
        self.skip_bad = False
        self.context: ServiceContext
        self.watchers = 0
        self.stopped = False
        self.in_flight = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        job_service_pb2_grpc.add_JobServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        self.context = context
        if self._settings.start_problem == "bug":
            raise ZeroDivisionError("a bug at start")
        if self._settings.start_problem:
            raise InvalidInput(self._settings.start_problem)
        self.redis = connect(self._settings.redis_url)
        if self._settings.use_redis:
            context.spawn(watch_redis(context, self.redis), "watch redis")
        if self._settings.crash_after_s:
            context.spawn(self._crash(), "crash")

    async def stop(self) -> None:
        await asyncio.sleep(self._settings.stop_s)
        await self.redis.aclose()
        self.stopped = True

    async def _crash(self) -> None:
        await asyncio.sleep(self._settings.crash_after_s)
        raise ZeroDivisionError("a bug in a loop")

    async def _watch_until_draining(self) -> AsyncIterator[Any]:
        yield job_service_pb2.WatchJobsResponse(revision=1)
        await self.context.draining.wait()
        yield job_service_pb2.WatchJobsResponse(revision=2)

    # ---- JobService

    async def SubmitJob(self, request: Any, context: Context) -> job_service_pb2.SubmitJobResponse:
        return job_service_pb2.SubmitJobResponse(job=job_pb2.Job(job_id="job-1", spec=request.job))

    async def GetJob(self, request: Any, context: Context) -> job_service_pb2.GetJobResponse:
        self.in_flight.set()
        self.context.log.info("in flight")
        if request.job_id in self.get:
            await self.get[request.job_id]()
        elif request.job_id == "redis":
            await self.redis.set("job", "1")
        elif request.job_id.startswith("sleep "):
            await asyncio.sleep(float(request.job_id.removeprefix("sleep ")))
        elif request.job_id.startswith("block "):
            time.sleep(float(request.job_id.removeprefix("block ")))  # noqa: ASYNC251 - a handler that blocks the loop
        elif request.job_id == "bug":
            raise ZeroDivisionError("the secret of the bug")
        return job_service_pb2.GetJobResponse(job=job_pb2.Job(job_id=request.job_id))

    async def SubmitJobs(self, request_iterator: Any, context: Context) -> job_service_pb2.SubmitJobsResponse:
        answer = job_service_pb2.SubmitJobsResponse()
        if self.skip_bad:
            async for index, message, error in attempt_each(request_iterator):
                if error is not None:
                    answer.rejected.add(index=index, message=error.message)
                answer.job_ids.append("job" if message is not None else "")
        else:
            async for _ in request_iterator:
                answer.accepted_count += 1
        return answer

    async def WatchJobs(self, request: Any, context: Context) -> AsyncIterator[Any]:
        self.watchers += 1
        try:
            async for answer in self.watch():
                yield answer
        finally:
            self.watchers -= 1


if __name__ == "__main__":
    main(FakeService, FakeSettings)
