"""Greatest total throughput, by matching. Arrays, and scipy (extra `evaluate`) once it decides."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.errors import Unsupported, with_extra
from adlro.state.candidate_table import group_members
from adlro.state.observation import Floats, Observation


class Hungarian(Policy):
    """Matches waiting jobs and idle GPUs so that the sum of rates, 1 / expected duration, is greatest.

    At most one job per GPU and one GPU per job, over the pairs that fit now; then the fastest pair of the matching
    starts, and a new matching follows, since this pair may have taken cores that other pairs need.

    Source: the objective is that of Gavel's policy of greatest total throughput (Narayanan et al. 2020, section 4.2),
    on whole GPUs and without preemption: an assignment problem (Kuhn 1955), solved by scipy.

    Raises:
        Unsupported: scipy is not installed.
    """

    name = "hungarian"
    description = (
        "matches jobs and idle GPUs for the greatest total rate (needs scipy); score: 1 / expected duration, "
        "for matched pairs"
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
        table = observation.table
        members = group_members(observation)
        row_of = np.repeat(np.arange(len(table.job)), table.size)  # (E,)
        ends = np.cumsum(table.size)
        scores, taken = np.full(len(table.job), -np.inf), table.gpu.copy()
        for n in range(len(table.first)):
            rows = table.rows(n)
            if rows.start == rows.stop:
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
