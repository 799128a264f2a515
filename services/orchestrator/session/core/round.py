"""A round of decisions: at one moment, until the policy starts no more jobs. No I/O; the policy's answer is requested.

Only this module knows the contents of observations and judgements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adlro.decide.winner import winner_and_next
from adlro.placement import Placement
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.explain.explanations import runner_up
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry
from adlro.services.orchestrator.session.core.effects import MORE, Ask, Decided
from adlro.services.orchestrator.session.core.inputs import Judged
from adlro.services.orchestrator.session.core.state import SessionState, Steps


class Round:
    """Decides which jobs start.

    Args:
        state: the session's state.
        decided: number of decisions by earlier sessions of this process.
    """

    def __init__(self, state: SessionState, decided: int) -> None:
        self._state = state
        self._count = decided

    def decide(self) -> Steps[list[Entry]]:
        """Places the jobs that the policy starts at this moment; the caller records each before its launch."""
        state, ledger = self._state, self._state.ledger
        picks: list[Entry] = []
        seen = None
        while ledger.can_start_something and not state.holding.in_force(state.now_s):
            if seen is None:
                yield MORE  # ends the step, so that the next one contains only the request and can be timed
            if seen is None or seen != (ledger.changes, state.policy):
                seen, policy = (ledger.changes, state.policy), state.policy
                observation, queue = ledger.observe(state.now_s), ledger.queued()
            if not len(observation.table.job):
                break
            judged = yield Ask(policy, observation, state.virtual)
            assert isinstance(judged, Judged)
            if seen != (ledger.changes, state.policy):
                continue  # a drain, or a change of policy, came during the judgement
            judgement = judged.judgement
            state.basis = judgement.basis_of(0)
            row, second = winner_and_next(judgement.scores)
            job, gpu = judgement.action(observation.table, row)
            if job < 0:
                state.effects.decided = Decided(None, observation, _ids(queue), (job, gpu), judged.took_s)
                state.holding.begin(state.now_s)
                break
            entry = queue[job]
            made = Made.now(f"d-{state.token}-{self._count + 1}", entry, policy, ledger, state.now_s)
            next_best = runner_up(judgement, observation.table, second, queue, ledger)
            self._place(entry, gpu)
            attempt, took_us = entry.job.attempt_count, judged.took_s * 1e6
            made = made.placed(gpu, judgement, observation, job, attempt, next_best, took_us)
            self._count += 1
            picks.append(entry)
            state.effects.decided = Decided(made, observation, _ids(queue), (job, gpu), judged.took_s)
            yield MORE
            observation = ledger.reflect(observation, job, gpu)
        return picks

    def _place(self, entry: Entry, gpu: int) -> None:
        state, ledger = self._state, self._state.ledger
        ledger.place(entry, gpu, state.now_s)
        gpu_id, model = ledger.layout.gpu_ids[gpu], ledger.layout.model_of(gpu)
        state.record(entry, transitions.launching(entry.job, Placement.on(gpu_id), model))


def _ids(queue: Sequence[Entry]) -> Callable[[], tuple[str, ...]]:
    return lambda: tuple(entry.job.job_id for entry in queue)
