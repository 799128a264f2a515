"""The containers' health check against real gRPC servers, with and without TLS, and against what is none."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from adlro.cli.certs import make_certificates

ROOT = Path(__file__).resolve().parents[3]
STATES = health_pb2.HealthCheckResponse


def healthcheck(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a container's engine runs it: without site-packages."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "deploy" / "healthcheck.py"), *arguments],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@contextmanager
def served(state: int, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    servicer = HealthServicer()
    servicer.set("", state)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_service_that_serves_is_healthy() -> None:
    with served(STATES.SERVING) as address:
        ended = healthcheck(address, "ingest")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("state", ["NOT_SERVING", "UNKNOWN"])
def test_one_that_does_not_serve_is_unhealthy_and_says_so(state: str) -> None:
    with served(STATES.ServingStatus.Value(state)) as address:
        ended = healthcheck(address, "ingest")
    assert (ended.returncode, ended.stdout.strip()) == (1, f"{address}: {state}")


@pytest.mark.parametrize("prefix", ["ADLRO_TLS", "ADLRO_INGEST_TLS"])
def test_with_tls_it_shows_the_services_own_certificate(tmp_path: Path, prefix: str) -> None:
    make_certificates(tmp_path)
    pem = {name: (tmp_path / name).read_bytes() for name in ("ca.pem", "ingest.pem", "ingest.key")}
    mutual = grpc.ssl_server_credentials([(pem["ingest.key"], pem["ingest.pem"])], pem["ca.pem"], True)
    files = {
        f"{prefix}_CA_FILE": str(tmp_path / "ca.pem"),
        f"{prefix}_CERT_FILE": str(tmp_path / "ingest.pem"),
        f"{prefix}_KEY_FILE": str(tmp_path / "ingest.key"),
    }
    with served(STATES.SERVING, mutual) as address:
        assert healthcheck(address, "ingest", **files).returncode == 0
        # Another service's settings are not its own; without certificates it is refused.
        other = healthcheck(address, "decompose", **files)
        assert other.returncode == (1 if "INGEST" in prefix else 0)


@contextmanager
def http_served(status: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Something that answers one request over HTTP, and that must be for /healthz."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection if context is None else context.wrap_socket(connection, server_side=True) as stream:
                right = stream.recv(1000).startswith(b"GET /healthz HTTP/1.1\r\n")
                stream.sendall(b"HTTP/1.1 %s\r\nConnection: close\r\n\r\n" % (status if right else b"404 No"))

        answering = threading.Thread(target=answer)
        answering.start()
        yield address
        answering.join()


@pytest.mark.parametrize(("status", "code", "says"), [(b"200 OK", 0, ""), (b"503 Service Unavailable", 1, "503")])
def test_the_page_is_asked_over_http(status: bytes, code: int, says: str) -> None:
    with http_served(status) as address:
        ended = healthcheck(address, "web", "http")
    assert ended.returncode == code
    assert says in ended.stdout


def test_the_page_is_asked_over_tls(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "web.pem", tmp_path / "web.key")
    files = {
        "ADLRO_TLS_CA_FILE": str(tmp_path / "ca.pem"),
        "ADLRO_TLS_CERT_FILE": str(tmp_path / "web.pem"),
        "ADLRO_TLS_KEY_FILE": str(tmp_path / "web.key"),
    }
    with http_served(b"200 OK", context) as address:
        assert healthcheck(address, "web", "http", **files).returncode == 0


def test_what_is_no_service_is_unhealthy_within_its_time() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        assert healthcheck(address, "ingest").returncode == 1
        answering.join()
        # It listens, which is all that is asked of a gateway.
        assert healthcheck(address).returncode == 0
    with socket.socket() as silent:  # has a port, and does not listen there
        silent.bind(("127.0.0.1", 0))
        ended = healthcheck(f"127.0.0.1:{silent.getsockname()[1]}", "ingest")
    assert ended.returncode == 1
    assert "refused" in ended.stdout
