"""Rules for the oracle that stop jobs for others, from their text. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from tests.oracle.cluster import Attempt, Oracle
from tests.oracle.placements import able_gpus, candidates, holds, limited, models
from tests.oracle.records import HOLD, NOBODY, Choice, Placement
from tests.oracle.rules import HoldGang, start

MayStop = Callable[[Attempt], bool]
Loss = Callable[[Attempt], float]


@dataclass
class Freed:
    """The GPUs that a job gets by stopping others.

    Attributes:
        loss: of those that are stopped.
        gpus: its own.
    """

    loss: float
    gpus: tuple[int, ...]


@dataclass
class Clearing:
    """Looks for the set of a job on a model that costs the least, where some running jobs may be stopped.

    Args:
        may: whether the job may stop an attempt.
        worth: the attempt with the most is stopped first, of equal ones on a node that with the lowest GPU there.
        loss: what is lost by it.
    """

    oracle: Oracle
    job: int
    model: int
    may: MayStop
    worth: Callable[[Attempt], float]
    loss: Loss
    able: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.able = [gpu for gpu in able_gpus(self.oracle, self.job, self.model) if self.oracle.speed[gpu] > 0.0]

    def gives(self, node: int, gone: Collection[int]) -> list[int]:
        """The GPUs that a node can give once some jobs are gone: fewer than are free, where cores or memory bind."""
        oracle = self.oracle
        free = [gpu for gpu in self.able if all(attempt.job in gone for attempt in oracle.on_gpu[gpu])]
        cores, memory_mib = oracle.free(node)
        for job in gone:
            held = sum(oracle.gpus[gpu].node == node for gpu in oracle.running[job].gpus)
            cores += held * oracle.jobs[job].cores
            memory_mib += held * oracle.jobs[job].memory_mib
        return limited(oracle, self.job, free, {node: (cores, memory_mib)}).get(node, [])

    def on(self, node: int) -> list[Attempt]:
        """What may be stopped on a node, in the order in which it is."""
        seen = {}
        for gpu, card in enumerate(self.oracle.gpus):
            for attempt in self.oracle.on_gpu[gpu] if card.node == node else ():
                seen[attempt.job] = attempt
        found = [attempt for attempt in seen.values() if self.may(attempt)]
        return sorted(found, key=lambda attempt: -self.worth(attempt))

    def clear(self, node: int, wanted: int, gone: Collection[int]) -> list[Attempt] | None:
        """What must go on a node, besides what is gone, so that it gives as many GPUs; None: it can't."""
        chosen: list[Attempt] = []
        jobs = lambda: {*gone, *(attempt.job for attempt in chosen)}  # noqa: E731
        for attempt in self.on(node):
            mine = [gpu for gpu in attempt.gpus if self.oracle.gpus[gpu].node == node]
            if len(self.gives(node, jobs())) < wanted and attempt.job not in gone and set(mine) & set(self.able):
                chosen.append(attempt)
        if len(self.gives(node, jobs())) < wanted:
            return None
        for attempt in reversed(chosen[:-1]):
            if len(self.gives(node, jobs() - {attempt.job})) >= wanted:
                chosen.remove(attempt)
        return chosen if len(chosen) <= wanted else None

    def best(self) -> Freed | None:
        """The set of least loss; None: there is none, or one is free."""
        nodes = holds(self.oracle, self.job, self.model)
        if nodes is None:
            return None
        all_nodes = range(len(self.oracle.nodes))
        every = {node: [attempt.job for attempt in self.on(node)] for node in all_nodes}
        most = {node: len(self.gives(node, every[node])) for node in all_nodes}
        left, taken = self.oracle.jobs[self.job].gpu_count, dict[int, int]()
        homes: list[tuple[Attempt, int]] = []
        for more in reversed(range(nodes)):
            found = []
            for node in (node for node in all_nodes if most[node] and node not in taken):
                others = sorted((most[v] for v in all_nodes if v != node and v not in taken), reverse=True)
                if most[node] + sum(others[:more]) < left:
                    continue
                cleared = self.clear(node, min(most[node], left), [attempt.job for attempt, _ in homes])
                if cleared is not None:
                    found.append((math.fsum(map(self.loss, cleared)), node, cleared))
            if not found:
                return None
            _, node, cleared = min(found, key=lambda each: each[:2])
            taken[node] = min(most[node], left)
            homes += [(attempt, node) for attempt in cleared]
            left -= taken[node]
            if left == 0:
                break
        for home in list(homes):
            rest = [attempt.job for attempt, _ in homes if attempt is not home[0]]
            if all(len(self.gives(node, rest)) >= count for node, count in taken.items()):
                homes.remove(home)
        if left > 0 or not homes:
            return None
        return Freed(math.fsum(self.loss(attempt) for attempt, _ in homes), self.take(taken, homes))

    def take(self, taken: dict[int, int], homes: list[tuple[Attempt, int]]) -> tuple[int, ...]:
        """One GPU of each that is stopped, then what is idle, then more of those; of a node the lowest first."""
        gone, gpus = {attempt.job for attempt, _ in homes}, []
        for node, count in taken.items():
            here = [gpu for gpu in self.able if self.oracle.gpus[gpu].node == node]
            first = [min(set(attempt.gpus) & set(here)) for attempt, home in homes if home == node]
            idle = [gpu for gpu in here if self.oracle.idle(gpu)]
            freed = [gpu for gpu in here if any(attempt.job in gone for attempt in self.oracle.on_gpu[gpu])]
            gpus += list(dict.fromkeys(first + idle + freed))[:count]
        return tuple(sorted(gpus))


@dataclass(frozen=True)
class Srtf:
    """Shortest remaining time first, with stops.

    What `HoldGang` would start without reservations starts. Else each job has the set of least loss of all models, by
    stopping jobs whose remaining time is above H (d + c), with c what their restarts cost. The least cost starts:
    ln b + alpha ln(d / b) - ageing ln(1 + w / b), with the same refusals.
    """

    starts: HoldGang = field(
        default_factory=lambda: HoldGang(s_max=2.0, beta=0.0, rho=math.inf, backlog=0.0, defer=0.0, alpha_deep=0.0)
    )
    factor: float = 1.05

    def __call__(self, oracle: Oracle) -> Choice:
        choice = self.starts(oracle)
        if choice.job != NOBODY:
            return start(Placement(choice.job, choice.gpus, 0, False), NOBODY)
        best, best_cost = HOLD, math.inf
        for job in oracle.waiting:
            least = math.inf
            for model in models(oracle):
                its_cost = self.cost(oracle, job, model)
                freed = self.freed(oracle, job, model) if its_cost < math.inf else None
                if freed is not None and freed.loss < least:
                    least, cost, gpus = freed.loss, its_cost, freed.gpus
            if least < math.inf and cost < best_cost:
                best, best_cost = Choice(job, gpus, stop=True), cost
        return replace(best, reserve=NOBODY)

    def cost(self, oracle: Oracle, job: int, model: int) -> float:
        """inf: refused."""
        if holds(oracle, job, model) is None:
            return math.inf
        options = self.starts.options(oracle, job)
        best_s = min((duration_s for _, duration_s in options), default=math.inf)
        completion_s = min((self.starts.kappa * wait_s + d_s for wait_s, d_s in options), default=math.inf)
        duration_s = oracle.expected_s(Placement(job, (), model, False))
        if (
            best_s == math.inf
            or duration_s / best_s > self.starts.s_max
            or duration_s > self.starts.theta * completion_s
        ):
            return math.inf
        waited_s = max(oracle.now_s - oracle.jobs[job].submit_s, 0.0)
        cost = math.log(best_s) + self.starts.alpha * math.log(duration_s / best_s)
        return cost - self.starts.ageing * math.log1p(waited_s / best_s)

    def freed(self, oracle: Oracle, job: int, model: int) -> Freed | None:
        duration_s = oracle.expected_s(Placement(job, (), model, False))

        def restart_s(attempt: Attempt) -> float:
            return oracle.jobs[attempt.job].restart_s

        def left_s(attempt: Attempt) -> float:
            return oracle.remaining_s(attempt.gpus[0])

        def may(attempt: Attempt) -> bool:
            longer = left_s(attempt) > self.factor * (duration_s + restart_s(attempt))
            return longer and oracle.may_stop(attempt) and attempt.start_s < oracle.now_s

        def loss(attempt: Attempt) -> float:
            return len(attempt.gpus) * ((duration_s + restart_s(attempt)) / left_s(attempt))

        return Clearing(oracle, job, model, may, left_s, loss).best()


@dataclass(frozen=True)
class Las:
    """Two queues by the GPU time that a job has had, each by submission; a job stops what comes after it."""

    first_queue_gpu_s: float

    def __call__(self, oracle: Oracle) -> Choice:
        for job in sorted(oracle.waiting, key=lambda each: (self.rank(oracle, each), each)):
            found = list(candidates(oracle, job))
            if found:
                return start(min(found, key=oracle.expected_s), NOBODY)
            on_model = {model: oracle.expected_s(Placement(job, (), model, False)) for model in models(oracle)}
            for model in sorted(on_model, key=lambda each: (on_model[each], each)):
                freed = self.freed(oracle, job, model) if on_model[model] < math.inf else None
                if freed is not None:
                    return Choice(job, freed.gpus, stop=True, reserve=NOBODY)
        return HOLD

    def rank(self, oracle: Oracle, job: int) -> tuple[bool, float]:
        return oracle.attained_s(job) >= self.first_queue_gpu_s, oracle.jobs[job].submit_s

    def freed(self, oracle: Oracle, job: int, model: int) -> Freed | None:
        rank = lambda attempt: self.rank(oracle, attempt.job)  # noqa: E731

        def may(attempt: Attempt) -> bool:
            return (
                rank(attempt) > self.rank(oracle, job) and oracle.may_stop(attempt) and attempt.start_s < oracle.now_s
            )

        def worth(attempt: Attempt) -> float:
            in_second, submit_s = rank(attempt)
            return in_second * 2.0**36 + submit_s

        return Clearing(oracle, job, model, may, worth, lambda attempt: len(attempt.gpus)).best()
