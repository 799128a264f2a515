"""Least attained service. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy, first_waiting, only
from adlro.state.observation import Floats, Observation


class Las(Policy):
    """The job of the user who has had the least GPU time, among those that fit now, on its fastest GPU.

    Between jobs of one user, or of users who have had the same, by submission.

    Source: Nuyens and Wierman, "The foreground-background queue: a survey" (2008) for the discipline; as 2D-LAS in
    Tiresias (Gu et al. 2019) and as Gavel's least-attained-service policy (Narayanan et al. 2020). Those preempt, and
    count a job's own service; here jobs run to their end, so that what counts is what the job's user has had.
    """

    name = "las"
    description = (
        "the user with the least GPU time so far first, on the fastest GPU that fits; "
        "score: minus the expected duration in s"
    )

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration, for the job to start."""
        able = observation.table.rows_of_job > 0
        service_s = np.where(able, observation.job_user_service_s, np.inf)
        least_s = service_s.min(axis=1, initial=np.inf)
        job = first_waiting(able & (service_s == least_s[:, None]))
        return only(observation, job, -observation.table.duration_s)
