"""What a cluster tells its orchestrator, as plain data: its clock, its events, what runs. Knows no gRPC.

Times named `*_s` are seconds of cluster time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster


class ClockMode(enum.IntEnum):
    """How cluster time passes; numbers as in cluster.proto."""

    REAL = 1
    SCALED = 2
    VIRTUAL = 3


@dataclass(frozen=True, slots=True)
class Clock:
    """A cluster's clock at one moment. `scale`: cluster seconds a second (in VIRTUAL the most; 0 = no limit)."""

    mode: ClockMode
    scale: float
    paused: bool
    time_s: float


class EventKind(enum.IntEnum):
    """What happened; numbers as in cluster_service.proto."""

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


class AttemptState(enum.IntEnum):
    """How far an attempt has come; numbers as in cluster_service.proto."""

    ACCEPTED = 1
    STARTED = 2
    RUNNING = 3
    ENDED = 4


# Events that change nothing of what could be started: a virtual clock does not wait for their acknowledgement.
NOT_BLOCKING = frozenset((EventKind.STARTED, EventKind.RUNNING, EventKind.CLOCK_SET))
# An attempt is over.
ENDS = frozenset((EventKind.FINISHED, EventKind.FAILED, EventKind.STOPPED, EventKind.LOST))


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One entry of a cluster's event log; fields that a kind does not use are empty.

    `placement`: where an attempt runs; of a GPU's event, that GPU.
    """

    revision: int
    kind: EventKind
    time_s: float
    job_id: str = ""
    attempt: int = 0
    placement: Placement = NOWHERE
    message: str = ""

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events of one moment, and the clock right after them."""

    incarnation: str
    events: tuple[ClusterEvent, ...]
    clock: Clock


@dataclass(frozen=True, slots=True)
class RunningJob:
    """An attempt that runs."""

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
    """What a cluster can do.

    Attributes:
        virtual_clock: its time is simulated, and can be set.
        gpu_availability: GPUs can be taken away and given back by a call.
        stop: what runs can be ended.
        logs: what a job writes can be read.
        gangs: a job may have several GPUs; `shares`: a part of one.
        containers: a job runs in a container of its own.
    """

    virtual_clock: bool = False
    gpu_availability: bool = False
    stop: bool = False
    logs: bool = False
    gangs: bool = False
    shares: bool = False
    containers: bool = False


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster at one moment.

    Attributes:
        revision: of its newest event; `oldest_revision`: of the oldest still kept.
        fencing_token: the newest that was used there, or is older than one that was given; 0: none.
        capabilities: None: a service of an older version does not say.
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
