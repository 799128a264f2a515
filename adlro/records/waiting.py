"""Why a job waits, what its user could change, and when it is expected to start, as plain data. Knows no gRPC.

Times named `*_s` are seconds of cluster time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.records.jobs import PendingReason


class GpuObstacle(enum.StrEnum):
    """What keeps a waiting job from a GPU; names as in orchestrator_service.proto. The first that applies counts."""

    MODEL = "model"  # the job does not accept it
    NODE = "node"  # the job does not accept it
    TOO_SMALL = "too_small"  # the GPU, or its empty node
    LOST = "lost"
    DRAINED = "drained"
    BUSY = "busy"
    NODE_SHARED = "node_shared"  # idle, and others run on its node, on which the job must be alone
    NODE_FULL = "node_full"  # idle, and its node lacks cores or memory
    TOO_FEW = "too_few"  # free for one GPU of the job, which needs several
    RESERVED = "reserved"  # kept free for another job
    POLICY = "policy"  # the job could start, and the policy does not start it there now

    @property
    def label(self) -> str:
        """The obstacle in words, after a number of GPUs."""
        return _LABELS[self]


_LABELS = {
    GpuObstacle.MODEL: "of models that the job does not accept",
    GpuObstacle.NODE: "on nodes that the job excludes",
    GpuObstacle.TOO_SMALL: "too small",
    GpuObstacle.LOST: "lost",
    GpuObstacle.DRAINED: "on drained nodes",
    GpuObstacle.BUSY: "busy",
    GpuObstacle.NODE_SHARED: "idle, on nodes where other jobs run",
    GpuObstacle.NODE_FULL: "idle, and their nodes lack cores or memory",
    GpuObstacle.TOO_FEW: "free, and too few for the job",
    GpuObstacle.RESERVED: "kept free for another job",
    GpuObstacle.POLICY: "fit, and the policy starts other jobs first or waits",
}


class WaitingChangeKind(enum.StrEnum):
    """What a user could ask for instead; names as in orchestrator_service.proto."""

    CPU_CORES = "cpu_cores"
    MEMORY_MIB = "memory_mib"
    GPU_MEMORY_MIB = "gpu_memory_mib"
    GPU_MODELS = "gpu_models"
    GPU_COUNT = "gpu_count"
    MAX_NODE_COUNT = "max_node_count"


@dataclass(frozen=True, slots=True)
class WaitingChange:
    """One change of a job's demand with which it would fit at this moment.

    Attributes:
        value: the figure to ask for; 0 with GPU_MODELS; of MAX_NODE_COUNT 0 is no limit.
        gpu_models: with GPU_MODELS, the models to accept as well.
        gpu_count: GPUs on which it would fit.
        sentence: the same in words.
    """

    kind: WaitingChangeKind
    value: int
    gpu_models: tuple[str, ...]
    gpu_count: int
    sentence: str


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """An interval that the job starts in with a probability of 80 %: 10 %, 50 % and 90 % quantiles.

    It is for jobs that do not start within their first seconds of waiting.

    Attributes:
        made_s: the time of the state that it rests on.
        finished_count: the record of such forecasts in this cluster: how many of the newest have finished.
        came_in_ratio: the share of these jobs that started within their intervals.
    """

    low_s: float
    median_s: float
    high_s: float
    made_s: float
    finished_count: int
    came_in_ratio: float


@dataclass(frozen=True, slots=True)
class WaitingExplanation:
    """Why a job waits.

    Attributes:
        queue_place: from 1, in the order of submission, which is not the order in which policies start jobs; 0: not in
            the queue yet.
        obstacles: number of GPUs by what keeps the job from them; together all GPUs of the cluster.
        changes: what the user could change; none: no change of one figure would let it start now.
        expected_start: None: none can be given, for the reason in `no_expected_start`.
        precedence: its level in words; empty: there is no rule of precedence, or it is in no queue.
    """

    job_id: str
    time_s: float
    reason: PendingReason
    sentence: str
    queue_place: int
    queue_length: int
    obstacles: Mapping[GpuObstacle, int] = field(default_factory=dict)
    changes: tuple[WaitingChange, ...] = ()
    expected_start: ExpectedStart | None = None
    no_expected_start: str = ""
    precedence: str = ""
