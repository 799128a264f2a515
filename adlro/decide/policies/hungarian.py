"""Greatest total throughput, by matching. Arrays, and scipy (extra `evaluate`) once it decides."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.errors import Unsupported, with_extra
from adlro.state.observation import Floats, Observation


class Hungarian(Policy):
    """Matches waiting jobs and idle GPUs so that the sum of rates, 1 / expected duration, is greatest.

    At most one job a GPU and one GPU a job, over the pairs that fit now; then the fastest pair of the matching starts,
    and the rest is matched anew, since it may have taken cores that others counted on.

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

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) the rate in 1/s of matched pairs."""
        try:
            from scipy.optimize import linear_sum_assignment
        except ModuleNotFoundError:
            raise Unsupported(
                f"the policy hungarian needs scipy, which is not installed; install it {with_extra('evaluate')}; "
                "or take min_min, which comes without",
                field="policy",
                reason="SCIPY_MISSING",
            ) from None
        rates: Floats = np.where(observation.fits_now, 1.0 / observation.duration_s, 0.0)
        scores = np.full(rates.shape, -np.inf)
        for number, rate in enumerate(rates):  # (J, G)
            jobs = np.flatnonzero(rate.any(axis=1))
            gpus = np.flatnonzero(rate.any(axis=0))
            job, gpu = linear_sum_assignment(rate[np.ix_(jobs, gpus)], maximize=True)
            job, gpu = jobs[job], gpus[gpu]
            matched = rate[job, gpu] > 0.0  # a job left over is given a GPU where it does not fit
            scores[number, job[matched], gpu[matched]] = rate[job[matched], gpu[matched]]
        return scores
