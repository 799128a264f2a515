"""The port of a service: opens it, with TLS or without, and limits each client. Uses gRPC."""

from __future__ import annotations

import grpc

from adlro.errors import InvalidInput
from adlro.kit.addresses import ListenFailed, check_listenable, is_loopback
from adlro.kit.log import get_logger
from adlro.kit.settings import ServiceSettings, environment_key
from adlro.kit.tls import TlsFiles, server_credentials

# A connection that has not spoken TLS and HTTP/2 by then is closed: it may be one of thousands that never will.
_HANDSHAKE_TIMEOUT_S = 10.0
# Of a message that nobody reads yet, so much is taken from the network. gRPC's probing of the line would let it grow to
# megabytes, for every call of every client.
_UNREAD_BYTES = 64 * 1024
# How long calls on a connection that has become too old may go on.
_AGE_GRACE_S = 60.0


def server_options(max_message_bytes: int) -> list[tuple[str, str | int]]:
    """Options of any server, for gRPC."""
    return [
        # Else two processes share a port silently, and each gets half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC's default allows a ping every five minutes; quiet watchers that ping more often would be sent away.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ]


def service_options(settings: ServiceSettings) -> list[tuple[str, str | int]]:
    """Options of a service's server, for gRPC: those of any server, and the limits of one client."""
    options = [
        *server_options(settings.max_message_bytes),
        ("grpc.server_handshake_timeout_ms", _ms(_HANDSHAKE_TIMEOUT_S)),
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
    ]
    if settings.max_connection_idle_s:
        options.append(("grpc.max_connection_idle_ms", _ms(settings.max_connection_idle_s)))
    if settings.max_connection_age_s:
        options.append(("grpc.max_connection_age_ms", _ms(settings.max_connection_age_s)))
        options.append(("grpc.max_connection_age_grace_ms", _ms(_AGE_GRACE_S)))
    return options


def open_port(server: grpc.aio.Server, settings: ServiceSettings) -> int:
    """Binds `settings.listen`, with TLS if the settings name certificates; returns the port.

    Raises:
        ListenFailed: it can't listen there; or must not, because any caller at that address could do all; or its
            certificates are not right.
    """
    key = environment_key(type(settings), "listen")
    check_protected(settings, key)
    check_listenable(settings.listen, "listen", key)
    tls = _server_credentials(settings)
    try:
        if tls is not None:
            return server.add_secure_port(settings.listen, tls)
        return server.add_insecure_port(settings.listen)
    except RuntimeError:
        # Taken between the check and now; the check says by whom, if it can.
        check_listenable(settings.listen, "listen", key)
        raise ListenFailed(f"listen: can't listen on {settings.listen}; set {key}") from None


def _server_credentials(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    if not settings.tls_cert_file:
        return None
    files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    try:
        return server_credentials(files, require_client_cert=settings.tls_require_client_cert)
    except InvalidInput as error:
        raise ListenFailed(error.message) from None


def tell_protection(settings: ServiceSettings) -> None:
    """Logs the reachable network, if callers are not authenticated."""
    lacks = _lacks(settings)
    if not lacks:
        return
    if is_loopback(settings.listen):
        get_logger().info("listening on loopback only, without TLS or tokens", without=lacks)
    else:
        get_logger().warning(
            "every machine on this network may call: TLS or tokens are missing",
            without=lacks,
            trusted_network=settings.trusted_network,
        )


def _lacks(settings: ServiceSettings) -> str:
    tls = bool(settings.tls_cert_file)
    asks = bool(settings.users_file) or settings.tls_require_client_cert
    if tls and asks:
        return ""
    return " and ".join(
        what
        for what, there in (
            ("TLS (ADLRO_TLS_CERT_FILE)", tls),
            ("tokens (ADLRO_USERS_FILE)", asks),
        )
        if not there
    )


def check_protected(settings: ServiceSettings, key: str) -> None:
    """Raises ListenFailed if any machine on a network could call."""
    lacks = _lacks(settings)
    if lacks and not is_loopback(settings.listen) and not settings.trusted_network:
        raise ListenFailed(
            f"listen: {settings.listen} is reachable from other machines, and lacks {lacks}; set up both, or listen on "
            f"127.0.0.1 ({key}), or, if you trust every machine that reaches that address, name their network in "
            "ADLRO_TRUSTED_NETWORK"
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
