"""A client by others: `buf curl`, which knows the contracts by reflection only."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from adlro.client import ServiceName
from tests.e2e.running_suite import RunningSuite

pytestmark = pytest.mark.slow

OPTIONS = ("curl", "--protocol", "grpc", "--http2-prior-knowledge", "--timeout", "120s")
OF_ALL = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
SERVICES = {
    ServiceName.INGEST: {"adlro.v1.JobService", "adlro.v1.TelemetryService"},
    ServiceName.DECOMPOSE: {"adlro.v1.DecomposeService"},
    ServiceName.ORCHESTRATOR: {"adlro.v1.OrchestratorService"},
    ServiceName.CLUSTER: {"adlro.v1.ClusterService"},
}
# A minute of cluster time; a second here.
JOB = {
    "name": "from elsewhere",
    "user": "grace",
    "jobType": "JOB_TYPE_SIMULATION",
    "application": "tealeaf",
    "cpuCores": 2,
    "gpuMemoryMib": "4000",
    "simulatedWork": {"workS": 60},
}


@pytest.fixture(scope="module")
def buf() -> str:
    """The binary of the wheel buf-bin, beside this Python, or one on PATH."""
    found = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if found is None:
        pytest.skip("buf is not installed; the extra `dev` has it")
    return found


async def curl(buf: str, url: str, *arguments: str, code: int = 0) -> str:
    process = await asyncio.create_subprocess_exec(
        buf, *OPTIONS, *arguments, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), 150.0)
    except BaseException:
        process.kill()
        raise
    assert process.returncode == code, stderr.decode()
    return (stderr if code else stdout).decode()


async def stream(buf: str, url: str, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
    """The messages of a server stream, until the reader has enough."""
    process = await asyncio.create_subprocess_exec(
        buf, *OPTIONS, "-d", json.dumps(request), url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    decoder, text = json.JSONDecoder(), ""
    try:
        while chunk := await asyncio.wait_for(process.stdout.read(65_536), 60.0):
            text += chunk.decode()
            while text := text.lstrip():
                try:
                    message, end = decoder.raw_decode(text)
                except ValueError:  # the rest of it is to come
                    break
                text = text[end:]
                yield message
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60.0)


@pytest.mark.parametrize("name", SERVICES)
async def test_each_server_lists_its_services_by_reflection(suite: RunningSuite, buf: str, name: ServiceName) -> None:
    process = "simcluster" if name is ServiceName.CLUSTER else str(name)
    address = suite.status["addresses"][process]
    listed = await curl(buf, f"http://{address}", "--list-services")
    assert set(listed.split()) >= SERVICES[name] | OF_ALL
    others = set().union(*(services for other, services in SERVICES.items() if other is not name))
    assert not set(listed.split()) & others


async def test_it_submits_a_job_and_watches_it_to_its_end(scaled_suite: RunningSuite, buf: str) -> None:
    url = f"http://{scaled_suite.server}/adlro.v1.JobService"
    submitted = json.loads(await curl(buf, f"{url}/SubmitJob", "-d", json.dumps({"job": JOB, "requestId": "by-buf"})))
    job = submitted["job"]
    assert job["state"] == "JOB_STATE_PENDING"
    assert job["spec"]["memoryMib"] == "8192"
    request = {"filter": {"jobIds": [job["jobId"]]}, "afterRevision": job["revision"]}
    seen: list[str] = []
    async with aclosing(stream(buf, f"{url}/WatchJobs", request)) as messages:
        async for message in messages:
            assert message["kind"] == "KIND_CHANGE"
            job = message["job"]
            if job["state"] not in seen:
                seen.append(job["state"])
            if seen[-1] not in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
                break
    assert seen == ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED"]
    assert job["endS"] - job["startS"] == pytest.approx(60.0, abs=1e-6)
    got = json.loads(await curl(buf, f"{url}/GetJob", "-d", json.dumps({"jobId": job["jobId"]})))["job"]
    assert got == job


async def test_it_is_told_what_is_wrong_with_a_job(suite: RunningSuite, buf: str) -> None:
    url = f"http://{suite.server}/adlro.v1.JobService/SubmitJob"
    invalid_argument = 3
    told = await curl(buf, url, "-d", json.dumps({"job": {**JOB, "priority": 1.5}}), code=invalid_argument << 3)
    assert json.loads(told)["code"] == "invalid_argument"
    assert "job.priority" in told
