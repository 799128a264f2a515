"""The page in this process, beside an ingest with users; browsers of HTTP and of the live stream."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from adlro.client import AsyncClient, Credentials, Endpoints
from adlro.kit.identity import Caller, Role, new_token, users_line
from adlro.services.web.server import RunningWeb, start_web
from adlro.services.web.settings import WebSettings
from tests.contract.ingest_suite import ingest_here
from tests.unit.web.world import PageModel

USERS = {
    "ann": [Role.SUBMITTER],
    "bob": [Role.SUBMITTER],
    "rea": [Role.READER],
    "ops": [Role.OPERATOR],
    "both": [Role.READER, Role.SUBMITTER],
    "web": [Role.SERVICE],
}
# Nobody listens there: the services that a test does not start.
NOWHERE = "127.0.0.1:1"


@dataclass
class Answer:
    """An answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass
class Browser:
    """A browser: its cookie, and the headers that a browser adds by itself."""

    address: str
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Answer:
        """A request as the page's script makes it."""
        return await asyncio.to_thread(self._ask, "GET", path, None, headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """A request that changes something, with all that it needs; `headers` change that."""
        own = {"origin": f"http://{self.address}", "x-adlro": "1"}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return await asyncio.to_thread(self._ask, "POST", path, data, own | given)

    async def login(self, token: str) -> Answer:
        """Logs in; keeps the cookie."""
        answer = await self.post("/login", {"token": token})
        if answer.status == 204:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=60.0)
        sent = {"host": self.address, **self.headers, **({"cookie": self.cookie} if self.cookie else {})}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, {name: value for name, value in sent.items() if value})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    @asynccontextmanager
    async def live(self, *keys: str, **options: Any) -> AsyncIterator[Live]:
        """The live stream, with subscriptions."""
        headers = {"cookie": self.cookie} if self.cookie else {}
        origin = options.pop("origin", f"http://{self.address}")
        async with connect(
            f"ws://{self.address}/live/v1", origin=origin, additional_headers=headers, max_size=None, **options
        ) as socket:
            live = Live(socket)
            for key in keys:
                await live.say(op="subscribe", key=key)
            yield live


class Live:
    """A page's live stream, and what it shows.

    Attributes:
        page: what it shows.
        told: control messages by op, the newest of each.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.page = PageModel()
        self.told: dict[str, dict[str, Any]] = {}

    async def say(self, **message: Any) -> None:
        """Sends a message."""
        await self.socket.send(json.dumps(message))

    async def take(self) -> str | bytes:
        """Shows the next message, and acknowledges it."""
        message = await self.socket.recv()
        if isinstance(message, str):
            given = json.loads(message)
            self.told[given["op"]] = given
        found = self.page.take(message)
        if found is not None:
            await self.say(op="ack", key=found[0], rev=found[1])
        return message

    async def until(self, right: Any, timeout_s: float = 60.0) -> None:
        """Takes messages until something is right."""
        async with asyncio.timeout(timeout_s):
            while not right(self):
                await self.take()

    async def until_closed(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Takes messages until the service closes the stream; returns its goodbye."""
        async with asyncio.timeout(timeout_s):
            try:
                while True:
                    await self.take()
            except ConnectionClosed:
                return self.told.get("bye", {})


@dataclass
class World:
    """The page, ingest, and users."""

    running: RunningWeb
    endpoints: Endpoints
    tokens: dict[str, str]
    users_file: Path

    def browser(self) -> Browser:
        """Somebody who is not logged in."""
        return Browser(self.running.address)

    async def logged_in(self, user: str) -> Browser:
        """Somebody who is."""
        # Not by a request: tries to log in are limited.
        assert self.running.parts.logins is not None
        caller = Caller(user, frozenset(USERS[user]))
        session = self.running.parts.logins.sessions.begin(caller, self.tokens[user])
        return Browser(self.running.address, f"adlro={session.session_id}")

    def client(self, user: str) -> AsyncClient:
        """A client of the services, as a user."""
        credentials = Credentials(token=self.tokens[user])
        return AsyncClient(endpoints=self.endpoints, credentials=credentials, timeout_s=60.0, patience_s=60.0)

    def write_users(self, roles: Mapping[str, list[Role]]) -> None:
        """Replaces the users' file."""
        lines = [users_line(self.tokens[user], roles[user]) for user in roles]
        self.users_file.write_text("\n".join(lines) + "\n")


@asynccontextmanager
async def page_here(redis_url: str, tmp_path: Path, *, users: bool = True, **settings: Any) -> AsyncIterator[World]:
    """The page and an ingest on this loop; the other services are away."""
    tokens = {user: new_token(user) for user in USERS}
    users_file, own = tmp_path / "users", tmp_path / "web.token"
    users_file.write_text("\n".join(users_line(token, USERS[user]) for user, token in tokens.items()) + "\n")
    own.write_text(tokens["web"])
    known = {"users_file": str(users_file)} if users else {}
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(ingest_here(redis_url, **known))
        endpoints = Endpoints(address, NOWHERE, NOWHERE, NOWHERE)
        made = WebSettings(
            **(
                {
                    "listen": "127.0.0.1:0",
                    "ingest_address": address,
                    "decompose_address": NOWHERE,
                    "orchestrator_address": NOWHERE,
                    "cluster_address": NOWHERE,
                    **({"service_token_file": str(own)} if users else {}),
                }
                | settings
            )
        )
        running = await start_web(made)
        try:
            yield World(running, endpoints, tokens, users_file)
        finally:
            crashed = running.context.crashed.is_set()
            await running.stop(1.0)
        assert not crashed
