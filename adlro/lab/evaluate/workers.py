"""Worker processes of an evaluation, each at a pipe of its own.

No queue, lock or thread is common to them: a worker that is killed at any moment harms no other, and an interrupted
evaluation waits for nothing that such a worker has left half done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from adlro.errors import InternalError
from adlro.lab.evaluate.tasks import Setup, Task, begin_worker, work

# A worker has the next task at hand when it finishes one; an interrupted run must not wait for a long list.
_TASKS_AHEAD = 2
_TERMINATION_S = 10.0

Answer = tuple[tuple[Task, bytes] | None, Exception | None, str]
"""A task with its figures, or an error with its traceback."""


class WorkerLostError(Exception):
    """A worker process has ended by itself."""


def results(setup: Setup, tasks: Sequence[Task], processes: int) -> Generator[tuple[Task, bytes]]:
    """Each task's figures, as soon as they are complete. To close the iterator ends the workers.

    Raises:
        WorkerLostError: a worker was killed.
        AdlroError: of a task.
    """
    waiting = iter(tasks)
    workers: list[_Worker] = []
    finished = False
    try:
        with _one_thread_each():
            for _ in range(processes):
                worker = _Worker(setup)
                workers.append(worker)
        for worker in [each for each in workers for _ in range(_TASKS_AHEAD)]:
            worker.give(next(waiting, None))
        while busy := [worker for worker in workers if worker.tasks]:
            ready = set(wait([worker.connection for worker in busy]))
            for worker in busy:
                if worker.connection in ready:
                    yield worker.take()
                    worker.give(next(waiting, None))
        finished = True
    finally:
        for worker in workers:
            worker.end(kill=not finished)
        for worker in workers:
            worker.join()


class _Worker:
    """A worker process, as the evaluation has it.

    Attributes:
        connection: to it; readable when it has an answer, or has ended.
        tasks: how many it has now.
    """

    def __init__(self, setup: Setup) -> None:
        self.tasks = 0
        self.connection, theirs = multiprocessing.Pipe()
        # As a daemon it ends with this process, whatever befalls this object.
        self._process = SpawnProcess(target=_serve, args=(theirs, setup), daemon=True)
        try:
            self._process.start()
        except OSError as error:
            raise WorkerLostError from error
        finally:
            # Only the worker has it now: when it dies, the connection ends.
            theirs.close()

    def give(self, task: Task | None) -> None:
        if task is None:
            return
        try:
            self.connection.send(task)
        except OSError as error:
            raise WorkerLostError from error
        self.tasks += 1

    def take(self) -> tuple[Task, bytes]:
        try:
            answer: Answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerLostError from error
        self.tasks -= 1
        result, error_of_task, text = answer
        if error_of_task is not None:
            error_of_task.add_note(text)
            raise error_of_task
        assert result is not None
        return result

    def end(self, *, kill: bool) -> None:
        """Tells it to end: at once, or when it has cleaned up."""
        self.connection.close()
        if kill:
            self._process.terminate()

    def join(self) -> None:
        self._process.join(_TERMINATION_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, setup: Setup) -> None:
    begin_worker(setup)
    # Ends when the evaluation has closed its end.
    with contextlib.suppress(EOFError, OSError):
        while True:
            _send(connection, _answer(connection.recv()))


def _answer(task: Task) -> Answer:
    try:
        return work(task), None, ""
    except Exception as error:
        return None, error, traceback.format_exc()


def _send(connection: Connection, answer: Answer) -> None:
    try:
        connection.send(answer)
    except OSError:
        raise
    except Exception:  # an error that can't be sent
        connection.send((None, InternalError(f"a task has failed: {answer[1]!r}"), answer[2]))


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limits the numerical libraries of spawned workers to one thread: each worker takes one core."""
    names = [name for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ]
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
