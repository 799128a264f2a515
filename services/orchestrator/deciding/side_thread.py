"""One thread beside the event loop, for one piece of work at a time. No I/O of its own.

Not an executor: at the process's exit executors wait for their work, and a hanging policy must not block the exit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class LateError(Exception):
    """The result is not available in time."""


class SideThread:
    """Runs work in its own daemon thread, which starts with the first work.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: asyncio.Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether earlier work is still running, also if nothing waits for its result any more."""
        return self._pending is not None and not self._pending.done()

    async def run(self, work: Callable[[], _T], timeout_s: float | None = None) -> _T:
        """Runs the work after all earlier work; returns its result or raises its error.

        Raises:
            LateError: this work, and the work before it, take longer. Running work continues; its result is dropped.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._pending is not None and not self._pending.done():
                    await asyncio.wait([self._pending])
                answer = self._begin(work)
                # Not the future itself: `busy` reads it, and a timeout would cancel it.
                await asyncio.wait([answer])
        except TimeoutError as error:
            raise LateError(f"{self._name} took longer than {timeout_s} s") from error
        return answer.result()

    def _begin(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        # Marks an error that nothing awaits any more as retrieved.
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
        self._pending = answer
        self._inbox.put((work, answer))
        return answer

    def close(self) -> None:
        """Ends the thread after its present work."""
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
            del given, work, answer, result, error  # the work's data may be large


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration):  # a future accepts any error but this
        answer.set_exception(RuntimeError("the work raised StopIteration"))
    else:
        answer.set_exception(error)
