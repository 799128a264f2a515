"""The policies, one a file: each maps a batch of observations to actions. Arrays only; no gRPC, no Redis, no clock."""

from __future__ import annotations

from services.orchestrator.policies.base import Policy
from services.orchestrator.policies.fcfs import Fcfs
from services.orchestrator.policies.fcfs_fastest import FcfsFastest
from services.orchestrator.policies.sjf import Sjf
from services.orchestrator.policies.static import Static

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Fcfs, FcfsFastest, Sjf, Static)}

DEFAULT_POLICY = Sjf.name

__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy"]
