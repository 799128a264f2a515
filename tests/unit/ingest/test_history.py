"""Bars and occupancy of a range of time against all attempts, looked through by force."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.errors import InvalidInput, LimitExceeded, NotFound
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.history import AttemptBars, AttemptOutcome, Bar, RowKind
from adlro.records.jobs import Job, JobAttempt, JobState, JobType
from adlro.services.ingest import history
from adlro.services.ingest.clusters import ClusterRegistry
from adlro.services.ingest.history import AttemptHistories, AttemptQuery, as_bytes, held_ratios
from adlro.services.ingest.server import decode_cluster
from adlro.store import Cursor
from adlro.store.attempts import decode_ran_job, duration_class, ended_arguments, ran_job
from adlro.wire import cluster_to_proto, job_to_proto
from tests.unit.ingest.queue_for_tests import GPUS, Queue
from tests.volume import cases

CLUSTER = Cluster(
    "default",
    (
        Node("odd-0", 40, 65_536, tuple(Gpu(gpu, "t4", 16_000) for gpu in GPUS[2:4])),
        Node("volta-0", 20, 262_144, tuple(Gpu(gpu, "v100_sxm2", 16_160) for gpu in GPUS[:2])),
    ),
)
GONE = GPUS[4:]


class Attempts(Queue):
    """A queue with the history of its attempts."""

    async def described(self) -> Attempts:
        registry = ClusterRegistry(
            self.redis, lambda cluster: cluster_to_proto(cluster).SerializeToString(), decode_cluster, 1.0
        )
        await registry.put(CLUSTER)
        self.registry = registry
        return self

    def histories(
        self, may_know: Callable[[str], bool] = lambda user: True, max_bytes: int = 4 << 20
    ) -> AttemptHistories:
        return AttemptHistories(self.store, self.active, self.ended, self.registry, "", max_bytes, may_know)

    async def bars(self, query: AttemptQuery, **how: Any) -> list[Bar]:
        found = await self.histories(**how).query(query)
        assert found.bars is not None
        assert found.bar_count == len(found.bars)
        return list(found.bars)


OUTCOMES = {
    "succeeded": AttemptOutcome.SUCCEEDED,
    "failed": AttemptOutcome.FAILED,
    "stopped": AttemptOutcome.STOPPED,
    "lost": AttemptOutcome.LOST,
    "preempted": AttemptOutcome.PREEMPTED,
}


def all_bars(queue: Queue) -> list[Bar]:
    return [
        Bar(
            each.gpu_id,
            job.job_id,
            job.spec.user,
            attempt.attempt,
            job.spec.job_type,
            attempt.start_s,
            math.inf if attempt.end_s is None else attempt.end_s,
            OUTCOMES[attempt.outcome.partition(":")[0]] if attempt.outcome else AttemptOutcome.RUNNING,
            each.share,
        )
        for job in queue.jobs.values()
        for attempt in job.attempts
        if attempt.start_s is not None
        for each in attempt.placement.gpus
    ]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def still(runner: asyncio.Runner, redis_server: EmbeddedRedis) -> Iterator[Attempts]:
    """A history that does not change; in a database of its own."""
    redis_server.start()

    async def made() -> Attempts:
        queue = await Attempts(connect(f"{redis_server.url}?db=3")).described()
        await queue.redis.flushdb()
        await queue.registry.put(CLUSTER)
        await queue.fill(Random(8), 120, 420)
        return queue

    queue = runner.run(made())
    assert len(all_bars(queue)) > 100
    assert {bar.outcome for bar in all_bars(queue)} == set(AttemptOutcome) - {AttemptOutcome.UNSPECIFIED}
    yield queue
    runner.run(queue.redis.aclose())


ranges = st.tuples(st.floats(-1.0, 3000.0), st.one_of(st.just(0.0), st.floats(0.0, 40.0), st.floats(0.0, 4000.0)))


@settings(max_examples=cases(200))
@given(span=ranges, wanted=st.sets(st.sampled_from(GPUS), max_size=2), cluster=st.sampled_from(("", "default")))
def test_bars_are_the_attempts_that_ran_in_the_range(
    runner: asyncio.Runner, still: Attempts, span: tuple[float, float], wanted: set[str], cluster: str
) -> None:
    from_s, to_s = span[0], span[0] + span[1]
    expected = [
        bar
        for bar in all_bars(still)
        if bar.start_s <= to_s
        and bar.end_s >= from_s
        and (not wanted or bar.gpu_id in wanted)
        and not (cluster and bar.gpu_id in GONE)
    ]
    found = runner.run(still.bars(AttemptQuery(from_s, to_s, tuple(wanted), cluster=cluster)))
    assert sorted(found) == sorted(expected)
    assert [bar.start_s for bar in found] == sorted(bar.start_s for bar in expected)


def test_gpus_stand_as_described_then_by_name(runner: asyncio.Runner, still: Attempts) -> None:
    found = runner.run(still.histories().query(AttemptQuery(0.0, 1e6)))
    assert found.bars is not None
    assert found.bars.gpu_ids == (*GPUS[2:4], *GPUS[:2], *GONE)


def test_others_jobs_are_bars_without_a_name(runner: asyncio.Runner, still: Attempts) -> None:
    query = AttemptQuery(0.0, 1e6)
    whole = runner.run(still.bars(query))
    seen = runner.run(still.bars(query, may_know=lambda user: user == "ann"))
    assert len(seen) == len(whole)
    assert [bar for bar in seen if bar.user] == [bar for bar in whole if bar.user == "ann"]
    hidden = [bar for bar in seen if not bar.user]
    assert {(bar.job_id, bar.attempt, bar.job_type, bar.outcome) for bar in hidden} == {
        ("", 0, JobType.UNSPECIFIED, AttemptOutcome.UNSPECIFIED)
    }
    places = [(bar.gpu_id, bar.start_s, bar.end_s, bar.share) for bar in whole if bar.user != "ann"]
    assert sorted((bar.gpu_id, bar.start_s, bar.end_s, bar.share) for bar in hidden) == sorted(places)
    told = runner.run(still.histories(may_know=lambda user: user == "ann").query(query)).bars
    assert isinstance(told, AttemptBars)
    assert told.users == ("", "ann")


@settings(max_examples=60)
@given(span=ranges, buckets=st.integers(1, 50))
def test_an_occupancy_is_what_its_bars_hold(
    runner: asyncio.Runner, still: Attempts, span: tuple[float, float], buckets: int
) -> None:
    from_s, to_s = span[0], span[0] + span[1]
    query = AttemptQuery(from_s, to_s, max_bars=1, bucket_count=buckets)
    found = runner.run(still.histories().query(query))
    bars = [bar for bar in all_bars(still) if bar.start_s <= to_s and bar.end_s >= from_s]
    assert found.bar_count == len(bars)
    if len(bars) <= 1:
        assert found.bars is not None
        return
    occupancy = found.occupancy
    assert occupancy is not None
    assert occupancy.row_kind is RowKind.NODE
    assert occupancy.row_names[:2] == ("odd-0", "volta-0")
    assert (occupancy.bucket_count, occupancy.folded_bar_count) == (buckets, len(bars))
    for row, name in enumerate(occupancy.row_names):
        of_row = [bar for bar in bars if bar.gpu_id.partition("/")[0] == (name or "gone-0")]
        for bucket in range(buckets):
            begin_s = from_s + bucket * occupancy.bucket_s
            held_s = sum(
                bar.share * max(0.0, min(bar.end_s, begin_s + occupancy.bucket_s) - max(bar.start_s, begin_s))
                for bar in of_row
            )
            ratio = min(1.0, held_s / occupancy.bucket_s / occupancy.gpu_counts[row])
            assert occupancy.held_ratio(row, bucket) == pytest.approx(ratio, abs=1.01 / 255)


def test_ratios_by_hand() -> None:
    held = held_ratios(
        np.array([0, 0, 1]), np.array([-1.0, 0.5, 1.0]), np.array([9.0, 2.5, 1.0]), np.array([1.0, 0.5, 1.0]), [2, 1], 3
    )
    assert held.tolist() == [[0.625, 0.75, 0.625], [0.0, 0.0, 0.0]]
    assert as_bytes(np.array([[0.0, 1e-12, 0.0001, 0.5, 1.0]])) == bytes([0, 0, 1, 128, 255])


def test_of_many_nodes_gpu_models_are_told(
    runner: asyncio.Runner, still: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_NODE_ROWS", 1)
    occupancy = runner.run(still.histories().query(AttemptQuery(0.0, 1e6, max_bars=1))).occupancy
    assert occupancy is not None
    assert (occupancy.row_kind, occupancy.row_names) == (RowKind.GPU_MODEL, ("t4", "v100_sxm2", ""))
    assert occupancy.gpu_counts == (2, 2, 2)


def test_bars_that_do_not_fit_into_a_message_are_folded(runner: asyncio.Runner, still: Attempts) -> None:
    found = runner.run(still.histories(max_bytes=2000).query(AttemptQuery(0.0, 1e6)))
    assert found.bars is None
    assert found.occupancy is not None


def test_what_can_not_be_answered_is_refused_with_the_way_out(
    runner: asyncio.Runner, still: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="to_s: 1 is before from_s, 2"):
        runner.run(still.histories().query(AttemptQuery(2.0, 1.0)))
    with pytest.raises(NotFound, match=r"cluster: there is no cluster 'moon', known are default"):
        runner.run(still.histories().query(AttemptQuery(2.0, cluster="moon")))
    monkeypatch.setattr(history, "MAX_JOBS", 3)
    with pytest.raises(LimitExceeded, match=r"from_s: .* request a shorter range"):
        runner.run(still.histories().query(AttemptQuery(0.0, 1e6)))


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Attempts]:
    async with connect(redis_url) as redis:
        yield await Attempts(redis).described()


async def test_without_an_end_a_range_goes_to_the_time_of_the_last_event_that_was_applied(queue: Attempts) -> None:
    found = await queue.histories().query(AttemptQuery(3.0))
    assert (found.cluster, found.from_s, found.to_s) == ("default", 3.0, 3.0)  # no orchestrator has told a time
    await queue.store.move(0, [], Cursor("run-1", 7, 40.0))
    assert (await queue.histories().query(AttemptQuery(3.0))).to_s == 40.0
    assert (await queue.histories().query(AttemptQuery(50.0))).to_s == 50.0


async def test_a_range_of_minutes_does_not_read_a_long_history(queue: Attempts) -> None:
    random = Random(4)
    await queue.submit(random, 1500)
    for number in queue.jobs:
        queue.now_s = 10.0 * number
        for _ in range(3):
            await queue.step(number, random)
    bars = [bar for bar in all_bars(queue) if bar.start_s <= 5100.0 and bar.end_s >= 5000.0]
    await queue.bars(AttemptQuery(1e9))  # the table of active jobs is filled
    await queue.redis.config_resetstat()
    assert sorted(await queue.bars(AttemptQuery(5000.0, 5100.0))) == sorted(bars)
    assert (await queue.redis.info("commandstats"))["cmdstat_hmget"]["calls"] < 60


async def test_a_range_that_is_refused_costs_redis_a_count(queue: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(5)
    await queue.submit(random, 40)
    for number in queue.jobs:
        for _ in range(3):
            await queue.step(number, random)
    monkeypatch.setattr(history, "MAX_JOBS", 3)
    await queue.redis.config_resetstat()
    with pytest.raises(LimitExceeded, match="request a shorter range"):
        await queue.histories().query(AttemptQuery(0.0, 1e6))
    assert "cmdstat_zrangebyscore" not in await queue.redis.info("commandstats")


@pytest.mark.parametrize("duration_s", [0.0, 1e-9, 0.5, 1.0, 1.5, 2.0, 3.9, 4.0, 4.1, 1e5, 2.0**30, 2.0**31, 1e12])
def test_a_duration_is_in_a_class_that_holds_it(duration_s: float) -> None:
    number = duration_class(duration_s)
    assert 0 <= number <= 31
    assert number == 31 or duration_s <= 2.0**number
    assert number == 0 or duration_s >= 2.0 ** (number - 1)


def test_the_bytes_of_a_record_say_what_the_record_says(still: Attempts) -> None:
    for job in still.jobs.values():
        assert decode_ran_job(job.job_id, job_to_proto(job).SerializeToString()) == ran_job(job)


def test_what_never_ran_or_has_no_end_is_in_no_class(still: Attempts) -> None:
    job = next(iter(still.jobs.values()))
    never = Job("job-1", job.spec, JobState.CANCELLED, end_s=3.0, attempts=())
    assert ended_arguments(never) == ("3.0", "")
    assert ended_arguments(Job("job-1", job.spec, JobState.CANCELLED)) == ("", "")
    refused = JobAttempt(1, job.placement, "v100", outcome="lost: refused", end_s=1.0)
    assert ended_arguments(Job("job-1", job.spec, JobState.FAILED, end_s=3.0, attempts=(refused,))) == ("3.0", "")
    assert ended_arguments(Job("job-1", job.spec, JobState.RUNNING, attempts=(refused,))) == ("", "")
