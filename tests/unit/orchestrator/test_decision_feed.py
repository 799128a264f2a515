"""Watchers of decisions: each message is made once for all of a view, nothing is made for nobody, gaps are told."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import structlog
from structlog.testing import capture_logs

from adlro.decide.policies.base import Judgement
from adlro.decide.policies.sjf import Sjf
from adlro.placement import NOWHERE
from adlro.records.cluster import Cluster
from adlro.records.decisions import DecisionView, ShadowDecision
from adlro.services.orchestrator.deciding import feed as feed_module
from adlro.services.orchestrator.deciding.decision_log import DecisionLog
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.feed import DecisionFeed, News, Watch
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.ledger.ledger import Ledger
from tests.ledgers import queue

FULL, SUMMARY = DecisionView.FULL, DecisionView.SUMMARY
WAIT_S = 30.0
PAUSE_S = 0.02


@pytest.fixture
def first(cluster: Cluster) -> Made:
    """A decision about the first of five GPUs."""
    ledger = Ledger(cluster)
    entry, observation = queue(ledger, 1, (1.0, 2.0, 3.0)), ledger.observe(5.0)
    judgement: Judgement = Sjf().judge(observation)
    return Made.now("d-1-1", entry, Sjf(), ledger, 5.0).placed((0,), judgement, observation, 0, 1, None, 9.0)


def numbered(first: Made, number: int) -> Made:
    return replace(first, decision_id=f"d-1-{number}")


class Encoder:
    """Counts what it makes, and in which threads."""

    def __init__(self) -> None:
        self.made: Counter[tuple[str, DecisionView]] = Counter()
        self.threads: set[int] = set()
        self.allowed = threading.Event()
        self.allowed.set()

    def __call__(self, made: Made, view: DecisionView) -> bytes:
        self.allowed.wait(WAIT_S)
        self.made[made.decision_id, view] += 1
        self.threads.add(threading.get_ident())
        if made.decision_id == "d-1-13":
            raise ValueError("unlucky")
        return f"{made.decision_id};".encode()


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
async def feed(encoder: Encoder) -> AsyncIterator[DecisionFeed]:
    worker = SideThread("tell decisions")
    made = DecisionFeed(encoder, worker, structlog.get_logger(), pause_s=PAUSE_S)
    yield made
    made.close()
    worker.close()


async def take(watch: Watch, count: int) -> tuple[list[str], int]:
    """The ids of so many decisions, and the number of missed ones."""
    ids: list[str] = []
    missed = 0
    async with asyncio.timeout(WAIT_S):
        while len(ids) < count:
            news = await watch.news(WAIT_S)
            assert news is not None
            ids += b"".join(news.messages).decode().split(";")[:-1]
            missed += news.missed
    return ids, missed


@pytest.mark.parametrize("view", [FULL, SUMMARY])
async def test_each_decision_is_made_once_for_fifty_watchers(
    view: DecisionView, feed: DecisionFeed, encoder: Encoder, first: Made
) -> None:
    wanted = [f"d-1-{number}" for number in range(14, 44)]

    async def watcher() -> list[str]:
        with feed.watch(view) as watch:
            ready.release()
            ids, missed = await take(watch, len(wanted))
            assert missed == 0
            return ids

    ready = asyncio.Semaphore(0)
    watchers = [asyncio.create_task(watcher()) for _ in range(50)]
    for _ in watchers:
        await ready.acquire()
    assert feed.watcher_count == 50
    for number in range(14, 44):
        feed.tell(numbered(first, number))
        await asyncio.sleep(0)
    assert await asyncio.gather(*watchers) == [wanted] * 50
    assert encoder.made == Counter({(each, view): 1 for each in wanted})
    assert threading.get_ident() not in encoder.threads
    assert feed.watcher_count == 0


async def test_nothing_is_made_while_nobody_watches(feed: DecisionFeed, encoder: Encoder, first: Made) -> None:
    for number in range(1, 6):
        feed.tell(numbered(first, number))
    await asyncio.sleep(0.05)
    assert not encoder.made
    with feed.watch(SUMMARY) as watch:  # only later ones
        feed.tell(numbered(first, 6))
        assert await take(watch, 1) == (["d-1-6"], 0)
    assert encoder.made == Counter({("d-1-6", SUMMARY): 1})


async def test_summaries_come_several_at_a_time_and_full_ones_alone(feed: DecisionFeed, first: Made) -> None:
    with feed.watch(SUMMARY) as brief, feed.watch(FULL) as whole:
        for number in range(1, 8):
            feed.tell(numbered(first, number))
        news = await brief.news(WAIT_S)
        assert isinstance(news, News)
        assert len(news.messages) == 7
        for _ in range(7):
            news = await whole.news(WAIT_S)
            assert news is not None
            assert len(news.messages) == 1


@pytest.mark.parametrize("view", [FULL, SUMMARY])
async def test_a_watcher_that_is_too_slow_is_told_how_many_it_missed(
    view: DecisionView, feed: DecisionFeed, first: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "BYTES_HELD", 40)
    with feed.watch(view) as slow, feed.watch(view) as quick:
        for number in range(21, 41):
            feed.tell(numbered(first, number))
            assert (await take(quick, 1))[0] == [f"d-1-{number}"]
        ids, missed = await take(slow, 5)
        assert (ids, missed) == ([f"d-1-{number}" for number in range(36, 41)], 15)


async def test_a_decision_that_can_t_be_made_counts_as_missed(feed: DecisionFeed, first: Made) -> None:
    with capture_logs() as logs, feed.watch(SUMMARY) as watch:
        for number in (12, 13, 14):
            feed.tell(numbered(first, number))
        assert await take(watch, 2) == (["d-1-12", "d-1-14"], 1)
    assert [line["decision"] for line in logs] == ["d-1-13"]


async def test_the_deciding_loop_waits_for_no_message(feed: DecisionFeed, encoder: Encoder, first: Made) -> None:
    encoder.allowed.clear()
    with feed.watch(FULL) as watch:
        for number in range(1, 4):
            feed.tell(numbered(first, number))
        assert await watch.news(0.05) is None
        encoder.allowed.set()
        assert (await take(watch, 3))[0] == ["d-1-1", "d-1-2", "d-1-3"]


async def test_watches_end_with_the_service(feed: DecisionFeed) -> None:
    with feed.watch(SUMMARY) as watch:
        waits = asyncio.create_task(watch.news(WAIT_S))
        await asyncio.sleep(0)
        feed.close()
        assert await waits is None
        assert watch.closed


def test_the_past_of_a_log_is_what_was_told_in_order(first: Made) -> None:
    log = DecisionLog(10)
    told: list[Made] = []
    log.listen(told.append)
    for number in range(1, 6):
        log.add(numbered(first, number))
    shadow = ShadowDecision("fcfs", "", NOWHERE, False)
    for number in range(1, 4):
        log.tell(numbered(first, number), shadow if number == 2 else None)
    assert [each.decision_id for each in log.last(2)] == ["d-1-2", "d-1-3"]
    assert (
        [each.decision_id for each in log.last(99)]
        == ["d-1-1", "d-1-2", "d-1-3"]
        == [each.decision_id for each in told]
    )
    assert [each.shadow for each in told] == [None, shadow, None]
    found = log.find("d-1-2")
    assert found is not None
    assert found.shadow == shadow
    assert log.last(0) == []
