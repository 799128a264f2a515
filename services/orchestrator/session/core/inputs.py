"""The inputs of a session's core. Plain data.

There are three kinds: events, which begin a course of steps (one at a time); answers to a request of the core
(`effects.Request`); and notices, which may come at any time, also before an answer. `adlro.records.events.EventBatch`
is an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adlro.decide.policies.base import Judgement, Policy
from adlro.records.decisions import DecisionBasis
from adlro.records.events import AttemptState, EventBatch
from adlro.records.job_requests import JobRequest
from adlro.records.jobs import Job
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.runtimes.predictions import Expected, Standing
from adlro.services.orchestrator.runtimes.refresh import RuntimesPredicted
from adlro.store import JobEnd

# ---- events


@dataclass(frozen=True, slots=True)
class Begun:
    """The session begins: the first input."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """New jobs.

    Attributes:
        jobs: (record, version, expected).
        predictor: the state of the runtime predictor after these jobs.
    """

    jobs: Sequence[tuple[Job, int, Expected]]
    predictor: Standing


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user has requested a job's cancellation."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Requested:
    """A change of a job was asked for.

    Attributes:
        requests: in order; those that are applied already are left out by their numbers.
    """

    job_id: str
    requests: Sequence[JobRequest]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The cluster has accepted a launch.

    Attributes:
        revision: of the attempt's start event; 0: the event is still to come.
        state: the attempt's state at the answer; None: the cluster does not report it.
    """

    revision: int
    state: AttemptState | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The cluster has certainly not accepted this launch call.

    Attributes:
        why: the reason, for people.
        final: the job itself is the reason, so the cluster would refuse another attempt as well.
        retry_after_s: seconds of cluster time before which another attempt is pointless.
        others: other jobs are the reason: those that were to be stopped (or that the cluster stops none), or the one on
            the GPU.
        reason: the cluster's, for code.
    """

    why: str
    final: bool = False
    retry_after_s: float = 0.0
    others: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The cluster's answer does not show whether it accepted a launch, or whether it stops an attempt."""

    why: str


@dataclass(frozen=True, slots=True)
class CannotEnd:
    """The cluster can't stop running attempts: they end by themselves."""


@dataclass(frozen=True, slots=True)
class LaunchAnswered:
    """The answer to one launch call."""

    job_id: str
    attempt: int
    answer: Accepted | Refused | Unanswered


@dataclass(frozen=True, slots=True)
class StopAnswered:
    """The answer to one stop call.

    Attributes:
        number: the number of `effects.Stop`.
        answer: True: the attempt was open, and its end event is to come; False: it is not open, or its stop was
            requested before.
    """

    number: int
    answer: bool | Unanswered | CannotEnd


@dataclass(frozen=True, slots=True)
class Reminded:
    """The time of a reminder has come.

    Attributes:
        of: the subject of `effects.Reminder`.
    """

    of: object


@dataclass(frozen=True, slots=True)
class Quiet:
    """No event waits: the core may write its pending changes."""


Event = Begun | EventBatch | Arrived | CancelRequested | Requested | LaunchAnswered | StopAnswered | Reminded | Quiet

# ---- answers


@dataclass(frozen=True, slots=True)
class Written:
    """The store has run the script."""


@dataclass(frozen=True, slots=True)
class WokenAt:
    """The cluster has recorded the wake-ups, at this cluster time."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy's judgement of the observation, and the seconds that it took, with the observation."""

    judgement: Judgement
    took_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The cluster has received the stop."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The newest revision of the cluster's event log."""

    revision: int


@dataclass(frozen=True, slots=True)
class EndsRead:
    """By id of a job or an array, whether it has ended; those that the store does not have are not in it."""

    ends: Mapping[str, JobEnd]


@dataclass(frozen=True, slots=True)
class Continue:
    """The other tasks had their turn."""


Answer = Written | WokenAt | Judged | RuntimesPredicted | Stopped | LogEnds | EndsRead | Continue

# ---- notices, at any time


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy, or another version, is selected; `basis`: the basis of its last decision."""

    policy: Policy
    basis: DecisionBasis


@dataclass(frozen=True, slots=True)
class Drained:
    """The complete set of drained nodes, with the reasons."""

    nodes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SpeedsChanged:
    """By GPU id, the speed relative to its model of each GPU that was found slower than its model."""

    speed_of: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PairsChanged:
    """What jobs that share a GPU are expected to keep of their speeds from now on."""

    pairs: PairTable


@dataclass(frozen=True, slots=True)
class UserRulesChanged:
    """Quotas, shares and groups of users, from now on."""

    rules: UserRules


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Requests a new round of decisions, for a reason other than an event of the cluster."""


AnyTime = PolicyChanged | Drained | SpeedsChanged | PairsChanged | UserRulesChanged | AskAgain
ANSWERS = (Written, WokenAt, Judged, RuntimesPredicted, Stopped, LogEnds, EndsRead, Continue)
ANY_TIME = (PolicyChanged, Drained, SpeedsChanged, PairsChanged, UserRulesChanged, AskAgain)
Input = Event | Answer | AnyTime
