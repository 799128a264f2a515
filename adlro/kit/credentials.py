"""A caller's credentials: TLS certificates and a token, from files that environment keys name. Uses gRPC.

    ADLRO_TLS_CA_FILE      PEM; the authorities that servers' certificates are checked against. Set: TLS is used
    ADLRO_TLS_CERT_FILE    PEM; the caller's certificate, for servers that require one
    ADLRO_TLS_KEY_FILE     PEM; its key
    ADLRO_TOKEN_FILE       the user's token (a service uses ADLRO_SERVICE_TOKEN_FILE)
    ADLRO_TRUSTED_NETWORK  set: the token may be sent in plain text to other machines

Files are read when a client is made: a long-lived client does not notice new ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from adlro.errors import InvalidInput, Unavailable
from adlro.kit.addresses import is_loopback
from adlro.kit.identity import read_token, user_of
from adlro.kit.listeners import listener_uid

if TYPE_CHECKING:
    from adlro.kit.settings import ServiceSettings

CA_ENV = "ADLRO_TLS_CA_FILE"
CERT_ENV = "ADLRO_TLS_CERT_FILE"
KEY_ENV = "ADLRO_TLS_KEY_FILE"
TOKEN_ENV = "ADLRO_TOKEN_FILE"
SERVICE_TOKEN_ENV = "ADLRO_SERVICE_TOKEN_FILE"
OWN_USER_ENV = "ADLRO_TOKEN_TO_OWN_USER"
TRUSTED_ENV = "ADLRO_TRUSTED_NETWORK"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Certificates and a token; empty ones are not sent. The object's text never contains them.

    Attributes:
        ca_pem: authorities; empty: no TLS.
        cert_pem: own certificate.
        key_pem: its key.
        token: the caller's token.
        trusted_network: the token may be sent in plain text to other machines.
        only_for: the addresses that the token is sent to; empty: all.
        own_user: the token is sent only to processes of this user that listen on this machine, at `127.0.0.1:port`.
    """

    ca_pem: bytes = field(default=b"", repr=False)
    cert_pem: bytes = field(default=b"", repr=False)
    key_pem: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    trusted_network: bool = False
    only_for: frozenset[str] = frozenset()
    own_user: bool = False

    @classmethod
    def from_files(
        cls,
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
        token_file: str = "",
        *,
        token_key: str = TOKEN_ENV,
        trusted_network: bool = False,
    ) -> Credentials:
        """Reads the files; an empty path is none.

        Raises:
            InvalidInput: a file can't be read, or a certificate or key is missing. Names the environment key.
        """
        if bool(cert_file) != bool(key_file):
            missing = KEY_ENV if cert_file else CERT_ENV
            raise InvalidInput(f"{missing}: is not set; a certificate and its key belong together", field=missing)
        if cert_file and not ca_file:
            raise InvalidInput(
                f"{CA_ENV}: is not set; without it the client uses no TLS, and {CERT_ENV} has no effect", field=CA_ENV
            )
        return cls(
            ca_pem=_pem(ca_file, CA_ENV),
            cert_pem=_pem(cert_file, CERT_ENV),
            key_pem=_pem(key_file, KEY_ENV),
            token=read_token(token_file, token_key) if token_file else "",
            trusted_network=trusted_network,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials:
        """A client's, from the files that `ADLRO_TLS_*_FILE` and `ADLRO_TOKEN_FILE` name. Raises InvalidInput."""
        env = os.environ if environment is None else environment
        files = (env.get(key, "") for key in (CA_ENV, CERT_ENV, KEY_ENV, TOKEN_ENV))
        return cls.from_files(*files, trusted_network=bool(env.get(TRUSTED_ENV)))

    @classmethod
    def of_service(cls, settings: ServiceSettings) -> Credentials:
        """A service's credentials for calls to other services. Raises InvalidInput."""
        found = cls.from_files(
            settings.tls_ca_file,
            settings.tls_cert_file,
            settings.tls_key_file,
            settings.service_token_file,
            token_key=SERVICE_TOKEN_ENV,
            trusted_network=bool(settings.trusted_network),
        )
        return replace(found, own_user=settings.token_to_own_user)

    @property
    def user(self) -> str:
        """The user of the token; empty without one."""
        return user_of(self.token)

    def token_for(self, address: str) -> str:
        """The token to send to an address now; empty: none.

        Raises:
            Unavailable: the token is for processes of this user, and none listens there.
        """
        if not self.token or (self.only_for and address not in self.only_for):
            return ""
        if self.own_user:
            _check_own(address)
        return self.token

    def for_channel(self, address: str) -> grpc.ChannelCredentials | None:
        """Credentials of gRPC for TLS; None: plain text.

        Raises:
            InvalidInput: the token would be sent in plain text over an untrusted network.
        """
        if not self.ca_pem:
            if self.token and not self.trusted_network and not is_loopback(address):
                raise InvalidInput(
                    f"{CA_ENV}: is not set; without TLS the client does not send the token to {address} in plain text. "
                    f"Set it, or {TRUSTED_ENV} if you trust every machine on the way",
                    field=CA_ENV,
                )
            return None
        return grpc.ssl_channel_credentials(self.ca_pem, self.key_pem or None, self.cert_pem or None)


def _check_own(address: str) -> None:
    try:
        uid = listener_uid(address)
    except ValueError:
        uid = None
    if uid is None:
        raise Unavailable(
            f"no process of this user listens at {address}", reason="NO_ANSWER", metadata={"address": address}
        )
    if uid != os.geteuid():
        raise Unavailable(
            f"a process of another user (uid {uid}) listens at {address}, where one of this user should; the token was "
            "not sent to it",
            reason="NOT_OWN_USER",
            metadata={"address": address},
        )


def _pem(path: str, key: str) -> bytes:
    if not path:
        return b""
    try:
        found = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{key}: can't read {path}: {error.strerror}", field=key) from None
    if b"-----BEGIN " not in found:
        raise InvalidInput(f"{key}: {path} is no PEM file", field=key)
    return found
