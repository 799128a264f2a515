"""Launches and stops as the cluster answers them: what an error means for the attempt. Knows no jobs."""

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
from adlro.services.orchestrator.ports import REFUSED_TOKEN, ClusterPort
from adlro.services.orchestrator.session.core.effects import Launch
from adlro.services.orchestrator.session.core.inputs import Accepted, CannotEnd, Refused, Unanswered

# Answers by which the cluster has surely not taken a launch; of all others, a bug among them, it may have.
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
    """Asks for a launch once.

    Raises:
        Stale: the lease is not the newest, or the cluster is not the one that was meant.
    """
    try:
        launched = await cluster.launch(order.job_id, order.attempt, order.spec, order.placement, token, incarnation)
    except AdlroError as error:
        return answer_to_launch(error)
    return Accepted(*launched)


def answer_to_launch(error: AdlroError) -> Refused | Unanswered:
    """What an error says of a launch.

    Raises:
        Stale: the lease is not the newest, or the cluster is not the one that was meant.
    """
    if isinstance(error, Stale):
        raise error
    if not isinstance(error, REFUSALS):
        return Unanswered(error.message)
    if error.reason in REFUSED_TOKEN:
        raise Stale(str(error)) from error
    return Refused(error.message, isinstance(error, InvalidInput | Unsupported), error.retry_after_s or 0.0)


async def stop(
    cluster: ClusterPort, job_id: str, attempt: int, token: int, incarnation: str
) -> bool | Unanswered | CannotEnd:
    """Asks once for an attempt's end; as `StopAnswered.answer`.

    Raises:
        Stale: the lease is not the newest, or the cluster is not the one that was meant.
    """
    try:
        return await cluster.stop(job_id, attempt, token, incarnation)
    except AdlroError as error:
        return answer_to_stop(error)


def answer_to_stop(error: AdlroError) -> Unanswered | CannotEnd:
    """What an error says of a stop; one by a fault of the cluster, or that only stands in the way now, says nothing.

    Raises:
        Stale: the lease is not the newest, or the cluster is not the one that was meant.
    """
    if isinstance(error, Stale):
        raise error
    if error.reason in REFUSED_TOKEN:
        raise Stale(str(error)) from error
    return CannotEnd() if isinstance(error, Unsupported) else Unanswered(error.message)
