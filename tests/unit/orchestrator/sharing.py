"""Small policies that let two jobs share a GPU, for tests of what the session makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.services.orchestrator.deciding.guard import may_share
from adlro.state.observation import Bools, Floats, Observation
from tests.unit.orchestrator.stopping import busy_starts


class Shares(Policy):
    """In the order of submission, beside another job wherever that is allowed, and only then on an idle GPU."""

    name = "shares"
    description = "for tests"
    shares = True
    wait_ratio = np.inf

    def judge(self, observation: Observation) -> Judgement:
        """One cluster."""
        scores: Floats = -observation.table.job.astype(np.float64)
        start = next(self.starts(observation), None)
        return Judgement(scores, busy={} if start is None else {0: start})

    def starts(self, observation: Observation) -> Iterator[BusyStart]:
        """Possible starts on busy GPUs, the best first."""
        return pairs(observation)


class SharesAndStops(Shares):
    """The same; what fits nowhere stops jobs of which clearly more is left than it takes."""

    name = "shares_and_stops"
    preempts = True

    def starts(self, observation: Observation) -> Iterator[BusyStart]:
        """Pairs go first."""
        yield from pairs(observation)
        if not len(observation.table.job):
            # Two that were put together at this instant stay: they would be stopped for one that they were stopped by.
            stays: Bools = shared(observation) & (observation.gpu_elapsed_s[0] == 0.0)
            yield from busy_starts(observation, ~stays)


def pairs(observation: Observation) -> Iterator[BusyStart]:
    """Every start of a waiting job beside another one."""
    if observation.sharing is None:
        return
    for job in np.flatnonzero(observation.job_waiting[0]).tolist():
        for gpu in np.flatnonzero(observation.sharing.gpu_open[0]).tolist():
            start = BusyStart(job, (gpu,), False)
            if may_share(observation, start):
                yield start


def shared(observation: Observation) -> Bools:
    """(G,) whether a GPU is busy, and not open: of two jobs, or of one that shares with nobody."""
    busy: Bools = ~observation.gpu_idle[0]
    return busy if observation.sharing is None else busy & ~observation.sharing.gpu_open[0]
