"""Parts of explanations that decisions don't need: the next best action, and why a job waits. Plain data and arrays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.placement import NOWHERE
from adlro.records.decisions import RunnerUp
from adlro.services.orchestrator.deciding.considered import considered
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.explain.reservations import held_reservation
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import HOLD, CandidateTable, Observation


def runner_up(
    judgement: Judgement, table: CandidateTable, row: int, queue: Sequence[Entry], ledger: Ledger
) -> RunnerUp | None:
    """The next best candidate, or a hold if the policy scores it and its score is higher.

    Args:
        judgement: the judgement of one observation.
        table: the observation's table.
        row: the next best row of the table, or HOLD.
        queue: the jobs in the observation's order.
    """
    values, hold = (None, None) if judgement.basis_of(0).fallback else (judgement.values, judgement.hold_value)
    hold_score = float(hold[0]) if hold is not None and np.isfinite(hold[0]) else -np.inf
    score = float((judgement.scores if values is None else values)[row]) if row != HOLD else -np.inf
    if row != HOLD and score >= hold_score:
        job, gpus = judgement.action(table, row)
        return RunnerUp(queue[job].job.job_id, ledger.layout.placement(gpus), score)
    return RunnerUp("", NOWHERE, hold_score) if hold_score > -np.inf else None


async def explain_waiting(
    ledger: Ledger,
    policy: Policy,
    look: Callable[[Policy, Observation], Awaitable[Judgement]],
    time_s: float,
    job_id: str,
) -> Made | None:
    """Why a queued job is not placed now, by the deciding policy; None if it is not in the queue.

    Args:
        look: judges an observation; the ledger is not read after its call.
    """
    entry = ledger.entries.get(job_id)
    if entry is None or entry.phase is not Phase.QUEUED:
        return None
    queue = ledger.queued()
    place = queue.index(entry)
    summary = f"{job_id} is number {place + 1} in the queue: {entry.job.message}"
    made = Made.now("", entry, policy, ledger, time_s)
    observation, reservation = ledger.observe(time_s), held_reservation(ledger, time_s)
    judgement = await look(policy, observation)
    seen = considered(judgement, observation.table, queue)
    return made.judged(judgement, observation, place, summary=summary, reservation=reservation, considered=seen)
