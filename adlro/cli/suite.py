"""The whole suite as processes on this machine: start, supervise, restart, drain. For `adlro up` and `adlro demo`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from adlro.cli.data_dir import CHECKPOINTS, CLOSED_STORE, LEARN, LOGS, SECRETS, STORE, take_lock
from adlro.cli.given_redis import check_redis
from adlro.cli.notify_process import NOTIFY, NOTIFY_MODULE, notify_address, notify_directory, notify_settings
from adlro.cli.page import MODULE, PAGE, PORT_OFFSET, page_link, page_problem, page_settings, until_page_serves
from adlro.cli.ports import FREE_PORTS, ClaimedPorts, check_ports, port_is_free
from adlro.cli.processes import ServiceProcess, exit_text, rotate
from adlro.cli.secrets import USERS_ENV, SuiteSecrets, make_secrets
from adlro.cli.starting import StartFailed, until_serving
from adlro.client import AsyncClient, Credentials, ServiceName
from adlro.client.health import wait_until_serving
from adlro.errors import AdlroError, Conflict
from adlro.kit.credentials import OWN_USER_ENV, SERVICE_TOKEN_ENV, TOKEN_ENV
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.private_files import private_opener
from adlro.kit.promotion import CANDIDATE_FILE
from adlro.kit.redis import redacted
from adlro.kit.running_suites import STATUS, forget_suite, note_suite

START_ORDER = (ServiceName.DECOMPOSE, ServiceName.INGEST, ServiceName.CLUSTER, ServiceName.ORCHESTRATOR)
# Deciding services stop first, recording ones last.
STOP_ORDER = (ServiceName.ORCHESTRATOR, ServiceName.CLUSTER, ServiceName.DECOMPOSE, ServiceName.INGEST)

# A killed orchestrator's lease expires after a few seconds.
ACTING_TIMEOUT_S = 15.0
# A service drains within 10 s; the process has a second more to exit.
DRAIN_GRACE_S = 11.0

_FIRST_RESTART_DELAY_S = 0.2
_LONGEST_RESTART_DELAY_S = 15.0
# After so many seconds of a service's run, restart delays begin with the first again.
_STEADY_AFTER_S = 30.0
_STORE_LOOK_S = 0.1
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """The settings of a suite.

    Attributes:
        data_dir: directory of all files.
        base_port: ingest's port; the other services use the next ones, then the page, then notify. 0: free ports.
        redis_url: an existing Redis or Valkey; None: an own one.
        redis_password_file: file with its password, unless the URL has it.
        settings: further environment for the services, such as `ADLRO_SIMCLUSTER_CLUSTER`.
        echo: called with service and line for each log line of a service.
        cluster_module: the module of the cluster's service; the last part of its name is the service's name.
        closed: only authenticated callers are accepted: the services get tokens, and the store has a password.
        own_secrets: where it is closed, the suite makes the tokens; otherwise the environment names them.
        passable: users of the machine may pass through the data directory to files of their own programs.
        page: starts the live page too.
        webhooks_file: the file of webhooks; None: nobody is told of anything.
    """

    data_dir: Path
    base_port: int
    redis_url: str | None = None
    redis_password_file: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    echo: Callable[[str, str], None] | None = None
    cluster_module: str = "adlro.services.simcluster"
    closed: bool = False
    own_secrets: bool = True
    passable: bool = False
    page: bool = False
    webhooks_file: Path | None = None


class Suite:
    """Valkey, four services, the live page, and what tells webhooks.

    Args:
        plan: the settings.
        notify: called with a line for people at each restart, and during a long start.
    """

    def __init__(self, plan: SuitePlan, notify: Callable[[str], None]) -> None:
        self._plan = plan
        self._notify = notify
        self._lock: IO[str] | None = None
        self._ports: ClaimedPorts | None = None
        self._store: EmbeddedRedis | None = None
        self._services: dict[ServiceName, ServiceProcess] = {}
        self._page: ServiceProcess | None = None
        self._page_address = ""
        self._notifier: ServiceProcess | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._started_unix_s = time.time()
        self._ready = False
        self.restart_count = 0
        self.addresses: dict[ServiceName, str] = {}
        self.redis_url = ""
        self._redis_password_file = ""
        self._secrets: SuiteSecrets | None = None

    @property
    def credentials(self) -> Credentials | None:
        """For clients of this suite; None: those of the environment. Known after `start`."""
        if self._secrets is None:
            return None
        environment = {**os.environ, TOKEN_ENV: str(self._secrets.token_file)}
        return Credentials.from_environment(environment)

    @property
    def store_address(self) -> str:
        """Of the store that the suite started, for people: `host:port`, or the path of its socket."""
        scheme, _, rest = self.redis_url.partition("://")
        return rest if scheme == "unix" else rest.partition("/")[0]

    def label(self, name: ServiceName) -> str:
        """The name of a service's process, in logs, settings and messages."""
        return self._plan.cluster_module.rpartition(".")[2] if name is ServiceName.CLUSTER else str(name)

    @property
    def server(self) -> str:
        """The address for clients: ingest's."""
        return self.addresses[ServiceName.INGEST]

    @property
    def page_link(self) -> str:
        """The live page's address for a browser; empty: there is none."""
        return page_link(self._page_address) if self._page is not None else ""

    @property
    def token_file(self) -> str:
        """The file of the token that the suite made for its user; empty: none."""
        return "" if self._secrets is None else str(self._secrets.token_file)

    async def start(self) -> None:
        """Starts all processes and returns once all services are serving.

        Raises:
            Conflict: a port or the data directory is in use, or the directory belongs to another user.
            StartFailed: the data directory can't be written, or a service ended or is stuck; all processes are stopped
                again.
        """
        try:
            self._lock = take_lock(self._plan.data_dir, passable=self._plan.passable)
            if not self._plan.base_port:
                self._ports = ClaimedPorts()
            base_port = self._plan.base_port if self._ports is None else self._ports.base
            self.addresses = {name: f"127.0.0.1:{base_port + name.port_offset}" for name in ServiceName}
            check_ports(self.addresses)
            self._have_secrets()
            await self._start_store()
            for name in START_ORDER:
                service = ServiceProcess(
                    self.label(name),
                    self._plan.cluster_module if name is ServiceName.CLUSTER else f"adlro.services.{name}",
                    self._settings(name),
                    self._plan.data_dir / LOGS,
                    self._plan.echo,
                )
                rotate(service.log)
                self._services[name] = service
                await service.start()
            await self._start_page(base_port + PORT_OFFSET)
            notifier_address = await self._start_notifier(base_port)
            # Before the services are serving: commands that are given during a long start wait, and have their token.
            self.write_status_file()
            self._note()
            await asyncio.gather(
                *(until_serving(each, self.addresses[name], self._notify) for name, each in self._services.items())
            )
            self._watchers = [
                asyncio.create_task(self._keep(each, self.addresses[name])) for name, each in self._services.items()
            ]
            await self._keep_page()
            if self._notifier is not None:
                await until_serving(self._notifier, notifier_address, self._notify)
                self._watchers.append(asyncio.create_task(self._keep(self._notifier, notifier_address)))
            if self._store is not None:
                self._watchers.append(asyncio.create_task(self._keep_store(self._store)))
            self._ready = True
            self.write_status_file()
        except BaseException:
            await self.stop()
            raise

    async def problem(self, timeout_s: float = ACTING_TIMEOUT_S) -> str:
        """Waits until the orchestrator places jobs; returns the obstacle after that time, otherwise an empty text."""
        end_s = time.monotonic() + timeout_s
        async with AsyncClient(self.server, patience_s=timeout_s, credentials=self.credentials) as client:
            while True:
                status = await client.status()
                if status.acting and status.cluster_connected and not status.problem:
                    return ""
                if time.monotonic() > end_s:
                    return status.problem or "the orchestrator does not act"
                await asyncio.sleep(0.1)

    async def stop(self) -> bool:
        """Drains and stops all processes, in order. True if all ended in time."""
        for watcher in self._watchers:
            watcher.cancel()
        if self._watchers:
            await asyncio.wait(self._watchers)
        in_time = True
        if self._page is not None:
            in_time &= await self._page.stop(DRAIN_GRACE_S)
        if self._notifier is not None:
            in_time &= await self._notifier.stop(DRAIN_GRACE_S)
        for name in STOP_ORDER:
            if name in self._services:
                in_time &= await self._services[name].stop(DRAIN_GRACE_S)
        if self._store is not None:
            await asyncio.to_thread(self._store.stop)
        if self._ports is not None:
            self._ports.release()
        if self._lock is not None:  # otherwise another suite uses the data directory
            self._plan.data_dir.joinpath(STATUS).unlink(missing_ok=True)
            if self.addresses:
                forget_suite(self.server, self._plan.data_dir)
            self._lock.close()
            self._lock = None
        return in_time

    def kill(self) -> None:
        """Kills the services at once, without a drain. `stop` must still be called."""
        for service in (*self._services.values(), self._page, self._notifier):
            if service is not None:
                service.kill()

    def pids(self) -> dict[str, int | None]:
        """The process ids by name; None during a restart."""
        found = {service.name: service.pid for service in self._services.values()}
        if self._page is not None:
            found[PAGE] = self._page.pid
        if self._notifier is not None:
            found[NOTIFY] = self._notifier.pid
        if self._store is not None:
            found["valkey"] = self._store.pid
        return found

    def write_status_file(self) -> None:
        """Writes up.json again, in one step."""
        status: dict[str, Any] = {
            "pid": os.getpid(),
            "server": self.server,
            "addresses": {self.label(name): address for name, address in self.addresses.items()},
            "redis_url": redacted(self.redis_url),
            "redis_password_file": self._redis_password_file,
            "token_file": self.token_file,
            "page": self.page_link,
            "webhooks_file": "" if self._plan.webhooks_file is None else str(self._plan.webhooks_file),
            "notify_dir": str(self._plan.data_dir / notify_directory(closed=self._plan.closed)),
            "pids": self.pids(),
            "ready": self._ready,
            "data_dir": str(self._plan.data_dir),
            "started_unix_s": self._started_unix_s,
        }
        new = self._plan.data_dir / f"{STATUS}.new"
        with open(new, "w", encoding="utf-8", opener=private_opener) as file:
            file.write(json.dumps(status, indent=2) + "\n")
        new.replace(self._plan.data_dir / STATUS)

    # Below: the parts of a start, and supervision

    def _have_secrets(self) -> None:
        if not self._plan.closed or not self._plan.own_secrets:
            return
        try:
            self._secrets = make_secrets(self._plan.data_dir / SECRETS)
        except OSError as error:
            raise StartFailed(
                f"the tokens can't be written to {self._plan.data_dir / SECRETS} ({error.strerror}); name another "
                "--data-dir"
            ) from None

    def _note(self) -> None:
        """Lets this user's commands find the data directory, and the token in it, by the suite's address."""
        try:
            note_suite(self.server, self._plan.data_dir)
        except (OSError, RuntimeError, Conflict) as error:
            if self._secrets is None:
                return  # `adlro policy promote` and others ask for the directory then
            self._notify(
                f"commands can't find their token by themselves ({error}); set ADLRO_TOKEN_FILE="
                f"{self._secrets.token_file} for them"
            )

    async def _start_store(self) -> None:
        if self._plan.redis_url:
            self.redis_url, self._redis_password_file = self._plan.redis_url, self._plan.redis_password_file
            await check_redis(self.redis_url, self._redis_password_file, closed=self._plan.closed)
            return
        self._store = EmbeddedRedis(self._plan.data_dir / (CLOSED_STORE if self._plan.closed else STORE))
        await asyncio.to_thread(self._store.start)
        self.redis_url, self._redis_password_file = f"redis://{self._store.address}/0", str(self._store.password_file)
        if self._plan.closed:
            if self._store.socket is None:
                raise StartFailed(
                    f"the path of {self._store.data_dir} is too long for the store's Unix socket; name a --data-dir "
                    "with a shorter path"
                )
            # While the store restarts after a crash, another user could listen at its port, and get its password.
            self.redis_url = f"unix://{self._store.socket}"

    async def _start_page(self, port: int) -> None:
        """Starts the live page's process; the suite serves without it."""
        if not self._plan.page:
            return
        if port > _LAST_PORT or not port_is_free("127.0.0.1", port):
            self._notify(
                f"port {port} (for the page) is in use: there is no page; stop its user, or name another --port"
            )
            return
        self._page_address = f"127.0.0.1:{port}"
        settings = {
            **self._plan.settings,
            **self._secret_settings(),
            **page_settings(self._page_address, self.addresses),
        }
        self._page = ServiceProcess(PAGE, MODULE, settings, self._plan.data_dir / LOGS, self._plan.echo)
        rotate(self._page.log)
        await self._page.start()

    async def _start_notifier(self, base_port: int) -> str:
        """Starts the process that tells webhooks, where there are any; returns its address."""
        if self._plan.webhooks_file is None:
            return ""
        address = notify_address(base_port + PORT_OFFSET + 1, port_is_free, FREE_PORTS)
        settings = {
            **self._plan.settings,
            **self._secret_settings(),
            **notify_settings(
                address,
                self.addresses,
                self._plan.webhooks_file,
                self._plan.data_dir / notify_directory(closed=self._plan.closed),
            ),
        }
        self._notifier = ServiceProcess(NOTIFY, NOTIFY_MODULE, settings, self._plan.data_dir / LOGS, self._plan.echo)
        rotate(self._notifier.log)
        await self._notifier.start()
        return address

    async def _keep_page(self) -> None:
        """Waits until the page answers, and restarts it from then on whenever it ends."""
        if self._page is None:
            return
        problem = await page_problem(self._page, self._page_address)
        if problem:
            self._notify(problem)
            page, self._page = self._page, None
            await page.stop(DRAIN_GRACE_S)
            return
        self._watchers.append(asyncio.create_task(self._keep(self._page, self._page_address)))

    def _secret_settings(self) -> dict[str, str]:
        if self._secrets is None:
            return {}
        return {
            USERS_ENV: str(self._secrets.users_file),
            SERVICE_TOKEN_ENV: str(self._secrets.service_token_file),
            # While a service restarts after a crash, another user could listen at its port.
            OWN_USER_ENV: "true",
        }

    def _settings(self, name: ServiceName) -> dict[str, str]:
        return {
            **self._plan.settings,
            **self._secret_settings(),
            "ADLRO_REDIS_URL": self.redis_url,
            "ADLRO_REDIS_PASSWORD_FILE": self._redis_password_file,
            f"ADLRO_{self.label(name).upper()}_LISTEN": self.addresses[name],
            f"ADLRO_{self.label(ServiceName.CLUSTER).upper()}_INGEST_ADDRESS": self.addresses[ServiceName.INGEST],
            "ADLRO_INGEST_CLUSTER_ADDRESS": self.addresses[ServiceName.CLUSTER],
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": self.addresses[ServiceName.CLUSTER],
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": self.addresses[ServiceName.DECOMPOSE],
            "ADLRO_ORCHESTRATOR_PROMOTED": str(self._plan.data_dir.absolute() / CHECKPOINTS),
            "ADLRO_ORCHESTRATOR_CANDIDATE": str(self._plan.data_dir.absolute() / LEARN / CANDIDATE_FILE),
        }

    async def _keep(self, service: ServiceProcess, address: str) -> None:
        """Restarts a service whenever it ends."""
        delay_s = _FIRST_RESTART_DELAY_S
        back: asyncio.Task[None] | None = None
        while True:
            began_s = time.monotonic()
            try:
                code = await service.ended()  # it may end again during the restart
            finally:
                if back is not None:
                    back.cancel()
            if time.monotonic() - began_s > _STEADY_AFTER_S:
                delay_s = _FIRST_RESTART_DELAY_S
            self._notify(f"{service.name} ended ({exit_text(code)}); restarting it in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _LONGEST_RESTART_DELAY_S)
            self.restart_count += 1
            await service.start()
            self.write_status_file()
            back = asyncio.create_task(self._tell_when_back(service, address))

    async def _tell_when_back(self, service: ServiceProcess, address: str) -> None:
        if service is self._page:
            await until_page_serves(address)
        else:
            await wait_until_serving(address)
        self._notify(f"{service.name} is back")

    async def _keep_store(self, store: EmbeddedRedis) -> None:
        """Restarts the store, with its data and on its port, whenever it ends."""
        delay_s = _FIRST_RESTART_DELAY_S
        while True:
            began_s = time.monotonic()
            await _until_ended(store)
            if time.monotonic() - began_s > _STEADY_AFTER_S:
                delay_s = _FIRST_RESTART_DELAY_S
            self._notify(f"valkey ended; restarting it in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _LONGEST_RESTART_DELAY_S)
            self.restart_count += 1
            try:
                await asyncio.to_thread(store.start)
            except AdlroError as error:
                self._notify(f"valkey: {error.message}")
            else:
                self.write_status_file()
                self._notify("valkey is back")


async def _until_ended(store: EmbeddedRedis) -> None:
    while True:
        await asyncio.sleep(_STORE_LOOK_S)
        if not store.is_running():
            return
