"""Shortest remaining time first: what is shorter may stop what is longer. Arrays only."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from adlro.decide.gang_rule import surroundings_of
from adlro.decide.gang_scores import never_short, score_cluster
from adlro.decide.looked import as_type, looked_at
from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGangSettings
from adlro.decide.reservation import outlook_of
from adlro.decide.srtf_rule import choose_stop, room_for
from adlro.decide.stops import fill_stops, room_for_stops
from adlro.errors import InvalidInput
from adlro.numeric.exact import power
from adlro.state.observation import Floats, Gangs, Ints, Observation

START = dataclasses.replace(ONE_SETTING.without_queue(), s_max=2.0, rho=math.inf)
"""`hold_gang`'s setting, without reservations; more than twice as slow is refused: the job can stop others instead."""


@dataclasses.dataclass(frozen=True, slots=True)
class SrtfSettings:
    """The weights and limits of a start, and of a stop.

    Attributes:
        start: weights and limits of `hold_gang`; `rho` is inf: nothing is kept free.
        factor: H, by how much longer a job must be that is stopped.
        by_loss: whether a job takes the stop of least loss, of all models; if not, that on its model of least cost.
    """

    start: HoldGangSettings = START
    factor: float = 1.05
    by_loss: bool = True

    def __post_init__(self) -> None:
        if not 1.0 <= self.factor < math.inf:
            raise InvalidInput(
                f"factor must be a number from 1, not {self.factor}: a job would be stopped for a longer one",
                field="factor",
            )
        if self.start.rho != math.inf:
            raise InvalidInput(f"start.rho must be inf, not {self.start.rho}: nothing is kept free", field="start")
        if self.start.depth != 0.0 or self.start.alpha_deep != 0.0:
            raise InvalidInput(
                "start.depth and start.alpha_deep must be 0: stops do not look at the queue", field="start"
            )


class Srtf(Policy):
    """Of what fits the start of least cost; else the one of least cost for which longer jobs are stopped.

    adlro/decide/srtf_rule.py has the formulas. Starts are weighed as by `hold_gang`, without reservations: a job of
    several GPUs that fits nowhere stops jobs instead. Where nothing can be stopped, only what fits starts. It should
    beat `hold_gang` wherever runtimes are known and restarts cost little of them, most with jobs of several GPUs.

    Source: shortest remaining processing time first (Schrage 1968), with restarts that cost time; the terms are
    `hold_gang`'s.

    Args:
        settings: instead of the shipped one.
    """

    name = "srtf"
    description = (
        "hold_gang without reservations, and what is expected to end sooner stops what can be stopped; "
        "score: minus a cost of the logarithms of duration and slowdown, with a term for broken nodes"
    )
    advice = "Where most jobs can be stopped and a restart takes a minute: mean JCT 18 % below hold_gang at load 0.9."
    preempts = True

    def __init__(self, settings: SrtfSettings | None = None) -> None:
        self.settings = settings or SrtfSettings()

    def weigh(self, observation: Observation) -> Judgement:
        """Minus the cost of what fits, -inf for what is refused; where all is, the start that stops others.

        A reservation that another policy has left is dropped.
        """
        table, settings = observation.table, self.settings
        rule = settings.start.rule()
        judgement = Judgement(np.full(len(table.job), -np.inf))
        if observation.gangs is not None:
            judgement.reserve = np.full(len(table.first), -1, dtype=np.int64)
        looked, gangs = looked_at(observation), gangs_of(observation)
        models, widest = len(observation.gpu_models), int(gangs.gpu_count.max(initial=1))
        weight = width_weights(settings.start.beta, observation.gpu_idle.shape[1])
        best_of_kind = np.zeros(observation.gpu_idle.shape[1], dtype=np.int64)
        for n in range(len(table.first)):
            outlook = outlook_of(observation, n)
            around = surroundings_of(outlook, models)
            plain = never_short(observation, outlook, n)
            score_cluster(rule, around, looked, gangs, n, plain, judgement.scores, best_of_kind)
            preemption = observation.preemption
            starts = judgement.scores[table.rows(n)].max(initial=-np.inf) > -np.inf
            if starts or preemption is None or not preemption.gpu_stoppable[n].any():
                continue
            stops = room_for_stops(outlook, looked.gpu_idle[n], looked.gpu_kind[n], models)
            room = room_for(models, widest)
            run = as_type(preemption.gpu_run[n], np.int64)
            may = as_type(preemption.gpu_stoppable[n], np.bool_)
            cost = as_type(preemption.gpu_restart_s[n], np.float64)
            count = gpus_of_run(run)
            worth = outlook.gpu_free_s * weight[count]
            fill_stops(run, may, worth, cost, np.zeros(len(run)), count.astype(np.float64), stops)
            factor, by_loss = float(settings.factor), bool(settings.by_loss)
            job = choose_stop(rule, factor, by_loss, weight, around, stops, looked, gangs, n, plain, room)
            if job >= 0:
                gpus = room.gpus[: int(gangs.gpu_count[n, job])]
                judgement.busy[n] = BusyStart(job, tuple(gpus.tolist()), stops=True)
        return judgement

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the cost of what fits; -inf for what is refused."""
        return self.weigh(observation).scores


def gangs_of(observation: Observation) -> Gangs:
    """What concerns jobs of several GPUs, without a reservation; made up where all have one."""
    batch, jobs = observation.job_waiting.shape
    gangs = observation.gangs
    unreserved = np.full(batch, -1, dtype=np.int64)
    if gangs is not None:
        return Gangs(*(as_type(column, column.dtype) for column in gangs._replace(reserved=unreserved)))
    models = len(observation.gpu_models)
    return Gangs(
        gpu_count=np.ones((batch, jobs), dtype=np.int64),
        max_nodes=np.zeros((batch, jobs), dtype=np.int64),
        nodes=np.ones((batch, jobs, models), dtype=np.int64),
        spread_speed=np.zeros((batch, jobs, models)),
        gpu_run=np.full(observation.gpu_idle.shape, -1, dtype=np.int64),
        reserved=unreserved,
    )


def gpus_of_run(run: Ints) -> Ints:
    """(G,) how many GPUs the job on each GPU has; 0 where none runs.

    Args:
        run: (G,) a number from 0 that the GPUs of one running job share; -1 where none runs.
    """
    _, which, count = np.unique(run, return_inverse=True, return_counts=True)
    found: Ints = np.where(run >= 0, count[which], 0)
    return found


def width_weights(beta: float, widest: int) -> Floats:
    """(widest + 1,) n ^ beta by number of GPUs n."""
    if beta == 0.0:
        return np.ones(widest + 1)
    return np.array([1.0, *(power(float(count), beta) for count in range(1, widest + 1))])
