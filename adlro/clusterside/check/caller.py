"""Calls the cluster that is checked, over gRPC, and follows its events. Raises the error tree, and `Broken`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import redis.asyncio as aioredis

from adlro.errors import AdlroError, Conflict, InvalidInput
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.redis import connect
from adlro.kit.status import from_rpc_error
from adlro.placement import Placement
from adlro.records.events import ENDS, Clock, ClockMode, ClusterDescription, ClusterEvent, EventBatch, EventKind
from adlro.records.jobs import AttemptRef, ExpectedRuntime, JobSpec, JobType, SimulatedWork
from adlro.records.payloads import process_payload
from adlro.store.keys import TOKEN
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.wire import (
    attempt_ref_to_proto,
    batch_from_proto,
    clock_from_proto,
    description_from_proto,
    placement_to_proto,
    spec_to_proto,
)

# Declared runtimes, cluster seconds: of a job that is to end, and of one that is to run until it is stopped.
SHORT_S, LONG_S = 0.3, 120.0
_TOKEN_TRIES = 3
# What its programs get: a limit of memory must let `sleep` live.
_MEMORY_MIB, _GRACE_S = 32, 5.0


class Broken(Exception):
    """A rule is not kept.

    Args:
        expected: what should have been.
        seen: what was.
    """

    def __init__(self, expected: str, seen: object) -> None:
        super().__init__(f"expected {expected}; seen {seen}")
        self.expected = expected
        self.seen = str(seen) or "nothing"


class Skipped(Exception):
    """The cluster says that it can't do what the rule is about."""


def expect(kept: object, expected: str, seen: object) -> None:
    """Raises Broken where something is not as expected."""
    if not kept:
        raise Broken(expected, seen)


class ServiceCaller:
    """A client of the cluster that is checked; use it with `async with`.

    Attributes:
        can: what the cluster says that it can do.
        gpu_ids: its GPUs.
        model_of, node_of: by GPU its model, and its node.
        patience_s: wall time that an answer or an event is waited for.
        token: the newest fencing token.

    Args:
        address: of the cluster.
        credentials: certificates and token.
        redis_url: of the store that gives fencing tokens; empty: the cluster is asked.
        patience_s: see above.
        user: whose jobs it launches.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials | None,
        redis_url: str,
        patience_s: float,
        user: str = "check",
    ) -> None:
        self._user = user
        self.patience_s = patience_s
        self.token = 0
        self._channel = open_channel(address, credentials)
        self._stub = pb_grpc.ClusterServiceStub(self._channel)
        self._redis: aioredis.Redis | None = connect(redis_url) if redis_url else None
        # Launches that were accepted, and had not started then.
        self._accepted: list[pb.LaunchJobRequest] = []
        self._names = itertools.count(1)
        self._prefix = f"check-{uuid.uuid4().hex[:12]}"

    async def __aenter__(self) -> ServiceCaller:
        """Looks whether it can be checked. Raises InvalidInput where something runs there, or its clock stands."""
        try:
            description = await self.describe()
            if description.running:
                raise InvalidInput(
                    f"{len(description.running)} jobs run on the cluster, such as {description.running[0].job_id}; the "
                    "check needs an idle cluster, because it stops and loses jobs"
                )
            if description.clock.paused or description.clock.mode is ClockMode.VIRTUAL:
                raise InvalidInput(
                    "the cluster's clock is paused or virtual, and the check needs one that runs by itself: set it "
                    "with `adlro clock --mode real --resume`"
                )
            self.can = description.capabilities
            self._scale = max(description.clock.scale, 1.0)
            self.model_of = {gpu.gpu_id: gpu.gpu_model for _, gpu in description.cluster.gpus()}
            self.node_of = {gpu.gpu_id: node.node_id for node, gpu in description.cluster.gpus()}
            self.gpu_ids = list(self.model_of)
            if not self.gpu_ids:
                raise InvalidInput("the cluster has no GPU")
            await self._find_token(description)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        if self._redis is not None:
            await self._redis.aclose()
        await self._channel.close(None)

    # ---- fencing tokens

    async def take_lease(self) -> int:
        """The fencing token of a new lease, newer than any before.

        Raises:
            Skipped: leases are given by a store that is not known.
        """
        if self._redis is None:
            raise Skipped("needs another fencing token: name the store that issues them (redis_url)")
        self.token = int(await self._redis.incr(TOKEN))
        return self.token

    async def _find_token(self, description: ClusterDescription) -> None:
        """The newest token: of a lease of one's own, or as the cluster tells it when it refuses an older one."""
        if self._redis is not None:
            await self.take_lease()
            return
        self.token = description.fencing_token
        for _ in range(_TOKEN_TRIES):
            try:
                await self.acknowledge(description.incarnation, 0)
            except Conflict as error:
                told = error.metadata.get("fencing_token", "")
                self.token = int(told) if told.isdecimal() else self.token + 1
            except AdlroError:  # for a rule to find
                return
            else:
                return

    # ---- calls

    async def call(self, method: str, request: Any) -> Any:
        """One call. Raises the error tree."""
        try:
            return await getattr(self._stub, method)(request, timeout=self.patience_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def describe(self) -> ClusterDescription:
        """How the cluster stands."""
        return description_from_proto(await self.call("DescribeCluster", pb.DescribeClusterRequest()))

    def new_job(self) -> str:
        """An id that no job had before."""
        return f"{self._prefix}-{next(self._names)}"

    async def launch(
        self,
        job_id: str,
        where: str | Placement,
        runtime_s: float = LONG_S,
        *,
        attempt: int = 1,
        token: int | None = None,
        incarnation: str = "",
        preempts: Sequence[AttemptRef] = (),
        resumes: bool = False,
        **fields: Any,
    ) -> pb.LaunchJobResponse:
        """Launches an attempt whose declared runtime, in both forms that a job can declare it, is `runtime_s`.

        Seconds are those of a REAL clock; where it runs scaled, so many more. On a cluster that runs programs it sleeps
        for as long. `where`: a GPU's id, as older orchestrators name it, or all of a placement. `preempts`: attempts
        that are stopped to make room.
        """
        placement = where if isinstance(where, Placement) else None
        gpu_id = where.gpu_id if isinstance(where, Placement) else where
        if placement is not None:
            fields.setdefault("gpu_count", len(placement.gpus))
        program = process_payload(("sleep", f"{runtime_s:g}"), stop_grace_s=_GRACE_S, log_limit_mib=1)
        runtime_s *= self._scale
        spec = JobSpec(
            "check",
            self._user,
            JobType.SIMULATION,
            expected_runtime=ExpectedRuntime(self.model_of.get(gpu_id, "unknown"), runtime_s),
            simulated_work=SimulatedWork(runtime_s),
            payload=program,
            **{"memory_mib": _MEMORY_MIB, **fields},
        )
        request = pb.LaunchJobRequest(
            job_id=job_id,
            attempt=attempt,
            spec=spec_to_proto(spec),
            gpu_id=gpu_id,
            placement=None if placement is None else placement_to_proto(placement),
            fencing_token=self.token if token is None else token,
            incarnation=incarnation,
            preempts=map(attempt_ref_to_proto, preempts),
            resumes=resumes,
        )
        answer: pb.LaunchJobResponse = await self.call("LaunchJob", request)
        if answer.state == pb.ATTEMPT_STATE_ACCEPTED:
            self._accepted.append(request)
        return answer

    async def stop(
        self,
        job_id: str,
        *,
        attempt: int = 0,
        token: int | None = None,
        incarnation: str = "",
        preempt: bool = False,
    ) -> bool:
        """Has an attempt ended; with `preempt` as one that goes on later."""
        request = pb.StopJobRequest(
            job_id=job_id,
            attempt=attempt,
            fencing_token=self.token if token is None else token,
            incarnation=incarnation,
            preempt=preempt,
        )
        return bool((await self.call("StopJob", request)).stopped)

    async def acknowledge(self, incarnation: str, revision: int, token: int | None = None) -> None:
        """Everything up to a revision is dealt with."""
        request = pb.AcknowledgeEventsRequest(
            incarnation=incarnation, revision=revision, fencing_token=self.token if token is None else token
        )
        await self.call("AcknowledgeEvents", request)

    async def wake_at(self, *times_s: float) -> Clock:
        """Asks for wake-ups; the clock when it was asked."""
        return clock_from_proto((await self.call("WakeAt", pb.WakeAtRequest(times_s=times_s))).clock)

    @asynccontextmanager
    async def watch(self, after_revision: int, incarnation: str = "") -> AsyncIterator[Watch]:
        """The events after a revision."""
        call = self._stub.WatchEvents(pb.WatchEventsRequest(incarnation=incarnation, after_revision=after_revision))
        try:
            yield Watch(call, self.patience_s)
        finally:
            call.cancel()

    @asynccontextmanager
    async def watch_from_now(self) -> AsyncIterator[Watch]:
        """The events from now on."""
        description = await self.describe()
        async with self.watch(description.revision, description.incarnation) as watch:
            yield watch

    async def run_to_its_end(self, gpu_id: str, runtime_s: float = SHORT_S) -> tuple[str, list[ClusterEvent]]:
        """Runs a job; its id, and all events until it has ended."""
        job_id = self.new_job()
        async with self.watch_from_now() as watch:
            await self.launch(job_id, gpu_id, runtime_s)
            await watch.end_of(job_id)
            return job_id, watch.events

    # ---- leaving it as it was

    async def tidy_up(self) -> None:
        """Ends what the rule before has left running, as far as that can be done."""
        with contextlib.suppress(AdlroError, TimeoutError):
            async with asyncio.timeout(self.patience_s):
                while running := [
                    each for each in (await self.describe()).running if each.job_id.startswith(self._prefix)
                ]:
                    for each in running:
                        await self.stop(each.job_id)
                    await asyncio.sleep(0.02)
                while self._accepted:
                    # Not described before it starts. The answer to a repeated launch says whether it has ended.
                    request = self._accepted[-1]
                    request.fencing_token = self.token
                    with contextlib.suppress(Conflict):  # a later attempt of the job is known
                        while (await self.call("LaunchJob", request)).state != pb.ATTEMPT_STATE_ENDED:
                            await self.stop(request.job_id)
                            await asyncio.sleep(0.02)
                    self._accepted.pop()


class Watch:
    """An event stream, message by message.

    Attributes:
        events: all that have come so far.
        clocks: of the messages.
    """

    def __init__(self, call: Any, patience_s: float) -> None:
        self._call = call
        self._patience_s = patience_s
        self.events: list[ClusterEvent] = []
        self.clocks: list[Clock] = []

    async def next_batch(self) -> EventBatch:
        """The next message.

        Raises:
            Broken: it does not come in time, or the stream has ended.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except TimeoutError:
            raise Broken(f"another event within {self._patience_s:g} s", self.told) from None
        if not isinstance(message, pb.WatchEventsResponse):
            raise Broken("a stream that continues", f"its end, after {self.told}")
        batch = batch_from_proto(message)
        expect(batch.events, "messages with events", "one without")
        self.events += batch.events
        self.clocks.append(batch.clock)
        return batch

    async def until(self, wanted: Callable[[ClusterEvent], bool], what: str) -> ClusterEvent:
        """The first event, of those that came and those to come, that is wanted.

        Raises:
            Broken: it does not come in time.
        """
        looked_at = 0
        while True:
            for event in self.events[looked_at:]:
                if wanted(event):
                    return event
            looked_at = len(self.events)
            try:
                await self.next_batch()
            except Broken as broken:
                raise Broken(what, broken.seen) from None

    async def start_of(self, job_id: str) -> ClusterEvent:
        """The STARTED event of a job."""
        return await self.until(_is(job_id, EventKind.STARTED), f"STARTED of {job_id}")

    async def program_of(self, job_id: str) -> ClusterEvent:
        """The RUNNING event of a job: its program itself runs."""
        return await self.until(_is(job_id, EventKind.RUNNING), f"RUNNING of {job_id}")

    async def end_of(self, job_id: str) -> ClusterEvent:
        """The event of a job's end."""
        return await self.until(_is(job_id, *ENDS), f"the end of {job_id}")

    def of(self, job_id: str, *kinds: EventKind) -> list[ClusterEvent]:
        """Those events of a job that have come."""
        return [event for event in self.events if _is(job_id, *kinds)(event)]

    @property
    def told(self) -> str:
        """What has come, for people."""
        shown = ", ".join(f"{event.kind.name} {event.job_id}".strip() for event in self.events[-8:])
        return shown or "no event"


def _is(job_id: str, *kinds: EventKind) -> Callable[[ClusterEvent], bool]:
    return lambda event: event.job_id == job_id and event.kind in kinds
