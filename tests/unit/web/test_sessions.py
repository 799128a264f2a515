"""Logins: their ends, their limits, and what becomes of a role that is taken away."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from adlro.client import AsyncClient, Credentials, Endpoints
from adlro.errors import AdlroError, Conflict, LimitExceeded, PermissionDenied, Unauthenticated, Unavailable
from adlro.kit.identity import Caller, Role
from adlro.records.identity import Identity
from adlro.services.web.api import UserClients
from adlro.services.web.logins import Logins
from adlro.services.web.sessions import TRIES, Session, Sessions
from tests.unit.web.world import ANN

ANN_CALLER = Caller("ann", frozenset({Role.SUBMITTER}))


class World:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.sessions = Sessions(idle_s=3600.0, limit_s=43_200.0, now_s=lambda: self.now_s)
        self.told: Identity | AdlroError = Identity("ann", (Role.SUBMITTER,), tokens_needed=True)
        self.asked: list[str] = []
        self.logins = Logins(self.sessions, cast(UserClients, Clients(self)), lambda: self.now_s)

    def begin(self) -> Session:
        """A login of ann's."""
        return self.sessions.begin(ANN_CALLER, "token of ann")


class Clients:
    """Clients of an ingest that says what the test lets it."""

    def __init__(self, world: World, token: str = "") -> None:
        self._world = world
        self._token = token

    def with_token(self, token: str) -> Clients:
        return Clients(self._world, token)

    def of(self, session: Session) -> Clients:
        return Clients(self._world, session.token)

    async def close(self) -> None:
        pass

    async def whoami(self) -> Identity:
        self._world.asked.append(self._token)
        if isinstance(self._world.told, AdlroError):
            raise self._world.told
        return self._world.told


@pytest.fixture
def world() -> World:
    return World()


def test_a_token_becomes_an_id_that_says_nothing(world):
    session = world.begin()
    assert session is not None
    assert session.viewer == ANN
    assert world.sessions.find(session.session_id) is session
    assert len(session.session_id) >= 43
    assert "token" not in repr(session)
    assert session.session_id not in repr(session)
    assert world.sessions.find("") is None


def test_a_login_ends_after_an_hour_without_a_request_and_after_half_a_day_in_any_case(world):
    session = world.begin()
    for _ in range(22):
        world.now_s += 1900.0
        assert world.sessions.find(session.session_id) is session
    world.now_s += 1900.0
    assert world.sessions.find(session.session_id) is None
    assert world.sessions.sweep() == [(session, "logout")]
    idle = world.begin()
    world.now_s += 3599.0
    assert world.sessions.sweep() == []
    world.now_s += 1.0
    assert world.sessions.find(idle.session_id) is None


@pytest.mark.parametrize("now", [None, Caller("ann", frozenset({Role.READER}))])
def test_a_role_that_is_taken_away_ends_the_login(world, now):
    session = world.begin()
    world.sessions.judge(session, ANN_CALLER)
    assert world.sessions.sweep() == []
    world.sessions.judge(session, now)
    assert world.sessions.find(session.session_id) is None
    # A role that is given back does not bring the login back.
    world.sessions.judge(session, ANN_CALLER)
    assert world.sessions.sweep() == [(session, "role")]
    assert len(world.sessions) == 0


async def test_a_login_is_whom_ingest_says(world):
    session = await world.logins.begin("ann." + "x" * 43)
    assert session is not None
    assert session.viewer == ANN
    for nobody in (Unauthenticated("no such token"), PermissionDenied("no role")):
        world.told = nobody
        assert await world.logins.begin("ann." + "y" * 43) is None
    world.told = Unavailable("ingest is away")
    with pytest.raises(Unavailable):
        await world.logins.begin("ann." + "x" * 43)
    # Services without users take any token: it says nothing of who it is.
    world.told = Identity("", tuple(Role), tokens_needed=False)
    with pytest.raises(Conflict, match="know no users"):
        await world.logins.begin("ann." + "x" * 43)


@pytest.mark.parametrize("token", ["", "a b", "ann.\n", "é", "x" * 257])
async def test_what_is_no_token_is_sent_nowhere(world, token):
    assert await world.logins.begin(token) is None
    assert world.asked == []


async def test_a_login_of_which_ingest_says_nothing_for_five_minutes_ends(world):
    session = world.begin()
    world.told = Unavailable("ingest is away")
    for _ in range(27):
        world.now_s += 11.0
        assert await world.logins.find(session.session_id) is session
    # Each request waits for an answer that does not come: not every one asks.
    world.now_s += 5.0
    asked = len(world.asked)
    assert await world.logins.find(session.session_id) is session
    assert len(world.asked) == asked
    world.now_s += 11.0
    assert await world.logins.find(session.session_id) is None
    assert world.sessions.sweep() == [(session, "role")]


async def test_an_outage_that_ended_does_not_count_for_the_next_one(world):
    session = world.begin()
    away, back = Unavailable("ingest is away"), world.told
    for world.told in (away, back) * 20:
        world.now_s += 200.0
        assert await world.logins.find(session.session_id) is session


async def test_a_client_that_is_slow_to_close_delays_no_judgement():
    class Slow:
        async def close(self) -> None:
            await asyncio.Event().wait()

    clients = UserClients(Endpoints(*["127.0.0.1:1"] * 4), Credentials())
    clients._clients["a login that has ended"] = cast(AsyncClient, Slow())
    clients.close_others({})
    assert clients._clients == {}
    for task in clients._closing:
        task.cancel()


async def test_ingest_is_asked_again_and_its_absence_ends_no_login(world):
    session = world.begin()
    assert await world.logins.find(session.session_id) is session
    assert world.asked == []
    world.told = Unavailable("ingest is away")
    world.now_s += 2.0
    assert await world.logins.find(session.session_id) is session
    assert world.asked == ["token of ann"]
    world.told = Unauthenticated("the line was removed")
    assert await world.logins.find(session.session_id) is session  # asked a moment ago
    world.now_s += 11.0
    assert await world.logins.find(session.session_id) is None


def test_five_tries_a_minute_from_an_address(world):
    for _ in range(TRIES):
        world.sessions.count_try("10.0.0.1")
        world.now_s += 2.0
    with pytest.raises(LimitExceeded, match="try again in 50 s") as refused:
        world.sessions.count_try("10.0.0.1")
    assert refused.value.retry_after_s == 50.0
    world.sessions.count_try("10.0.0.2")
    world.now_s += 50.0
    world.sessions.count_try("10.0.0.1")


def test_a_try_that_was_right_or_was_never_judged_does_not_count(world):
    # Many people may come from one address: through a proxy, or a tunnel.
    for _ in range(3 * TRIES):
        world.sessions.count_try("10.0.0.1")
        world.sessions.forgive_try("10.0.0.1")
    for _ in range(TRIES):
        world.sessions.count_try("10.0.0.1")
    with pytest.raises(LimitExceeded):
        world.sessions.count_try("10.0.0.1")
    world.sessions.forgive_try("10.0.0.9")


def test_tries_of_many_addresses_do_not_fill_memory(world):
    for number in range(12_000):
        world.sessions.count_try(str(number))
    assert len(world.sessions._tries) == 10_000


def test_a_logout_ends_only_that_login(world):
    one, two = world.begin(), world.begin()
    world.sessions.end(one)
    assert world.sessions.find(one.session_id) is None
    assert world.sessions.find(two.session_id) is two
