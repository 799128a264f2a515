"""Rules for the oracle, from their text. Standard library only.

On a tie the earlier submitted job wins, then the order of `placements.candidates`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracle.cluster import Oracle, Rule
from tests.oracle.placements import (
    SAME_INSTANT_S,
    Reservation,
    candidates,
    fits_reserved,
    fitting,
    free_at_s,
    holds,
    models,
    packed,
    reservation,
    room_now,
)
from tests.oracle.records import HOLD, KEEP, NOBODY, Choice, Placement


def start(placement: Placement, reserve: int = KEEP) -> Choice:
    return Choice(placement.job, placement.gpus, reserve=reserve)


def fcfs(oracle: Oracle) -> Choice:
    """The head of the queue only, on the packed set with the lowest-numbered GPU; else on such a spread one."""
    found = list(candidates(oracle, oracle.waiting[0]))
    return start(min(found, key=lambda placement: (placement.spread, placement.gpus[0]))) if found else HOLD


def sjf(oracle: Oracle) -> Choice:
    """The shortest expected duration of all that fits."""
    return start(min(fitting(oracle), key=oracle.expected_s))


def shortest_area(oracle: Oracle) -> Choice:
    """The least GPU time, expected duration x number of GPUs, of all that fits."""
    return start(min(fitting(oracle), key=lambda each: oracle.expected_s(each) * len(each.gpus)))


def easy_backfill(oracle: Oracle, *, gang_waits: bool = False) -> Choice:
    """In the order of submission, each where it is fastest; the first job that does not fit has the reservation.

    Behind it only what the reservation allows may start. A job that can't run on what is there has none.

    Args:
        gang_waits: the first job, if of several GPUs, waits for the set with which it should end first, also where it
            fits on a slower one.
    """
    kept: Reservation | None = None
    for job in oracle.waiting:
        found = [each for each in candidates(oracle, job) if kept is None or kept.allows(oracle, each)]
        if gang_waits and kept is None and oracle.jobs[job].gpu_count > 1:
            own = reservation(oracle, job)
            if own is not None and own.wait_s > SAME_INSTANT_S:
                found = []
        if found:
            return start(min(found, key=oracle.expected_s), NOBODY if kept is None else kept.job)
        if kept is None:
            kept = reservation(oracle, job)
    return Choice(reserve=NOBODY if kept is None else kept.job)


def easy_backfill_that_waits(oracle: Oracle) -> Choice:
    """`easy_backfill` as the policy of that name has it."""
    return easy_backfill(oracle, gang_waits=True)


@dataclass(frozen=True)
class HoldGang:
    """Hold and greedy with gangs and reservations.

    Each job has for each model a packed set, best fit (a single GPU too), and a spread one. With d the duration there,
    b the shortest anywhere that is present, w the time waited, n the GPUs, a set's cost is

        ln b + beta q ln n + (alpha (1 - q^2) + alpha_deep q^2) ln(d / b) - ageing ln(1 + w / b)
            + frag (k - m) / k of each empty node of k of which it takes m

    and it is refused where d / b > s_max, or d > theta min over all sets of (kappa wait + d), unless
    d max(1, (d / b) / f)^affinity <= backlog D: f is the least of the packed durations of waiting jobs on its model,
    each as a multiple of that job's own b; D is the time in which the GPUs of models on which the job's packed
    duration is below d, each working at b / that duration, get through the sum of n b of all that waits and is fastest
    on one of these models (expectations here are certain). The least cost starts. If no reservation stands, the job
    that fits nowhere and has the greatest w / b above rho max(1, defer r) gets one; when the reserved job fits on its
    set it starts before all others. r is the sum of n b over the mean of b and over the number of present GPUs, of the
    jobs that wait and can run; q is min(1, r / depth).
    """

    alpha: float = 6.0
    theta: float = 1.5
    s_max: float = 5.0
    kappa: float = 0.75
    beta: float = 1.0
    ageing: float = 0.4
    frag: float = 0.5
    rho: float = 10.0
    backlog: float = 0.5
    depth: float = 16.0
    defer: float = 0.25
    alpha_deep: float = 2.5
    affinity: float = 1.0

    def __call__(self, oracle: Oracle) -> Choice:
        reserved = oracle.reserved
        kept = reservation(oracle, reserved) if reserved != NOBODY else None
        if kept is None:
            reserved = self.first_to_reserve(oracle)
            kept = reservation(oracle, reserved) if reserved != NOBODY else None
        if kept is not None:
            now = fits_reserved(oracle, kept)
            if now is not None:
                return start(now, NOBODY)
        best, best_cost = None, math.inf
        for job in oracle.waiting:
            for placement, cost in self.costs(oracle, job):
                if cost < best_cost and (kept is None or job == kept.job or kept.allows(oracle, placement)):
                    best, best_cost = placement, cost
        if best is None:
            return Choice(reserve=reserved)
        return start(best, NOBODY if best.job == reserved else reserved)

    def first_to_reserve(self, oracle: Oracle) -> int:
        first, longest = NOBODY, self.rho * max(1.0, self.defer * self.rounds(oracle))
        for job in oracle.waiting:
            best_s = self.best_s(oracle, job)
            if best_s == math.inf or any(candidates(oracle, job)):
                continue
            waited = (oracle.now_s - oracle.jobs[job].submit_s) / best_s
            if waited > longest:
                first, longest = job, waited
        return first

    def options(self, oracle: Oracle, job: int) -> list[tuple[float, float]]:
        """(wait, duration) of each model, packed and spread, that is present."""
        found = []
        for model in models(oracle):
            for spread in (False, True):
                wait_s = free_at_s(oracle, job, model, not spread)
                if wait_s < math.inf:
                    found.append((wait_s, oracle.expected_s(Placement(job, (), model, spread))))
        return found

    def best_s(self, oracle: Oracle, job: int) -> float:
        return min((duration_s for _, duration_s in self.options(oracle, job)), default=math.inf)

    def sets(self, oracle: Oracle, job: int) -> list[Placement]:
        if oracle.jobs[job].gpu_count > 1:
            return list(candidates(oracle, job))
        found = []
        for model in models(oracle):
            gpus = None if holds(oracle, job, model) is None else packed(room_now(oracle, job, model), 1, 1)
            if gpus is not None:
                found.append(Placement(job, tuple(gpus), model, False))
        # On a tie the lower-numbered GPU, whatever its model.
        return sorted(found, key=lambda placement: placement.gpus)

    def costs(self, oracle: Oracle, job: int) -> list[tuple[Placement, float]]:
        options = self.options(oracle, job)
        best_s = min((duration_s for _, duration_s in options), default=math.inf)
        completion_s = min((self.kappa * wait_s + duration_s for wait_s, duration_s in options), default=math.inf)
        waited_s, found = oracle.now_s - oracle.jobs[job].submit_s, []
        deep = min(1.0, self.rounds(oracle) / self.depth) if self.depth else 1.0
        beta = self.beta * deep
        alpha = self.alpha * (1.0 - deep**2) + (self.alpha_deep or self.alpha) * deep**2
        for placement in self.sets(oracle, job):
            duration_s = oracle.expected_s(placement)
            refused = duration_s / best_s > self.s_max or duration_s > self.theta * completion_s
            if refused:
                unsuited = max(1.0, duration_s / best_s / self.least_slowdown(oracle, placement.model))
                limit_s = self.backlog * self.drain_s(oracle, job, best_s, duration_s)
                if self.backlog == 0.0 or not duration_s * unsuited**self.affinity <= limit_s:
                    continue
            cost = math.log(best_s) + beta * math.log(len(placement.gpus))
            cost += alpha * math.log(duration_s / best_s) + self.frag * broken(oracle, placement)
            cost -= self.ageing * math.log1p(max(waited_s, 0.0) / best_s)
            found.append((placement, cost))
        return found

    def queue(self, oracle: Oracle) -> list[tuple[int, float]]:
        """n and b of each job that waits and can run."""
        found = [(oracle.jobs[each].gpu_count, self.best_s(oracle, each)) for each in oracle.waiting]
        return [(gpus, its_s) for gpus, its_s in found if its_s < math.inf]

    def rounds(self, oracle: Oracle) -> float:
        queue, there = self.queue(oracle), sum(speed > 0.0 for speed in oracle.speed)
        total_s = sum(its_s for _, its_s in queue)
        if total_s == 0.0 or there == 0:
            return 0.0
        return sum(gpus * its_s for gpus, its_s in queue) * len(queue) / (total_s * there)

    def drain_s(self, oracle: Oracle, job: int, best_s: float, duration_s: float) -> float:
        """How long GPUs on which the job is faster than that have work that they suit best; inf: there are none."""
        faster, speed = [], 0.0
        for model in range(len(oracle.jobs[job].duration_s)):
            if free_at_s(oracle, job, model, True) == math.inf:
                continue
            packed_s = oracle.expected_s(Placement(job, (), model, False))
            if packed_s < duration_s:
                there = [g for g, card in enumerate(oracle.gpus) if card.model == model and oracle.speed[g] > 0.0]
                speed += len(there) * best_s / packed_s
                faster.append(model)
        if speed == 0.0:
            return math.inf
        suited_s = 0.0
        for each in oracle.waiting:
            its_s = self.best_s(oracle, each)
            if its_s < math.inf and self.fastest(oracle, each, its_s) in faster:
                suited_s += oracle.jobs[each].gpu_count * its_s
        return suited_s / speed

    def least_slowdown(self, oracle: Oracle, model: int) -> float:
        """The least multiple of its shortest duration that any waiting job takes on a model that can hold it."""
        slowdowns = []
        for each in oracle.waiting:
            if free_at_s(oracle, each, model, True) < math.inf:
                slowdowns.append(oracle.expected_s(Placement(each, (), model, False)) / self.best_s(oracle, each))
        return min(slowdowns, default=math.inf)

    def fastest(self, oracle: Oracle, job: int, best_s: float) -> int:
        """The first model on which a job takes `best_s`, packed or spread."""
        return next(
            model
            for model in models(oracle)
            for spread in (False, True)
            if free_at_s(oracle, job, model, not spread) < math.inf
            and oracle.expected_s(Placement(job, (), model, spread)) == best_s
        )


def broken(oracle: Oracle, placement: Placement) -> float:
    """The sum of (k - m) / k over the empty nodes, of k present GPUs, of which the placement takes m."""
    shares = 0.0
    for node in sorted({oracle.gpus[gpu].node for gpu in placement.gpus}):
        here = [gpu for gpu, card in enumerate(oracle.gpus) if card.node == node and oracle.speed[gpu] > 0.0]
        if all(oracle.idle(gpu) for gpu in here):
            shares += (len(here) - len(set(here) & set(placement.gpus))) / len(here)
    return shares


hold_gang = HoldGang()


def lets_nothing_wait_for_ever(rule: Rule) -> Rule:
    """What every policy does where a hold is not allowed and it wants nothing: the first job that fits, where fastest.

    So it is when the head of the queue can only run on GPUs that are lost, and nothing runs or will be submitted.
    """

    def wanting(oracle: Oracle) -> Choice:
        choice = rule(oracle)
        if choice.job != NOBODY or oracle.hold_allowed:
            return choice
        found = list(fitting(oracle))
        first = [each for each in found if each.job == found[0].job]
        return start(min(first, key=oracle.expected_s), choice.reserve)

    return wanting


def choose_at_random(
    seed: int, decision: int, found: Sequence[tuple[int, tuple[int, ...]]], hold_share: float, hold_allowed: bool
) -> tuple[int, tuple[int, ...]] | None:
    """One of the sets (job, GPUs), or a hold; the same for the same sets, decision and seed."""
    draw = random.Random(f"{seed} {decision} {found}")
    # Now and then it holds where that is not allowed, and all that waits is left there.
    share = hold_share if hold_allowed else hold_share / 50
    return None if draw.random() < share else draw.choice(found)


def noting_reservations(rule: Rule, noted: list[dict[int, Reservation | None]]) -> Rule:
    """The same rule; notes at each decision the reservation that each waiting job would have."""

    def noting(oracle: Oracle) -> Choice:
        noted.append({job: reservation(oracle, job) for job in oracle.waiting})
        return rule(oracle)

    return noting


def at_random(seed: int, hold_share: float = 0.2) -> Rule:
    """Any set that fits, or a hold."""

    def rule(oracle: Oracle) -> Choice:
        found = [(each.job, each.gpus) for each in fitting(oracle)]
        chosen = choose_at_random(seed, len(oracle.outcome.decisions), found, hold_share, oracle.hold_allowed)
        return HOLD if chosen is None else Choice(*chosen)

    return rule
