"""The open pages, behind sockets that a test holds: pages that read nothing, and the most pages of a user."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest
import structlog
from starlette.websockets import WebSocket, WebSocketState

from adlro.kit.identity import Caller, Role
from adlro.services.web import live as module
from adlro.services.web.feeds import Feeds
from adlro.services.web.hub import Hub
from adlro.services.web.live import LiveSockets
from adlro.services.web.sessions import Session, Sessions
from tests.unit.web.world import job, known


class Silent:
    """A browser that sends nothing.

    Attributes:
        reads: it takes what is sent to it; otherwise nothing leaves, not even a close frame.
        got: the messages that it took.
    """

    application_state = WebSocketState.CONNECTED

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.got: list[dict[str, Any]] = []

    async def accept(self) -> None:
        pass

    async def receive(self) -> Mapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send_text(self, text: str) -> None:
        if not self.reads:
            await asyncio.Event().wait()
        self.got.append(json.loads(text))

    async def close(self, _code: int) -> None:
        if not self.reads:
            await asyncio.Event().wait()


class NoFeeds:
    """Streams that nobody opens."""

    sources_version = 0

    def want(self, *_: object) -> None:
        pass

    def sources_document(self) -> Mapping[str, Any]:
        return {}


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(3600.0, 3600.0, time.monotonic)


@pytest.fixture
def live(sessions: Sessions) -> LiveSockets:
    log = structlog.get_logger()
    return LiveSockets(Hub(known(job(1))), cast(Feeds, NoFeeds()), sessions, "epoch", (200, 2), log)


def login(sessions: Sessions, user: str) -> Session:
    return sessions.begin(Caller(user, frozenset({Role.SUBMITTER})), f"token of {user}")


def serve(live: LiveSockets, browser: Silent, session: Session) -> asyncio.Task[None]:
    return asyncio.create_task(live.serve(cast(WebSocket, browser), session.viewer, session))


async def until(right: Any) -> None:
    async with asyncio.timeout(20.0):
        while not right():  # noqa: ASYNC110 - the sockets have no event for it
            await asyncio.sleep(0.005)


async def test_a_page_that_does_not_read_is_let_go(
    live: LiveSockets, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_S", 0.05)
    session = login(sessions, "ann")
    serving = serve(live, Silent(reads=False), session)
    await until(lambda: len(live) == 1)
    live.end_session(session, "logout")
    async with asyncio.timeout(20.0):
        await serving
    assert (len(live), session.sockets) == (0, 0)


async def test_the_pages_of_a_user_are_counted_over_all_his_logins(live: LiveSockets, sessions: Sessions) -> None:
    serving = []
    for user, known_words in (("ann", ""), ("ann", ""), ("bob", ""), ("ann", "ann has 2 pages open")):
        browser = Silent(reads=True)
        serving.append(serve(live, browser, login(sessions, user)))
        await until(lambda browser=browser: browser.got)
        assert known_words in browser.got[0].get("text", ""), user
        assert (browser.got[0]["op"] == "bye") == bool(known_words)
    assert len(live) == 3
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
