"""The newest decisions of this process, and who is told of each new one. Plain data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from adlro.records.decisions import ShadowDecision
from adlro.services.orchestrator.deciding.decisions import Made


class DecisionLog:
    """The newest decisions, by id and by job; listeners are told each new one.

    Args:
        kept: number of stored decisions, in a cluster of up to 200 GPUs; fewer in a larger one.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._by_id: OrderedDict[str, Made] = OrderedDict()
        self._newest_of_job: dict[str, str] = {}
        self._listeners: list[Callable[[Made], None]] = []
        self._untold = 0
        self.count = 0

    def add(self, decision: Made) -> None:
        """Stores a decision; the caller calls `tell` afterwards, in the order of the decisions."""
        self.count += 1
        self._untold += 1
        self._by_id[decision.decision_id] = decision
        self._newest_of_job[decision.job_id] = decision.decision_id
        # A decision's size grows with the cluster: 10,000 decisions with 1,000 GPUs would take half a gigabyte.
        while len(self._by_id) > max(1, min(self._kept, self._kept * 200 // len(decision.durations_s))):
            dropped_id, dropped = self._by_id.popitem(last=False)
            if self._newest_of_job.get(dropped.job_id) == dropped_id:
                del self._newest_of_job[dropped.job_id]

    def tell(self, decision: Made, shadow: ShadowDecision | None) -> None:
        """Tells the listeners a decision, with the shadow policy's decision."""
        self._untold -= 1
        if shadow is not None:
            decision = replace(decision, shadow=shadow)
            if decision.decision_id in self._by_id:
                self._by_id[decision.decision_id] = decision
        for listener in self._listeners:
            listener(decision)

    def listen(self, listener: Callable[[Made], None]) -> None:
        """Calls a function with each decision from now on, in order; it must return at once and raise nothing."""
        self._listeners.append(listener)

    def find(self, decision_id: str) -> Made | None:
        """A decision by its id; None: unknown, or no longer stored."""
        return self._by_id.get(decision_id)

    def of_job(self, job_id: str) -> Made | None:
        """A job's newest decision; None if none is stored."""
        decision_id = self._newest_of_job.get(job_id)
        return None if decision_id is None else self._by_id[decision_id]

    def last(self, number: int) -> list[Made]:
        """The newest decisions that listeners were told, oldest first."""
        newest = islice(reversed(self._by_id.values()), self._untold, self._untold + max(number, 0))
        return list(newest)[::-1]
