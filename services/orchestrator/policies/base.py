"""What a policy is: scores for (job, GPU) pairs of a batch of observations; the best is the action. Arrays only."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from adlro.sim.observation import HOLD, Floats, Ints, Observation


class Policy:
    """Maps a batch of observations to one action each; holds no state between calls.

    A subclass gives `scores`; the pair with the highest score among those that fit now is the action, the earlier
    submitted job and then the lower-numbered GPU on a tie, HOLD where no pair is allowed.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    def scores(self, observation: Observation) -> Floats:
        """(N, J, G) higher is better; -inf: this policy does not want the pair."""
        raise NotImplementedError

    def act(self, observation: Observation) -> Ints:
        """(N, 2) the job's and the GPU's place in the observation, or (HOLD, HOLD)."""
        return self.choose(observation, self.scores(observation))

    @staticmethod
    def choose(observation: Observation, scores: Floats) -> Ints:
        """The action that `scores` stand for."""
        batch, jobs, gpus = scores.shape
        actions = np.full((batch, 2), HOLD, dtype=np.int64)
        if jobs == 0:
            return actions
        allowed = np.where(observation.fits_now, scores, -np.inf).reshape(batch, -1)
        best = np.argmax(allowed, axis=1)
        found = allowed[np.arange(batch), best] > -np.inf
        actions[found, 0], actions[found, 1] = np.divmod(best[found], gpus)
        return actions


def first_waiting(waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N, J) True at the first True of each row of `waiting`."""
    first: NDArray[np.bool_] = waiting & (np.cumsum(waiting, axis=1) == 1)
    return first
