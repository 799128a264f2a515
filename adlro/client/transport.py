"""What both clients share below the calls: channel options, errors, and when to try again. Knows gRPC."""

from __future__ import annotations

import random
import time

import grpc

from adlro.client.endpoints import ServiceName
from adlro.errors import AdlroError, DeadlineExceeded, Unavailable
from adlro.kit.status import from_rpc_error

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_PATIENCE_S = 10.0

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0

# The reason of Unavailable when nobody answered at all, in contrast to a service that says it can't serve now.
NO_ANSWER = "NO_ANSWER"
_STATUS_DETAILS_KEY = "grpc-status-details-bin"


def to_error(error: grpc.RpcError, service: ServiceName, address: str) -> AdlroError:
    """The error tree's error for a failed call; one that never reached a service says where it was sent."""
    known = from_rpc_error(error)
    if isinstance(known, Unavailable) and not _has_details(error):
        return Unavailable(
            f"nothing answers at {address} ({service})",
            reason=NO_ANSWER,
            metadata={"address": address, "service": str(service), "detail": known.message},
        )
    return known


def stream_ended(service: ServiceName, address: str) -> Unavailable:
    """The error of a stream that a service closed, as it does when it drains."""
    return Unavailable(f"the stream from {address} ({service}) ended", metadata={"address": address})


def _has_details(error: grpc.RpcError) -> bool:
    trailing = getattr(error, "trailing_metadata", lambda: None)()
    return any(key == _STATUS_DETAILS_KEY for key, _ in trailing or ())


class Attempts:
    """One call's tries: how long each may take, whether there is another, and how long to wait before it.

    Args:
        timeout_s: for each try.
        patience_s: for all tries together; the last error is raised when it is over.
        repeatable: also try again when an answer did not come in time.
    """

    def __init__(self, timeout_s: float, patience_s: float, *, repeatable: bool) -> None:
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._repeatable = repeatable
        self.reset()

    def reset(self) -> None:
        """Begins anew, after a success in a stream."""
        self._end_s = time.monotonic() + self._patience_s
        self._delay_s = _FIRST_DELAY_S

    def delay_after(self, error: AdlroError) -> float:
        """Seconds to wait before the next try; raises the error where there is none."""
        again = isinstance(error, Unavailable) or (self._repeatable and isinstance(error, DeadlineExceeded))
        # Jitter, so that many clients don't return at one moment.
        delay_s = max(self._delay_s * random.uniform(0.5, 1.0), min(error.retry_after_s or 0.0, _LONGEST_DELAY_S))
        if not again or not self._repeatable or time.monotonic() + delay_s > self._end_s:
            raise error
        self._delay_s = min(self._delay_s * 2, _LONGEST_DELAY_S)
        return delay_s

    @property
    def timeout_s(self) -> float:
        """Of the next try."""
        return self._timeout_s
