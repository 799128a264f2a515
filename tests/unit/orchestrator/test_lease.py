"""The lease of one that acts: kept while its event loop is busy, and not kept where the loop hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from adlro.services.orchestrator.lease import RENEWALS
from adlro.store.keys import LEASE
from tests.unit.orchestrator.house import House

PATIENCE_S = 60.0


@pytest.fixture
def aside(redis_url: str) -> Iterator[Any]:
    """A client that needs no event loop."""
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


def stand_still(seconds: float) -> None:
    """Nothing else runs on the loop meanwhile."""
    time.sleep(seconds)


@pytest.mark.slow
async def test_a_busy_loop_keeps_its_lease(house: House, aside: Any) -> None:
    """As while 100,000 jobs are loaded on a machine that is busy."""
    house.start(lease_s=3.0)
    await house.until_acting()
    before_ms, renewals, until = aside.pttl(LEASE), 0, time.monotonic() + PATIENCE_S
    while renewals <= RENEWALS:  # longer than the lease lasts
        assert time.monotonic() < until
        assert aside.get(LEASE) == b"instance-1"
        left_ms = aside.pttl(LEASE)
        renewals += left_ms > before_ms
        before_ms = left_ms
        stand_still(0.01)
    await house.submit(1.0)
    await house.until_final(1)


async def test_a_loop_that_hangs_loses_its_lease_and_begins_anew(house: House, aside: Any) -> None:
    house.start(lease_s=0.5)
    await house.until_acting()
    token = (await house.orchestrator.status()).fencing_token
    until = time.monotonic() + PATIENCE_S
    while aside.exists(LEASE):
        assert time.monotonic() < until
        stand_still(0.05)
    await house.submit(1.0)
    await house.until_final(1)
    assert (await house.orchestrator.status()).fencing_token > token


async def test_a_lease_that_another_one_took_ends_the_session(house: House, aside: Any) -> None:
    house.start(lease_s=0.5)
    await house.until_acting()
    aside.set(LEASE, "another")

    async def stands_by() -> bool:
        return "standing by: another holds the lease" in (await house.orchestrator.status()).problem

    await house.until(stands_by)


@pytest.mark.slow
async def test_a_renewal_that_fails_now_and_then_ends_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is reset says nothing about the lease."""
    house.start(lease_s=3.0)
    await house.until_acting()
    token = (await house.orchestrator.status()).fencing_token
    renew, tries = house.lease._renew, []

    def renew_or_fail(**kwargs: Any) -> Any:
        tries.append(1)
        if len(tries) % 2:
            raise redis.ConnectionError("reset by peer")
        return renew(**kwargs)

    monkeypatch.setattr(house.lease, "_renew", renew_or_fail)

    async def tried_often() -> bool:
        return len(tries) >= 6

    await house.until(tried_often)
    status = await house.orchestrator.status()
    assert status.acting
    assert status.fencing_token == token


async def test_a_dead_ones_lease_is_taken_when_it_runs_out(house: House, aside: Any) -> None:
    """Not when the next look is due, a quarter of a lease's length later."""
    aside.set(LEASE, "dead", px=300)
    house.start(lease_s=300.0)
    await house.until_acting()
