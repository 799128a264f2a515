"""The list-scheduling policies' common base: a plan for the whole queue, of which only immediate starts are used.

The heuristics were written for a set of jobs that are mapped to machines at once. Here each decision makes a new plan,
from the expected remaining times of the busy GPUs; a job that the plan puts after a running job or another waiting job
waits, and the first that would start now is the action. Arrays only.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.plan import Plan
from adlro.decide.policies.plan_gangs import GangPlan
from adlro.decide.present import waiting_gangs
from adlro.state.observation import Floats, Ints, Observation


class ListSchedule(Policy):
    """Plans the jobs one after another, each on the GPU with its earliest expected completion.

    A subclass gives the order. Completion is the time until the job could start there, plus the jobs planned there
    before, plus the expected duration (adlro/decide/policies/plan.py). A job of several GPUs is planned on a set of
    them, and starts when the last one is free (adlro/decide/policies/plan_gangs.py).
    """

    uses_second: ClassVar[bool] = False

    def order(self, observation: Observation) -> Floats:
        """(N, J) a fixed order, the lowest first; jobs of equal value by submission."""
        return np.zeros(observation.job_waiting.shape)

    def urgency(self, order: Floats, best_s: Floats, second_s: Floats) -> Floats:
        """(n, J) the key of the next job, the lowest first.

        Args:
            order: (n, J) `order` of the clusters with unfinished plans.
            best_s: (n, J) the earliest completion anywhere in the plan so far, finite.
            second_s: (n, J) the earliest on any other GPU, inf if there is none; only with `uses_second`.
        """
        return order

    def weigh(self, observation: Observation) -> Judgement:
        """Minus the expected completion in s, for the planned job that starts now."""
        table = observation.table
        scores, gpu = np.full(len(table.job), -np.inf), table.gpu.copy()
        judgement = Judgement(scores, gpu=gpu)
        clusters = np.flatnonzero(table.first[:, -1] > table.first[:, 0])  # the clusters with unfinished plans
        if not len(clusters):
            return judgement
        order = self.order(observation)
        several = waiting_gangs(observation)[clusters]
        for n in clusters[several].tolist():
            self._plan_gangs(observation, n, order[n], scores, gpu)
        clusters = clusters[~several]
        if not len(clusters):
            return judgement
        plan = Plan(observation, second=self.uses_second)
        plan.look_at_all(clusters)
        while len(clusters):
            left = np.isfinite(plan.best_s[clusters])  # (n, J) not in the plan yet
            best = np.where(left, plan.best_s[clusters], 0.0)
            urgency = np.where(left, self.urgency(order[clusters], best, plan.second_s[clusters]), np.inf)
            job = np.where(left.any(axis=1), np.argmin(urgency, axis=1), -1)
            clusters, job = clusters[job >= 0], job[job >= 0]
            started = plan.take(clusters, job, scores, gpu)
            # The other plans continue, with the job on its GPU.
            clusters = clusters[~started & (plan.free_count[clusters] > 0)]
        return judgement

    def _plan_gangs(self, observation: Observation, n: int, order: Floats, scores: Floats, gpu: Ints) -> None:
        """Scores the planned job of cluster n that starts now, where jobs of several GPUs wait; as `weigh`."""
        in_order = type(self).urgency is ListSchedule.urgency
        plan = GangPlan(observation, n, second=self.uses_second, in_order=in_order)
        while plan.is_open:
            left = np.isfinite(plan.best_s)
            if not left.any():
                return
            best = np.where(left, plan.best_s, 0.0)
            urgency = np.where(left, self.urgency(order[None], best[None], plan.second_s[None])[0], np.inf)
            if plan.take(int(np.argmin(urgency)), scores, gpu):
                return

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected completion in s, for the planned job that starts now."""
        return self.weigh(observation).scores
