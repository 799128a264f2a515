"""TLS: certificate files of a server, read again when they have changed. Knows gRPC.

Each handshake looks at the files' times; new certificates are used from the next connection on, without a restart.
Files that don't fit together (a renewal that is half written) keep the ones from before.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from adlro.errors import InvalidInput
from adlro.kit.log import get_logger

Certificates = tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.

    Attributes:
        cert: the certificate, with those between it and the authority's.
        key: its private key, without a password.
        ca: certificates of the authorities that are trusted.
    """

    cert: str
    key: str
    ca: str

    def read(self) -> Certificates:
        """The contents of certificate, key and authorities.

        Raises:
            InvalidInput: a file can't be read or is no PEM, or the key is not the certificate's. Names the setting.
        """
        cert, key, ca = (_read(path, name) for path, name in self._named())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput(f"ADLRO_TLS_CA_FILE: {self.ca} holds no certificate in PEM", field=_CA) from error
        try:
            # Without the callback OpenSSL would ask at the terminal for a key's password.
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or "no PEM, or the key has a password"
            raise InvalidInput(
                f"{_CERT}, {_KEY}: {self.cert} and {self.key} are not a certificate and its key ({reason})", field=_CERT
            ) from None
        return cert, key, ca

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file does."""
        return tuple(_state(path) for path, _ in self._named())

    def _named(self) -> tuple[tuple[str, str], ...]:
        return (self.cert, _CERT), (self.key, _KEY), (self.ca, _CA)


def server_credentials(files: TlsFiles, *, require_client_cert: bool) -> grpc.ServerCredentials:
    """What a server listens with.

    Args:
        files: read now, and again when they change.
        require_client_cert: refuse clients without a certificate of one of `files.ca`.

    Raises:
        InvalidInput: see `TlsFiles.read`.
    """
    seen = files.state()
    current = files.read()

    def configuration() -> grpc.ServerCertificateConfiguration:
        cert, key, ca = current
        # Without authorities gRPC does not ask a client for a certificate.
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca if require_client_cert else None)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, on a thread of its own, at each handshake; None: as before."""
        nonlocal seen, current
        state = files.state()
        if state == seen:
            return None
        seen = state
        try:
            current = files.read()
        except InvalidInput as error:
            get_logger().error("changed certificates are invalid; the previous ones stay in use", problem=error.message)
            return None
        get_logger().info("new connections use changed certificates", cert_file=files.cert)
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        newer,  # type: ignore[arg-type]  # the stubs don't know that it may give None
        require_client_cert,
    )


_CERT, _KEY, _CA = "ADLRO_TLS_CERT_FILE", "ADLRO_TLS_KEY_FILE", "ADLRO_TLS_CA_FILE"


def _read(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{key}: can't read {path}: {error.strerror}", field=key) from None


def _state(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
