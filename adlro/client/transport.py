"""Common code of both clients below the calls: channel options, errors, and the rules of repetition. Uses gRPC."""

from __future__ import annotations

import random
import time

import grpc

from adlro.client.endpoints import ServiceName
from adlro.errors import AdlroError, DeadlineExceeded, Unavailable
from adlro.kit.status import from_rpc_error
from adlro.records.status import OrchestratorStatus

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_PATIENCE_S = 10.0

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0
# A stream of at least this age was healthy before it failed.
_LIVED_S = 5.0

# The reason of Unavailable without any answer, in contrast to a service that reports that it can't serve now.
NO_ANSWER = "NO_ANSWER"
# The reason of Unavailable from a standby orchestrator; a new connection may reach the acting one.
STANDING_BY = "STANDING_BY"
# Number of connections that a status call tries to reach the acting orchestrator.
STATUS_TRIES = 4
# Reasons of LimitExceeded that pass by themselves: for a moment a service has no memory for one more request, or it
# gave up a stream whose messages were not read in time.
_PASSING = frozenset({"TOO_MANY_REQUESTS", "TOO_SLOW", "STREAM_NOT_READ"})
# The reason of Unavailable when a service is there, and the two can't agree on TLS.
TLS_FAILED = "TLS_FAILED"
_STATUS_DETAILS_KEY = "grpc-status-details-bin"
# gRPC's text of the failure, and our message, with {} for the service.
_TLS_PROBLEMS = (
    ("certificate has expired", "the certificate of {} has expired; renew it"),
    ("Hostname Verification", "the certificate of {} is not for that name; use one of its names"),
    ("CERTIFICATE_VERIFY_FAILED", "the certificate of {} is not signed by an authority of ADLRO_TLS_CA_FILE"),
    ("WRONG_VERSION_NUMBER", "{} does not speak TLS; unset ADLRO_TLS_CA_FILE, or give it a certificate"),
    ("handshake failed", "TLS with {} failed"),
    (
        "Socket closed",
        "{} ends each connection at once: it may speak TLS (set ADLRO_TLS_CA_FILE) or ask for a certificate "
        "(ADLRO_TLS_CERT_FILE)",
    ),
)


def to_error(error: grpc.RpcError, service: ServiceName, address: str) -> AdlroError:
    """The AdlroError of a failed call; if the call reached no service, the message has the address.

    It has gRPC's error as `rpc`. Raise it outside of the `except` clause: otherwise gRPC's traceback stands before it.
    """
    known = _to_error(error, service, address)
    known.rpc = error
    return known


def _to_error(error: grpc.RpcError, service: ServiceName, address: str) -> AdlroError:
    known = from_rpc_error(error)
    if isinstance(known, Unavailable) and not _has_details(error):
        problem = _tls_problem(known.message)
        return Unavailable(
            problem.format(f"{address} ({service})") or f"no service answers at {address} ({service})",
            reason=TLS_FAILED if problem else NO_ANSWER,
            metadata={"address": address, "service": str(service), "detail": known.message},
        )
    return known


def _tls_problem(detail: str) -> str:
    """The TLS problem that prevented a connection; empty if there is none."""
    if not detail.startswith("failed to connect"):
        return ""
    return next((problem for sign, problem in _TLS_PROBLEMS if sign in detail), "")


def stream_ended(service: ServiceName, address: str) -> Unavailable:
    """The error of a stream that a service closed, as during a drain."""
    return Unavailable(f"the stream from {address} ({service}) ended", metadata={"address": address})


def _has_details(error: grpc.RpcError) -> bool:
    trailing = getattr(error, "trailing_metadata", lambda: None)()
    return any(key == _STATUS_DETAILS_KEY for key, _ in trailing or ())


def stands_by(status: OrchestratorStatus) -> bool:
    """Whether the orchestrator stands by for another, existing one."""
    return not status.acting and status.lease_holder not in ("", status.instance_id)


class Tries:
    """One call's tries: the timeout of each, whether another one follows, and the wait before it.

    Args:
        timeout_s: for each try.
        patience_s: for all tries together; after it the last error is raised.
        repeatable: a second try changes nothing more; otherwise there is only one try.
        stream: a try is an open stream, which may last long.
    """

    def __init__(self, timeout_s: float, patience_s: float, *, repeatable: bool = True, stream: bool = False) -> None:
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._repeatable = repeatable
        self._stream = stream
        self.reset()

    def reset(self) -> None:
        """Resets the tries after a success in a stream."""
        self._try_began_s = time.monotonic()
        self._end_s = self._try_began_s + self._patience_s
        self._delay_s = _FIRST_DELAY_S

    def delay_after(self, error: AdlroError) -> float:
        """Seconds to wait before the next try; raises the error if none follows."""
        now_s = time.monotonic()
        # A quiet stream may have been healthy for days: only a failure soon after its start counts.
        if self._stream and now_s - self._try_began_s > _LIVED_S:
            self.reset()
        again = self._repeatable and (isinstance(error, Unavailable | DeadlineExceeded) or error.reason in _PASSING)
        # Jitter, so that many clients don't retry at the same moment.
        delay_s = max(self._delay_s * random.uniform(0.5, 1.0), min(error.retry_after_s or 0.0, _LONGEST_DELAY_S))
        if not again or now_s + delay_s > self._end_s:
            raise error
        self._delay_s = min(self._delay_s * 2, _LONGEST_DELAY_S)
        self._try_began_s = now_s + delay_s
        return delay_s

    @property
    def timeout_s(self) -> float:
        """Of the next try."""
        return self._timeout_s
