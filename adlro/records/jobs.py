"""Job records as plain data. Knows no gRPC and no Redis: `adlro.store` stores them, `adlro.wire` translates them.

Times named `*_s` are seconds of cluster time, `*_unix_s` seconds of wall time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.placement import NOWHERE, Placement


class JobType(enum.IntEnum):
    """The three kinds of work; numbers as in job.proto."""

    SIMULATION = 1
    MACHINE_LEARNING = 2
    DATA_PROCESSING = 3

    @property
    def label(self) -> str:
        """Lower-case name, as in tables and traces: `machine_learning`."""
        return self.name.lower()


class JobState(enum.IntEnum):
    """The state of a job; numbers as in job.proto."""

    PENDING = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def final(self) -> bool:
        """Whether the state never changes any more."""
        return self >= JobState.SUCCEEDED


class PendingReason(enum.IntEnum):
    """The reason why a pending job waits; numbers as in job.proto. NONE for jobs that are not pending."""

    NONE = 0
    SUBMITTED = 1
    BEGIN_TIME = 2
    RESOURCES = 3
    POLICY = 4
    LAUNCHING = 5
    NO_FITTING_GPU = 6
    CLUSTER_UNAVAILABLE = 7
    NODES_DRAINED = 8
    LAUNCH_REFUSED = 9


@dataclass(frozen=True, slots=True)
class ExpectedRuntime:
    """A user's estimate: `runtime_s` seconds on `gpu_model`."""

    gpu_model: str
    runtime_s: float


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The work on a simulated cluster: seconds on the reference GPU; it may fail after a share of it."""

    work_s: float
    fails_at_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A user's request, with all defaults."""

    name: str
    user: str
    job_type: JobType
    application: str = ""
    priority: float = 0.5
    cpu_cores: int = 1
    memory_mib: int = 4096
    gpu_memory_mib: int = 0
    gpu_count: int = 1
    expected_runtime: ExpectedRuntime | None = None
    time_limit_s: float | None = None
    begin_time_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    simulated_work: SimulatedWork | None = None


@dataclass(frozen=True, slots=True)
class NormalizedJob:
    """A job's fields normalised to 0..1 by ingest's table."""

    priority: float = 0.0
    cpu_cores: float = 0.0
    memory: float = 0.0
    gpu_memory: float = 0.0
    expected_runtime: float = 0.0


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt to run a job. `outcome` is empty while it runs; `excused`: a restart of the cluster lost it."""

    attempt: int
    placement: Placement
    gpu_model: str
    start_s: float | None = None
    end_s: float | None = None
    outcome: str = ""
    excused: bool = False

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its state; changed only by `dataclasses.replace`."""

    job_id: str
    spec: JobSpec
    state: JobState = JobState.PENDING
    pending_reason: PendingReason = PendingReason.SUBMITTED
    message: str = "recorded; the orchestrator has not taken it up yet"
    created_unix_s: float = 0.0
    submit_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    placement: Placement = NOWHERE
    gpu_model: str = ""
    attempts: tuple[JobAttempt, ...] = ()
    revision: int = 0
    cancel_requested: bool = False
    normalized: NormalizedJob = NormalizedJob()

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id

    @property
    def attempt_count(self) -> int:
        """Number of attempts so far."""
        return len(self.attempts)

    @property
    def jct_s(self) -> float | None:
        """Seconds from submission (or begin time) to end; None before the end, or if the job ended before that time."""
        if self.end_s is None or self.submit_s is None or self.end_s < self.submit_s:
            return None
        return self.end_s - self.submit_s
