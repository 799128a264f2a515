"""Python functions as jobs, as users of `concurrent.futures` know it: `adlro.submit` and `adlro.Executor`."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent import futures
from types import TracebackType
from typing import Any, TypeVar

from adlro.client.blocking import Client
from adlro.client.functions.futures import Future
from adlro.client.functions.shipping import Options, check_options, joined
from adlro.records.jobs import JobSpec

R = TypeVar("R")

_lock = threading.Lock()
_shared: Client | None = None


def shared_client() -> Client:
    """The client of this process for those who open none: made at its first use, closed when the process ends."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Client()
            atexit.register(_close_shared)
        return _shared


def _close_shared() -> None:
    global _shared
    with _lock:
        if _shared is not None:
            _shared.close()
            _shared = None


def submit(
    function: Callable[..., R],
    /,
    *args: Any,
    options: Options | None = None,
    client: Client | None = None,
    **kwargs: Any,
) -> Future[R]:
    """Runs a Python function as a job of its own: `future = adlro.submit(train, 3, lr=0.1, options={"gpus": 2})`.

    Args:
        function: anything that cloudpickle can write, such as a function, a lambda or a closure.
        args, kwargs: its arguments.
        options: what the job asks for: arguments of `Client.submit_function`, or a JobSpec without a payload.
        client: None: one of this process, for the suite of `ADLRO_SERVER`.

    Raises:
        InvalidInput: the function can't be pickled, or an option is wrong.
    """
    caller = shared_client() if client is None else client
    if isinstance(options, JobSpec):
        return caller.submit_function(function, *args, kwargs=kwargs, options=options)
    return caller.submit_function(function, *args, kwargs=kwargs, **(options or {}))


class Executor(futures.Executor):
    """A `concurrent.futures.Executor` whose calls are jobs: each runs on GPUs of its own.

        with adlro.Executor(gpus=1, time_limit="1h") as executor:
            losses = list(executor.map(train, [0.1, 0.01, 0.001]))

    `submit` gives an `adlro.Future`. The end of the `with` block waits for all jobs; `shutdown(cancel_futures=True)`
    cancels those that have not ended.

    Args:
        client: None: one of its own, for the suite of `ADLRO_SERVER`.
        folder, python, keep: as of `Client.submit_function`.
        options, more_options: what each job asks for, as of `Client.submit_function`.

    Raises:
        InvalidInput: an option is unknown or wrong.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        python: str | os.PathLike[str] | None = None,
        keep: bool = False,
        options: Options | None = None,
        **more_options: Any,
    ) -> None:
        self._options = joined(options, more_options)
        check_options(self._options)  # a slip is told here, not at the first call
        self._where: dict[str, Any] = {"folder": folder, "python": python, "keep": keep}
        self._own_client = client is None
        self._client = Client() if client is None else client
        self._lock = threading.Lock()
        self._futures: list[Future[Any]] = []
        self._shut_down = False

    def submit(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Submits a job that calls the function.

        Raises:
            InvalidInput: the function or an argument can't be pickled.
            RuntimeError: after the shutdown.
        """
        with self._lock:
            if self._shut_down:
                raise RuntimeError("this executor was shut down: make another one")
            future = self._client.submit_function(function, *args, kwargs=kwargs, options=self._options, **self._where)
            self._futures = [each for each in self._futures if not each.done()]
            self._futures.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls.

        Args:
            wait: until all jobs have ended. False with an own client: jobs go on, and their futures get an error that
                says how to get the result later.
            cancel_futures: cancel the jobs that have not ended, also those that run.
        """
        with self._lock:
            self._shut_down = True
            left = [each for each in self._futures if not each.done()]
        if cancel_futures:
            for each in left:
                each.cancel()
        if wait:
            futures.wait(left)
        if self._own_client:
            self._client.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        # An interrupt ends the wait for jobs that may run for days; they go on.
        self.shutdown(wait=kind is not KeyboardInterrupt)
        return None
