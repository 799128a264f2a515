"""Decisions as plain data: the choice, its basis, and the alternatives. Knows no gRPC.

Times named `*_s` are seconds of cluster time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from adlro.placement import Placement
from adlro.records.jobs import AttemptRef, JobReservation

POLICY_NAMES = (
    *("fcfs", "fcfs_fastest", "static", "sjf", "shortest_area", "easy_backfill", "conservative_backfill", "mct"),
    *("min_min", "max_min", "sufferage", "heft", "wspt", "hungarian", "las", "random", "hold_greedy"),
    *("hold_greedy_fixed", "hold_gang", "drain_gang", "srtf", "las_preemptive", "share_pairs", "dqn"),
)
"""The policies of this release, for clients, which have none of their code. A test compares it with the policies."""


class DecisionBasis(enum.StrEnum):
    """The basis of a decision; names as in orchestrator_service.proto."""

    POLICY = "policy"  # the policy's preference
    MARGIN = "margin"  # its base's choice: the expected gain of another was within the margin
    OVERDUE = "overdue"  # a job had waited too long: the limit on waits decided
    # The fallback hold_gang decided, for one of these reasons:
    OUT_OF_RANGE = "out_of_range"  # its observation was outside the training range, or a job of several GPUs waits
    FAILED = "failed"
    LATE = "late"
    MISSING = "missing"

    @property
    def fallback(self) -> bool:
        """Whether the fallback decided in the policy's place."""
        return self in _FALLBACKS


_FALLBACKS = frozenset({DecisionBasis.OUT_OF_RANGE, DecisionBasis.FAILED, DecisionBasis.LATE, DecisionBasis.MISSING})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU, or a set of GPUs, that a job could have been started on; a higher score is better.

    Attributes:
        node_count: number of nodes of a set.
        spread: that is more than the job needs, so that it runs slower there.
    """

    placement: Placement
    gpu_model: str
    expected_runtime_s: float
    score: float
    node_count: int = 1
    spread: bool = False

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class MaskedCandidate:
    """A GPU that was excluded, with the reason. `gpu_id` empty: all sets of GPUs of the model, for a job of several."""

    gpu_id: str
    gpu_model: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best action; no job and NOWHERE: a hold."""

    job_id: str
    placement: Placement
    score: float

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class ShadowDecision:
    """The shadow policy's decision; no job and NOWHERE: a hold."""

    policy: str
    job_id: str
    placement: Placement
    agrees: bool

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a job was placed where it was, or (NOWHERE) why it is not placed now.

    Attributes:
        candidates: the chosen one first, then by score.
        decision_us: duration of the decision in microseconds.
        basis: the decision's basis; None: the server does not report it. `basis_text`: in words, unless the policy
            simply chose.
        runner_up: None: there is none.
        hold_score: the policy's score for a hold; None: it has none.
        shadow: None: there is no shadow policy, or it has not answered (yet).
        deciding_policy: who decided: `policy`, or another in its place; empty: the server does not report it.
        reservation: GPUs that were kept free for a job after this decision; None: none.
        preempts: the attempts of other jobs that are stopped to make room.
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
    reservation: JobReservation | None = None
    preempts: tuple[AttemptRef, ...] = ()

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: not placed."""
        return self.placement.gpu_id
