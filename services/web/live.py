"""One WebSocket for each open page: its messages to the hub, and the hub's to it; and the clock of all of them.

What a page sends is limited in size, number and rate. What it does not read is bounded by acknowledgements, and by a
sender that takes nothing more before the last message has left.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from adlro.services.web import frames
from adlro.services.web.feeds import Feeds
from adlro.services.web.hub import Hub, Message, Tab, hello
from adlro.services.web.sessions import Session, Sessions
from adlro.services.web.viewers import Viewer

TICK_S: Final = 0.5
MAX_MESSAGE_BYTES: Final = 64 * 1024
_LONGEST_TEXT: Final = 4096
# A page with sixteen topics acknowledges 32 frames a second.
_RATE: Final = 100.0
_BURST: Final = 400.0
# A new filter of ten thousand jobs costs milliseconds.
_SUBSCRIPTION: Final = 5.0
_MOST_WAITING: Final = 64
_MOST_WRONG: Final = 20
_LAST_WORDS_S: Final = 1.0
# RFC 6455: going away, policy violation, try again later.
_GOING_AWAY, _POLICY, _TRY_LATER = 1001, 1008, 1013
_CODES: Final = {"drain": _GOING_AWAY, "limit": _TRY_LATER, "role": _POLICY, "logout": _POLICY}


class _Connection:
    """A page's socket, and what waits to be sent."""

    def __init__(self, websocket: WebSocket, tab: Tab, session: Session | None) -> None:
        self.tab = tab
        self.session = session
        self.ended = asyncio.Event()
        self.closed = asyncio.Event()
        self._websocket = websocket
        self._waiting: deque[Message] = deque()
        self._more = asyncio.Event()
        self._sending = False
        self._allowed = _BURST
        self._counted_s = time.monotonic()
        self._wrong = 0
        self._code = _GOING_AWAY

    @property
    def busy(self) -> bool:
        """Whether something has not left yet."""
        return self._sending or bool(self._waiting)

    def put(self, messages: list[Message]) -> None:
        """Sends messages, in order; a page that reads none of many is let go."""
        if self.ended.is_set():
            return
        self._waiting.extend(messages)
        self._more.set()
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.clear()
            self.say_bye("limit", "this page does not read what it asks for")

    def say_bye(self, reason: str, text: str) -> None:
        """Ends the connection, with a reason."""
        if not self.ended.is_set():
            self._code = _CODES[reason]
            self._waiting.append(frames.control("bye", reason=reason, text=text))
            self._more.set()
            self.ended.set()

    async def send(self) -> None:
        """Sends what waits, until the connection ends."""
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            while not self.ended.is_set() or self._waiting:
                await self._more.wait()
                self._more.clear()
                while self._waiting:
                    message = self._waiting.popleft()
                    self._sending = True
                    if isinstance(message, str):
                        await self._websocket.send_text(message)
                    else:
                        await self._websocket.send_bytes(message)
                    self._sending = False
        self.ended.set()

    async def close(self) -> None:
        """Closes the socket, if it is open still; a page that does not read is not waited for."""
        if self._websocket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._websocket.close(self._code)

    def count(self, cost: float = 1.0) -> bool:
        """Counts a message; False: the page sends too many."""
        now_s = time.monotonic()
        self._allowed = min(self._allowed + (now_s - self._counted_s) * _RATE, _BURST) - cost
        self._counted_s = now_s
        return self._allowed >= 0.0

    def count_wrong(self) -> bool:
        """Counts a message that makes no sense; False: there were too many."""
        self._wrong += 1
        return self._wrong <= _MOST_WRONG


class LiveSockets:
    """The open pages.

    Args:
        hub: what they follow.
        feeds: where that comes from.
        sessions: the logins.
        epoch: a name of this process, by which a page notices that another one answers.
        limits: the most sockets, and the most of one user, over all of his logins.
        log: for what goes wrong.
    """

    def __init__(
        self,
        hub: Hub,
        feeds: Feeds,
        sessions: Sessions,
        epoch: str,
        limits: tuple[int, int],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._hub = hub
        self._feeds = feeds
        self._sessions = sessions
        self._epoch = epoch
        self._limits = limits
        self._log = log
        self._connections: dict[Tab, _Connection] = {}
        self._told_sources = -1

    def __len__(self) -> int:
        return len(self._connections)

    async def serve(self, websocket: WebSocket, viewer: Viewer, session: Session | None) -> None:
        """One page's connection, from its handshake to its end."""
        await websocket.accept()
        if words := self._full(session):
            with suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await websocket.send_text(frames.control("bye", reason="limit", text=words))
                    await websocket.close(_TRY_LATER)
            return
        tab = self._hub.open(viewer)
        connection = self._connections[tab] = _Connection(websocket, tab, session)
        if session is not None:
            session.sockets += 1
        self._want()
        connection.put([hello(self._epoch, viewer, TICK_S), self._sources()])
        sender = asyncio.create_task(connection.send(), name="socket sender")
        reader = asyncio.create_task(self._read(websocket, connection), name="socket reader")
        over = asyncio.create_task(connection.ended.wait(), name="socket end")
        try:
            await asyncio.wait([sender, reader, over], return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() or connection.ended.is_set():
                await asyncio.wait([sender], timeout=_LAST_WORDS_S)
                await connection.close()
        finally:
            self._connections.pop(tab, None)
            connection.closed.set()
            self._hub.close(tab)
            if session is not None:
                session.sockets -= 1
            for task in (sender, reader, over):
                task.cancel()
            found = await asyncio.gather(sender, reader, over, return_exceptions=True)
            for error in found:
                if isinstance(error, Exception) and not isinstance(error, WebSocketDisconnect):
                    self._log.error("a page's connection failed", exc_info=error)

    async def run(self) -> None:
        """Sends what has changed, twice a second, for ever."""
        while True:
            began_s = time.monotonic()
            self.tick()
            await asyncio.sleep(max(TICK_S - (time.monotonic() - began_s), 0.05))

    def tick(self) -> None:
        """One round: logins that are over, streams that are needed, what is to be sent."""
        for session, reason in self._sessions.sweep():
            self.end_session(session, reason)
        self._want()
        # What a page has not read yet; not what follows now.
        busy = {tab for tab, connection in self._connections.items() if connection.busy}
        if self._told_sources != self._feeds.sources_version:
            self._told_sources = self._feeds.sources_version
            message = self._sources()
            for connection in self._connections.values():
                if not connection.tab.asleep:
                    connection.put([message])
        for tab, messages in self._hub.tick(time.time(), busy.__contains__):
            self._connections[tab].put(messages)

    def end_session(self, session: Session, reason: str) -> None:
        """Ends the connections of a login."""
        text = "your roles have changed; log in again" if reason == "role" else "you are logged out"
        for connection in list(self._connections.values()):
            if connection.session is session:
                connection.say_bye(reason, text)

    async def drain(self) -> None:
        """Says goodbye to every page."""
        for connection in list(self._connections.values()):
            connection.say_bye("drain", "the page's service restarts")
        ending = [each.closed.wait() for each in self._connections.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.gather(*ending)

    def _full(self, session: Session | None) -> str:
        most, most_of_user = self._limits
        if len(self._connections) >= most:
            return f"{most} pages are open, which is the most; close one, or try again later"
        if session is not None and self._count_of(session.viewer.user) >= most_of_user:
            return f"{session.viewer.user} has {most_of_user} pages open, which is the most; close one"
        return ""

    def _count_of(self, user: str) -> int:
        return sum(1 for each in self._connections.values() if each.tab.viewer.user == user)

    def _want(self) -> None:
        """Opens the streams that the pages need now."""
        awake = any(not tab.asleep for tab in self._connections)
        followed = self._hub.followed() | ({"head"} if awake else frozenset())
        self._feeds.want(followed, self._hub.followed_ids("job"), self._hub.followed_ids("gpu"))

    def _sources(self) -> str:
        return frames.control("sources", **self._feeds.sources_document())

    async def _read(self, websocket: WebSocket, connection: _Connection) -> None:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if not connection.count():
                connection.say_bye("limit", "this page sends too many messages")
                return
            wrong = self._take(connection, message.get("text"))
            if wrong:
                if not connection.count_wrong():
                    connection.say_bye("limit", "this page sends what the live stream does not know")
                    return
                connection.put([frames.control("refused", key="", error=wrong)])

    def _take(self, connection: _Connection, text: str | None) -> str:
        """One message of a page; the answer says what is wrong with it."""
        if text is None or len(text) > _LONGEST_TEXT:
            return f"a message is a text of at most {_LONGEST_TEXT} characters"
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            return "a message is a JSON object"
        if not isinstance(given, Mapping):
            return "a message is a JSON object"
        op, key = given.get("op"), given.get("key")
        tab, now = connection.tab, time.time()
        if op in ("sleep", "wake"):
            self._rest(connection, asleep=op == "sleep")
            return ""
        if not isinstance(key, str):
            return "a message has an op, and a key: subscribe, unsubscribe, ack, sleep or wake"
        if op == "subscribe":
            if not connection.count(_SUBSCRIPTION):
                connection.say_bye("limit", "this page sends too many messages")
                return ""
            self._used(connection)
            connection.put(self._hub.subscribe(tab, key, now))
            self._want()
        elif op == "unsubscribe":
            self._hub.unsubscribe(tab, key)
        elif op == "ack" and _whole(given.get("rev")):
            self._hub.acknowledge(tab, key, given["rev"])
        else:
            return "op is one of subscribe, unsubscribe, ack (with a rev), sleep and wake"
        return ""

    def _rest(self, connection: _Connection, *, asleep: bool) -> None:
        if asleep:
            self._hub.sleep(connection.tab)
        elif connection.tab.asleep:
            self._used(connection)
            self._want()
            connection.put([self._sources(), *self._hub.wake(connection.tab, time.time())])

    def _used(self, connection: _Connection) -> None:
        """Somebody looks: the login is in use."""
        if connection.session is not None:
            self._sessions.find(connection.session.session_id)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
