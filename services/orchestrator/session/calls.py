"""Launch and stop calls to the cluster, and the meaning of their errors for the attempt. Knows no jobs."""

from __future__ import annotations

from adlro.errors import (
    AdlroError,
    AlreadyExists,
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Stale,
    Unauthenticated,
    Unsupported,
)
from adlro.services.orchestrator.ports import REFUSED_PAIR, REFUSED_SHARES, REFUSED_STOPS, REFUSED_TOKEN, ClusterPort
from adlro.services.orchestrator.session.core.effects import Launch
from adlro.services.orchestrator.session.core.inputs import Accepted, CannotEnd, Refused, Unanswered

# After these errors the cluster has certainly not accepted a launch; after any other, also a bug, it may have.
REFUSALS = (
    AlreadyExists,
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unauthenticated,
    Unsupported,
)


async def launch(cluster: ClusterPort, order: Launch, token: int, incarnation: str) -> Accepted | Refused | Unanswered:
    """Makes one launch call.

    Raises:
        Stale: the lease is not the newest, or the cluster has another incarnation.
    """
    try:
        launched = await cluster.launch(
            order.job_id,
            order.attempt,
            order.spec,
            order.placement,
            token,
            incarnation,
            preempts=order.preempts,
            remaining_ratio=order.remaining_ratio,
            resumes=order.resumes,
        )
    except AdlroError as error:
        return answer_to_launch(error)
    return Accepted(*launched)


def answer_to_launch(error: AdlroError) -> Refused | Unanswered:
    """Translates an error of a launch call.

    Raises:
        Stale: the lease is not the newest, or the cluster has another incarnation.
    """
    if isinstance(error, Stale):
        raise error
    if not isinstance(error, REFUSALS):
        return Unanswered(error.message)
    if error.reason in REFUSED_TOKEN:
        raise Stale(str(error)) from error
    others = error.reason in REFUSED_STOPS or error.reason == REFUSED_PAIR
    final = isinstance(error, InvalidInput | Unsupported) and not others and error.reason != REFUSED_SHARES
    return Refused(error.message, final, error.retry_after_s or 0.0, others, error.reason or "")


async def stop(
    cluster: ClusterPort, job_id: str, attempt: int, token: int, incarnation: str
) -> bool | Unanswered | CannotEnd:
    """Makes one stop call; returns `StopAnswered.answer`.

    Raises:
        Stale: the lease is not the newest, or the cluster is not the one that was meant.
    """
    try:
        return await cluster.stop(job_id, attempt, token, incarnation)
    except AdlroError as error:
        return answer_to_stop(error)


def answer_to_stop(error: AdlroError) -> Unanswered | CannotEnd:
    """Converts an error of a stop call to an answer; after a fault of the cluster the call has no answer.

    Raises:
        Stale: the lease is not the newest, or the cluster is not the one that was meant.
    """
    if isinstance(error, Stale):
        raise error
    if error.reason in REFUSED_TOKEN:
        raise Stale(str(error)) from error
    return CannotEnd() if isinstance(error, Unsupported) else Unanswered(error.message)
