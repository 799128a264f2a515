"""Channels to services: keepalive, message limits, and a quick return after a service was away. Knows gRPC only."""

from __future__ import annotations

import grpc

from adlro.kit.addresses import is_loopback

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
KEEPALIVE_S = 30.0
KEEPALIVE_TIMEOUT_S = 10.0


def channel_options(address: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, str | int]]:
    """Options for a client's channel to `host:port`."""
    options: list[tuple[str, str | int]] = [
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A quiet watcher sends nothing but pings.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # gRPC's own back-off grows to two minutes; a restarted service shall be found at once.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Else a new channel would inherit the back-off of an earlier one to the same address.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def open_channel(address: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.aio.Channel:
    """A channel for asyncio to `host:port`; it connects at the first call."""
    return grpc.aio.insecure_channel(address, options=channel_options(address, max_message_bytes))


def open_blocking_channel(address: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.Channel:
    """A channel for threads to `host:port`; it connects at the first call."""
    return grpc.insecure_channel(address, options=channel_options(address, max_message_bytes))
