"""Channels to services: TLS and token, keepalive, message limits, a quick return after a service was away.

Knows gRPC only.
"""

from __future__ import annotations

from typing import Any, cast

import grpc

from adlro.kit.addresses import is_loopback
from adlro.kit.credentials import Credentials

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# A connection on which nothing arrives any more is left after the sum of both: until then all calls on it are late. Our
# servers take a ping each 5 s.
KEEPALIVE_S = 10.0
KEEPALIVE_TIMEOUT_S = 10.0
# What replicas of decompose have learned differs by moments: asking one after the other would look like news each time.
_ONE_OF_SEVERAL = '{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}'


def channel_options(address: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, str | int]]:
    """Options for a client's channel to `host:port`."""
    options: list[tuple[str, str | int]] = [
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        # Where calls wait as well, this counts (gRPC's default: a minute).
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A quiet watcher sends nothing but pings.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # gRPC's own back-off grows to two minutes; a restarted service shall be found at once.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Of several replicas behind one name a channel takes one, at random, and keeps it until the connection breaks.
        ("grpc.service_config", _ONE_OF_SEVERAL),
        # A replica that was put in the place of another has another address (gRPC's default: it is not asked for 30 s).
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        # Else a new channel would inherit the back-off of an earlier one to the same address.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    if address.startswith(("ipv4:", "ipv6:")):
        # Else the name that certificates are checked for would be the whole list; replicas share the first one's.
        options.append(("grpc.default_authority", address[len("ipv4:") :].split(",", maxsplit=1)[0]))
    return options


def open_channel(
    address: str, credentials: Credentials | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """A channel for asyncio to `host:port`; it connects at the first call.

    Args:
        address: `host:port`.
        credentials: certificates and token; none: plain text, without a token.
        max_message_bytes: the largest message that is sent or received.

    Raises:
        InvalidInput: the token would be sent in plain text over an untrusted network.
    """
    options = channel_options(address, max_message_bytes)
    credentials = credentials or Credentials()
    tls = credentials.for_channel(address)
    channel = (
        grpc.aio.insecure_channel(address, options=options)
        if tls is None
        else grpc.aio.secure_channel(address, tls, options=options)
    )
    return cast(grpc.aio.Channel, _TokenChannel(channel, credentials, address)) if credentials.token else channel


def open_blocking_channel(
    address: str, credentials: Credentials | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.Channel:
    """A channel for threads to `host:port`; it connects at the first call. As `open_channel`."""
    options = channel_options(address, max_message_bytes)
    credentials = credentials or Credentials()
    tls = credentials.for_channel(address)
    channel = (
        grpc.insecure_channel(address, options=options)
        if tls is None
        else grpc.secure_channel(address, tls, options=options)
    )
    return cast(grpc.Channel, _TokenChannel(channel, credentials, address)) if credentials.token else channel


class _TokenChannel:
    """A channel whose calls carry a token.

    gRPC's own call credentials would start a thread for each call, and refuse to work without TLS; its interceptors
    make every call of asyncio a task.
    """

    def __init__(self, channel: Any, credentials: Credentials, address: str) -> None:
        self._channel = channel
        self._credentials = credentials
        self._address = address

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        """As of the channel."""
        return self._showing(self._channel.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        """As of the channel."""
        return self._showing(self._channel.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        """As of the channel."""
        return self._showing(self._channel.stream_unary(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        """As of the channel."""
        return self._showing(self._channel.stream_stream(*args, **options))

    def _showing(self, call: Any) -> Any:
        # No functools.partial: its text would hold the token.
        def with_token(*args: Any, **options: Any) -> Any:
            token = self._credentials.token_for(self._address)
            metadata = (("authorization", f"Bearer {token}"),) if token else None
            return call(*args, metadata=metadata, **options)

        return with_token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __enter__(self) -> Any:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._channel.__exit__(*error)

    async def __aenter__(self) -> Any:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._channel.__aexit__(*error)
