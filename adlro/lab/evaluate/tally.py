"""Counts the bases of a policy's decisions while it runs job lists. Arrays only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.records.decisions import DecisionBasis
from adlro.state.observation import Bools, Ints, Observation

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

    @property
    def preempts(self) -> bool:
        """Whether the policy may stop jobs; one with its own `act` does not."""
        return self._says and self._policy.preempts

    @property
    def shares(self) -> bool:
        """Whether the policy may let two jobs share a GPU; one with its own `act` does not."""
        return self._says and self._policy.shares

    def act(self, observation: Observation, lists: Ints) -> tuple[Ints, Ints | None, Bools | None]:
        """What `BatchSimulator.act` takes: the policy's actions, whom GPUs are kept free for, and what is stopped.

        Args:
            observation: the observation of A lists.
            lists: (A,) the numbers of these lists; none twice.
        """
        if not self._says:
            return self._policy.act(observation), None, None
        judgement = self.judge(observation, lists)
        actions = self._policy.choose(observation, judgement)
        return actions, judgement.reserve, self._policy.stopping(observation, judgement)

    def judge(self, observation: Observation, lists: Ints) -> Judgement:
        """The policy's judgement; its bases are counted. The arguments are those of `act`."""
        judgement = self._policy.judge(observation)
        self.counts[lists, _POLICY] += 1
        for row, basis in judgement.basis.items():  # empty for simple policies, and nearly always for others
            self.counts[lists[row], _POLICY] -= 1
            self.counts[lists[row], _COLUMN[basis]] += 1
        return judgement

    def of_one_list(self) -> Policy | Callable[[Observation], Ints]:
        """The policy, or its actions if it has only these, for the one list of a tally with N = 1."""
        the_list = np.zeros(1, dtype=np.int64)
        if self._says:
            counted = _CountedShares if self.shares else _CountedStops if self.preempts else _Counted
            return counted(self, the_list)
        return lambda observation: self.act(observation, the_list)[0]


class _Counted(Policy):
    """A tally's policy, with the bases counted.

    Args:
        tally: has the policy.
        lists: the numbers of the lists that are observed.
    """

    name = "counted"
    description = "a policy whose decisions are counted"

    def __init__(self, tally: Tally, lists: Ints) -> None:
        self._tally, self._lists = tally, lists

    def judge(self, observation: Observation) -> Judgement:
        """The policy's judgement."""
        return self._tally.judge(observation, self._lists)


class _CountedStops(_Counted):
    """The same of a policy that may stop jobs."""

    preempts = True


class _CountedShares(_Counted):
    """The same of a policy that may let two jobs share a GPU."""

    shares = True
