"""hold_greedy for jobs of several GPUs: best fit, and GPUs kept free for a job that waits long. Arrays only."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from adlro.decide.gang_rule import GangRule, surroundings_of
from adlro.decide.gang_scores import never_short, score_cluster
from adlro.decide.looked import as_type, looked_at
from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.hold_greedy import HoldGreedy, HoldGreedyFixed
from adlro.decide.present import runs_gang
from adlro.decide.reservation import outlook_of
from adlro.errors import InvalidInput
from adlro.state.observation import Bools, Floats, Gangs, Observation


@dataclasses.dataclass(frozen=True, slots=True)
class HoldGangSettings:
    """The weights of a candidate's cost, the limits of what is accepted, and for whom GPUs are kept free.

    Attributes:
        alpha: weight of the slowdown against the job's fastest GPU model.
        theta: a candidate is refused if its duration exceeds this many times the job's earliest expected completion.
        s_max: a candidate is refused if its duration exceeds this many times the shortest on any model.
        kappa: weight of the waiting time in an expected completion.
        beta: weight of the number of GPUs, in a queue of `depth`; in a shorter one in proportion.
        ageing: weight of the time waited.
        frag: weight of the unused share of an empty node that the start breaks.
        rho: a job that fits nowhere gets a reservation once it has waited longer than this many times its duration.
        drain: a job that fits nowhere has GPUs drained for it while its wait and duration are expected to be less than
            this many times the shortest duration of what could start now; 0: never.
        haste: weight of that wait.
        backlog: a candidate that is expected to end before this many times the time in which faster GPUs would drain
            the queue of the jobs that they suit best is not refused; 0: it is, whatever waits.
        depth: the depth of the queue, in jobs of mean length before each GPU, from which on beta and alpha_deep count
            in full; 0: they always do.
        defer: in a queue deeper than 1 / defer a reservation comes later, by the depth times this; 0: never later.
        alpha_deep: in place of alpha in a queue of `depth`; before that between the two, by the square of the depth; 0:
            alpha in any queue.
        affinity: a candidate counts as longer before that drain, by its slowdown against the least of any waiting job
            on its GPU model, to this power; 0: it does not.
        doubt: with s the uncertainty of its duration, a job gets a reservation later, by exp(doubt s^2); 0: not later.
    """

    alpha: float
    theta: float
    s_max: float
    kappa: float
    beta: float
    ageing: float
    frag: float
    rho: float
    drain: float = 0.0
    haste: float = 1.0
    backlog: float = 0.0
    depth: float = 0.0
    defer: float = 0.0
    alpha_deep: float = 0.0
    doubt: float = 0.0
    affinity: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value < math.inf and not (field.name == "rho" and value == math.inf):
                raise InvalidInput(f"{field.name} must be a number from 0, not {value}", field=field.name)
        for name in ("theta", "s_max"):
            if getattr(self, name) < 1.0:
                raise InvalidInput(f"{name} must be at least 1: a job's fastest GPUs would be refused", field=name)
        if self.kappa == 0.0:
            raise InvalidInput("kappa must be above 0: a GPU that is lost would else count as idle", field="kappa")

    def without_queue(self) -> HoldGangSettings:
        """The same without the terms that look at the queue."""
        return dataclasses.replace(self, beta=0.0, backlog=0.0, depth=0.0, defer=0.0, alpha_deep=0.0)

    def rule(self) -> GangRule:
        """The parameters for compiled code."""
        return GangRule(**{field.name: float(getattr(self, field.name)) for field in dataclasses.fields(self)})


ONE_SETTING = HoldGangSettings(
    alpha=6.0,
    theta=1.5,
    s_max=5.0,
    kappa=0.75,
    beta=1.0,
    ageing=0.4,
    frag=0.5,
    rho=10.0,
    backlog=0.5,
    depth=16.0,
    defer=0.25,
    alpha_deep=2.5,
    affinity=1.0,
)
"""One setting for every load."""


class HoldGang(Policy):
    """Among the sets of GPUs that jobs fit on now, the one of least cost; one much worse than waiting is refused.

    adlro/decide/gang_rule.py has the formulas. Where no job of several GPUs waits or runs it is `hold_greedy_fixed`, by
    the same code. A job of several GPUs that fits nowhere and has waited long has GPUs kept free for it
    (adlro/decide/reservation.py); what is expected to end in time, or does not delay it, may start there. If no hold is
    allowed, nothing is refused.

    Source: as hold_greedy; best fit by node as in bin packing (Johnson 1974); the reservation is that of EASY (Lifka
    1995). The terms and figures are this project's own; `benchmarks/tune_hold_gang.py` sets them, but
    those that count the queue (docs/gangs.md).

    Args:
        settings: instead of the one setting.
    """

    name = "hold_gang"
    description = (
        "hold_greedy_fixed for jobs of one GPU; with jobs of several: best fit, or hold, and GPUs kept free for one "
        "that waits long; score: minus a cost of the logarithms of duration and slowdown, with a term for broken nodes"
    )
    advice = (
        "The rule for jobs of several GPUs: mean JCT 30 % below easy_backfill at load 0.9, and GPUs are kept for them."
    )

    def __init__(self, settings: HoldGangSettings | None = None) -> None:
        self.settings = settings or ONE_SETTING
        self._single: HoldGreedy = HoldGreedyFixed()

    def weigh(self, observation: Observation) -> Judgement:
        """Minus the cost; -inf for what is refused; and the job that GPUs are kept free for."""
        if observation.gangs is None:
            return self._single.weigh(observation)
        table, rule = observation.table, self.settings.rule()
        scores, reserve = np.full(len(table.job), -np.inf), np.full(len(table.first), -1, dtype=np.int64)
        looked = looked_at(observation)
        gangs = Gangs(*(as_type(column, column.dtype) for column in observation.gangs))
        with_gangs = clusters_with_gangs(observation, observation.gangs)
        best_of_kind = np.zeros(observation.gpu_idle.shape[1], dtype=np.int64)
        for n in range(len(table.first)):
            if with_gangs[n]:
                outlook = outlook_of(observation, n)
                around = surroundings_of(outlook, len(observation.gpu_models))
                plain = never_short(observation, outlook, n)
                reserve[n] = score_cluster(rule, around, looked, gangs, n, plain, scores, best_of_kind)
            else:
                scores[table.rows(n)] = self._single.preferences(observation.of_cluster(n))
        return Judgement(scores, reserve=reserve)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the cost; -inf for what is refused."""
        return self.weigh(observation).scores


def clusters_with_gangs(observation: Observation, gangs: Gangs) -> Bools:
    """(N,) whether a job of several GPUs waits or runs, or some job has a reservation."""
    several: Bools = (gangs.gpu_count > 1).any(axis=1) | (gangs.reserved >= 0)
    for n in np.flatnonzero(~several):
        several[n] = runs_gang(gangs, int(n))
    return several
