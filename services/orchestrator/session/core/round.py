"""A round of decisions: at one moment, until the policy starts no more jobs. No I/O; the policy's answer is requested.

Only this module knows the contents of observations and judgements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from adlro.decide.policies.base import Judgement
from adlro.decide.winner import winner_and_next
from adlro.services.orchestrator.deciding.considered import considered, prediction_of
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.sets import ScoredSet, nodes_of
from adlro.services.orchestrator.explain.explanations import runner_up
from adlro.services.orchestrator.explain.reservations import reservation_after
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.preempting import refs
from adlro.services.orchestrator.session.core.effects import MORE, Ask, Decided
from adlro.services.orchestrator.session.core.inputs import Judged
from adlro.services.orchestrator.session.core.state import SessionState, Steps
from adlro.state.observation import Observation

ROUND_S = 0.25
"""Seconds of wall time after which a round ends, on a clock that goes on by itself.

Its jobs are launched, and the events that have come meanwhile are applied, before the next round.
"""


PAIRS_AT_ONCE = 131_072
"""Pairs of a waiting job and an idle GPU up to which a policy is shown all of them at once, outside virtual time."""


class Round:
    """Decides which jobs start.

    Args:
        state: the session's state.
        decided: number of decisions by earlier sessions of this process.

    Attributes:
        is_cut: the last round ended because of its length: the policy may start more at once.
    """

    def __init__(self, state: SessionState, decided: int) -> None:
        self._state = state
        self._count = decided
        self.is_cut = False

    def decide(self) -> Steps[list[Entry]]:
        """Places the jobs that the policy starts at this moment; the caller records each before its launch."""
        state, ledger = self._state, self._state.ledger
        picks: list[Entry] = []
        self.is_cut, ends = False, state.now + ROUND_S
        seen, looks_at_all, most = None, False, None
        while self._is_asked and not state.holding.in_force(state.now_s):
            if seen is None:
                yield MORE  # ends the step, so that the next one contains only the request and can be timed
            if seen is None or seen != (ledger.changes, state.policy):
                seen, policy = (ledger.changes, state.policy), state.policy
                most = None if looks_at_all else self._first_jobs()
                observation, queue = ledger.look(state.now_s, most)
            if not len(observation.table.job) and not self._is_asked_where_nothing_fits:
                if most is None:
                    break
                looks_at_all, seen = True, None
                continue
            judged = yield Ask(policy, observation, state.virtual)
            assert isinstance(judged, Judged)
            if seen != (ledger.changes, state.policy):
                continue  # a drain, or a change of policy, came during the judgement
            judgement = judged.judgement
            row, second = winner_and_next(judgement.scores)
            job, gpus = judgement.action(observation.table, row)
            if job < 0 and most is not None:
                looks_at_all, seen = True, None
                continue
            state.basis = judgement.basis_of(0)
            victims: list[Entry] = []
            if (start := judgement.busy.get(0)) is not None:
                job, gpus, second = start.job, start.gpus, row
                victims = ledger.holders(gpus) if start.stops else []
            self._reserve(judgement, queue)
            if job < 0:
                state.effects.decided = Decided(None, observation, _ids(queue), (job, gpus), judged.took_s)
                state.holding.begin(state.now_s)
                break
            entry = queue[job]
            made = Made.now(f"d-{state.token}-{self._count + 1}", entry, policy, ledger, state.now_s)
            next_best = runner_up(judgement, observation.table, second, queue, ledger)
            preempts = refs(victims)
            self._place(entry, gpus, victims)
            busy_set = None if start is None else _busy_set(ledger, entry, state.now_s)
            beside = "" if entry.mate is None else entry.mate.job.job_id
            attempt, took_us = entry.job.attempt_count, judged.took_s * 1e6
            looked_at = considered(judgement, observation.table, queue, prediction_of(ledger, entry, gpus))
            made = made.placed(
                gpus, judgement, observation, job, attempt, next_best, took_us, busy_set, preempts, beside, looked_at
            )
            decided = Decided(made, observation, _ids(queue), (job, gpus), judged.took_s)
            later = None
            if ledger.reserved is not None:
                later = ledger.observe_after(observation, queue, job, gpus, most)
                if ledger.reserved is not None:  # a limit may have ended it
                    decided = replace(decided, made=self._with_reservation(made, *later))
            self._count += 1
            picks.append(entry)
            state.effects.decided = decided
            yield MORE
            if victims:
                break  # they wait again with the events of their ends, which another round follows
            if not state.virtual and state.now > ends:
                self.is_cut = True
                break
            observation, queue = later or ledger.observe_after(observation, queue, job, gpus, most)
        return picks

    def _first_jobs(self) -> int | None:
        """The number of jobs that the policy is shown first; None: all.

        A decision takes as long as there are pairs of a waiting job and an idle GPU. Where these are very many, most of
        the first jobs start at once whatever comes behind them, so the policy is shown these alone. That no job is to
        start, it only says of all of them. A virtual clock waits: there it is always shown all, as in the simulator.
        """
        state, ledger = self._state, self._state.ledger
        if state.virtual or ledger.reserved is not None or state.policy.shares:
            return None
        if state.policy.preempts and ledger.can_stop_something(state.now_s):
            return None
        if state.policy.precedence is not None:
            return None  # whoever has submitted most is first in the queue, and would be shown alone
        most = PAIRS_AT_ONCE // max(1, ledger.idle_count)
        return most if most < ledger.queue_length else None

    @property
    def _is_asked(self) -> bool:
        """Whether the policy may have something to decide; cheap."""
        return self._state.ledger.can_start_something or self._is_asked_where_nothing_fits

    @property
    def _is_asked_where_nothing_fits(self) -> bool:
        """As in the simulator."""
        policy, ledger, now_s = self._state.policy, self._state.ledger, self._state.now_s
        return (policy.preempts and ledger.can_stop_something(now_s)) or (
            policy.shares and ledger.can_share_something(now_s)
        )

    def _place(self, entry: Entry, gpus: tuple[int, ...], victims: Sequence[Entry]) -> None:
        state, ledger = self._state, self._state.ledger
        share = ledger.share_of(entry.job.spec)
        ledger.place(entry, gpus, state.now_s, victims, share)
        placement, model = ledger.layout.placement(gpus, share), ledger.layout.model_of(gpus[0])
        state.record(entry, transitions.launching(entry.job, placement, model, refs(victims)))
        for victim in victims:
            state.note(victim.job.job_id, f"is stopped for {entry.job.job_id}")

    def _with_reservation(self, made: Made, after: Observation, queue: Sequence[Entry]) -> Made:
        ledger = self._state.ledger
        assert ledger.reserved is not None
        return replace(made, reservation=reservation_after(ledger, after, queue.index(ledger.reserved)))

    def _reserve(self, judgement: Judgement, queue: Sequence[Entry]) -> None:
        """Gives the reservation to the job that a judgement names, before its action is carried out."""
        if judgement.reserve is None:
            return
        state, place = self._state, int(judgement.reserve[0])
        if place < 0:
            state.ledger.end_reservation()
        else:
            state.ledger.reserve(queue[place], state.now_s)


def _busy_set(ledger: Ledger, entry: Entry, time_s: float) -> ScoredSet:
    """The GPUs of a placed job, which were in no table of candidates, since some were busy."""
    gpus, duration_s = entry.gpus, entry.expected_end_s - time_s
    if entry.mate is None:
        duration_s = ledger.duration_on_s(entry, gpus)
    spread = ledger.is_spread(entry.job.spec, gpus)
    return ScoredSet(gpus, nodes_of(ledger.layout, gpus), spread, duration_s, -duration_s, math.nan)


def _ids(queue: Sequence[Entry]) -> Callable[[], tuple[str, ...]]:
    return lambda: tuple(entry.job.job_id for entry in queue)
