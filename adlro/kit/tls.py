"""TLS: certificate files of a server, read again after changes. Knows gRPC.

Each handshake checks the files' times; new certificates apply from the next connection on, without a restart. If the
files don't match (a half-written renewal), the previous ones stay.
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
        cert: the certificate, with the intermediate ones.
        key: its private key, without a password.
        ca: certificates of the trusted authorities.
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
            # Without the callback OpenSSL would prompt for a key's password on the terminal.
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or "no PEM, or the key has a password"
            raise InvalidInput(
                f"{_CERT}, {_KEY}: {self.cert} and {self.key} are not a certificate and its key ({reason})", field=_CERT
            ) from None
        return cert, key, ca

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """The files' identity, which changes with each change of a file."""
        return tuple(_state(path) for path, _ in self._named())

    def _named(self) -> tuple[tuple[str, str], ...]:
        return (self.cert, _CERT), (self.key, _KEY), (self.ca, _CA)


def server_credentials(files: TlsFiles, *, require_client_cert: bool) -> grpc.ServerCredentials:
    """The credentials of a server.

    Args:
        files: the files, read now and again after changes.
        require_client_cert: refuses clients without a certificate of one of `files.ca`.

    Raises:
        InvalidInput: as for `TlsFiles.read`.
    """
    seen = files.state()
    current = files.read()

    def configuration() -> grpc.ServerCertificateConfiguration:
        cert, key, ca = current
        # Without authorities gRPC does not request a client's certificate.
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca if require_client_cert else None)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, in its own thread, at each handshake; None: unchanged."""
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
