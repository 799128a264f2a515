"""How the orchestrator stands, as plain data: who decides, by which policy, and how much waits and runs.

A new figure is a field of a record here and of its message; `adlro.wire` translates it without being told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.records.decisions import DecisionBasis


@dataclass(frozen=True, slots=True)
class ShadowStatus:
    """The policy beside the acting one: in how many decisions it would have done the same, or something else.

    Holds are counted too, since the shadow was set; `skipped_count`: those that it was not asked about.
    """

    policy: str
    agreed_count: int = 0
    differed_count: int = 0
    failed_count: int = 0
    skipped_count: int = 0


@dataclass(frozen=True, slots=True)
class OrchestratorStatus:
    """Who decides, by which policy, and how much waits and runs.

    Attributes:
        fallbacks: decisions of the fallback in a policy's place, by why.
        shadow: None: no policy is in the shadow.
        wait_ratio: of the acting policy's limit on waits; 0: it has none.
        deciding_policy: who decides now; empty, and `deciding_basis` None: a server does not say.
        decisions_by_basis: under the acting policy, since the acting session began or the policy was set; those not
            named: 0.
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


@dataclass(frozen=True, slots=True)
class OfferedPolicy:
    """A policy that can be set; `version` and `problem` where it is learned."""

    name: str
    description: str
    acting: bool
    version: str = ""
    problem: str = ""
    shadow: bool = False
