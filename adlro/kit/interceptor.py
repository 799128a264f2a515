"""The one interceptor around every handler: who calls, deadline, field rules, errors, metrics, the log's ids.

One instead of five: in Python each costs a coroutine and a wrapper for every call. What is wrapped around a method is
built at its first call and kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isawaitable
from typing import Any, cast

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from structlog.contextvars import bind_contextvars

from adlro.errors import AdlroError, LimitExceeded
from adlro.kit.access import ROLES, Guard
from adlro.kit.deadline import require_deadline
from adlro.kit.errors import to_adlro_error
from adlro.kit.identity import current_caller
from adlro.kit.log import get_logger
from adlro.kit.metrics import CallMetrics, MethodMetrics
from adlro.kit.status import to_code, to_status, to_trailing_metadata
from adlro.kit.validation import CheckedStream, check, readable_or_not

Context = grpc.aio.ServicerContext[Any, Any]

# Health and reflection: not ours, and asked by tools that set no deadline.
_EXEMPT = "/grpc."
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_LOGGED_FIELDS = ("request_id", "job_id")
_STREAM_RETRY_S = 5.0


class OpenCalls:
    """Counts the calls that run, so that a drain knows when the last has ended."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    def began(self) -> None:
        """One more."""
        self.count += 1
        self._none.clear()

    def ended(self) -> None:
        """One less."""
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none_left(self) -> None:
        """Returns when no call runs."""
        await self._none.wait()


class UserStreams:
    """Counts the open streams of each user.

    Args:
        limit: of one user; 0: none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[str, int] = {}

    def began(self) -> str:
        """One more, of the current caller; gives his name, for `ended`. Raises LimitExceeded."""
        caller = current_caller()
        if caller is None or not self._limit:
            return ""
        count = self._open.get(caller.user, 0)
        if count >= self._limit:
            raise LimitExceeded(
                f"{caller.user} has {count} streams open here, which is as many as a user may have; end one first",
                reason="TOO_MANY_STREAMS",
                metadata={"limit": str(self._limit)},
                retry_after_s=_STREAM_RETRY_S,
            )
        self._open[caller.user] = count + 1
        return caller.user

    def ended(self, user: str) -> None:
        """One less."""
        if user:
            left = self._open[user] - 1
            if left:
                self._open[user] = left
            else:
                del self._open[user]


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # not generic at run time
    """What the kit does around every handler.

    Args:
        metrics: where calls are counted.
        open_calls: counts what runs.
        deadline_required: refuse unary calls without deadline.
        guard: asks callers for their token; None: everybody may do all.
        max_streams_per_user: streams that a user of the guard may have open; 0: no limit.
    """

    def __init__(
        self,
        metrics: CallMetrics,
        open_calls: OpenCalls,
        deadline_required: bool,
        guard: Guard | None = None,
        max_streams_per_user: int = 0,
    ) -> None:
        self._metrics = metrics
        self._open_calls = open_calls
        self._deadline_required = deadline_required
        self._guard = guard
        self._user_streams = UserStreams(max_streams_per_user)
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The method's handler, wrapped; None where there is none, which gRPC answers with UNIMPLEMENTED."""
        method: str = handler_call_details.method
        if self._guard is not None:
            refusal = self._guard.refusal(method, handler_call_details.invocation_metadata)
            if refusal is not None:
                return self._refuse(method, refusal)
        wrapped = self._wrapped.get(method)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_EXEMPT):
            return handler
        self._wrapped[method] = wrapped = self._wrap(method, handler)
        return wrapped

    def _refuse(self, method: str, refusal: AdlroError) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that ends the call with an error, before any message is read."""
        # Names of methods are the caller's to choose here: they must not fill the metrics.
        self._metrics.of_method(method if method in ROLES else "other").count(to_code(refusal).name)

        async def refuse(_requests: Any, context: Context) -> None:
            await _abort(context, to_status(refusal))

        # Of a unary call gRPC reads the message before it asks the handler; of a stream it does not.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        metrics = self._metrics.of_method(method)
        read = readable_or_not(handler.request_deserializer, f"the request of {method.removeprefix('/')}")
        serialize = handler.response_serializer

        def write(message: Any) -> bytes:
            # One change goes to many watchers: serialised once, it may be yielded as bytes.
            return message if type(message) is bytes else serialize(message)

        if handler.request_streaming and handler.response_streaming:
            stream = self._streaming(method, metrics, handler.stream_stream, request_streaming=True)
            return grpc.stream_stream_rpc_method_handler(stream, read, write)
        if handler.response_streaming:
            stream = self._streaming(method, metrics, handler.unary_stream, request_streaming=False)
            return grpc.unary_stream_rpc_method_handler(stream, read, write)
        if handler.request_streaming:
            collect = self._collecting(method, metrics, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(collect, read, serialize)
        return grpc.unary_unary_rpc_method_handler(self._unary(method, metrics, handler.unary_unary), read, serialize)

    def _unary(
        self, method: str, metrics: MethodMetrics, behavior: Callable[[Any, Context], Any]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        deadline_required, open_calls = self._deadline_required, self._open_calls
        logged_fields = _LoggedFields()

        async def call(request: Any, context: Context) -> Any:
            began_s = time.perf_counter()
            code = "OK"
            open_calls.began()
            try:
                if deadline_required:
                    require_deadline(context, method)
                check(request)
                logged_fields.bind(request)
                answer = behavior(request, context)
                # A method that the service does not offer is a plain function of the generated base class.
                return await answer if isawaitable(answer) else answer
            except BaseException as error:
                code, status = _judge(error, context, method)
                if status is not None:
                    await _abort(context, status)
                raise
            finally:
                open_calls.ended()
                metrics.count(code)
                metrics.observe_latency_s(time.perf_counter() - began_s)

        return call

    def _collecting(
        self, method: str, metrics: MethodMetrics, behavior: Callable[[Any, Context], Any]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        open_calls, user_streams = self._open_calls, self._user_streams

        async def call(requests: Any, context: Context) -> Any:
            code, user = "OK", ""
            open_calls.began()
            metrics.stream_opened()
            try:
                user = user_streams.began()
                answer = behavior(CheckedStream(requests), context)
                return await answer if isawaitable(answer) else answer
            except BaseException as error:
                code, status = _judge(error, context, method)
                if status is not None:
                    await _abort(context, status)
                raise
            finally:
                open_calls.ended()
                user_streams.ended(user)
                metrics.stream_closed()
                metrics.count(code)

        return call

    def _streaming(
        self, method: str, metrics: MethodMetrics, behavior: Callable[[Any, Context], Any], *, request_streaming: bool
    ) -> Callable[[Any, Context], Awaitable[None]]:
        open_calls, user_streams = self._open_calls, self._user_streams
        logged_fields = _LoggedFields()

        async def call(request: Any, context: Context) -> None:
            code, user = "OK", ""
            open_calls.began()
            metrics.stream_opened()
            try:
                user = user_streams.began()
                if request_streaming:
                    request = CheckedStream(request)
                else:
                    check(request)
                    logged_fields.bind(request)
                answers = behavior(request, context)
                if isinstance(answers, AsyncIterator):
                    # Closed here, not by the garbage collector: a watcher that went away is forgotten at once.
                    async with aclosing(cast(Any, answers)):
                        async for answer in answers:
                            await context.write(answer)
                elif isawaitable(answers):
                    await answers
            except BaseException as error:
                code, status = _judge(error, context, method)
                if status is not None:
                    await _abort(context, status)
                raise
            finally:
                open_calls.ended()
                user_streams.ended(user)
                metrics.stream_closed()
                metrics.count(code)

        return call


class _LoggedFields:
    """Binds a request's ids to the log lines of its call; which fields there are is looked up once."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None

    def bind(self, request: Message) -> None:
        if self._names is None:
            known = request.DESCRIPTOR.fields_by_name
            self._names = tuple(name for name in _LOGGED_FIELDS if name in known)
        if self._names:
            # A call runs in a context of its own, so nothing has to be unbound.
            bind_contextvars(**{name: value for name in self._names if (value := getattr(request, name))})


def _judge(error: BaseException, context: Context, method: str) -> tuple[str, status_pb2.Status | None]:
    """The code for the metrics, and the status to end the call with; None where gRPC itself knows what to do."""
    if isinstance(error, asyncio.CancelledError):
        # None without deadline, which the stubs don't know.
        remaining_s: float | None = context.time_remaining()
        return ("DEADLINE_EXCEEDED" if remaining_s == 0 else "CANCELLED"), None
    if isinstance(error, grpc.aio.AbortError):
        code: Any = context.code()
        return code.name if isinstance(code, grpc.StatusCode) else str(code), None
    if not isinstance(error, Exception):
        return "UNKNOWN", None
    known = to_adlro_error(error, method)
    told = to_code(known)
    if known is error:
        get_logger().debug("call refused", method=method, code=told.name, message=known.message)
    return told.name, to_status(known)


async def _abort(context: Context, status: status_pb2.Status) -> None:
    """Ends the call; raises AbortError."""
    await context.abort(_STATUS_CODES[status.code], status.message, to_trailing_metadata(status))
