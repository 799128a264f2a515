"""TLS and mTLS of a served service, renewed certificates, where it listens at all, what it takes of one client."""

from __future__ import annotations

import asyncio
import datetime
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.cli.certs import make_certificates
from adlro.errors import InvalidInput, LimitExceeded
from adlro.kit import port
from adlro.kit.addresses import ListenFailed
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.identity import new_token
from adlro.kit.server import start_server
from adlro.kit.settings import load_settings
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.v1 import job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.fake_service import FakeService, FakeSettings

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory) -> Callable[[str], Path]:
    """Directories of certificates by name: ours, another authority's, and certificates of ours that have ended."""
    root = tmp_path_factory.mktemp("certs")
    make_certificates(root / "ours")
    make_certificates(root / "theirs")
    make_certificates(root / "ended", now=LONG_AGO, days=1)
    return lambda name: root / name


def tls_settings(certs: Path, **settings: Any) -> FakeSettings:
    return FakeSettings(
        tls_cert_file=str(certs / "ingest.pem"),
        tls_key_file=str(certs / "ingest.key"),
        tls_ca_file=str(certs / "ca.pem"),
        **settings,
    )


def of_client(certs: Path, own: Path | None = None) -> Credentials:
    """Trusts the authority of `certs`; shows the client's certificate of `own`."""
    files = (str(own / "client.pem"), str(own / "client.key")) if own else ("", "")
    return Credentials.from_files(str(certs / "ca.pem"), *files)


async def ask(address: str, credentials: Credentials | None) -> str:
    """OK, or the code with which a call fails."""
    async with open_channel(address, credentials) as channel:
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        try:
            await stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-1"), timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


@asynccontextmanager
async def served(settings: FakeSettings) -> AsyncIterator[str]:
    async with serve(FakeService(settings), settings) as address:
        yield address


async def test_tls_is_spoken_with_who_knows_the_authority_and_with_nobody_else(authorities):
    async with served(tls_settings(authorities("ours"))) as address:
        assert await ask(address, of_client(authorities("ours"))) == "OK"
        assert await ask(address.replace("127.0.0.1", "localhost"), of_client(authorities("ours"))) == "OK"
        assert await ask(address, None) == "UNAVAILABLE"  # plain text
        assert await ask(address, of_client(authorities("theirs"))) == "UNAVAILABLE"
        assert await ask(address, of_client(authorities("ours"))) == "OK"


async def test_a_certificate_that_has_ended_is_refused_by_clients(authorities):
    async with served(tls_settings(authorities("ended"))) as address:
        assert await ask(address, of_client(authorities("ended"))) == "UNAVAILABLE"


async def test_mtls_asks_for_a_certificate_of_its_authority_that_holds(authorities, tmp_path):
    ours, theirs = authorities("ours"), authorities("theirs")
    # One authority, whose client's certificate has ended.
    make_certificates(tmp_path, now=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=10), days=9)
    both = tmp_path / "both.pem"
    both.write_bytes((ours / "ca.pem").read_bytes() + (tmp_path / "ca.pem").read_bytes())
    settings = tls_settings(ours, tls_require_client_cert=True)
    settings.tls_ca_file = str(both)
    async with served(settings) as address:
        assert await ask(address, of_client(ours, ours)) == "OK"
        assert await ask(address, of_client(ours)) == "UNAVAILABLE"
        assert await ask(address, of_client(ours, theirs)) == "UNAVAILABLE"
        assert await ask(address, of_client(ours, tmp_path)) == "UNAVAILABLE"
        assert await ask(address, of_client(ours, ours)) == "OK"


async def test_new_certificates_are_taken_up_without_a_restart(authorities, tmp_path, log_lines):
    certs = tmp_path / "certs"
    shutil.copytree(authorities("ours"), certs)
    ours, theirs = of_client(authorities("ours")), of_client(authorities("theirs"))
    async with served(tls_settings(certs)) as address, open_channel(address, ours) as open_before:
        stub: Any = job_service_pb2_grpc.JobServiceStub(open_before)
        request = job_service_pb2.GetJobRequest(job_id="job-1")
        await stub.GetJob(request, timeout=60)
        shutil.copy(authorities("theirs") / "ingest.key", certs)  # half of a renewal
        assert await ask(address, ours) == "OK"
        shutil.copy(authorities("theirs") / "ingest.pem", certs)
        assert await ask(address, theirs) == "OK"
        assert await ask(address, ours) == "UNAVAILABLE"
        await stub.GetJob(request, timeout=60)
    told = [(line["level"], line["event"]) for line in log_lines() if "certificates" in line["event"]]
    assert told[0] == ("error", "changed certificates are invalid; the previous ones stay in use")
    assert told[-1] == ("info", "new connections use changed certificates")
    assert "PRIVATE" not in str(told)


# ---- settings


def test_tls_needs_all_three_files(monkeypatch, capsys):
    monkeypatch.setenv("ADLRO_TLS_CERT_FILE", "a.pem")
    monkeypatch.setenv("ADLRO_TLS_CA_FILE", "ca.pem")
    with pytest.raises(SystemExit):
        load_settings(FakeSettings)
    assert capsys.readouterr().err == (
        "ingest: TLS needs three files; ADLRO_TLS_KEY_FILE is not set (`adlro certs` makes them)\n"
    )


def test_a_client_certificate_cannot_be_asked_for_without_tls(monkeypatch, capsys):
    monkeypatch.setenv("ADLRO_TLS_REQUIRE_CLIENT_CERT", "true")
    with pytest.raises(SystemExit):
        load_settings(FakeSettings)
    assert "ADLRO_TLS_REQUIRE_CLIENT_CERT needs TLS" in capsys.readouterr().err


def test_the_password_of_redis_comes_from_a_file_and_is_not_shown(monkeypatch, capsys, tmp_path):
    path = tmp_path / "password"
    path.write_text("a/b c@d\n")
    monkeypatch.setenv("ADLRO_REDIS_PASSWORD_FILE", str(path))
    monkeypatch.setenv("ADLRO_REDIS_URL", "redis://redis:6379/2?health_check_interval=1")
    settings = load_settings(FakeSettings)
    assert settings.redis_url == "redis://:a%2Fb%20c%40d@redis:6379/2?health_check_interval=1"
    assert "a%2Fb" not in repr(settings)
    # Nor where several settings are wrong together.
    monkeypatch.setenv("ADLRO_TLS_CERT_FILE", "a.pem")
    with pytest.raises(SystemExit):
        load_settings(FakeSettings)
    assert "a%2Fb" not in capsys.readouterr().err
    monkeypatch.delenv("ADLRO_TLS_CERT_FILE")
    # Nor where the password stands in place of its file.
    monkeypatch.setenv("ADLRO_REDIS_PASSWORD_FILE", "hunter2")
    with pytest.raises(SystemExit):
        load_settings(FakeSettings)
    assert "hunter2" not in capsys.readouterr().err
    monkeypatch.setenv("ADLRO_REDIS_PASSWORD_FILE", str(path))
    path.write_text("\n")
    with pytest.raises(SystemExit):
        load_settings(FakeSettings)
    assert capsys.readouterr().err == "ingest: ADLRO_REDIS_PASSWORD_FILE: the named file is empty\n"


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda at: (at / "ingest.key").unlink(), "ADLRO_TLS_KEY_FILE: can't read .*ingest.key: No such file"),
        (lambda at: shutil.copy(at / "client.key", at / "ingest.key"), "are not a certificate and its key .*MISMATCH"),
        (lambda at: (at / "ca.pem").write_text("-----BEGIN nothing"), "ADLRO_TLS_CA_FILE: .* no certificate in PEM"),
        (lambda at: (at / "ingest.pem").write_text("nothing"), "ADLRO_TLS_CERT_FILE: .*ingest.pem is no PEM"),
    ],
)
async def test_wrong_files_are_named_at_the_start(authorities, tmp_path, break_it, problem):
    certs = tmp_path / "certs"
    shutil.copytree(authorities("ours"), certs)
    break_it(certs)
    settings = tls_settings(certs)
    with pytest.raises(ListenFailed, match=problem):
        await start_server(FakeService(settings), settings)


# ---- where it listens


async def test_beyond_this_machine_it_listens_only_protected_or_told_so(authorities, tmp_path, log_lines):
    users = tmp_path / "users"
    users.write_text("ada reader sha256:" + "0" * 64)
    ours = authorities("ours")

    async def starts(settings: FakeSettings) -> list[dict[str, Any]]:
        running = await start_server(FakeService(settings), settings)
        await running.stop(0)
        return [line for line in log_lines() if "without" in line]

    anywhere: Any = {"listen": "0.0.0.0:0"}
    with pytest.raises(ListenFailed, match=re.escape("TLS (ADLRO_TLS_CERT_FILE) and tokens (ADLRO_USERS_FILE)")):
        await starts(FakeSettings(**anywhere))
    with pytest.raises(ListenFailed, match=re.escape("lacks TLS (ADLRO_TLS_CERT_FILE); set up both")):
        await starts(FakeSettings(**anywhere, users_file=str(users)))
    with pytest.raises(ListenFailed, match=re.escape("lacks tokens (ADLRO_USERS_FILE)")):
        await starts(tls_settings(ours, **anywhere))
    assert await starts(tls_settings(ours, **anywhere, users_file=str(users))) == []
    assert await starts(tls_settings(ours, **anywhere, tls_require_client_cert=True)) == []
    (line,) = await starts(FakeSettings(**anywhere, trusted_network="compose"))
    assert (line["level"], line["trusted_network"]) == ("warning", "compose")
    (line,) = await starts(FakeSettings())
    assert (line["level"], line["event"]) == ("info", "listening on loopback only, without TLS or tokens")


def test_a_token_is_not_sent_to_another_machine_in_plain_text(authorities):
    token = new_token("ada")
    with pytest.raises(
        InvalidInput,
        match="ADLRO_TLS_CA_FILE: is not set; without TLS the client does not send the token to cluster:7701",
    ):
        open_channel("cluster:7701", Credentials(token=token))
    for address, credentials in (
        ("127.0.0.1:7701", Credentials(token=token)),
        ("cluster:7701", Credentials(token=token, trusted_network=True)),
        ("cluster:7701", Credentials(token=token, ca_pem=(authorities("ours") / "ca.pem").read_bytes())),
    ):
        credentials.for_channel(address)


# ---- what one client takes


@pytest.mark.slow
async def test_a_connection_that_never_speaks_is_closed_and_others_are_served(authorities, monkeypatch):
    monkeypatch.setattr(port, "_HANDSHAKE_TIMEOUT_S", 3.0)  # which one that speaks keeps on a busy machine too
    async with served(tls_settings(authorities("ours"))) as address:
        host, _, number = address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(number)) for _ in range(20)]
        # One has spoken TLS, and then says nothing of HTTP/2.
        context = ssl.create_default_context(cafile=str(authorities("ours") / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        silent.append(await asyncio.open_connection(host, int(number), ssl=context))
        assert await ask(address, of_client(authorities("ours"))) == "OK"
        async with asyncio.timeout(60):
            for reader, _ in silent:
                while await reader.read(1024):  # until its end
                    pass
        for _, writer in silent:
            writer.close()


async def test_an_idle_connection_is_closed(authorities):
    async with served(FakeSettings(max_connection_idle_s=0.3)) as address, open_channel(address) as channel:
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        await stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-1"), timeout=60)
        async with asyncio.timeout(60):
            state = channel.get_state()
            while state is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
        await stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-1"), timeout=60)  # connects anew


async def test_calls_beyond_the_limit_of_a_connection_wait_for_their_turn():
    settings = FakeSettings(max_streams_per_connection=2)
    service = FakeService(settings)
    async with serve(service, settings) as address, open_channel(address) as channel:
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        streams = [stub.WatchJobs(job_service_pb2.WatchJobsRequest()) for _ in range(2)]
        for stream in streams:
            await stream.read()
        get = job_service_pb2.GetJobRequest(job_id="job-1")
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stub.GetJob(get, timeout=0.3)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await ask(address, None) == "OK"  # another connection
        streams[0].cancel()
        await stub.GetJob(get, timeout=60)


async def test_a_message_that_is_too_large_is_refused(authorities):
    async with served(tls_settings(authorities("ours"), max_message_bytes=65_536)) as address:
        async with open_channel(address, of_client(authorities("ours"))) as channel:
            stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetJob(job_service_pb2.GetJobRequest(job_id="x" * 70_000), timeout=60)
        assert isinstance(from_rpc_error(refused.value), LimitExceeded)


def test_the_port_of_a_service_that_may_not_listen_stays_free():
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        number = probe.getsockname()[1]
    settings = FakeSettings(listen=f"0.0.0.0:{number}")
    with pytest.raises(ListenFailed):
        asyncio.run(start_server(FakeService(settings), settings))
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", number))
