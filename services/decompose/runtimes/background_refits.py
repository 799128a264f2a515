"""Refits the learned predictor in a thread, one refit at a time; meanwhile calls use the previous fit."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor


class BackgroundRefits:
    """See the module.

    Args:
        predictor: one that does not make its fits itself.
        metrics: takes the times.
        log: a structlog logger.
    """

    def __init__(self, predictor: LearnedPredictor, metrics: DecomposeMetrics, log: Any) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self._log = log
        self._running: asyncio.Task[None] | None = None

    async def for_question(self, patience_s: float) -> None:
        """Starts a refit if there are enough new outcomes, and waits a moment for a running one."""
        if self._predictor.due:
            self._begin()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=patience_s)

    async def for_learning(self) -> None:
        """Waits for a fit where so much was learned since the last that what is compared with it would mislead."""
        while self._predictor.overdue:
            self._begin()
            if self._running is not None:
                await asyncio.wait([self._running])

    async def stop(self) -> None:
        """Waits for the running refit."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def _begin(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="refit")

    async def _run(self) -> None:
        began = time.perf_counter()
        try:
            refit = self._predictor.refit()
            fit = await asyncio.to_thread(refit.make)
        except Exception as error:  # the old fit serves on; another is tried when more was learned
            self._metrics.failed_refits.inc()
            self._log.error("the refit failed; the previous fit stays in use", problem=repr(error))
        else:
            self._predictor.adopt(refit, fit)
            self._metrics.refit_s.observe(time.perf_counter() - began)
        finally:
            self._running = None
