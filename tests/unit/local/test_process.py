"""The service as a process: the contract, kill -9 with programs that run on, logs over gRPC, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.clusterside import inspect_cluster
from adlro.clusterside.check.caller import ServiceCaller
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.private_files import private_opener
from adlro.kit.testing import ServiceEnded, SpawnedService, spawn_service
from adlro.records.events import EventKind
from adlro.records.payloads import EndReason, Payload, process_payload
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.v1.payload_pb2 import LOG_STREAM_STDOUT as STDOUT
from adlro.wire import spec_to_proto
from tests.unit.clusterside.double import OF_SHARES
from tests.unit.local.bench import shell, spec_of, users_map

pytestmark = pytest.mark.slow


class Local:
    """The service's process, with tokens and a closed store, as `adlro up` makes them."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.redis_url = redis_url
        token = new_token("suite")
        for name, text in (("token", token), ("users", users_line(token, [Role.SERVICE, Role.OPERATOR]))):
            with open(folder / name, "w", opener=private_opener) as file:
                file.write(text + "\n")
        self.credentials = Credentials(token=token)
        self.environment = {
            "ADLRO_REDIS_URL": redis_url,
            "ADLRO_USERS_FILE": str(folder / "users"),
            "ADLRO_SERVICE_TOKEN_FILE": str(folder / "token"),
            "ADLRO_LOCAL_DATA_DIR": str(folder / "local"),
            "ADLRO_LOCAL_FAKE_GPUS": "v100_sxm2:2",
        }
        if mapped := users_map(folder):
            self.environment["ADLRO_LOCAL_USERS_MAP"] = mapped
        self.service: SpawnedService

    def start(self, **more: str) -> SpawnedService:
        self.service = spawn_service("local", {**self.environment, **more})
        return self.service

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[ServiceCaller]:
        async with ServiceCaller(self.service.address, self.credentials, self.redis_url, 60.0, "ada") as caller:
            yield caller

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        channel = open_channel(self.service.address, self.credentials)
        try:
            yield pb_grpc.ClusterServiceStub(channel)
        finally:
            await channel.close(None)


@pytest.fixture
def local(tmp_path: Path, redis_url: str):
    made = Local(tmp_path, redis_url)
    made.start()
    yield made
    made.service.stop()


async def launch(caller: ServiceCaller, job_id: str, payload: Payload, number: int = 0, **more: Any) -> None:
    request = pb.LaunchJobRequest(
        job_id=job_id,
        attempt=1,
        spec=spec_to_proto(spec_of(payload, **more)),
        gpu_id=caller.gpu_ids[number],
        fencing_token=caller.token,
    )
    await caller.call("LaunchJob", request)


async def read_all(stub: Any, job_id: str, offset: int = 0, **more: Any) -> bytes:
    request = pb.ReadLogsRequest(job_id=job_id, stream=STDOUT, offset=offset, **more)
    return b"".join([answer.chunk.data async for answer in stub.ReadLogs(request)])


async def rest_until_unavailable(call: Any) -> bytes:
    read = b""
    try:
        while isinstance(answer := await call.read(), pb.ReadLogsResponse):
            read += answer.chunk.data
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
        return read
    pytest.fail("the stream has ended as if it were complete")


async def test_it_keeps_every_rule(local: Local) -> None:
    report = await inspect_cluster(
        local.service.address, credentials=local.credentials, redis_url=local.redis_url, user="ada"
    )
    assert not report.failed, str(report)
    # No call takes a real GPU away.
    assert set(report.skipped) == {
        *("tells_that_its_clock_was_set", "loses_a_gpu_with_its_job", "loses_a_gang_with_any_of_its_gpus"),
        *("refuses_gangs_that_it_can_not_run", "refuses_preemption_that_it_can_not_do"),
        *OF_SHARES,
    }


async def test_programs_run_on_while_it_is_killed_and_their_logs_are_read_on(local: Local) -> None:
    runs, go = local.folder / "runs", local.folder / "go"
    script = f"echo started >> {runs}; i=0; while [ ! -e {go} ]; do i=$((i+1)); echo line $i; sleep 0.05; done; exit 5"
    async with local.caller() as caller, local.stub() as stub:
        before = await caller.describe()
        await launch(caller, "job-1", shell(script))
        async with caller.watch(before.revision, before.incarnation) as watch:
            start = await watch.start_of("job-1")
        token = caller.token
        call = stub.ReadLogs(pb.ReadLogsRequest(job_id="job-1", stream=STDOUT, offset=0, follow=True))
        read = b""
        while len(read) < 30:
            read += (await call.read()).chunk.data
        local.service.kill()
        read += await rest_until_unavailable(call)
    await asyncio.sleep(0.3)
    local.start()
    caller = ServiceCaller(local.service.address, local.credentials, "", 60.0)
    caller.token = token
    found = await caller.describe()
    assert [(job.job_id, job.start_s) for job in found.running] == [("job-1", start.time_s)]
    assert found.incarnation == before.incarnation
    async with local.stub() as stub, caller.watch(before.revision, before.incarnation) as watch:
        rest = asyncio.create_task(read_all(stub, "job-1", len(read), follow=True))
        await asyncio.sleep(0.2)
        go.touch()
        read += await rest
        end = await watch.end_of("job-1")
        assert end.exit is not None
        assert (end.kind, end.exit.reason, end.exit.code) == (EventKind.FAILED, EndReason.EXITED, 5)
        assert [event.revision for event in watch.events] == list(range(1, len(watch.events) + 1))
        lines = read.decode().splitlines()
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
        assert await read_all(stub, "job-1") == read, "it can be read after its end"
    assert runs.read_text() == "started\n"
    await caller.close()


async def test_a_drain_ends_followed_logs_with_unavailable_and_leaves_programs(local: Local) -> None:
    async with local.caller() as caller, local.stub() as stub:
        await launch(caller, "job-1", shell("echo here; exec sleep 300"))
        call = stub.ReadLogs(pb.ReadLogsRequest(job_id="job-1", stream=STDOUT, offset=0, follow=True))
        read = b""
        while read != b"here\n":
            read += (await call.read()).chunk.data
        local.service.terminate()
        await rest_until_unavailable(call)
        token = caller.token
    assert await asyncio.to_thread(local.service.wait) == 0
    local.start()
    caller = ServiceCaller(local.service.address, local.credentials, "", 60.0)
    caller.token = token
    found = await caller.describe()
    assert [job.job_id for job in found.running] == ["job-1"]
    async with caller.watch(found.revision, found.incarnation) as watch:
        assert await caller.stop("job-1")
        assert (await watch.end_of("job-1")).kind is EventKind.STOPPED
    await caller.close()


async def test_a_log_is_read_quickly_and_whole(local: Local) -> None:
    size = 192 << 20
    async with local.caller() as caller, local.stub() as stub:
        found = await caller.describe()
        async with caller.watch(found.revision, found.incarnation) as watch:
            program = process_payload(("sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x"), log_limit_mib=400)
            await launch(caller, "job-1", program)
            assert (await watch.end_of("job-1")).kind is EventKind.FINISHED
        began_s = time.monotonic()
        request = pb.ReadLogsRequest(job_id="job-1", stream=STDOUT, offset=0, follow=True)
        count = 0
        async for answer in stub.ReadLogs(request):
            assert answer.chunk.offset == count
            count += len(answer.chunk.data)
            assert answer.chunk.data.count(b"x") == len(answer.chunk.data)
        rate = count / (time.monotonic() - began_s) / 2**20
    assert count == size
    print(f"{rate:.0f} MiB/s")  # noqa: T201
    assert rate > 30.0, "a loaded machine reads some hundreds"


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"ADLRO_LOCAL_FAKE_GPUS": "v100_sxn2:2"}, "ADLRO_LOCAL_FAKE_GPUS: 'v100_sxn2' is not a known GPU model"),
        ({"ADLRO_LOCAL_DATA_DIR": ""}, "ADLRO_LOCAL_DATA_DIR: must be set"),
        ({"ADLRO_LOCAL_DRIVER": "units"}, "ADLRO_LOCAL_DRIVER"),
        ({"ADLRO_USERS_FILE": ""}, "ADLRO_USERS_FILE: is not set: any caller could run programs here"),
        pytest.param(
            {"ADLRO_LOCAL_USERS_MAP": ""},
            "this service runs as root, so ADLRO_LOCAL_USERS_MAP (adlro up --users-map) must name a file",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
        ),
    ],
)
def test_wrong_settings_end_the_process_with_a_clear_message(tmp_path, redis_url, env, complaint):
    with pytest.raises(ServiceEnded) as raised:
        Local(tmp_path, redis_url).start(**env)
    assert complaint in str(raised.value).replace("\\u2019", "'")


def test_two_services_do_not_share_a_directory(local: Local) -> None:
    with pytest.raises(ServiceEnded, match=rf"another service \(pid {local.service.pid}\) uses"):
        spawn_service("local", local.environment)


@pytest.mark.parametrize("seed", range(2))
async def test_kills_at_any_moment_run_every_attempt_once(local: Local, seed: int) -> None:
    """Launches go on while the service is killed again and again; each answer that is lost is asked for again."""
    chance = random.Random(seed)
    folder = local.folder / "runs"
    folder.mkdir()
    async with local.caller() as caller:
        before, token, gpu_ids = await caller.describe(), caller.token, caller.gpu_ids
    jobs = [f"job-{number}" for number in range(1, 31)]

    async def launch_all(gpu_id: str, mine: list[str]) -> None:
        for job_id in mine:
            script = f"echo started >> {folder / job_id}; sleep 0.{chance.randrange(1, 4)}"
            request = pb.LaunchJobRequest(
                job_id=job_id, attempt=1, spec=spec_to_proto(spec_of(shell(script))), gpu_id=gpu_id, fencing_token=token
            )
            state = pb.ATTEMPT_STATE_UNSPECIFIED
            while state != pb.ATTEMPT_STATE_ENDED:
                try:
                    async with local.stub() as stub:
                        while state != pb.ATTEMPT_STATE_ENDED:
                            state = (await stub.LaunchJob(request, timeout=10.0)).state
                            await asyncio.sleep(0.02)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE, error  # noqa: PT017
                    await asyncio.sleep(0.05)

    halves = [asyncio.create_task(launch_all(gpu_id, jobs[n::2])) for n, gpu_id in enumerate(gpu_ids)]
    kills = 0
    while not all(each.done() for each in halves):
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        local.service.kill()
        kills += 1
        await asyncio.to_thread(local.start)
    await asyncio.gather(*halves)
    assert kills >= 2
    caller = ServiceCaller(local.service.address, local.credentials, "", 60.0)
    async with caller.watch(before.revision, before.incarnation) as watch:
        ends = {job_id: await watch.end_of(job_id) for job_id in jobs}
        for job_id in jobs:
            kinds = [event.kind for event in watch.events if event.job_id == job_id]
            assert kinds == [EventKind.STARTED, EventKind.RUNNING, EventKind.FINISHED], ends[job_id].message
    await caller.close()
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(jobs, "started\n")
