"""The driver of a session by itself: whose turn it is on the event loop."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from adlro.services.orchestrator.session.core import inputs
from adlro.services.orchestrator.session.core.effects import Effects
from adlro.services.orchestrator.session.session import SLICE_S, Session


class Busy:
    """A core whose steps take their time and lead to nothing."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, given: inputs.Input, now: float) -> Effects:
        del given, now
        self.steps += 1
        ends = time.monotonic() + SLICE_S / 5
        while time.monotonic() < ends:
            pass
        return Effects()


async def test_others_have_their_turn_during_a_run_of_inputs_that_ask_for_nothing() -> None:
    acting: Any = SimpleNamespace(policy=None)
    nobody: Any = None
    session = Session(acting, nobody, nobody, nobody, 1, 1, nobody)
    core = Busy()
    session._core = cast(Any, core)
    for number in range(100):
        session._inbox.put_nowait(inputs.StopAnswered(number, True))
    act = asyncio.create_task(session._act())
    turns = 0
    while core.steps < 100:
        await asyncio.sleep(0)
        turns += 1
    act.cancel()
    assert turns >= 10
