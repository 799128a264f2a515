"""What the caller of a function holds until its job has ended. No gRPC: the clients hand themselves in.

`AsyncFutures` and `Futures` belong to a client each, as its channels do: the blocking one follows all of its jobs in
one thread, as `concurrent.futures` needs it; the other one waits when it is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from concurrent import futures
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from adlro.client.functions.outcomes import (
    LATEST_S,
    LOG_TAIL_BYTES,
    Outcome,
    awaits_result,
    outcome_of,
    without_result,
)
from adlro.client.functions.shipping import ShippedCall
from adlro.errors import AdlroError, Conflict, Unavailable
from adlro.records.jobs import Job, JobState
from adlro.records.payloads import LogChunk, LogStream
from adlro.records.watching import JobEvent, JobFilter

R = TypeVar("R")

SESSION_LABEL = "function-session"
"""The label of a client's functions, by which it follows them."""
# How long services may be away while jobs are followed.
_PATIENCE_S = 600.0
_LOOK_AGAIN_S = 0.1


class _AsyncCaller(Protocol):
    """What an `AsyncFuture` asks of its client."""

    async def wait(self, job_ids: Iterable[str], timeout_s: float | None = None) -> tuple[Job, ...]: ...
    async def get(self, job_id: str) -> Job: ...
    async def cancel(self, job_id: str) -> Job: ...
    def logs(
        self, job: Job | str, stream: LogStream | str = ..., *, tail_bytes: int = 0
    ) -> AsyncIterator[LogChunk]: ...


class _Caller(Protocol):
    """What a `Future` asks of its client."""

    def watch(
        self, after_revision: int | None = None, job_filter: JobFilter | None = None, *, patience_s: float | None = None
    ) -> Iterator[JobEvent]: ...
    def get(self, job_id: str) -> Job: ...
    def cancel(self, job_id: str) -> Job: ...
    def logs(self, job: Job | str, stream: LogStream | str = ..., *, tail_bytes: int = 0) -> Iterator[LogChunk]: ...


class AsyncFuture(Generic[R]):
    """The result of a function that a job computes: `await future`, or `await future.result(timeout)`.

    Attributes:
        job_id: of its job; `client.future_of(job_id)` is another one of it, also in another process.
    """

    def __init__(self, client: _AsyncCaller, job_id: str, call: ShippedCall) -> None:
        self.job_id = job_id
        self._client = client
        self._call = call
        self._outcome: Outcome | None = None
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<AsyncFuture of {self.job_id}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    async def job(self) -> Job:
        """The job as it is now."""
        return await self._client.get(self.job_id)

    async def cancel(self) -> bool:
        """Cancels the job; False: it has ended by itself."""
        try:
            await self._client.cancel(self.job_id)
        except Conflict:
            return False
        return True

    async def result(self, timeout: float | None = None) -> R:
        """The function's result.

        Args:
            timeout: seconds; None: until the job has ended.

        Raises:
            DeadlineExceeded: it has not ended in time.
            CancelledError: (of concurrent.futures) the job was cancelled.
            JobFailed: the job ended without a result, or an exception of the function.
            Exception: what the function raised; its `__cause__` has the traceback in the job.
        """
        async with self._lock:
            if self._outcome is None:
                (job,) = await self._client.wait([self.job_id], timeout)
                self._outcome = await self._find(job)
        if self._outcome.error is not None:
            raise self._outcome.error
        value: R = self._outcome.value
        return value

    async def _find(self, job: Job) -> Outcome:
        end_s = time.monotonic() + LATEST_S
        while (found := await asyncio.to_thread(outcome_of, job, self._call)) is None:
            if not awaits_result(job) or not self._call.folder.exists() or time.monotonic() > end_s:
                tail = b""
                with contextlib.suppress(AdlroError):
                    async for chunk in self._client.logs(job, LogStream.STDERR, tail_bytes=LOG_TAIL_BYTES):
                        tail += chunk.data
                return without_result(job, self._call, tail.decode(errors="replace"))
            await asyncio.sleep(_LOOK_AGAIN_S)
        return found


class AsyncFutures:
    """The futures of an `AsyncClient`."""

    def __init__(self, client: _AsyncCaller) -> None:
        self._client = client
        self.session = uuid.uuid4().hex

    def add(self, job: Job, call: ShippedCall) -> AsyncFuture[Any]:
        """The future of a job."""
        return AsyncFuture(self._client, job.job_id, call)

    def close(self) -> None:
        """Nothing is followed meanwhile."""


class Future(futures.Future[R]):
    """The result of a function that a job computes: a `concurrent.futures.Future`.

    Where that class speaks of threads, this one speaks of its job: `running` says whether the job runs, and `cancel`
    stops it also then. `result` and `exception` raise `concurrent.futures.CancelledError` for a cancelled job,
    `JobFailed` where it ended without a result, and what the function raised; its `__cause__` has the traceback in the
    job.

    Attributes:
        job_id: of its job; `client.future_of(job_id)` is another one of it, also in another process.
    """

    def __init__(self, client: _Caller, job_id: str, call: ShippedCall) -> None:
        super().__init__()
        self.job_id = job_id
        self._client = client
        self._call = call
        self._runs = False
        self._settling = threading.Lock()

    def __repr__(self) -> str:
        state = "done" if self.done() else "running" if self._runs else "pending"
        return f"<Future of {self.job_id}: {state}>"

    def running(self) -> bool:
        """Whether the job runs now, as far as is known here."""
        return self._runs and not self.done()

    def job(self) -> Job:
        """The job as it is now."""
        return self._client.get(self.job_id)

    def cancel(self) -> bool:
        """Cancels the job, also if it runs; False: it has ended by itself."""
        if self.done():
            return self.cancelled()
        try:
            self._client.cancel(self.job_id)
        except Conflict:
            return False
        self._cancelled()
        return self.cancelled()

    def _cancelled(self) -> None:
        with self._settling:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()  # wakes those who wait for several

    def _settle(self, outcome: Outcome) -> None:
        if isinstance(outcome.error, futures.CancelledError):
            self._cancelled()
            return
        with self._settling:
            if self.done():
                return
            self.set_running_or_notify_cancel()
            if outcome.error is None:
                self.set_result(outcome.value)
            else:
                self.set_exception(outcome.error)

    def _find(self, job: Job) -> Outcome:
        end_s = time.monotonic() + LATEST_S
        while (found := outcome_of(job, self._call)) is None:
            if not awaits_result(job) or not self._call.folder.exists() or time.monotonic() > end_s:
                tail = b""
                with contextlib.suppress(AdlroError):
                    for chunk in self._client.logs(job, LogStream.STDERR, tail_bytes=LOG_TAIL_BYTES):
                        tail += chunk.data
                return without_result(job, self._call, tail.decode(errors="replace"))
            time.sleep(_LOOK_AGAIN_S)
        return found


class Futures:
    """The futures of a `Client`: a thread follows their jobs, and gives each its outcome."""

    def __init__(self, client: _Caller) -> None:
        self._client = client
        self.session = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._open: dict[str, Future[Any]] = {}
        self._ended: dict[str, Job] = {}
        self._known: WeakValueDictionary[str, Future[Any]] = WeakValueDictionary()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, job: Job, call: ShippedCall) -> Future[Any]:
        """The future of a job: the one that there is already, if somebody still has it."""
        with self._lock:
            known = self._known.get(job.job_id)
            if known is not None:
                return known
            future: Future[Any] = Future(self._client, job.job_id, call)
            self._known[job.job_id] = future
        ours = job.spec.labels.get(SESSION_LABEL) == self.session
        if job.state.final or not ours:
            # Of another process's job: the one thread follows this client's alone.
            follow = self._settle_ended if job.state.final else self._follow_one
            threading.Thread(target=follow, args=(future, job), name=f"adlro {job.job_id}", daemon=True).start()
            return future
        with self._lock:
            ended = self._ended.pop(job.job_id, None)  # it was quicker than the answer to its submission
            if ended is None:
                self._open[job.job_id] = future
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._follow, name="adlro functions", daemon=True)
                self._thread.start()
        if ended is not None:
            self._settle_ended(future, ended)
        return future

    def close(self) -> None:
        """What has not ended gets an error that says how to get it later."""
        with self._lock:
            self._closed = True
            left, self._open = list(self._open.values()), {}
        for future in left:
            future._settle(Outcome(error=_closed(future.job_id)))

    def _follow(self) -> None:
        """Runs in the thread: follows the jobs of this client until none is open."""
        problem: BaseException | None = None
        try:
            mine = JobFilter(labels={SESSION_LABEL: self.session})
            for event in self._client.watch(job_filter=mine, patience_s=_PATIENCE_S):
                if event.job is not None:
                    self._take(event.job)
                if self._closed:
                    return
        except Exception as error:
            problem = error
        with self._lock:
            left, self._open = list(self._open.values()), {}
        for future in left:
            future._settle(Outcome(error=_lost(future.job_id, problem)))

    def _take(self, job: Job) -> None:
        with self._lock:
            future = self._open.get(job.job_id)
            if future is None:
                if job.state.final:
                    self._ended[job.job_id] = job
                return
            future._runs = job.state is JobState.RUNNING
            if job.state.final:
                del self._open[job.job_id]
        if job.state.final:
            self._settle_ended(future, job)

    def _follow_one(self, future: Future[Any], job: Job) -> None:
        try:
            for event in self._client.watch(job_filter=JobFilter(job_ids=(job.job_id,)), patience_s=_PATIENCE_S):
                if event.job is not None:
                    future._runs = event.job.state is JobState.RUNNING
                    if event.job.state.final:
                        self._settle_ended(future, event.job)
                        return
        except Exception as error:
            future._settle(Outcome(error=_closed(job.job_id) if self._closed else _lost(job.job_id, error)))

    @staticmethod
    def _settle_ended(future: Future[Any], job: Job) -> None:
        try:
            outcome = future._find(job)
        except Exception as error:  # whatever it is, somebody waits for it
            outcome = Outcome(error=error)
        future._settle(outcome)


def _closed(job_id: str) -> Conflict:
    return Conflict(
        f"the client was closed before {job_id} ended; the job goes on: connect().function_result('{job_id}') waits "
        "for it",
        reason="CLIENT_CLOSED",
    )


def _lost(job_id: str, problem: BaseException | None) -> Unavailable:
    told = f": {problem}" if problem is not None else ""
    return Unavailable(
        f"{job_id} can't be followed any more{told}; the job goes on: connect().function_result('{job_id}') waits for "
        "it"
    )
