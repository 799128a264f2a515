"""One thread beside the event loop, for one piece of work at a time. No I/O of its own.

Not an executor: those wait at the process's exit for what they run, and a policy that hangs must not keep it alive.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class LateError(Exception):
    """What was asked for is not there in time."""


class SideThread:
    """Runs work in a daemon thread of its own, which begins with the first.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: asyncio.Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """It is still at what it was given last, though nobody may be waiting for that any more."""
        return self._pending is not None and not self._pending.done()

    async def run(self, work: Callable[[], _T], timeout_s: float | None = None) -> _T:
        """Does the work after what was given before, and gives what it returns or raises.

        Raises:
            LateError: it takes longer, with what was before it. What was begun goes on; its result is dropped.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._pending is not None and not self._pending.done():
                    await asyncio.wait([self._pending])
                answer = self._begin(work)
                # Not the future itself, which tells whether the thread is busy, whoever waits for it.
                await asyncio.wait([answer])
        except TimeoutError as error:
            raise LateError(f"{self._name} took longer than {timeout_s} s") from error
        return answer.result()

    def _begin(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        # An error that nobody waits for any more is nobody's: it counts as read.
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
        self._pending = answer
        self._inbox.put((work, answer))
        return answer

    def close(self) -> None:
        """Lets the thread end after what it is at."""
        self._inbox.put(None)

    def _work(self) -> None:
        while (given := self._inbox.get()) is not None:
            work, answer = given
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            try:
                answer.get_loop().call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:  # the loop is closed
                return
            del given, work, answer, result, error  # what was worked on may be large


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration):  # a future takes any error but this
        answer.set_exception(RuntimeError("the work raised StopIteration"))
    else:
        answer.set_exception(error)
