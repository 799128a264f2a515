"""The suite as processes over mTLS with tokens and a Redis password: who may not is refused, others are served.

One suite for all tests here, whose logs are at level debug: the last test looks for secrets in them.
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from adlro.cli.certs import make_certificates
from adlro.client import AsyncClient, Credentials, JobFilter
from adlro.errors import AdlroError, LimitExceeded, NotFound, PermissionDenied, Unauthenticated, Unavailable
from adlro.kit.channel import open_channel
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import spawn_service
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from adlro.v1 import (
    cluster_service_pb2,
    cluster_service_pb2_grpc,
    decompose_service_pb2,
    decompose_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    orchestrator_service_pb2,
    orchestrator_service_pb2_grpc,
)
from tests.fault.stack import ORDER, Stack
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.slow

ROLES = {
    "suite": Role.SERVICE,
    "ann": Role.SUBMITTER,
    "bob": Role.SUBMITTER,
    "rea": Role.READER,
    "ops": Role.OPERATOR,
}
RATE_PER_S, BURST = 20.0, 30
REFUSED = 200  # after so many refusals the flood ends
MESSAGE_BYTES = 1 << 20
HANDSHAKE_TIMEOUT_S = 10.0
# While others misbehave a call may take so long: two cores, four services, and the misbehaving clients themselves.
SERVED_WITHIN_S = 5.0
PATIENCE_S = 120.0
"""Bounds a hang."""


def job(user: str) -> JobSpec:
    return JobSpec("train", user, JobType.MACHINE_LEARNING, simulated_work=SimulatedWork(0.2))


@dataclass
class SecureSuite:
    """The running suite, and what its users have."""

    stack: Stack
    certs: Path
    tokens: dict[str, str]
    password: str
    environment: dict[str, str]
    said: list[str] = field(default_factory=list)

    def credentials(self, user: str, certs: str = "ours") -> Credentials:
        shown = Credentials.from_files(
            str(self.certs / "ours/ca.pem"),
            str(self.certs / certs / "client.pem"),
            str(self.certs / certs / "client.key"),
        )
        return replace(shown, token=self.tokens.get(user, ""))

    def client(self, user: str) -> AsyncClient:
        endpoints = self.stack.client().endpoints
        return AsyncClient(
            endpoints=endpoints, credentials=self.credentials(user), timeout_s=PATIENCE_S, patience_s=PATIENCE_S
        )

    def secrets(self) -> list[str]:
        """What must stand in no log: tokens (the part that nobody may know), the password, lines of keys."""
        keys = [line for path in self.certs.glob("*/*.key") for line in path.read_text().splitlines()[1:-1]]
        return [*(token.rpartition(".")[2] for token in self.tokens.values()), self.password, *keys]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureSuite]:
    root = tmp_path_factory.mktemp("secure")
    certs = root / "certs"
    make_certificates(certs / "ours")
    make_certificates(certs / "theirs")
    ten_days_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=10)
    make_certificates(certs / "ended", now=ten_days_ago, days=9)  # its authority holds for a year
    # Both authorities are trusted: what is wrong with the second one's certificates is that they have ended.
    trusted = certs / "trusted.pem"
    trusted.write_bytes((certs / "ours/ca.pem").read_bytes() + (certs / "ended/ca.pem").read_bytes())
    tokens = {user: new_token(user) for user in ROLES}
    (root / "users").write_text("\n".join(users_line(tokens[user], [role]) for user, role in ROLES.items()) + "\n")
    (root / "service.token").write_text(tokens["suite"] + "\n")
    password = secrets.token_urlsafe(24)
    (root / "password").write_text(password + "\n")
    environment = {
        "ADLRO_TLS_CERT_FILE": str(certs / "ours/ingest.pem"),
        "ADLRO_TLS_KEY_FILE": str(certs / "ours/ingest.key"),
        "ADLRO_TLS_CA_FILE": str(trusted),
        "ADLRO_TLS_REQUIRE_CLIENT_CERT": "true",
        "ADLRO_USERS_FILE": str(root / "users"),
        "ADLRO_SERVICE_TOKEN_FILE": str(root / "service.token"),
        "ADLRO_REDIS_PASSWORD_FILE": str(root / "password"),
        "ADLRO_LOG_LEVEL": "debug",
        "ADLRO_MAX_MESSAGE_BYTES": str(MESSAGE_BYTES),
        "ADLRO_MAX_STREAMS_PER_USER": "20",
        "ADLRO_INGEST_SUBMIT_RATE_PER_USER": str(RATE_PER_S),
        "ADLRO_INGEST_SUBMIT_BURST_PER_USER": str(BURST),
        "ADLRO_INGEST_METRICS_LISTEN": "127.0.0.1:0",
        "ADLRO_SIMCLUSTER_CLOCK_MODE": "scaled",
        "ADLRO_SIMCLUSTER_CLOCK_SCALE": "100",
    }
    stack = Stack(root / "redis", **environment)
    try:
        stack.redis.start()
        with redis.Redis.from_url(stack.redis.url) as admin:
            admin.config_set("requirepass", password)
        stack.start(*ORDER)
        yield SecureSuite(stack, certs, tokens, password, environment)
    finally:
        stack.stop()


@asynccontextmanager
async def others_are_served(suite: SecureSuite) -> AsyncIterator[None]:
    """bob goes on as if nothing were: submits, reads, and gets each answer in time; before, meanwhile and after."""
    longest_s = 0.0
    served = asyncio.Event()

    async def go_on() -> None:
        nonlocal longest_s
        async with suite.client("bob") as bob:
            while True:
                began_s = watch.read()
                submitted = await bob.submit(job("bob"))
                assert (await bob.get(submitted.job_id)).spec.user == "bob"
                longest_s = max(longest_s, watch.read() - began_s)
                served.set()
                await asyncio.sleep(0.2)  # well below his rate

    async def is_served(times: int) -> None:
        for _ in range(times):
            served.clear()
            waiting = asyncio.ensure_future(served.wait())
            await asyncio.wait([waiting, going_on], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            assert not going_on.done(), going_on.exception()
            assert served.is_set()

    async with Stopwatch() as watch:
        going_on = asyncio.create_task(go_on())
        try:
            await is_served(1)
            yield
            await is_served(2)  # what it asked meanwhile, and something after
        finally:
            going_on.cancel()
            await asyncio.wait([going_on])
    assert longest_s < SERVED_WITHIN_S


async def refusal(call: Any) -> AdlroError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return from_rpc_error(failed.value)


async def ask_each(suite: SecureSuite, credentials: Credentials | None, *services: str) -> list[AdlroError]:
    """What each service answers to a call that changes something."""
    calls: dict[str, tuple[Any, str, Any]] = {
        "ingest": (
            job_service_pb2_grpc.JobServiceStub,
            "CancelJob",
            job_service_pb2.CancelJobRequest(job_id="job-1"),
        ),
        "decompose": (
            decompose_service_pb2_grpc.DecomposeServiceStub,
            "GetClusterState",
            decompose_service_pb2.GetClusterStateRequest(),
        ),
        "orchestrator": (
            orchestrator_service_pb2_grpc.OrchestratorServiceStub,
            "SetPolicy",
            orchestrator_service_pb2.SetPolicyRequest(policy="random"),
        ),
        "simcluster": (
            cluster_service_pb2_grpc.ClusterServiceStub,
            "StopJob",
            cluster_service_pb2.StopJobRequest(job_id="job-1"),
        ),
    }
    out = []
    for name in services or ORDER:
        stub, method, request = calls[name]
        async with open_channel(suite.stack.addresses[name], credentials) as channel:
            out.append(await refusal(getattr(stub(channel), method)(request, timeout=PATIENCE_S)))
    return out


async def test_jobs_run_through_the_whole_suite_over_mtls(secure: SecureSuite) -> None:
    async with secure.client("ann") as ann, secure.client("rea") as rea, secure.client("ops") as ops:
        jobs = [await ann.submit(job("ann")) for _ in range(3)]
        ended = await ann.wait([each.job_id for each in jobs], timeout_s=PATIENCE_S)
        assert {each.state for each in ended} == {JobState.SUCCEEDED}
        assert (await rea.status()).acting
        assert (await rea.explain(jobs[0].job_id)).gpu_id
        async with asyncio.timeout(PATIENCE_S):  # telemetry goes from simcluster through ingest to decompose
            async for state in rea.watch_cluster_state():
                if any(gpu.sample_time_unix_s for gpu in state.gpus):
                    break
        before = await ops.set_policy("sjf")
        await ops.set_policy(before)


async def test_no_token_and_a_wrong_one_are_unauthenticated_everywhere(secure: SecureSuite) -> None:
    nobody = secure.credentials("nobody")
    async with others_are_served(secure):
        for token in ("", new_token("ann"), "ann.guess", "garbage"):
            told = await ask_each(secure, replace(nobody, token=token))
            assert [type(each) for each in told] == [Unauthenticated] * len(ORDER), token


async def test_a_role_that_does_not_suffice_is_denied_everywhere(secure: SecureSuite) -> None:
    told = await ask_each(secure, secure.credentials("ann"), "decompose", "orchestrator", "simcluster")
    assert [type(each) for each in told] == [PermissionDenied] * 3
    told = await ask_each(secure, secure.credentials("rea"), "ingest", "orchestrator", "simcluster")
    assert [type(each) for each in told] == [PermissionDenied] * 3
    assert isinstance((await ask_each(secure, secure.credentials("ops"), "simcluster"))[0], PermissionDenied)
    assert isinstance((await ask_each(secure, secure.credentials("suite"), "orchestrator"))[0], PermissionDenied)


async def test_wrong_certificates_and_plain_text_are_not_even_connected(secure: SecureSuite) -> None:
    no_certificate = replace(secure.credentials("ops"), cert_pem=b"", key_pem=b"")
    async with others_are_served(secure):
        for credentials in (
            secure.credentials("ops", "ended"),
            secure.credentials("ops", "theirs"),
            no_certificate,
            Credentials(token=secure.tokens["ops"]),
        ):
            told = await ask_each(secure, credentials)
            assert [type(each) for each in told] == [Unavailable] * len(ORDER)


async def test_clients_refuse_a_service_whose_certificate_has_ended(secure: SecureSuite) -> None:
    pair = {
        "ADLRO_TLS_CERT_FILE": str(secure.certs / "ended/ingest.pem"),
        "ADLRO_TLS_KEY_FILE": str(secure.certs / "ended/ingest.key"),
    }
    with spawn_service("ingest", {"ADLRO_REDIS_URL": secure.stack.redis.url, **secure.environment, **pair}) as ended:
        trusting = replace(secure.credentials("rea"), ca_pem=(secure.certs / "trusted.pem").read_bytes())
        async with open_channel(ended.address, trusting) as channel:
            stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
            told = await refusal(stub.ListJobs(job_service_pb2.ListJobsRequest(), timeout=PATIENCE_S))
        secure.said += ended.raw_lines()
    assert isinstance(told, Unavailable)
    assert "certificate has expired" in told.message


async def test_another_users_job_is_not_there(secure: SecureSuite) -> None:
    async with secure.client("ann") as ann, secure.client("bob") as bob, secure.client("rea") as rea:
        anns = await ann.submit(job("ann"))
        for call in (bob.get(anns.job_id), bob.cancel(anns.job_id)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(PermissionDenied):
            await bob.submit(job("ann"))
        with pytest.raises(PermissionDenied):
            await rea.cancel(anns.job_id)
        assert anns.job_id not in {each.job_id async for each in bob.list()}
        assert not (await ann.get(anns.job_id)).cancel_requested
        assert [each.job_id async for each in rea.list(JobFilter(job_ids=(anns.job_id,)))] == [anns.job_id]


async def test_an_oversized_message_is_refused(secure: SecureSuite) -> None:
    async with (
        others_are_served(secure),
        open_channel(secure.stack.addresses["ingest"], secure.credentials("ann"), 4 * MESSAGE_BYTES) as channel,
    ):
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        request = job_service_pb2.GetJobRequest(job_id="x" * (2 * MESSAGE_BYTES))
        for _ in range(5):
            told = await refusal(stub.GetJob(request, timeout=PATIENCE_S))
            assert isinstance(told, LimitExceeded)
            assert "larger" in told.message


async def test_streams_that_say_nothing_hold_nobody_up(secure: SecureSuite) -> None:
    host, _, port = secure.stack.addresses["ingest"].rpartition(":")
    began_s = time.monotonic()
    async with others_are_served(secure):
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
        # Strangers' streams are ended at once; those of one who has a token are so many and no more.
        async with open_channel(secure.stack.addresses["ingest"], secure.credentials("nobody")) as channel:
            stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
            told = await asyncio.gather(*(refusal(stub.SubmitJobs(timeout=PATIENCE_S)) for _ in range(50)))
            assert {type(each) for each in told} == {Unauthenticated}
        async with open_channel(secure.stack.addresses["ingest"], secure.credentials("ann")) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            calls = [stub.SubmitJobs(timeout=PATIENCE_S) for _ in range(50)]
            waiting = {asyncio.ensure_future(refusal(call)) for call in calls}
            answered: set[asyncio.Future[AdlroError]] = set()
            async with asyncio.timeout(PATIENCE_S):
                while len(answered) < 30:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    answered |= done
            await asyncio.sleep(0.5)
            answered |= {each for each in waiting if each.done()}
            waiting -= answered
            assert (len(answered), len(waiting)) == (30, 20)
            for each in answered:
                told_one = each.result()
                assert isinstance(told_one, LimitExceeded)
                assert (told_one.reason, told_one.retry_after_s) == ("TOO_MANY_STREAMS", 5.0)
            for each in waiting:
                each.cancel()
            await asyncio.wait(waiting)
        # Connections that never say anything are closed by the service.
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S + PATIENCE_S), Stopwatch() as watch:
            for reader, _ in silent:
                assert await reader.read() == b""
            assert watch.read() < HANDSHAKE_TIMEOUT_S + 10.0
    assert time.monotonic() - began_s > HANDSHAKE_TIMEOUT_S - 1  # else something else has closed them
    for _, writer in silent:
        writer.close()


async def test_a_flood_of_submissions_is_held_to_its_rate(secure: SecureSuite) -> None:
    async with others_are_served(secure), secure.client("ann") as ann:
        await asyncio.sleep(BURST / RATE_PER_S)  # what earlier tests used up comes back
        taken = 0
        refused: list[LimitExceeded] = []
        began_s = time.monotonic()

        async def flood() -> None:
            nonlocal taken
            while len(refused) < REFUSED and time.monotonic() < began_s + PATIENCE_S:
                try:
                    await ann.submit(job("ann"))
                    taken += 1
                except LimitExceeded as error:
                    refused.append(error)

        await asyncio.gather(*(flood() for _ in range(16)))
        took_s = time.monotonic() - began_s
    assert len(refused) >= REFUSED
    assert BURST <= taken <= BURST + RATE_PER_S * took_s + 1
    assert {(each.reason, each.field) for each in refused} == {("TOO_FAST", "job.user")}
    assert all(0 < (each.retry_after_s or 0) <= 2 / RATE_PER_S for each in refused)


async def test_nothing_secret_stands_in_any_log_or_metric(secure: SecureSuite) -> None:
    guess = new_token("ann")
    await ask_each(secure, replace(secure.credentials("ann"), token=guess))
    lines = list(secure.said)
    for service in secure.stack.services.values():
        found = service.raw_lines()
        assert len(found) > 3
        assert all(line.startswith("{") for line in found), "gRPC writes lines of its own"
        lines += found
    assert any('"calls refused"' in line for line in lines)  # so it was logged that something was refused
    listening = next(line for line in secure.stack.services["ingest"].log_lines() if line["event"] == "listening")
    with urllib.request.urlopen(f"http://{listening['metrics_address']}/metrics") as answer:  # noqa: ASYNC210
        metrics = answer.read().decode()
    assert 'code="UNAUTHENTICATED"' in metrics
    text = "\n".join([*lines, metrics])
    for secret in [*secure.secrets(), guess.rpartition(".")[2]]:
        assert len(secret) > 16
        assert secret not in text
