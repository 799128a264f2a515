"""What a policy's decisions rest on, counted while it runs job lists. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.records.decisions import DecisionBasis
from adlro.state.observation import Ints, Observation

BASES = tuple(DecisionBasis)
"""Columns of counts."""
OVERDUE, FALLBACKS = (
    BASES.index(DecisionBasis.OVERDUE),
    [column for column, basis in enumerate(BASES) if basis.fallback],
)

_COLUMN = {basis: column for column, basis in enumerate(BASES)}
_POLICY = _COLUMN[DecisionBasis.POLICY]


class Tally:
    """Has a policy decide for N lists, and counts what each decision rests on.

    A policy with an `act` or `scores` of its own does not say what its decisions rest on: none of them is counted.

    Args:
        policy: decides.
        lists: N.

    Attributes:
        counts: (N, BASES) decisions, holds included.
    """

    def __init__(self, policy: Policy, lists: int) -> None:
        self.counts: Ints = np.zeros((lists, len(BASES)), dtype=np.int64)
        self._policy = policy
        self._says = type(policy).act is Policy.act and type(policy).scores is Policy.scores

    def act(self, observation: Observation, lists: Ints) -> Ints:
        """(A, 2) the policy's actions, as `Policy.act` has them.

        Args:
            observation: of A lists,
            lists: (A,) and which they are; none twice.
        """
        if not self._says:
            return self._policy.act(observation)
        judgement = self._policy.judge(observation)
        self.counts[lists, _POLICY] += 1
        for row, basis in judgement.basis.items():  # empty for simple policies, nearly always
            self.counts[lists[row], _POLICY] -= 1
            self.counts[lists[row], _COLUMN[basis]] += 1
        return self._policy.choose(observation, judgement)
