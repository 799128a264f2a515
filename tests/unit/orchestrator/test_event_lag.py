"""How far a session is behind its cluster, and that it catches up: events that have come are applied together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adlro.records.events import Clock, ClockMode, ClusterEvent, EventBatch, EventKind
from adlro.records.status import EventLag
from adlro.services.orchestrator.session.core import inputs
from adlro.services.orchestrator.session.core.effects import Effects
from adlro.services.orchestrator.session.event_lag import EVENTS_AT_ONCE, KnownEvents
from adlro.services.orchestrator.session.session import Session


def batch(first: int, last: int, mode: ClockMode = ClockMode.SCALED, newest: int = 0) -> EventBatch:
    events = tuple(ClusterEvent(revision, EventKind.WAKE_UP, float(revision)) for revision in range(first, last + 1))
    return EventBatch("i", events, Clock(mode, 1.0, False, float(last)), newest)


def test_the_lag_counts_what_came_and_is_not_applied_since_the_oldest_of_it() -> None:
    known = KnownEvents(5, 5, 100.0)
    assert known.lag(5, 100.0) == EventLag(0, 0.0, 5)
    known.heard(batch(6, 8), 5, 101.0)
    known.heard(batch(9, 9), 5, 103.0)
    assert known.lag(5, 104.0) == EventLag(4, 3.0, 9)
    assert known.lag(7, 104.0) == EventLag(2, 3.0, 9), "8 came together with 6"
    assert known.lag(8, 104.0) == EventLag(1, 1.0, 9)
    assert known.lag(9, 105.0) == EventLag(0, 0.0, 9)


def test_what_the_cluster_tells_of_counts_before_it_comes() -> None:
    known = KnownEvents(0, 0, 0.0)
    known.heard(batch(1, 1, newest=50), 0, 1.0)
    assert known.lag(1, 3.0) == EventLag(49, 2.0, 50)
    known.heard(batch(2, 50, newest=50), 1, 4.0)
    assert known.lag(1, 5.0) == EventLag(49, 4.0, 50), "known since the first message"
    known.heard(batch(51, 51), 50, 6.0)  # a cluster that does not tell
    assert known.lag(50, 6.5) == EventLag(1, 0.5, 51)


def test_a_session_begins_behind_by_what_happened_before() -> None:
    assert KnownEvents(10, 25, 7.0).lag(10, 9.0) == EventLag(15, 2.0, 25)


class SlowCore:
    """A core that takes its time over each message, and notes them."""

    def __init__(self) -> None:
        self.applied = 0
        self.steps: list[tuple[int, int]] = []

    def step(self, given: inputs.Input, now: float) -> Effects:
        del now
        if isinstance(given, EventBatch):
            self.steps.append((given.events[0].revision, given.events[-1].revision))
            self.applied = given.events[-1].revision
        return Effects()


def session_of(core: SlowCore) -> Session:
    acting: Any = SimpleNamespace(policy=None, note_clock=lambda _: None)
    nobody: Any = None
    session = Session(acting, nobody, nobody, nobody, 1, 1, nobody)
    session._core = cast(Any, core)
    return session


async def applied(session: Session, core: SlowCore, up_to: int) -> list[tuple[int, int]]:
    act = asyncio.create_task(session._act())
    async with asyncio.timeout(30.0):
        while core.applied < up_to:  # noqa: ASYNC110 - the core knows no loop
            await asyncio.sleep(0)
    act.cancel()
    return core.steps


async def test_events_that_have_come_meanwhile_are_applied_together() -> None:
    core = SlowCore()
    session = session_of(core)
    session._put(batch(1, 1))
    session._put(batch(2, 3))
    session._inbox.put_nowait(inputs.StopAnswered(1, True))
    session._put(batch(4, 4))
    assert await applied(session, core, 4) == [(1, 4)]
    session._put(batch(5, 5))
    assert await applied(session, core, 5) == [(1, 4), (5, 5)]


async def test_so_many_are_applied_together_at_most() -> None:
    core = SlowCore()
    session = session_of(core)
    for first in range(1, 3 * EVENTS_AT_ONCE, EVENTS_AT_ONCE // 2):
        session._put(batch(first, first + EVENTS_AT_ONCE // 2 - 1))
    steps = await applied(session, core, 3 * EVENTS_AT_ONCE)
    assert steps == [(1, 1000), (1001, 2000), (2001, 3000)]


async def test_on_a_virtual_clock_each_moment_is_applied_by_itself() -> None:
    core = SlowCore()
    session = session_of(core)
    session._put(batch(1, 1))
    for revision in (2, 3):
        session._put(batch(revision, revision, ClockMode.VIRTUAL))
    session._put(batch(4, 4))
    assert await applied(session, core, 4) == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("mode", [ClockMode.SCALED, ClockMode.VIRTUAL])
def test_messages_keep_their_order_and_the_newest_clock(mode: ClockMode) -> None:
    from adlro.services.orchestrator.session.event_lag import Arriving

    arriving = Arriving(batch(1, 2, mode))
    assert arriving.take_up(batch(3, 4, mode, newest=9))
    together = arriving.together()
    assert [event.revision for event in together.events] == [1, 2, 3, 4]
    assert (together.clock.time_s, together.newest_revision) == (4.0, 9)
