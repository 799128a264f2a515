"""What the core of a session is told. Plain data.

Three kinds: what begins something (one at a time), the answer to a request of the core (`effects.Request`), and what
may come at any time, also while an answer is still to come. `adlro.records.events.EventBatch` is of the first kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adlro.decide.policies.base import Judgement, Policy
from adlro.records.decisions import DecisionBasis
from adlro.records.events import AttemptState, EventBatch
from adlro.records.jobs import Job
from adlro.services.orchestrator.runtimes.predictions import Expected, Standing
from adlro.services.orchestrator.runtimes.refresh import RuntimesPredicted

# ---- what begins something


@dataclass(frozen=True, slots=True)
class Begun:
    """The session begins: the first input."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """New jobs.

    Attributes:
        jobs: (record, version, expected).
        predictor: how the predictor stood after that.
    """

    jobs: Sequence[tuple[Job, int, Expected]]
    predictor: Standing


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user wants a job's end."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The cluster has taken a launch.

    Attributes:
        revision: of its start; 0: that is to come.
        state: how far it had come then; None: the cluster does not say.
    """

    revision: int
    state: AttemptState | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The cluster has surely not taken a launch, at this try.

    Attributes:
        why: for people.
        final: the job itself is why, so another attempt would be refused as well.
        retry_after_s: seconds of cluster time before which another attempt makes no sense.
    """

    why: str
    final: bool = False
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The cluster has not said whether it took a launch, or whether it ends an attempt."""

    why: str


@dataclass(frozen=True, slots=True)
class CannotEnd:
    """The cluster can't end what runs: it ends by itself."""


@dataclass(frozen=True, slots=True)
class LaunchAnswered:
    """Of one try to launch an attempt."""

    job_id: str
    attempt: int
    answer: Accepted | Refused | Unanswered


@dataclass(frozen=True, slots=True)
class StopAnswered:
    """Of one try to end an attempt.

    Attributes:
        number: of `effects.Stop`.
        answer: True: the attempt was open, and the event of its end is to come; False: it is not open, or somebody
            has had it ended before.
    """

    number: int
    answer: bool | Unanswered | CannotEnd


@dataclass(frozen=True, slots=True)
class Reminded:
    """The time of a reminder has come.

    Attributes:
        of: what `effects.Reminder` was for.
    """

    of: object


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing else waits: what is not written yet has its time."""


Event = Begun | EventBatch | Arrived | CancelRequested | LaunchAnswered | StopAnswered | Reminded | Quiet

# ---- answers


@dataclass(frozen=True, slots=True)
class Written:
    """The store has what was to be written."""


@dataclass(frozen=True, slots=True)
class WokenAt:
    """The cluster has noted the wake-ups, at this cluster time."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy's judgement of the observation, which took so long with the observation itself."""

    judgement: Judgement
    took_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The cluster has heard what is to be ended now."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """All that the cluster has told so far has revisions up to this one."""

    revision: int


@dataclass(frozen=True, slots=True)
class Continue:
    """Others had their turn."""


Answer = Written | WokenAt | Judged | RuntimesPredicted | Stopped | LogEnds | Continue

# ---- at any time


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy decides, or another version of it; `basis`: what its last decision rests on."""

    policy: Policy
    basis: DecisionBasis


@dataclass(frozen=True, slots=True)
class Drained:
    """Exactly these nodes are drained, with the reason."""

    nodes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SpeedsChanged:
    """By id, the speed relative to its model of each GPU that was found slower than its kind."""

    speed_of: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """A new round of decisions is wanted, for another reason than an event of the cluster."""


AnyTime = PolicyChanged | Drained | SpeedsChanged | AskAgain
ANSWERS = (Written, WokenAt, Judged, RuntimesPredicted, Stopped, LogEnds, Continue)
ANY_TIME = (PolicyChanged, Drained, SpeedsChanged, AskAgain)
Input = Event | Answer | AnyTime
