"""Jobs of several GPUs as real programs, on one node and on two, with the service's process: it is killed as well."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.clusterside import inspect_cluster
from adlro.clusterside.check.caller import ServiceCaller
from adlro.placement import Placement
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.payloads import EndReason, LaunchStyle, Payload, process_payload
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1.payload_pb2 import LOG_STREAM_STDERR as STDERR
from adlro.v1.payload_pb2 import LOG_STREAM_STDOUT as STDOUT
from adlro.wire import placement_to_proto, spec_to_proto
from tests.unit.attempt.node import plainly_marked
from tests.unit.local.bench import spec_of
from tests.unit.local.test_process import Local

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

HERE = Path(__file__).parent
ROUNDS = int(os.environ.get("ADLRO_TEST_GANG_ROUNDS", "20"))
SEED = int(os.environ.get("ADLRO_TEST_GANG_SEED", "1"))
NODES = "a=v100_sxm2:2,b=v100_sxm2:2"
ONE_NODE, TWO_NODES = ("a/0", "a/1"), ("a/1", "b/0")


class GangSuite(Local):
    """The service with two nodes of two GPUs each."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        super().__init__(folder, redis_url)
        # Pretended as well, as the GPUs are: a runner of CI may have two cores.
        self.environment |= {
            "ADLRO_LOCAL_FAKE_GPUS": NODES,
            "ADLRO_LOCAL_CPU_CORES": "8",
            "ADLRO_LOCAL_MEMORY_MIB": "32768",
        }
        self.runs = folder / "runs"
        self.runs.mkdir(mode=0o777)
        self.runs.chmod(0o777)

    def rendezvous(self, *more: str, style: LaunchStyle = LaunchStyle.ONE_PER_NODE) -> Payload:
        program = (sys.executable, str(HERE / "rendezvous.py"), str(self.runs), *more)
        return process_payload(program, stop_grace_s=1.0, launch_style=style)

    @property
    def starts(self) -> dict[str, int]:
        """How often each program has started."""
        return {path.name: len(path.read_text().splitlines()) for path in self.runs.iterdir()}

    def supervisors(self) -> list[int]:
        """Those that live."""
        from adlro.attempt.journal import Journal

        folders = (self.folder / "local" / "attempts").glob("*.*")
        found = (Journal(str(each)).supervisor() for each in folders)
        return [each[0] for each in found if each is not None]

    def left(self) -> dict[str, dict[int, int]]:
        """What of any attempt runs."""
        import json

        intents = [json.loads(path.read_text()) for path in (self.folder / "local/attempts").glob("*/intent.json")]
        return {each["name"]: found for each in intents if (found := plainly_marked(each["mark"]))}


@pytest.fixture
def nodes(tmp_path: Path, redis_url: str):
    made = GangSuite(tmp_path, redis_url)
    made.start()
    yield made
    made.service.stop()
    assert made.left() == {}


def request_of(
    job_id: str, payload: Payload, gpu_ids: tuple[str, ...], token: int, attempt: int = 1, **more: Any
) -> Any:
    spec = spec_of(payload, gpu_count=len(gpu_ids), **more)
    return pb.LaunchJobRequest(
        job_id=job_id,
        attempt=attempt,
        spec=spec_to_proto(spec),
        gpu_id=gpu_ids[0],
        placement=placement_to_proto(Placement.on(*gpu_ids)),
        fencing_token=token,
    )


async def run(nodes: GangSuite, job_id: str, payload: Payload, gpu_ids: tuple[str, ...]) -> ClusterEvent:
    """Runs a job to its end."""
    async with nodes.caller() as caller, caller.watch_from_now() as watch:
        await caller.call("LaunchJob", request_of(job_id, payload, gpu_ids, caller.token))
        return await watch.end_of(job_id)


async def output(nodes: GangSuite, job_id: str, rank: int, stream: Any = STDOUT) -> str:
    async with nodes.stub() as stub:
        request = pb.ReadLogsRequest(job_id=job_id, stream=stream, offset=0, rank=rank)
        return b"".join([answer.chunk.data async for answer in stub.ReadLogs(request)]).decode()


async def test_it_keeps_every_rule_of_gangs(nodes: GangSuite) -> None:
    report = await inspect_cluster(
        nodes.service.address, credentials=nodes.credentials, redis_url=nodes.redis_url, user="ada"
    )
    assert not report.failed, str(report)
    assert not {each for each in report.skipped if "gang" in each} - {
        "refuses_gangs_that_it_can_not_run",
        "loses_a_gang_with_any_of_its_gpus",  # no call takes a real GPU away
    }


@pytest.mark.parametrize(
    ("style", "gpu_ids", "world", "total"),
    [
        (LaunchStyle.ONE_PER_GPU, ONE_NODE, 2, 1),
        (LaunchStyle.ONE_PER_GPU, ("a/0", "a/1", "b/0", "b/1"), 4, 6),
        (LaunchStyle.ONE_PER_NODE, TWO_NODES, 2, 1),
        (LaunchStyle.ONE_PER_NODE, ("a/0", "a/1", "b/0", "b/1"), 2, 1),
    ],
)
async def test_programs_meet(
    nodes: GangSuite, style: LaunchStyle, gpu_ids: tuple[str, ...], world: int, total: int
) -> None:
    end = await run(nodes, "job-1", nodes.rendezvous(style=style), gpu_ids)
    assert end.kind is EventKind.FINISHED, end.message
    for rank in range(world):
        assert await output(nodes, "job-1", rank) == f"rank {rank} of {world}: sum {total}\n"
    with pytest.raises(grpc.aio.AioRpcError, match=f"has {world} programs, ranks 0 to {world - 1}"):
        await output(nodes, "job-1", world)


@pytest.mark.parametrize("gpu_ids", [ONE_NODE, TWO_NODES])
async def test_the_first_failure_stops_the_peers(nodes: GangSuite, gpu_ids: tuple[str, ...]) -> None:
    payload = nodes.rendezvous("1", style=LaunchStyle.ONE_PER_GPU)
    began_s = time.monotonic()
    end = await run(nodes, "job-1", payload, gpu_ids)
    assert end.exit is not None
    assert (end.kind, end.exit.reason, end.exit.code) == (EventKind.FAILED, EndReason.EXITED, 7)
    assert end.message == f"exit code 7: rank 1 on {gpu_ids[1][0]}"
    assert time.monotonic() - began_s < 60.0
    assert nodes.left() == {}


async def test_a_service_that_is_away_keeps_nobody_from_beginning_or_ending(nodes: GangSuite) -> None:
    """Both wait at their gate or run when it is killed; another one tells their ends."""
    async with nodes.caller() as caller:
        before, token = await caller.describe(), caller.token
        await caller.call("LaunchJob", request_of("job-1", nodes.rendezvous(), TWO_NODES, token))
    nodes.service.kill()
    await asyncio.sleep(0.5)
    nodes.start()
    caller = ServiceCaller(nodes.service.address, nodes.credentials, "", 60.0)
    async with caller.watch(before.revision, before.incarnation) as watch:
        assert (await watch.end_of("job-1")).kind is EventKind.FINISHED
    await caller.close()
    assert nodes.starts == {"job-1.1.0": 1, "job-1.1.1": 1}


@pytest.mark.timeout(300 + 15 * ROUNDS)
async def test_kills_at_any_moment_run_every_program_once_and_never_one_alone(nodes: GangSuite) -> None:
    """The service, and at times a supervisor, is killed at random moments; all launches are repeated until answered."""
    chance = random.Random(SEED)
    async with nodes.caller() as caller:
        before, token = await caller.describe(), caller.token
    lost: set[str] = set()
    for number in range(ROUNDS):
        job_id, failing = f"job-{number}", chance.choice((-1, -1, 0, 1))
        style = chance.choice(list(LaunchStyle))
        gpu_ids = TWO_NODES if style is LaunchStyle.ONE_PER_NODE else chance.choice((ONE_NODE, TWO_NODES))
        request = request_of(job_id, nodes.rendezvous(str(failing), style=style), gpu_ids, token)
        kills_at_s = [chance.uniform(0.0, 0.6) for _ in range(chance.choice((1, 1, 2)))]
        kills_supervisor = chance.random() < 0.25
        ended = asyncio.create_task(_until_ended(nodes, request))
        for pause_s in kills_at_s:
            await asyncio.sleep(pause_s)
            if kills_supervisor and (found := nodes.supervisors()):
                lost.add(job_id)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)
            nodes.service.kill()
            await asyncio.to_thread(nodes.start)
        story = f"round {number} of seed {SEED}: {style.name} on {gpu_ids}, rank {failing} fails, kills {kills_at_s}"
        try:
            await asyncio.wait_for(ended, 60.0)
        except BaseException:
            sys.stderr.write(f"{story}\n")
            raise
        caller = ServiceCaller(nodes.service.address, nodes.credentials, "", 60.0)
        async with caller.watch(before.revision, before.incarnation) as watch:
            end = await watch.end_of(job_id)
            kinds = [event.kind for event in watch.events if event.job_id == job_id]
        await caller.close()
        assert nodes.left() == {}, story
        own = {name: count for name, count in nodes.starts.items() if name.startswith(f"{job_id}.")}
        assert set(own.values()) <= {1}, f"{story}: {own}"
        if job_id in lost:
            assert end.kind in (EventKind.LOST, EventKind.FINISHED, EventKind.FAILED), story
            continue
        assert own == {f"{job_id}.1.0": 1, f"{job_id}.1.1": 1}, story
        expected = EventKind.FINISHED if failing < 0 else EventKind.FAILED
        assert kinds == [EventKind.STARTED, EventKind.RUNNING, expected], f"{story}: {end.message}"
        if failing >= 0:
            assert end.message.startswith(f"exit code 7: rank {failing} "), f"{story}: {end.message}"


async def _until_ended(nodes: GangSuite, request: pb.LaunchJobRequest) -> None:
    """Launches again and again: an answer says how far the attempt has come."""
    while True:
        try:
            async with nodes.stub() as stub:
                while True:
                    if (await stub.LaunchJob(request, timeout=10.0)).state == pb.ATTEMPT_STATE_ENDED:
                        return
                    await asyncio.sleep(0.05)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error  # noqa: PT017
            await asyncio.sleep(0.05)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize(
    ("options", "gpu_ids"),
    [
        ("", ONE_NODE),
        ("", TWO_NODES),
        ("--nproc-per-node=$NPROC_PER_NODE", ONE_NODE),
        ("--standalone --nproc-per-node=2", ONE_NODE),
        (
            "--nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=$NPROC_PER_NODE "
            "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT",
            TWO_NODES,
        ),
        (
            "--nnodes=$NNODES --nproc-per-node=$NPROC_PER_NODE --rdzv-backend=c10d "
            "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv-id=$ADLRO_JOB_ID",
            TWO_NODES,
        ),
    ],
    ids=["plain on one node", "plain on two nodes", "processes", "standalone", "static", "c10d"],
)
async def test_torchrun_trains_over_two_gpus(nodes: GangSuite, options: str, gpu_ids: tuple[str, ...]) -> None:
    torchrun = f"{sys.executable} -m torch.distributed.run"
    line = f"exec {torchrun} {options} {HERE / 'ddp_training.py'} {nodes.runs}"
    payload = process_payload(("sh", "-c", line), stop_grace_s=1.0)
    async with nodes.caller() as caller, caller.watch_from_now() as watch:
        caller.patience_s = 120.0
        request = request_of("job-1", payload, gpu_ids, caller.token)
        request.spec.memory_mib = 2048
        await caller.call("LaunchJob", request)
        end = await watch.end_of("job-1")
    ranks = 1 if gpu_ids == ONE_NODE else 2
    outputs = [await output(nodes, "job-1", rank) for rank in range(ranks)]
    if end.kind is not EventKind.FINISHED:
        # An assertion would show a part only of what torch says.
        said = [f"rank {rank}:\n{await output(nodes, 'job-1', rank, STDERR)}" for rank in range(ranks)]
        pytest.fail("\n".join((end.message, *said)))
    assert sorted("".join(outputs).splitlines()) == [f"rank {rank} of 2: weights [3.0, -2.0]" for rank in (0, 1)]
