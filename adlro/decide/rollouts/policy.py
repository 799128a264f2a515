"""The learned policy with rollouts: they check its choice over imagined futures. Arrays only.

A decision takes up to 15 ms on 16 GPUs: with longer queues and larger clusters it has fewer rollouts, or none. Another
action replaces the network's only if its gain exceeds two standard errors; the population and the arrival rate are
those of the observations so far (adlro/decide/rollouts).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.dqn import BorrowingDqn, Dqn
from adlro.decide.rollouts.lookahead import Lookahead
from adlro.errors import Unsupported
from adlro.state.observation import HOLD, Observation


class DqnLookahead(BorrowingDqn):
    """Decides for one cluster, and remembers its arrived jobs: one object per cluster, from the cluster's beginning.

    If the clock goes back, its memory is cleared. The futures have jobs of one GPU only, and no stops: while a job of
    several waits, or one was among the jobs that futures would be drawn from, and where jobs can be stopped, it decides
    as `dqn`.

    Args:
        checkpoint: as for `Dqn`.

    Attributes:
        lookahead: its memory and rollouts.
    """

    name = "dqn_lookahead"
    description = (
        "dqn, left only where another action gains for certain over imagined futures (up to 15 ms a decision); "
        "score: as dqn, the action that is taken on top"
    )
    advice = "For few GPUs and long jobs: as dqn, with simulated futures, for up to 15 ms a decision."
    one_cluster = True

    def __init__(self, checkpoint: Path | None = None) -> None:
        super().__init__(checkpoint)
        self.lookahead = Lookahead()
        self._time_s = -np.inf

    @classmethod
    def of(cls, learned: Dqn, before: Policy | None = None) -> DqnLookahead:
        """A policy with another policy's network, or missing network, instead of a file of its own.

        Args:
            learned: that policy.
            before: the policy that it replaces; if that has rollouts too, its memory continues here.
        """
        made = cls(learned.checkpoint)
        made.borrow(learned)
        if isinstance(before, cls):
            made.lookahead, made._time_s = before.lookahead, before._time_s
        return made

    def weigh(self, observation: Observation) -> Judgement:
        """As `Dqn`, with the rollouts' action on top.

        Raises:
            Unsupported: more than one cluster.
        """
        if len(observation.time_s) != 1:
            raise Unsupported("dqn_lookahead decides for one cluster at a time: it remembers the jobs of that one")
        judgement = super().weigh(observation)
        time_s = float(observation.time_s[0])
        if time_s < self._time_s:
            self.lookahead = Lookahead()
        self._time_s = time_s
        job, gpu = (int(each) for each in self.choose(observation, judgement)[0, :2])
        chosen = self.lookahead.choose(observation, (job, gpu))
        if chosen == (job, gpu):
            return judgement
        judgement.basis.pop(0, None)  # the basis of the network's choice does not apply to this action
        judgement.notes.pop(0, None)
        if chosen[0] == HOLD:
            judgement.scores[:] = -np.inf
        else:
            best, table = judgement.scores.max(), observation.table
            row = table.row_of(0, *chosen)
            judgement.scores[row] = np.nextafter(best, np.inf) if np.isfinite(best) else 0.0
            if chosen[1] != table.gpu[row]:  # another GPU of its group
                judgement.gpu = table.gpu.copy()
                judgement.gpu[row] = chosen[1]
        return judgement
