"""DecomposeService while Redis is away, comes back, loses its data; late replicas; a process that drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adlro.errors import NotFound, Unavailable
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.testing import spawn_service
from adlro.records.jobs import ExpectedRuntime
from adlro.v1 import decompose_service_pb2 as pb
from adlro.wire import spec_to_proto
from tests.contract.decompose_suite import (
    IMPLEMENTATIONS,
    TIMEOUT_S,
    Caller,
    Store,
    forgotten,
    learned,
    plane,
    spec,
)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    made = Store(redis_url)
    yield made
    await made.redis.aclose()


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
async def test_a_new_replica_folds_what_was_there_before(implementation, redis_url: str, store: Store):
    await store.describe()
    for number in range(450):
        await store.finish(number, spec(), "v100_sxm2", 10.0)
    await store.report(["volta-0/0"], 1.0, temperature=[50])
    async with IMPLEMENTATIONS[implementation](redis_url) as address:
        caller = Caller(address)
        await caller.until_serving()
        answer = await caller.predict([spec()])
        assert answer.memory_revision == 450
        assert plane(await caller.state(), "temperature")[0][0] == 50
        await caller.close()


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
async def test_without_redis_it_answers_what_it_can_and_says_that_it_is_not_ready(implementation, tmp_path):
    redis = EmbeddedRedis(tmp_path)
    redis.start()
    try:
        redis.kill()
        async with IMPLEMENTATIONS[implementation](redis.url) as address:
            caller = Caller(address)
            assert not await caller.serving()
            jobs = [spec(expected_runtime=ExpectedRuntime("v100_sxm2", 7.0)), spec()]
            first, second = (await caller.predict(jobs)).predictions
            assert [each.median_s for each in first.predictions] == [7.0, 7.0 / 0.7, 7.0 / 0.97]
            assert second.predictions[0].median_s == pytest.approx(18.0)
            assert second.predictions[0].basis == pb.PREDICTION_BASIS_PRIOR
            assert await caller.recall(spec()) == []
            assert await caller.decompose(pb.Record(job=spec_to_proto(spec())))
            for call in (caller.state(), caller.predict(jobs, ["a100_pcie"])):
                with pytest.raises(Unavailable):
                    await call

            redis.start()
            store = Store(redis.url)
            await store.describe()
            await caller.until_serving()
            assert len((await caller.state()).gpus) == 3
            await store.redis.aclose()
            await caller.close()
    finally:
        redis.stop()


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
async def test_a_restart_of_redis_is_survived(implementation, tmp_path):
    with EmbeddedRedis(tmp_path) as redis:
        store = Store(redis.url)
        await store.describe()
        await store.finish(1, spec(), "v100_sxm2", 10.0)
        async with IMPLEMENTATIONS[implementation](redis.url) as address:
            caller = Caller(address)
            await caller.until_serving()
            await store.report(["volta-0/0"], 1.0, temperature=[50])
            async with caller.watch() as watch:
                while plane(await watch.next(), "temperature")[0][0] != 50:
                    pass
                redis.kill()
                await caller.until_serving(False)
                assert plane(await caller.state(), "temperature")[0][0] == 50
                redis.start()
                await caller.until_serving()
                await Store(redis.url).report(["volta-0/0"], 2.0, temperature=[60])
                while plane(await watch.next(), "temperature")[0][0] != 60:
                    pass
            store = Store(redis.url)
            revision = (await caller.predict([spec()])).memory_revision
            assert revision == 1  # nothing was folded again
            await store.finish(2, spec(), "v100_sxm2", 40.0)
            await learned(caller, 2)
            assert (await caller.predict([spec()])).predictions[0].predictions[0].median_s == pytest.approx(
                20.0, rel=0.05
            )

            # Its data lost: what was learned goes, and learning begins anew.
            await store.redis.flushall()
            await forgotten(caller)
            with pytest.raises(NotFound):
                await caller.state()
            await store.redis.aclose()
            await caller.close()


async def test_watchers_end_when_the_process_drains(redis_url: str, store: Store):
    await store.describe()
    # Were they left to the end of the drain, they would outlive the test's patience.
    environment = {"ADLRO_REDIS_URL": redis_url, "ADLRO_DRAIN_TIMEOUT_S": f"{10 * TIMEOUT_S:g}"}
    with spawn_service("decompose", environment) as service:
        caller = Caller(service.address)
        await caller.until_serving()
        async with caller.watch(min_interval_s=3600) as quick, caller.watch() as idle:
            await quick.next()
            await idle.next()
            service.terminate()
            for watch in (quick, idle):
                with pytest.raises((StopAsyncIteration, Unavailable)):
                    await watch.next()
        await caller.close()
        assert await asyncio.to_thread(service.wait, TIMEOUT_S) == 0
