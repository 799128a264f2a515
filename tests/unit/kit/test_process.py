"""A service as a process: its start, its signals, its exit codes, and that all it says is JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.kit.channel import open_channel
from adlro.kit.testing import ROOT, ServiceEnded, SpawnedService, spawn_service
from adlro.v1 import job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.conditions import until

# Each starts a process, and several wait for its end.
pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
FAKE = str(Path(__file__).with_name("fake_service.py"))


WITHOUT_UVLOOP = f"import runpy, sys; sys.modules['uvloop'] = None; runpy.run_path({FAKE!r}, run_name='__main__')"


def spawn(loop: str = "uvloop", **settings: object) -> SpawnedService:
    env = {f"ADLRO_INGEST_{key.upper()}": str(value) for key, value in settings.items()}
    return spawn_service("ingest", env, arguments=[FAKE] if loop == "uvloop" else ["-c", WITHOUT_UVLOOP])


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a fake service that is expected to end by itself."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ADLRO_")} | env
    return subprocess.run(
        [sys.executable, FAKE, *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def stub(channel: grpc.aio.Channel) -> Any:
    return job_service_pb2_grpc.JobServiceStub(channel)


def get(channel: grpc.aio.Channel, job_id: str, timeout: float = 200.0) -> Any:
    return stub(channel).GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=timeout)


def events(service: SpawnedService) -> list[str]:
    return [line["event"] for line in service.log_lines()]


async def test_sigterm_ends_a_stream_finishes_a_call_and_exits_0():
    with spawn(drain_timeout_s=600) as service:
        async with open_channel(service.address) as channel:
            watch = stub(channel).WatchJobs(job_service_pb2.WatchJobsRequest())
            assert (await watch.read()).revision == 1
            health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
            call = asyncio.ensure_future(get(channel, "sleep 1"))
            await until(lambda: "in flight" in events(service))
            service.terminate()
            assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert (await watch.read()).revision == 2
            assert not await watch.read()
            assert await watch.code() is grpc.StatusCode.OK
            assert (await call).job.job_id == "sleep 1"
            assert await asyncio.to_thread(service.wait, PATIENCE_S) == 0  # long before its time is over
    assert events(service)[-1] == "stopped"
    # Nobody else writes to stderr: gRPC's core doesn't, Python's warnings don't.
    assert [json.loads(line)["service"] for line in service.raw_lines()] == ["ingest"] * len(service.raw_lines())


async def test_a_call_that_does_not_end_is_cancelled_and_the_exit_is_still_clean():
    with spawn(drain_timeout_s=0.5) as service:
        async with open_channel(service.address) as channel:
            call = asyncio.ensure_future(get(channel, "sleep 600"))
            await until(lambda: "in flight" in events(service))
            began_s = time.monotonic()
            service.terminate()
            with pytest.raises(grpc.aio.AioRpcError):
                await call
            assert await asyncio.to_thread(service.wait, PATIENCE_S) == 0
            assert time.monotonic() - began_s >= 0.5


async def test_a_second_signal_cuts_the_drain_short():
    with spawn(drain_timeout_s=600) as service:
        async with open_channel(service.address) as channel:
            call = asyncio.ensure_future(get(channel, "sleep 600"))
            await until(lambda: "in flight" in events(service))
            service.process.send_signal(signal.SIGINT)
            await until(lambda: "draining" in events(service))
            service.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(service.wait, PATIENCE_S) == 0
            with pytest.raises(grpc.aio.AioRpcError):
                await call


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_a_handler_that_blocks_the_loop_does_not_hold_up_the_end(loop):
    with spawn(drain_timeout_s=0.5, loop=loop) as service:
        async with open_channel(service.address) as channel:
            stuck = asyncio.ensure_future(get(channel, "block 600"))
            await until(lambda: "in flight" in events(service))
            service.terminate()
            assert await asyncio.to_thread(service.wait, PATIENCE_S) == 1
            with pytest.raises(grpc.aio.AioRpcError):
                await stuck
    assert events(service)[-1] == "the drain took too long; the process ends without it"


async def test_a_drain_without_uvloop():
    with spawn(loop="asyncio") as service:
        async with open_channel(service.address) as channel:
            call = asyncio.ensure_future(get(channel, "sleep 0.5"))
            await until(lambda: "in flight" in events(service))
            service.process.send_signal(signal.SIGINT)
            assert (await call).job.job_id == "sleep 0.5"
        assert service.wait(PATIENCE_S) == 0
    assert next(line for line in service.log_lines() if line["event"] == "listening")["loop"] == "asyncio"


def test_a_port_in_use_is_one_clear_line_and_exit_2():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        done = run(ADLRO_INGEST_LISTEN=address)
    assert done.returncode == 2
    assert done.stderr == (
        f"ingest: listen: {address} is in use by another process; set ADLRO_INGEST_LISTEN or stop it\n"
    )


def test_an_unknown_key_is_one_clear_line_and_exit_2():
    done = run(ADLRO_INGEST_LISTN="127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr == "ingest: unknown setting ADLRO_INGEST_LISTN; did you mean ADLRO_INGEST_LISTEN?\n"


def test_help_lists_the_settings():
    done = run("--help")
    assert done.returncode == 0
    assert "ADLRO_INGEST_DRAIN_TIMEOUT_S=8.0" in done.stdout
    assert run("--port=1").returncode == 2


def test_a_start_that_fails_says_why_and_exits_1():
    done = run(ADLRO_INGEST_START_PROBLEM="no scenario 'paper'; see scenarios/")
    assert done.returncode == 1
    line = json.loads(done.stderr)
    assert (line["event"], line["problem"]) == ("can't start", "no scenario 'paper'; see scenarios/")
    assert "exception" not in line


def test_a_bug_at_start_is_logged_with_its_traceback_and_exits_1():
    done = run(ADLRO_INGEST_START_PROBLEM="bug")
    assert done.returncode == 1
    assert "ZeroDivisionError: a bug at start" in json.loads(done.stderr)["exception"]


def test_a_crash_of_a_loop_ends_the_process_with_1():
    with spawn(crash_after_s=0.05) as service:
        assert service.wait(PATIENCE_S) == 1
    crash = next(line for line in service.log_lines() if line["event"] == "task crashed")
    assert "ZeroDivisionError: a bug in a loop" in crash["exception"]
    assert service.log_lines()[-1]["exit_code"] == 1


async def test_redis_away_at_start():
    # Nothing listens on port 1.
    with spawn(use_redis=True, redis_url="redis://:a-secret@127.0.0.1:1/0") as service:
        async with open_channel(service.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await get(channel, "redis")
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            await until(lambda: "redis does not answer" in events(service))
        assert service.stop(PATIENCE_S) == 0
    line = next(line for line in service.log_lines() if line["event"] == "redis does not answer")
    assert line["redis_url"] == "redis://:***@127.0.0.1:1/0"
    assert "a-secret" not in "".join(service.raw_lines())


def test_spawning_what_does_not_start_tells_its_log():
    with pytest.raises(ServiceEnded, match=r"ingest ended at its start \(1\)(.|\n)*a bug at start"):
        spawn(start_problem="bug")


def test_kill_and_stop_of_a_spawned_service():
    service = spawn()
    service.kill()
    assert service.process.returncode == -signal.SIGKILL
    assert service.stop() == -signal.SIGKILL
    assert service.log_lines()[-1]["event"] == "listening"
    assert service.log_lines()[-1]["pid"] == service.pid
