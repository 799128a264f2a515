"""When expected durations are asked for anew: as jobs join the queue, and as finished jobs have taught enough.

A job may be submitted long before it begins, as all jobs of a replay are: what was predicted then is kept in case that
nobody answers. No I/O: a question is yielded, and the answer is sent in. Wall time, which is handed in, only bounds how
often others are asked, and plays no part in virtual time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from adlro.records.jobs import JobSpec
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger
from adlro.services.orchestrator.runtimes.predictions import CHUNK, Expected, Standing, is_as_declared

# Where time is not virtual, the queue's expectations are brought up to date at most this often; while more of them are
# old than are asked about at once, in this share of the time.
REFRESH_S = 1.0
REFRESH_AT_ONCE = 500
CATCH_UP_SHARE = 0.2
# Nobody joins: still, whether something was learned is asked after so many more ends, as a share of all ends.
ENDED_SHARE = 0.02
_GENERATION = attrgetter("generation")


@dataclass(frozen=True, slots=True)
class Predict:
    """How long are these jobs expected to take? At most CHUNK of them. Answer: RuntimesPredicted."""

    specs: Sequence[JobSpec]


@dataclass(frozen=True, slots=True)
class RuntimesPredicted:
    """What is expected of them, and how the predictor stands after that.

    Attributes:
        expected: in the order of the question; None: nobody answers.
        predictor: how it stands.
    """

    expected: Sequence[Expected] | None
    predictor: Standing


Asking = Generator[Predict, Any, bool]
"""Yields `Predict`, is sent `RuntimesPredicted`."""


class RuntimeRefresh:
    """Keeps what is expected of waiting jobs up to date.

    Args:
        clock_s: seconds of wall time that pass steadily.
        predictor: how it stands.
        caught_up: the generation of predictions that the queue is of, or the oldest of several; None: the present one.

    Attributes:
        gpu_speeds: by id, the speed relative to its model of each GPU that was found slower than its kind.
    """

    def __init__(self, clock_s: Callable[[], float], predictor: Standing, caught_up: int | None = None) -> None:
        self.gpu_speeds: Mapping[str, float] = {}
        self._speeds_used = False
        self._predictor = predictor
        self._clock_s = clock_s
        self._ended = 0
        self._ended_since = 0  # the last answer
        # The whole queue is of this one, or a later one.
        self._caught_up = predictor.generation if caught_up is None else caught_up
        self._not_before_s = -np.inf

    def heard(self, predictor: Standing) -> None:
        """The predictor has been asked."""
        self._predictor = predictor

    def ended(self) -> None:
        """A job ended by itself: decompose will learn from it."""
        self._ended += 1
        self._ended_since += 1

    def bring_up_to_date(self, ledger: Ledger, joined: Sequence[Entry], *, virtual: bool) -> Asking:
        """Asks about those that join the queue at this event and, where that is due, about those that wait.

        Args:
            ledger: its queue holds `joined` already.
            joined: jobs whose last prediction may be old.
            virtual: nothing depends on wall time.

        Returns:
            Whether what is expected of a job that waited before has changed.
        """
        for start in range(0, len(joined), CHUNK):
            # The first answer shows whether something was learned since they were submitted; if not, the rest stands.
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
        """Brings the speeds of single GPUs into a ledger before its decisions.

        Where all that wait are expected to take exactly what was declared, declarations were exact so far, on every
        GPU: then none is slower than declared, and a false alarm about one must not make their schedule another.
        """
        wanted = bool(self.gpu_speeds) and not _all_as_declared(ledger)
        if wanted or self._speeds_used:
            ledger.set_speeds(self.gpu_speeds if wanted else {})
            self._speeds_used = wanted

    def _refresh(self, ledger: Ledger) -> Asking:
        generation = self._predictor.generation
        # The queue may be long: it is gone through only where somebody is there to be asked.
        if generation == self._caught_up or self._clock_s() < self._predictor.ask_from_s:
            return False
        began_s = self._clock_s()
        self._refreshed()
        old = [entry for entry in ledger.queued() if entry.generation != generation]
        oldest = heapq.nsmallest(REFRESH_AT_ONCE, old, key=_GENERATION)  # of equals those that come first
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
        """Whether an expectation changed; None: nobody answered."""
        answer = yield Predict([entry.job.spec for entry in entries])
        assert isinstance(answer, RuntimesPredicted)
        self.heard(answer.predictor)
        if answer.expected is None:
            return None
        self._ended_since = 0
        changed = False
        for entry, (row, spread, generation) in zip(entries, answer.expected, strict=True):
            entry.generation = generation
            if spread != entry.spread or not np.array_equal(row, entry.expected_s):
                ledger.expect(entry, row, spread)
                changed = True
        return changed


def _all_as_declared(ledger: Ledger) -> bool:
    model = ledger.layout.gpu_models[0]
    return all(is_as_declared(entry.job.spec, float(entry.expected_s[0]), model) for entry in ledger.queued())
