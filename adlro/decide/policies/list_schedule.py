"""What the list-scheduling policies share: a plan for the whole queue, of which only what starts now is used.

The heuristics were written for a set of jobs that are mapped to machines at once. Here the plan is made anew at each
decision, from the expected remaining times of the busy GPUs on; a job that the plan puts behind a busy GPU, or behind
another waiting job, waits, and the first that would start now is the action. Arrays only.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from adlro.decide.policies.base import Policy, expected_wait_s
from adlro.state.observation import Bools, Floats, Ints, Observation


class ListSchedule(Policy):
    """Takes the jobs one after another, each to the GPU with its earliest expected completion.

    A subclass says in which order. Completion is the time until the job could start there (`expected_wait_s`), plus
    what the plan has put there already, plus the expected duration.
    """

    uses_second: ClassVar[bool] = False

    def order(self, observation: Observation) -> Floats:
        """(N, J) a fixed order, the lowest first; jobs of equal value by submission."""
        return np.zeros(observation.job_waiting.shape)

    def urgency(self, order: Floats, best_s: Floats, second_s: Floats) -> Floats:
        """(n, J) whom to take next, the lowest first.

        Args:
            order: (n, J) of the clusters whose plan goes on.
            best_s: (n, J) the earliest completion anywhere in the plan so far, finite.
            second_s: (n, J) the earliest on any other GPU, inf where there is none; only with `uses_second`.
        """
        return order

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) minus the expected completion in s, for the job of the plan that starts now."""
        duration_s, fits = observation.duration_s, observation.fits_now
        scores = np.full(fits.shape, -np.inf)
        # GPUs that some job could start on, and for which the plan has no job yet.
        free: Bools = np.logical_or.reduce(fits, axis=1)  # (N, G)
        rows = np.flatnonzero(free.any(axis=1))  # the clusters whose plan goes on
        if not len(rows):
            return scores
        completion_s = np.where(observation.job_waiting[:, :, None], expected_wait_s(observation) + duration_s, np.inf)
        order = self.order(observation)
        best_s, gpu_of, second_s = self._earliest(completion_s)
        while len(rows):
            left = np.isfinite(best_s[rows])  # (n, J) not in the plan yet
            best = np.where(left, best_s[rows], 0.0)
            urgency = np.where(left, self.urgency(order[rows], best, second_s[rows]), np.inf)
            job = np.where(left.any(axis=1), np.argmin(urgency, axis=1), -1)
            rows, job = rows[job >= 0], job[job >= 0]
            gpu = gpu_of[rows, job]
            starts = fits[rows, job, gpu] & free[rows, gpu]
            scores[rows[starts], job[starts]] = -completion_s[rows[starts], job[starts]]
            rows, job, gpu = rows[~starts], job[~starts], gpu[~starts]
            # The others' plan goes on, with the job on its GPU; whose earliest was there has to look again.
            free[rows, gpu] = False
            best_s[rows, job] = np.inf
            stale = (gpu_of[rows] == gpu[:, None]) & np.isfinite(best_s[rows])
            if self.uses_second:
                stale |= (completion_s[rows, :, gpu] <= second_s[rows]) & np.isfinite(best_s[rows])
            completion_s[rows, :, gpu] += duration_s[rows, job, gpu][:, None]
            row, again = rows[np.nonzero(stale)[0]], np.nonzero(stale)[1]
            best_s[row, again], gpu_of[row, again], second_s[row, again] = self._earliest(completion_s[row, again])
            rows = rows[free[rows].any(axis=1)]
        return scores

    def _earliest(self, completion_s: Floats) -> tuple[Floats, Ints, Floats]:
        """(...) the earliest completion over the last axis, its GPU, and the earliest on any other GPU."""
        gpu = np.argmin(completion_s, axis=-1)
        best_s = np.take_along_axis(completion_s, gpu[..., None], axis=-1)[..., 0]
        if not self.uses_second:
            return best_s, gpu, best_s.copy()
        others_s = completion_s.copy()
        np.put_along_axis(others_s, gpu[..., None], np.inf, axis=-1)
        return best_s, gpu, others_s.min(axis=-1)
