"""The explanation of a wait with its expected start: copied on the loop, worked out beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from adlro.records.jobs import Job
from adlro.records.waiting import WaitingExplanation
from adlro.services.orchestrator.explain.waiting import explanation, redacted, see, why_none
from adlro.services.orchestrator.forecasts.forecasting import Forecasting
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.ledger.ledger import Ledger


async def explained(
    forecasting: Forecasting, ledger: Ledger | None, job: Job, now_s: Callable[[], float]
) -> WaitingExplanation:
    """Why a pending job waits, what its user could change, and when it is expected to start.

    Args:
        forecasting: makes the forecasts.
        ledger: of the present session; None: there is none.
        job: its record.
        now_s: the cluster time.
    """
    entry = None if ledger is None else ledger.entries.get(job.job_id)
    if ledger is None or entry is None or entry.phase in (Phase.PLACED, Phase.GONE):
        none = "the orchestrator does not act now"
        if ledger is not None:
            none = "it has only just arrived" if entry is None else "it is being launched"
        return WaitingExplanation(job.job_id, now_s(), job.pending_reason, job.message, 0, 0, no_expected_start=none)
    seen, none = see(ledger, entry, now_s()), why_none(entry)
    start = None
    if not none:
        expected = await forecasting.expected(ledger, entry, now_s)
        start, none = (None, expected) if isinstance(expected, str) else (expected, "")
    return await asyncio.to_thread(explanation, seen, start, none)


def without_others(told: WaitingExplanation, user: str, ledger: Ledger | None) -> WaitingExplanation:
    """An explanation for one user: it names no other user's job."""

    def is_own(job_id: str) -> bool:
        entry = None if ledger is None else ledger.entries.get(job_id)
        return job_id == told.job_id or (entry is not None and entry.job.spec.user == user)

    return redacted(told, is_own)
