"""Counts the bases of a policy's decisions while it runs job lists. Arrays only."""

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
    """Makes a policy decide for N lists, and counts the basis of each decision.

    A policy with its own `act` or `scores` reports no bases: none of its decisions is counted.

    Args:
        policy: the policy.
        lists: N.

    Attributes:
        counts: (N, BASES) numbers of decisions, including holds.
    """

    def __init__(self, policy: Policy, lists: int) -> None:
        self.counts: Ints = np.zeros((lists, len(BASES)), dtype=np.int64)
        self._policy = policy
        self._says = type(policy).act is Policy.act and type(policy).scores is Policy.scores

    def act(self, observation: Observation, lists: Ints) -> Ints:
        """(A, 2) the policy's actions, as `Policy.act` has them.

        Args:
            observation: the observation of A lists.
            lists: (A,) the numbers of these lists; none twice.
        """
        if not self._says:
            return self._policy.act(observation)
        judgement = self._policy.judge(observation)
        self.counts[lists, _POLICY] += 1
        for row, basis in judgement.basis.items():  # empty for simple policies, and nearly always for others
            self.counts[lists[row], _POLICY] -= 1
            self.counts[lists[row], _COLUMN[basis]] += 1
        return self._policy.choose(observation, judgement)
