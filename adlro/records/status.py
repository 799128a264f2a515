"""The orchestrator's status as plain data: the acting instance, its policy, and numbers of waiting and running jobs.

A new figure is a field of a record here and of its message; `adlro.wire` translates it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobReservation, JobType, PendingReason


@dataclass(frozen=True, slots=True)
class ShadowStatus:
    """The shadow policy beside the acting one: the number of decisions in which it agreed or differed.

    Holds count too, since the shadow was set; `skipped_count`: decisions that it did not judge.
    """

    policy: str
    agreed_count: int = 0
    differed_count: int = 0
    failed_count: int = 0
    skipped_count: int = 0


@dataclass(frozen=True, slots=True)
class EventLag:
    """How far the orchestrator is behind the cluster: until an event is applied, the status does not tell of it.

    Attributes:
        unapplied_count: events that the cluster has told of, or sent, and that are not applied.
        oldest_unapplied_s: seconds of wall time for which the oldest of them has been known; 0: there is none.
        newest_revision: of the cluster's newest event that is known.
    """

    unapplied_count: int
    oldest_unapplied_s: float
    newest_revision: int


LATE_EVENT_S = 2.0
"""From this age of the oldest unapplied event on, users are told that the status is old."""


@dataclass(frozen=True, slots=True)
class UserCount:
    """Waiting jobs of a user."""

    user: str
    count: int


@dataclass(frozen=True, slots=True)
class GpuModelFigures:
    """GPUs of one model, and the jobs on them. Lost, drained and allocated ones may be the same.

    Attributes:
        usable_count: present, on a node that is not drained.
        allocated_count: held by jobs that run or are being launched.
        drained_count: on drained nodes.
        running_count: jobs that run on them or are being launched.
    """

    gpu_model: str
    gpu_count: int
    usable_count: int
    allocated_count: int
    lost_count: int
    drained_count: int
    running_count: int


@dataclass(frozen=True, slots=True)
class OrchestratorStatus:
    """The acting instance, its policy, and numbers of waiting and running jobs.

    Attributes:
        fallbacks: decisions of the fallback in a policy's place, by reason.
        shadow: None: there is no shadow policy.
        wait_ratio: ratio of the acting policy's limit on waits; 0: it has none.
        deciding_policy: who decides now; empty, and `deciding_basis` None: the server does not report it.
        decisions_by_basis: under the acting policy, since the acting session began or the policy was set; 0 for a
            missing basis.
        reservations: GPUs that are kept free for jobs that wait for several.
        preemption: jobs may be stopped for others: the orchestrator's setting; policy and cluster decide too.
        preemption_min_run_s: with it, how long a job's program has run before it may be stopped.
        event_lag: how far it is behind the cluster; None: it does not act, or does not report it.
        launching_count: of `running_count`, those whose start is not reported or not applied yet.
        waiting_by_reason: the jobs of `queue_length`; by type and user likewise, at most 20 users, those with most jobs
            first, of `waiting_user_count`.
        gpu_models: the cluster's GPUs, and the jobs on them, by model.
        held_count, dependent_count: held jobs, and jobs that wait for others; neither are in `queue_length`.
        precedence: the rule by which waiting jobs go before others, as `parse_precedence` reads it; empty: none.
    """

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
    deciding_policy: str = ""
    deciding_basis: DecisionBasis | None = None
    unreadable_job_count: int = 0
    drain_reasons: Mapping[str, str] = field(default_factory=dict)
    decisions_by_basis: Mapping[DecisionBasis, int] = field(default_factory=dict)
    reservations: tuple[JobReservation, ...] = ()
    preemption: bool = False
    preemption_min_run_s: float = 0.0
    event_lag: EventLag | None = None
    launching_count: int = 0
    waiting_by_reason: Mapping[PendingReason, int] = field(default_factory=dict)
    waiting_by_job_type: Mapping[JobType, int] = field(default_factory=dict)
    waiting_by_user: tuple[UserCount, ...] = ()
    waiting_user_count: int = 0
    gpu_models: tuple[GpuModelFigures, ...] = ()
    held_count: int = 0
    dependent_count: int = 0
    precedence: str = ""


BUILT_IN = "ADLRO"
"""The source of the included policies."""


@dataclass(frozen=True, slots=True)
class OfferedPolicy:
    """A policy that can be selected.

    Attributes:
        version: of a learned policy's checkpoint, or of the code of a policy of one's own.
        problem: why it can't decide; empty: it can.
        advice: one sentence: what it is for.
        source: where it comes from: ADLRO, a package or a file.
    """

    name: str
    description: str
    acting: bool
    version: str = ""
    problem: str = ""
    shadow: bool = False
    advice: str = ""
    source: str = ""
