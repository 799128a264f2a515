"""Jobs whose forecasts have not finished: which are due for one, and what their starts teach. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adlro.decide.forecast.calibration import LEAST_WAIT_S, Forecast
from adlro.services.orchestrator.explain.waiting import why_none
from adlro.services.orchestrator.ledger.entry import Entry, Phase

MOST_TRACKED = 512
"""Jobs that are forecast for the record at a time; with longer queues a part of them is."""

DUE_AT_ONCE = 64
"""Jobs of one round of forecasts for the record."""

_LATER_RATIO = 1.5
"""A job is forecast again when it has waited this many times as long."""

_HALF_LOW, _HALF_HIGH = 0.3, 0.7


@dataclass(slots=True)
class Tracked:
    """A waiting job and its forecasts.

    Attributes:
        entry: the job.
        attempts: its attempts when it was taken up: the next one is its start.
        submit_s: cluster time from which its wait counts.
        fresh: its forecast at submission.
        later: those made later, in order.
        due_s: cluster time of the next.
    """

    entry: Entry
    attempts: int
    submit_s: float
    fresh: Forecast | None = None
    later: list[Forecast] = field(default_factory=list)
    due_s: float = 0.0

    @property
    def start_s(self) -> float | None:
        """Cluster time of its start; None: it has not started, or its record does not tell."""
        attempts = self.entry.job.attempts
        return attempts[self.attempts].start_s if len(attempts) > self.attempts else None


class Forecasts:
    """The jobs that are tracked."""

    def __init__(self) -> None:
        self._of: dict[str, Tracked] = {}
        self._looked_s = math.inf  # what waits at the first look may wait for long

    def __len__(self) -> int:
        return len(self._of)

    def due(self, queue: list[Entry], time_s: float) -> list[Tracked]:
        """Jobs that are due for a forecast; new ones are taken up, the latest first.

        Args:
            queue: the queued jobs in order.
            time_s: the present cluster time.
        """
        due: list[Tracked] = []
        for entry in reversed(queue):
            if len(due) >= DUE_AT_ONCE or len(self._of) >= MOST_TRACKED:
                break
            submit_s = entry.job.submit_s
            if entry.job.job_id in self._of or submit_s is None or why_none(entry):
                continue
            if time_s - submit_s >= LEAST_WAIT_S and submit_s <= self._looked_s:
                break  # those before it have waited longer, and could be seen at the last look
            tracked = self._of[entry.job.job_id] = Tracked(entry, len(entry.job.attempts), submit_s)
            due.append(tracked)
        self._looked_s = time_s
        waiting = (each for each in self._of.values() if each.entry.phase is Phase.QUEUED)
        again = [each for each in waiting if (each.fresh or each.later) and each.due_s <= time_s]
        return (due + again)[:DUE_AT_ONCE]

    def drop(self, tracked: Tracked) -> None:
        """Tracks a job no more: no future reaches its start, and others need its place."""
        if not tracked.fresh and not tracked.later:
            self._of.pop(tracked.entry.job.job_id, None)

    def made(self, tracked: Tracked, forecast: Forecast, *, fresh: bool) -> None:
        """Keeps a forecast of a job."""
        if fresh:
            tracked.fresh = forecast
        else:
            tracked.later.append(forecast)
        waited_s = max(forecast.made_s - tracked.submit_s, LEAST_WAIT_S)
        tracked.due_s = tracked.submit_s + _LATER_RATIO * waited_s

    def finished(self) -> list[tuple[Forecast, float]]:
        """The forecasts of jobs that have started, each with the start; these are tracked no more.

        Of those made later, the one nearest to half the wait counts, so that long waits teach no more than short ones.
        A job that did not wait for `LEAST_WAIT_S`, or was cancelled, teaches nothing.
        """
        found: list[tuple[Forecast, float]] = []
        for job_id, each in list(self._of.items()):
            if each.entry.phase is Phase.QUEUED and len(each.entry.job.attempts) == each.attempts:
                continue
            start_s = each.start_s
            if start_s is None and each.entry.phase is not Phase.GONE:
                continue  # it is being launched, or was refused
            del self._of[job_id]
            if start_s is None or start_s - each.submit_s <= LEAST_WAIT_S:
                continue
            if each.fresh is not None:
                found.append((each.fresh, start_s))
            wait_s = start_s - each.submit_s
            shares = {(one.made_s - each.submit_s) / wait_s: one for one in each.later}
            nearest = min(shares, key=lambda share: abs(share - 0.5), default=0.0)
            if _HALF_LOW <= nearest <= _HALF_HIGH:
                found.append((shares[nearest], start_s))
        return found

    def forget(self) -> None:
        """Tracks no job any more: another session reads its records anew."""
        self._of.clear()
        self._looked_s = math.inf
