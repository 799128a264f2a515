"""The rules hold_greedy and share_pairs for the oracle, from their text, for jobs of one GPU. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.oracle.acts import shares
from tests.oracle.cluster import Oracle
from tests.oracle.placements import fitting
from tests.oracle.records import HOLD, Choice

Kind = tuple[int, int, int, int]
"""GPUs of one model and memory, on nodes of as many cores and as much memory, are alike for every job."""


@dataclass(frozen=True)
class HoldGreedy:
    """Shortest job first on a GPU that is fast for it, or a hold.

    With d the duration of a job on a GPU, b its shortest on any present GPU, w the time waited, c its cores and f the
    node's free cores per idle GPU, the cost is

        ln b + alpha ln(d / b) + packing |c / f - 1| - ageing ln(1 + w / b)

    and it is refused where d is above theta times the job's earliest end anywhere, and above
    max(1, backlog (s_g / s) ^ affinity) drains of the queue.
    """

    alpha: float = 4.0
    theta: float = 1.25
    kappa: float = 1.0
    backlog: float = 3.0
    affinity: float = 4.0
    packing: float = 0.3
    ageing: float = 0.2

    def __call__(self, oracle: Oracle) -> Choice:
        choice, _ = self.best(oracle)
        return choice

    def best(self, oracle: Oracle) -> tuple[Choice, float]:
        """The start of least cost, and the cost; or a hold, and inf."""
        drain_s, least = self.drain_s(oracle), self.least_slowdowns(oracle)
        best, best_cost = HOLD, math.inf
        for placement in fitting(oracle):
            job, gpu = placement.job, placement.gpus[0]
            duration_s, best_s = alone_s(oracle, job, gpu), self.best_s(oracle, job)
            if oracle.hold_allowed and duration_s > self.theta * self.earliest_s(oracle, job) and duration_s > drain_s:
                unsuited = max(duration_s / best_s / least[kind_of(oracle, gpu)], 1.0)
                if duration_s > self.backlog * unsuited**-self.affinity * drain_s:
                    continue
            node = oracle.gpus[gpu].node
            idle = sum(oracle.idle(other) for other, card in enumerate(oracle.gpus) if card.node == node)
            share = oracle.free(node)[0] / idle
            cost = self.cost(oracle, job, duration_s, best_s)
            cost += self.packing * abs(oracle.jobs[job].cores - share) / max(share, 1.0)
            if cost < best_cost:
                best, best_cost = Choice(job, (gpu,)), cost
        return best, best_cost

    def cost(self, oracle: Oracle, job: int, duration_s: float, best_s: float) -> float:
        """Without the term of cores."""
        waited_s = max(oracle.now_s - oracle.jobs[job].submit_s, 0.0)
        return (
            math.log(best_s) + self.alpha * math.log(duration_s / best_s) - self.ageing * math.log1p(waited_s / best_s)
        )

    def best_s(self, oracle: Oracle, job: int) -> float:
        present = [gpu for gpu in range(len(oracle.gpus)) if self.wait_s(oracle, job, gpu) < math.inf]
        return min((alone_s(oracle, job, gpu) for gpu in present), default=math.inf)

    def earliest_s(self, oracle: Oracle, job: int) -> float:
        return min(
            self.kappa * self.wait_s(oracle, job, gpu) + alone_s(oracle, job, gpu) for gpu in range(len(oracle.gpus))
        )

    def wait_s(self, oracle: Oracle, job: int, gpu: int) -> float:
        """Until the job could start on a GPU of this one's kind."""
        alike = [other for other in range(len(oracle.gpus)) if kind_of(oracle, other) == kind_of(oracle, gpu)]
        if any(fits(oracle, job, other) for other in alike):
            return 0.0
        return min(free_again_s(oracle, other) for other in alike)

    def least_slowdowns(self, oracle: Oracle) -> dict[Kind, float]:
        """By kind the least slowdown there of any waiting job."""
        least: dict[Kind, float] = {}
        for gpu in range(len(oracle.gpus)):
            kind = kind_of(oracle, gpu)
            for job in oracle.waiting:
                best_s = self.best_s(oracle, job)
                if best_s < math.inf and alone_s(oracle, job, gpu) < math.inf:
                    least[kind] = min(least.get(kind, math.inf), alone_s(oracle, job, gpu) / best_s)
        return least

    def drain_s(self, oracle: Oracle) -> float:
        """Until the last waiting job starts, each in order of submission where it ends first."""
        planned_s = [oracle.remaining_s(gpu) for gpu in range(len(oracle.gpus))]
        drain_s = 0.0
        for job in oracle.waiting:
            best_gpu, best_start_s, best_end_s = -1, 0.0, math.inf
            for gpu, busy_s in enumerate(planned_s):
                waits = busy_s == 0.0 and not has_room(oracle, job, gpu)
                start_s = free_again_s(oracle, gpu) if waits else busy_s
                end_s = start_s + alone_s(oracle, job, gpu)
                if end_s < best_end_s:
                    best_gpu, best_start_s, best_end_s = gpu, start_s, end_s
            if best_gpu >= 0:
                planned_s[best_gpu] = best_end_s
                drain_s = max(drain_s, best_start_s)
        return drain_s


@dataclass(frozen=True)
class SharePairs(HoldGreedy):
    """The same, that may also start a job beside another one, by what is known of the pair."""

    s_min: float = 1.4
    pen: float = 1.0

    def __call__(self, oracle: Oracle) -> Choice:
        best, best_cost = self.best(oracle)
        pairs = []
        for choice in shares(oracle):
            length_s, left_s = self.pair_s(oracle, choice.job, choice.gpus[0])
            if not oracle.hold_allowed or length_s <= self.theta * self.earliest_s(oracle, choice.job):
                cost = self.cost(oracle, choice.job, length_s, self.best_s(oracle, choice.job)) + self.packing
                pairs.append((cost, choice.job, left_s, choice.gpus[0]))
        if pairs and min(pairs)[0] < best_cost:
            _, job, _, gpu = min(pairs)
            return Choice(job, (gpu,))
        return best

    def pair_s(self, oracle: Oracle, job: int, gpu: int) -> tuple[float, float]:
        """The own stretched time and the harm to the one that is there, and when that ends alone; inf: refused."""
        family, other = oracle.jobs[job].family, oracle.jobs[oracle.on_gpu[gpu][0].job].family
        model, left_s = oracle.gpus[gpu].model, oracle.remaining_s(gpu)
        told = oracle.instance.expected_kept or oracle.instance.kept
        keeps, leaves = told[family, other, model], told[other, family, model]
        duration_s = alone_s(oracle, job, gpu)
        if keeps + leaves < self.s_min or duration_s == math.inf:
            return math.inf, left_s
        together_s = min(duration_s / keeps, left_s / leaves)
        return duration_s + together_s * ((1.0 - keeps) + self.pen * (1.0 - leaves)), left_s


def kind_of(oracle: Oracle, gpu: int) -> Kind:
    card = oracle.gpus[gpu]
    node = oracle.nodes[card.node]
    return card.model, card.memory_mib, node.cores, node.memory_mib


def alone_s(oracle: Oracle, job: int, gpu: int) -> float:
    """The expected duration on a GPU; inf where that, or its empty node, is too small."""
    wants, card = oracle.jobs[job], oracle.gpus[gpu]
    node = oracle.nodes[card.node]
    if wants.gpu_memory_mib > card.memory_mib or wants.cores > node.cores or wants.memory_mib > node.memory_mib:
        return math.inf
    return wants.full_s(card.model, False, expected=True)


def has_room(oracle: Oracle, job: int, gpu: int) -> bool:
    cores, memory_mib = oracle.free(oracle.gpus[gpu].node)
    return oracle.jobs[job].cores <= cores and oracle.jobs[job].memory_mib <= memory_mib


def fits(oracle: Oracle, job: int, gpu: int) -> bool:
    return oracle.idle(gpu) and has_room(oracle, job, gpu) and alone_s(oracle, job, gpu) < math.inf


def free_again_s(oracle: Oracle, gpu: int) -> float:
    """Until a GPU could take a job that does not fit on it now: of an idle one, until its node's next end."""
    if not oracle.idle(gpu):
        return oracle.remaining_s(gpu)
    node = oracle.gpus[gpu].node
    others = [other for other, card in enumerate(oracle.gpus) if card.node == node and not oracle.idle(other)]
    return min((oracle.remaining_s(other) for other in others), default=math.inf)
