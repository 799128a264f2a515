"""Both clients where an address stands for several orchestrators, of which one acts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adlro.client import AsyncClient, Client, Endpoints, ServiceName
from adlro.errors import Unavailable
from tests.unit.client.fake_suite import FakeSuite


@pytest.fixture
def pair() -> Iterator[tuple[FakeSuite, FakeSuite]]:
    """One that acts, one that stands by."""
    with FakeSuite() as acts, FakeSuite() as stands_by:
        stands_by.stands_by = True
        yield acts, stands_by


@pytest.fixture
def endpoints(pair: tuple[FakeSuite, FakeSuite]) -> Endpoints:
    acts, stands_by = pair
    both = f"ipv4:{acts.address},{stands_by.address}"
    return Endpoints(acts.address, acts.address, both, acts.address)


def test_the_one_that_acts_is_found(pair: tuple[FakeSuite, FakeSuite], endpoints: Endpoints) -> None:
    for _ in range(10):  # which one is asked first is left to chance
        with Client(endpoints=endpoints, patience_s=60.0) as client:
            assert client.set_policy("fcfs") in ("fcfs", "sjf")
            assert client.status().acting  # by the connection that was found
    acts, stands_by = pair
    assert acts.policy == "fcfs"
    assert stands_by.policy == "sjf"
    assert stands_by.calls["SetPolicy"] > 0


async def test_the_one_that_acts_is_found_for_asyncio(pair: tuple[FakeSuite, FakeSuite], endpoints: Endpoints) -> None:
    for _ in range(10):
        async with AsyncClient(endpoints=endpoints, patience_s=60.0) as client:
            assert await client.set_policy("fcfs") in ("fcfs", "sjf")
            assert (await client.status()).acting
    acts, stands_by = pair
    assert acts.policy == "fcfs"
    assert stands_by.calls["SetPolicy"] > 0


def test_where_all_stand_by_it_says_so(pair: tuple[FakeSuite, FakeSuite], endpoints: Endpoints) -> None:
    pair[0].stands_by = True
    with Client(endpoints=endpoints, patience_s=0.5) as client:
        assert not client.status().acting
        with pytest.raises(Unavailable, match="standing by: another holds the lease"):
            client.set_policy("fcfs")


def test_a_watch_finds_the_one_that_acts(endpoints: Endpoints) -> None:
    for _ in range(5):
        with Client(endpoints=endpoints, patience_s=60.0) as client:
            assert next(client.watch_decisions(history=1)).job_id == "job-1"


async def test_a_watch_finds_the_one_that_acts_for_asyncio(endpoints: Endpoints) -> None:
    for _ in range(5):
        async with AsyncClient(endpoints=endpoints, patience_s=60.0) as client:
            assert (await anext(client.watch_decisions(history=1))).job_id == "job-1"


def test_without_patience_the_next_call_asks_another_one(endpoints: Endpoints) -> None:
    for _ in range(6):  # which one is asked first is left to chance
        with Client(endpoints=endpoints, patience_s=0.0) as client:
            assert any(_is_set(client) for _ in range(40))


def _is_set(client: Client) -> bool:
    try:
        client.set_policy("fcfs")
    except Unavailable:
        return False
    return True


async def test_a_connection_that_was_left_already_takes_no_newer_one_with_it(endpoints: Endpoints) -> None:
    """Several calls fail by one connection; the next must not close what the first of them opens in its place."""
    service = ServiceName.ORCHESTRATOR
    async with AsyncClient(endpoints=endpoints) as client:
        old = client._channel(service)
        client._leave(service, old)
        new = client._channel(service)
        assert new is not old
        client._leave(service, old)
        assert client._channel(service) is new
    with Client(endpoints=endpoints) as blocking:
        first = blocking._channel(service)
        blocking._leave(service, first)
        second = blocking._channel(service)
        blocking._leave(service, first)
        assert blocking._channel(service) is second is not first
