"""What a policy is: scores for (job, GPU) pairs of a batch of observations; the best is the action. Arrays only."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from adlro.sim.observation import HOLD, Bools, Floats, Ints, Observation


class Policy:
    """Maps a batch of observations to one action each; holds no state between calls.

    A subclass gives `preferences`; the pair with the highest score among those that fit now is the action, the earlier
    submitted job and then the lower-numbered GPU on a tie, HOLD where no pair is wanted.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    @classmethod
    def for_load(cls, load: float) -> Policy:
        """The policy as it is set where the load is known beforehand: most have no settings.

        Args:
            load: arrival rate as a share of what the cluster can carry.
        """
        return cls()

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) a new array, higher is better; -inf: this policy does not want the pair now."""
        raise NotImplementedError

    def scores(self, observation: Observation) -> Floats:
        """(N, J, G) the preferences, with nothing left to wait for ever.

        Where a hold is not allowed (nothing runs, nothing will arrive) and the policy wants no pair that fits, as when
        the GPUs it waits for are lost, the first job in order of submission that fits anywhere gets minus its expected
        durations as scores.
        """
        scores = self.preferences(observation)
        if observation.hold_allowed.all():
            return scores
        fits = observation.fits_now
        wanted = (fits & (scores > -np.inf)).any(axis=(1, 2))
        rows = np.flatnonzero(~observation.hold_allowed & ~wanted & fits.any(axis=(1, 2)))
        if not len(rows):
            return scores
        job = np.argmax(fits[rows].any(axis=2), axis=1)
        scores[rows, job] = -observation.duration_s[rows, job]
        return scores

    def act(self, observation: Observation) -> Ints:
        """(N, 2) the job's and the GPU's place in the observation, or (HOLD, HOLD)."""
        return self.choose(observation, self.scores(observation))

    @staticmethod
    def choose(observation: Observation, scores: Floats) -> Ints:
        """The action that `scores` stand for."""
        actions = np.full((len(scores), 2), HOLD, dtype=np.int64)
        if len(scores) == 1:
            return Policy._choose_one(observation.fits_now[0], scores[0], actions)
        # Few pairs fit where most GPUs are busy: they alone are looked at, in the order of rows, jobs, GPUs.
        row, job, gpu = np.nonzero(observation.fits_now)
        score = scores[row, job, gpu]
        wanted = score > -np.inf
        row, job, gpu, score = row[wanted], job[wanted], gpu[wanted], score[wanted]
        if len(row):
            first = np.flatnonzero(np.diff(row, prepend=-1))
            best = np.maximum.reduceat(score, first)
            highest = np.flatnonzero(score == np.repeat(best, np.diff(first, append=len(row))))
            chosen = highest[np.diff(row[highest], prepend=-1) > 0]  # of equals the first
            actions[row[chosen], 0], actions[row[chosen], 1] = job[chosen], gpu[chosen]
        return actions

    @staticmethod
    def _choose_one(fits: Bools, scores: Floats, actions: Ints) -> Ints:
        # A single cluster may be large and idle: millions of pairs fit, and a plain argmax is ten times faster.
        if fits.size:
            allowed = np.where(fits, scores, -np.inf)
            job, gpu = divmod(int(np.argmax(allowed)), scores.shape[1])
            if allowed[job, gpu] > -np.inf:
                actions[0] = job, gpu
        return actions


def first_waiting(waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N, J) True at the first True of each row of `waiting`."""
    first = np.zeros_like(waiting)
    if waiting.shape[1]:
        rows = np.flatnonzero(waiting.any(axis=1))
        first[rows, np.argmax(waiting[rows], axis=1)] = True
    return first


def expected_wait_s(observation: Observation) -> Floats:
    """(N, J, G) expected time until a job could start on a GPU, if no other job took it.

    0 where it fits now; where the GPU is busy, its expected remaining time; where it is idle and its node has too few
    cores or too little memory left, the time until the next job of that node is expected to end (which may not free
    enough: how much each running job holds is not in the observation); inf where that never comes.
    """
    remaining_s, idle = observation.gpu_remaining_s, observation.gpu_idle
    next_end_s = np.full(observation.node_cores_free.shape, np.inf)
    rows = np.arange(len(remaining_s))[:, None]
    np.minimum.at(next_end_s, (rows, observation.gpu_node), np.where(idle, np.inf, remaining_s))
    otherwise_s = np.where(idle, next_end_s[rows, observation.gpu_node], remaining_s)
    return np.where(observation.fits_now, 0.0, otherwise_s[:, None, :])
