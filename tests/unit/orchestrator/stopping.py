"""A small policy that stops jobs, for tests of what the session makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.services.orchestrator.deciding.guard import may_stop_for
from adlro.state.observation import Bools, Floats, Observation

LONGER = 1.05


class Stops(Policy):
    """In the order of submission; what fits nowhere stops jobs of which clearly more is left than it takes."""

    name = "stops"
    description = "for tests"
    preempts = True
    wait_ratio = np.inf
    at_first = False

    def judge(self, observation: Observation) -> Judgement:
        """One cluster; it spares nobody, as the policies do what has started at this instant."""
        scores: Floats = -observation.table.job.astype(np.float64)
        start = None if len(scores) and not self.at_first else next(busy_starts(observation), None)
        return Judgement(scores, busy={} if start is None else {0: start})


class StopsFirst(Stops):
    """The same, before what fits is started."""

    name = "stops_first"
    at_first = True


def busy_starts(observation: Observation, may: Bools | bool = True) -> Iterator[BusyStart]:
    """Starts of jobs that fit nowhere, on GPUs (`may`, (G,)) whose jobs are stopped for them."""
    stops = observation.preemption
    if stops is None:
        return
    for job in np.flatnonzero(observation.job_waiting[0] & (observation.table.rows_of_job[0] == 0)).tolist():
        takes_s = observation.kind_duration_s[0, job, observation.gpu_kind[0]]
        restart_s = np.maximum(stops.gpu_restart_s[0], stops.job_restart_s[0, job])
        longer = observation.gpu_remaining_s[0] > LONGER * (takes_s + restart_s)
        able = np.isfinite(takes_s) & (observation.gpu_idle[0] | (stops.gpu_stoppable[0] & longer & may))
        count = 1 if observation.gangs is None else int(observation.gangs.gpu_count[0, job])
        places = [np.flatnonzero(able & (observation.gpu_node[0] == node)) for node in np.unique(observation.gpu_node)]
        places += [
            np.flatnonzero(able & (observation.gpu_model[0] == model)) for model in np.unique(observation.gpu_model)
        ]
        for gpus in places:
            longest = sorted(gpus.tolist(), key=lambda gpu: (not observation.gpu_idle[0, gpu], gpu))[:count]
            start = BusyStart(job, tuple(sorted(longest)), True)
            if may_stop_for(observation, start):
                yield start
