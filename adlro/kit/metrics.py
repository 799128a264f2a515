"""A process's Prometheus metrics: one registry, calls and latencies by method, an optional HTTP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread, get_ident
from typing import Generic, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from adlro import __version__
from adlro.kit.addresses import check_listenable, join_address, listen_error, split_address

T = TypeVar("T")

# A loop that is busy for longer fails the scrape: Prometheus then says that the service is down, which it nearly is.
ON_LOOP_TIMEOUT_S = 3.0
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def process_registry() -> CollectorRegistry:
    """A registry with the process' own figures: CPU, memory, file descriptors, garbage collection."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def describe_process(registry: CollectorRegistry, service_name: str, is_serving: Callable[[], bool]) -> None:
    """adlro_service_info{service,version}, and adlro_service_serving by the health protocol."""
    info = Gauge("adlro_service_info", "1; which service, of which version", ["service", "version"], registry=registry)
    info.labels(service_name, __version__).set(1)
    serving = Gauge("adlro_service_serving", "1 while calls are expected to succeed", registry=registry)
    serving.set_function(is_serving)


class OnLoop(Generic[T]):
    """Reads state of the event loop from the thread that Prometheus scrapes.

    Made on the loop, called from any thread.

    Args:
        take: runs on the loop, between other work, so that it reads a consistent state; must be quick.
    """

    def __init__(self, take: Callable[[], T]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()

    def __call__(self) -> T:
        """The result of `take`.

        Raises:
            TimeoutError: the loop is busy.
        """
        if get_ident() == self._thread:
            return self._take()
        taken: Future[T] = Future()

        def run() -> None:
            try:
                taken.set_result(self._take())
            except Exception as error:  # it belongs to who asked
                taken.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return taken.result(ON_LOOP_TIMEOUT_S)


class WhenScraped(Generic[T]):
    """Metrics that are computed from a state at each scrape.

    Args:
        take: returns the state; called from the scraped thread (`OnLoop`).
        show: computes the metrics.
        nothing: a state with all names, and no values.
        registry: registers the metrics.
    """

    def __init__(
        self, take: Callable[[], T], show: Callable[[T], Iterator[Metric]], nothing: T, registry: CollectorRegistry
    ) -> None:
        self._take, self._show, self._nothing = take, show, nothing
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The metrics' names."""
        return self._show(self._nothing)

    def collect(self) -> Iterator[Metric]:
        """The present metrics."""
        return self._show(self._take())


class MethodMetrics:
    """The figures of one gRPC method; children are looked up once, for this runs with every call."""

    def __init__(self, metrics: CallMetrics, method: str) -> None:
        self._requests = metrics.requests
        self._method = method
        self._by_code: dict[str, Callable[[], None]] = {}
        self.observe_latency_s: Callable[[float], None] = metrics.latency_s.labels(method).observe
        self.stream_opened: Callable[[], None] = metrics.open_streams.labels(method).inc
        self.stream_closed: Callable[[], None] = metrics.open_streams.labels(method).dec

    def count(self, code: str) -> None:
        """One more call that ended with `code`."""
        add = self._by_code.get(code)
        if add is None:
            add = self._by_code[code] = self._requests.labels(self._method, code).inc
        add()


class CallMetrics:
    """adlro_grpc_requests_total{method,code}, adlro_grpc_latency_seconds{method}, adlro_grpc_open_streams{method}."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "adlro_grpc_requests", "gRPC calls that ended, by status code", ["method", "code"], registry=registry
        )
        self.latency_s = Histogram(
            "adlro_grpc_latency_seconds",
            "time from a unary call's message to its answer",
            ["method"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.open_streams = Gauge("adlro_grpc_open_streams", "streams that are open", ["method"], registry=registry)

    def of_method(self, method: str) -> MethodMetrics:
        """The figures of `/package.Service/Method`."""
        return MethodMetrics(self, method)


class MetricsEndpoint:
    """Prometheus' HTTP endpoint, on a thread of its own.

    Args:
        address: `host:port`; port 0 takes a free one.
        registry: the metrics to serve.
        key: the environment key that sets the address.

    Raises:
        ListenFailed: it can't listen there.
    """

    def __init__(self, address: str, registry: CollectorRegistry, key: str) -> None:
        host, port = split_address(address)
        check_listenable(address, "metrics_listen", key)
        try:
            self._server: WSGIServer
            self._thread: Thread
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise listen_error(error, address, "metrics_listen", key) from None
        self.address = join_address(host, self._server.server_port)

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
