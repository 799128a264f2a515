"""Decisions as plain data: what was decided, for what reasons, and what stood against it. Knows no gRPC.

Times named `*_s` are seconds of cluster time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from adlro.placement import Placement


class DecisionBasis(enum.StrEnum):
    """What a decision rests on; names as in orchestrator_service.proto."""

    POLICY = "policy"  # what it prefers
    MARGIN = "margin"  # its base's choice: the gain it saw elsewhere was within the margin
    OVERDUE = "overdue"  # a job had waited too long: the limit on waits decided
    # hold_greedy_fixed decided in the policy's place, because the policy
    OUT_OF_RANGE = "out_of_range"  # has never seen anything like this
    FAILED = "failed"
    LATE = "late"
    MISSING = "missing"

    @property
    def fallback(self) -> bool:
        """The policy did not decide."""
        return self in _FALLBACKS


_FALLBACKS = frozenset({DecisionBasis.OUT_OF_RANGE, DecisionBasis.FAILED, DecisionBasis.LATE, DecisionBasis.MISSING})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU that a job could have been started on; a higher score is better."""

    gpu_id: str
    gpu_model: str
    expected_runtime_s: float
    score: float


@dataclass(frozen=True, slots=True)
class MaskedCandidate:
    """A GPU that was out of the question, and why."""

    gpu_id: str
    gpu_model: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best of all that could have been done; both ids empty: to hold."""

    job_id: str
    gpu_id: str
    score: float


@dataclass(frozen=True, slots=True)
class ShadowDecision:
    """What the policy in the shadow would have done; both ids empty: to hold."""

    policy: str
    job_id: str
    gpu_id: str
    agrees: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a job was placed where it was, or (NOWHERE) why it is not placed now.

    Attributes:
        candidates: best first, the chosen one in front.
        decision_us: how long it took, in microseconds.
        basis: what it rests on; None: a server does not say. `basis_text`: in words, where the policy did not simply
            choose.
        runner_up: None: there is none.
        hold_score: the policy's figure for starting nothing; None: it has none.
        shadow: None: no policy is in the shadow, or it has not answered (yet).
        deciding_policy: who decided: `policy`, or another in its place; empty: a server does not say.
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
