"""The policies, one a file: each maps a batch of observations to actions. Arrays only; no gRPC, no Redis, no clock."""

from __future__ import annotations

from services.orchestrator.policies.base import Policy
from services.orchestrator.policies.dqn import Dqn
from services.orchestrator.policies.easy_backfill import EasyBackfill
from services.orchestrator.policies.fcfs import Fcfs
from services.orchestrator.policies.fcfs_fastest import FcfsFastest
from services.orchestrator.policies.heft import Heft
from services.orchestrator.policies.hold_greedy import HoldGreedy, HoldGreedyFixed
from services.orchestrator.policies.hungarian import Hungarian
from services.orchestrator.policies.las import Las
from services.orchestrator.policies.max_min import MaxMin
from services.orchestrator.policies.mct import Mct
from services.orchestrator.policies.min_min import MinMin
from services.orchestrator.policies.random import Random
from services.orchestrator.policies.sjf import Sjf
from services.orchestrator.policies.static import Static
from services.orchestrator.policies.sufferage import Sufferage
from services.orchestrator.policies.wspt import Wspt

_ALL: tuple[type[Policy], ...] = (
    Fcfs,
    FcfsFastest,
    Static,
    Sjf,
    EasyBackfill,
    Mct,
    MinMin,
    MaxMin,
    Sufferage,
    Heft,
    Wspt,
    Hungarian,
    Las,
    Random,
    HoldGreedy,
    HoldGreedyFixed,
    Dqn,
)

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}

DEFAULT_POLICY = Dqn.name

__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy"]
