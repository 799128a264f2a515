"""The one interceptor of all handlers: caller, memory, deadline, field rules, errors, metrics, the log's ids.

One instead of six: in Python each costs a coroutine and a wrapper for every call. The wrapper of a method is
built at its first call and cached.

Every method is registered as a stream: for a unary method gRPC would read the message before the budget can check for
memory, and no code could end a call without a message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, cast

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from structlog.contextvars import bind_contextvars

from adlro.errors import AdlroError, InvalidInput, LimitExceeded
from adlro.kit.access import ROLES, AccessGuard
from adlro.kit.budget import LeasedStream, MemoryLease, RequestBudget
from adlro.kit.deadline import require_deadline
from adlro.kit.errors import to_adlro_error
from adlro.kit.identity import current_caller
from adlro.kit.log import get_logger
from adlro.kit.metrics import CallMetrics, MethodMetrics
from adlro.kit.open_calls import OpenCalls, UserStreams
from adlro.kit.status import to_code, to_status, to_trailing_metadata
from adlro.kit.unread import UnreadStreams
from adlro.kit.validation import CheckedStream, check, request_reader

Context = grpc.aio.ServicerContext[Any, Any]

# Health and reflection: not ours, and asked by tools that set no deadline.
_EXEMPT = "/grpc."
_END: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - which the stubs don't know
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_LOGGED_FIELDS = ("request_id", "job_id")

# Parsed, and as records, a request takes so many times its bytes.
_OBJECTS_PER_BYTE = 8
# What a call takes for its answer while it makes it: many records are objects before they are bytes.
_MIB = 1 << 20
_ANSWER_BYTES = {
    "/adlro.v1.JobService/ListJobs": 16 * _MIB,
    "/adlro.v1.TelemetryService/UpsertCluster": 16 * _MIB,
    "/adlro.v1.TelemetryService/GetCluster": 8 * _MIB,
    "/adlro.v1.TelemetryService/GetTelemetry": 16 * _MIB,
}
# Requests of health checks and reflection hold a name.
_EXEMPT_REQUEST_BYTES = 4096
# So many of them may be read at once.
_EXEMPT_MESSAGES = 8
# How long a call or stream may be silent while others wait for memory.
_CALL_PATIENCE_S, _STREAM_PATIENCE_S = 2.0, 20.0
# A client that takes nothing will not take the status either.
_LAST_WORDS_S = 2.0


@dataclass(frozen=True)
class Limits:
    """Limits of a process for its callers; 0: no limit.

    Attributes:
        message_bytes: the largest message that is received or sent.
        request_memory_bytes: for requests in progress; one half for calls, one for streams.
        streams_per_user: open streams of one user of the guard.
        unread_timeout_s: time after which a response stream without a reading client is ended.
    """

    message_bytes: int = 4 * _MIB
    request_memory_bytes: int = 192 * _MIB
    streams_per_user: int = 0
    unread_timeout_s: float = 0.0


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # not generic at run time
    """The kit's wrapper around every handler.

    Args:
        metrics: counts calls.
        open_calls: counts running calls.
        deadline_required: refuse unary calls without deadline.
        guard: checks callers' tokens; None: every caller may use every method.
        limits: limits of callers.
    """

    def __init__(
        self,
        metrics: CallMetrics,
        open_calls: OpenCalls,
        deadline_required: bool,
        guard: AccessGuard | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._metrics = metrics
        self._open_calls = open_calls
        self._deadline_required = deadline_required
        self._guard = guard
        self._limits = limits or Limits()
        self._user_streams = UserStreams(self._limits.streams_per_user)
        self._calls = RequestBudget(self._limits.request_memory_bytes // 2, _CALL_PATIENCE_S)
        self._streams = RequestBudget(self._limits.request_memory_bytes // 2, _STREAM_PATIENCE_S)
        # Whoever takes all memory for requests must not make a service look ill.
        self._exempt = RequestBudget(_EXEMPT_MESSAGES * self._limits.message_bytes, _CALL_PATIENCE_S)
        self._unread = UnreadStreams(self._limits.unread_timeout_s)
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The method's wrapped handler; None if there is none: gRPC then answers UNIMPLEMENTED."""
        method: str = handler_call_details.method
        if self._guard is not None:
            refusal = self._guard.refusal(method, handler_call_details.invocation_metadata)
            if refusal is not None:
                return self._refuse(method, refusal)
        wrapped = self._wrapped.get(method)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        self._wrapped[method] = wrapped = (
            self._wrap_exempt(handler) if method.startswith(_EXEMPT) else self._wrap(method, handler)
        )
        return wrapped

    def _refuse(self, method: str, refusal: AdlroError) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that ends the call with an error, before any message is read."""
        # Names of methods are the caller's to choose here: they must not fill the metrics.
        self._metrics.of_method(method if method in ROLES else "other").count(to_code(refusal).name)

        async def refuse(_requests: Any, context: Context) -> None:
            await _abort(context, to_status(refusal))

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        metrics = self._metrics.of_method(method)
        read = request_reader(method)
        serialize = handler.response_serializer

        def write(message: Any) -> bytes:
            # One change goes to many watchers: serialised once, it may be yielded as bytes.
            return message if type(message) is bytes else serialize(message)

        if handler.request_streaming and handler.response_streaming:
            stream = self._streaming(method, metrics, handler.stream_stream, None)
            return grpc.stream_stream_rpc_method_handler(stream, read, write)
        if handler.response_streaming:
            stream = self._streaming(method, metrics, handler.unary_stream, read)
            return grpc.stream_stream_rpc_method_handler(stream, None, write)
        if handler.request_streaming:
            collect = self._collecting(method, metrics, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(collect, read, serialize)
        unary = self._unary(method, metrics, handler.unary_unary, read, serialize)
        return grpc.stream_unary_rpc_method_handler(unary, None, None)

    def _wrap_exempt(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """Wraps health and reflection: only their memory is limited."""

        def read(data: bytes) -> Any:
            return handler.request_deserializer(data) if len(data) <= _EXEMPT_REQUEST_BYTES else None

        async def request(context: Context) -> Any:
            lease = await self._exempt.take(_caller_of(context), self._limits.message_bytes)
            try:
                request, size_bytes = await _read(context, lease, read)
            finally:
                lease.release()
            if request is None:
                raise InvalidInput(f"the request has {size_bytes} bytes", reason="REQUEST_TOO_LARGE")
            return request

        async def call(_requests: Any, context: Context) -> Any:
            return await handler.unary_unary(await self._told(request(context), context), context)

        async def stream(_requests: Any, context: Context) -> None:
            async for answer in handler.unary_stream(await self._told(request(context), context), context):
                await _write(context, answer)

        async def converse(requests: Any, context: Context) -> None:
            lease = await self._told(self._streams.take(_caller_of(context), self._limits.message_bytes), context)
            try:
                async for answer in handler.stream_stream(LeasedStream(requests, lease), context):
                    await _write(context, answer)
            finally:
                lease.release()

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                converse, handler.request_deserializer, handler.response_serializer
            )
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(call, None, handler.response_serializer)

    async def _told(self, wanted: Awaitable[Any], context: Context) -> Any:
        """What is awaited; a refusal ends the call."""
        try:
            return await wanted
        except AdlroError as error:
            await _abort(context, to_status(error))

    def _unary(
        self,
        method: str,
        metrics: MethodMetrics,
        behavior: Callable[[Any, Context], Any],
        read: Callable[[bytes], Any],
        serialize: Callable[[Any], bytes],
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        deadline_required, open_calls, budget = self._deadline_required, self._open_calls, self._calls
        message_bytes = self._limits.message_bytes
        answer_bytes = _ANSWER_BYTES.get(method, 0)
        needed_bytes = max(message_bytes, answer_bytes)
        logged_fields = _LoggedFields()

        async def call(_requests: Any, context: Context) -> bytes:
            began_s = time.perf_counter()
            code = "OK"
            open_calls.began()
            lease: MemoryLease | None = None
            request = None
            try:
                if deadline_required:
                    require_deadline(context, method)
                caller = _caller_of(context)
                lease = budget.take_now(caller, needed_bytes) or await budget.take(caller, needed_bytes)
                request, size_bytes = await _read(context, lease, read)
                check(request)
                logged_fields.bind(request)
                lease.resize(answer_bytes + _OBJECTS_PER_BYTE * size_bytes)
                answer = behavior(request, context)
                # A method that the service does not offer is a plain function of the generated base class.
                message = serialize(await answer if isawaitable(answer) else answer)
                if len(message) > message_bytes:
                    raise _answer_too_large(method, len(message), message_bytes)
                # Kept until the client has taken the answer: gRPC holds it so long.
                lease.resize(len(message))
                lease.waits_for_client()
                return message
            except BaseException as error:
                request = None
                code, status = _judge(error, context, method)
                if status is not None:
                    await _abort(context, status)
                raise
            finally:
                open_calls.ended()
                metrics.count(code)
                metrics.observe_latency_s(time.perf_counter() - began_s)
                if lease is not None:
                    _release_at_end(lease)

        return call

    def _collecting(
        self, method: str, metrics: MethodMetrics, behavior: Callable[[Any, Context], Any]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        open_calls, user_streams, budget = self._open_calls, self._user_streams, self._streams
        message_bytes = self._limits.message_bytes

        async def call(requests: Any, context: Context) -> Any:
            code, user = "OK", ""
            lease: MemoryLease | None = None
            open_calls.began()
            metrics.stream_opened()
            try:
                user = user_streams.began()
                lease = await budget.take(_caller_of(context), message_bytes)
                answer = behavior(CheckedStream(LeasedStream(requests, lease)), context)
                return await answer if isawaitable(answer) else answer
            except BaseException as error:
                code, status = _judge(error, context, method)
                if status is not None:
                    await _abort(context, status)
                raise
            finally:
                if lease is not None:
                    lease.release()
                open_calls.ended()
                user_streams.ended(user)
                metrics.stream_closed()
                metrics.count(code)

        return call

    def _streaming(
        self,
        method: str,
        metrics: MethodMetrics,
        behavior: Callable[[Any, Context], Any],
        read: Callable[[bytes], Any] | None,
    ) -> Callable[[Any, Context], Awaitable[None]]:
        """`read`: makes the one request of bytes; None: requests are a stream too."""
        open_calls, user_streams, unread = self._open_calls, self._user_streams, self._unread
        budget = self._streams if read is None else self._calls
        message_bytes = self._limits.message_bytes
        logged_fields = _LoggedFields()

        async def call(requests: Any, context: Context) -> None:
            code, user = "OK", ""
            lease: MemoryLease | None = None
            request: Any = None
            open_calls.began()
            metrics.stream_opened()
            stream = unread.opened()
            try:
                user = user_streams.began()
                lease = await budget.take(_caller_of(context), message_bytes)
                if read is None:
                    request = CheckedStream(LeasedStream(requests, lease))
                else:
                    request, _ = await _read(context, lease, read)
                    check(request)
                    logged_fields.bind(request)
                    lease.release()
                answers = behavior(request, context)
                if isinstance(answers, AsyncIterator):
                    # Closed here, not by the garbage collector: a watcher that went away is forgotten at once.
                    async with aclosing(cast(Any, answers)):
                        async for answer in answers:
                            stream.writes_since_s = time.monotonic()
                            await _write(context, answer)
                            stream.writes_since_s = 0.0
                elif isawaitable(answers):
                    await answers
            except BaseException as error:
                request = None
                if stream.given_up:
                    code = await _end_unread(context, unread.refusal())
                    raise
                code, status = _judge(error, context, method)
                if status is not None:
                    await _abort(context, status)
                raise
            finally:
                if lease is not None:
                    lease.release()
                unread.closed(stream)
                open_calls.ended()
                user_streams.ended(user)
                metrics.stream_closed()
                metrics.count(code)

        return call


def _caller_of(context: Context) -> str:
    """The owner of a call's memory: the user; without users, the connection."""
    caller = current_caller()
    return caller.user if caller is not None else context.peer()


async def _read(context: Context, lease: MemoryLease, read: Callable[[bytes], Any]) -> tuple[Any, int]:
    """The one message of a call, and its size in bytes.

    Raises:
        LimitExceeded: it did not arrive, and other calls wait.
        InvalidInput: there is none.
    """
    data = await lease.read(context.read())
    if data is _END:
        raise InvalidInput(
            "no request message arrived: the client sent none, or one above ADLRO_MAX_MESSAGE_BYTES, or disconnected",
            reason="REQUEST_MISSING",
        )
    return read(cast(bytes, data)), len(data)


async def _write(context: Context, answer: Any) -> None:
    """Sends an answer of a stream.

    Raises:
        CancelledError: the client has gone. On a loaded machine gRPC notices it here before it cancels the call.
    """
    try:
        await context.write(answer)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError("the client has gone") from None


def _release_at_end(lease: MemoryLease) -> None:
    """Gives a call's memory back when the call is over, answer and all."""
    task = asyncio.current_task()
    if task is None:
        lease.release()
    else:
        task.add_done_callback(lease.release)


def _answer_too_large(method: str, size_bytes: int, most_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"the answer of {method.rpartition('/')[2]} has {size_bytes} bytes, of at most {most_bytes} "
        "(ADLRO_MAX_MESSAGE_BYTES); request less at a time",
        reason="ANSWER_TOO_LARGE",
        metadata={"size_bytes": str(size_bytes), "limit_bytes": str(most_bytes)},
    )


async def _end_unread(context: Context, error: LimitExceeded) -> str:
    """Sends the reason of a stream's end to a client that reads nothing; returns the code for the metrics."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    with suppress(TimeoutError, grpc.aio.AbortError):
        await asyncio.wait_for(_abort(context, to_status(error)), _LAST_WORDS_S)
    return to_code(error).name


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
    # gRPC's context keeps the exception that a call is aborted with, and that one its frames, in a circle: what they
    # hold of the request would stay until the garbage collector comes by.
    _forget_frames(error)
    told = to_code(known)
    if known is error:
        get_logger().debug("call refused", method=method, code=told.name, message=known.message)
    return told.name, to_status(known)


def _forget_frames(error: BaseException) -> None:
    """Takes the tracebacks off an error and those behind it.

    Not `traceback.clear_frames`: before Python 3.13 that ends a coroutine that caught the error and goes on.
    """
    behind: BaseException | None = error
    while behind is not None:
        behind.__traceback__ = None
        behind = behind.__context__


async def _abort(context: Context, status: status_pb2.Status) -> None:
    """Ends the call; raises AbortError."""
    await context.abort(_STATUS_CODES[status.code], status.message, to_trailing_metadata(status))
