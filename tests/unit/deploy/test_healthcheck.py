"""The containers' health check against real gRPC servers, with and without TLS, and against what is none."""

from __future__ import annotations

import socket
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
