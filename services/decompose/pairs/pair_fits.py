"""The present prediction of pairs: a fit that is renewed in a thread, and the shipped figures.

Knows plain records and arrays only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.pairs.pair_memory import KeptShares, PairFit, PairKey, PairMemory
from adlro.services.decompose.pairs.shared_runs import LEAST_STD
from adlro.services.decompose.pairs.shipped_pairs import SHIPPED_STD, shipped_kept

REFIT_SHARE = 0.02
"""Newly learned runs, as a share of the pairs, after which a fit is due. A fit of 2,000 pairs takes two seconds."""


class PairFits:
    """See the module.

    Args:
        memory: the learned pairs.
    """

    def __init__(self, memory: PairMemory) -> None:
        self.memory = memory
        self.revision = 0
        """Grows with each new fit."""
        self._metrics: DecomposeMetrics | None = None
        self._log: Any = None
        self._fit = PairFit()
        self._fitted_revision = memory.revision
        self._running: asyncio.Task[None] | None = None

    def report_to(self, metrics: DecomposeMetrics, log: Any) -> None:
        """Counts and reports from now on; `log` is a structlog logger."""
        self._metrics, self._log = metrics, log

    @property
    def due(self) -> bool:
        """Whether enough was learned since the last fit for a new one before the next answer."""
        return self.memory.revision - self._fitted_revision >= max(1.0, REFIT_SHARE * len(self.memory))

    def start_over(self) -> None:
        """Forgets all pairs."""
        self.memory.clear()
        self._take(PairFit(), self.memory.revision)

    def predict(self, pairs: Sequence[PairKey]) -> KeptShares:
        """The kept shares of the first jobs of N pairs, seen or not, by the present fit."""
        return with_shipped(self._fit, self.memory, pairs)

    def present(self) -> PairFit:
        """The present fit, which later ones do not change: another thread may use it."""
        return self._fit

    def seen(self) -> frozenset[PairKey]:
        """The pairs learned so far."""
        return frozenset(self.memory.pairs())

    def refit(self) -> None:
        """Fits at once."""
        revision = self.memory.revision
        self._take(self.memory.fit(), revision)

    async def for_question(self, patience_s: float) -> None:
        """Starts a fit after enough new runs, and waits at most `patience_s` for a running one."""
        if self.due and self._running is None:
            self._running = asyncio.create_task(self._run(), name="fit of pairs")
        if self._running is not None:
            await asyncio.wait([self._running], timeout=patience_s)

    async def stop(self) -> None:
        """Waits for the running fit."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        began = time.perf_counter()
        before, revision = self._fit, self.memory.revision
        pairs = self.memory.copy()
        try:
            fit = await asyncio.to_thread(pairs.fit)
        except Exception as error:  # the previous fit stays; the next one follows after more runs
            self._fitted_revision = revision
            if self._metrics is not None:
                self._metrics.failed_refits.inc()
            if self._log is not None:
                self._log.error("the fit of pairs failed; the previous one stays in use", problem=repr(error))
        else:
            if before is self._fit:  # else its pairs were forgotten meanwhile
                self._take(fit, revision)
            if self._metrics is not None:
                self._metrics.refit_s.observe(time.perf_counter() - began)
        finally:
            self._running = None

    def _take(self, fit: PairFit, revision: int) -> None:
        self._fit, self._fitted_revision = fit, revision
        self.revision += 1


def with_shipped(fit: PairFit, seen: PairMemory | frozenset[PairKey], pairs: Sequence[PairKey]) -> KeptShares:
    """The kept shares of N pairs by a fit, and by the shipped figures as one more observation each.

    Args:
        fit: the regression.
        seen: the pairs that were learned: such a pair can share, whatever is shipped.
        pairs: N.
    """
    found = fit.predict(pairs)
    for number, pair in enumerate(pairs):
        shipped = shipped_kept(pair)
        if shipped is None:
            continue
        if shipped == 0.0:
            if pair not in seen:
                found.mean[number], found.std[number] = 0.0, SHIPPED_STD
            continue
        precision, of_shipped = max(found.std[number], LEAST_STD) ** -2, SHIPPED_STD**-2
        total = precision + of_shipped
        found.mean[number] = (precision * found.mean[number] + of_shipped * shipped) / total
        found.std[number] = np.sqrt(1.0 / total)
    return found
