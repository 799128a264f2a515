"""Who may ask why a job waits, and what he is told, on an orchestrator with a users' file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.errors import NotFound, Unauthenticated
from adlro.kit.channel import open_channel
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.redis import connect
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.records.jobs import JobSpec, JobState, JobType, NormalizedJob, PendingReason, SimulatedWork
from adlro.services.orchestrator.server import OrchestratorServer
from adlro.services.orchestrator.settings import OrchestratorSettings
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.store import JobStore
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc

Ask = Callable[[str, str], Any]

ROLES = {
    "ann": [Role.SUBMITTER],
    "bob": [Role.SUBMITTER],
    "rea": [Role.READER],
    "ops": [Role.OPERATOR],
    "suite": [Role.SERVICE],
}


@pytest.fixture
async def asked(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Ask, JobStore]]:
    """Asks as a user; "" has no token. hold_gang decides, on a paused cluster of 16 GPUs."""
    tokens = {user: new_token(user) for user in ROLES}
    users = tmp_path / "users"
    users.write_text("\n".join(users_line(token, ROLES[user]) for user, token in tokens.items()))
    of_cluster = SimclusterSettings(clock_mode="virtual", clock_paused=True, redis_url=redis_url)
    async with serve(SimclusterServer(of_cluster), of_cluster) as cluster:
        settings = OrchestratorSettings(
            redis_url=redis_url,
            cluster_address=cluster,
            decompose_address="127.0.0.1:1",
            prediction_timeout_s=0.2,
            policy="hold_gang",
            users_file=str(users),
        )
        async with serve(OrchestratorServer(settings), settings) as address:
            channel, redis = open_channel(address), connect(redis_url)
            stub: Any = pb_grpc.OrchestratorServiceStub(channel)

            async def ask(user: str, job_id: str) -> Any:
                metadata = [("authorization", f"Bearer {tokens[user]}")] if user else []
                request = pb.ExplainWaitingRequest(job_id=job_id)
                try:
                    return (await stub.ExplainWaiting(request, timeout=60.0, metadata=metadata)).explanation
                except grpc.aio.AioRpcError as error:
                    raise from_rpc_error(error) from error

            yield ask, JobStore(redis)
            await channel.close(None)
            await redis.aclose()


async def test_every_role_asks_and_a_submitter_about_his_own_jobs_alone(asked: tuple[Ask, JobStore]) -> None:
    ask, store = asked

    async def submit(user: str, gpus: int, **fields: Any) -> str:
        name = f"secret-of-{user}"
        spec = JobSpec(name, user, JobType.SIMULATION, gpu_count=gpus, simulated_work=SimulatedWork(50.0), **fields)
        return (await store.create(spec, NormalizedJob(), "", 0.0)).job.job_id

    wants: dict[str, Any] = {"cpu_cores": 1, "memory_mib": 64, "gpu_models": ("radeon_vii",)}
    running = [await submit("bob", 1, **wants)]
    async with asyncio.timeout(60):
        while (await store.get(running[-1])).state is not JobState.RUNNING:  # noqa: ASYNC110 - in another task
            await asyncio.sleep(0.02)
    others = await submit("bob", 4, **wants)
    async with asyncio.timeout(60):
        while (await store.get(others)).pending_reason is not PendingReason.GANG_NODES:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    own = await submit("ann", 4, **wants)
    async with asyncio.timeout(60):
        while (await store.get(own)).pending_reason is not PendingReason.GANG_NODES:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    seen = {user: await ask(user, own) for user in ("ann", "rea", "ops", "suite")}
    for user, told in seen.items():
        assert (told.job_id, told.queue_length) == (own, 2), user
        assert sum(each.gpu_count for each in told.obstacles) == 16
        assert told.HasField("expected_start")
    shown = str(seen["ann"])
    for hidden in ("bob", "secret-of", others, *running[1:]):
        assert f"{hidden}" not in shown.replace(own, ""), hidden
    assert seen["ann"].obstacles == seen["ops"].obstacles

    with pytest.raises(NotFound) as not_his:
        await ask("ann", others)
    with pytest.raises(NotFound) as absent:
        await ask("ann", "job-999")
    assert not_his.value.message.replace(others, "job-999") == absent.value.message
    assert (not_his.value.reason, set(not_his.value.metadata)) == (absent.value.reason, set(absent.value.metadata))
    with pytest.raises(NotFound):
        await ask("ann", running[0])  # not even that it runs
    with pytest.raises(Unauthenticated):
        await ask("", own)
    assert (await ask("bob", others)).job_id == others


def test_no_role_is_left_out() -> None:
    """A new role needs a line in `ROLES`, and so an answer above."""
    assert {role for roles in ROLES.values() for role in roles} == set(Role)
