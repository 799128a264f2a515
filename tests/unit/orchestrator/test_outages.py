"""Outages of the cluster: told to everyone who waits, survived, and another instance may try."""

from __future__ import annotations

from typing import Any

import pytest

from adlro.errors import AdlroError, DeadlineExceeded, Stale, Unavailable
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobState, PendingReason
from adlro.services.orchestrator.life import OUTAGE_SESSIONS, Life
from tests.unit.orchestrator.house import House


async def test_an_outage_of_the_cluster_is_told_and_survived(house: House) -> None:
    house.start(lease_s=0.5)
    await house.until_acting()
    house.cluster.away = True
    await house.submit(2.0)

    async def told() -> bool:
        return (await house.store.get("job-1")).pending_reason is PendingReason.CLUSTER_UNAVAILABLE

    await house.until(told)
    house.cluster.away = False
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED


@pytest.mark.parametrize("error", [Unavailable("away"), DeadlineExceeded("hangs")], ids=["away", "hangs"])
async def test_an_outage_is_told_whatever_else_fails_meanwhile(
    house: House, monkeypatch: pytest.MonkeyPatch, error: AdlroError
) -> None:
    """A lease that runs out in between, and a store that is away when it would be told."""
    failures = iter([error] * (OUTAGE_SESSIONS - 1) + [Stale("took the lease")])
    move, moves = house.store.move, 0

    async def fails(life: Life, token: int) -> None:
        raise next(failures, error)

    async def fails_once(*args: Any) -> list[int]:
        nonlocal moves
        moves += 1
        if moves == 1:
            raise OSError("connection lost")
        return await move(*args)

    monkeypatch.setattr(Life, "_act", fails)
    monkeypatch.setattr(house.store, "move", fails_once)
    await house.submit(2.0)
    house.start(lease_s=0.5)
    await house.until(lambda: waits_for_the_cluster(house, "job-1"))
    assert moves == 2


async def test_who_submits_in_an_outage_is_told_and_nobody_twice(house: House) -> None:
    house.cluster.away = True
    house.start(lease_s=0.5)
    for number in (1, 2):
        await house.submit(2.0)
        await house.until(lambda number=number: waits_for_the_cluster(house, f"job-{number}"))  # type: ignore[misc]
    told = [job.pending_reason for job in (await house.history())["job-1"]]
    assert told == [PendingReason.SUBMITTED, PendingReason.CLUSTER_UNAVAILABLE]


async def test_an_outage_soon_after_another_is_told(house: House) -> None:
    house.cluster.away = True
    house.start(lease_s=0.5)
    await house.submit(2.0)
    await house.until(lambda: waits_for_the_cluster(house, "job-1"))
    house.cluster.away = False
    await house.until_final(1)
    house.cluster.away = True
    house.cluster.break_streams()
    await house.submit(2.0)
    await house.until(lambda: waits_for_the_cluster(house, "job-2"))


async def waits_for_the_cluster(house: House, job_id: str) -> bool:
    return (await house.store.get(job_id)).pending_reason is PendingReason.CLUSTER_UNAVAILABLE


async def test_who_cannot_reach_the_cluster_lets_another_try(house: House, redis_url: str, cluster: Cluster) -> None:
    other = House(redis_url, cluster)
    other.lives = 10
    try:
        house.cluster.away = True
        house.start()

        async def has_the_lease() -> bool:
            return (await house.orchestrator.status()).fencing_token > 0

        await house.until(has_the_lease)
        other.start()
        await other.submit(1.0)
        await other.until_final(1)
    finally:
        await other.close()


@pytest.mark.each_python
@pytest.mark.slow
async def test_after_an_outage_every_reason_is_true_again(house: House) -> None:
    await house.pause()
    # A busy machine that reads 700 jobs again and again keeps no short lease.
    house.start(lease_s=5.0)
    for _ in range(700):
        await house.submit(5.0)
    await house.submit(5.0, begin_time_s=1e6)

    async def taken_up() -> bool:
        return all(job.pending_reason is not PendingReason.SUBMITTED for _, job in await house.store.active())

    await house.until(taken_up)
    house.cluster.away = True
    house.cluster.break_streams()

    async def told() -> bool:
        return (await house.store.get("job-700")).pending_reason is PendingReason.CLUSTER_UNAVAILABLE

    await house.until(told)
    assert (await house.store.get("job-701")).pending_reason is PendingReason.BEGIN_TIME
    house.cluster.away = False

    async def true_again() -> bool:
        reasons = {job.pending_reason for _, job in await house.store.active()}
        return PendingReason.CLUSTER_UNAVAILABLE not in reasons

    await house.until(true_again)
