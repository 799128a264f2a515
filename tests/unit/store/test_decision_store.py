"""The streams of decisions: what is appended is listed, newest first, by filter and page, once, and up to a cap."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio as aioredis
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.kit.redis import connect
from adlro.placement import NOWHERE, Placement
from adlro.records.decisions import Candidate, Decision, DecisionBasis, DecisionFilter, ShadowDecision
from adlro.store import Unreadable
from adlro.store import decisions as module
from adlro.store.decisions import DecisionStore, StoredDecision, entry_id_of
from adlro.store.keys import DECISIONS, EXPLANATIONS
from adlro.v1 import orchestrator_service_pb2, stream_pb2


class Here:
    """Stands in for the thread."""

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


def decision(number: int, token: int = 1, **fields: Any) -> Decision:
    made = Decision(
        f"d-{token}-{number}",
        f"job-{number % 3}",
        Placement.on(f"volta-0/{number % 2}"),
        "sjf",
        10.0 * number,
        3,
        (),
        (),
        "sjf starts it",
        85.0,
        1,
        DecisionBasis.OVERDUE if number % 4 == 0 else DecisionBasis.POLICY,
        shadow=None if number % 5 else ShadowDecision("fcfs", "", NOWHERE, number % 2 == 0),
    )
    return replace(made, **fields)


def whole(summary: Decision) -> Decision:
    """With something that a summary lacks."""
    return replace(summary, candidates=(Candidate(summary.placement, "v100_sxm2", 5.0, -5.0),))


def entries(found: Sequence[Decision]) -> list[StoredDecision]:
    return [StoredDecision.of(each, whole(each)) for each in found]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[aioredis.Redis]:
    made = connect(redis_url)
    yield made
    await made.aclose()


@pytest.fixture
def unreadable() -> Unreadable:
    return Unreadable()


@pytest.fixture
def store(client: aioredis.Redis, unreadable: Unreadable) -> DecisionStore:
    return DecisionStore(client, Here(), 10_000, 1000, unreadable)


async def listed(
    store: DecisionStore, wanted: DecisionFilter | None = None, size: int = 7, *, full: bool = False
) -> list[Decision]:
    """All pages, each of which is no longer than asked for."""
    found: list[Decision] = []
    token = ""
    while True:
        page, token = await store.page(wanted or DecisionFilter(), size, token, full=full)
        assert len(page) <= size
        found += page
        if not token:
            return found


async def test_all_are_listed_newest_first_in_pages_of_any_size(store: DecisionStore) -> None:
    made = [decision(number) for number in range(1, 31)]
    assert await store.append(entries(made)) == 0
    for size in (1, 7, 15, 29, 30, 31, 1000):
        assert await listed(store, size=size) == made[::-1]
    assert await listed(store, full=True) == [whole(each) for each in made[::-1]]
    page, token = await store.page(DecisionFilter(), 30, "", full=False)
    assert (len(page), token) == (30, "")


async def test_an_empty_store_lists_nothing(store: DecisionStore) -> None:
    assert await store.page(DecisionFilter(job_id="job-1"), 0, "", full=True) == ([], "")
    assert await store.get("d-1-1") is None
    assert await store.newest_of_job("job-1") is None


times = st.one_of(st.none(), st.integers(0, 32).map(lambda number: 10.0 * number))
filters = st.builds(
    DecisionFilter,
    from_s=times,
    to_s=times,
    job_id=st.sampled_from(["", "job-0", "job-2", "job-9", "job-"]),
    gpu_id=st.sampled_from(["", "volta-0/1", "volta-0", "volta-1/0"]),
    basis=st.sampled_from([None, DecisionBasis.POLICY, DecisionBasis.OVERDUE, DecisionBasis.LATE]),
    differs_only=st.booleans(),
)


async def test_what_a_filter_selects_is_what_it_matches(store: DecisionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_LIMIT", 10)  # so that pages end early
    monkeypatch.setattr(module, "_READ_AT_ONCE", 4)
    made = [decision(number) for number in range(1, 31)]
    await store.append(entries(made))
    loop_filters: list[tuple[DecisionFilter, int]] = []

    @settings(max_examples=120, database=None)
    @given(wanted=filters, size=st.integers(1, 12))
    def draw(wanted: DecisionFilter, size: int) -> None:
        loop_filters.append((wanted, size))

    draw()
    for wanted, size in loop_filters:
        assert await listed(store, wanted, size) == [each for each in made[::-1] if wanted.matches(each)], wanted


async def test_pages_go_on_where_they_were_while_new_decisions_come(store: DecisionStore) -> None:
    await store.append(entries([decision(number) for number in range(1, 11)]))
    first, token = await store.page(DecisionFilter(), 4, "", full=False)
    await store.append(entries([decision(number) for number in range(11, 15)]))
    second, _ = await store.page(DecisionFilter(), 4, token, full=False)
    assert [each.decision_id for each in (*first, *second)] == [f"d-1-{number}" for number in range(10, 2, -1)]


async def test_a_token_belongs_to_its_filter(store: DecisionStore) -> None:
    await store.append(entries([decision(number) for number in range(1, 11)]))
    _, token = await store.page(DecisionFilter(from_s=0.0), 2, "", full=False)
    for wanted, wrong in ((DecisionFilter(), token), (DecisionFilter(from_s=0.0), "made-up")):
        with pytest.raises(InvalidInput, match="page_token"):
            await store.page(wanted, 2, wrong, full=False)


async def test_a_repeated_append_stores_nothing_twice(store: DecisionStore) -> None:
    made = [decision(number) for number in range(1, 6)]
    await store.append(entries(made[:3]))
    assert await store.append(entries(made)) == 3
    assert await listed(store) == made[::-1]


async def test_one_that_no_longer_acts_can_t_append_behind_the_one_that_does(store: DecisionStore) -> None:
    await store.append(entries([decision(1, token=3)]))
    await store.append(entries([decision(2, token=4)]))
    assert await store.append(entries([decision(2, token=3)])) == 1
    assert [each.decision_id for each in await listed(store)] == ["d-4-2", "d-3-1"]


async def test_numbers_are_ordered_as_numbers(store: DecisionStore) -> None:
    ids = ["d-2-9", "d-2-10", "d-9-1", "d-10-2"]
    made = [decision(1, decision_id=each) for each in ids]
    assert await store.append(entries(made)) == 0
    assert [each.decision_id for each in await listed(store, size=1)] == ids[::-1]


async def test_no_more_than_so_many_are_kept_and_of_the_newest_all(client: aioredis.Redis) -> None:
    store = DecisionStore(client, Here(), 400, 100, Unreadable())
    made = [decision(number) for number in range(1, 3001)]
    for start in range(0, len(made), 100):
        await store.append(entries(made[start : start + 100]))
    count, explained = await client.xlen(DECISIONS), await client.xlen(EXPLANATIONS)
    assert 400 <= count < 600  # Redis trims whole nodes
    assert 100 <= explained < 300
    assert await listed(store, size=100) == made[::-1][:count]
    found = await listed(store, size=100, full=True)
    assert [bool(each.candidates) for each in found] == [True] * explained + [False] * (count - explained)
    assert await store.get("d-1-1") is None
    assert await store.get("d-1-3000") == whole(made[-1])
    older = made[-(explained + 1)]
    assert await store.get(older.decision_id) == older  # its summary


async def test_a_page_is_no_larger_than_clients_take(store: DecisionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 1000)
    made = [decision(number, summary="x" * 300) for number in range(1, 12)]
    await store.append(entries(made))
    for full in (False, True):
        page, token = await store.page(DecisionFilter(), 10, "", full=full)
        assert 1 <= len(page) <= 2
        assert token
    assert await listed(store, full=True) == [whole(each) for each in made[::-1]]


async def test_a_job_s_newest_decision_is_found_with_all_that_is_kept(store: DecisionStore) -> None:
    made = [decision(number) for number in range(1, 8)]
    await store.append(entries(made))
    assert await store.newest_of_job("job-1") == whole(made[6])
    assert await store.newest_of_job("job-11") is None


async def test_a_job_s_newest_decision_is_looked_for_among_the_newest_alone(
    store: DecisionStore, client: aioredis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that looks is the one that decides; the list goes on to the last, a page at a time."""
    monkeypatch.setattr(module, "_READ_AT_ONCE", 5)
    monkeypatch.setattr(module, "SCAN_LIMIT", 10)
    monkeypatch.setattr(module, "SEARCHED", 20)
    made = [replace(decision(number), job_id=f"job-{1000 + number}") for number in range(1, 61)]
    await store.append(entries(made))
    assert await store.newest_of_job("job-1045") == whole(made[44])
    await client.config_resetstat()
    assert await store.newest_of_job("job-1030") is None
    assert (await client.info("commandstats"))["cmdstat_xrevrange"]["calls"] == 4
    found = await listed(store, DecisionFilter(job_id="job-1030"))
    assert [each.job_id for each in found] == ["job-1030"]


async def test_what_can_t_be_read_is_left_out_and_told_once(
    store: DecisionStore, client: aioredis.Redis, unreadable: Unreadable
) -> None:
    told: list[str] = []
    unreadable._count = lambda: told.append("")
    await store.append(entries([decision(1)]))
    newer = stream_pb2.DecisionStreamEntry(decision=orchestrator_service_pb2.Decision(), format=99)
    await client.xadd(DECISIONS, {"m": b"\xff\xff"}, id="1-2")
    await client.xadd(DECISIONS, {"m": newer.SerializeToString()}, id="1-3")
    await client.xadd(DECISIONS, {"other": b""}, id="1-4")
    await store.append(entries([decision(5)]))
    for _ in range(2):
        assert [each.decision_id for each in await listed(store)] == ["d-1-5", "d-1-1"]
    assert len(told) == 3


async def test_none_is_stored_where_none_is_wanted(client: aioredis.Redis) -> None:
    assert not DecisionStore(client, Here(), 0, 100, Unreadable()).keeps
    only = DecisionStore(client, Here(), 10, 0, Unreadable())
    assert only.keeps
    await only.append(entries([decision(1)]))
    assert await listed(only, full=True) == [decision(1)]


@pytest.mark.parametrize("name", ["d-17", "d-0-1", "d-1-0", "d--1", "d-1-1-1", "x", "", "d-1-99999999999", "d-1-٣"])
async def test_what_is_no_id_of_a_decision_finds_nothing(store: DecisionStore, name: str) -> None:
    assert entry_id_of(name) is None
    assert await store.get(name) is None
    with pytest.raises(ValueError, match="is no id of a decision"):
        StoredDecision.of(decision(1, decision_id=name), decision(1))
