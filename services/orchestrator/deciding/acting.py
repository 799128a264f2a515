"""What an orchestrator that acts knows from one session to the next, in its process. Plain data."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from adlro.decide.policies.base import Policy
from adlro.decide.policies.dqn import Dqn
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.services.orchestrator.deciding.decisions import FALLBACK, DecisionLog
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.shadow import Shadow


@dataclass(slots=True)
class Acting:
    """What outlives a session, in this process.

    Attributes:
        policy: decides.
        drained: nodes on which nothing more is started, with the reason.
        decisions: what was decided.
        guard: stands between the ledger and the policy.
        shadow: another policy that is asked as well.
        incarnation: the cluster's, as last described.
        told_s: the newest cluster time that the cluster has told; 0 before the first.
        ask_again: what was chosen for this process is not what an earlier one held by.
    """

    policy: Policy
    drained: dict[str, str]
    decisions: DecisionLog
    guard: Guard
    shadow: Shadow
    incarnation: str = ""
    told_s: float = 0.0
    ask_again: bool = False
    _clock: Clock | None = None
    _clock_read_at: float = 0.0

    def note_clock(self, clock: Clock) -> None:
        """The cluster has told its clock."""
        self._clock, self._clock_read_at = clock, time.monotonic()
        self.told_s = max(self.told_s, clock.time_s)

    @property
    def deciding(self) -> tuple[str, DecisionBasis]:
        """Who decided last, or will, where nobody has yet; and what that rests on."""
        missing = isinstance(self.policy, Dqn) and not self.policy.version
        basis = DecisionBasis.MISSING if missing else self.guard.basis_of(self.policy)
        return (FALLBACK if basis.fallback else self.policy.name), basis

    def clock(self) -> Clock | None:
        """The cluster's clock as it should stand now; None before it was told."""
        clock = self._clock
        if clock is None or clock.paused or clock.mode is ClockMode.VIRTUAL:
            return clock
        passed_s = (time.monotonic() - self._clock_read_at) * clock.scale
        return dataclasses.replace(clock, time_s=clock.time_s + passed_s)
