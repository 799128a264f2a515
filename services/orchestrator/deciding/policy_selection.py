"""The selected policies: the acting one, its shadow, and the learned one's checkpoint. Knows Redis, no gRPC.

Redis stores the names of the selected policies. A setting applies at the start; a later selection replaces it, also for
later starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from adlro.decide.catalog import Absent, catalog
from adlro.decide.policies import DEFAULT_POLICY, Policy
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.dqn_candidate import DqnCandidate
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.errors import InvalidInput
from adlro.records.precedence import Precedence
from adlro.records.status import OfferedPolicy
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.deciding.checkpoint import Checkpoint
from adlro.services.orchestrator.deciding.decision_log import DecisionLog
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.shadow import OUTCOMES, Shadow
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.store.keys import POLICY, SHADOW


@dataclass(frozen=True, slots=True)
class Choices:
    """The policy settings.

    Attributes:
        policy: the acting policy at the start; empty: the one last selected, or the default.
        shadow: the shadow policy at the start; empty: the one last selected, or none.
        checkpoint: the learned policy's checkpoint, a file or a folder; None: the one that ADLRO includes.
        promoted: the folder of promoted checkpoints, which go before that one; None: none are looked for.
        candidate: a candidate's file, which need not be there: for the shadow; None: there is none.
        deadline_s: deadline of the learned policy's decisions.
        wait_ratio: the limit's ratio for every policy (policies/bounded_wait.py), 0 for none; None: each policy's own.
        files: policies of files, each as PATH:CLASS.
        precedence: which waiting jobs go before others, for every policy; None: the policy alone decides.
    """

    policy: str = ""
    shadow: str = ""
    checkpoint: Path | None = None
    promoted: Path | None = None
    candidate: Path | None = None
    deadline_s: float = 0.05
    wait_ratio: float | None = None
    files: tuple[str, ...] = ()
    precedence: Precedence | None = None


class PolicySelection:
    """Sets the policies of `acting` as selected.

    A policy of a file or a package that can't be used does not keep the service from its start: where it is selected,
    `hold_gang` decides in its place, and the status says why.

    Args:
        redis: stores the selected names.
        choices: the settings at the start.
        decisions_kept: size of the decision log.
        metrics: counters.
        log: a structlog logger.

    Attributes:
        acting: the state with the acting policy.
        checkpoint: the learned policy's checkpoint.
        candidate: the candidate for it; None: none is looked for.
        catalog: the policies that can be selected.

    Raises:
        InvalidInput: no such policy, though all files and packages could be used.
    """

    def __init__(
        self,
        redis: Any,
        choices: Choices,
        decisions_kept: int,
        metrics: OrchestratorMetrics,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.checkpoint = Checkpoint(choices.checkpoint, log, metrics.count_checkpoint, choices.promoted)
        self.candidate = None if choices.candidate is None else Checkpoint(choices.candidate, log, expected=False)
        self._redis = redis
        self._wait_ratio, self._precedence = choices.wait_ratio, choices.precedence
        self._first_policy, self._first_shadow = choices.policy, choices.shadow
        self.catalog = catalog(choices.files, candidate=self.candidate is not None)
        for each in self.catalog.broken:
            log.warning("a policy can't be used", policy=each.name, problem=each.problem)
        _refuse_candidate(choices.policy)
        for name in filter(None, (choices.policy, choices.shadow)):
            if not self.catalog.broken:
                self.catalog.kind(name)
        metrics.declare_shadow_outcomes(OUTCOMES)
        self.acting = Acting(
            self._made_or_absent(choices.policy or DEFAULT_POLICY),
            {},
            DecisionLog(decisions_kept),
            Guard(choices.deadline_s, log, metrics.count_fallback, metrics.overdue.inc),
            Shadow(log, metrics.count_shadow),
            user_rules=UserRules() if (rule := self._precedence) is None else UserRules(half_life_s=rule.half_life_s),
        )

    @property
    def shadow(self) -> str:
        """Name of the shadow policy; empty: none."""
        return self.acting.shadow.policy.name if self.acting.shadow.policy is not None else ""

    @property
    def problem(self) -> str:
        """Why the acting policy does not decide; empty: it does."""
        policy = self.acting.policy
        if isinstance(policy, Absent):
            return f"{policy.name} is not used: {policy.problem}"
        return self.checkpoint.problem if isinstance(policy, Dqn) and not policy.version else self.acting.guard.problem

    @property
    def offered(self) -> list[OfferedPolicy]:
        """The policies that can be selected."""
        usable = []
        for name, policy in self.catalog.kinds.items():
            learned = self._checkpoint_of(policy)
            version, problem = str(policy.version), ""
            if learned is not None:
                version, problem = learned.policy.version, learned.problem
            shadow = name == self.shadow
            if policy is DqnCandidate and not version and not shadow:
                continue  # there is none
            usable.append(
                OfferedPolicy(
                    name=name,
                    description=policy.description,
                    acting=name == self.acting.policy.name,
                    shadow=shadow,
                    version=version,
                    problem=problem,
                    advice=policy.advice,
                    source=self.catalog.source_of(name),
                )
            )
        broken = [
            OfferedPolicy(name=each.name, description="", acting=False, problem=each.problem, source=each.source)
            for each in self.catalog.broken
        ]
        return usable + broken

    def make(self, name: str, before: Policy | None = None) -> Policy:
        """The policy of a name, with the settings of this service.

        Args:
            name: of the policy.
            before: the policy that it replaces.

        Raises:
            InvalidInput: unknown policy.
        """
        learned, kind = self.checkpoint.policy, self.catalog.kind(name)
        policy: Policy
        if kind is Dqn:
            policy = learned
        elif kind is DqnCandidate and self.candidate is not None:
            policy = DqnCandidate.of(self.candidate.policy)
        elif issubclass(kind, DqnLookahead):
            policy = kind.of(learned, before)
        else:
            policy = kind()
        return self._with_rules(policy)

    def _checkpoint_of(self, kind: type[Policy]) -> Checkpoint | None:
        """The checkpoint that a kind of policies decides by; None: by none."""
        if kind is DqnCandidate:
            return self.candidate
        return self.checkpoint if issubclass(kind, Dqn) else None

    def _made_or_absent(self, name: str, before: Policy | None = None) -> Policy:
        """The policy of a name that may no longer be there."""
        if name in self.catalog.kinds:
            return self.make(name, before)
        return self._with_rules(self.catalog.absent(name))

    def _with_rules(self, policy: Policy) -> Policy:
        if self._wait_ratio is not None:
            policy.wait_ratio = self._wait_ratio or math.inf
        policy.precedence = self._precedence
        return policy

    async def load(self) -> None:
        """Loads the selection from Redis; the first time, stores the settings there."""
        chosen = await self._redis.get(POLICY)
        if self._first_policy:
            await self._redis.set(POLICY, self._first_policy)
            self.acting.ask_again = chosen != self._first_policy.encode()
            chosen, self._first_policy = self._first_policy.encode(), ""
        if chosen:
            self.acting.policy = self._made_or_absent(chosen.decode(), self.acting.policy)
        if self._first_shadow:
            await self._redis.set(SHADOW, self._first_shadow)
            self._first_shadow = ""
        beside = ((await self._redis.get(SHADOW)) or b"").decode()
        if beside != self.shadow:
            self.acting.shadow.set(self._made_or_absent(beside) if beside else None)

    async def set_policy(self, name: str) -> str:
        """Selects another acting policy; returns the previous one.

        Raises:
            InvalidInput: unknown policy, or the candidate, which is for the shadow.
        """
        _refuse_candidate(name)
        self.catalog.kind(name)
        await self._redis.set(POLICY, name)
        # Created only now: a checkpoint may have appeared meanwhile.
        before, self.acting.policy = self.acting.policy.name, self.make(name, self.acting.policy)
        return before

    async def set_shadow(self, name: str) -> str:
        """Selects another shadow policy, or none; returns the previous one.

        Raises:
            InvalidInput: unknown policy.
        """
        if name:
            self.catalog.kind(name)
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
        """Loads the newest checkpoint, and the candidate: the next decision uses them."""
        for each in (self.checkpoint, self.candidate):
            if each is None or not await each.look():
                continue
            acting, shadow = self.acting.policy, self.acting.shadow.policy
            if self._checkpoint_of(type(acting)) is each:
                self.acting.policy = self.make(acting.name, acting)
            if shadow is not None and self._checkpoint_of(type(shadow)) is each:
                self.acting.shadow.set(self.make(shadow.name, shadow))

    def close(self) -> None:
        """Ends the threads."""
        self.checkpoint.close()
        if self.candidate is not None:
            self.candidate.close()
        self.acting.guard.close()
        self.acting.shadow.close()


def _refuse_candidate(name: str) -> None:
    """Raises InvalidInput if a candidate is to act."""
    if name == DqnCandidate.name:
        raise InvalidInput(
            f"policy: {name} runs in the shadow only (adlro policy --shadow {name}); adlro policy promote lets the "
            "candidate act, as dqn",
            field="policy",
        )
