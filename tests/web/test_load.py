"""The curves of the first screen, by the page: each user's are those that ingest would show him."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from adlro.client import Job, JobState
from adlro.kit.redis import connect
from adlro.records.history import AttemptBars
from tests.unit.ingest.queue_for_tests import Queue
from tests.web.page_suite import World, page_here

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with page_here(redis_url, tmp_path) as made:
        yield made


def waits_at(each: Job, time_s: float, now_s: float) -> bool:
    """By all of a job's record."""
    submit_s = now_s if each.submit_s is None else each.submit_s
    end_s = each.end_s if each.state.final and each.end_s is not None else math.inf
    runs = any(
        ran.start_s is not None and ran.start_s <= time_s < (math.inf if ran.end_s is None else ran.end_s)
        for ran in each.attempts
    )
    known = each.submit_s is not None or not each.state.final
    return known and submit_s <= time_s < end_s and not runs


def taken_at(bars: AttemptBars, time_s: float) -> int:
    """By the bars that ingest tells."""
    return len({bar.gpu_id for bar in bars if bar.start_s <= time_s < bar.end_s})


def at(curve: dict[str, Any], time_s: float) -> float:
    """What a curve of the page says of a moment."""
    return float(curve["count"][int(np.searchsorted(curve["time_s"], time_s, side="right")) - 1])


@pytest.mark.parametrize("seed", [5, 6, 7])
async def test_each_users_curves_are_what_ingest_would_show_him(
    world: World, redis_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(redis_url) as redis:
        queue = Queue(redis)
        await queue.fill(Random(seed), 60, 240)
    picture = world.running.parts.picture
    # Nobody describes a cluster here: all GPUs count.
    now_s = round(queue.now_s + 1.0, 3)
    monkeypatch.setattr(picture, "time_s", lambda _: now_s)
    shown: dict[str, Any] = {}
    for user in ("ann", "bob", "rea", "ops", "both"):
        browser = await world.logged_in(user)
        # The table of jobs is read while a page is open.
        async with browser.live("queue"):
            answer = await browser.get("/api/load?span_s=600")
        assert answer.status == 200, answer.body
        shown[user] = found = answer.json
        assert found["asked_s"] == found["from_s"] == max(now_s - 600.0, 0.0)
        async with world.client(user) as client:
            told = [each async for each in client.list()]
            history = await client.query_attempts(found["from_s"], now_s)
        assert history.bars is not None
        # Changes of one millisecond may be drawn at one place.
        for time_s in np.arange(found["from_s"] + 0.1, now_s, 1.3):
            assert at(found["waiting"], time_s) == sum(waits_at(each, time_s, now_s) for each in told), time_s
            assert at(found["allocated"], time_s) == taken_at(history.bars, time_s), time_s
        assert found["waiting"]["count"][-1] == sum(
            each.state is JobState.PENDING and (each.submit_s or 0) <= now_s for each in told
        )
    assert shown["ann"]["waiting"] != shown["rea"]["waiting"]
    assert shown["ann"]["allocated"] == shown["rea"]["allocated"]
    assert shown["both"] == shown["rea"] == shown["ops"]


async def test_what_is_asked_wrongly_is_named(world: World) -> None:
    browser = await world.logged_in("ann")
    early = await browser.get("/api/load")
    assert (early.status, early.json["code"]) == (503, "UNAVAILABLE")
    assert "still being read" in early.json["error"]
    async with browser.live("queue"):
        for wrong in ("0", "1e9", "nan", "x"):
            answer = await browser.get(f"/api/load?span_s={wrong}")
            assert (answer.status, answer.json["field"]) == (400, "span_s")
        # No cluster has said what time it is.
        assert (await browser.get("/api/load")).status == 503
