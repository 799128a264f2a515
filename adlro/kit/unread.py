"""Ends streams whose client reads nothing: each unread message takes memory. Knows asyncio only."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from adlro.errors import LimitExceeded

_LOOKS_PER_TIMEOUT = 4


class Stream:
    """One response stream; `UnreadStreams.opened` creates it in the task that writes it."""

    __slots__ = ("_task", "given_up", "writes_since_s")

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self._task = task
        self.given_up = False
        # Start of the present message's write; 0: no write.
        self.writes_since_s = 0.0

    def _give_up(self) -> None:
        if self._task is not None:
            self.given_up = True
            self._task.cancel()


class UnreadStreams:
    """The open response streams of a process.

    Args:
        timeout_s: longest time without a read by the client during a write; 0: no limit.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._open: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def opened(self) -> Stream:
        """Registers a stream, written by the current task."""
        stream = Stream(asyncio.current_task())
        self._open.add(stream)
        if self._timer is None and self._timeout_s:
            self._look_later()
        return stream

    def closed(self, stream: Stream) -> None:
        """Removes a stream."""
        self._open.discard(stream)

    def refusal(self) -> LimitExceeded:
        """The error of a stream that this module ends."""
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
