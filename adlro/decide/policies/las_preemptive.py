"""Least attained service in two queues: a job that has had little GPU time stops those that had more. Arrays only."""

from __future__ import annotations

import math

import numpy as np

from adlro.decide.las_rule import LasRoom, choose_by_service
from adlro.decide.looked import as_type, looked_at
from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.decide.policies.srtf import gangs_of, gpus_of_run
from adlro.decide.reservation import outlook_of
from adlro.decide.stops import fill_stops, room_for_stops
from adlro.errors import InvalidInput
from adlro.state.observation import Floats, Observation

FIRST_QUEUE_GPU_S = 34.0
"""The mean GPU time of a job of the scenario `gangs`, in seconds."""

_SECOND = 2.0**36
"""Added to the place of a job of the second queue, in seconds: above any time of a cluster."""


class LasPreemptive(Policy):
    """The jobs that have had less GPU time than a limit first, then the others; in either queue by submission.

    The first job that can start does: on the idle GPUs where it is fastest; else, of the models from its fastest on, on
    the first where it can stop jobs that come after it, the last first, no more than needed, on the node where they
    have the fewest GPUs (adlro/decide/stop_rule.py). Jobs behind one that can't start go on.

    No runtimes are needed: expected durations only say which model is the fastest for a job. Where nothing can be
    stopped, what fits starts in this order.

    Source: discretized two-dimensional least attained service of Tiresias (Gu et al. 2019), with two queues.

    Args:
        first_queue_gpu_s: GPU time from which a job is in the second queue.
    """

    name = "las_preemptive"
    description = (
        "two queues by the GPU time that a job has had, each by submission; a job stops what comes after it; "
        "score: minus the expected duration in s"
    )
    advice = (
        "Where jobs can be stopped and nothing is known of runtimes; with known ones 22 % above hold_gang at load 0.9."
    )
    preempts = True

    def __init__(self, first_queue_gpu_s: float = FIRST_QUEUE_GPU_S) -> None:
        if not 0.0 < first_queue_gpu_s < math.inf:
            raise InvalidInput(
                f"first_queue_gpu_s must be a number above 0, not {first_queue_gpu_s}", field="first_queue_gpu_s"
            )
        self.first_queue_gpu_s = float(first_queue_gpu_s)

    def weigh(self, observation: Observation) -> Judgement:
        """Minus the expected duration, for the job to start; or its start that stops others."""
        table, preemption = observation.table, observation.preemption
        judgement = Judgement(np.full(len(table.job), -np.inf))
        if observation.gangs is not None:
            judgement.reserve = np.full(len(table.first), -1, dtype=np.int64)
        looked, gangs = looked_at(observation), gangs_of(observation)
        models, widest = len(observation.gpu_models), int(gangs.gpu_count.max(initial=1))
        nobody = np.zeros(observation.gpu_idle.shape[1], dtype=np.bool_)
        for n in range(len(table.first)):
            outlook = outlook_of(observation, n)
            stops = room_for_stops(outlook, looked.gpu_idle[n], looked.gpu_kind[n], models)
            attained_s = np.zeros(observation.job_waiting.shape[1])
            run, may, service_s = np.full(len(nobody), -1, dtype=np.int64), nobody, np.zeros(len(nobody))
            if preemption is not None:
                run, may = as_type(preemption.gpu_run[n], np.int64), as_type(preemption.gpu_stoppable[n], np.bool_)
                service_s = preemption.gpu_attained_s[n]
                attained_s = preemption.job_attained_s[n]
            rank = self._rank_s(service_s, observation.gpu_submit_s[n])
            none = np.zeros(len(run))
            fill_stops(run, may, rank, none, gpus_of_run(run).astype(np.float64), none, stops)
            kinds = observation.kind_duration_s.shape[2]
            room = LasRoom(np.zeros(kinds, dtype=np.int64), np.zeros(models), np.zeros(widest, dtype=np.int64))
            job_rank_s = self._rank_s(attained_s, observation.job_submit_s[n])
            order = np.argsort(job_rank_s, kind="stable")
            row = choose_by_service(order, job_rank_s, stops, looked, gangs, n, room)
            if row >= 0:
                judgement.scores[row] = -table.duration_s[row]
            elif row < -1:
                job = -2 - row
                gpus = room.gpus[: int(gangs.gpu_count[n, job])]
                judgement.busy[n] = BusyStart(job, tuple(gpus.tolist()), stops=True)
        return judgement

    def _rank_s(self, attained_s: Floats, submit_s: Floats) -> Floats:
        """The lowest goes first."""
        second: Floats = np.where(attained_s >= self.first_queue_gpu_s, _SECOND, 0.0)
        return second + submit_s

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration, for the job to start; -inf elsewhere."""
        return self.weigh(observation).scores
