"""Converts a handler's exception to the caller's error. Uses gRPC's exceptions; logs bugs."""

from __future__ import annotations

import uuid

import grpc

from adlro.errors import AdlroError, DeadlineExceeded, InternalError, Unavailable, Unsupported
from adlro.kit.log import get_logger
from adlro.kit.redis_errors import RETRY_AFTER_S, store_error
from adlro.kit.status import from_rpc_error


def to_adlro_error(error: Exception, method: str) -> AdlroError:
    """The client's error for a handler's exception.

    A bug becomes InternalError with an id, and its traceback goes to the log under that id: never to the client.

    Args:
        error: the handler's exception.
        method: full name of the gRPC method, for the log.
    """
    known = _expected(error)
    if known is None or (isinstance(known, InternalError) and "error_id" not in known.metadata):
        return _bug(error, method)
    return known


def _expected(error: Exception) -> AdlroError | None:
    if isinstance(error, AdlroError):
        return error
    if (of_store := store_error(error)) is not None:
        return of_store
    if isinstance(error, grpc.aio.AioRpcError):
        there = from_rpc_error(error)
        if isinstance(there, Unavailable | DeadlineExceeded):
            return Unavailable(
                f"a service behind this one does not answer: {there.message}",
                reason=there.reason,
                retry_after_s=there.retry_after_s or RETRY_AFTER_S,
            )
        return None
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("the deadline passed before the end of the call", retry_after_s=RETRY_AFTER_S)
    # The exception of a generated method that the service does not implement.
    if isinstance(error, NotImplementedError):
        return Unsupported("this server does not have the method")
    return None


def _bug(error: Exception, method: str) -> InternalError:
    error_id = uuid.uuid4().hex[:12]
    get_logger().error("internal error", error_id=error_id, method=method, exc_info=error)
    return InternalError(
        f"internal error {error_id}; the service's log has the details", metadata={"error_id": error_id}
    )
