"""Greatest total throughput, by matching. Arrays, and scipy (extra `evaluate`) once it decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.present import waiting_gangs
from adlro.errors import Unsupported, with_extra
from adlro.state.candidate_table import group_members
from adlro.state.gangs import gpus_of
from adlro.state.observation import Floats, Ints, Observation


class Hungarian(Policy):
    """Matches waiting jobs and idle GPUs so that the sum of rates, 1 / expected duration, is greatest.

    At most one job per GPU and one GPU per job, over the pairs that fit now; then the fastest pair of the matching
    starts, and a new matching follows, since this pair may have taken cores that other pairs need.

    A job of several GPUs can't be a side of a pair. It takes a set of GPUs from the matching if its own rate there is
    higher than the sum of the rates of the pairs that the matching has on these GPUs: those sets first that gain most,
    each job and each GPU once. So a long job of many GPUs gives way to short jobs as long as these fill its GPUs: that
    is what the greatest total rate asks for.

    Source: the objective is that of Gavel's policy of greatest total throughput (Narayanan et al. 2020, section 4.2),
    on whole GPUs and without preemption: an assignment problem (Kuhn 1955), solved by scipy.

    Raises:
        Unsupported: scipy is not installed.
    """

    name = "hungarian"
    description = (
        "matches jobs and idle GPUs for the greatest total rate (needs scipy); score: 1 / expected duration, "
        "for matched pairs and sets"
    )
    advice = (
        "For comparisons only: matches jobs and idle GPUs at once; with jobs of several GPUs 24 % above "
        "hold_gang at load 0.6."
    )

    def weigh(self, observation: Observation) -> Judgement:
        """The rate in 1/s of matched pairs."""
        try:
            from scipy.optimize import linear_sum_assignment
        except ModuleNotFoundError:
            raise Unsupported(
                f"the policy hungarian needs scipy, which is not installed; install it {with_extra('evaluate')}; "
                "or take min_min, which comes without",
                field="policy",
                reason="SCIPY_MISSING",
            ) from None
        table, sets = observation.table, waiting_gangs(observation)
        members = group_members(observation)
        row_of = np.repeat(np.arange(len(table.job)), table.size)  # (E,)
        ends = np.cumsum(table.size)
        scores, taken = np.full(len(table.job), -np.inf), table.gpu.copy()
        for n in range(len(table.first)):
            rows = table.rows(n)
            if rows.start == rows.stop:
                continue
            if sets[n]:
                _match_with_sets(observation, n, linear_sum_assignment, scores, taken)
                continue
            pairs = slice(int(ends[rows.start] - table.size[rows.start]), int(ends[rows.stop - 1]))
            # Among the jobs and the GPUs with a pair; the others are left out.
            job = np.cumsum(np.diff(table.job[rows], prepend=-1) > 0)[row_of[pairs] - rows.start] - 1
            there = np.zeros(observation.gpu_idle.shape[1], dtype=np.bool_)
            there[members[pairs]] = True
            gpus, gpu = np.flatnonzero(there), np.cumsum(there)[members[pairs]] - 1
            rate, row = np.zeros((job[-1] + 1, len(gpus))), np.empty((job[-1] + 1, len(gpus)), dtype=np.int64)
            rate[job, gpu], row[job, gpu] = (1.0 / table.duration_s)[row_of[pairs]], row_of[pairs]
            job, gpu = linear_sum_assignment(rate, maximize=True)
            matched = rate[job, gpu] > 0.0  # scipy also pairs a remaining job with a GPU on which it does not fit
            job, gpu = job[matched], gpu[matched]
            scores[row[job, gpu]], taken[row[job, gpu]] = rate[job, gpu], gpus[gpu]
        return Judgement(scores, gpu=taken)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) the rate in 1/s of the rows with a matched pair."""
        return self.weigh(observation).scores


def _match_with_sets(
    observation: Observation, n: int, assign: Callable[..., tuple[Ints, Ints]], scores: Floats, taken: Ints
) -> None:
    """Fills in the scores of cluster n, where a job of several GPUs waits, and the GPUs that its pairs take.

    Args:
        assign: scipy's solver.
    """
    table, gangs = observation.table, observation.gangs
    assert gangs is not None
    rows = np.arange(table.rows(n).start, table.rows(n).stop)
    is_set = gangs.gpu_count[n, table.job[rows]] > 1
    rate_of_gpu = np.zeros(observation.gpu_idle.shape[1])
    row_of_gpu = np.full(len(rate_of_gpu), -1)
    ones = rows[~is_set]
    if len(ones):
        jobs, job = np.unique(table.job[ones], return_inverse=True)
        rate = np.zeros((len(jobs), len(rate_of_gpu)))
        its_row = np.full(rate.shape, -1)
        for row, place in zip(ones.tolist(), job.tolist(), strict=True):
            gpus = observation.group(n, row)
            rate[place, gpus], its_row[place, gpus] = 1.0 / table.duration_s[row], row
        at, gpu = assign(rate, maximize=True)
        matched = rate[at, gpu] > 0.0
        at, gpu = at[matched], gpu[matched]
        rate_of_gpu[gpu], row_of_gpu[gpu] = rate[at, gpu], its_row[at, gpu]
    sets = rows[is_set]
    lost = np.where(table.gpus[sets] >= 0, rate_of_gpu[table.gpus[sets]], 0.0).sum(axis=1)
    gain = 1.0 / table.duration_s[sets] - lost
    jobs_taken: set[int] = set()
    gpus_taken: set[int] = set()
    for place in np.argsort(-gain, kind="stable").tolist():
        row = int(sets[place])
        members = gpus_of(table.gpus[row])
        if gain[place] <= 0.0 or int(table.job[row]) in jobs_taken or not gpus_taken.isdisjoint(members):
            continue
        jobs_taken.add(int(table.job[row]))
        gpus_taken.update(members)
        scores[row] = 1.0 / table.duration_s[row]
        row_of_gpu[list(members)] = -1
    left = np.flatnonzero(row_of_gpu >= 0)
    scores[row_of_gpu[left]], taken[row_of_gpu[left]] = rate_of_gpu[left], left
