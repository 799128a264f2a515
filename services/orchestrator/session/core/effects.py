"""The effects of a step of the core. Plain data.

The caller carries out the effects in the order of their fields, and answers the one request, if any, before it gives
the next event. So no attempt is launched before the script that records it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adlro.decide.policies.base import Policy
from adlro.placement import Placement
from adlro.records.jobs import AttemptRef, JobSpec
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.runtimes.refresh import Predict
from adlro.state.observation import Observation
from adlro.store import Cursor, Move

# ---- requests


@dataclass(frozen=True, slots=True)
class Write:
    """A script that the store runs as a whole or not at all. Answer: Written."""

    moves: Sequence[Move]
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class WakeUps:
    """Wake-up events at these cluster times; all past times give one event, at once. Answer: WokenAt."""

    times_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a policy's judgement; the observation must not change before the answer. Answer: Judged.

    Attributes:
        virtual: the cluster's clock waits for the decision.
    """

    policy: Policy
    observation: Observation
    virtual: bool


@dataclass(frozen=True, slots=True)
class StopNow:
    """Stops an attempt without a record before any job is placed. Answer: Stopped."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Newest:
    """How far the cluster's log goes now. Answer: LogEnds."""


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Whether these jobs and arrays have ended by the store, which has all moves up to now. Answer: EndsRead."""

    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class More:
    """More work follows; the caller may serve other tasks first. Answer: Continue."""


Request = Write | WakeUps | Ask | Predict | StopNow | Newest | ReadEnds | More
MORE = More()

# ---- effects without an answer, or with a later one


@dataclass(frozen=True, slots=True)
class LogLine:
    """A warning."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, for the log of decisions and the shadow policy; carried out before its observation changes.

    Attributes:
        made: the decision; None: the policy holds.
        observation: the judged observation.
        job_ids: ids of its rows.
        action: (row, GPUs), or (HOLD, ()).
        took_s: seconds that the policy took, with the observation.
    """

    made: Made | None
    observation: Observation
    job_ids: Callable[[], tuple[str, ...]]
    action: tuple[int, tuple[int, ...]]
    took_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches a recorded attempt in the background. Leads to LaunchAnswered.

    Attributes:
        preempts: attempts of other jobs that the cluster stops to make room: all of them, or none and no launch.
        remaining_ratio: the share of the job's work that is still to be done.
        resumes: an earlier attempt was preempted.
    """

    job_id: str
    attempt: int
    spec: JobSpec
    placement: Placement
    preempts: tuple[AttemptRef, ...] = ()
    remaining_ratio: float = 1.0
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stops an attempt in the background. Leads to StopAnswered with this number."""

    number: int
    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Reminder:
    """Requests the input Reminded after so many seconds of wall time."""

    after_s: float
    of: object


@dataclass(slots=True)
class Effects:
    """The effects of one step.

    Attributes:
        acknowledge: all events up to this revision are applied; None: no newer revision.
        request: None: the next input may be an event.
    """

    logs: list[LogLine] = field(default_factory=list)
    decided: Decided | None = None
    launches: list[Launch] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    reminders: list[Reminder] = field(default_factory=list)
    acknowledge: int | None = None
    request: Request | None = None
