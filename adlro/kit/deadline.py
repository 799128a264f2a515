"""A deadline on every unary call: without one, a client waits for ever on a server that hangs."""

from __future__ import annotations

from typing import Any

import grpc

from adlro.errors import InvalidInput


def require_deadline(context: grpc.aio.ServicerContext[Any, Any], method: str) -> None:
    """Raises InvalidInput, with the way to set one, for a call without a deadline."""
    # None: the client set none. (grpc.aio turns the far future of the wire into None.)
    if context.time_remaining() is None:
        raise InvalidInput(
            f"{method.rpartition('/')[2]} needs a deadline; set one: timeout=10 in Python, "
            "grpcurl -max-time 10, buf curl --timeout 10s, or withDeadline / grpc-timeout in other clients",
            reason="DEADLINE_MISSING",
        )
