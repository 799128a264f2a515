"""A web server with made-up figures for tests of the page alone: the live protocol from the outside, and every route.

It encodes frames by itself, so that the page is held to the protocol and not to the server's code. Tests take the
protocol apart with it: frames out of order, a slow page, services that go away. Starlette only; nothing of ADLRO.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.browser.made_up_cluster import Cluster

STATIC = Path(__file__).parents[2] / "services" / "web" / "static"
VERSION = "test"
TOKEN = "ada-0123456789abcdef0123456789abcdef"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def encode(header: dict[str, Any], body: bytes = b"", *, packed: bool = False) -> bytes:
    """A data frame."""
    text = json.dumps(header).encode()
    rest = struct.pack("<I", len(text)) + text + body
    return b"\x01" + gzip.compress(rest, mtime=0) if packed else b"\x00" + rest


class Tab:
    """One socket: its subscriptions and what it acknowledged."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.revs: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.asleep = False
        self.said: list[dict[str, Any]] = []

    async def snapshot(self, key: str, cluster: Cluster) -> None:
        data, body = cluster.topic(key)
        rev = self.revs.get(key, 0) + 1
        self.revs[key] = rev
        # Every second snapshot is compressed: the page must keep the order of both.
        header = {"key": key, "kind": "snapshot", "rev": rev, "data": data}
        await self.socket.send_bytes(encode(header, body, packed=rev % 2 == 1))

    async def delta(self, key: str, data: dict[str, Any], body: bytes = b"", *, base: int | None = None) -> None:
        before = self.revs[key]
        self.revs[key] = before + 1
        header = {
            "key": key,
            "kind": "delta",
            "rev": before + 1,
            "base": before if base is None else base,
            "data": data,
        }
        await self.socket.send_bytes(encode(header, body))


class FakePageServer:
    """The server and its levers. `cluster` may be changed by a test; `run` calls a coroutine in the server's loop."""

    def __init__(self, cluster: Cluster, *, login: bool = False) -> None:
        self.cluster = cluster
        self.login = login
        self.session: str | None = None
        self.tabs: list[Tab] = []
        self.actions: list[tuple[str, dict[str, Any]]] = []
        self.requests: dict[str, int] = defaultdict(int)
        self.failing: dict[str, tuple[int, str]] = {}  # paths that answer an error
        self.blamed: dict[str, str] = {}  # fields that such an error names
        self.slow_s: dict[str, float] = {}  # paths, actions and `subscribe` that answer late
        self.epoch = "e1"
        self.silent = False  # nothing is sent to a tab but what a test sends
        self.full = ""  # the words by which a new tab is sent away
        self.url = ""
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # --- life ---

    def start(self, port: int = 0) -> None:
        @asynccontextmanager
        async def life(_: Starlette) -> AsyncIterator[None]:
            self._loop = asyncio.get_running_loop()
            beat = asyncio.create_task(self._beat())
            yield
            beat.cancel()

        app = Starlette(
            routes=[
                WebSocketRoute("/live/v1", self._live),
                Route("/login", self._login, methods=["POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/api/actions/{name}", self._action, methods=["POST"]),
                Route("/api/{path:path}", self._api),
                Route("/static/{version}/{path:path}", self._static),
                Route("/reports/{name}", self._report),
                Route("/{path:path}", self._index),
            ],
            lifespan=life,
        )
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=1,
            ws_per_message_deflate=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self.run(self._close_sockets())
        self._server.should_exit = True
        self._thread.join(10)
        self._server = None
        self.tabs = []

    async def _close_sockets(self) -> None:
        for tab in self.tabs:
            await tab.socket.close(1012)

    def restart(self) -> None:
        """The same server on the same port, as after a kill."""
        port = int(self.url.rsplit(":", 1)[1])
        self.stop()
        self.start(port)

    def run(self, coroutine: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    # --- levers ---

    def push(self) -> None:
        """Snapshots of everything, to every tab."""

        async def all_of_it() -> None:
            for tab in self.tabs:
                for key in list(tab.revs):
                    if not tab.asleep:
                        await tab.snapshot(key, self.cluster)

        self.run(all_of_it())

    def say(self, **message: Any) -> None:
        """A control message to every tab."""

        async def to_all() -> None:
            for tab in self.tabs:
                await tab.socket.send_text(json.dumps(message))

        self.run(to_all())

    async def _beat(self) -> None:
        """The wall's clock in `head`, as the protocol promises."""
        while True:
            await asyncio.sleep(1)
            for tab in list(self.tabs):
                if "head" in tab.revs and not tab.asleep and not self.silent:
                    await tab.delta("head", {"wall_unix_s": time.time()})

    # --- routes ---

    def _known(self, request: Request | WebSocket) -> bool:
        return not self.login or (self.session is not None and request.cookies.get("adlro") == self.session)

    async def _index(self, request: Request) -> Response:
        text = (STATIC / "index.html").read_text().replace("__VERSION__", VERSION)
        headers = {"content-security-policy": POLICY, "cross-origin-opener-policy": "same-origin"}
        return Response(text, media_type="text/html", headers=headers | {"referrer-policy": "no-referrer"})

    async def _static(self, request: Request) -> Response:
        path = STATIC / request.path_params["path"]
        if not path.is_file() or STATIC not in path.resolve().parents:
            return Response(status_code=404)
        return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers={"cache-control": "no-cache"})

    async def _report(self, request: Request) -> Response:
        name = request.path_params["name"]
        policy = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
        text = f"<!doctype html><html lang=en><title>{name}</title><h1>Report {name}</h1></html>"
        return Response(text, media_type="text/html", headers={"content-security-policy": policy})

    async def _login(self, request: Request) -> Response:
        if (await request.json()).get("token") != TOKEN:
            return JSONResponse({"error": "this token is not known", "code": "UNAUTHENTICATED"}, 401)
        self.session = "session-1"
        answer = Response(status_code=204)
        answer.set_cookie("adlro", self.session, httponly=True, samesite="strict")
        return answer

    async def _logout(self, request: Request) -> Response:
        if "logout" in self.failing:
            status, text = self.failing["logout"]
            return JSONResponse({"error": text}, status)
        self.session = None
        await self._close_sockets()
        return Response(status_code=204)

    async def _action(self, request: Request) -> Response:
        if request.headers.get("x-adlro") != "1":
            return JSONResponse({"error": "the header X-ADLRO is missing"}, 403)
        name, content = request.path_params["name"], await request.json()
        await asyncio.sleep(self.slow_s.get(name, 0))
        if name in self.failing:
            status, text = self.failing[name]
            return JSONResponse({"error": text, "field": self.blamed.get(name, "")}, status)
        self.actions.append((name, content))
        if name in ("submit", "requeue"):
            array = {"array_id": "array-9001"} if "array" in content else {}
            return JSONResponse({"job_id": "job-9001"} | array)
        return JSONResponse({})

    async def _api(self, request: Request) -> Response:
        path = request.path_params["path"]
        self.requests[path] += 1
        await asyncio.sleep(self.slow_s.get(path, 0))
        if not self._known(request):
            return JSONResponse({"error": "log in", "code": "UNAUTHENTICATED"}, 401)
        if path in self.failing:
            status, text = self.failing[path]
            return JSONResponse({"error": text}, status)
        if path == "me":
            return JSONResponse(self.cluster.me(users_known=self.login))
        answer = self.cluster.answer(path, {name: values[0] for name, values in parse_qs(request.url.query).items()})
        if answer is None:
            return JSONResponse({"error": f"there is nothing at {path}", "code": "NOT_FOUND"}, 404)
        return JSONResponse(answer)

    async def _live(self, socket: WebSocket) -> None:
        if not self._known(socket):
            await socket.close(1008)
            return
        await socket.accept()
        if self.full:
            await socket.send_text(json.dumps({"op": "bye", "reason": "limit", "text": self.full}))
            await socket.close(1013)
            return
        tab = Tab(socket)
        self.tabs.append(tab)
        try:
            hello = {
                "op": "hello",
                "epoch": self.epoch,
                "user": "ada",
                "roles": ["operator"],
                "tick_s": 0.5,
                "limits": {},
            }
            await socket.send_text(json.dumps(hello))
            await socket.send_text(json.dumps({"op": "sources"} | self.cluster.sources))
            while True:
                await self._take(tab, await socket.receive_json())
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            if tab in self.tabs:
                self.tabs.remove(tab)

    async def _take(self, tab: Tab, message: dict[str, Any]) -> None:
        tab.said.append(message)
        match message["op"]:
            case "subscribe":
                await asyncio.sleep(self.slow_s.get("subscribe", 0.0))
                try:
                    if not self.silent:
                        await tab.snapshot(message["key"], self.cluster)
                except KeyError as error:
                    refused = {"op": "refused", "key": message["key"], "error": str(error.args[0])}
                    await tab.socket.send_text(json.dumps(refused))
            case "unsubscribe":
                tab.revs.pop(message["key"], None)
            case "ack":
                tab.acked[message["key"]] = message["rev"]
            case "sleep":
                tab.asleep = True
            case "wake":
                tab.asleep = False
                if self.silent:
                    return
                for key in list(tab.revs):
                    await tab.snapshot(key, self.cluster)


@contextmanager
def fake_page_server(cluster: Cluster | None = None, *, login: bool = False) -> Iterator[FakePageServer]:
    """The server, running on an ephemeral port of loopback."""
    server = FakePageServer(cluster or Cluster(), login=login)
    server.start()
    try:
        yield server
    finally:
        server.stop()
