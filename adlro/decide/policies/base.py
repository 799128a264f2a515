"""The base class of policies: scores for the candidates of a batch of observations. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO, Busy, bound, spared
from adlro.decide.precedence import highest_that_fits, highest_that_waits, levels, order_of, refuse_lower
from adlro.decide.winner import actions, winners
from adlro.records.decisions import DecisionBasis
from adlro.records.precedence import LEVELS, Precedence
from adlro.state.candidate_table import gpus_of_job
from adlro.state.gangs import gpus_of
from adlro.state.observation import HOLD, Bools, CandidateTable, Floats, Ints, Observation
from adlro.state.reordering import only_jobs, reordered


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

    def in_former_order(self, order: Ints, rows: Ints) -> Judgement:
        """The judgement of jobs in another order, with the places and rows from before (`adlro.state.reordering`).

        Args:
            order: (N, J) the former place of the job at each place.
            rows: (C,) the former row of each row.
        """

        def back(column: NDArray[Any] | None) -> Any:
            if column is None:
                return None
            found = np.empty_like(column)
            found[rows] = column
            return found

        reserve = self.reserve
        if reserve is not None:
            clusters = np.flatnonzero(reserve >= 0)
            reserve = reserve.copy()
            reserve[clusters] = order[clusters, reserve[clusters]]
        base = self.base
        return replace(
            self,
            scores=back(self.scores),
            values=back(self.values),
            gpu=back(self.gpu),
            reserve=reserve,
            busy={n: start._replace(job=int(order[n, start.job])) for n, start in self.busy.items()},
            base=base if base is None or base == HOLD else int(rows[base]),
        )

    def no_longer_its_own(self, n: int) -> None:
        """The rule of precedence has chosen another start for a cluster: the policy's reasons are about its own start.

        That a fallback decided remains true.
        """
        if not self.basis_of(n).fallback:
            self.basis.pop(n, None)
            self.notes[n] = "jobs of a higher level go first"

    def take(self, n: int, table: CandidateTable, among: Ints, answer: Judgement) -> None:
        """Replaces the judgement of one cluster; a reservation stays, unless the answer has another one.

        Args:
            n: its number.
            table: of all clusters.
            among: (R,) which of its rows the answer is about; the others are refused.
            answer: of this cluster alone.
        """
        rows = table.rows(n)
        self.scores[rows] = -np.inf
        self.scores[rows][among] = answer.scores
        if self.gpu is None and answer.gpu is not None:
            self.gpu = table.gpu.copy()
        if self.gpu is not None:
            self.gpu[rows][among] = table.gpu[rows][among] if answer.gpu is None else answer.gpu
        if answer.reserve is not None and answer.reserve[0] != HOLD:
            if self.reserve is None:
                self.reserve = np.full(len(table.first), HOLD, dtype=np.int64)
            self.reserve[n] = answer.reserve[0]
        told: tuple[tuple[dict[int, Any], dict[int, Any]], ...] = (
            (self.busy, answer.busy),
            (self.basis, answer.basis),
            (self.notes, answer.notes),
        )
        for mine_of, other_of in told:
            mine_of.pop(n, None)
            if 0 in other_of:
                mine_of[n] = other_of[0]
        if len(table.first) == 1:
            self._take_values(among, answer)

    def _take_values(self, among: Ints, answer: Judgement) -> None:
        """The part of `take` that judgements of a single decision have."""
        self.values, self.hold_value, self.margin = None, answer.hold_value, answer.margin
        if answer.values is not None:
            self.values = np.full(len(self.scores), np.nan)
            self.values[among] = answer.values
        self.base = answer.base
        if answer.base is not None and answer.base != HOLD:
            self.base = int(among[answer.base])

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
        name: by which it is selected: small letters, digits and underscores.
        description: what it chooses, and what its score is.
        advice: one sentence: what it is for.
        guarded: in service its decisions have a deadline, as for a learned policy of any size.
        one_cluster: it remembers the observations of one cluster, and decides for no other.
        preempts: it may stop jobs that can be stopped: it is asked also where nothing fits while one runs.
        shares: it may start a job on a GPU that another has: it is asked also where nothing fits while one is open.
        version: the version of the weights of a learned policy.
        wait_ratio: bounds every job's wait (policies/bounded_wait.py); the same for all; inf: no bound but the policy's
            own.
        precedence: which waiting jobs go before others, whatever the policy (adlro/decide/precedence.py); None: none do
            by rule.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    advice: ClassVar[str] = ""
    guarded: ClassVar[bool] = False
    one_cluster: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    version: str = ""
    wait_ratio: float = DEFAULT_RATIO
    precedence: Precedence | None = None

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

    def weigh_by_precedence(self, observation: Observation) -> Judgement:
        """As `weigh`, with the rule of precedence."""
        if self.precedence is None:
            return self.weigh(observation)
        level = levels(self.precedence, observation)
        judgement = self._weigh_in_order(observation, level)
        started = self._started_level(observation, level, judgement)
        highest = highest_that_fits(observation.table, level)
        if judgement.busy:  # others may start on busy GPUs as well, though none of their rows fits
            with_busy = list(judgement.busy)
            highest[with_busy] = highest_that_waits(observation, level)[with_busy]
        if observation.gangs is not None:  # what is kept free for a job is kept free from lower ones alone
            reserved = observation.gangs.reserved
            holds = np.flatnonzero((started == HOLD) & (reserved >= 0))
            started[holds] = level[holds, reserved[holds]]
        for n in np.flatnonzero((started > HOLD) & (highest > started)).tolist():
            self._ask_about_higher(observation, n, level[n : n + 1], int(started[n]), judgement)
        return judgement

    def _weigh_in_order(self, observation: Observation, level: Ints) -> Judgement:
        order = order_of(level, observation)
        if order is None:
            return self.weigh(observation)
        in_order, rows = reordered(observation, order)
        judgement = self.weigh(in_order).in_former_order(order, rows)
        table = observation.table
        before, busy = winners(table, judgement.scores), dict(judgement.busy)
        refuse_lower(table, level, judgement.scores, judgement.busy)
        for n in np.flatnonzero(winners(table, judgement.scores) != before).tolist():
            judgement.no_longer_its_own(n)
        for n in busy.keys() - judgement.busy.keys():
            judgement.no_longer_its_own(n)
        return judgement

    @staticmethod
    def _started_level(observation: Observation, level: Ints, judgement: Judgement) -> Ints:
        """(N,) the level of the job that would start; HOLD: none would."""
        table, started = observation.table, np.full(len(level), HOLD, dtype=np.int64)
        for n, row in enumerate(winners(table, judgement.scores).tolist()):
            start = judgement.busy.get(n)
            if start is not None:
                started[n] = level[n, start.job]
            elif row != HOLD:
                started[n] = level[n, table.job[row]]
        return started

    def _ask_about_higher(
        self, observation: Observation, n: int, level: Ints, started: int, judgement: Judgement
    ) -> None:
        """Replaces a cluster's start by one of a higher level, if the policy starts one when it sees these alone.

        Some policies choose one pair by a plan of their own and refuse all others, whatever the order of the jobs.

        Args:
            level: (1, J) the levels of its jobs.
            started: the level of the start.
        """
        one = observation.of_cluster(n)
        for _ in range(LEVELS):
            shown, among = only_jobs(one, level > started)
            if not shown.job_waiting.any():
                return
            answer = self._weigh_in_order(shown, level)
            higher = int(self._started_level(shown, level, answer)[0])
            if higher <= started:  # it starts none, or, against the rules, one that it was not shown
                return
            started = higher
            judgement.take(n, observation.table, among, answer)
            judgement.no_longer_its_own(n)

    def judge(self, observation: Observation) -> Judgement:
        """The preferences, changed by the rule of precedence, and so that no job waits for ever.

        Overdue jobs go first, and are not stopped; nor is what has started at this instant. If a hold is not allowed
        (no job runs or will arrive) and the policy refuses all pairs that fit, as when it waits for lost GPUs, the
        first job in order of submission that fits on some GPU gets minus its expected durations as scores.
        """
        if self.preempts:
            observation = spared(observation, self.wait_ratio)
        judgement = self.weigh_by_precedence(observation)
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

    def _start_something(self, observation: Observation, scores: Floats) -> None:
        table = observation.table
        level = None if self.precedence is None else levels(self.precedence, observation)
        held = ~observation.hold_allowed & (table.first[:, -1] > table.first[:, 0])
        for n in np.flatnonzero(held & (winners(table, scores) == HOLD)):
            job = table.job[table.first[n, 0]]
            if level is not None:
                fits = table.rows_of_job[n] > 0
                job = int(np.argmax(np.where(fits, level[n], HOLD)))
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
