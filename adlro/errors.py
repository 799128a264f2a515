"""The one error tree: what services raise, what goes over the wire as a status, what `adlro.client` raises.

    AdlroError
    ├── InvalidInput       INVALID_ARGUMENT      the caller sent something wrong; `field` says where
    ├── Unauthenticated    UNAUTHENTICATED       no token, or one that nobody has
    ├── PermissionDenied   PERMISSION_DENIED     the caller's role does not allow it
    ├── NotFound           NOT_FOUND
    ├── AlreadyExists      ALREADY_EXISTS        a request_id was reused with another payload
    ├── Conflict           FAILED_PRECONDITION   right in itself, but not in the present state
    ├── Stale              ABORTED               the caller's view is old: read anew, then try again
    ├── OutOfRange         OUT_OF_RANGE          a revision that is no longer kept
    ├── LimitExceeded      RESOURCE_EXHAUSTED    try again after `retry_after_s`
    ├── Unavailable        UNAVAILABLE           a dependency does not answer; safe to try again
    ├── DeadlineExceeded   DEADLINE_EXCEEDED
    ├── Unsupported        UNIMPLEMENTED
    ├── DataLoss           DATA_LOSS             what was kept can't be read any more
    └── InternalError      INTERNAL              a bug; `error_id` finds it in the service's log

Knows nothing of gRPC; `adlro.kit.status` maps both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that breaks a rule: its path (`job.priority`) and what is wrong and allowed."""

    field: str
    description: str


class AdlroError(Exception):
    """Root of all errors that ADLRO raises on purpose.

    Args:
        message: what is wrong, where, and the way out, in one or two sentences.
        field: path of the offending field, such as `job.priority`; empty where none is.
        violations: all offending fields; made from `field` and `message` where left out.
        reason: constant for programs, such as `GPU_BUSY` (google.rpc.ErrorInfo.reason).
        metadata: facts for programs (google.rpc.ErrorInfo.metadata).
        retry_after_s: when trying again makes sense (google.rpc.RetryInfo).
    """

    default_reason = "UNKNOWN"

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


class InvalidInput(AdlroError):
    """The caller sent something wrong; sending it again will not help."""

    default_reason = "INVALID_INPUT"


class Unauthenticated(AdlroError):
    """The caller did not show who he is."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(AdlroError):
    """The caller is known, and may not do this."""

    default_reason = "PERMISSION_DENIED"


class NotFound(AdlroError):
    """What the caller named does not exist."""

    default_reason = "NOT_FOUND"


class AlreadyExists(AdlroError):
    """The name or request id is taken by something else."""

    default_reason = "ALREADY_EXISTS"


class Conflict(AdlroError):
    """The request is right in itself, but not in the present state."""

    default_reason = "CONFLICT"


class Stale(AdlroError):
    """The caller's view is old: read the state anew, then try again."""

    default_reason = "STALE"


class OutOfRange(AdlroError):
    """A position that is no longer, or not yet, kept."""

    default_reason = "OUT_OF_RANGE"


class LimitExceeded(AdlroError):
    """A limit on size, rate or number was reached."""

    default_reason = "LIMIT_EXCEEDED"


class Unavailable(AdlroError):
    """A dependency does not answer; trying again is safe."""

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(AdlroError):
    """The answer did not come within the caller's deadline."""

    default_reason = "DEADLINE_EXCEEDED"


class Unsupported(AdlroError):
    """This server does not offer the call."""

    default_reason = "UNSUPPORTED"


class DataLoss(AdlroError):
    """What was kept can't be read any more; trying again will not help."""

    default_reason = "DATA_LOSS"


class InternalError(AdlroError):
    """A bug in a service; `metadata["error_id"]` finds it in the service's log."""

    default_reason = "INTERNAL"


def with_extra(name: str) -> str:
    """How to install an optional part: `install it <this>`.

    Never by ADLRO's name alone: it is on no package index, so that anybody could register it there.
    """
    return f"with `pip install '.[{name}]'` in a checkout of ADLRO, or `pip install 'PATH/OF/ADLRO.whl[{name}]'`"
