"""Programs that are stopped for others, with the service's process, which is killed at random moments meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from adlro.clusterside.check.caller import ServiceCaller
from adlro.records.events import ENDS, EventKind
from adlro.records.jobs import AttemptRef, Preemptible
from adlro.records.payloads import LaunchStyle, Payload, process_payload
from adlro.v1 import cluster_service_pb2 as pb
from adlro.wire import attempt_ref_to_proto
from tests.e2e.test_local_gangs import ONE_NODE, TWO_NODES, GangSuite, request_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

ROUNDS = int(os.environ.get("ADLRO_TEST_GANG_ROUNDS", "12"))
SEED = int(os.environ.get("ADLRO_TEST_GANG_SEED", "1"))


@pytest.fixture
def nodes(tmp_path: Path, redis_url: str) -> Iterator[GangSuite]:
    made = GangSuite(tmp_path, redis_url)
    made.start()
    yield made
    made.service.stop()
    assert made.left() == {}


def program(folder: Path, *, waits: bool) -> Payload:
    """Claims its GPU for itself alone; asked to end it takes a moment, leaves, and exits with 0."""
    script = """
      place="$1/place.$(echo "$ADLRO_GPU_IDS" | tr '/' '-' | cut -d, -f$((LOCAL_RANK + 1)))"; asked=
      note() { echo "$ADLRO_JOB_ID.$ADLRO_ATTEMPT.$RANK" >>"$1"; }
      leave() { sleep 0.1; note "$own/ends"; rmdir "$place"; exit 0; }
      own=$1; trap asked=1 TERM; note "$own/starts"
      mkdir "$place" || exit 9
      trap leave TERM; [ -z "$asked" ] || leave
      while [ "$2" = waits ]; do sleep 0.03; done
      leave
    """
    words = ("sh", "-c", script, "sh", str(folder), "waits" if waits else "ends")
    return process_payload(words, stop_grace_s=1.0, launch_style=LaunchStyle.ONE_PER_GPU)


async def until_answered(nodes: GangSuite, request: pb.LaunchJobRequest) -> None:
    """Launches again and again until the attempt has ended."""
    while True:
        try:
            async with nodes.stub() as stub:
                while (await stub.LaunchJob(request, timeout=10.0)).state != pb.ATTEMPT_STATE_ENDED:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                return
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error  # noqa: PT017
            await asyncio.sleep(0.05)


@pytest.mark.timeout(300 + 20 * ROUNDS)
async def test_kills_at_any_moment_stop_all_and_start_one(nodes: GangSuite) -> None:
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        folder = nodes.runs / str(number)
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        gpu_ids = chance.choice((ONE_NODE, TWO_NODES))
        both, one, new = f"both-{number}", f"one-{number}", f"new-{number}"
        async with nodes.caller() as caller, caller.watch_from_now() as watch:
            before, token = await caller.describe(), caller.token
            for job_id, its in ((both, gpu_ids), (one, ("b/1",))):
                payload = program(folder, waits=True)
                request = request_of(job_id, payload, its, token, preemptible=Preemptible(grace_s=30.0))
                await caller.call("LaunchJob", request)
                await watch.program_of(job_id)
            while len(list(folder.glob("place.*"))) < 3:  # noqa: ASYNC110 - other processes make them
                await asyncio.sleep(0.02)
        request = request_of(new, program(folder, waits=False), (gpu_ids[1], "b/1"), token)
        request.preempts.extend(attempt_ref_to_proto(AttemptRef(each, 1)) for each in (both, one))
        kills_at_s = [chance.uniform(0.0, 0.5) for _ in range(chance.choice((1, 1, 2)))]
        story = f"round {number} of seed {SEED}: {gpu_ids}, kills {kills_at_s}"
        ended = asyncio.create_task(until_answered(nodes, request))
        for pause_s in kills_at_s:
            await asyncio.sleep(pause_s)
            nodes.service.kill()
            await asyncio.to_thread(nodes.start)
        try:
            await asyncio.wait_for(ended, 60.0)
        except BaseException:
            sys.stderr.write(f"{story}\n")
            raise
        caller = ServiceCaller(nodes.service.address, nodes.credentials, "", 60.0)
        async with caller.watch(before.revision, before.incarnation) as watch:
            end = await watch.end_of(new)
            told = [(each.kind, each.job_id) for each in watch.events if each.kind in {*ENDS, EventKind.STARTED}]
        await caller.close()
        assert end.kind is EventKind.FINISHED, f"{story}: {end.message}"
        assert sorted(told[2:4]) == [(EventKind.PREEMPTED, both), (EventKind.PREEMPTED, one)], story
        assert told[4:] == [(EventKind.STARTED, new), (EventKind.FINISHED, new)], story
        starts = sorted((folder / "starts").read_text().split())
        assert starts == sorted((folder / "ends").read_text().split()), story
        assert len(starts) == len(set(starts)) == 5, f"{story}: {starts}"
        assert not list(folder.glob("place.*")), story
        assert nodes.left() == {}, story
