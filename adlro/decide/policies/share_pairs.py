"""hold_gang that also lets two jobs share a GPU. Arrays only."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from adlro.decide.gang_rule import surroundings_of
from adlro.decide.gang_scores import never_short
from adlro.decide.hold_rule import room_to_look
from adlro.decide.looked import as_type, looked_at
from adlro.decide.policies.base import BusyStart, Judgement
from adlro.decide.policies.bounded_wait import SHARE, bound, overdue
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang, HoldGangSettings, clusters_with_gangs
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedy, HoldGreedySettings
from adlro.decide.present import in_layout
from adlro.decide.reservation import outlook_of
from adlro.decide.share_rule import Pairs, ShareRule, find_pairs, find_pairs_beside_gangs, no_pairs, residents_of
from adlro.decide.winner import winner, winners
from adlro.errors import InvalidInput
from adlro.records.decisions import DecisionBasis
from adlro.state.observation import HOLD, Bools, CandidateTable, Floats, Ints, Observation, Sharing


@dataclasses.dataclass(frozen=True, slots=True)
class SharePairsSettings:
    """The weights of a pair.

    Attributes:
        s_min: a pair is refused if the shares of their speeds that both jobs keep add up to less.
        pen: weight of the time that the job on the GPU loses, against that of the job that comes.
    """

    s_min: float
    pen: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value < math.inf:
                raise InvalidInput(f"{field.name} must be a number from 0, not {value}", field=field.name)

    def rule(self) -> ShareRule:
        """The parameters for compiled code."""
        return ShareRule(float(self.s_min), float(self.pen))


SHARED = SharePairsSettings(s_min=1.4, pen=1.0)
"""One setting for every load."""


class SharePairs(HoldGang):
    """Among the idle GPUs and those with one job that may share, the one of least cost for a job; or a hold.

    What is expected of a pair, the stretched time of the job that comes and the harm to the one that is there, counts
    as its duration on that GPU: adlro/decide/share_rule.py has the formulas. On idle GPUs it is `hold_greedy_fixed`, or
    `hold_gang` where jobs of several GPUs wait or run, by the same code. It should beat `hold_greedy_fixed` where jobs
    may share and their pairs are known, the more the higher the load; where only the mean of all pairs is known it does
    not (docs/gangs.md).

    An overdue job (policies/bounded_wait.py) may also go beside another one; nobody goes beside a job on the nodes that
    it waits for.

    Source: Gandiva packs jobs as long as their speeds allow it (Xiao et al., "Gandiva: introspective cluster scheduling
    for deep learning", 2018); Gavel measured the pairs (Narayanan et al., "Heterogeneity-aware cluster scheduling
    policies for deep learning workloads", 2020). The terms and figures are this project's own; `benchmarks/sharing.py`
    sets them.

    Args:
        settings: of pairs, instead of the one setting.
        gangs: the settings of `hold_gang`, where jobs of several GPUs wait or run.
        single: those of `hold_greedy`, elsewhere.
    """

    name = "share_pairs"
    description = (
        "hold_gang that also lets two jobs share a GPU, if they may and are expected to keep much of their speeds; "
        "score: as hold_gang's, with the time that both lose"
    )
    advice = (
        "Where jobs may share GPUs: mean JCT 12 % lower at load 0.9, if it is known how pairs slow each other down."
    )
    shares = True

    def __init__(
        self,
        settings: SharePairsSettings | None = None,
        gangs: HoldGangSettings | None = None,
        single: HoldGreedySettings = FIXED,
    ) -> None:
        super().__init__(gangs or ONE_SETTING)
        self.pairs = settings or SHARED
        self._single = HoldGreedy(settings=single)

    def weigh(self, observation: Observation) -> Judgement:
        """As `hold_gang`; where a pair is better than every row of the table, its start."""
        judgement = super().weigh(observation)
        if observation.sharing is None:
            return judgement
        found = self.pairs_of(observation, judgement.reserve)
        rows = winners(observation.table, judgement.scores)
        jobs, best = _best(found)
        for n in np.flatnonzero(best > -np.inf).tolist():
            if rows[n] == HOLD or best[n] > judgement.scores[rows[n]]:
                judgement.busy[n] = _start(found, n, int(jobs[n]))
        return judgement

    def judge(self, observation: Observation) -> Judgement:
        """As every policy's; an overdue job may go beside another one, and others not where it waits."""
        if observation.sharing is None or self.wait_ratio == math.inf:
            return super().judge(observation)
        late = overdue(observation, self.wait_ratio)
        if not late.any():
            return super().judge(observation)
        judgement = self.weigh_by_precedence(observation)
        for n in np.flatnonzero(late.any(axis=1)).tolist():
            self._bound(observation, n, late[n], judgement)
        if not observation.hold_allowed.all():
            self._start_something(observation, judgement.scores)
        return judgement

    def pairs_of(self, observation: Observation, reserve: Ints | None, closed: Bools | None = None) -> Pairs:
        """The best pair of each waiting job.

        Args:
            observation: one with `sharing`.
            reserve: (N,) the jobs that GPUs are kept free for; None: none.
            closed: (N, G) GPUs on which no pair may be; None: there are none.
        """
        assert observation.sharing is not None
        sharing = Sharing(*(as_type(column, column.dtype) for column in observation.sharing))
        looked, clusters = looked_at(observation), len(observation.time_s)
        is_open = sharing.gpu_open if closed is None else sharing.gpu_open & ~closed
        residents = residents_of(
            sharing, observation.gpu_kind, observation.gpu_model, observation.gpu_remaining_s, is_open
        )
        pairs = no_pairs(clusters, observation.job_waiting.shape[1])
        apart = np.zeros(clusters, dtype=np.bool_)
        if observation.gangs is not None:
            apart = clusters_with_gangs(observation, observation.gangs)
        if not apart.all():
            nodes = observation.node_cores_free.shape[1]
            room, nothing = room_to_look(observation.gpu_node.shape[1], nodes), np.zeros(nodes, dtype=np.bool_)
            rules = self._single.settings.rule(), self.pairs.rule()
            find_pairs(*rules, room, looked, sharing, residents, nothing, apart, pairs)
        for n in np.flatnonzero(apart).tolist():
            assert observation.gangs is not None
            outlook = outlook_of(observation, n)
            find_pairs_beside_gangs(
                self.settings.rule(),
                self.pairs.rule(),
                surroundings_of(outlook, len(observation.gpu_models)),
                looked,
                in_layout(observation.gangs),
                sharing,
                residents,
                n,
                never_short(observation, outlook, n),
                HOLD if reserve is None else int(reserve[n]),
                pairs,
            )
        return pairs

    def _bound(self, observation: Observation, n: int, late: Bools, judgement: Judgement) -> None:
        """Bounds the waits of cluster n, which has overdue jobs.

        The limit sees pairs as more rows of the table: the best pair of each overdue job, and the policy's own choice.
        Where that is refused, as it is on nodes that an overdue job waits for, the next best pair elsewhere counts.

        Args:
            late: (J,) the overdue jobs; some.
            judgement: the policy's, changed.
        """
        one = observation.of_cluster(n)
        reserve = None if judgement.reserve is None else judgement.reserve[n : n + 1]
        rows, closed = observation.table.rows(n), np.zeros_like(one.gpu_idle)
        before = judgement.busy.pop(n, None)
        own = winner(judgement.scores[rows])
        while True:
            pairs = self.pairs_of(one, reserve, closed)
            with_pairs, scores, row_of = _with_pairs(one, late, judgement.scores[rows], pairs)
            bound(with_pairs, scores, self.wait_ratio)
            chosen = winner(scores)
            job, _ = _best(pairs)
            row = row_of.get(int(job[0]), HOLD)
            wanted = row != HOLD and pairs.score[0, job[0]] > -np.inf and scores[row] == -np.inf
            starts_late = chosen != HOLD and late[with_pairs.table.job[chosen]]
            if not wanted or starts_late:
                break
            closed[0, one.gpu_node[0] == one.gpu_node[0, pairs.gpu[0, job[0]]]] = True
        of_table = np.ones(len(scores), dtype=np.bool_)
        of_table[list(row_of.values())] = False
        judgement.scores[rows] = scores[of_table]
        if chosen in row_of.values():
            judgement.busy[n] = _start(pairs, 0, int(with_pairs.table.job[chosen]))
        changed = judgement.busy.get(n) != before or winner(judgement.scores[rows]) != own
        if changed and not judgement.basis_of(n).fallback:
            judgement.basis[n] = DecisionBasis.OVERDUE


def _best(pairs: Pairs) -> tuple[Ints, Floats]:
    """(N,) the job with the best pair of each cluster, on a tie the earlier, and the score."""
    if not pairs.score.shape[1]:
        clusters = len(pairs.score)
        return np.zeros(clusters, dtype=np.int64), np.full(clusters, -np.inf)
    job: Ints = pairs.score.argmax(axis=1)
    return job, pairs.score[np.arange(len(job)), job]


def _start(pairs: Pairs, n: int, job: int) -> BusyStart:
    return BusyStart(job, (int(pairs.gpu[n, job]),), stops=False)


def _with_pairs(
    observation: Observation, late: Bools, scores: Floats, pairs: Pairs
) -> tuple[Observation, Floats, dict[int, int]]:
    """One cluster with pairs as rows of its table, each the last of its job.

    Args:
        observation: of one cluster.
        late: (J,) the overdue jobs.
        scores: (C,) of the table's rows.

    Returns:
        The observation, the scores of its rows, and by job the row of its pair.
    """
    table, there = observation.table, np.isfinite(observation.gpu_remaining_s[0])
    # The limit looks at no more overdue jobs than that.
    looked_at_late = np.flatnonzero(late)[: max(int(SHARE * there.sum()), 1)]
    jobs = np.union1d(looked_at_late, _best(pairs)[0])
    jobs = jobs[pairs.gpu[0, jobs] >= 0]
    if not len(jobs):
        return observation, scores.copy(), {}
    at, width = table.first[0, jobs + 1], table.gpus.shape[1]
    gpus = np.full((len(jobs), width), -1, dtype=np.int64)
    gpus[:, 0] = pairs.gpu[0, jobs]
    more = np.zeros(table.first.shape[1], dtype=np.int64)
    more[jobs + 1] = 1
    wide = CandidateTable(
        first=table.first + np.cumsum(more),
        job=np.insert(table.job, at, jobs),
        gpu=np.insert(table.gpu, at, gpus[:, 0]),
        size=np.insert(table.size, at, 1),
        duration_s=np.insert(table.duration_s, at, pairs.cost_s[0, jobs]),
        gpus=np.insert(table.gpus, at, gpus, axis=0),
        spread=np.insert(table.spread, at, False),
    )
    row_of = dict(zip(jobs.tolist(), (at + np.arange(len(jobs))).tolist(), strict=True))
    seen = dataclasses.replace(observation, table=wide)
    return seen, np.insert(scores, at, pairs.score[0, jobs]), row_of
