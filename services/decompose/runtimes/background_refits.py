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
        predictor: a predictor that does not refit itself.
        metrics: records the durations.
        log: a structlog logger.
    """

    def __init__(self, predictor: LearnedPredictor, metrics: DecomposeMetrics, log: Any) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self._log = log
        self._running: asyncio.Task[None] | None = None

    async def for_question(self, patience_s: float) -> None:
        """Starts a refit after enough new outcomes, and waits at most `patience_s` for a running one."""
        if self._predictor.due:
            self._begin()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=patience_s)

    async def for_learning(self) -> None:
        """Waits for a refit if so much was learned since the last one that comparisons with it would mislead."""
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
        except Exception as error:  # the previous fit stays; the next refit follows after more outcomes
            self._metrics.failed_refits.inc()
            self._log.error("the refit failed; the previous fit stays in use", problem=repr(error))
        else:
            self._predictor.adopt(refit, fit)
            self._metrics.refit_s.observe(time.perf_counter() - began)
        finally:
            self._running = None
