"""The GPU time of users by a half-life, beside the courses of a simulation. Arrays only.

The compiled code sums GPU time without a half-life (`Course.user_service_s`); with one, its records of ended attempts
are read at each decision, each once.
"""

from __future__ import annotations

import numpy as np

from adlro.numeric.half_life import counted_seconds, kept_ratio, kept_ratios
from adlro.sim.course import Course
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints


class RecentService:
    """What counts of each user's ended attempts, in N clusters.

    Args:
        half_life_s: after this time GPU time counts half.
        clusters: N.
        users: U, the users' number.
    """

    def __init__(self, half_life_s: float, clusters: int, users: int) -> None:
        self.half_life_s = half_life_s
        self._counted_s: Floats = np.zeros((clusters, users))
        self._at_s: Floats = np.zeros(clusters)
        self._runs, self._stops = np.zeros((2, clusters), dtype=np.int64)

    def begin(self, clusters: Ints) -> None:
        """Forgets what some clusters had; their lists start."""
        self._counted_s[clusters], self._at_s[clusters] = 0.0, 0.0
        self._runs[clusters] = self._stops[clusters] = 0

    def ended_s(self, jobs: JobArrays, course: Course, n: Ints, time_s: Floats) -> Floats:
        """(A, U) what counts now; a copy.

        Args:
            jobs, course: of all clusters.
            n: (A,) numbers of the clusters.
            time_s: (A,) their times.
        """
        for number, now_s in zip(n.tolist(), time_s.tolist(), strict=True):
            self._counted_s[number] *= kept_ratio(self.half_life_s, now_s - self._at_s[number])
            self._at_s[number] = now_s
            runs = slice(int(self._runs[number]), int(course.run_count[number]))
            stops = slice(int(self._stops[number]), min(int(course.stop_count[number]), course.stop_job.shape[1]))
            attempts = (
                (course.run_job, course.run_gpus, course.run_start_s, course.run_end_s, runs),
                (course.stop_job, course.stop_gpus, course.stop_start_s, course.stop_end_s, stops),
            )
            for job, gpus, start_s, end_s, which in attempts:
                if which.stop <= which.start:
                    continue
                user = jobs.user[course.list_of[number], job[number, which]]
                counted = counted_seconds(self.half_life_s, end_s[number, which] - start_s[number, which])
                counted = counted * (gpus[number, which] >= 0).sum(axis=1)
                kept = kept_ratios(self.half_life_s, now_s - end_s[number, which])
                np.add.at(self._counted_s[number], user, counted * kept)
            self._runs[number], self._stops[number] = runs.stop, max(stops.start, stops.stop)
        found: Floats = self._counted_s[n]
        return found
