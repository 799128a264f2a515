"""The state that an acting orchestrator passes from one session to the next, in its process. Plain data."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from adlro.decide.catalog import Absent
from adlro.decide.policies.base import Policy
from adlro.decide.policies.dqn import Dqn
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.services.orchestrator.deciding.decision_log import DecisionLog
from adlro.services.orchestrator.deciding.decisions import FALLBACK
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.shadow import Shadow
from adlro.services.orchestrator.ledger.user_rules import UserRules


@dataclass(slots=True)
class Acting:
    """State that outlives a session, in this process.

    Attributes:
        policy: the acting policy.
        drained: the drained nodes, with the reasons.
        user_rules: quotas, shares and groups of users.
        decisions: the log of decisions.
        guard: the guard of the policy.
        shadow: the shadow policy, if any.
        incarnation: the cluster's incarnation when last described.
        told_s: the newest cluster time that the cluster has reported; 0 before the first.
        ask_again: the policy of this process differs from an earlier one whose hold may be in force.
    """

    policy: Policy
    drained: dict[str, str]
    decisions: DecisionLog
    guard: Guard
    shadow: Shadow
    incarnation: str = ""
    told_s: float = 0.0
    ask_again: bool = False
    user_rules: UserRules = field(default_factory=UserRules)
    _clock: Clock | None = None
    _clock_read_at: float = 0.0

    def note_clock(self, clock: Clock) -> None:
        """Stores the clock that the cluster has reported."""
        self._clock, self._clock_read_at = clock, time.monotonic()
        self.told_s = max(self.told_s, clock.time_s)

    @property
    def deciding(self) -> tuple[str, DecisionBasis]:
        """Who made the last decision, or will make the first, and that decision's basis."""
        missing = isinstance(self.policy, Absent) or (isinstance(self.policy, Dqn) and not self.policy.version)
        basis = DecisionBasis.MISSING if missing else self.guard.basis_of(self.policy)
        return (FALLBACK if basis.fallback else self.policy.name), basis

    def clock(self) -> Clock | None:
        """The cluster's estimated clock now; None before its first report."""
        clock = self._clock
        if clock is None or clock.paused or clock.mode is ClockMode.VIRTUAL:
            return clock
        passed_s = (time.monotonic() - self._clock_read_at) * clock.scale
        return dataclasses.replace(clock, time_s=clock.time_s + passed_s)
