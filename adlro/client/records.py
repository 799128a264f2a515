"""The client's own records, in addition to those of all services (adlro/records): plain dataclasses.

Times named `*_s` are seconds of cluster time, `*_unix_s` seconds of wall time. Enum numbers are those of the protos.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adlro.placement import Placement
from adlro.records.jobs import Job, JobSpec, JobState, JobType
from adlro.records.telemetry import Metric, Unit

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter: jobs that match every field that is set. Of a sequence any value must match, of labels all."""

    states: tuple[JobState, ...] = ()
    job_types: tuple[JobType, ...] = ()
    user: str = ""
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    job_ids: tuple[str, ...] = ()


class JobEventKind(enum.IntEnum):
    """Kinds of messages of a watch; numbers as in job_service.proto."""

    SNAPSHOT = 1
    SNAPSHOT_END = 2
    CHANGE = 3


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One message of a watch: a job of the snapshot, the end of the snapshot (`job` is None), or a change."""

    kind: JobEventKind
    job: Job | None
    revision: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A job that `submit_many` could not record: its place, from 0, and the reason."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The result of a stream of jobs: one id for each, in order, empty for a rejected job."""

    job_ids: tuple[str, ...]
    rejected: tuple[Rejection, ...] = ()

    @property
    def accepted_ids(self) -> tuple[str, ...]:
        """The ids of the accepted jobs."""
        return tuple(each for each in self.job_ids if each)


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric of a block: `raw` in `unit` and `normalized` in 0..1, both (T, G) float32; NaN: not reported."""

    unit: Unit
    raw: FloatArray
    normalized: FloatArray


@dataclass(frozen=True, slots=True)
class TelemetryBlock:
    """T samples of G GPUs, metric by metric."""

    cluster: str
    gpu_ids: tuple[str, ...]
    sample_times_unix_s: tuple[float, ...]
    cluster_times_s: tuple[float, ...]
    columns: Mapping[Metric, MetricColumn]
    clipped_count: int = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The newest sample of every GPU and the blocks of the requested window, oldest first.

    `latest` has one sample time and a column for every metric; unreported values are NaN, and so is the time before
    the first report.
    """

    latest: TelemetryBlock
    window: tuple[TelemetryBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """One discrete variable of a record, such as `utilization_level` = `0.85..0.90`."""

    name: str
    value: str
    index: int


@dataclass(frozen=True, slots=True)
class GpuDrift:
    """Whether a GPU is slower than its model; flagged at a false-alarm rate of 1 % a test.

    `speed_ratio` is its estimated speed relative to its model, from `job_count` finished jobs.
    """

    score: float = 0.0
    flagged: bool = False
    speed_ratio: float = 1.0
    job_count: int = 0


@dataclass(frozen=True, slots=True)
class MixDrift:
    """Whether the mix of finished jobs has changed, in which variable most, and by what total variation."""

    score: float = 0.0
    flagged: bool = False
    variable: str = ""
    total_variation: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU of the cluster's state; `sample_time_unix_s` is None before its first report."""

    gpu_id: str
    node_id: str
    gpu_model: str
    sample_time_unix_s: float | None
    variables: tuple[Variable, ...]
    drift: GpuDrift = GpuDrift()


@dataclass(frozen=True, slots=True)
class StatePlane:
    """One metric of all GPUs: `raw` in `unit` and `normalized` in 0..1, both (G,) float32; NaN: not reported."""

    unit: Unit
    raw: FloatArray
    normalized: FloatArray


@dataclass(frozen=True, slots=True)
class ClusterState:
    """decompose's GPU matrix, GPUs in the order of the cluster's description."""

    cluster: str
    gpus: tuple[GpuState, ...]
    planes: Mapping[Metric, StatePlane]
    newest_sample_unix_s: float | None
    revision: int
    mix_drift: MixDrift = MixDrift()

    def value(self, metric: Metric, gpu_index: int) -> float:
        """The raw value of one metric of one GPU; NaN if unknown."""
        plane = self.planes.get(metric)
        return float(plane.raw[gpu_index]) if plane is not None else float("nan")


class PredictionBasis(enum.IntEnum):
    """The basis of a prediction, best first; numbers as in decompose_service.proto."""

    DECLARED = 1
    USER_APPLICATION = 2
    APPLICATION = 3
    JOB_TYPE = 4
    PRIOR = 5

    @property
    def label(self) -> str:
        """The basis in words."""
        return {
            PredictionBasis.DECLARED: "the declared runtime",
            PredictionBasis.USER_APPLICATION: "this user's jobs of this application",
            PredictionBasis.APPLICATION: "jobs of this application",
            PredictionBasis.JOB_TYPE: "jobs of this type",
            PredictionBasis.PRIOR: "nothing but the job type's prior",
        }[self]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A finished job as evidence for a prediction."""

    job_id: str
    similarity: float
    gpu_model: str
    runtime_s: float


@dataclass(frozen=True, slots=True)
class RuntimePrediction:
    """A job's runtime on one GPU model: between low_s and high_s with probability interval_coverage."""

    gpu_model: str
    median_s: float
    low_s: float
    high_s: float
    interval_coverage: float
    basis: PredictionBasis | None
    novelty: float
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Recollection:
    """A finished job that is similar to the requested one."""

    job_id: str
    similarity: float
    job: JobSpec
    gpu_model: str
    runtime_s: float


@dataclass(frozen=True, slots=True)
class OrchestratorStatus:
    """The orchestrator's state: its policy, waiting and running jobs."""

    acting: bool
    instance_id: str
    lease_holder: str
    fencing_token: int
    policy: str
    cluster_connected: bool
    cluster_incarnation: str
    cluster_revision: int
    cluster_time_s: float
    queue_length: int
    waiting_for_begin_time_count: int
    running_count: int
    decision_count: int
    drained_node_ids: tuple[str, ...]
    problem: str
    policy_version: str = ""
    policy_problem: str = ""
    fallbacks: Mapping[DecisionBasis, int] = field(default_factory=dict)
    shadow: ShadowStatus | None = None
    wait_ratio: float = 0.0
    checkpoints_loaded_count: int = 0
    checkpoints_refused_count: int = 0
    # Empty, and None, from servers of older versions.
    deciding_policy: str = ""
    deciding_basis: DecisionBasis | None = None
    unreadable_job_count: int = 0
    drain_reasons: Mapping[str, str] = field(default_factory=dict)
    # Under the acting policy, since the acting session began or the policy was set; a missing basis: 0.
    decisions_by_basis: Mapping[DecisionBasis, int] = field(default_factory=dict)


class DecisionBasis(enum.StrEnum):
    """The basis of a decision; the contract has the same names."""

    POLICY = "policy"
    MARGIN = "margin"
    # a job had waited too long: the limit on waits decided
    OVERDUE = "overdue"
    # hold_greedy_fixed decided in the policy's place
    OUT_OF_RANGE = "out_of_range"
    FAILED = "failed"
    LATE = "late"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ShadowStatus:
    """The shadow policy: the numbers of decisions in which it agreed and differed."""

    policy: str
    agreed_count: int
    differed_count: int
    failed_count: int
    skipped_count: int


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of the orchestrator; `version` and `problem` if it is learned."""

    name: str
    description: str
    acting: bool
    version: str = ""
    problem: str = ""
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU on which the job could start; a higher score is better."""

    gpu_id: str
    gpu_model: str
    expected_runtime_s: float
    score: float


@dataclass(frozen=True, slots=True)
class MaskedCandidate:
    """An excluded GPU, with the reason."""

    gpu_id: str
    gpu_model: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best action; both ids empty: a hold."""

    job_id: str
    gpu_id: str
    score: float


@dataclass(frozen=True, slots=True)
class ShadowDecision:
    """The shadow policy's decision; both ids empty: a hold."""

    policy: str
    job_id: str
    gpu_id: str
    agrees: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The reason of a job's placement, or (NOWHERE) of its wait.

    `hold_score` is the policy's score of a hold, None if it has none. `deciding_policy` is the decider:
    `policy`, or another one instead. Servers of older versions give `basis` None, and no `deciding_policy`.
    """

    decision_id: str
    job_id: str
    placement: Placement
    policy: str
    time_s: float
    queue_length: int
    candidates: tuple[Candidate, ...]
    masked: tuple[MaskedCandidate, ...]
    summary: str
    decision_us: float
    attempt: int
    basis: DecisionBasis | None = None
    basis_text: str = ""
    policy_version: str = ""
    runner_up: RunnerUp | None = None
    hold_score: float | None = None
    shadow: ShadowDecision | None = None
    deciding_policy: str = ""

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: not placed."""
        return self.placement.gpu_id
