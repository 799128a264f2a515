"""web as a process of the kit: settings, TLS, users, metrics and drain are the kit's; uvicorn speaks HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Final

import uvicorn
from prometheus_client import Gauge

from adlro.client import Credentials, Endpoints
from adlro.errors import InvalidInput
from adlro.kit.addresses import ListenFailed, check_listenable, join_address, listen_error, split_address
from adlro.kit.health import HealthState
from adlro.kit.log import get_logger
from adlro.kit.metrics import MetricsEndpoint, describe_process, process_registry
from adlro.kit.port import check_protected, tell_protection
from adlro.kit.service import ServiceContext
from adlro.kit.settings import environment_key
from adlro.kit.tls import TlsFiles
from adlro.services.web.api import UserClients
from adlro.services.web.app import Parts, make_app
from adlro.services.web.assets import Assets
from adlro.services.web.feeds import Feeds
from adlro.services.web.hub import Hub
from adlro.services.web.live import MAX_MESSAGE_BYTES, LiveSockets
from adlro.services.web.logins import Logins
from adlro.services.web.picture import Picture
from adlro.services.web.protection import Hosts
from adlro.services.web.protocols import HttpProtocol, SocketProtocol
from adlro.services.web.sessions import Sessions
from adlro.services.web.settings import WebSettings

_PING_EVERY_S: Final = 10.0
_PONG_WITHIN_S: Final = 20.0
_STOP_TIMEOUT_S: Final = 3.0
_CONNECTIONS: Final = 1000
_EPOCH_BYTES: Final = 9
_CERTIFICATES_EVERY_S: Final = 1.0


class _Server(uvicorn.Server):
    """uvicorn without its own signals: the kit's drain ends it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's signals alone."""
        yield


class RunningWeb:
    """A started page; `start_web` creates it."""

    def __init__(
        self,
        context: ServiceContext,
        server: _Server,
        serving: asyncio.Task[None],
        parts: Parts,
        feeds: Feeds,
        metrics_endpoint: MetricsEndpoint | None,
    ) -> None:
        self.context = context
        self.parts = parts
        self.feeds = feeds
        self._server = server
        self._serving = serving
        self._metrics_endpoint = metrics_endpoint

    @property
    def address(self) -> str:
        """The address on which it listens, with the actual port."""
        return self.context.address

    @property
    def metrics_address(self) -> str:
        """The address of its Prometheus metrics; empty if these are off."""
        return self._metrics_endpoint.address if self._metrics_endpoint else ""

    def hurry(self) -> None:
        """Shortens a drain."""
        self._server.force_exit = True

    async def stop(self, grace_s: float | None = None) -> None:
        """Drains: pages are told, running requests finish, then the streams are closed."""
        context = self.context
        context.health.drain()
        context.draining.set()
        await self.parts.live.drain()
        self._server.should_exit = True
        grace_s = context.settings.drain_timeout_s if grace_s is None else grace_s
        _, late = await asyncio.wait([self._serving], timeout=max(grace_s - 1.0, 0.5))
        if late:
            self._server.force_exit = True
            await asyncio.wait([self._serving], timeout=1.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self.feeds.close()
                await self.parts.clients.close()
        await context.cancel_tasks(0.2)
        if self._metrics_endpoint is not None:
            await asyncio.to_thread(self._metrics_endpoint.close)


def has_users(settings: WebSettings) -> bool:
    """Whether people log in: where the services have users, the page has a token of its own."""
    return bool(settings.service_token_file or settings.users_file)


async def start_web(settings: WebSettings) -> RunningWeb:
    """Starts the page on the running loop.

    Raises:
        ListenFailed: it can't listen on the address of the settings, or must not.
    """
    key = environment_key(type(settings), "listen")
    # Who has a token is asked of ingest: with one of its own the page lets nobody in without a login.
    judged = settings.model_copy(update={"users_file": settings.users_file or settings.service_token_file})
    check_protected(judged, key)
    try:
        credentials = Credentials.of_service(settings)
        if settings.tls_cert_file:
            TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file).read()
    except InvalidInput as error:
        raise ListenFailed(error.message) from None
    listener = _listener(settings.listen, key)
    registry = process_registry()
    context = ServiceContext(
        settings=settings,
        log=get_logger(),
        health=HealthState(()),
        draining=asyncio.Event(),
        registry=registry,
        address=join_address(split_address(settings.listen)[0], listener.getsockname()[1]),
        credentials=credentials,
    )
    describe_process(registry, settings.service_name, lambda: context.health.serving)
    metrics_endpoint: MetricsEndpoint | None = None
    try:
        if settings.metrics_listen:
            metrics_key = environment_key(type(settings), "metrics_listen")
            metrics_endpoint = MetricsEndpoint(settings.metrics_listen, registry, metrics_key)
        parts, feeds = _parts(settings, context, credentials)
        server = _Server(_config(settings, parts))
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
        while not server.started:
            if serving.done():
                serving.result()
                raise ListenFailed(f"listen: can't serve on {settings.listen}; set {key}")
            await asyncio.sleep(0.01)
    except BaseException:
        listener.close()
        if metrics_endpoint is not None:
            metrics_endpoint.close()
        raise
    context.spawn(parts.live.run(), "rounds")
    if settings.tls_cert_file:
        context.spawn(_renew(settings, server.config), "certificates")
    if parts.logins is not None:
        context.spawn(parts.logins.run(), "logins")
    _measure(context, parts)
    context.health.set_serving(True, source="start")
    tell_protection(judged)
    return RunningWeb(context, server, serving, parts, feeds, metrics_endpoint)


def _parts(settings: WebSettings, context: ServiceContext, credentials: Credentials) -> tuple[Parts, Feeds]:
    endpoints = Endpoints(
        settings.ingest_address, settings.decompose_address, settings.orchestrator_address, settings.cluster_address
    )
    picture = Picture()

    def crashed(name: str, error: BaseException) -> None:
        context.log.error("a stream crashed", stream=name, exc_info=error)
        context.crashed.set()

    feeds = Feeds(endpoints, credentials, picture, crashed, settings.streams_idle_s)
    sessions = Sessions(settings.session_idle_s, settings.session_limit_s, time.monotonic)
    clients = UserClients(endpoints, credentials)
    epoch = secrets.token_urlsafe(_EPOCH_BYTES)
    limits = (settings.max_sockets, settings.max_sockets_per_user)
    live = LiveSockets(Hub(picture, time.monotonic), feeds, sessions, epoch, limits, context.log)
    parts = Parts(
        settings=settings,
        picture=picture,
        live=live,
        clients=clients,
        logins=Logins(sessions, clients, time.monotonic) if has_users(settings) else None,
        assets=Assets(),
        hosts=Hosts(settings.listen, settings.host_names),
        log=context.log,
        serving=lambda: context.health.serving,
        jobs_settled=lambda: feeds.jobs_settled,
    )
    return parts, feeds


def _config(settings: WebSettings, parts: Parts) -> uvicorn.Config:
    tls = bool(settings.tls_cert_file)
    return uvicorn.Config(
        make_app(parts),
        http=HttpProtocol,
        ws=SocketProtocol,
        lifespan="off",
        loop="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(int(settings.drain_timeout_s) - 1, 1),
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=_PING_EVERY_S,
        ws_ping_timeout=_PONG_WITHIN_S,
        # Each frame is packed once for all; deflate would cost half a megabyte a page.
        ws_per_message_deflate=False,
        ssl_certfile=settings.tls_cert_file or None,
        ssl_keyfile=settings.tls_key_file or None,
        ssl_ca_certs=settings.tls_ca_file or None if tls else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.tls_require_client_cert else ssl.CERT_NONE,
    )


def _listener(address: str, key: str) -> socket.socket:
    """A bound socket; says why there is none."""
    check_listenable(address, "listen", key)
    host, port = split_address(address)
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise listen_error(error, address, "listen", key) from None
    listener.setblocking(False)
    return listener


async def _renew(settings: WebSettings, config: uvicorn.Config) -> None:
    """Takes changed certificates for the connections that follow; if they don't match, the previous ones stay.

    New authorities are added; one that was taken out is trusted until the process starts again.
    """
    files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    seen = files.state()
    while True:
        await asyncio.sleep(_CERTIFICATES_EVERY_S)
        state = files.state()
        if state == seen:
            continue
        seen = state
        try:
            files.read()
        except InvalidInput as error:
            get_logger().error("the changed certificates are not right; the previous ones stay", problem=str(error))
            continue
        if config.ssl is not None:
            try:
                config.ssl.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
                if settings.tls_ca_file:
                    config.ssl.load_verify_locations(settings.tls_ca_file)
            except OSError as error:  # changed again between the two looks; ssl's errors are of this kind too
                get_logger().error("the changed certificates could not be loaded", problem=str(error))
                continue
            get_logger().info("certificates were changed")


def _measure(context: ServiceContext, parts: Parts) -> None:
    pages = Gauge("adlro_web_pages", "pages whose live stream is open", registry=context.registry)
    pages.set_function(lambda: len(parts.live))
    logins = Gauge("adlro_web_logins", "logins that have not ended", registry=context.registry)
    logins.set_function(lambda: 0 if parts.logins is None else len(parts.logins.sessions))
