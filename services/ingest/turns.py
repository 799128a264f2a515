"""Turns of the event loop for long answers: a few messages a round, so that other calls run in between.

A round of the loop in which each of two hundred snapshots writes a message takes tens of milliseconds, and a call needs
some ten rounds from its arrival to its answer. Knows asyncio only.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Grants a number of turns in each round of the event loop, in the order of the requests.

    Args:
        per_round: turns in a round.
    """

    def __init__(self, per_round: int) -> None:
        self._per_round = per_round
        self._left = per_round
        self._counts = False  # a call to _next_round is under way
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting_count(self) -> int:
        """The number of waiting tasks."""
        return len(self._waiting)

    def take_now(self) -> bool:
        """Takes a turn of this round, if one is left and no task waits."""
        if self._waiting or not self._left:
            return False
        self._left -= 1
        if not self._counts:
            self._counts = True
            asyncio.get_running_loop().call_soon(self._next_round)
        return True

    async def take(self) -> None:
        """Waits for a turn."""
        if self.take_now():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self) -> None:
        self._left = self._per_round
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # else who waited has gone away
                turn.set_result(None)
                self._left -= 1
        self._counts = self._left < self._per_round
        if self._counts:
            asyncio.get_running_loop().call_soon(self._next_round)
