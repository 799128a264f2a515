"""The error tree on the wire: AdlroError <-> google.rpc.Status with ErrorInfo, BadRequest and RetryInfo (AIP-193).

Knows gRPC and protobuf, so that no other module of a service needs them for errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from adlro.errors import (
    AdlroError,
    AlreadyExists,
    Conflict,
    DataLoss,
    DeadlineExceeded,
    FieldViolation,
    InternalError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Stale,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

T = TypeVar("T")

DOMAIN = "adlro"
DETAILS_KEY = "grpc-status-details-bin"

CODES: Final[dict[type[AdlroError], grpc.StatusCode]] = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    Stale: grpc.StatusCode.ABORTED,
    OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    DataLoss: grpc.StatusCode.DATA_LOSS,
    InternalError: grpc.StatusCode.INTERNAL,
}
_ERRORS: Final[dict[grpc.StatusCode, type[AdlroError]]] = {
    **{code: error for error, code in CODES.items()},
    # A stopping server, or a proxy, answers this in the service's place: the caller may retry.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNKNOWN: InternalError,
}

# A status is sent in HTTP/2 trailers, of which clients accept 8 KiB in all, message and details (base64) together.
_MESSAGE_BYTES = 1024
_DETAILS_BYTES = 3328
_DESCRIPTION_BYTES = 512
_METADATA_BYTES = 768
_METADATA_VALUE_BYTES = 256


def to_code(error: AdlroError) -> grpc.StatusCode:
    """The gRPC status code of an error."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.UNKNOWN


def to_status(error: AdlroError) -> status_pb2.Status:
    """The status of an error; cut if it would not fit into trailers."""
    message = _cut(error.message, _MESSAGE_BYTES)
    status = status_pb2.Status(code=to_code(error).value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=_cut(error.reason, 64), domain=DOMAIN)
    for key, value in error.metadata.items():
        if info.ByteSize() > _METADATA_BYTES:
            break
        info.metadata[_cut(str(key), 64)] = _cut(str(value), _METADATA_VALUE_BYTES)
    status.details.add().Pack(info)
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(max(error.retry_after_s, 0.0) * 1e9))
        status.details.add().Pack(retry)
    if error.violations:
        room = _DETAILS_BYTES - status.ByteSize()
        bad = error_details_pb2.BadRequest()
        for violation in error.violations:
            one = error_details_pb2.BadRequest.FieldViolation(
                field=_cut(violation.field, 256), description=_cut(violation.description, _DESCRIPTION_BYTES)
            )
            room -= one.ByteSize() + 4
            if room < 0 and bad.field_violations:
                break
            bad.field_violations.append(one)
        status.details.add().Pack(bad)
    return status


def to_trailing_metadata(status: status_pb2.Status) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata with a status' details, as clients expect it."""
    return ((DETAILS_KEY, status.SerializeToString()),)


def from_status(status: status_pb2.Status) -> AdlroError:
    """The error of a status."""
    code = next((each for each in grpc.StatusCode if each.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    reason, metadata, retry_after_s = "", {}, None
    violations: list[FieldViolation] = []
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            violations = [FieldViolation(each.field, each.description) for each in bad.field_violations]
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return _error(code, status.message, reason, violations, metadata, retry_after_s)


# Prefixes of gRPC's own INTERNAL and UNKNOWN after a broken connection, or one without HTTP/2. Those of services always
# have details.
_BROKEN = (
    "Internal error from Core",
    "Stream removed",
    "Failed parsing HTTP/2",
    "Error in HTTP transport",
    "Illegal header",
    "Received RST_STREAM",
    "Exception deserializing response!",
)


def from_rpc_error(error: grpc.RpcError) -> AdlroError:
    """The error of a failed call, of grpc.aio or of blocking gRPC, with its status's details."""
    # Both kinds of call have these methods; grpc.RpcError itself has none.
    trailing: Iterable[tuple[str, str | bytes]] = getattr(error, "trailing_metadata", lambda: None)() or ()
    for key, value in trailing:
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except DecodeError:
                break
            if status.code != code_pb2.OK:
                return from_status(status)
    code: grpc.StatusCode = getattr(error, "code", lambda: None)() or grpc.StatusCode.UNKNOWN
    details: str = getattr(error, "details", lambda: None)() or code.value[1]
    if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and details.startswith(_BROKEN):
        return Unavailable(f"the connection broke during the call ({details})", reason="CONNECTION_BROKEN")
    return _error(code, details, "", [], {}, None)


def readable(answer: T | None) -> T:
    """An answer, or a message of a stream: grpc.aio returns None for one that it can't read.

    Raises:
        Unavailable: the answer is None; the connection has lost bytes, or the service's release has other contracts.
    """
    if answer is None:
        raise Unavailable("the answer can't be read: part of it is missing", reason="CONNECTION_BROKEN")
    return answer


def _error(
    code: grpc.StatusCode,
    message: str,
    reason: str,
    violations: list[FieldViolation],
    metadata: dict[str, str],
    retry_after_s: float | None,
) -> AdlroError:
    kind = _ERRORS.get(code)
    if kind is None or code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.DATA_LOSS):
        reason = reason or code.name
    return (kind or AdlroError)(
        message, violations=violations, reason=reason, metadata=metadata, retry_after_s=retry_after_s
    )


def _cut(text: str, size_bytes: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= size_bytes:
        return data.decode()
    return data[: size_bytes - 3].decode("utf-8", "ignore") + "..."
