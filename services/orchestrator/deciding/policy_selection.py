"""Which policies decide: the acting one, the one in its shadow, and the learned one's checkpoint. Knows Redis, no gRPC.

The names that were set are kept in Redis. A setting is for the start; what is set later holds, and for later
starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from adlro.decide.policies import DEFAULT_POLICY, POLICIES, Policy
from adlro.decide.policies.dqn import Dqn
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.errors import InvalidInput
from adlro.records.status import OfferedPolicy
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.deciding.checkpoint import Checkpoint
from adlro.services.orchestrator.deciding.decisions import DecisionLog
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.shadow import OUTCOMES, Shadow
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.store.keys import POLICY, SHADOW


@dataclass(frozen=True, slots=True)
class Choices:
    """What the settings say of policies.

    Attributes:
        policy: to begin with; empty: the one last set, or the default.
        shadow: runs beside it; empty: the one last set, or none.
        checkpoint: of the learned policy, a file or a folder; None: the one that comes with ADLRO.
        deadline_s: of its decisions.
        wait_ratio: of every policy (policies/bounded_wait.py), 0 for none; None: the policies' own, the same for all.
    """

    policy: str = ""
    shadow: str = ""
    checkpoint: Path | None = None
    deadline_s: float = 0.05
    wait_ratio: float | None = None


class PolicySelection:
    """Keeps the policies of `acting` as they were chosen.

    Args:
        redis: for the names that were set.
        choices: to begin with.
        decisions_kept: size of the decision log.
        metrics: counters.
        log: a structlog logger.

    Attributes:
        acting: what decides.
        checkpoint: the learned policy's.

    Raises:
        InvalidInput: no such policy.
    """

    def __init__(
        self,
        redis: Any,
        choices: Choices,
        decisions_kept: int,
        metrics: OrchestratorMetrics,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.checkpoint = Checkpoint(choices.checkpoint, log, metrics.count_checkpoint)
        self._redis = redis
        self._wait_ratio = choices.wait_ratio
        self._first_policy, self._first_shadow = choices.policy, choices.shadow
        for name in filter(None, (choices.policy, choices.shadow)):
            _check(name)
        metrics.declare_shadow_outcomes(OUTCOMES)
        self.acting = Acting(
            self.make(choices.policy or DEFAULT_POLICY),
            {},
            DecisionLog(decisions_kept),
            Guard(choices.deadline_s, log, metrics.count_fallback, metrics.overdue.inc),
            Shadow(log, metrics.count_shadow),
        )

    @property
    def shadow(self) -> str:
        """Name of the policy in the shadow; empty: none."""
        return self.acting.shadow.policy.name if self.acting.shadow.policy is not None else ""

    @property
    def problem(self) -> str:
        """Why the acting policy does not decide; empty: it does."""
        policy = self.acting.policy
        return self.checkpoint.problem if isinstance(policy, Dqn) and not policy.version else self.acting.guard.problem

    @property
    def offered(self) -> list[OfferedPolicy]:
        """What can be set."""
        learned = self.checkpoint
        return [
            OfferedPolicy(
                name=name,
                description=policy.description,
                acting=name == self.acting.policy.name,
                shadow=name == self.shadow,
                version=learned.policy.version if issubclass(policy, Dqn) else "",
                problem=learned.problem if issubclass(policy, Dqn) else "",
            )
            for name, policy in _known().items()
        ]

    def make(self, name: str, before: Policy | None = None) -> Policy:
        """The policy of a name, as it decides here.

        Args:
            name: of the policy.
            before: the one whose place it takes.

        Raises:
            InvalidInput: there is none.
        """
        _check(name)
        learned, kind = self.checkpoint.policy, _known()[name]
        policy: Policy
        if kind is Dqn:
            policy = learned
        elif issubclass(kind, DqnLookahead):
            policy = kind.of(learned, before)
        else:
            policy = kind()
        if self._wait_ratio is not None:
            policy.wait_ratio = self._wait_ratio or math.inf
        return policy

    async def load(self) -> None:
        """Takes up what was set in Redis, or brings there what the settings say, the first time."""
        chosen = await self._redis.get(POLICY)
        if self._first_policy:
            await self._redis.set(POLICY, self._first_policy)
            self.acting.ask_again = chosen != self._first_policy.encode()
            chosen, self._first_policy = self._first_policy.encode(), ""
        if chosen and chosen.decode() in _known():
            self.acting.policy = self.make(chosen.decode(), self.acting.policy)
        if self._first_shadow:
            await self._redis.set(SHADOW, self._first_shadow)
            self._first_shadow = ""
        beside = ((await self._redis.get(SHADOW)) or b"").decode()
        if beside != self.shadow:
            self.acting.shadow.set(self.make(beside) if beside in _known() else None)

    async def set_policy(self, name: str) -> str:
        """Another one acts from now on; returns the one before.

        Raises:
            InvalidInput: unknown.
        """
        _check(name)
        await self._redis.set(POLICY, name)
        # Made only now: a checkpoint may have come meanwhile.
        before, self.acting.policy = self.acting.policy.name, self.make(name, self.acting.policy)
        return before

    async def set_shadow(self, name: str) -> str:
        """Another one runs in the shadow, or none; returns the one before.

        Raises:
            InvalidInput: unknown.
        """
        if name:
            _check(name)
        await self._redis.set(SHADOW, name)
        before = self.shadow
        self.acting.shadow.set(self.make(name, self.acting.shadow.policy) if name else None)
        return before

    async def follow_checkpoint(self) -> None:
        """Reads the checkpoint, then each new one, until it is cancelled."""
        while True:
            await self.look_for_checkpoint()
            await self.checkpoint.pause()

    async def look_for_checkpoint(self) -> None:
        """Takes up the newest checkpoint: the next decision is its."""
        if await self.checkpoint.look():
            acting, shadow = self.acting.policy, self.acting.shadow.policy
            if isinstance(acting, Dqn):
                self.acting.policy = self.make(acting.name, acting)
            if isinstance(shadow, Dqn):
                self.acting.shadow.set(self.make(shadow.name, shadow))

    def close(self) -> None:
        """Ends the threads."""
        self.checkpoint.close()
        self.acting.guard.close()
        self.acting.shadow.close()


def _known() -> dict[str, type[Policy]]:
    """By name; what looks ahead stands on the policies, so that it can't be one of their package."""
    return {**POLICIES, DqnLookahead.name: DqnLookahead}


def _check(name: str) -> None:
    if name not in (known := _known()):
        raise InvalidInput(f"policy: there is no policy {name!r}; there are {', '.join(known)}", field="policy")
