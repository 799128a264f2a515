"""The base class of policies: scores for the candidates of a batch of observations. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO, Busy, bound, spared
from adlro.decide.winner import actions, winners
from adlro.records.decisions import DecisionBasis
from adlro.state.candidate_table import gpus_of_job
from adlro.state.gangs import gpus_of
from adlro.state.observation import HOLD, Bools, CandidateTable, Floats, Ints, Observation


class BusyStart(NamedTuple):
    """A start on GPUs of which some are busy, which are in no table of candidates.

    Attributes:
        job: the job's place in the observation.
        gpus: its GPUs, in ascending order.
        stops: True: every job that holds one of them is stopped, on all its GPUs; False: the job shares the GPU.
    """

    job: int
    gpus: tuple[int, ...]
    stops: bool


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
        busy: by cluster, a start on busy GPUs; it goes before all rows of the table.
        base: of a single decision, the row that the policy's base chooses, or HOLD; None: it has no base.
        margin: what the value of another start must exceed the base's by, at least, to replace it; None: no margin.
    """

    scores: Floats
    basis: dict[int, DecisionBasis] = field(default_factory=dict)
    values: Floats | None = None
    hold_value: Floats | None = None
    notes: dict[int, str] = field(default_factory=dict)
    gpu: Ints | None = None
    reserve: Ints | None = None
    busy: dict[int, BusyStart] = field(default_factory=dict)
    base: int | None = None
    margin: float | None = None

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
        preempts: it may stop jobs that can be stopped: it is asked also where nothing fits while one runs.
        shares: it may start a job on a GPU that another has: it is asked also where nothing fits while one is open.
        version: the version of the weights of a learned policy.
        wait_ratio: bounds every job's wait (policies/bounded_wait.py); the same for all; inf: no bound but the policy's
            own.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    guarded: ClassVar[bool] = False
    one_cluster: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    shares: ClassVar[bool] = False
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

        Overdue jobs go first, and are not stopped; nor is what has started at this instant. If a hold is not allowed
        (no job runs or will arrive) and the policy refuses all pairs that fit, as when it waits for lost GPUs, the
        first job in order of submission that fits on some GPU gets minus its expected durations as scores.
        """
        if self.preempts:
            observation = spared(observation, self.wait_ratio)
        judgement = self.weigh(observation)
        busy: dict[int, Busy] = dict(judgement.busy)
        bounded = bound(observation, judgement.scores, self.wait_ratio, busy, may_stop=self.preempts)
        for n in np.flatnonzero(bounded).tolist():
            judgement.busy.pop(n, None)
            if n in busy:
                judgement.busy[n] = BusyStart(*busy[n])
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
        """(N, 1 + W) the actions of a judgement; `stopping` says which of them stop the jobs on their GPUs."""
        chosen = actions(observation.table, winners(observation.table, judgement.scores), judgement.gpu)
        width = max((len(start.gpus) for start in judgement.busy.values()), default=0)
        if width > chosen.shape[1] - 1:
            chosen = np.pad(chosen, ((0, 0), (0, width + 1 - chosen.shape[1])), constant_values=-1)
        for n, start in judgement.busy.items():
            chosen[n] = -1
            chosen[n, 0], chosen[n, 1 : 1 + len(start.gpus)] = start.job, start.gpus
        return chosen

    @staticmethod
    def stopping(observation: Observation, judgement: Judgement) -> Bools | None:
        """(N,) which actions stop the jobs on their GPUs; None: none does."""
        if not judgement.busy:
            return None
        stops = np.zeros(len(observation.table.first), dtype=np.bool_)
        for n, start in judgement.busy.items():
            stops[n] = start.stops
        return stops


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
