"""What jobs that share a GPU are expected to keep of their speeds: by decompose or, without an answer, as measured.

A table of all kinds of jobs that may share and have arrived; it is made anew when a new kind arrives, and when
decompose has learned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from adlro.errors import AdlroError, DeadlineExceeded
from adlro.hardware.shared_speeds import chip_of, kept_shares
from adlro.records.jobs import JobSpec
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.ledger.sharing import PairTable, asks_for_a_part
from adlro.services.orchestrator.ports import PairPredictor, PredictedPairs
from adlro.state.observation import Floats

KINDS_KEPT = 32
"""Of those that arrived last: the table grows with the square, and decompose takes a third of a millisecond for each
figure. Jobs of other kinds don't share."""
ANSWER_S = 5.0
"""Seconds for a whole answer, which may take several calls."""
PAUSE_S = 10.0
"""After a call without an answer decompose is not called for so long."""


class ExpectedPairs:
    """The table, kept up to date.

    Args:
        predictor: decompose.
        on_fallback: called with the error of a call without an answer.
        clock_s: seconds of a monotonic clock.

    Attributes:
        table: the present one.
    """

    def __init__(
        self,
        predictor: PairPredictor,
        on_fallback: Callable[[AdlroError], None] = lambda _: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = PairTable()
        self._predictor = predictor
        self._on_fallback = on_fallback
        self._clock_s = clock_s
        self._kinds: dict[ApplicationSize, None] = {}  # those that arrived last come last
        self._gpu_models: tuple[str, ...] = ()
        self._revision: int | None = None  # None: part of the table is as measured
        self._ask_from_s = -np.inf
        self._one_at_a_time = asyncio.Lock()  # a late answer must not replace a newer one

    async def meet(
        self, specs: Iterable[JobSpec], gpu_models: Sequence[str], *, up_to_date: bool = False
    ) -> PairTable | None:
        """Learns of jobs that arrive, before they can share a GPU.

        Args:
            specs: of any jobs.
            gpu_models: the cluster's.
            up_to_date: what decompose has learned since the last answer is wanted too.

        Returns:
            The new table; None: the present one stands.
        """
        specs, models = [spec for spec in specs if asks_for_a_part(spec)], tuple(gpu_models)
        if not specs and models == self._gpu_models:
            return None  # a question that is under way delays no other jobs
        async with self._one_at_a_time:
            return await self._meet(specs, models, up_to_date)

    async def _meet(self, specs: Iterable[JobSpec], models: tuple[str, ...], up_to_date: bool) -> PairTable | None:
        kinds = {ApplicationSize.of(spec): None for spec in specs}
        new = kinds.keys() - self.table.number_of.keys()
        for kind in kinds:
            self._kinds.pop(kind, None)
            self._kinds[kind] = None
        if models != self._gpu_models:
            self.table, self._gpu_models = PairTable.of((), np.zeros((0, 0, len(models)))), models
        elif not new and (self._revision is not None or not kinds):
            return await self._refresh() if up_to_date and kinds else None
        self._kinds = dict.fromkeys(list(self._kinds)[-KINDS_KEPT:])
        return await self._renew()

    async def refresh(self) -> PairTable | None:
        """The table anew, if decompose has learned since, or has an answer again; None: the present one stands."""
        async with self._one_at_a_time:
            return await self._refresh()

    async def _refresh(self) -> PairTable | None:
        if not self._kinds or self._clock_s() < self._ask_from_s:
            return None
        if self._revision is not None:
            first = list(self._kinds)[:1]
            try:
                answer = await self._asked(first)
            except AdlroError as error:
                self._failed(error)
                return None
            if answer.revision == self._revision:
                return None
        return await self._renew()

    async def _renew(self) -> PairTable | None:
        """The table of the present kinds; None: the one that is there."""
        kinds = list(self._kinds)
        if self._clock_s() >= self._ask_from_s:
            try:
                answer = await self._asked(kinds)
            except AdlroError as error:
                self._failed(error)
            else:
                self._revision = answer.revision
                self.table = PairTable.of(kinds, answer.kept)
                return self.table
        before, self._revision = self.table, None
        if before.number_of.keys() == self._kinds.keys():
            return None
        kept = measured(kinds, self._gpu_models)
        known = [kind for kind in kinds if kind in before.number_of]
        here, there = [kinds.index(kind) for kind in known], [before.number_of[kind] for kind in known]
        kept[np.ix_(here, here)] = before.kept[np.ix_(there, there)]
        self.table = PairTable.of(kinds, kept)
        return self.table

    async def _asked(self, kinds: Sequence[ApplicationSize]) -> PredictedPairs:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._predictor.pairs(kinds, self._gpu_models)
        except TimeoutError:
            raise DeadlineExceeded(f"decompose has not answered about pairs in {ANSWER_S:g} s") from None

    def _failed(self, error: AdlroError) -> None:
        self._ask_from_s = self._clock_s() + PAUSE_S
        self._on_fallback(error)


def measured(kinds: Sequence[ApplicationSize], gpu_models: Sequence[str]) -> Floats:
    """(F, F, K) the shipped figures of pairs; 0, so that they don't share, where there are none."""
    kept = np.zeros((len(kinds), len(kinds), len(gpu_models)))
    for one, kind in enumerate(kinds):
        for other, beside in enumerate(kinds):
            for model, name in enumerate(gpu_models):
                figures = kept_shares(chip_of(name), kind.application, beside.application)
                kept[one, other, model] = 0.0 if figures is None else figures[0]
    return kept
