"""Work beside the event loop is done in order; who waits for it may go."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import pytest

from adlro.services.orchestrator.deciding.side_thread import LateError, SideThread


async def test_work_is_done_in_order_and_errors_come_back() -> None:
    worker = SideThread("test")
    done: list[int] = []

    def work(number: int) -> int:
        time.sleep(0.02)
        done.append(number)
        return number

    assert await asyncio.gather(*(worker.run(functools.partial(work, number)) for number in range(4))) == [0, 1, 2, 3]
    assert done == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        await worker.run(functools.partial(dict[str, int]().pop, "no"))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await worker.run(lambda: next(iter(())))
    worker.close()


async def test_who_waits_no_longer_leaves_the_thread_at_its_work() -> None:
    worker, released = SideThread("test"), threading.Event()
    with pytest.raises(LateError):
        await worker.run(lambda: released.wait(30.0), 0.02)
    assert worker.busy
    waiting = asyncio.create_task(worker.run(lambda: 7))
    await asyncio.sleep(0.02)
    waiting.cancel()
    after = asyncio.create_task(worker.run(lambda: 8, 60.0))
    await asyncio.sleep(0)
    released.set()
    assert await after == 8
    worker.close()
