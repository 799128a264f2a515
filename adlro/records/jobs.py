"""Job records as plain data. Knows no gRPC and no Redis: `adlro.store` stores them, `adlro.wire` translates them.

Times named `*_s` are seconds of cluster time, `*_unix_s` seconds of wall time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.placement import NOWHERE, Placement
from adlro.records.outcomes import NeighbourTime
from adlro.records.payloads import ExitStatus, Payload


class JobType(enum.IntEnum):
    """The kind of a job's work; numbers as in job.proto. UNSPECIFIED: its user did not state it."""

    UNSPECIFIED = 0
    SIMULATION = 1
    MACHINE_LEARNING = 2
    DATA_PROCESSING = 3

    @property
    def label(self) -> str:
        """Lower-case name, as in tables and traces: `machine_learning`."""
        return self.name.lower()


KINDS_OF_WORK = (JobType.SIMULATION, JobType.MACHINE_LEARNING, JobType.DATA_PROCESSING)
"""The three stated job types."""


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
    GANG_NODES = 10
    RESERVED = 11
    NO_FITTING_NODES = 12


@dataclass(frozen=True, slots=True)
class ExpectedRuntime:
    """A user's estimate: `runtime_s` seconds on `gpu_model`, with all GPUs of the job on as few nodes as hold them."""

    gpu_model: str
    runtime_s: float


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The work on a simulated cluster: seconds on reference GPUs, on few nodes; it may fail after a share of it."""

    work_s: float
    fails_at_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Preemptible:
    """The cost of a stop for a job that can be stopped for another one and goes on later.

    Attributes:
        restart_s: each start after a stop holds the job's GPUs so long before its work goes on.
        lost_s: work that a stop loses.
        grace_s: between the request to stop (SIGTERM) and the end by force (SIGKILL); None: the payload's.
    """

    restart_s: float = 0.0
    lost_s: float = 0.0
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """An attempt of a job."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A user's request, with all defaults.

    Attributes:
        cpu_cores, memory_mib, gpu_memory_mib: with each of its GPUs.
        gpu_count: its GPUs, all of one model.
        max_node_count: the most nodes that they may be on; 0: any number.
        gpu_models: the GPU models that it may run on; empty: any.
        preemptible: it may be stopped for another job, at this cost; None: it is never stopped.
        shareable: it may share its GPU with one other job that may as well.
    """

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
    payload: Payload | None = None
    max_node_count: int = 0
    gpu_models: tuple[str, ...] = ()
    preemptible: Preemptible | None = None
    shareable: bool = False

    def accepts(self, gpu_model: str) -> bool:
        """Whether it may run on a GPU model."""
        return not self.gpu_models or gpu_model in self.gpu_models


@dataclass(frozen=True, slots=True)
class JobReservation:
    """GPUs that are kept free for a job that waits for several.

    Others get GPUs of these nodes only if they are expected to end before it starts, or fit into the slack.

    Attributes:
        job_id: the job that holds it.
        since_s: cluster time since which it is held.
        gpu_model, node_ids: where the job is expected to start; worked out anew at each decision, as what follows.
        expected_start_s: cluster time at which it is expected to start there.
        slack_gpu_count: GPUs of the nodes that are expected to be free then, beyond those of the job.
        gpu_count: GPUs of the job.
    """

    job_id: str
    since_s: float
    gpu_model: str
    node_ids: tuple[str, ...]
    expected_start_s: float
    slack_gpu_count: int
    gpu_count: int


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
    """One attempt to run a job.

    Attributes:
        outcome: how it ended; empty while it runs.
        excused: a restart of the cluster lost it.
        run_s: cluster time at which its program began to run, where the cluster reports that.
        exit: how its program ended, on a real cluster.
        preempted: it was stopped for another job.
        preempts: the attempts of other jobs that are stopped to make room for it.
        neighbours: the time beside jobs that shared its GPU and have left it, by kind.
    """

    attempt: int
    placement: Placement
    gpu_model: str
    start_s: float | None = None
    end_s: float | None = None
    outcome: str = ""
    excused: bool = False
    run_s: float | None = None
    exit: ExitStatus | None = None
    preempted: bool = False
    preempts: tuple[AttemptRef, ...] = ()
    neighbours: tuple[NeighbourTime, ...] = ()

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id

    @property
    def runs_from_s(self) -> float | None:
        """Cluster time from which its program runs; the attempt's start where the cluster does not report that."""
        return self.start_s if self.run_s is None else self.run_s


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its state; changed only by `dataclasses.replace`.

    Attributes:
        reservation: that it holds, while it is pending, as of the record's last change.
        reserved_for_job_id, reserved_until_s: with RESERVED: the job for which GPUs are kept free, and the cluster time
            until about which.
        remaining_ratio: the share of its work that was still to be done at the begin of the present attempt, or is now
            while it waits.
    """

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
    reservation: JobReservation | None = None
    reserved_for_job_id: str = ""
    reserved_until_s: float | None = None
    remaining_ratio: float = 1.0

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id

    @property
    def attempt_count(self) -> int:
        """Number of attempts so far."""
        return len(self.attempts)

    @property
    def resumes(self) -> bool:
        """Whether an attempt of it was preempted: its next start costs a restart."""
        return any(each.preempted for each in self.attempts)

    @property
    def jct_s(self) -> float | None:
        """Seconds from submission (or begin time) to end; None before the end, or if the job ended before that time."""
        if self.end_s is None or self.submit_s is None or self.end_s < self.submit_s:
            return None
        return self.end_s - self.submit_s

    @property
    def runtime_s(self) -> float | None:
        """How long the last attempt's program ran; None before the end, or for a job that never ran.

        It counts from the start of the attempt where the cluster does not report the program's.
        """
        if self.start_s is None or self.end_s is None:
            return None
        run_s = self.attempts[-1].run_s if self.attempts else None
        return self.end_s - (self.start_s if run_s is None else run_s)
