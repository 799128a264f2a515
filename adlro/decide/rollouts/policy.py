"""The learned policy, thinking longer: its choice, checked by rollouts over imagined futures. Arrays only.

At up to 15 ms a decision on 16 GPUs: in longer queues and larger clusters it looks ahead less, or not at all. The
network's choice is left only where the gain of another clears two standard errors; what it knows of the population and
of the arrival rate is what it has seen (adlro/decide/rollouts).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.dqn import Dqn, _Loaded
from adlro.decide.rollouts.lookahead import Lookahead
from adlro.errors import Unsupported
from adlro.state.observation import HOLD, Observation


class DqnLookahead(Dqn):
    """Decides for one cluster, and remembers the jobs that have come to it: one object a cluster, from its beginning.

    Where the clock goes back, it begins anew.

    Args:
        checkpoint: as for `Dqn`.

    Attributes:
        lookahead: what it remembers, and thinks with.
    """

    name = "dqn_lookahead"
    description = (
        "dqn, left only where another action gains for certain over imagined futures (up to 15 ms a decision); "
        "score: as dqn, the action that is taken on top"
    )
    one_cluster = True

    def __init__(self, checkpoint: Path | None = None) -> None:
        super().__init__(checkpoint)
        self.lookahead = Lookahead()
        self._time_s = -np.inf
        self._learned: Dqn | None = None

    @classmethod
    def of(cls, learned: Dqn, before: Policy | None = None) -> DqnLookahead:
        """Decides by what another policy has read, or is not able to read, and by no file of its own.

        Args:
            learned: that policy.
            before: the one whose place it takes; where that looks ahead too, its memory is taken over.
        """
        made = cls(learned.checkpoint)
        made._learned = learned
        if isinstance(before, cls):
            made.lookahead, made._time_s = before.lookahead, before._time_s
        return made

    @property
    def version(self) -> str:  # type: ignore[override]
        """A digest of the checkpoint; empty before it is read."""
        return super().version if self._learned is None else self._learned.version

    def _now_loaded(self) -> _Loaded:
        return super()._now_loaded() if self._learned is None else self._learned._now_loaded()

    def weigh(self, observation: Observation) -> Judgement:
        """As `Dqn`, with the action that looking ahead finds on top.

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
        job, gpu = (int(each) for each in self.choose(observation, judgement)[0])
        chosen = self.lookahead.choose(observation, (job, gpu))
        if chosen == (job, gpu):
            return judgement
        judgement.basis.pop(0, None)  # whatever its base's choice rested on, this one is its own
        judgement.notes.pop(0, None)
        if chosen[0] == HOLD:
            judgement.scores[:] = -np.inf
        else:
            best, table = judgement.scores.max(), observation.table
            row = table.row_of(0, *chosen)
            judgement.scores[row] = np.nextafter(best, np.inf) if np.isfinite(best) else 0.0
            if chosen[1] != table.gpu[row]:  # another of its group
                judgement.gpu = table.gpu.copy()
                judgement.gpu[row] = chosen[1]
        return judgement
