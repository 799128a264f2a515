"""Worker processes: results, errors of tasks, and workers that are killed at their worst moments."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator
from typing import cast

import numpy as np
import pytest

from adlro.errors import InternalError
from adlro.lab.evaluate import workers
from adlro.lab.evaluate.measure import Figures
from adlro.lab.evaluate.tasks import Setup, Task

# More than a pipe takes at once: who sends it waits in the middle of it.
_LARGE_BYTES = 4 << 20


class Given:
    """In place of a `Setup`, in the worker as well."""

    def run(self, task: Task) -> Figures:
        if task.policy == "wrong":
            raise InternalError(f"task {task.first} is wrong")
        large, one, count = np.zeros((1, _LARGE_BYTES // 8)), np.zeros((1, 1)), np.zeros(1, dtype=np.int64)
        return Figures(large, stuck=count, jct_counts=count, gpu_busy=one, gantt=one, basis_counts=count)

    def close(self) -> None:
        return


def tasks_of(count: int, policy: str = "fcfs") -> list[Task]:
    return [Task(policy, 0, number, number + 1) for number in range(count)]


def begun(count: int, processes: int, policy: str = "fcfs") -> Generator[tuple[Task, bytes]]:
    return workers.results(cast(Setup, Given()), tasks_of(count, policy), processes)


@pytest.mark.parametrize("processes", [2, 3])
def test_each_task_has_its_result_and_all_workers_end(processes: int) -> None:
    with contextlib.closing(begun(7, processes)) as found:
        results = dict(found)
    assert sorted(task.first for task in results) == list(range(7))
    assert all(len(content) > _LARGE_BYTES for content in results.values())
    assert multiprocessing.active_children() == []


def test_an_error_of_a_task_is_raised_with_its_traceback() -> None:
    with contextlib.closing(begun(3, 2, "wrong")) as found, pytest.raises(InternalError, match="is wrong") as raised:
        next(found)
    assert "in run" in raised.value.__notes__[0]
    assert multiprocessing.active_children() == []


def test_who_stops_in_the_middle_waits_for_no_worker() -> None:
    """Each of them is about to send more than the pipe takes, and is killed in the middle of it."""
    found = begun(50, 3)
    next(found)
    time.sleep(0.3)
    began_s = time.monotonic()
    found.close()
    assert time.monotonic() - began_s < 30.0
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_while_it_sends_is_told() -> None:
    found = begun(50, 2)
    next(found)
    time.sleep(0.3)  # both have filled their pipes
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(workers.WorkerLostError):
        list(found)
    assert multiprocessing.active_children() == []


def test_an_interrupt_while_results_are_awaited_ends_the_workers() -> None:
    # A background job of a shell has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    found = begun(5000, 2)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(1.5, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), contextlib.closing(found) as each:
            for _ in each:
                pass
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert multiprocessing.active_children() == []
