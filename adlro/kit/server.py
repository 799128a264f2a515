"""Bootstrap of a service: the common part of every service process, from its settings to its last call.

    main(build, settings_cls)     a process of gRPC: settings, logs, signals, exit codes (`run_process`)
      start_server(service, ..)   a server on the running loop: port, health, reflection, metrics, interceptor
        service.start(context)    the service's own connections and loops
      RunningServer.stop(..)      the drain

Exit codes: 0 drained, 1 a crash or a start that failed, 2 settings (a port in use is one of them).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn, Protocol, TypeVar

import grpc
from grpc_health.v1 import health_pb2_grpc

from adlro.errors import AdlroError, InvalidInput
from adlro.kit import start_report
from adlro.kit.access import AccessGuard
from adlro.kit.addresses import ListenFailed, join_address, split_address
from adlro.kit.credentials import Credentials
from adlro.kit.health import SERVICE_NAME as HEALTH_NAME
from adlro.kit.health import HealthServicer, HealthState
from adlro.kit.identity import UsersFile
from adlro.kit.interceptor import CallInterceptor, Limits
from adlro.kit.log import configure, get_logger
from adlro.kit.metrics import CallMetrics, MetricsEndpoint, describe_process, process_registry
from adlro.kit.open_calls import OpenCalls
from adlro.kit.port import open_port, server_options, service_options, tell_protection
from adlro.kit.reflection import add_reflection
from adlro.kit.service import STOP_TIMEOUT_S, Service, ServiceContext
from adlro.kit.settings import ServiceSettings, describe_settings, environment_key, load_settings
from adlro.kit.validation import warm

__all__ = [
    "Running",
    "RunningServer",
    "Service",
    "ServiceContext",
    "main",
    "run_process",
    "server_options",
    "start_server",
]

# Seconds that health streams at least, and then cancelled tasks, have for their last messages.
_LAST_WORDS_S = 0.2
# Seconds that health streams have if the drain has the time.
_STREAMS_END_S = 1.0
# Longer than any process lives.
_NEVER_S = 1e9
# After this the process exits with any remaining work: 8 s of drain + 1.9 s stay below the promised 10 s.
_EXIT_AFTER_DRAIN_S = STOP_TIMEOUT_S + 2 * _LAST_WORDS_S + 0.3
# A process whose loop has crashed is unreliable.
_CRASH_GRACE_S = 1.0

S = TypeVar("S", bound=ServiceSettings)


class Running(Protocol):
    """A started server, of whatever protocol."""

    @property
    def context(self) -> ServiceContext:
        """The kit's part."""

    @property
    def address(self) -> str:
        """The address on which it listens, with the actual port."""

    @property
    def metrics_address(self) -> str:
        """The address of its Prometheus metrics; empty if these are off."""

    def hurry(self) -> None:
        """Shortens a drain."""

    async def stop(self, grace_s: float | None = None) -> None:
        """Drains; after `grace_s`, or the settings' `drain_timeout_s`, without what still runs."""


class RunningServer:
    """A started server; `start_server` creates it."""

    def __init__(
        self,
        service: Service,
        context: ServiceContext,
        server: grpc.aio.Server,
        open_calls: OpenCalls,
        metrics_endpoint: MetricsEndpoint | None,
    ) -> None:
        self.service = service
        self.context = context
        self._server = server
        self._open_calls = open_calls
        self._metrics_endpoint = metrics_endpoint
        self._hurry = asyncio.Event()

    @property
    def address(self) -> str:
        """The address on which it listens, with the actual port."""
        return self.context.address

    @property
    def metrics_address(self) -> str:
        """The address of its Prometheus metrics; empty if these are off."""
        return self._metrics_endpoint.address if self._metrics_endpoint else ""

    def hurry(self) -> None:
        """Shortens a drain: running calls are cancelled now."""
        self._hurry.set()

    async def stop(self, grace_s: float | None = None) -> None:
        """Drains: not serving, streams end, running calls finish, then the service stops.

        Args:
            grace_s: seconds before running calls are cancelled; None: `drain_timeout_s`.
        """
        context = self.context
        grace_s = context.settings.drain_timeout_s if grace_s is None else grace_s
        context.health.drain()
        context.draining.set()
        # From here on gRPC refuses new calls, and redirects clients. This wait of gRPC's must not time out: if two
        # waits end at once, one frees the server while the other uses it (on Python 3.12 it crashes).
        closing = asyncio.ensure_future(self._server.stop(_NEVER_S))
        calls = asyncio.ensure_future(self._open_calls.none_left())
        hurry = asyncio.ensure_future(self._hurry.wait())
        deadline_s = time.monotonic() + grace_s
        await asyncio.wait([calls, hurry, closing], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        calls.cancel()
        hurry.cancel()
        # Overdue calls remain, and streams of health, which end, and of reflection, which wait for ever.
        if self._open_calls.count:
            context.log.warning("calls are cancelled", count=self._open_calls.count)
        else:
            left_s = deadline_s - time.monotonic()
            await asyncio.wait([closing], timeout=min(max(left_s, _LAST_WORDS_S), _STREAMS_END_S))
        await self._server.stop(None)
        await closing
        await asyncio.gather(self._stop_service(), self._close_metrics())

    async def _close_metrics(self) -> None:
        if self._metrics_endpoint is not None:
            await asyncio.to_thread(self._metrics_endpoint.close)

    async def _stop_service(self) -> None:
        log = self.context.log
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.service.stop()
        except TimeoutError:
            log.warning("the service did not stop in time", timeout_s=STOP_TIMEOUT_S)
        except Exception as error:
            log.error("the service failed while it stopped", exc_info=error)
        await self.context.cancel_tasks(_LAST_WORDS_S)


async def start_server(service: Service, settings: ServiceSettings) -> RunningServer:
    """Starts a service on the running loop.

    Raises:
        ListenFailed: it can't listen on the address of the settings.
        AdlroError: the service could not start.
    """
    try:
        credentials = Credentials.of_service(settings)
        users = UsersFile(settings.users_file, "ADLRO_USERS_FILE") if settings.users_file else None
    except InvalidInput as error:
        raise ListenFailed(error.message) from None
    registry = process_registry()
    open_calls = OpenCalls()
    interceptor = CallInterceptor(
        CallMetrics(registry),
        open_calls,
        settings.require_deadline,
        AccessGuard(users) if users is not None else None,
        Limits(
            message_bytes=settings.max_message_bytes,
            request_memory_bytes=settings.request_memory_mib << 20,
            streams_per_user=settings.max_streams_per_user,
            unread_timeout_s=settings.unread_timeout_s,
        ),
    )
    server = grpc.aio.server(interceptors=[interceptor], options=service_options(settings))
    port = open_port(server, settings)
    host, _ = split_address(settings.listen)
    metrics_endpoint: MetricsEndpoint | None = None
    context = ServiceContext(
        settings=settings,
        log=get_logger(),
        health=HealthState(service.service_names),
        draining=asyncio.Event(),
        registry=registry,
        address=join_address(host, port),
        credentials=credentials,
    )
    describe_process(registry, settings.service_name, lambda: context.health.serving)
    try:
        if settings.metrics_listen:
            key = environment_key(type(settings), "metrics_listen")
            metrics_endpoint = MetricsEndpoint(settings.metrics_listen, registry, key)
        warm(service.service_names)
        service.add_to(server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(context.health), server)
        add_reflection((*service.service_names, HEALTH_NAME), server)
        await service.start(context)
    except BaseException:
        context.draining.set()
        # gRPC frees the port only of a started server.
        await server.start()
        await server.stop(None)
        await context.cancel_tasks(timeout_s=1.0)
        if metrics_endpoint is not None:
            metrics_endpoint.close()
        raise
    await server.start()
    context.health.set_serving(True, source="start")
    tell_protection(settings)
    return RunningServer(service, context, server, open_calls, metrics_endpoint)


def main(build: Callable[[S], Service], settings_cls: type[S]) -> NoReturn:
    """Runs a service as this process, until a signal ends it.

    Args:
        build: creates the service; must not use the network.
        settings_cls: class of the settings, which are read from the environment.
    """

    async def start(settings: S) -> Running:
        return await start_server(build(settings), settings)

    run_process(start, settings_cls)


def run_process(start: Callable[[S], Awaitable[Running]], settings_cls: type[S]) -> NoReturn:
    """Runs a server as this process, until a signal ends it.

    Args:
        start: starts it on the running loop; raises as `start_server` does.
        settings_cls: class of the settings, which are read from the environment.
    """
    name = settings_cls.service_name
    if len(sys.argv) > 1:
        wanted = sys.argv[1] in ("-h", "--help")
        text = f"{name} takes no arguments; it reads the environment:\n{describe_settings(settings_cls)}\n"
        (sys.stdout if wanted else sys.stderr).write(text)
        raise SystemExit(0 if wanted else 2)
    settings = load_settings(settings_cls)
    configure(name, settings.log_level)
    start_report.begin(name)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_run(start, settings))
    raise SystemExit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(start: Callable[[S], Awaitable[Running]], settings: S) -> int:
    loop = asyncio.get_running_loop()
    log = get_logger()
    ending = asyncio.Event()
    running: Running | None = None

    def drain(number: int) -> None:
        if not ending.is_set():
            log.info("draining", signal=signal.Signals(number).name, drain_timeout_s=settings.drain_timeout_s)
            ending.set()
        elif running is not None:
            log.info("draining faster", signal=signal.Signals(number).name)
            running.hurry()

    _on_signals(loop, drain, settings.drain_timeout_s + _EXIT_AFTER_DRAIN_S)
    began_s = time.monotonic()
    try:
        starting = asyncio.ensure_future(start(settings))
        stop_early = asyncio.ensure_future(ending.wait())
        await asyncio.wait([starting, stop_early], return_when=asyncio.FIRST_COMPLETED)
        stop_early.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting], timeout=STOP_TIMEOUT_S)
            log.info("stopped before it was started")
            return 0
        running = starting.result()
    except ListenFailed as error:
        sys.stderr.write(f"{settings.service_name}: {error.message}\n")
        return 2
    except AdlroError as error:
        log.error("can't start", problem=error.message, field=error.field)
        return 1
    except Exception as error:
        log.error("can't start", exc_info=error)
        return 1
    finally:
        start_report.end()
    log.info(
        "listening",
        address=running.address,
        metrics_address=running.metrics_address,
        tls=bool(settings.tls_cert_file),
        tokens=bool(settings.users_file),
        pid=os.getpid(),
        loop=type(loop).__module__.partition(".")[0],
        start_s=round(time.monotonic() - began_s, 3),
    )
    crash = asyncio.ensure_future(running.context.crashed.wait())
    end = asyncio.ensure_future(ending.wait())
    await asyncio.wait([crash, end], return_when=asyncio.FIRST_COMPLETED)
    crashed = running.context.crashed.is_set()
    crash.cancel()
    end.cancel()
    if crashed:
        _exit_hard_after(_CRASH_GRACE_S + _EXIT_AFTER_DRAIN_S)
    await running.stop(_CRASH_GRACE_S if crashed else None)
    log.info("stopped", exit_code=int(crashed))
    return int(crashed)


def _on_signals(loop: asyncio.AbstractEventLoop, drain: Callable[[int], None], exit_after_s: float) -> None:
    """Calls `drain` on the loop for each SIGTERM and SIGINT.

    Unlike with `loop.add_signal_handler`, Python runs these handlers even while a call's handler blocks the loop, so
    that the time until the hard end starts with the signal.
    """
    first = True

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if first:
            first = False
            _exit_hard_after(exit_after_s)
        # The loop is closed: the process is about to end anyway.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(drain, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _exit_hard_after(delay_s: float) -> None:
    """Ends the process from a thread if the loop is stuck: the end within 10 s is promised."""

    def end() -> None:
        get_logger().error("the drain took too long; the process ends without it", after_s=delay_s)
        os._exit(1)

    timer = threading.Timer(delay_s, end)
    timer.daemon = True
    timer.start()
