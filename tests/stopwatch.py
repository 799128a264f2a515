"""A stopwatch for promises about speed, on machines that stand still now and then."""

from __future__ import annotations

import asyncio
import time

_LOOK_S = 0.02
_COUNTED_S = 0.1


class Stopwatch:
    """Counts time while this process gets on; use it with `async with`.

    It looks at the clock every 20 ms. Of a look that comes late, as where the machine stood still, 0.1 s is counted at
    most. What a service takes for itself, while the event loop here waits for it, is counted in full; not for code that
    may block this loop.
    """

    def __init__(self) -> None:
        self._counted_s = 0.0
        self._looked_s = 0.0
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Stopwatch:
        self._looked_s = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="stopwatch")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def read(self) -> float:
        """Seconds since its beginning, without those in which nothing got on."""
        now_s = time.monotonic()
        self._counted_s += min(now_s - self._looked_s, _COUNTED_S)
        self._looked_s = now_s
        return self._counted_s

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.read()
