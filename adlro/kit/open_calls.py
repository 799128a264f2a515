"""Counts a process's running calls, and the open streams of each user. Knows asyncio only."""

from __future__ import annotations

import asyncio

from adlro.errors import LimitExceeded
from adlro.kit.identity import current_caller

_STREAM_RETRY_S = 5.0


class OpenCalls:
    """Counts the running calls, so that a drain knows when the last has ended."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    def began(self) -> None:
        """Counts a call."""
        self.count += 1
        self._none.clear()

    def ended(self) -> None:
        """Counts a call's end."""
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none_left(self) -> None:
        """Returns when no call runs."""
        await self._none.wait()


class UserStreams:
    """Counts the open streams of each user.

    Args:
        limit: largest number for one user; 0: no limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[str, int] = {}

    def began(self) -> str:
        """Counts a stream of the current caller; returns the caller's name, for `ended`. Raises LimitExceeded."""
        caller = current_caller()
        if caller is None or not self._limit:
            return ""
        count = self._open.get(caller.user, 0)
        if count >= self._limit:
            raise LimitExceeded(
                f"{caller.user} has {count} open streams, the most that a user may have; end one first",
                reason="TOO_MANY_STREAMS",
                metadata={"limit": str(self._limit)},
                retry_after_s=_STREAM_RETRY_S,
            )
        self._open[caller.user] = count + 1
        return caller.user

    def ended(self, user: str) -> None:
        """Counts a stream's end."""
        if user:
            left = self._open[user] - 1
            if left:
                self._open[user] = left
            else:
                del self._open[user]
