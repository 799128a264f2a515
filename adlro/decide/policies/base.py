"""What a policy is: scores for the candidates of a batch of observations; the best is the action. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO, bound
from adlro.decide.winner import actions, winners
from adlro.records.decisions import DecisionBasis
from adlro.state.candidate_table import gpus_of_job
from adlro.state.observation import HOLD, Bools, CandidateTable, Floats, Ints, Observation


@dataclass(slots=True)
class Judgement:
    """What a policy makes of N observations.

    Attributes:
        scores: (C,) of the rows of the candidate table; the best is the action; -inf: not wanted.
        basis: (N,) what each rests on, where it is not plainly the policy.
        values: (C,) what the policy reckons with, where that is something else than the scores; nan: nothing. They are
            of the lowest GPU of each group.
        hold_value: (N,) the same of holding.
        notes: for clusters, in words, why the basis is what it is.
        gpu: (C,) which GPU of its group a row is meant to take, where that is not always the lowest; the score is that
            GPU's alone.
    """

    scores: Floats
    basis: dict[int, DecisionBasis] = field(default_factory=dict)
    values: Floats | None = None
    hold_value: Floats | None = None
    notes: dict[int, str] = field(default_factory=dict)
    gpu: Ints | None = None

    def basis_of(self, n: int) -> DecisionBasis:
        """What a cluster's decision rests on."""
        return self.basis.get(n, DecisionBasis.POLICY)

    def action(self, table: CandidateTable, row: int) -> tuple[int, int]:
        """The job's and the GPU's place in the observation, or (HOLD, HOLD), that a row of its table stands for."""
        if row == HOLD:
            return HOLD, HOLD
        return int(table.job[row]), int((table.gpu if self.gpu is None else self.gpu)[row])

    def scores_of_gpus(self, observation: Observation, job: int) -> Floats:
        """(G,) scores of the job at a place of an observation of one cluster, GPU by GPU.

        -inf: not wanted; nan: the row is wanted, and takes another GPU of the group.
        """
        table, scores = observation.table, np.full(observation.gpu_idle.shape[1], -np.inf)
        rows = slice(table.first[0, job], table.first[0, job + 1])
        gpus, size = gpus_of_job(observation, 0, job), table.size[rows]
        scores[gpus] = np.repeat(self.scores[rows], size)
        if self.gpu is not None:
            others = gpus[gpus != np.repeat(self.gpu[rows], size)]
            scores[others[scores[others] > -np.inf]] = np.nan
        return scores

    def values_of_gpus(self, observation: Observation, job: int) -> Floats:
        """(G,) the same of the values; nan: nothing, as of all but the lowest GPU of a group."""
        table, values = observation.table, np.full(observation.gpu_idle.shape[1], np.nan)
        rows = slice(table.first[0, job], table.first[0, job + 1])
        if self.values is not None:
            values[table.gpu[rows]] = self.values[rows]
        return values


class Policy:
    """Maps a batch of observations to one action each; holds no state between calls.

    A subclass gives `preferences`, or `weigh`, which says more; the row of the candidate table with the highest score
    is the action, the earlier submitted job and then the lower-numbered GPU on a tie, HOLD where no row is wanted.

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
        """(C,) a new array, a figure for each row of the table, higher is better; -inf: not wanted now."""
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
        for n in np.flatnonzero(bound(observation, judgement.scores, self.wait_ratio)).tolist():
            if not judgement.basis_of(n).fallback:
                judgement.basis[n] = DecisionBasis.OVERDUE
        if not observation.hold_allowed.all():
            self._start_something(observation, judgement.scores)
        return judgement

    def scores(self, observation: Observation) -> Floats:
        """(C,) as judged."""
        return self.judge(observation).scores

    @staticmethod
    def _start_something(observation: Observation, scores: Floats) -> None:
        table = observation.table
        held = ~observation.hold_allowed & (table.first[:, -1] > table.first[:, 0])
        for n in np.flatnonzero(held & (winners(table, scores) == HOLD)):
            job = table.job[table.first[n, 0]]
            rows = slice(table.first[n, job], table.first[n, job + 1])
            scores[rows] = -table.duration_s[rows]

    def act(self, observation: Observation) -> Ints:
        """(N, 2) the job's and the GPU's place in the observation, or (HOLD, HOLD)."""
        return self.choose(observation, self.judge(observation))

    @staticmethod
    def choose(observation: Observation, judgement: Judgement) -> Ints:
        """(N, 2) the actions that a judgement stands for."""
        return actions(observation.table, winners(observation.table, judgement.scores), judgement.gpu)


def first_waiting(waiting: Bools) -> Bools:
    """(N, J) True at the first True of each row of `waiting`."""
    first = np.zeros_like(waiting)
    if waiting.shape[1]:
        rows = np.flatnonzero(waiting.any(axis=1))
        first[rows, np.argmax(waiting[rows], axis=1)] = True
    return first


def only(observation: Observation, jobs: Bools, scores: Floats) -> Floats:
    """(C,) the scores of the rows of some jobs; -inf in all others.

    Args:
        jobs: (N, J) those jobs.
        scores: (C,) of all rows.
    """
    return np.where(observation.table.of_job(jobs), scores, -np.inf)
