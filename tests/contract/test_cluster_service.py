"""What every ClusterService does: one suite, run on each implementation in `IMPLEMENTATIONS`.

Another one (an adapter to a real cluster) is added there: a context manager that gives its address and says what it
can. Tests that need a simulated cluster (a clock to set, work of a stated length, GPUs to take away) are skipped for
the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
import redis

from adlro.errors import AdlroError, Conflict, InvalidInput, NotFound, OutOfRange, Stale, Unsupported
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import SpawnedService, serve, spawn_service
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.events import ClockMode, ClusterDescription, ClusterEvent, EventKind
from adlro.records.jobs import JobSpec, JobType, Preemptible, SimulatedWork
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.store.keys import TOKEN
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.v1 import job_pb2, placement_pb2
from adlro.wire import (
    batch_from_proto,
    description_from_proto,
    placement_from_proto,
    placement_to_proto,
    spec_to_proto,
)

TIMEOUT_S = 60.0
"""Bounds a hang; a busy machine takes its time."""


@dataclass(frozen=True)
class Target:
    """A ClusterService to test: idle, with at least two GPUs on a node. Redis is empty, but for the leases' tokens."""

    address: str
    simulated: bool


@asynccontextmanager
async def in_process(redis_url: str) -> AsyncIterator[Target]:
    settings = SimclusterSettings(clock_mode="virtual", clock_paused=True, redis_url=redis_url)
    async with serve(SimclusterServer(settings), settings) as address:
        yield Target(address, simulated=True)


def spawn(redis_url: str) -> AbstractContextManager[SpawnedService]:
    env = {
        "ADLRO_SIMCLUSTER_CLOCK_MODE": "virtual",
        "ADLRO_SIMCLUSTER_CLOCK_PAUSED": "true",
        "ADLRO_REDIS_URL": redis_url,
    }
    return spawn_service("simcluster", env)


@asynccontextmanager
async def spawned(redis_url: str) -> AsyncIterator[Target]:
    with spawn(redis_url) as service:
        yield Target(service.address, simulated=True)


IMPLEMENTATIONS: dict[str, Callable[[str], AbstractAsyncContextManager[Target]]] = {
    "in-process": in_process,
    "spawned": spawned,
}


class ClusterCaller:
    """Calls a ClusterService; raises the error tree. Its token is the newest that a lease has given."""

    def __init__(self, target: Target, redis_url: str) -> None:
        self.target = target
        self._store = redis.Redis.from_url(redis_url)
        self._channel = open_channel(target.address)
        self.stub = pb_grpc.ClusterServiceStub(self._channel)
        self.token = 0
        self.take_lease()

    def take_lease(self) -> int:
        """The token of a new lease."""
        self.token += 1
        self._store.set(TOKEN, self.token)
        return self.token

    async def close(self) -> None:
        self._store.close()
        await self._channel.close(None)

    async def call(self, method: str, request):
        try:
            return await getattr(self.stub, method)(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def describe(self) -> ClusterDescription:
        return description_from_proto(await self.call("DescribeCluster", pb.DescribeClusterRequest()))

    async def launch(
        self, job_id: str, gpu_id: str, *, work_s=10.0, attempt=1, token=None, placement=None, more=None, **fields
    ):
        spec = JobSpec("job", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(work_s), **fields)
        return await self.call(
            "LaunchJob",
            pb.LaunchJobRequest(
                job_id=job_id,
                attempt=attempt,
                spec=spec_to_proto(spec),
                gpu_id=gpu_id,
                placement=placement_to_proto(placement) if isinstance(placement, Placement) else placement,
                fencing_token=self.token if token is None else token,
                **(more or {}),
            ),
        )

    async def stop(self, job_id: str, *, attempt=0, token=None, preempt=False) -> bool:
        request = pb.StopJobRequest(
            job_id=job_id, attempt=attempt, fencing_token=self.token if token is None else token, preempt=preempt
        )
        answer: pb.StopJobResponse = await self.call("StopJob", request)
        return answer.stopped

    async def acknowledge(self, incarnation: str, revision: int, token=None) -> None:
        await self.call(
            "AcknowledgeEvents",
            pb.AcknowledgeEventsRequest(
                incarnation=incarnation,
                revision=revision,
                fencing_token=self.token if token is None else token,
            ),
        )

    async def wake_at(self, *times_s: float) -> None:
        await self.call("WakeAt", pb.WakeAtRequest(times_s=times_s))

    async def set_clock(self, **fields):
        return (await self.call("SetClock", pb.SetClockRequest(**fields))).clock

    @asynccontextmanager
    async def watch(self, after_revision: int = 0, incarnation: str = "") -> AsyncIterator[Watch]:
        call = self.stub.WatchEvents(pb.WatchEventsRequest(incarnation=incarnation, after_revision=after_revision))
        try:
            yield Watch(call)
        finally:
            call.cancel()


class Watch:
    """An event stream, message by message."""

    def __init__(self, call) -> None:
        self._call = call
        self.revision = 0
        self.incarnation = ""

    async def next(self) -> tuple[ClusterEvent, ...]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        assert isinstance(message, pb.WatchEventsResponse), "the stream ended"
        batch = batch_from_proto(message)
        self.revision, self.incarnation = batch.events[-1].revision, batch.incarnation
        return batch.events

    async def until(self, kind: EventKind) -> list[ClusterEvent]:
        """All events up to and with the first message that has one of a kind."""
        events: list[ClusterEvent] = []
        while not any(event.kind is kind for event in events):
            events += await self.next()
        return events


EACH_IMPLEMENTATION = ["in-process", pytest.param("spawned", marks=pytest.mark.slow)]


@asynccontextmanager
async def caller_of(target: Target, redis_url: str) -> AsyncIterator[ClusterCaller]:
    caller = ClusterCaller(target, redis_url)
    try:
        yield caller
    finally:
        await caller.close()


@pytest.fixture(params=EACH_IMPLEMENTATION)
async def cluster(request, redis_url) -> AsyncIterator[ClusterCaller]:
    async with IMPLEMENTATIONS[request.param](redis_url) as target, caller_of(target, redis_url) as caller:
        yield caller


@pytest.fixture(scope="module")
def spawned_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SpawnedService, str]]:
    """One process for the module, and its store: on that of the other tests they would take its clock over."""
    with EmbeddedRedis(tmp_path_factory.mktemp("once")) as store, spawn(store.url) as service:
        yield service, store.url


@pytest.fixture(params=EACH_IMPLEMENTATION)
async def unchanged(request, redis_url) -> AsyncIterator[ClusterCaller]:
    """For tests whose calls are all refused: they share the spawned cluster, and leave it as it was."""
    if request.param == "spawned":
        service, store_url = request.getfixturevalue("spawned_once")
        async with caller_of(Target(service.address, simulated=True), store_url) as caller:
            before = await caller.describe()
            yield caller
            after = await caller.describe()
            assert (after.running, after.revision, after.clock) == (before.running, before.revision, before.clock)
        return
    async with in_process(redis_url) as target, caller_of(target, redis_url) as caller:
        yield caller


@pytest.fixture
async def simulated(cluster: ClusterCaller) -> ClusterCaller:
    if not cluster.target.simulated:
        pytest.skip("needs a simulated cluster")
    return cluster


def gpu_ids(description: ClusterDescription) -> list[str]:
    return [gpu.gpu_id for _, gpu in description.cluster.gpus()]


async def refused(call) -> AdlroError:
    with pytest.raises(AdlroError) as error:
        await call
    return error.value


# ---- any cluster


async def test_an_idle_cluster_describes_itself(cluster):
    description = await cluster.describe()
    assert len(gpu_ids(description)) >= 2
    assert len(set(gpu_ids(description))) == len(gpu_ids(description))
    assert description.running == ()
    assert description.incarnation
    assert description.oldest_revision <= description.revision + 1
    assert (await cluster.describe()).incarnation == description.incarnation
    assert description.capabilities is not None, "what it can do is said before it is asked for"


async def test_a_launch_is_described_and_told(cluster):
    description = await cluster.describe()
    first = gpu_ids(description)[0]
    async with cluster.watch(description.revision, description.incarnation) as watch:
        answer = await cluster.launch("job-1", first)
        assert not answer.existing
        assert answer.state == pb.ATTEMPT_STATE_STARTED
        (event,) = await watch.next()
    assert (event.kind, event.job_id, event.attempt, event.gpu_id) == (EventKind.STARTED, "job-1", 1, first)
    assert (event.revision, event.time_s) == (answer.revision, answer.start_s)
    after = await cluster.describe()
    assert [(job.job_id, job.attempt, job.gpu_id) for job in after.running] == [("job-1", 1, first)]
    assert after.revision == event.revision


async def test_a_launch_repeated_is_answered_alike_and_runs_once(cluster):
    gpu_id = gpu_ids(await cluster.describe())[0]
    first, *others = await asyncio.gather(*(cluster.launch("job-1", gpu_id) for _ in range(5)))
    answers = [first, *others]
    assert sorted(answer.existing for answer in answers) == [False, True, True, True, True]
    assert len({(answer.start_s, answer.revision) for answer in answers}) == 1
    assert len((await cluster.describe()).running) == 1


async def test_a_busy_gpu_and_another_attempt_of_a_running_job_are_refused(cluster):
    first, second, *_ = gpu_ids(await cluster.describe())
    await cluster.launch("job-1", first, attempt=2)
    busy = await refused(cluster.launch("job-2", first))
    assert isinstance(busy, Conflict)
    assert busy.reason == "GPU_BUSY"
    assert isinstance(await refused(cluster.launch("job-1", second, attempt=3)), Conflict)
    assert isinstance(await refused(cluster.launch("job-1", second, attempt=1)), Conflict)
    assert len((await cluster.describe()).running) == 1


async def test_what_does_not_fit_is_refused_with_the_reason(unchanged):
    description = await unchanged.describe()
    node, gpu = next(description.cluster.gpus())
    for fields, reason in (
        ({"gpu_memory_mib": gpu.memory_mib + 1}, "GPU_MEMORY_TOO_SMALL"),
        ({"cpu_cores": node.cpu_cores + 1}, "NODE_CORES_EXHAUSTED"),
        ({"memory_mib": node.memory_mib + 1}, "NODE_MEMORY_EXHAUSTED"),
    ):
        error = await refused(unchanged.launch("job-1", gpu.gpu_id, **fields))
        assert isinstance(error, Conflict)
        assert error.reason == reason
    assert (await unchanged.describe()).revision == description.revision


async def test_an_unknown_gpu_is_not_found_and_named(unchanged):
    error = await refused(unchanged.launch("job-1", "nowhere/0"))
    assert isinstance(error, NotFound)
    assert "nowhere/0" in error.message
    assert "DescribeCluster" in error.message


async def test_a_launch_says_its_placement_and_so_does_all_that_is_told_of_it(cluster):
    first = gpu_ids(await cluster.describe())[0]
    async with cluster.watch() as watch:
        await cluster.launch("job-1", first, placement=Placement.on(first))
        (event,) = await watch.next()
    assert event.placement == Placement.on(first)
    described = await cluster.call("DescribeCluster", pb.DescribeClusterRequest())
    assert [(each.gpu_id, placement_from_proto(each)) for each in described.running] == [(first, Placement.on(first))]


@pytest.mark.parametrize("gpus", [["other"], ["first", "other"], ["first", "first"], ["half of the first"]])
async def test_a_placement_that_is_not_one_whole_gpu_and_the_named_one_is_refused_with_the_way_out(unchanged, gpus):
    first, other, *_ = gpu_ids(await unchanged.describe())
    shares = {"first": (first, 1.0), "other": (other, 1.0), "half of the first": (first, 0.5)}
    message = placement_pb2.Placement(
        gpus=[placement_pb2.GpuShare(gpu_id=shares[each][0], share=shares[each][1]) for each in gpus]
    )
    error = await refused(unchanged.launch("job-1", first, placement=message))
    assert isinstance(error, InvalidInput | Unsupported)
    assert error.message.startswith("placement: ")
    assert not (await unchanged.describe()).running


async def test_stopping_ends_a_job_once(cluster):
    description = await cluster.describe()
    gpu_id = gpu_ids(description)[0]
    await cluster.launch("job-1", gpu_id, work_s=1e6)
    async with cluster.watch(description.revision) as watch:
        assert not await cluster.stop("job-1", attempt=7)
        assert await cluster.stop("job-1")
        assert not await cluster.stop("job-1")
        assert not await cluster.stop("never-seen")
        events = await watch.until(EventKind.STOPPED)
    assert [event.kind for event in events] == [EventKind.STARTED, EventKind.STOPPED]
    assert (await cluster.describe()).running == ()
    assert (await cluster.launch("job-1", gpu_id)).existing, "also after it ended"
    assert not (await cluster.launch("job-1", gpu_id, attempt=2)).existing


async def test_an_older_fencing_token_is_refused(cluster):
    description = await cluster.describe()
    first, second, *_ = gpu_ids(description)
    old = cluster.take_lease()
    await cluster.launch("job-1", first, token=cluster.take_lease())
    for call in (
        cluster.launch("job-2", second, token=old),
        cluster.stop("job-1", token=old),
        cluster.acknowledge(description.incarnation, description.revision, token=old),
    ):
        error = await refused(call)
        assert isinstance(error, Conflict)
        assert error.reason == "STALE_FENCING_TOKEN"
    assert [job.job_id for job in (await cluster.describe()).running] == ["job-1"]


async def test_the_token_of_an_older_lease_is_refused_before_the_newer_one_is_heard_of(simulated):
    """As after a restart of the cluster, while an orchestrator that slept still believes in its lease."""
    old = simulated.take_lease()
    simulated.take_lease()
    error = await refused(simulated.launch("job-1", gpu_ids(await simulated.describe())[0], token=old))
    assert error.reason == "STALE_FENCING_TOKEN"
    assert (await simulated.describe()).running == ()


@pytest.mark.parametrize("ahead", [1, 2**53 - 10])
async def test_a_fencing_token_that_no_lease_has_given_is_refused_and_stops_nobody(cluster, ahead):
    description = await cluster.describe()
    first, second, *_ = gpu_ids(description)
    await cluster.launch("job-1", first)
    unknown = cluster.token + ahead
    for call in (
        cluster.launch("job-2", second, token=unknown),
        cluster.stop("job-1", token=unknown),
        cluster.acknowledge(description.incarnation, description.revision, token=unknown),
    ):
        error = await refused(call)
        assert isinstance(error, Conflict)
        assert error.reason == "UNKNOWN_FENCING_TOKEN"
    after = await cluster.describe()
    assert [job.job_id for job in after.running] == ["job-1"]
    assert after.fencing_token == cluster.token
    await cluster.launch("job-2", second)
    await cluster.stop("job-1", token=cluster.take_lease())
    assert (await cluster.describe()).fencing_token == cluster.token


async def test_an_unknown_token_between_a_lease_and_its_first_call_takes_nothing_from_that_lease(cluster):
    """Whoever sends one makes the cluster look the newest up, which must not be taken for a spent one."""
    description = await cluster.describe()
    await cluster.launch("job-1", gpu_ids(description)[0])
    taken = cluster.take_lease()
    assert (await refused(cluster.stop("job-1", token=2**53 - 10))).reason == "UNKNOWN_FENCING_TOKEN"
    assert (await cluster.describe()).fencing_token < taken
    await cluster.stop("job-1")
    assert (await cluster.describe()).fencing_token == taken


async def test_the_event_stream_is_resumed_after_any_revision(cluster):
    description = await cluster.describe()
    gpu_id = gpu_ids(description)[0]
    for attempt in (1, 2, 3):
        await cluster.launch("job-1", gpu_id, attempt=attempt, work_s=1e6)
        await cluster.stop("job-1")
    newest = (await cluster.describe()).revision
    for after in range(description.revision, newest):
        async with cluster.watch(after, description.incarnation) as watch:
            seen: list[int] = []
            while not seen or seen[-1] < newest:
                seen += [event.revision for event in await watch.next()]
        assert seen == list(range(after + 1, newest + 1))


async def test_two_watchers_see_the_same(cluster):
    description = await cluster.describe()
    gpu_id = gpu_ids(description)[0]
    async with cluster.watch(description.revision) as one, cluster.watch(description.revision) as other:
        await cluster.launch("job-1", gpu_id, work_s=1e6)
        await cluster.stop("job-1")
        assert await one.until(EventKind.STOPPED) == await other.until(EventKind.STOPPED)


async def test_another_incarnation_is_aborted(unchanged):
    description = await unchanged.describe()
    assert isinstance(await refused(unchanged.acknowledge("another", 0)), Stale)
    async with unchanged.watch(description.revision, "another") as watch:
        assert isinstance(await refused(watch.next()), Stale)


async def test_a_revision_that_is_not_there_is_out_of_range(unchanged):
    description = await unchanged.describe()
    ahead = description.revision + 10
    assert isinstance(await refused(unchanged.acknowledge(description.incarnation, ahead)), OutOfRange)
    async with unchanged.watch(ahead, description.incarnation) as watch:
        assert isinstance(await refused(watch.next()), OutOfRange)


async def test_a_passed_time_wakes_at_once_and_only_once(cluster):
    description = await cluster.describe()
    async with cluster.watch(description.revision) as watch:
        await cluster.wake_at(0.0, 0.0)
        (event,) = await watch.next()
    assert event.kind is EventKind.WAKE_UP
    assert (await cluster.describe()).revision == event.revision


@pytest.mark.parametrize(
    ("method", "request_message", "field"),
    [
        ("LaunchJob", pb.LaunchJobRequest(job_id="j", attempt=1, gpu_id="g"), "spec"),
        ("LaunchJob", pb.LaunchJobRequest(job_id="j", attempt=0, gpu_id="g"), "attempt"),
        ("StopJob", pb.StopJobRequest(job_id="x" * 65), "job_id"),
        ("StopJob", pb.StopJobRequest(job_id="j", fencing_token=2**63 - 1), "fencing_token"),
        ("WakeAt", pb.WakeAtRequest(), "times_s"),
        ("WakeAt", pb.WakeAtRequest(times_s=[1.0, float("nan")]), "times_s[1]"),
        ("AcknowledgeEvents", pb.AcknowledgeEventsRequest(revision=1), "incarnation"),
        ("SetClock", pb.SetClockRequest(scale=-1.0), "scale"),
    ],
)
async def test_a_request_that_breaks_a_rule_is_refused_with_the_field(unchanged, method, request_message, field):
    error = await refused(unchanged.call(method, request_message))
    assert isinstance(error, InvalidInput)
    assert field in [violation.field for violation in error.violations]


# ---- a simulated cluster


async def test_a_virtual_clock_goes_from_event_to_event_as_they_are_acknowledged(simulated):
    description = await simulated.describe()
    first, second, *_ = gpu_ids(description)
    async with simulated.watch(description.revision) as watch:
        await simulated.launch("a", first, work_s=10.0)
        await simulated.launch("b", second, work_s=30.0)
        await simulated.wake_at(10.0, 20.0)
        await simulated.set_clock(paused=False)
        events = await watch.until(EventKind.FINISHED)
        assert [(event.kind.name, event.time_s) for event in events[-2:]] == [("FINISHED", 10.0), ("WAKE_UP", 10.0)]
        assert (await simulated.describe()).clock.time_s == 10.0
        await simulated.acknowledge(watch.incarnation, watch.revision)
        assert [(event.kind.name, event.time_s) for event in await watch.next()] == [("WAKE_UP", 20.0)]
        await simulated.launch("c", first, work_s=5.0)
        await simulated.acknowledge(watch.incarnation, watch.revision)
        events = [*await watch.next(), *await watch.next()]
        assert [(event.kind.name, event.job_id, event.time_s) for event in events] == [
            ("STARTED", "c", 20.0),
            ("FINISHED", "c", 25.0),
        ]
        await simulated.acknowledge(watch.incarnation, watch.revision)
        assert [(event.job_id, event.time_s) for event in await watch.next()] == [("b", 30.0)]


async def test_a_time_limit_and_a_failure_end_a_job(simulated):
    description = await simulated.describe()
    first, second, *_ = gpu_ids(description)
    await simulated.launch("limited", first, time_limit_s=2.0)
    spec = JobSpec("job", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(10.0, fails_at_ratio=0.5))
    request = pb.LaunchJobRequest(job_id="failing", attempt=1, spec=spec_to_proto(spec), gpu_id=second, fencing_token=1)
    await simulated.call("LaunchJob", request)
    async with simulated.watch(description.revision) as watch:
        await simulated.set_clock(paused=False)
        limited = (await watch.until(EventKind.FAILED))[-1]
        assert (limited.job_id, limited.time_s, limited.message) == ("limited", 2.0, "time limit of 2 s reached")
        await simulated.acknowledge(watch.incarnation, watch.revision)
        (failed,) = await watch.next()
        assert (failed.kind, failed.job_id, failed.time_s) == (EventKind.FAILED, "failing", 5.0)
        assert "50%" in failed.message


async def test_a_lost_gpu_loses_its_job_and_comes_back(simulated):
    description = await simulated.describe()
    gpu_id = gpu_ids(description)[0]
    await simulated.launch("a", gpu_id)
    async with simulated.watch(description.revision) as watch:
        lose = pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=False)
        assert (await simulated.call("SetGpuAvailability", lose)).lost_job_id == "a"
        assert (await simulated.call("SetGpuAvailability", lose)).lost_job_id == ""
        events = await watch.until(EventKind.LOST)
        assert [event.kind for event in events] == [EventKind.STARTED, EventKind.GPU_LOST, EventKind.LOST]
        assert (await simulated.describe()).lost_gpu_ids == (gpu_id,)
        error = await refused(simulated.launch("a", gpu_id, attempt=2))
        assert isinstance(error, Conflict)
        assert error.reason == "GPU_LOST"
        await simulated.call("SetGpuAvailability", pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=True))
        assert [event.kind for event in await watch.next()] == [EventKind.GPU_BACK]
    assert not (await simulated.launch("a", gpu_id, attempt=2)).existing


async def test_a_gang_is_launched_told_and_lost_as_a_whole(simulated):
    description = await simulated.describe()
    first, second, *_ = gpu_ids(description)
    both = Placement.on(first, second)
    async with simulated.watch(description.revision) as watch:
        assert not (await simulated.launch("a", first, placement=both, gpu_count=2)).existing
        assert (await simulated.launch("a", first, placement=both, gpu_count=2)).existing
        (running,) = (await simulated.describe()).running
        assert running.placement == both
        error = await refused(simulated.launch("b", second))
        assert (error.reason, error.message) == ("GPU_BUSY", f"GPU {second} runs a")
        lose = pb.SetGpuAvailabilityRequest(gpu_id=second, available=False)
        assert (await simulated.call("SetGpuAvailability", lose)).lost_job_id == "a"
        start, gone, lost = await watch.until(EventKind.LOST)
        assert (start.kind, start.placement) == (EventKind.STARTED, both)
        assert (gone.kind, gone.placement) == (EventKind.GPU_LOST, Placement.on(second))
        assert (lost.kind, lost.placement) == (EventKind.LOST, both)
        error = await refused(simulated.launch("a", first, attempt=2, placement=both, gpu_count=2))
        assert (error.reason, error.message) == ("GPU_LOST", f"GPU {second} is lost")
        assert not (await simulated.launch("b", first)).existing, "the other GPU is free"
        await simulated.call("SetGpuAvailability", pb.SetGpuAvailabilityRequest(gpu_id=second, available=True))


async def test_two_jobs_share_a_gpu_and_are_lost_together(simulated):
    description = await simulated.describe()
    gpu_id, other, *_ = gpu_ids(description)
    assert description.capabilities.shares
    half = Placement((GpuShare(gpu_id, SHARED),))

    async def launch(job_id: str, placement: Placement = half, *, shareable=True, **fields):
        return await simulated.launch(job_id, placement.gpu_id, placement=placement, shareable=shareable, **fields)

    async with simulated.watch(description.revision) as watch:
        for job_id in "ab":
            assert not (await launch(job_id, gpu_memory_mib=8000)).existing
        assert (await launch("b", gpu_memory_mib=8000)).existing
        running = (await simulated.describe()).running
        assert [(each.job_id, each.placement) for each in running] == [("a", half), ("b", half)]
        for placement, shareable in ((half, True), (Placement.on(gpu_id), False)):
            error = await refused(launch("c", placement, shareable=shareable))
            assert (error.reason, error.message) == ("GPU_BUSY", f"GPU {gpu_id} runs a and b")
        await simulated.stop("b")
        error = await refused(launch("c", gpu_memory_mib=10_000))
        assert error.reason == "GPU_MEMORY_TOO_SMALL"
        assert "left beside a, c needs 10000 MiB" in error.message
        error = await refused(launch("c", Placement((GpuShare(other, SHARED),)), shareable=False))
        assert isinstance(error, InvalidInput)
        assert error.violations[0].field == "placement"
        assert not (await launch("c", gpu_memory_mib=8000)).existing
        lose = pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=False)
        assert (await simulated.call("SetGpuAvailability", lose)).lost_job_id == "a"
        events = await watch.until(EventKind.LOST)
        lost = [event for event in events if event.kind is EventKind.LOST]
        assert [(event.job_id, event.placement) for event in lost] == [("a", half), ("c", half)]
        await simulated.call("SetGpuAvailability", pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=True))


async def test_applications_that_could_not_run_together_are_refused(simulated):
    gpu_id, *_ = gpu_ids(await simulated.describe())  # a V100
    half = Placement((GpuShare(gpu_id, SHARED),))
    fields = {"placement": half, "shareable": True}
    await simulated.launch("a", gpu_id, application="Transformer (batch size 256)", **fields)
    error = await refused(simulated.launch("b", gpu_id, application="ResNet-50 (batch size 128)", **fields))
    assert isinstance(error, Conflict)
    assert error.reason == "CANNOT_SHARE"
    assert error.message.startswith(f"b can't run beside a on {gpu_id}: ResNet-50 (batch size 128) could not run")


async def test_a_launch_stops_others_in_one_moment_and_they_go_on_with_what_is_left(simulated):
    description = await simulated.describe()
    first, second, *_ = gpu_ids(description)
    await simulated.set_clock(mode=1, paused=False)
    costs = Preemptible(restart_s=1000.0)
    async with simulated.watch((await simulated.describe()).revision) as watch:
        await simulated.launch("a", first, work_s=100.0, preemptible=costs)
        await simulated.launch("stays", second, work_s=100.0)
        refs = [job_pb2.AttemptRef(job_id="a", attempt=1)]
        error = await refused(simulated.launch("b", second, more={"preempts": refs}))
        assert (error.reason, error.message) == ("GPU_BUSY", f"GPU {second} runs stays")
        stays = [*refs, job_pb2.AttemptRef(job_id="stays", attempt=1)]
        error = await refused(simulated.launch("b", second, more={"preempts": stays}))
        assert (error.reason, error.field) == ("NOT_PREEMPTIBLE", "preempts")
        assert "attempt 1 of stays" in error.message
        error = await refused(simulated.stop("stays", preempt=True))
        assert (error.reason, error.field) == ("NOT_PREEMPTIBLE", "preempt")
        answer = await simulated.launch("b", first, more={"preempts": refs})
        assert (answer.existing, answer.state) == (False, pb.ATTEMPT_STATE_STARTED)
        (*_, stopped, started) = await watch.until(EventKind.PREEMPTED)
        assert (stopped.kind, stopped.job_id, stopped.message) == (EventKind.PREEMPTED, "a", "for b")
        assert (started.kind, started.job_id, started.time_s) == (EventKind.STARTED, "b", stopped.time_s)
        assert 0.0 < stopped.remaining_ratio <= 1.0
        assert (await simulated.launch("b", first, more={"preempts": refs})).existing
        await simulated.stop("b")
        resumed = {"remaining_ratio": stopped.remaining_ratio, "resumes": True}
        assert not (await simulated.launch("a", first, attempt=2, preemptible=costs, more=resumed)).existing
        error = await refused(simulated.stop("a", preempt=True))
        assert error.reason == "NOT_PREEMPTIBLE"
        assert "a starts or restores until" in error.message


async def test_a_preemption_with_a_broken_field_is_named(unchanged):
    description = await unchanged.describe()
    for more, field in (
        ({"preempts": [job_pb2.AttemptRef(job_id="a")]}, "preempts[0].attempt"),
        ({"preempts": [job_pb2.AttemptRef(attempt=1)]}, "preempts[0].job_id"),
        ({"remaining_ratio": 0.0}, "remaining_ratio"),
        ({"remaining_ratio": 1.5}, "remaining_ratio"),
    ):
        error = await refused(unchanged.launch("b", gpu_ids(description)[0], more=more))
        assert isinstance(error, InvalidInput)
        assert field in [each.field for each in error.violations]


async def test_the_clock_is_set_and_told(simulated):
    description = await simulated.describe()
    assert description.clock.mode is ClockMode.VIRTUAL
    assert description.clock.paused
    async with simulated.watch(description.revision) as watch:
        clock = await simulated.set_clock(mode=2, scale=1000.0, paused=False, not_before_s=50.0)
        assert (clock.mode, clock.scale, clock.paused, clock.time_s) == (2, 1000.0, False, 50.0)
        (event,) = await watch.next()
        assert (event.kind, event.time_s) == (EventKind.CLOCK_SET, 50.0)
        await simulated.set_clock(paused=True)  # the job must not end before it is asked
        start_s = (await simulated.launch("a", gpu_ids(description)[0], work_s=100.0)).start_s
        error = await refused(simulated.set_clock(not_before_s=1e9))
        assert isinstance(error, Conflict)
        await simulated.set_clock(paused=False)
        events = await watch.until(EventKind.FINISHED)
        assert events[-1].time_s == pytest.approx(start_s + 100.0)
    error = await refused(simulated.set_clock(mode=1, scale=7.0))
    assert isinstance(error, InvalidInput)
    assert error.field == "scale"


async def test_a_restarted_cluster_goes_on_with_what_runs(redis_url):
    """A log that is read on misses nothing; a store that has lost it all begins another one."""
    async with in_process(redis_url) as target, caller_of(target, redis_url) as caller:
        before = await caller.describe()
        first, second, third, *_ = gpu_ids(before)
        answer = await caller.launch("job-1", first, work_s=10.0)
        await caller.launch("job-2", second, work_s=20.0)
        await caller.stop("job-2")
        await caller.call("SetGpuAvailability", pb.SetGpuAvailabilityRequest(gpu_id=third, available=False))
        await caller.wake_at(5.0)
        left = await caller.describe()
    async with in_process(redis_url) as target, caller_of(target, redis_url) as caller:
        found = await caller.describe()
        assert (found.incarnation, found.revision, found.clock) == (left.incarnation, left.revision, left.clock)
        assert (found.running, found.lost_gpu_ids) == (left.running, (third,))
        assert found.oldest_revision == left.oldest_revision
        again = await caller.launch("job-1", first)
        assert (again.existing, again.start_s, again.revision) == (True, answer.start_s, answer.revision)
        assert (await caller.launch("job-2", second)).existing, "also after it ended"
        async with caller.watch(before.revision, before.incarnation) as watch:
            events = await watch.until(EventKind.GPU_LOST)
            assert [event.revision for event in events] == list(range(1, left.revision + 1))
            await caller.acknowledge(found.incarnation, left.revision)
            await caller.set_clock(paused=False)
            events = await watch.until(EventKind.WAKE_UP)
            assert events[-1].time_s == 5.0
            await caller.acknowledge(found.incarnation, watch.revision)
            (end,) = (await watch.until(EventKind.FINISHED))[-1:]
            assert (end.job_id, end.time_s) == ("job-1", 10.0)
    with redis.Redis.from_url(redis_url) as store:
        store.flushall()
    async with in_process(redis_url) as target, caller_of(target, redis_url) as caller:
        anew = await caller.describe()
        assert anew.incarnation != found.incarnation
        assert (anew.revision, anew.running, anew.lost_gpu_ids) == (0, (), ())
