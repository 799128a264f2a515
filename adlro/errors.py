"""The one error tree: what services raise, what goes over the wire as a status, what `adlro.client` raises.

    AdlroError
    ├── InvalidInput       INVALID_ARGUMENT      the request is invalid; `field` names the field
    ├── Unauthenticated    UNAUTHENTICATED       no token, or an unknown one
    ├── PermissionDenied   PERMISSION_DENIED     the caller's role does not allow it
    ├── NotFound           NOT_FOUND
    ├── AlreadyExists      ALREADY_EXISTS        a request_id was reused with another payload
    ├── Conflict           FAILED_PRECONDITION   valid, but not in the present state
    ├── Stale              ABORTED               the caller's state is outdated: read again, then retry
    ├── OutOfRange         OUT_OF_RANGE          a revision that is no longer stored
    ├── LimitExceeded      RESOURCE_EXHAUSTED    retry after `retry_after_s`
    ├── Unavailable        UNAVAILABLE           a dependency does not answer; a retry is safe
    ├── DeadlineExceeded   DEADLINE_EXCEEDED
    ├── Unsupported        UNIMPLEMENTED
    ├── DataLoss           DATA_LOSS             stored data can't be read any more
    └── InternalError      INTERNAL              a bug; `error_id` finds it in the service's log

Independent of gRPC; `adlro.kit.status` converts in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that breaks a rule: its path (`job.priority`), the problem and the allowed values."""

    field: str
    description: str


class AdlroError(Exception):
    """Root of all errors that ADLRO raises on purpose.

    Args:
        message: the problem, its place and the remedy, in one or two sentences.
        field: path of the offending field, such as `job.priority`; empty if none.
        violations: all offending fields; default: made from `field` and `message`.
        reason: constant for programs, such as `GPU_BUSY` (google.rpc.ErrorInfo.reason).
        metadata: facts for programs (google.rpc.ErrorInfo.metadata).
        retry_after_s: seconds until a retry can succeed (google.rpc.RetryInfo).

    Attributes:
        rpc: of an error of a call: gRPC's own error, for those who look for its status; otherwise None. Tracebacks do
            not show it, and copies in other processes do not have it.
    """

    default_reason = "UNKNOWN"
    rpc: BaseException | None = None

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        violations: Sequence[FieldViolation] = (),
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field or (violations[0].field if violations else "")
        self.violations = tuple(violations) or ((FieldViolation(field, message),) if field else ())
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    def __getstate__(self) -> dict[str, object]:
        # An open call is nothing that can be pickled.
        return {name: value for name, value in self.__dict__.items() if name != "rpc"}

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, self.__getstate__())


class InvalidInput(AdlroError):
    """The request is invalid; a retry will not help."""

    default_reason = "INVALID_INPUT"


class Unauthenticated(AdlroError):
    """The caller has no valid token."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(AdlroError):
    """The caller's role does not allow the call."""

    default_reason = "PERMISSION_DENIED"


class NotFound(AdlroError):
    """The named object does not exist."""

    default_reason = "NOT_FOUND"


class AlreadyExists(AdlroError):
    """Another object has the name or request id."""

    default_reason = "ALREADY_EXISTS"


class Conflict(AdlroError):
    """The request is valid, but not in the present state."""

    default_reason = "CONFLICT"


class Stale(AdlroError):
    """The caller's state is outdated: read it again, then retry."""

    default_reason = "STALE"


class OutOfRange(AdlroError):
    """A position that is no longer, or not yet, stored."""

    default_reason = "OUT_OF_RANGE"


class LimitExceeded(AdlroError):
    """A limit on size, rate or number was reached."""

    default_reason = "LIMIT_EXCEEDED"


class Unavailable(AdlroError):
    """A dependency does not answer; a retry is safe."""

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(AdlroError):
    """The answer did not come within the caller's deadline."""

    default_reason = "DEADLINE_EXCEEDED"


class Unsupported(AdlroError):
    """This server does not have the method."""

    default_reason = "UNSUPPORTED"


class DataLoss(AdlroError):
    """Stored data can't be read any more; a retry will not help."""

    default_reason = "DATA_LOSS"


class InternalError(AdlroError):
    """A bug in a service; `metadata["error_id"]` finds it in the service's log."""

    default_reason = "INTERNAL"


def with_extra(name: str) -> str:
    """How to install an optional part: `install it <this>`.

    Never by ADLRO's name alone: no package index has it, so that anybody could register the name there.
    """
    return f"with `pip install '.[{name}]'` in a checkout of ADLRO, or `pip install 'PATH/OF/ADLRO.whl[{name}]'`"
