"""A small policy with a reservation, for tests of what the session makes of it."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.reservation import may_enter, reservation_of
from adlro.state.observation import HOLD, Floats, Observation


class Reserves(Policy):
    """In the order of submission; a job of several GPUs that does not fit has GPUs kept free for it (EASY)."""

    name = "reserves"
    description = "for tests"
    wait_ratio = np.inf

    def weigh(self, observation: Observation) -> Judgement:
        """One cluster."""
        table, gangs = observation.table, observation.gangs
        scores: Floats = -table.job.astype(np.float64)
        if gangs is None:
            return Judgement(scores)
        waits = observation.job_waiting[0] & (gangs.gpu_count[0] > 1) & (table.rows_of_job[0] == 0)
        holder = int(gangs.reserved[0])
        if holder == HOLD and waits.any():
            holder = int(np.argmax(waits))
        kept = reservation_of(observation, 0, holder) if holder != HOLD else None
        if kept is None:
            return Judgement(scores, reserve=np.full(1, HOLD))
        scores[~may_enter(observation, 0, kept)] = -np.inf
        scores[table.job == holder] += len(gangs.gpu_count[0])  # it starts before all others
        return Judgement(scores, reserve=np.full(1, holder))
