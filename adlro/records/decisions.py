"""Decisions as plain data: the choice, its basis, and the alternatives. Knows no gRPC.

Times named `*_s` are seconds of cluster time.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass

from adlro.placement import Placement
from adlro.records.jobs import AttemptRef, JobReservation
from adlro.records.named import NamedEnum
from adlro.records.predictions import PredictionBasis

POLICY_NAMES = (
    *("fcfs", "fcfs_fastest", "static", "sjf", "shortest_area", "easy_backfill", "conservative_backfill", "mct"),
    *("min_min", "max_min", "sufferage", "heft", "wspt", "hungarian", "las", "random", "hold_greedy"),
    *("hold_greedy_fixed", "hold_gang", "drain_gang", "srtf", "las_preemptive", "share_pairs", "dqn"),
)
"""The policies of this release, for clients, which have none of their code. A test compares it with the policies."""

POLICY_GROUP = "adlro.policies"
"""The group of entry points by which an installed package offers policies of one's own."""


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


class DecisionView(NamedEnum):
    """What of a decision is sent; numbers as in orchestrator_service.proto."""

    FULL = 1
    SUMMARY = 2  # without candidates, masked GPUs and pairs


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
class MaskedGroup:
    """GPUs that were excluded for one reason.

    Attributes:
        gpu_count: how many, at least 1; for a job of several GPUs those of the excluded sets and models.
        example_gpu_ids: the first of them.
    """

    reason: str
    gpu_count: int
    example_gpu_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecisionPair:
    """A waiting job and GPUs for it: a start that the policy could have chosen.

    Attributes:
        placement: one GPU of several equal ones, or a set.
        equal_gpu_count: GPUs of the node that are equal for the job, this one included; of a set: 1.
        score: the policy's value of the pair where it has values, otherwise its score.
    """

    job_id: str
    gpu_model: str
    placement: Placement
    equal_gpu_count: int
    expected_runtime_s: float
    score: float

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class BaseChoice:
    """What the policy's base would have done; no job and NOWHERE: a hold.

    Attributes:
        score: the policy's value of it; None: none.
    """

    job_id: str
    placement: Placement
    score: float | None = None

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class DecisionPrediction:
    """The runtime that was expected of a job when it was placed: of all its work, on its GPUs.

    Attributes:
        low_s, high_s: the interval; 0 without one.
        interval_coverage: its probability; 0: there was no interval, since decompose did not answer.
        basis: None: the server does not report it.
    """

    median_s: float
    low_s: float = 0.0
    high_s: float = 0.0
    interval_coverage: float = 0.0
    basis: PredictionBasis | None = None


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
        masked_groups: the excluded GPUs by reason.
        best_pairs: the best pairs of all waiting jobs, best first.
        base_choice: None: the policy has no base. `margin`: what another start's value must exceed the base's by, at
            least, to replace it; None: no margin.
        prediction: None: not placed, or the server does not report it.
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
    masked_groups: tuple[MaskedGroup, ...] = ()
    best_pairs: tuple[DecisionPair, ...] = ()
    base_choice: BaseChoice | None = None
    margin: float | None = None
    prediction: DecisionPrediction | None = None

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: not placed."""
        return self.placement.gpu_id


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """A filter: it matches decisions that match every set field.

    Attributes:
        from_s, to_s: decisions from the one time on, and before the other; None: no limit.
        gpu_id: a GPU that the decision uses.
        basis: None: any.
        differs_only: only decisions in which the shadow policy decided differently.
    """

    from_s: float | None = None
    to_s: float | None = None
    job_id: str = ""
    gpu_id: str = ""
    basis: DecisionBasis | None = None
    differs_only: bool = False

    def matches(self, decision: Decision) -> bool:
        """Whether a decision matches."""
        return (
            (self.from_s is None or decision.time_s >= self.from_s)
            and (self.to_s is None or decision.time_s < self.to_s)
            and (not self.job_id or decision.job_id == self.job_id)
            and (not self.gpu_id or self.gpu_id in decision.placement.gpu_ids)
            and (self.basis is None or decision.basis is self.basis)
            and (not self.differs_only or (decision.shadow is not None and not decision.shadow.agrees))
        )

    def digest(self) -> bytes:
        """16 bytes that identify a filter, the same in every process."""
        basis = None if self.basis is None else str(self.basis)
        parts = [self.from_s, self.to_s, self.job_id, self.gpu_id, basis, self.differs_only]
        return hashlib.sha256(json.dumps(parts).encode()).digest()[:16]
