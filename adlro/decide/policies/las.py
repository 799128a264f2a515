"""Least attained service. Arrays only."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Policy, first_waiting, only
from adlro.state.observation import Floats, Observation


class Las(Policy):
    """The job of the user with the least GPU time so far, among those that fit now, on its fastest GPU.

    Jobs of one user, or of users with equal GPU time, go in order of submission.

    Source: Nuyens and Wierman, "The foreground-background queue: a survey" (2008) for the discipline; as 2D-LAS in
    Tiresias (Gu et al. 2019) and as Gavel's least-attained-service policy (Narayanan et al. 2020). Those preempt, and
    count a job's own service; here jobs run to their end, so the service of the job's user counts.
    """

    name = "las"
    description = (
        "the user with the least GPU time so far first, on the fastest GPU that fits; "
        "score: minus the expected duration in s"
    )
    advice = "Where each user is to get as much GPU time as others: mean JCT 33 % below fcfs at load 0.9, long waits."

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration, for the job to start."""
        able = observation.table.rows_of_job > 0
        service_s = np.where(able, observation.job_user_service_s, np.inf)
        least_s = service_s.min(axis=1, initial=np.inf)
        job = first_waiting(able & (service_s == least_s[:, None]))
        return only(observation, job, -observation.table.duration_s)
