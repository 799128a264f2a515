"""What is to be done after a step of the core. Plain data.

The effects are carried out in the order of their fields; then the one request, if there is one, is answered before
anything else begins. So nothing is launched before the script that says so was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adlro.decide.policies.base import Policy
from adlro.placement import Placement
from adlro.records.jobs import JobSpec
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.runtimes.refresh import Predict
from adlro.state.observation import Observation
from adlro.store import Cursor, Move

# ---- requests


@dataclass(frozen=True, slots=True)
class Write:
    """One script: all of it, or nothing. Answer: Written."""

    moves: Sequence[Move]
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class WakeUps:
    """Events at these cluster times; one for all that have passed, at once. Answer: WokenAt."""

    times_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Ask:
    """A policy's judgement; the observation changes when it is there, and not before. Answer: Judged.

    Attributes:
        virtual: the cluster's clock waits for the decision.
    """

    policy: Policy
    observation: Observation
    virtual: bool


@dataclass(frozen=True, slots=True)
class StopNow:
    """An attempt without a record is to be ended before anything is placed. Answer: Stopped."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Newest:
    """How far the cluster's log goes now. Answer: LogEnds."""


@dataclass(frozen=True, slots=True)
class More:
    """There is more to do; whoever drives may serve others first. Answer: Continue."""


Request = Write | WakeUps | Ask | Predict | StopNow | Newest | More
MORE = More()

# ---- what has no answer, or one that comes when it comes


@dataclass(frozen=True, slots=True)
class LogLine:
    """A warning."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, for the log of decisions and the policy in the shadow; comes before its observation changes.

    Attributes:
        made: None: the policy holds.
        observation: that was judged.
        job_ids: of its rows.
        action: row and GPU, or (HOLD, HOLD).
        took_s: what the policy took for it, with the observation.
    """

    made: Made | None
    observation: Observation
    job_ids: Callable[[], tuple[str, ...]]
    action: tuple[int, int]
    took_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt is to be launched, in the background; it is written down. Leads to LaunchAnswered."""

    job_id: str
    attempt: int
    spec: JobSpec
    placement: Placement


@dataclass(frozen=True, slots=True)
class Stop:
    """An attempt is to be ended, in the background. Leads to StopAnswered with its number."""

    number: int
    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Reminder:
    """The core wants to be reminded after so many seconds of wall time. Leads to Reminded."""

    after_s: float
    of: object


@dataclass(slots=True)
class Effects:
    """Of one step.

    Attributes:
        acknowledge: all events up to this revision are dealt with; None: nothing new.
        request: None: the next input may begin something.
    """

    logs: list[LogLine] = field(default_factory=list)
    decided: Decided | None = None
    launches: list[Launch] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    reminders: list[Reminder] = field(default_factory=list)
    acknowledge: int | None = None
    request: Request | None = None
