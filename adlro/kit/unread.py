"""Ends streams whose client takes nothing: a message that waits for its client is memory. Knows asyncio only."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from adlro.errors import LimitExceeded

_LOOKS_PER_TIMEOUT = 4


class Stream:
    """One stream of answers; made by `UnreadStreams.opened` in the task that writes it."""

    __slots__ = ("_task", "given_up", "writes_since_s")

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self._task = task
        self.given_up = False
        # Since when a message is being written; 0: none is.
        self.writes_since_s = 0.0

    def _give_up(self) -> None:
        if self._task is not None:
            self.given_up = True
            self._task.cancel()


class UnreadStreams:
    """The open streams of answers of a process.

    Args:
        timeout_s: how long a client may take nothing of a message that is being written; 0: any time.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._open: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def opened(self) -> Stream:
        """One more, written by the current task."""
        stream = Stream(asyncio.current_task())
        self._open.add(stream)
        if self._timer is None and self._timeout_s:
            self._look_later()
        return stream

    def closed(self, stream: Stream) -> None:
        """One less."""
        self._open.discard(stream)

    def refusal(self) -> LimitExceeded:
        """What a stream that is given up ends with."""
        return LimitExceeded(
            f"the client read no message of this stream for {self._timeout_s:g} s; read promptly, and resume after "
            "the last revision read",
            reason="STREAM_NOT_READ",
            retry_after_s=1.0,
        )

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_s / _LOOKS_PER_TIMEOUT, self._look)

    def _look(self) -> None:
        self._timer = None
        latest_s = time.monotonic() - self._timeout_s
        for stream in self._open:
            if 0.0 < stream.writes_since_s < latest_s and not stream.given_up:
                stream._give_up()
        if self._open:
            self._look_later()
