"""Whether the service in this container serves, by grpc.health.v1 or HTTP: exit code 0, or 1 with the reason.

An engine asks every few seconds and starts a process each time. Importing grpc for that takes four times the CPU
(`benchmarks/images.py`); this writes the one request by hand, in the frames of HTTP/2 (RFC 9113, HPACK: RFC 7541), with
the standard library alone: start it with `python -I -S`. Touches one socket, and the service's own certificates.

    healthcheck.py HOST:PORT SERVICE        asks the service; with TLS where its settings name certificates
    healthcheck.py HOST:PORT SERVICE http   the same over HTTP: GET /healthz
    healthcheck.py HOST:PORT                only sees that connections are taken, as by a gateway
"""

from __future__ import annotations

import os
import socket
import sys

# Below what the engine waits (the Dockerfiles): a machine under load is slow, not ill.
TIMEOUT_S = 8.0

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 0x1, 0x4, 0x1, 0x8
# Places in HPACK's static table.
_POST, _HTTP, _HTTPS, _AUTHORITY, _PATH = b"\x83", b"\x86", b"\x87", b"\x01", b"\x04"
_STATES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame: length, type, flags, stream, payload (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(value: bytes) -> bytes:
    assert len(value) < 0x7F  # longer ones have a longer prefix
    return bytes([len(value)]) + value


def request(host: str, *, tls: bool = False) -> bytes:
    """All that is sent: the connection's preface, and Health/Check for the whole process."""
    headers = (
        _POST
        + (_HTTPS if tls else _HTTP)
        + (_PATH + _text(b"/grpc.health.v1.Health/Check"))
        + (_AUTHORITY + _text(host.encode("ascii")))
        + (b"\x00" + _text(b"content-type") + _text(b"application/grpc"))
        + (b"\x00" + _text(b"te") + _text(b"trailers"))
        + (b"\x00" + _text(b"grpc-timeout") + _text(b"%dm" % int(TIMEOUT_S * 1000)))
    )
    # No compression, and an empty HealthCheckRequest.
    message = b"\x00" + (0).to_bytes(4, "big")
    return (
        _PREFACE
        + frame(_SETTINGS, 0, 0)
        + frame(_HEADERS, _END_HEADERS, 1, headers)
        + frame(_DATA, _END_STREAM, 1, message)
    )


def state_in(message: bytes) -> str:
    """The state that a HealthCheckResponse tells, by name; its one field is number 1, an enum."""
    body = message[5:]
    if not body:
        return _STATES[0]
    return _STATES.get(body[1], "UNKNOWN") if len(body) == 2 and body[0] == 0x08 else "UNKNOWN"


def certificates(service: str) -> tuple[str, str, str] | None:
    """Authorities, certificate and key that a service's settings name; None without TLS."""
    found = [
        os.environ.get(f"ADLRO_{service.upper()}_TLS_{name}_FILE") or os.environ.get(f"ADLRO_TLS_{name}_FILE", "")
        for name in ("CA", "CERT", "KEY")
    ]
    return (found[0], found[1], found[2]) if all(found) else None


def secured(connection: socket.socket, files: tuple[str, str, str], protocol: str = "h2") -> socket.socket:
    """The connection with TLS on it, with the service's own certificate as that of a client."""
    import ssl

    ca, cert, key = files
    context = ssl.create_default_context(cafile=ca)
    # It asks the process beside it, by an address that a certificate need not hold.
    context.check_hostname = False
    context.set_alpn_protocols([protocol])
    context.load_cert_chain(cert, key)
    return context.wrap_socket(connection)


def check(connection: socket.socket, host: str, *, tls: bool = False) -> str:
    """Asks over an open connection; the state by name. Raises OSError where the answer is none."""
    connection.sendall(request(host, tls=tls))
    message = b""
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(9)
            if len(head) < 9:
                raise OSError("the connection ended without an answer")
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            payload = stream.read(length)
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(frame(_SETTINGS, _ACK, 0))
            elif kind in (_GOAWAY, _RST_STREAM):
                raise OSError("the call was refused")
            elif kind == _DATA:
                message += payload[1 : length - payload[0]] if flags & _PADDED else payload
                if len(message) >= 5 and len(message) >= 5 + int.from_bytes(message[1:5], "big"):
                    return state_in(message)
            elif kind == _HEADERS and flags & _END_STREAM:
                raise OSError("the call failed")


def check_http(connection: socket.socket, host: str) -> str:
    """Asks for /healthz over an open connection; SERVING, or what was answered. Raises OSError where there is none."""
    connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii"))
    with connection.makefile("rb") as stream:
        line = stream.readline(200).decode("latin-1").strip()
    if not line.startswith("HTTP/1.1 "):
        raise OSError("the connection ended without an answer")
    return "SERVING" if line.split()[1] == "200" else line


def main(arguments: list[str]) -> int:
    """Exit code 0 where it serves; else 1, with the reason on stdout."""
    address, *service = arguments
    http = service[1:] == ["http"]
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            if not service:
                state = "SERVING"
            elif files := certificates(service[0]):
                with secured(connection, files, "http/1.1" if http else "h2") as encrypted:
                    state = check_http(encrypted, host) if http else check(encrypted, host, tls=True)
            else:
                state = check_http(connection, host) if http else check(connection, host)
    except OSError as error:
        state = str(error)
    if state != "SERVING":
        sys.stdout.write(f"{address}: {state}\n")
    return int(state != "SERVING")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
