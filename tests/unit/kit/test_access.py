"""Who may call what: the table covers every contract, and a served service refuses before it reads anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import adlro.v1
from adlro.errors import AdlroError, InvalidInput, LimitExceeded, PermissionDenied, Unauthenticated
from adlro.kit import access, identity
from adlro.kit.access import ROLES
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.identity import Role, UsersFile, current_caller, new_token, read_token, user_of, users_line
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.conditions import until
from tests.unit.kit.fake_service import FakeService, FakeSettings

GET = job_service_pb2.GetJobRequest(job_id="job-1")


def contracts() -> set[str]:
    """Every method of every service of the contracts, as it is called."""
    found: set[str] = set()
    for path in Path(adlro.v1.__file__).parent.glob("*_service_pb2.py"):
        module: ModuleType = __import__(f"adlro.v1.{path.stem}", fromlist=["DESCRIPTOR"])
        for service in module.DESCRIPTOR.services_by_name.values():
            found |= {f"/{service.full_name}/{method.name}" for method in service.methods}
    return found


def test_every_method_of_every_contract_has_its_roles():
    assert len(contracts()) >= 30
    assert set(ROLES) == contracts(), "say in adlro.kit.access.ROLES who may call it"
    assert all(ROLES.values())


def test_a_reader_changes_nothing_and_a_submitter_touches_jobs_only():
    changes = (
        *("Submit", "Cancel", "Hold", "Release", "Update", "Set", "Drain", "Undrain", "Upsert", "Push"),
        *("Launch", "Stop", "Acknowledge", "Wake"),
    )
    reading = {method for method, roles in ROLES.items() if Role.READER in roles}
    assert not [method for method in reading if method.rpartition("/")[2].startswith(changes)]
    assert {method for method in ROLES if method not in reading} == {
        method for method in ROLES if method.rpartition("/")[2].startswith(changes)
    }
    submitting = {method for method, roles in ROLES.items() if Role.SUBMITTER in roles}
    besides = {
        "/adlro.v1.TelemetryService/GetCluster",
        "/adlro.v1.OrchestratorService/ExplainWaiting",
        "/adlro.v1.OrchestratorService/GetClusterCapacity",
        "/adlro.v1.OrchestratorService/ListFairShares",
        "/adlro.v1.OrchestratorService/ListQuotas",
    }
    assert {method.split("/")[1] for method in submitting - besides} == {"adlro.v1.JobService"}


# ---- tokens and their file


def test_a_token_is_known_by_its_line(tmp_path):
    token = new_token("ada@example.org")
    path = tmp_path / "users"
    path.write_text(f"# staff\n\n{users_line(token, [Role.READER, Role.OPERATOR])}\n")
    assert token not in path.read_text()
    assert token.rpartition(".")[2] not in path.read_text()
    caller = UsersFile(str(path), "KEY").caller(token)
    assert caller is not None
    assert (caller.user, caller.roles) == ("ada@example.org", frozenset({Role.READER, Role.OPERATOR}))
    assert user_of(token) == "ada@example.org"


def test_what_is_not_the_token_is_nobodys(tmp_path):
    token, other = new_token("ada"), new_token("ada")
    path = tmp_path / "users"
    path.write_text(users_line(token, [Role.READER]))
    users = UsersFile(str(path), "KEY")
    for wrong in (other, token[:-1], token + "x", token.replace("ada", "bob"), "ada", "ada.", "", "ä.\udcff", "." * 9):
        assert users.caller(wrong) is None, wrong


def test_tokens_are_compared_in_constant_time(tmp_path, monkeypatch):
    compared: list[Any] = []

    def compare(*both: str) -> bool:
        compared.append(both)
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    token = new_token("ada")
    path = tmp_path / "users"
    path.write_text("\n".join(users_line(each, [Role.READER]) for each in (token, new_token("ada"))))
    users = UsersFile(str(path), "KEY")
    assert users.caller(token) is None  # only this comparison could have let it through
    assert len(compared) == 2
    assert users.caller("nobody.secret") is None
    assert len(compared) == 3  # an unknown user takes a comparison too


def test_an_old_and_a_new_token_of_one_user_both_count(tmp_path):
    old, new = new_token("ada"), new_token("ada")
    path = tmp_path / "users"
    path.write_text(f"{users_line(old, [Role.READER])}\n{users_line(new, [Role.OPERATOR])}\n")
    users = UsersFile(str(path), "KEY")
    callers = [users.caller(each) for each in (old, new)]
    assert [caller.roles for caller in callers if caller] == [{Role.READER}, {Role.OPERATOR}]


def test_a_changed_file_counts_and_a_spoiled_one_does_not(tmp_path, monkeypatch, log_lines):
    monkeypatch.setattr(identity, "_LOOK_EVERY_S", 0.0)
    old, new = new_token("ada"), new_token("bob")
    path = tmp_path / "users"
    path.write_text(users_line(old, [Role.READER]))
    users = UsersFile(str(path), "KEY")
    path.write_text(users_line(new, [Role.READER]) + "\n")
    assert (users.caller(old), users.caller(new) is not None) == (None, True)
    path.write_text(f"{users_line(new, [Role.READER])}\n{new} reader oops\n")
    assert users.caller(new) is not None
    os.remove(path)
    assert users.caller(new) is not None
    lines = log_lines()
    assert [line["level"] for line in lines] == ["info", "error", "error"]
    assert new not in str(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no user"),
        ("ada reader", "line 1: does not have three parts"),
        ("# x\nada king sha256:" + "0" * 64, "line 2: its second part names an unknown role; roles are opera"),
        ("ada reader sha256:" + "0" * 63, "line 1: its third part is no SHA-256"),
        ("a/b reader sha256:" + "0" * 64, "line 1: its first part is no name"),
    ],
)
def test_a_wrong_users_file_names_the_line_and_not_what_stands_there(tmp_path, text, problem):
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=problem) as refused:
        UsersFile(str(path), "ADLRO_USERS_FILE")
    assert refused.value.field == "ADLRO_USERS_FILE"
    assert "0000" not in refused.value.message


def test_a_token_file_is_read_and_never_shown(tmp_path):
    token = new_token("ada")
    path = tmp_path / "token"
    path.write_text(token + "\n")
    assert read_token(str(path), "KEY") == token
    credentials = Credentials.from_files(token_file=str(path))
    assert credentials.user == "ada"
    assert token.rpartition(".")[2] not in f"{credentials!r} {credentials}"
    path.write_text("hunter2 is my password\n")
    with pytest.raises(InvalidInput, match=r"KEY: .* holds no token") as refused:
        read_token(str(path), "KEY")
    assert "hunter2" not in refused.value.message
    with pytest.raises(
        InvalidInput, match="KEY: holds a token instead of a file name; write the token to a file"
    ) as refused:
        read_token(token, "KEY")
    assert token not in refused.value.message
    with pytest.raises(InvalidInput, match="ADLRO_TOKEN_FILE: can't read"):
        Credentials.from_environment({"ADLRO_TOKEN_FILE": str(tmp_path / "absent")})


# ---- a served service


class Guarded:
    """A fake service that asks for tokens; `call(role)` gives a stub with the token of a user of that role."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.tokens = {role.value: new_token(f"the-{role}") for role in Role}
        users = tmp_path / "users"
        users.write_text("\n".join(users_line(token, [Role(role)]) for role, token in self.tokens.items()))
        self.settings = FakeSettings(users_file=str(users), **settings)
        self.service = FakeService(self.settings)
        self.address = ""
        self._channels: list[grpc.aio.Channel] = []

    def channel(self, token: str) -> Any:
        self._channels.append(open_channel(self.address, Credentials(token=token)))
        return self._channels[-1]

    def stub(self, role: str) -> Any:  # grpc.aio's calls, which the stubs type as blocking ones
        return job_service_pb2_grpc.JobServiceStub(self.channel(self.tokens[role]))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)


@pytest.fixture
async def guarded(tmp_path) -> AsyncIterator[Guarded]:
    made = Guarded(tmp_path, max_streams_per_user=2)
    async with serve(made.service, made.settings) as made.address:
        yield made
        await made.close()


async def refusal(call: Any) -> AdlroError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return from_rpc_error(failed.value)


async def test_no_text_of_a_channel_or_its_calls_holds_the_token():
    token = new_token("ada")
    channel = open_channel("127.0.0.1:1", Credentials(token=token))
    stub = job_service_pb2_grpc.JobServiceStub(channel)
    assert token not in f"{channel!r} {stub.GetJob!r} {stub.WatchJobs!r} {stub!r}"


@pytest.mark.parametrize("token", ["", "nobody.secret", "the-reader.secret", "garbage"])
async def test_without_a_good_token_nothing_is_told(guarded: Guarded, token):
    channel = guarded.channel(token)
    stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
    told = await refusal(stub.GetJob(GET, timeout=60))
    assert isinstance(told, Unauthenticated)
    assert "ADLRO_TOKEN_FILE" in told.message
    assert not token or token not in told.message
    unknown = channel.unary_unary("/adlro.v1.JobService/NoSuchMethod")
    assert isinstance(await refusal(unknown(b"", timeout=60)), Unauthenticated)
    assert not guarded.service.in_flight.is_set()


async def test_a_refused_call_is_refused_before_its_message_is_read(guarded: Guarded):
    stub: Any = job_service_pb2_grpc.JobServiceStub(guarded.channel("nobody.secret"))
    silent = stub.SubmitJobs(timeout=60)  # never sends anything
    assert isinstance(await refusal(silent), Unauthenticated)
    # What can't be read at all is not looked at either.
    raw = guarded.channel("nobody.secret").unary_unary("/adlro.v1.JobService/GetJob")
    assert isinstance(await refusal(raw(b"\xff" * 1000, timeout=60)), Unauthenticated)


async def test_a_role_lets_in_where_the_table_says(guarded: Guarded):
    submit = job_service_pb2.SubmitJobRequest(
        job=job_pb2.JobSpec(name="x", user="the-submitter", job_type=job_pb2.JOB_TYPE_SIMULATION)
    )
    await guarded.stub("submitter").SubmitJob(submit, timeout=60)
    for role in ("reader", "service"):
        told = await refusal(guarded.stub(role).SubmitJob(submit, timeout=60))
        assert isinstance(told, PermissionDenied)
        assert told.message == f"the-{role} is {role}; SubmitJob needs the role operator or submitter"
        await guarded.stub(role).GetJob(GET, timeout=60)


async def test_the_handler_knows_who_calls(guarded: Guarded):
    seen: list[Any] = []

    async def note() -> None:
        await asyncio.sleep(0.01)
        seen.append(current_caller())

    guarded.service.get["job-1"] = note
    await asyncio.gather(*(guarded.stub(role).GetJob(GET, timeout=60) for role in ("reader", "operator", "submitter")))
    assert sorted(caller.user for caller in seen) == ["the-operator", "the-reader", "the-submitter"]
    assert current_caller() is None


async def test_a_health_check_is_open_and_streams_and_reflection_ask_for_a_token(guarded: Guarded):
    def list_services(channel: Any) -> Any:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=60)

    stranger = guarded.channel("")
    answer = await health_pb2_grpc.HealthStub(stranger).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch = health_pb2_grpc.HealthStub(stranger).Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert isinstance(await refusal(watch.read()), Unauthenticated)
    assert isinstance(await refusal(list_services(stranger).read()), Unauthenticated)
    told = await list_services(guarded.channel(guarded.tokens["submitter"])).read()
    assert "adlro.v1.JobService" in {each.name for each in told.list_services_response.service}


async def test_a_user_has_so_many_streams_and_gets_one_back_when_one_ends(guarded: Guarded):
    stub = guarded.stub("reader")
    request = job_service_pb2.WatchJobsRequest()
    streams = [stub.WatchJobs(request) for _ in range(2)]
    for stream in streams:
        await stream.read()
    told = await refusal(stub.WatchJobs(request).read())
    assert isinstance(told, LimitExceeded)
    assert (told.reason, told.retry_after_s) == ("TOO_MANY_STREAMS", 5.0)
    of_another_user = guarded.stub("operator").WatchJobs(request)
    assert (await of_another_user.read()).revision == 1
    streams[0].cancel()

    async def gets_one() -> bool:
        again = stub.WatchJobs(request)
        try:
            return bool((await again.read()).revision == 1)
        except grpc.aio.AioRpcError as error:  # its end has not come to the service yet
            if not isinstance(from_rpc_error(error), LimitExceeded):
                raise
            return False

    await until(gets_one)


async def test_a_flood_of_refused_calls_is_no_flood_of_lines(guarded: Guarded, log_lines, monkeypatch):
    monkeypatch.setattr(access, "_LOG_EVERY_S", 3600.0)
    stub: Any = job_service_pb2_grpc.JobServiceStub(guarded.channel("the-reader.not-the-secret"))
    for _ in range(30):
        await refusal(stub.GetJob(GET, timeout=60))
    lines = [line for line in log_lines() if line["event"] == "calls refused"]
    assert len(lines) == 1
    assert "not-the-secret" not in str(lines)


async def test_without_users_everybody_may_all(served):
    seen: list[Any] = []

    async def note() -> None:
        seen.append(current_caller())

    served.service.get["job-1"] = note
    await served.stub.GetJob(GET, timeout=60)
    assert seen == [None]
