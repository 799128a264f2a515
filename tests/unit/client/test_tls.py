"""What the clients say where TLS fails, and that both show their certificates and token."""

from __future__ import annotations

import datetime
import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.cli.certs import make_certificates
from adlro.client import AsyncClient, Client, Credentials, Endpoints
from adlro.errors import InvalidInput, Unavailable
from adlro.kit.channel import open_blocking_channel
from adlro.kit.identity import new_token
from adlro.v1 import orchestrator_service_pb2, orchestrator_service_pb2_grpc

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


# Most methods are left to the generated class; its stubs call them abstract.
_Base: Any = orchestrator_service_pb2_grpc.OrchestratorServiceServicer


class Orchestrator(_Base):  # type: ignore[misc]
    """Notes the metadata of calls."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def SetPolicy(self, request: Any, context: Any) -> orchestrator_service_pb2.SetPolicyResponse:
        self.shown.append(dict(context.invocation_metadata()).get("authorization"))
        return orchestrator_service_pb2.SetPolicyResponse(previous_policy="fcfs")


class Server:
    """A server on TLS (or, without certificates, plain text)."""

    def __init__(self, certs: Path | None, *, ask_for_certificates: bool = False, host: str = "127.0.0.1") -> None:
        self.servicer = Orchestrator()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        orchestrator_service_pb2_grpc.add_OrchestratorServiceServicer_to_server(self.servicer, self._server)
        if certs is None:
            port = self._server.add_insecure_port(f"{host}:0")
        else:
            pair = ((certs / "orchestrator.key").read_bytes(), (certs / "orchestrator.pem").read_bytes())
            ca = (certs / "ca.pem").read_bytes()
            credentials = grpc.ssl_server_credentials(
                [pair], ca if ask_for_certificates else None, ask_for_certificates
            )
            port = self._server.add_secure_port(f"{host}:0", credentials)
        self.endpoints = Endpoints(*[f"{host}:{port}"] * 4)

    def __enter__(self) -> Server:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


@pytest.fixture(scope="module")
def certs(tmp_path_factory) -> Path:
    root: Path = tmp_path_factory.mktemp("certs")
    make_certificates(root / "ours")
    make_certificates(root / "theirs")
    make_certificates(root / "ended", now=LONG_AGO, days=1)
    return root


def test_a_client_takes_its_credentials_from_the_environment_and_shows_them(certs, tmp_path, monkeypatch):
    token = new_token("ada")
    (tmp_path / "token").write_text(token + "\n")
    monkeypatch.setenv("ADLRO_TLS_CA_FILE", str(certs / "ours/ca.pem"))
    monkeypatch.setenv("ADLRO_TLS_CERT_FILE", str(certs / "ours/client.pem"))
    monkeypatch.setenv("ADLRO_TLS_KEY_FILE", str(certs / "ours/client.key"))
    monkeypatch.setenv("ADLRO_TOKEN_FILE", str(tmp_path / "token"))
    with Server(certs / "ours", ask_for_certificates=True) as server, Client(endpoints=server.endpoints) as client:
        assert client.set_policy("sjf") == "fcfs"
        assert server.servicer.shown == [f"Bearer {token}"]
    monkeypatch.delenv("ADLRO_TLS_KEY_FILE")
    with pytest.raises(InvalidInput, match="ADLRO_TLS_KEY_FILE: is not set"):
        Client(endpoints=server.endpoints)


async def test_the_asyncio_client_shows_them_too(certs):
    token = new_token("ada")
    credentials = Credentials.from_files(str(certs / "ours/ca.pem"))
    credentials = Credentials(ca_pem=credentials.ca_pem, token=token)
    with Server(certs / "ours") as server:
        async with AsyncClient(endpoints=server.endpoints, credentials=credentials) as client:
            assert await client.set_policy("sjf") == "fcfs"
        assert server.servicer.shown == [f"Bearer {token}"]


@pytest.mark.parametrize(
    ("servers", "clients", "asks", "problem"),
    [
        ("ours", None, False, "ends each connection at once: it may speak TLS (set ADLRO_TLS_CA_FILE) or ask for a"),
        (None, "ours", False, "does not speak TLS; unset ADLRO_TLS_CA_FILE, or give it a certificate"),
        ("ours", "theirs", False, "is not signed by an authority of ADLRO_TLS_CA_FILE"),
        ("ended", "ended", False, "has expired; renew it"),
        ("ours", "ours", True, "ask for a certificate (ADLRO_TLS_CERT_FILE)"),
    ],
)
def test_what_is_wrong_with_tls_is_said(certs, servers, clients, asks, problem):
    credentials = Credentials.from_files(str(certs / clients / "ca.pem")) if clients else Credentials()
    with (
        Server(certs / servers if servers else None, ask_for_certificates=asks) as server,
        Client(endpoints=server.endpoints, credentials=credentials, patience_s=0.0) as client,
        pytest.raises(Unavailable) as failed,
    ):
        client.set_policy("sjf")
    assert problem in failed.value.message
    assert f"{server.endpoints.orchestrator} (orchestrator)" in failed.value.message
    assert failed.value.reason == "TLS_FAILED"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of this machine")
def test_a_certificate_for_another_name_is_said(certs):
    credentials = Credentials.from_files(str(certs / "ours/ca.pem"))
    with (
        Server(certs / "ours", host="127.0.0.2") as server,
        Client(endpoints=server.endpoints, credentials=credentials, patience_s=0.0) as client,
        pytest.raises(Unavailable, match="is not for that name"),
    ):
        client.set_policy("sjf")


def test_of_several_addresses_each_is_checked_by_its_certificate(certs):
    credentials = Credentials.from_files(str(certs / "ours/ca.pem"))
    with Server(certs / "ours") as one, Server(certs / "ours") as other, Server(certs / "theirs") as stranger:
        for second, served in ((other, True), (stranger, False)):
            port = one.endpoints.orchestrator.rpartition(":")[2] if served else "1"
            address = f"ipv4:127.0.0.1:{port},{second.endpoints.orchestrator}"
            with open_blocking_channel(address, credentials) as channel:
                stub = orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel)
                request = orchestrator_service_pb2.SetPolicyRequest(policy="sjf")
                if served:
                    stub.SetPolicy(request, timeout=60)
                    continue
                with pytest.raises(grpc.RpcError):
                    stub.SetPolicy(request, timeout=60)
    assert not stranger.servicer.shown
