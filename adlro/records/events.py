"""A cluster's reports to its orchestrator as plain data: its clock, events and running attempts. Knows no gRPC.

Times named `*_s` are seconds of cluster time.
"""

from __future__ import annotations

from dataclasses import dataclass

from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster
from adlro.records.named import NamedEnum
from adlro.records.payloads import ExitStatus


class ClockMode(NamedEnum):
    """How cluster time passes; numbers as in cluster.proto."""

    REAL = 1
    SCALED = 2
    VIRTUAL = 3


@dataclass(frozen=True, slots=True)
class Clock:
    """A cluster's clock at one moment. `scale`: cluster seconds per second (in VIRTUAL at most; 0 = no limit)."""

    mode: ClockMode
    scale: float
    paused: bool
    time_s: float


class EventKind(NamedEnum):
    """The kind of an event; numbers as in cluster_service.proto."""

    STARTED = 1
    FINISHED = 2
    FAILED = 3
    STOPPED = 4
    LOST = 5
    WAKE_UP = 6
    GPU_LOST = 7
    GPU_BACK = 8
    CLOCK_SET = 9
    RUNNING = 10
    CLUSTER_CHANGED = 11
    PREEMPTED = 12


class AttemptState(NamedEnum):
    """The state of an attempt; numbers as in cluster_service.proto."""

    ACCEPTED = 1
    STARTED = 2
    RUNNING = 3
    ENDED = 4


# Events without effect on possible starts: a virtual clock does not wait for their acknowledgement.
NOT_BLOCKING = frozenset((EventKind.STARTED, EventKind.RUNNING, EventKind.CLOCK_SET))
# Events that end an attempt.
ENDS = frozenset((EventKind.FINISHED, EventKind.FAILED, EventKind.STOPPED, EventKind.LOST, EventKind.PREEMPTED))


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One entry of a cluster's event log; fields that a kind does not use are empty.

    `placement`: where an attempt runs; in a GPU's event, that GPU. `exit`: of an attempt that ended on a real cluster.
    `remaining_ratio`: of a preempted attempt, the share of the job's work still to be done; None: not known.
    """

    revision: int
    kind: EventKind
    time_s: float
    job_id: str = ""
    attempt: int = 0
    placement: Placement = NOWHERE
    message: str = ""
    exit: ExitStatus | None = None
    remaining_ratio: float | None = None

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events of one moment, and the clock right after them.

    `newest_revision`: of the newest event that the cluster could send then; 0: it does not tell.
    """

    incarnation: str
    events: tuple[ClusterEvent, ...]
    clock: Clock
    newest_revision: int = 0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running attempt."""

    job_id: str
    attempt: int
    placement: Placement
    start_s: float

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The functions that a cluster offers.

    Attributes:
        virtual_clock: its time is simulated, and a call can set it.
        gpu_availability: a call can remove and restore GPUs.
        stop: a call can stop running attempts.
        logs: a call can read the output of jobs.
        gangs: a job may have several GPUs, which start, end and are lost together; `shares`: a part of one.
        containers: a job runs in a container of its own.
        preemption: a launch stops other attempts to make room, and a stop may preempt.
    """

    virtual_clock: bool = False
    gpu_availability: bool = False
    stop: bool = False
    logs: bool = False
    gangs: bool = False
    shares: bool = False
    containers: bool = False
    preemption: bool = False


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """The reason why a GPU is lost, for people."""

    gpu_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster at one moment.

    Attributes:
        revision: revision of its newest event; `oldest_revision`: of the oldest stored one.
        fencing_token: the newest token that was used there, or is older than an issued one; 0: none.
        capabilities: None: a service of an older version does not report them.
        gpu_conditions: of lost GPUs, where the cluster knows them.
    """

    cluster: Cluster
    running: tuple[RunningJob, ...]
    lost_gpu_ids: tuple[str, ...]
    clock: Clock
    incarnation: str
    revision: int
    oldest_revision: int
    fencing_token: int = 0
    capabilities: Capabilities | None = None
    gpu_conditions: tuple[GpuCondition, ...] = ()
