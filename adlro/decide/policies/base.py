"""The base class of policies: scores for the candidates of a batch of observations. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO, bound
from adlro.decide.winner import actions, winners
from adlro.records.decisions import DecisionBasis
from adlro.state.candidate_table import gpus_of_job
from adlro.state.gangs import gpus_of
from adlro.state.observation import HOLD, Bools, CandidateTable, Floats, Ints, Observation


@dataclass(slots=True)
class Judgement:
    """A policy's scores for N observations.

    Attributes:
        scores: (C,) scores of the rows of the candidate table; the best is the action; -inf: refused.
        basis: the basis of a cluster's decision, if it is not simply the policy.
        values: (C,) the policy's estimates, if they differ from the scores; nan: none. They hold for the lowest GPU of
            each group.
        hold_value: (N,) the estimate for a hold.
        notes: by cluster, the reason of the basis, in words.
        gpu: (C,) the GPU of each row's group that the policy chooses, if it is not always the lowest; the score holds
            for that GPU alone. For a set its first GPU.
        reserve: (N,) place of the job that GPUs are kept free for from now on, -1: none; None: as before.
    """

    scores: Floats
    basis: dict[int, DecisionBasis] = field(default_factory=dict)
    values: Floats | None = None
    hold_value: Floats | None = None
    notes: dict[int, str] = field(default_factory=dict)
    gpu: Ints | None = None
    reserve: Ints | None = None

    def basis_of(self, n: int) -> DecisionBasis:
        """The basis of a cluster's decision."""
        return self.basis.get(n, DecisionBasis.POLICY)

    def action(self, table: CandidateTable, row: int) -> tuple[int, tuple[int, ...]]:
        """The action of a row of the table: the job's place in the observation, and its GPUs; or HOLD and none."""
        if row == HOLD:
            return HOLD, ()
        gpus = gpus_of(table.gpus[row])
        if self.gpu is not None and len(gpus) == 1:
            gpus = (int(self.gpu[row]),)
        return int(table.job[row]), gpus

    def scores_of_gpus(self, observation: Observation, job: int) -> Floats:
        """(G,) scores of the job at a place of an observation of one cluster, for each GPU.

        -inf: refused; nan: the row is not refused, and takes another GPU of the group.
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
        """(G,) the values in the same form; nan: none, as for all but the lowest GPU of a group."""
        table, values = observation.table, np.full(observation.gpu_idle.shape[1], np.nan)
        rows = slice(table.first[0, job], table.first[0, job + 1])
        if self.values is not None:
            values[table.gpu[rows]] = self.values[rows]
        return values


class Policy:
    """Maps a batch of observations to one action each; has no state between calls.

    A subclass implements `preferences`, or `weigh`, which returns more; the row of the candidate table with the highest
    score is the action; on a tie the earlier submitted job, then the lower-numbered GPU; HOLD if every row is refused.

    Attributes:
        guarded: in service its decisions have a deadline, as for a learned policy of any size.
        one_cluster: it remembers the observations of one cluster, and decides for no other.
        version: the version of the weights of a learned policy.
        wait_ratio: bounds every job's wait (policies/bounded_wait.py); the same for all; inf: no bound but the policy's
            own.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    guarded: ClassVar[bool] = False
    one_cluster: ClassVar[bool] = False
    version: str = ""
    wait_ratio: float = DEFAULT_RATIO

    @classmethod
    def for_load(cls, load: float) -> Policy:
        """The policy tuned for a known load; most policies have no settings.

        Args:
            load: arrival rate as a share of the cluster's capacity.
        """
        return cls()

    def preferences(self, observation: Observation) -> Floats:
        """(C,) a new array of preferences, one for each row of the table, higher is better; -inf: refused now."""
        raise NotImplementedError

    def weigh(self, observation: Observation) -> Judgement:
        """The preferences, with their basis."""
        return Judgement(self.preferences(observation))

    def judge(self, observation: Observation) -> Judgement:
        """The preferences, changed so that no job waits for ever.

        Overdue jobs go first. If a hold is not allowed (no job runs or will arrive) and the policy refuses all pairs
        that fit, as when it waits for lost GPUs, the first job in order of submission that fits on some GPU gets minus
        its expected durations as scores.
        """
        judgement = self.weigh(observation)
        for n in np.flatnonzero(bound(observation, judgement.scores, self.wait_ratio)).tolist():
            if not judgement.basis_of(n).fallback:
                judgement.basis[n] = DecisionBasis.OVERDUE
        if not observation.hold_allowed.all():
            self._start_something(observation, judgement.scores)
        return judgement

    def scores(self, observation: Observation) -> Floats:
        """(C,) the scores of `judge`."""
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
        """(N, 1 + W) place of the job in the observation and its GPUs, then -1; or HOLD everywhere."""
        return self.choose(observation, self.judge(observation))

    @staticmethod
    def choose(observation: Observation, judgement: Judgement) -> Ints:
        """(N, 1 + W) the actions of a judgement."""
        return actions(observation.table, winners(observation.table, judgement.scores), judgement.gpu)


def lowest_gpu(observation: Observation) -> Floats:
    """(C,) the lowest number of each row's GPUs; for a spread set plus the number of GPUs: packed sets go first."""
    table = observation.table
    number = table.gpu + np.where(table.spread, observation.gpu_idle.shape[1], 0)
    return number.astype(np.float64)


def first_waiting(waiting: Bools) -> Bools:
    """(N, J) True at the first True of each row of `waiting`."""
    first = np.zeros_like(waiting)
    if waiting.shape[1]:
        rows = np.flatnonzero(waiting.any(axis=1))
        first[rows, np.argmax(waiting[rows], axis=1)] = True
    return first


def only(observation: Observation, jobs: Bools, scores: Floats) -> Floats:
    """(C,) the scores of the rows of some jobs; -inf in all other rows.

    Args:
        jobs: (N, J) True for these jobs.
        scores: (C,) scores of all rows.
    """
    return np.where(observation.table.of_job(jobs), scores, -np.inf)
