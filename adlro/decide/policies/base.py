"""What a policy is: scores for (job, GPU) pairs of a batch of observations; the best is the action. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO, bound
from adlro.decide.winner import winners
from adlro.records.decisions import DecisionBasis as Basis
from adlro.state.observation import Floats, Ints, Observation


@dataclass(slots=True)
class Judgement:
    """What a policy makes of N observations.

    Attributes:
        scores: (N, J, G) the best of those that fit is the action; -inf: not wanted.
        basis: (N,) what each rests on, where it is not plainly the policy.
        values: (N, J, G) what the policy reckons with, where that is something else than the scores; nan: nothing.
        hold_value: (N,) the same of holding.
        notes: for rows, in words, why the basis is what it is.
    """

    scores: Floats
    basis: dict[int, Basis] = field(default_factory=dict)
    values: Floats | None = None
    hold_value: Floats | None = None
    notes: dict[int, str] = field(default_factory=dict)

    def basis_of(self, row: int) -> Basis:
        """What a row's decision rests on."""
        return self.basis.get(row, Basis.POLICY)


class Policy:
    """Maps a batch of observations to one action each; holds no state between calls.

    A subclass gives `preferences`, or `weigh`, which says more; the pair with the highest score among those that fit
    now is the action, the earlier submitted job and then the lower-numbered GPU on a tie, HOLD where no pair is wanted.

    Attributes:
        guarded: in service it has a deadline, as what is learned and may be of any size.
        one_cluster: it remembers what one cluster has seen, and decides for no other.
        version: which weights, where it is learned.
        wait_ratio: bounds every job's wait (policies/bounded_wait.py); the same for all; inf: no
            bound but the policy's own.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    guarded: ClassVar[bool] = False
    one_cluster: ClassVar[bool] = False
    version: str = ""
    wait_ratio: float = DEFAULT_RATIO

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

    def weigh(self, observation: Observation) -> Judgement:
        """The preferences, with what they rest on."""
        return Judgement(self.preferences(observation))

    def judge(self, observation: Observation) -> Judgement:
        """The preferences, with nothing left to wait for ever.

        Jobs that have waited too long go first. Where a hold is not allowed (nothing runs, nothing will arrive) and the
        policy wants no pair that fits, as when the GPUs it waits for are lost, the first job in order of submission
        that fits anywhere gets minus its expected durations as scores.
        """
        judgement = self.weigh(observation)
        for row in np.flatnonzero(bound(observation, judgement.scores, self.wait_ratio)).tolist():
            if not judgement.basis_of(row).fallback:
                judgement.basis[row] = Basis.OVERDUE
        if not observation.hold_allowed.all():
            self._start_something(observation, judgement.scores)
        return judgement

    def scores(self, observation: Observation) -> Floats:
        """(N, J, G) as judged."""
        return self.judge(observation).scores

    @staticmethod
    def _start_something(observation: Observation, scores: Floats) -> None:
        fits = observation.fits_now
        wanted = (fits & (scores > -np.inf)).any(axis=(1, 2))
        rows = np.flatnonzero(~observation.hold_allowed & ~wanted & fits.any(axis=(1, 2)))
        if len(rows):
            job = np.argmax(fits[rows].any(axis=2), axis=1)
            scores[rows, job] = -observation.duration_s[rows, job]

    def act(self, observation: Observation) -> Ints:
        """(N, 2) the job's and the GPU's place in the observation, or (HOLD, HOLD)."""
        return self.choose(observation, self.scores(observation))

    @staticmethod
    def choose(observation: Observation, scores: Floats) -> Ints:
        """(N, 2) the actions that `scores` stand for."""
        return winners(observation.fits_now, scores)


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
