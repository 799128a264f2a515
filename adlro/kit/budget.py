"""Memory budget of requests: bytes for a process and for each caller; further requests wait or are refused.

gRPC has one largest message size for a server, and reads a message before its size is known. So a call reserves the
largest size before its message is read, releases the surplus, and holds the rest until its answer
is with the client. A waiting call costs its first 64 KiB (adlro.kit.port). Uses asyncio only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, Awaitable
from typing import Any, Generic, TypeVar

from adlro.errors import LimitExceeded

T = TypeVar("T")

# In all, and of one caller: more are refused at once.
_WAITING, _WAITING_OF_CALLER = 1500, 1000
# A call waits no longer than this for memory.
_WAIT_S = 5.0
# A client that sends nothing, or reads nothing, for this time loses its memory to waiting callers.
_LOOK_EVERY_S = 0.5
_RETRY_S = 1.0


class MemoryLease:
    """Memory that one call holds; made by `RequestBudget.take`.

    Attributes:
        size_bytes: its size.
    """

    __slots__ = ("_budget", "_given_up", "_task", "_waits_since_s", "caller", "size_bytes")

    def __init__(self, budget: RequestBudget, caller: str, size_bytes: int) -> None:
        self._budget = budget
        self.caller = caller
        self.size_bytes = size_bytes
        self._given_up = False
        self._task: asyncio.Task[Any] | None = None
        self._waits_since_s = 0.0

    def waits_for_client(self) -> None:
        """Marks the current task as waiting for its client, to send or to read: it may be cancelled."""
        self._task = asyncio.current_task()
        self._waits_since_s = time.monotonic()

    async def read(self, message: Awaitable[T]) -> T:
        """Waits for a message of the client.

        Raises:
            LimitExceeded: it did not arrive, and other callers wait for memory.
        """
        self.waits_for_client()
        try:
            return await message
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._given_up or task is None:
                raise
            task.uncancel()
            raise self._too_slow() from None
        finally:
            self._task = None

    def resize(self, size_bytes: int) -> None:
        """Changes the amount, even beyond the budget: later calls then wait."""
        self._budget._resize(self, size_bytes)

    def release(self, _: object = None) -> None:
        """Releases the memory; a repeated call does nothing."""
        self._task = None
        self._budget._resize(self, 0)
        self._budget._open.discard(self)

    def _too_slow(self) -> LimitExceeded:
        return LimitExceeded(
            f"the client sent nothing for {self._budget.patience_s:g} s while other calls wait for the memory reserved "
            "for its message; send the message as soon as a call is open",
            reason="TOO_SLOW",
            retry_after_s=_RETRY_S,
        )

    def _slow(self, now_s: float) -> bool:
        return self._task is not None and now_s - self._waits_since_s > self._budget.patience_s

    def _give_up(self) -> None:
        if self._task is not None:
            self._given_up = True
            self._task.cancel()
            self._task = None


class LeasedStream(Generic[T]):
    """The messages of a client stream, waited for as `MemoryLease.read` does."""

    def __init__(self, requests: AsyncIterable[T], lease: MemoryLease) -> None:
        self._requests = requests.__aiter__()
        self._lease = lease

    def __aiter__(self) -> LeasedStream[T]:
        return self

    async def __anext__(self) -> T:
        return await self._lease.read(self._requests.__anext__())


class RequestBudget:
    """The memory budget of one kind of calls.

    Args:
        total_bytes: of the process.
        patience_s: how long a client may be silent while other callers wait.
    """

    def __init__(self, total_bytes: int, patience_s: float) -> None:
        self._total_bytes = total_bytes
        self._caller_bytes = total_bytes // 2
        self.patience_s = patience_s
        self._used_bytes = 0
        self._used_by: dict[str, int] = {}
        self._open: set[MemoryLease] = set()
        # By caller, in the order in which they are served next: size, when it came, and the lease that is to be.
        self._waiting: dict[str, deque[tuple[int, float, asyncio.Future[MemoryLease]]]] = {}
        self._waiting_count = 0
        self._short = False  # the next one in line waits for the process, not for its caller
        self._timer: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        """The memory in use, bytes."""
        return self._used_bytes

    @property
    def waiting_count(self) -> int:
        """The number of waiting calls."""
        return self._waiting_count

    def take_now(self, caller: str, size_bytes: int) -> MemoryLease | None:
        """Memory for a call, if it is free and no call waits."""
        size_bytes = min(size_bytes, self._caller_bytes)
        if self._short or caller in self._waiting or not self._fits(caller, size_bytes):
            return None
        return self._lease(caller, size_bytes)

    async def take(self, caller: str, size_bytes: int) -> MemoryLease:
        """Waits for memory for a call.

        Raises:
            LimitExceeded: no memory within a few seconds, or too many waiting calls.
        """
        lease = self.take_now(caller, size_bytes)
        if lease is not None:
            return lease
        queue = self._waiting.setdefault(caller, deque())
        if self._waiting_count >= _WAITING or len(queue) >= _WAITING_OF_CALLER:
            if not queue:
                del self._waiting[caller]
            raise self._refusal(caller)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[MemoryLease] = loop.create_future()
        waiting = (min(size_bytes, self._caller_bytes), time.monotonic(), future)
        queue.append(waiting)
        self._waiting_count += 1
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look)
        try:
            return await future
        except asyncio.CancelledError:
            if waiting in queue:
                queue.remove(waiting)
                self._waiting_count -= 1
                self._grant()  # others may have waited behind it only
            elif not future.cancelled() and future.exception() is None:
                # Granted and cancelled in one turn of the loop.
                future.result().release()
            raise

    def _fits(self, caller: str, size_bytes: int) -> bool:
        return (
            self._used_bytes + size_bytes <= self._total_bytes
            and self._used_by.get(caller, 0) + size_bytes <= self._caller_bytes
        )

    def _lease(self, caller: str, size_bytes: int) -> MemoryLease:
        lease = MemoryLease(self, caller, 0)
        self._open.add(lease)
        self._resize(lease, size_bytes)
        return lease

    def _resize(self, lease: MemoryLease, size_bytes: int) -> None:
        more = size_bytes - lease.size_bytes
        if not more:
            return
        lease.size_bytes = size_bytes
        self._used_bytes += more
        used = self._used_by.get(lease.caller, 0) + more
        if used:
            self._used_by[lease.caller] = used
        else:
            del self._used_by[lease.caller]
        if more < 0 and self._waiting:
            self._grant()

    def _grant(self) -> None:
        """Serves waiting calls, callers in turn; a caller at his own limit delays no other."""
        self._short = False
        passed = 0
        while passed < len(self._waiting):
            caller, queue = next(iter(self._waiting.items()))
            while queue and queue[0][2].done():  # refused
                queue.popleft()
                self._waiting_count -= 1
            del self._waiting[caller]
            if not queue:
                continue
            size_bytes, _, future = queue[0]
            if self._fits(caller, size_bytes):
                queue.popleft()
                self._waiting_count -= 1
                future.set_result(self._lease(caller, size_bytes))
                passed = 0
                if queue:
                    self._waiting[caller] = queue
            elif self._used_by.get(caller, 0) + size_bytes > self._caller_bytes:
                self._waiting[caller] = queue
                passed += 1
            else:
                # First again next time, and nobody passes it.
                self._waiting = {caller: queue, **self._waiting}
                self._short = True
                return

    def _look(self) -> None:
        """While calls wait: ends calls that waited too long, and calls whose client is silent."""
        self._timer = None
        now_s = time.monotonic()
        for caller, queue in list(self._waiting.items()):
            for _, came_s, future in queue:
                if now_s - came_s > _WAIT_S and not future.done():
                    future.set_exception(self._refusal(caller))
        self._grant()
        for lease in list(self._open):
            if (self._short or lease.caller in self._waiting) and lease._slow(now_s):
                lease._give_up()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _refusal(self, caller: str) -> LimitExceeded:
        return LimitExceeded(
            f"the requests of {caller} wait for memory ({self._used_by.get(caller, 0) >> 20} of his "
            f"{self._caller_bytes >> 20} MiB are in use, of all callers {self._used_bytes >> 20} of "
            f"{self._total_bytes >> 20} MiB); send fewer at a time",
            reason="TOO_MANY_REQUESTS",
            retry_after_s=_RETRY_S,
        )
