"""The physics: one cluster and its jobs, from event to event. Standard library only.

The formulas, each with its order of operations, since results are compared as equal floats:

- *At one instant*: ends, in the order of the jobs' lowest GPUs; changes of GPUs, in the order given; submissions; then
  decisions, until nothing fits or the rule holds.
- *A start* at `t` of a job on GPUs of model m. `full_s` = duration_s[m] where packed, duration_s[m] / spread_speed[m]
  where spread. `speed` = the least speed of its GPUs x the share that it keeps beside a partner (1 alone).
  `share` = what is left of its work, 1.0 at first. `cost_s` = start_cost_s + (restart_s if it was ever stopped, else
  0.0). Then

      work_from_s = t + cost_s
      end_s       = t + (cost_s + share * full_s / speed)

  and a scheduler, which knows restart_s and the share but not the start cost, nor speeds,
  expects t + (restart_s if ever stopped else 0.0 + share * expected full_s / the share that it is expected to keep).
- *A change of its speed* from `before` to another, `after`, at `t` (a GPU's change, a partner that comes or goes) moves
  all that is to come, a start that is still under way included:

      end_s       = t + (end_s - t) * (before / after)
      work_from_s = t + (work_from_s - t) * (before / after)   where it is after t

  If end_s <= t then, it ends at once. A partner's coming or going moves what the scheduler expects too, by the ratio of
  the shares that it is expected to keep; nobody is told of a GPU's speed.
- *A stop* at `t` >= work_from_s (never before: it starts or restores) of a job that is preemptible, and whose attempt
  is min_run_s old (a setting, 0 where nothing else is said). What is left, in
  seconds on these GPUs at speed 1, is (end_s - t) * speed, and lost_s of it must be done again, though never more than
  the attempt has done:

      share = min(share, ((end_s - t) * speed + lost_s) / full_s)

  The job waits again, at its place by submission.
- *A lost GPU* (speed 0) ends the attempt on all GPUs. The job waits again at its place, with the share that it had at
  the attempt's start: all its work, or what its last stop left.
- *Sharing*: two jobs of one GPU each that are both shareable, with a figure for either beside the other, whose GPU
  memories fit together. Each takes its own cores and memory.
- *A hold* ends at the next event, or after as long again as nothing has happened, at least 30 s, rounded up to whole
  milliseconds. Where nothing runs and nothing will be submitted it lasts until an event. Events are ends, submissions,
  losses and returns of GPUs; not a change of speed, not a stop.
- A job that the empty and whole cluster can't hold never waits.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.oracle import placements
from tests.oracle.records import KEEP, NOBODY, Change, Choice, Decision, Instance, Outcome, Placement, Run

Rule = Callable[["Oracle"], Choice]
"""Looks at the cluster, without changing it, and chooses."""


@dataclass
class Attempt:
    """A job that runs."""

    job: int
    gpus: tuple[int, ...]
    start_s: float
    work_from_s: float
    end_s: float
    expected_end_s: float
    full_s: float
    share: float
    speed: float
    kept: float
    told: float


class Oracle:
    """Runs one instance to its end.

    Args:
        instance: the cluster and the jobs.
        asks_always: the rule is asked after each instant, also where nothing fits: rules that move jobs.
        asks_stops: where nothing fits, the rule is asked too if a job waits and one runs that is preemptible.
        asks_shares: where nothing fits, the rule is asked too if a job waits and a GPU has one alone that may share it.
        min_run_s: nobody is stopped before its attempt is as old.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        asks_always: bool = False,
        asks_stops: bool = False,
        asks_shares: bool = False,
        min_run_s: float = 0.0,
    ) -> None:
        self.instance, self.asks_always, self.asks_stops = instance, asks_always, asks_stops
        self.asks_shares, self.min_run_s = asks_shares, min_run_s
        self.nodes, self.gpus, self.jobs = instance.nodes, instance.gpus, instance.jobs
        assert all(a.submit_s <= b.submit_s for a, b in zip(self.jobs, self.jobs[1:], strict=False))
        self.now_s = self.last_event_s = 0.0
        self.held_until_s = -math.inf
        self.speed = [1.0] * len(self.gpus)
        self.on_gpu: list[list[Attempt]] = [[] for _ in self.gpus]
        self.running: dict[int, Attempt] = {}
        self.waiting: list[int] = []
        self.submitted = self.changed = 0
        self.share = [1.0] * len(self.jobs)
        self.stops = [0] * len(self.jobs)
        self.reserved = NOBODY
        self.jobs_integral_s = 0.0
        unknown = [math.nan] * len(self.jobs)
        self.outcome = Outcome(list(unknown), list(unknown), [()] * len(self.jobs), [0] * len(self.jobs))
        self.impossible = {job for job in range(len(self.jobs)) if not placements.can_ever_hold(self, job)}

    def run(self, rule: Rule) -> Outcome:
        while True:
            next_s = self.next_s()
            if next_s == math.inf:
                return self.outcome
            gone = sum(not math.isnan(end_s) for end_s in self.outcome.end_s)
            gone += sum(job < self.submitted for job in self.impossible)
            self.jobs_integral_s += (next_s - self.now_s) * (self.submitted - gone)
            self.now_s = next_s
            self.pass_instant()
            self.decide(rule)

    # ---- time

    def next_s(self) -> float:
        times_s = [attempt.end_s for attempt in self.running.values()]
        times_s += [job.submit_s for job in self.jobs[self.submitted : self.submitted + 1]]
        times_s += [change.time_s for change in self.instance.changes[self.changed : self.changed + 1]]
        if self.held_until_s > self.now_s:
            times_s.append(self.held_until_s)
        return min(times_s, default=math.inf)

    def pass_instant(self) -> None:
        happened = self.end_all_due()
        while self.changed < len(self.instance.changes):
            change = self.instance.changes[self.changed]
            if change.time_s > self.now_s:
                break
            self.changed += 1
            happened |= self.change(change)
        while self.submitted < len(self.jobs) and self.jobs[self.submitted].submit_s == self.now_s:
            if self.submitted not in self.impossible:
                self.waiting.append(self.submitted)
                self.waiting.sort()
            self.submitted += 1
            happened = True
        if happened:
            self.last_event_s = self.now_s
        if happened or self.now_s == self.held_until_s:
            self.held_until_s = -math.inf

    def end_all_due(self) -> bool:
        happened = False
        while due := [attempt for attempt in self.running.values() if attempt.end_s <= self.now_s]:
            self.end(min(due, key=lambda attempt: (attempt.gpus, attempt.job)), "completed")
            happened = True
        return happened

    def change(self, change: Change) -> bool:
        """Returns whether that was an event."""
        before, self.speed[change.gpu] = self.speed[change.gpu], change.speed
        if change.speed == 0.0:
            for attempt in list(self.on_gpu[change.gpu]):
                self.end(attempt, "lost")
        self.renew_speeds()
        ended = self.end_all_due()
        return ended or (before == 0.0) != (change.speed == 0.0)

    # ---- runs

    def decide(self, rule: Rule) -> None:
        while self.held_until_s == -math.inf:
            fitting = tuple(placements.fitting(self))
            if not fitting and not self.asks():
                return
            choice = rule(self)
            self.outcome.decisions.append(self.decision(fitting, choice))
            if choice.reserve != KEEP:
                assert choice.reserve == NOBODY or choice.reserve in self.waiting
                self.reserved = choice.reserve
            if choice.job == NOBODY:
                self.hold()
            else:
                self.act(choice)

    def asks(self) -> bool:
        """Whether the rule is asked where nothing fits."""
        if self.asks_always and (self.waiting or self.running):
            return True
        if self.asks_stops and self.waiting and any(self.jobs[job].preemptible for job in self.running):
            return True
        alone = [self.jobs[here[0].job] for here in self.on_gpu if len(here) == 1]
        is_open = any(job.shareable and job.gpu_count == 1 for job in alone)
        return bool(self.asks_shares and self.waiting and is_open)

    def decision(self, fitting: tuple[Placement, ...], choice: Choice) -> Decision:
        return Decision(
            time_s=self.now_s,
            fitting=fitting,
            expected_s=tuple(self.expected_s(each) for each in fitting),
            remaining_s=tuple(self.remaining_s(gpu) for gpu in range(len(self.gpus))),
            runs=tuple(here[0].job if here else NOBODY for here in self.on_gpu),
            mates=tuple(here[1].job if len(here) == 2 else NOBODY for here in self.on_gpu),
            free=tuple(self.free(node) for node in range(len(self.nodes))),
            service_s={user: self.service_s(user) for user in {job.user for job in self.jobs}},
            stoppable=tuple(bool(here) and all(map(self.may_stop, here)) for here in self.on_gpu),
            attained_s=tuple(self.attained_s(job) for job in range(len(self.jobs))),
            hold_allowed=self.hold_allowed,
            reserved=self.reserved,
            choice=choice,
            illegal=choice.illegal,
        )

    def act(self, choice: Choice) -> None:
        if choice.job in self.running:
            self.stop(self.running[choice.job])
        if choice.stop:
            for gpu in choice.gpus:
                for attempt in list(self.on_gpu[gpu]):
                    self.stop(attempt)
        self.start(choice.job, choice.gpus)

    def hold(self) -> None:
        if not self.hold_allowed:
            self.held_until_s = math.inf
            return
        quiet_s = max(30.0, self.now_s - self.last_event_s)
        self.held_until_s = math.ceil((self.now_s + quiet_s) * 1000.0 - 0.0005) / 1000.0

    def start(self, number: int, gpus: tuple[int, ...]) -> None:
        job, model = self.jobs[number], self.gpus[gpus[0]].model
        spread = placements.is_spread(self, number, gpus)
        assert number in self.waiting, "only what waits starts"
        assert placements.is_legal(self, number, gpus), f"job {number} can't have {gpus}"
        restart_s = job.restart_s if self.stops[number] else 0.0
        cost_s = self.instance.start_cost_s + restart_s
        share, full_s = self.share[number], job.full_s(model, spread)
        inf, work_from_s = math.inf, self.now_s + cost_s
        attempt = Attempt(number, gpus, self.now_s, work_from_s, inf, inf, full_s, share, 1.0, 1.0, 1.0)
        for gpu in gpus:
            self.on_gpu[gpu].append(attempt)
        self.running[number] = attempt
        self.waiting.remove(number)
        attempt.kept, attempt.told = self.kept(attempt), self.kept(attempt, expected=True)
        attempt.speed = min(self.speed[gpu] for gpu in gpus) * attempt.kept
        attempt.end_s = self.now_s + (cost_s + share * full_s / attempt.speed)
        expected_s = share * job.full_s(model, spread, expected=True) / attempt.told
        attempt.expected_end_s = self.now_s + (restart_s + expected_s)
        self.renew_speeds()
        if self.reserved == number:
            self.reserved = NOBODY
        self.outcome.attempts[number] += 1
        self.outcome.start_s[number], self.outcome.gpus[number] = self.now_s, gpus

    def may_stop(self, attempt: Attempt) -> bool:
        works = self.now_s >= attempt.work_from_s
        return self.jobs[attempt.job].preemptible and works and self.now_s - attempt.start_s >= self.min_run_s

    def stop(self, attempt: Attempt) -> None:
        assert self.may_stop(attempt), f"job {attempt.job} can't be stopped"
        left_s = (attempt.end_s - self.now_s) * attempt.speed
        lost_s = self.jobs[attempt.job].lost_s
        self.share[attempt.job] = min(attempt.share, (left_s + lost_s) / attempt.full_s)
        self.stops[attempt.job] += 1
        self.end(attempt, "stopped")

    def end(self, attempt: Attempt, how: str) -> None:
        del self.running[attempt.job]
        for gpu in attempt.gpus:
            self.on_gpu[gpu].remove(attempt)
        self.outcome.runs.append(Run(attempt.job, attempt.gpus, attempt.start_s, self.now_s, how))
        if how == "completed":
            self.outcome.end_s[attempt.job] = self.now_s
        else:
            bisect.insort(self.waiting, attempt.job)
        self.renew_speeds()

    def renew_speeds(self) -> None:
        """Moves the ends of the jobs whose speed is another one now."""
        for attempt in self.running.values():
            slowest = min(self.speed[gpu] for gpu in attempt.gpus)
            if slowest == 0.0:
                continue  # it is about to be lost
            attempt.kept = self.kept(attempt)
            told_before, attempt.told = attempt.told, self.kept(attempt, expected=True)
            before, attempt.speed = attempt.speed, slowest * attempt.kept
            if told_before != attempt.told:
                left_s = attempt.expected_end_s - self.now_s
                attempt.expected_end_s = self.now_s + left_s * (told_before / attempt.told)
            if before != attempt.speed:
                ratio = before / attempt.speed
                attempt.end_s = self.now_s + (attempt.end_s - self.now_s) * ratio
                if attempt.work_from_s > self.now_s:
                    attempt.work_from_s = self.now_s + (attempt.work_from_s - self.now_s) * ratio

    # ---- looking

    @property
    def hold_allowed(self) -> bool:
        return bool(self.running) or self.submitted < len(self.jobs)

    def kept(self, attempt: Attempt, expected: bool = False) -> float:
        """The share of its speed that a job keeps, or is expected to keep, beside its partner."""
        others = [other for other in self.on_gpu[attempt.gpus[0]] if other is not attempt]
        if not others:
            return 1.0
        model = self.gpus[attempt.gpus[0]].model
        table = (self.instance.expected_kept if expected else {}) or self.instance.kept
        return table[self.jobs[attempt.job].family, self.jobs[others[0].job].family, model]

    def idle(self, gpu: int) -> bool:
        return self.speed[gpu] > 0.0 and not self.on_gpu[gpu]

    def remaining_s(self, gpu: int) -> float:
        """The expected time until the GPU is idle: 0 where it is, inf where it is lost.

        What outlasts its expected end is expected to go on for half of what it has run.
        """
        if self.speed[gpu] == 0.0:
            return math.inf
        longest_s = 0.0
        for attempt in self.on_gpu[gpu]:
            left_s = attempt.expected_end_s - self.now_s
            # Whatever ends when expected, but for the rounding of sums, does not outlast it.
            rest_s = 0.5 * (self.now_s - attempt.start_s) if left_s < -1e-6 else max(left_s, 0.0)
            longest_s = max(longest_s, rest_s)
        return longest_s

    def free(self, node: int, by_s: float = -1.0) -> tuple[int, int]:
        """Cores and memory of a node that are free; with `by_s`, those of GPUs that are idle by then given back."""
        cores, memory_mib = self.nodes[node].cores, self.nodes[node].memory_mib
        for gpu, card in enumerate(self.gpus):
            if card.node == node and not self.remaining_s(gpu) <= by_s:
                for attempt in self.on_gpu[gpu]:
                    cores -= self.jobs[attempt.job].cores
                    memory_mib -= self.jobs[attempt.job].memory_mib
        return cores, memory_mib

    def service_s(self, user: int) -> float:
        """GPU time of a user so far: the time of each attempt, ended or not, with each of its GPUs."""
        ended = [(run.job, len(run.gpus), run.end_s - run.start_s) for run in self.outcome.runs]
        runs = [(job, len(attempt.gpus), self.now_s - attempt.start_s) for job, attempt in self.running.items()]
        return math.fsum(count * took_s for job, count, took_s in ended + runs if self.jobs[job].user == user)

    def attained_s(self, job: int) -> float:
        """GPU time of a job so far, in all its attempts."""
        ended = [len(run.gpus) * (run.end_s - run.start_s) for run in self.outcome.runs if run.job == job]
        attempts = [attempt for attempt in self.running.values() if attempt.job == job]
        return math.fsum(ended + [len(each.gpus) * (self.now_s - each.start_s) for each in attempts])

    def expected_s(self, placement: Placement) -> float:
        """What the scheduler expects of a start on a placement now."""
        job = self.jobs[placement.job]
        full_s = job.full_s(placement.model, placement.spread, expected=True)
        return (job.restart_s if self.stops[placement.job] else 0.0) + self.share[placement.job] * full_s
