"""The explanation of a wait with its expected start: copied on the loop, worked out in a thread beside it.

Anybody may ask for the explanations of his jobs, as often as he likes, and decisions go first: one explanation is
worked out at a time, with a pause after it, and all who ask for the same job meanwhile, or just after, share one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from adlro.records.jobs import Job
from adlro.records.precedence import Precedence
from adlro.records.waiting import WaitingExplanation
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.explain.waiting import explanation, see, why_none
from adlro.services.orchestrator.forecasts.forecasting import CALLERS_PAUSE, Forecasting
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger

SHARED_S = 0.1
"""An explanation answers for so long after it was made, in wall seconds."""


@dataclass(slots=True, eq=False)
class _Shared:
    """An explanation that is being made, or has just been made.

    Attributes:
        ledger: that it is about.
        callers: how many wait for it.
    """

    ledger: Ledger
    callers: int = 0
    task: asyncio.Task[WaitingExplanation] = field(init=False)


class Explaining:
    """The explanations of one orchestrator.

    Args:
        forecasting: makes the forecasts.
    """

    def __init__(self, forecasting: Forecasting) -> None:
        self._forecasting = forecasting
        self._thread = SideThread("explain waits")
        self._turn = asyncio.Lock()
        self._rests_until = 0.0
        self._shared: dict[str, _Shared] = {}

    async def explained(
        self, ledger: Ledger | None, job: Job, now_s: Callable[[], float], rule: Precedence | None = None
    ) -> WaitingExplanation:
        """Why a pending job waits, what its user could change, and when it is expected to start.

        Args:
            ledger: of the present session; None: there is none.
            job: its record.
            now_s: the cluster time.
            rule: which waiting jobs go before others; None: none do by rule.
        """
        entry = None if ledger is None else ledger.entries.get(job.job_id)
        if ledger is None or entry is None or _left(entry):
            none = "the orchestrator does not act now"
            if ledger is not None:
                none = "it has only just arrived" if entry is None else "it is being launched"
            return _of_record(job, now_s(), none)
        shared = self._shared.get(job.job_id)
        if shared is None or shared.ledger is not ledger:
            shared = self._shared[job.job_id] = _Shared(ledger)
            shared.task = asyncio.create_task(self._explained(shared, entry, now_s, rule), name="explain a wait")
            # Marks an error that nobody awaits any more as retrieved.
            shared.task.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
        shared.callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.callers -= 1

    async def _explained(
        self, shared: _Shared, entry: Entry, now_s: Callable[[], float], rule: Precedence | None
    ) -> WaitingExplanation:
        job_id = entry.job.job_id
        try:
            start, none = None, why_none(entry)
            if not none:
                expected = await self._forecasting.expected(shared.ledger, entry, now_s)
                start, none = (None, expected) if isinstance(expected, str) else (expected, "")
            async with self._turn:
                await asyncio.sleep(self._rests_until - time.monotonic())
                if not shared.callers:  # all of them have given up
                    self._forget(job_id, shared)
                    raise asyncio.CancelledError
                if _left(entry):
                    return _of_record(entry.job, now_s(), "it is being launched")
                began = time.monotonic()
                try:
                    seen = see(shared.ledger, entry, now_s(), rule)
                    return await self._thread.run(partial(explanation, seen, start, none))
                finally:
                    self._rests_until = time.monotonic() + CALLERS_PAUSE * (time.monotonic() - began)
        finally:
            asyncio.get_running_loop().call_later(SHARED_S, self._forget, job_id, shared)

    def _forget(self, job_id: str, shared: _Shared) -> None:
        if self._shared.get(job_id) is shared:
            del self._shared[job_id]

    def close(self) -> None:
        """Ends the thread."""
        self._thread.close()


def _left(entry: Entry) -> bool:
    return entry.phase in (Phase.PLACED, Phase.GONE)


def _of_record(job: Job, time_s: float, none: str) -> WaitingExplanation:
    """What the record alone tells."""
    return WaitingExplanation(job.job_id, time_s, job.pending_reason, job.message, 0, 0, no_expected_start=none)
