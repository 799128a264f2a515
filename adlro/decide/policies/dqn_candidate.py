"""The learned policy with a candidate's weights, for the shadow of a service: `adlro learn` makes candidates."""

from __future__ import annotations

from adlro.decide.policies.dqn import BorrowingDqn, Dqn


class DqnCandidate(BorrowingDqn):
    """Decides as `dqn` would by the candidate. Not among the policies of ADLRO: only a service has a candidate."""

    name = "dqn_candidate"
    description = "dqn by the candidate of adlro learn, for the shadow alone; score: as dqn"
    advice = "For the shadow: shows how often the candidate of adlro learn would decide otherwise."

    @classmethod
    def of(cls, learned: Dqn) -> DqnCandidate:
        """A policy with another policy's network, or missing network, instead of a file of its own."""
        made = cls(learned.checkpoint)
        made.borrow(learned)
        return made
