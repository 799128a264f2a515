"""Logins: their ends, their limits, and what becomes of a role that is taken away."""

from __future__ import annotations

import pytest

from adlro.errors import LimitExceeded
from adlro.kit.identity import Caller, Role
from adlro.services.web.sessions import TRIES, Sessions
from tests.unit.web.world import ANN


class World:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.callers = {"token of ann": Caller("ann", frozenset({Role.SUBMITTER}))}
        self.sessions = Sessions(self.callers.get, idle_s=3600.0, limit_s=43_200.0, now_s=lambda: self.now_s)


@pytest.fixture
def world() -> World:
    return World()


def test_a_token_becomes_an_id_that_says_nothing(world):
    session = world.sessions.begin("token of ann")
    assert session is not None
    assert session.viewer == ANN
    assert world.sessions.find(session.session_id) is session
    assert len(session.session_id) >= 43
    assert "token" not in repr(session)
    assert session.session_id not in repr(session)
    assert world.sessions.begin("another") is None
    assert world.sessions.find("") is None


def test_a_login_ends_after_an_hour_without_a_request_and_after_half_a_day_in_any_case(world):
    session = world.sessions.begin("token of ann")
    for _ in range(22):
        world.now_s += 1900.0
        assert world.sessions.find(session.session_id) is session
    world.now_s += 1900.0
    assert world.sessions.find(session.session_id) is None
    assert world.sessions.sweep() == [(session, "logout")]
    idle = world.sessions.begin("token of ann")
    world.now_s += 3599.0
    assert world.sessions.find(idle.session_id, use=False) is idle
    world.now_s += 1.0
    assert world.sessions.find(idle.session_id) is None


@pytest.mark.parametrize("now", [None, Caller("ann", frozenset({Role.READER}))])
def test_a_role_that_is_taken_away_ends_the_login(world, now):
    session = world.sessions.begin("token of ann")
    assert world.sessions.sweep() == []
    if now is None:
        world.callers.clear()
    else:
        world.callers["token of ann"] = now
    assert world.sessions.find(session.session_id) is None
    assert world.sessions.sweep() == [(session, "role")]
    assert len(world.sessions) == 0


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


def test_tries_of_many_addresses_do_not_fill_memory(world):
    for number in range(12_000):
        world.sessions.count_try(str(number))
    assert len(world.sessions._tries) == 10_000


def test_a_logout_ends_only_that_login(world):
    one, two = world.sessions.begin("token of ann"), world.sessions.begin("token of ann")
    world.sessions.end(one)
    assert world.sessions.find(one.session_id) is None
    assert world.sessions.find(two.session_id) is two
