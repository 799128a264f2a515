"""When expected durations are requested again: as jobs join the queue, and after enough finished jobs.

A job may be submitted long before it begins, as all jobs of a replay are; its first prediction stays in case there is
no later answer. No I/O: the caller sends the answer to a yielded request. Wall time, which the caller passes in, only
limits the rate of requests, and has no effect in virtual time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from adlro.records.jobs import JobSpec
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.runtimes.predictions import CHUNK, Expected, Standing, is_as_declared

# Outside virtual time, the queue's expectations are updated at most this often, in seconds; if more of them are old
# than one request holds, updates take this share of the time.
REFRESH_S = 1.0
REFRESH_AT_ONCE = 500
CATCH_UP_SHARE = 0.2
# Without new jobs, a request follows after so many further ends, as a share of all ends, to see if decompose has
# learned.
ENDED_SHARE = 0.02
_GENERATION = attrgetter("generation")


@dataclass(frozen=True, slots=True)
class Predict:
    """A request for the expected durations of at most CHUNK jobs. Answer: RuntimesPredicted."""

    specs: Sequence[JobSpec]


@dataclass(frozen=True, slots=True)
class RuntimesPredicted:
    """The expectations, and the predictor's state after them.

    Attributes:
        expected: in the order of the request; None: no answer.
        predictor: the predictor's state.
    """

    expected: Sequence[Expected] | None
    predictor: Standing


Asking = Generator[Predict, Any, bool]
"""Yields `Predict`; the caller sends `RuntimesPredicted`."""


class RuntimeRefresh:
    """Updates the expectations of waiting jobs.

    Args:
        clock_s: seconds of a monotonic wall clock.
        predictor: the predictor's state.
        caught_up: the oldest generation of the queue's predictions; None: the present one.

    Attributes:
        gpu_speeds: by id, the speed relative to its model of each GPU that was found slower than its model.
    """

    def __init__(self, clock_s: Callable[[], float], predictor: Standing, caught_up: int | None = None) -> None:
        self.gpu_speeds: Mapping[str, float] = {}
        self._speeds_used = False
        self._predictor = predictor
        self._clock_s = clock_s
        self._ended = 0
        self._ended_since = 0  # since the last answer
        # All predictions of the queue are of this generation or a later one.
        self._caught_up = predictor.generation if caught_up is None else caught_up
        self._not_before_s = -np.inf

    def heard(self, predictor: Standing) -> None:
        """Stores the predictor's state after a request."""
        self._predictor = predictor

    def ended(self) -> None:
        """Counts a job that ended by itself: decompose will learn from it."""
        self._ended += 1
        self._ended_since += 1

    def bring_up_to_date(self, ledger: Ledger, joined: Sequence[Entry], *, virtual: bool) -> Asking:
        """Requests predictions for the jobs that join the queue at this event and, when due, for waiting jobs.

        Args:
            ledger: its queue contains `joined` already.
            joined: jobs whose predictions may be old.
            virtual: the result must not depend on wall time.

        Returns:
            Whether the expectations of a job that waited before have changed.
        """
        for start in range(0, len(joined), CHUNK):
            # The first answer shows whether decompose has learned since their submission; if not, the other predictions
            # stay.
            part = [entry for entry in joined[start : start + CHUNK] if not start or self._is_old(entry)]
            if part and (yield from self._ask(ledger, part)) is None:
                break
        if not ledger.queue_length or not (virtual or self._clock_s() >= self._not_before_s):
            return False
        changed = None
        if not joined and self._ended_since >= max(1.0, ENDED_SHARE * self._ended):
            self._refreshed()
            changed = yield from self._ask(ledger, ledger.queued(0, 1))
        return (yield from self._refresh(ledger)) or bool(changed)

    def use_gpu_speeds(self, ledger: Ledger) -> None:
        """Applies the speeds of single GPUs to a ledger before its decisions.

        If all waiting jobs have exactly their declared durations, declarations were exact so far on every GPU: then
        none is slower than declared, and a false alarm must not change the schedule.
        """
        wanted = bool(self.gpu_speeds) and not _all_as_declared(ledger)
        if wanted or self._speeds_used:
            ledger.set_speeds(self.gpu_speeds if wanted else {})
            self._speeds_used = wanted

    def _refresh(self, ledger: Ledger) -> Asking:
        generation = self._predictor.generation
        # The queue may be long: it is searched only if the predictor can be called.
        if generation == self._caught_up or self._clock_s() < self._predictor.ask_from_s:
            return False
        began_s = self._clock_s()
        self._refreshed()
        old = [entry for entry in ledger.queued() if entry.generation != generation]
        oldest = heapq.nsmallest(REFRESH_AT_ONCE, old, key=_GENERATION)  # among equals, the first in the queue
        changed = (yield from self._ask(ledger, oldest)) if old else False
        if changed is not None and len(old) <= REFRESH_AT_ONCE:
            self._caught_up = generation
        elif changed is not None:
            now_s = self._clock_s()
            self._not_before_s = now_s + min(REFRESH_S, (now_s - began_s) * (1.0 / CATCH_UP_SHARE - 1.0))
        return bool(changed)

    def _refreshed(self) -> None:
        self._not_before_s = self._clock_s() + REFRESH_S

    def _is_old(self, entry: Entry) -> bool:
        return entry.generation != self._predictor.generation

    def _ask(self, ledger: Ledger, entries: Sequence[Entry]) -> Generator[Predict, Any, bool | None]:
        """Whether an expectation changed; None: no answer."""
        answer = yield Predict([entry.job.spec for entry in entries])
        assert isinstance(answer, RuntimesPredicted)
        self.heard(answer.predictor)
        if answer.expected is None:
            return None
        self._ended_since = 0
        changed = False
        for entry, found in zip(entries, answer.expected, strict=True):
            entry.generation = found.generation
            changed = (
                ledger.expect(
                    entry, found.durations_s, found.spread, found.spread_speed, found.restart_s, found.interval
                )
                or changed
            )
        return changed


def _all_as_declared(ledger: Ledger) -> bool:
    return all(_is_as_declared(entry, ledger.layout.gpu_models) for entry in ledger.queued())


def _is_as_declared(entry: Entry, gpu_models: Sequence[str]) -> bool:
    accepted = np.flatnonzero(np.isfinite(entry.expected_s))
    if not len(accepted):
        return True  # it runs nowhere
    return is_as_declared(entry.job.spec, float(entry.expected_s[accepted[0]]), gpu_models[accepted[0]])
