"""Honest rollouts: another action replaces the base's only for a significant gain over sampled futures.

Each candidate is simulated in the same F imagined futures (common random numbers), with the base policy to their end.
The best mean would often be luck: the gain must exceed a gate of two standard errors. Arrays only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adlro.decide.policies.hold_greedy import HoldGreedySettings
from adlro.decide.rollouts.candidates import Candidates, find_candidates, room_for_candidates
from adlro.decide.rollouts.continuation import cost_of
from adlro.decide.rollouts.futures import (
    Draws,
    History,
    Imagination,
    draw,
    imagine_arrivals,
    imagine_now,
    room_to_imagine,
)
from adlro.decide.rollouts.rule import Base, base_policy
from adlro.numeric.compiled import compiled, compiled_part
from adlro.sim.course import Course, place_in_order
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats


@dataclass(frozen=True, slots=True)
class Gate:
    """The size of the rollouts, and the required certainty of a gain.

    Attributes:
        futures: futures sampled for each decision.
        ahead: arrivals in each future.
        candidates: candidate actions, the base's own among them.
        standard_errors: standard errors that a candidate's mean gain must exceed.
        first_look: after this many futures, and after each further such number, candidates without a gain so far are
            dropped. With fewer futures (or than `futures`, if that is less) no candidate is chosen.
        glance: after this many futures, and after each further such number, candidates that lose by more than a
            standard error are dropped; 0: none, otherwise 2 or more.
        most_work: limit in pairs that the base scores (`rule.Base.work`); no future begins after it.
    """

    futures: int = 48
    ahead: int = 32
    candidates: int = 6
    standard_errors: float = 2.0
    first_look: int = 12
    glance: int = 0
    most_work: int = np.iinfo(np.int64).max


class GatedRollouts:
    """Chooses actions for clusters of one hardware at decisions; has scratch memory, and no other state.

    Args:
        hardware: the clusters' hardware; all are like cluster 0.
        jobs: the clusters' job lists.
        settings: settings of the base policy.
        gate: size of the rollouts.
    """

    def __init__(
        self, hardware: Hardware, jobs: JobArrays, settings: HoldGreedySettings, gate: Gate | None = None
    ) -> None:
        self._gate = Gate() if gate is None else gate
        self._base = base_policy(settings, hardware)
        self._candidates = room_for_candidates(self._gate.candidates)
        self._gains = np.zeros((self._gate.candidates, self._gate.futures))
        models = jobs.expected_s.shape[2]
        self._imagination = room_to_imagine(hardware, jobs.submit_s.shape[1], models, self._gate.ahead)

    def choose(
        self,
        hardware: Hardware,
        machines: Machines,
        jobs: JobArrays,
        course: Course,
        n: int,
        history: History,
        rng: np.random.Generator,
    ) -> tuple[int, int]:
        """The action for cluster n: (job, GPU), or (HOLD, HOLD).

        Args:
            hardware, machines, jobs, course: the simulator's arrays; only jobs that have arrived are read.
            n: the cluster.
            history: jobs of an earlier time.
            rng: generator of the futures.
        """
        count = find_candidates(hardware, machines, jobs, course, n, self._base, self._candidates)
        chosen = 0
        if count > 1:
            draws = draw(rng, self._gate.futures, self._gate.ahead)
            imagine_now(machines, jobs, course, n, self._imagination)
            chosen = best_certain(
                machines,
                jobs,
                course,
                n,
                self._base,
                history,
                draws,
                self._imagination,
                self._candidates,
                count,
                self._gains,
                self._gate.standard_errors,
                self._gate.first_look,
                self._gate.glance,
                self._gate.most_work,
            )
        return int(self._candidates.job[chosen]), int(self._candidates.gpu[chosen])


@compiled_part
def mean_gain(gains: Floats, c: int, played: int) -> float:
    """A candidate's mean gain over the futures played."""
    total = 0.0
    for future in range(played):
        total += gains[c, future]
    return total / played


@compiled_part
def error_of(gains: Floats, c: int, played: int, mean: float) -> float:
    """Standard error of a mean over the futures played."""
    squares = 0.0
    for future in range(played):
        off = gains[c, future] - mean
        squares += off * off
    return math.sqrt(squares / max(played - 1, 1) / played)


@compiled
def best_certain(
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    base: Base,
    history: History,
    draws: Draws,
    imagination: Imagination,
    candidates: Candidates,
    count: int,
    gains: Floats,
    standard_errors: float,
    first_look: int,
    glance: int,
    most_work: int,
) -> int:
    """The candidate with the greatest mean gain that clears the gate; 0, the base's choice, if none does.

    Args:
        imagination: row 0 is at the decision (`imagine_now`).
        candidates: with the job numbers of cluster n.
        count: number of candidates.
        gains: (C, F) scratch: seconds of total completion time saved relative to the base's choice.
        standard_errors, first_look, glance, most_work: see Gate.
    """
    futures, alive = draws.gap.shape[0], count - 1
    work_ends = base.work[0] + min(most_work, np.iinfo(np.int64).max - base.work[0])
    now, played_on = 0, 1  # rows of the imagined cluster
    for c in range(count):
        gains[c, 0] = 0.0  # nan: dropped
    played = 0
    while played < futures and alive > 0 and base.work[0] < work_ends:
        imagine_arrivals(machines, jobs, course, n, history, draws, played, imagination)
        base_cost = 0.0
        for c in range(count):
            if c > 0 and math.isnan(gains[c, 0]):
                continue
            job = candidates.job[c]
            if job >= 0:
                place = place_in_order(course.waiting[n], course.waiting_count[n], job)
                job = imagination.course.waiting[0, place]
            cost = cost_of(
                imagination.hardware,
                imagination.machines,
                imagination.jobs,
                imagination.changes,
                imagination.course,
                now,
                job,
                candidates.gpu[c],
                base,
                imagination.hardware,
                imagination.machines,
                imagination.course,
                played_on,
            )
            if c == 0:
                base_cost = cost
            else:
                gains[c, played] = base_cost - cost
        played += 1
        at_look = played % first_look == 0
        if at_look or (glance > 0 and played % glance == 0):
            for c in range(1, count):
                if math.isnan(gains[c, 0]):
                    continue
                mean = mean_gain(gains, c, played)
                if not mean > (0.0 if at_look else -error_of(gains, c, played, mean)):
                    gains[c, 0] = np.nan
                    alive -= 1
    best, best_gain = 0, 0.0
    if played < min(first_look, futures):
        return best
    for c in range(1, count):
        if math.isnan(gains[c, 0]):
            continue
        mean = mean_gain(gains, c, played)
        if mean > standard_errors * error_of(gains, c, played, mean) and mean > best_gain:
            best, best_gain = c, mean
    return best
