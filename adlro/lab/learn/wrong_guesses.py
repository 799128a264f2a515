"""Wrong expectations of runtimes for training, other than `adlro.workload.estimates`; one kind in a world. numpy only.

- `asked`: what users ask for: too long by a factor of three on average, and rounded up to a power of two.
- `two_modes`: a share of the jobs ends 3 to 20 times earlier than expected, as runs that fail do.
- `users`: each user is off by a factor of his own.
- `gpu_models`: each GPU model is misjudged by a factor of its own.

The uncertainty that comes with an expectation may be right, wrong, or not stated.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.draws import standard_exponentials, standard_normals
from adlro.numeric.exact import exp_array, log, log_array
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats

WRONG_GUESSES = ("asked", "two_modes", "users", "gpu_models")


def with_wrong_guesses(kind: str, jobs: JobArrays, rng: np.random.Generator) -> JobArrays:
    """The job lists, with expected runtimes that are wrong in one way, on top of what is known of them.

    Args:
        kind: one of `WRONG_GUESSES`.
        jobs: L lists of J jobs each.
        rng: generator of all random choices.
    """
    lists, length, models = jobs.expected_s.shape
    match kind:
        case "asked":
            wrong = _asked(jobs, rng)[:, :, None]
        case "two_modes":
            share, shorter = 0.05 + 0.35 * rng.random(), 3.0 + 17.0 * rng.random()
            wrong = np.where(rng.random((lists, length)) < share, shorter, 1.0)[:, :, None]
        case "users":
            off = exp_array(standard_normals(rng, int(jobs.user.max(initial=0)) + 1))
            wrong = off[jobs.user][:, :, None]
        case "gpu_models":
            wrong = exp_array(0.6 * standard_normals(rng, models))[None, None, :]
        case _:
            raise ValueError(f"no kind of wrong guesses: {kind}")
    return jobs._replace(expected_s=jobs.expected_s * wrong)


def with_stated_spread(jobs: JobArrays, factor: float) -> JobArrays:
    """The job lists, with uncertainties of the expected runtimes: the true ones of each job type, times a factor."""
    known = np.isfinite(jobs.expected_s) & np.isfinite(jobs.duration_s)
    off = log_array(np.where(known, jobs.duration_s, 1.0) / np.where(known, jobs.expected_s, 1.0))
    spread = np.zeros_like(jobs.expected_spread)
    for job_type in np.unique(jobs.job_type):
        of_type = jobs.job_type == job_type
        squares = np.square(off[of_type]).sum() / max(int(known[of_type].sum()), 1)
        spread[of_type] = factor * np.sqrt(squares)
    return jobs._replace(expected_spread=spread)


def _asked(jobs: JobArrays, rng: np.random.Generator) -> Floats:
    """(L, J) factors."""
    shape = jobs.expected_s.shape[:2]
    best_s = jobs.expected_s.min(axis=2)
    there = np.isfinite(best_s)
    safe_s = np.where(there, best_s, 1.0)
    longer = safe_s * (1.0 + 2.0 * standard_exponentials(rng, shape))
    doubled = exp_array(log(2.0) * np.ceil(log_array(longer) / log(2.0)))
    return np.where(there, doubled / safe_s, 1.0)
