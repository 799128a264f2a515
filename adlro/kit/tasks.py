"""What asyncio leaves to its users. Knows asyncio only."""

from __future__ import annotations

import asyncio


def raise_if_cancelling() -> None:
    """Ends a loop whose task was cancelled, where an awaited call has swallowed the cancellation.

    redis-py's blocking reads can (the reply and the cancellation arriving together), and so can a task group that fails
    while it is being cancelled. A loop that goes on after that would never be cancelled again.

    Raises:
        asyncio.CancelledError: somebody has cancelled the current task.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
