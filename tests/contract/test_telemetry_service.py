"""What every TelemetryService does: one suite, run on a server in this process and on a spawned one."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import numpy as np
import pytest
import redis.asyncio as aioredis

from adlro.errors import DataLoss, InvalidInput, LimitExceeded, NotFound, Unavailable
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import spawn_service
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.services.ingest.thinning import Thinned
from adlro.v1 import stream_pb2, telemetry_pb2, telemetry_service_pb2
from adlro.wire import cluster_from_proto
from tests.contract.ingest_suite import CLUSTER, GPU_IDS, TIMEOUT_S, Ingest, ingest_here, job, stored

UTILIZATION, MEMORY, BANDWIDTH, TEMPERATURE, POWER = METRICS = 1, 2, 3, 4, 5
RATIO, PERCENT, MIB, CELSIUS, W = 1, 2, 3, 7, 9
STREAM = "adlro:telemetry:default"
LATEST = "adlro:telemetry:latest:default"
NAN = math.nan


def column(metric: int, unit: int, values: Any) -> telemetry_pb2.MetricColumn:
    return telemetry_pb2.MetricColumn(
        metric=metric,  # type: ignore[arg-type]
        unit=unit,  # type: ignore[arg-type]
        values_f32=np.asarray(values, "<f4").tobytes(),
    )


def block(*columns: telemetry_pb2.MetricColumn, **fields: Any) -> telemetry_pb2.TelemetryBlock:
    """One sample of all GPUs, of now, with a power of 150, 150 and 25 W, which is half of each."""
    made: dict[str, Any] = {
        "cluster": "default",
        "gpu_ids": GPU_IDS,
        "sample_times_unix_s": [time.time()],
        "columns": columns or [column(POWER, W, [150, 150, 25])],
    }
    return telemetry_pb2.TelemetryBlock(**(made | fields))


async def push(ingest: Ingest, *blocks: telemetry_pb2.TelemetryBlock) -> Any:
    requests = (telemetry_service_pb2.PushTelemetryRequest(block=each) for each in blocks)
    return await ingest.call(ingest.telemetry.PushTelemetry, requests)


async def telemetry(ingest: Ingest, **fields: Any) -> Any:
    return await ingest.call(ingest.telemetry.GetTelemetry, telemetry_service_pb2.GetTelemetryRequest(**fields))


def array(values_f32: bytes, gpus: int = 3) -> np.ndarray:
    return np.frombuffer(values_f32, "<f4").reshape(-1, gpus)


def latest_columns(found: Any) -> dict[int, telemetry_pb2.NormalizedColumn]:
    """By metric; all metrics must be there, whatever was reported."""
    assert [column.metric for column in found.latest.columns] == list(METRICS)
    return {column.metric: column for column in found.latest.columns}


async def entries(redis_url: str) -> list[telemetry_pb2.NormalizedBlock]:
    async with aioredis.Redis.from_url(redis_url) as client:
        found: Any = await client.xrange(STREAM)
    return [stream_pb2.TelemetryStreamEntry.FromString(fields[b"m"]).block for _, fields in found]


# --- clusters -------------------------------------------------------------------------------------------------------


async def test_a_cluster_is_recorded_and_replaced(ingest):
    with pytest.raises(NotFound) as caught:
        await ingest.call(ingest.telemetry.GetCluster, telemetry_service_pb2.GetClusterRequest())
    assert "UpsertCluster" in caught.value.message
    first = await ingest.describe()
    assert first.created
    assert cluster_from_proto(first.cluster) == CLUSTER
    smaller = dataclasses.replace(CLUSTER, nodes=CLUSTER.nodes[:1])
    assert not (await ingest.describe(smaller)).created
    for name in ("", "default"):
        answer = await ingest.call(ingest.telemetry.GetCluster, telemetry_service_pb2.GetClusterRequest(cluster=name))
        assert cluster_from_proto(answer.cluster) == smaller


GPU = Gpu("a/0", "t4", 15_000)


@pytest.mark.parametrize(
    ("nodes", "field", "part"),
    [
        ((Node("a", 1, 1, (GPU,)), Node("a", 1, 1, (Gpu("b", "t4", 1),))), "cluster.nodes[1].node_id", "'a'"),
        ((Node("a", 1, 1, (GPU, GPU)),), "cluster.nodes[0].gpus[1].gpu_id", "'a/0'"),
        (
            (Node("a", 1, 1, (GPU,)), Node("b", 1, 1, (Gpu("b/0", "abacus", 1),))),
            "cluster.nodes[1].gpus[0].gpu_model",
            "v100_sxm2",
        ),
        ((Node("a", 0, 1, (GPU,)),), "cluster.nodes[0].cpu_cores", "0"),
        ((Node("a", 1, 1, ()),), "cluster.nodes[0].gpus", "1"),
        ((), "cluster.nodes", "1"),
    ],
)
async def test_a_bad_cluster_is_refused_by_field_and_nothing_is_recorded(ingest, redis_url, nodes, field, part):
    with pytest.raises(InvalidInput) as caught:
        await ingest.describe(Cluster("default", nodes))
    assert caught.value.field == field
    assert field in caught.value.message
    assert part in caught.value.message
    async with aioredis.Redis.from_url(redis_url) as client:
        assert await client.exists("adlro:clusters") == 0


# --- PushTelemetry and GetTelemetry ---------------------------------------------------------------------------------


async def test_a_window_that_no_message_holds_is_refused_before_it_is_made(redis_url, monkeypatch):
    """What is kept of it meanwhile is as large as a message at most, not as the window."""
    nodes = tuple(
        Node(f"n{node}", 64, 65536, tuple(Gpu(f"n{node}/{gpu}", "v100_sxm2", 16160) for gpu in range(50)))
        for node in range(20)
    )
    gpu_ids = [gpu.gpu_id for node in nodes for gpu in node.gpus]
    added = []
    whole = Thinned.add

    def noted(self, made):
        added.append(made)
        whole(self, made)

    monkeypatch.setattr(Thinned, "add", noted)
    async with ingest_here(redis_url, max_message_bytes=1 << 20) as address, Ingest(address) as ingest:
        await ingest.describe(Cluster("default", nodes))
        now = time.time()
        for first in range(0, 300, 50):
            times = [now - 300 + each for each in range(first, first + 50)]
            values = np.ones((50, 1000), np.float32)
            await push(ingest, block(column(POWER, W, values), gpu_ids=gpu_ids, sample_times_unix_s=times))
        added.clear()
        with pytest.raises(LimitExceeded) as caught:
            await telemetry(ingest, window_s=400.0, step_s=1.0)
    assert (caught.value.field, caught.value.reason) == ("step_s", "WINDOW_TOO_LARGE")
    assert len(added) <= 3, "131 samples of 1,000 GPUs fit, and a block has 50"


async def test_a_window_is_of_some_gpus_and_has_one_sample_a_step(ingest):
    await ingest.describe()
    now = float(int(time.time() / 100) * 100) - 200.0  # a step of 50 s begins
    times = [now + 10, now + 20, now + 60]
    await push(ingest, block(column(POWER, W, [[100, 10, 1], [200, 20, 2], [50, 30, 3]]), sample_times_unix_s=times))
    window_s = time.time() - now + 5
    found = await telemetry(ingest, window_s=window_s, gpu_ids=[GPU_IDS[2], GPU_IDS[0]], step_s=50.0)
    assert list(found.latest.gpu_ids) == [GPU_IDS[2], GPU_IDS[0]]
    (thinned,) = found.window
    assert list(thinned.gpu_ids) == [GPU_IDS[2], GPU_IDS[0]]
    assert list(thinned.sample_times_unix_s) == [now + 20, now + 60]
    np.testing.assert_array_equal(array(thinned.columns[0].raw_f32, 2), [[1.5, 150], [3, 50]])
    whole = await telemetry(ingest, window_s=window_s, gpu_ids=[GPU_IDS[1]])
    np.testing.assert_array_equal(array(whole.window[0].columns[0].raw_f32, 1), [[10], [20], [30]])
    assert not (await telemetry(ingest, window_s=0.001, step_s=1.0)).window
    for fields, field in (
        ({"gpu_ids": ["nowhere/0"]}, "gpu_ids[0]"),
        ({"gpu_ids": [GPU_IDS[0]] * 2}, "gpu_ids"),
        ({"step_s": 1.0}, "step_s"),
        ({"window_s": 86400.0, "step_s": 1.0}, "step_s"),
        ({"window_s": 1.0, "step_s": -1.0}, "step_s"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await telemetry(ingest, **fields)
        assert caught.value.field == field, fields


async def test_blocks_are_normalised_stored_and_found_again(ingest, redis_url):
    await ingest.describe()
    now = time.time()
    answer = await push(
        ingest,
        block(
            column(POWER, W, [[150, 330, NAN], [300, 30, 50]]),
            column(UTILIZATION, PERCENT, [[0, 50, 100], [25, NAN, 75]]),
            sample_times_unix_s=[now - 1, now],
            cluster_times_s=[7.0, 8.0],
        ),
    )
    assert (answer.block_count, answer.sample_count, answer.clipped_count) == (1, 6, 1)
    (entry,) = await entries(redis_url)
    assert (entry.cluster, list(entry.gpu_ids), entry.clipped_count) == ("default", GPU_IDS, 1)
    assert (list(entry.sample_times_unix_s), list(entry.cluster_times_s)) == ([now - 1, now], [7.0, 8.0])
    power, utilization = entry.columns
    assert (power.metric, power.unit, utilization.metric, utilization.unit) == (POWER, W, UTILIZATION, RATIO)
    np.testing.assert_allclose(array(power.raw_f32), [[150.0, 330.0, NAN], [300.0, 30.0, 50.0]])
    np.testing.assert_allclose(array(power.normalized_f32), [[0.5, 1.0, NAN], [1.0, 0.1, 1.0]])
    np.testing.assert_allclose(array(utilization.raw_f32), [[0.0, 0.5, 1.0], [0.25, NAN, 0.75]])
    found = await telemetry(ingest, window_s=60)
    assert list(found.window) == [entry]
    assert list(found.latest.gpu_ids) == GPU_IDS
    assert (list(found.latest.sample_times_unix_s), list(found.latest.cluster_times_s)) == ([now], [8.0])
    # Of each value the newest that was reported: the utilization of the second GPU is of the first sample.
    latest = latest_columns(found)
    np.testing.assert_allclose(array(latest[UTILIZATION].normalized_f32), [[0.25, 0.5, 0.75]])
    np.testing.assert_allclose(array(latest[POWER].normalized_f32), [[1, 0.1, 1]])
    # What no GPU has reported is said, and not left out.
    np.testing.assert_allclose(array(latest[MEMORY].raw_f32), [[NAN, NAN, NAN]])


async def test_an_older_sample_pushed_late_does_not_replace_a_newer_one(ingest):
    await ingest.describe()
    now = time.time()
    await push(ingest, block(column(POWER, W, [30, 60, 5]), sample_times_unix_s=[now]))
    await push(ingest, block(column(POWER, W, [300, 300, 50]), sample_times_unix_s=[now - 3600]))
    found = await telemetry(ingest)
    assert list(found.latest.sample_times_unix_s) == [now]
    np.testing.assert_allclose(array(latest_columns(found)[POWER].raw_f32), [[30, 60, 5]])


async def test_the_newest_values_come_from_every_source_and_in_the_clusters_order(ingest):
    await ingest.describe()
    now = time.time()
    await push(
        ingest,
        block(column(POWER, W, [30, 60, 5]), sample_times_unix_s=[now - 2]),
        block(column(POWER, W, [10, 300]), gpu_ids=["odd-0/0", "volta-0/0"], sample_times_unix_s=[now - 1]),
        block(column(TEMPERATURE, CELSIUS, [40]), gpu_ids=["odd-0/0"], sample_times_unix_s=[now]),
    )
    found = await telemetry(ingest)
    latest = latest_columns(found)
    np.testing.assert_allclose(array(latest[POWER].raw_f32), [[300, 60, 10]])
    np.testing.assert_allclose(array(latest[TEMPERATURE].normalized_f32), [[NAN, NAN, 0.5]])
    assert list(found.latest.sample_times_unix_s) == [now]


async def test_what_cannot_be_read_is_left_out(ingest, redis_url):
    """Bytes that nobody wrote as a block, in the stream and among the newest samples."""
    await ingest.describe()
    await push(ingest, block(column(POWER, W, [30, 60, 5]), sample_times_unix_s=[time.time()]))
    before = await telemetry(ingest, window_s=600)
    assert len(before.window) == 1
    async with aioredis.Redis.from_url(redis_url) as client:
        for body in (b"", b"\xff\xff", b"\x0a\x02\x12\x00"):
            await client.xadd("adlro:telemetry:default", {"m": body})
            await client.hset("adlro:telemetry:latest:default", body, body)
        await client.xadd("adlro:telemetry:default", {"x": "y"})
    assert await telemetry(ingest, window_s=600) == before


async def test_a_description_that_cannot_be_read_is_told_until_there_is_another(ingest, redis_url):
    async def asked_until_it_fails() -> None:
        while True:  # as long as a description is kept in memory
            await telemetry(ingest)

    await ingest.describe()
    async with aioredis.Redis.from_url(redis_url) as client:
        for body in (b"\xff\xff", b"\x12\x02\x0a\xff"):
            await client.hset("adlro:clusters", "default", body)
            with pytest.raises(DataLoss, match="UpsertCluster"):
                await asked_until_it_fails()
    await ingest.describe()
    assert (await telemetry(ingest)).latest.gpu_ids


async def test_before_the_first_block_every_metric_of_every_gpu_is_said_to_be_unknown(ingest):
    with pytest.raises(NotFound) as caught:
        await telemetry(ingest)
    assert "UpsertCluster" in caught.value.message
    await ingest.describe()
    found = await telemetry(ingest, window_s=60)
    assert list(found.latest.gpu_ids) == GPU_IDS
    assert len(found.window) == 0
    np.testing.assert_array_equal(found.latest.sample_times_unix_s, [NAN])
    for each in latest_columns(found).values():
        np.testing.assert_array_equal(array(each.raw_f32), [[NAN, NAN, NAN]])
        np.testing.assert_array_equal(array(each.normalized_f32), [[NAN, NAN, NAN]])


async def test_the_window_is_by_sample_time_and_the_newest_blocks_oldest_first(ingest):
    await ingest.describe()
    now = time.time()
    ages = [3000, 2000, 1000, 50, 40, 30]
    await push(ingest, *(block(sample_times_unix_s=[now - age]) for age in ages))

    async def found(**fields: Any) -> list[int]:
        window = (await telemetry(ingest, **fields)).window
        return [round(now - each.sample_times_unix_s[0]) for each in window]

    assert await found(window_s=100) == [50, 40, 30]
    assert await found(window_s=1500) == [1000, 50, 40, 30]
    assert await found(window_s=86_400, max_blocks=2) == [40, 30]
    assert await found() == []


async def test_a_window_that_fits_no_message_is_refused_with_what_fits(redis_url):
    async with ingest_here(redis_url, max_message_bytes=65_536) as there, Ingest(there) as ingest:
        await ingest.describe()
        size = 500
        values = np.zeros((size, 3))
        start = time.time() - size
        large = block(column(POWER, W, values), sample_times_unix_s=[start + index for index in range(size)])
        await push(ingest, *[large] * 5)
        with pytest.raises(LimitExceeded) as caught:
            await telemetry(ingest, window_s=3600)
        fits = int(caught.value.metadata["fitting_blocks"])
        assert "max_blocks" in caught.value.message
        assert len((await telemetry(ingest, window_s=3600, max_blocks=fits)).window) == fits > 0


async def test_gpu_ids_of_the_block_before_hold_on_within_a_stream(ingest, redis_url):
    await ingest.describe()
    await push(
        ingest,
        block(gpu_ids=["volta-0/1"], columns=[column(POWER, W, [30])]),
        block(gpu_ids=[], columns=[column(POWER, W, [60])]),
        block(gpu_ids=["odd-0/0", "volta-0/0"], columns=[column(POWER, W, [5, 6])]),
        block(gpu_ids=[], columns=[column(POWER, W, [7, 8])]),
    )
    assert [list(each.gpu_ids) for each in await entries(redis_url)] == [
        ["volta-0/1"],
        ["volta-0/1"],
        ["odd-0/0", "volta-0/0"],
        ["odd-0/0", "volta-0/0"],
    ]


def _bad_blocks() -> Iterable[tuple[str, telemetry_pb2.TelemetryBlock, str, str]]:
    now = time.time()
    power = column(POWER, W, [1, 2, 3])
    yield (
        "column too short",
        block(*[column(metric, PERCENT, np.zeros((4, 3))) for metric in (UTILIZATION, POWER)],
              column(MEMORY, MIB, np.zeros(11)), sample_times_unix_s=[now] * 4),
        "block.columns[2].values_f32",
        "has 44 bytes, needs 48 = 4 x 4 sample times x 3 GPUs",
    )  # fmt: skip
    yield "column empty", block(column(POWER, W, [])), "block.columns[0].values_f32", "has 0 bytes, needs 12"
    yield "metric twice", block(power, power), "block.columns[1].metric", "one column a metric"
    yield "unit of another metric", block(column(POWER, CELSIUS, [1, 2, 3])), "block.columns[0].unit", "UNIT_W"
    yield "unknown GPU", block(gpu_ids=["volta-0/0", "volta-0/9", "odd-0/0"]), "block.gpu_ids[1]", "'volta-0/9'"
    yield "GPU twice", block(gpu_ids=["volta-0/0", "volta-0/0", "odd-0/0"]), "block.gpu_ids[1]", "once"
    yield (
        "times falling",
        block(column(POWER, W, np.zeros((2, 3))), sample_times_unix_s=[now, now - 1]),
        "block.sample_times_unix_s[1]",
        "in order",
    )
    yield "time NaN", block(sample_times_unix_s=[NAN]), "block.sample_times_unix_s[0]", "nan"
    yield "the future", block(sample_times_unix_s=[now + 30 * 86_400]), "block.sample_times_unix_s[0]", "in the future"
    yield "long ago", block(sample_times_unix_s=[now - 2e5]), "block.sample_times_unix_s[0]", "s ago"
    yield (
        "cluster time in place of wall time",
        block(sample_times_unix_s=[12.5]),
        "block.sample_times_unix_s[0]",
        "cluster_times_s",
    )
    yield (
        "cluster times too few",
        block(column(POWER, W, np.zeros((2, 3))), sample_times_unix_s=[now] * 2, cluster_times_s=[1.0]),
        "block.cluster_times_s",
        "needs none or 2",
    )
    yield "value infinite", block(column(POWER, W, [1, math.inf, 3])), "block.columns[0].values_f32", "send NaN"
    yield "metric unknown", block(column(99, W, [1, 2, 3])), "block.columns[0].metric", "METRIC_UTILIZATION"
    yield (
        "no column",
        telemetry_pb2.TelemetryBlock(cluster="default", gpu_ids=GPU_IDS, sample_times_unix_s=[now]),
        "block.columns",
        "1",
    )
    yield "no sample", block(sample_times_unix_s=[]), "block.sample_times_unix_s", "1"


BAD_BLOCKS = {name: (bad, field, way_out) for name, bad, field, way_out in _bad_blocks()}


@pytest.mark.parametrize("case", BAD_BLOCKS)
async def test_a_bad_block_ends_the_stream_with_its_index_and_those_before_it_are_stored(ingest, redis_url, case):
    bad, field, way_out = BAD_BLOCKS[case]
    await ingest.describe()
    with pytest.raises(InvalidInput) as caught:
        await push(ingest, block(), block(), bad, block())
    error = caught.value
    assert error.field == field
    assert f"message 2 of the stream: {field}: " in error.message
    assert way_out in error.message
    assert "the 2 blocks before it are stored" in error.message
    assert error.metadata["index"] == "2"
    assert len(await entries(redis_url)) == 2
    before = stored(redis_url)
    with pytest.raises(InvalidInput) as caught:
        await push(ingest, bad)
    assert "nothing is stored" in caught.value.message
    assert stored(redis_url) == before


async def test_a_first_block_without_gpus_is_refused(ingest, redis_url):
    await ingest.describe()
    with pytest.raises(InvalidInput) as caught:
        await push(ingest, block(gpu_ids=[]))
    assert caught.value.field == "block.gpu_ids"
    assert stored(redis_url) == {}


async def test_telemetry_of_an_unknown_cluster_is_not_found_with_the_way_out(ingest, redis_url):
    await ingest.describe()
    with pytest.raises(NotFound) as caught:
        await push(ingest, block(cluster="other"))
    assert caught.value.field == "block.cluster"
    assert "'other'" in caught.value.message
    assert "known are default" in caught.value.message
    assert "UpsertCluster" in caught.value.message
    assert stored(redis_url) == {}


async def test_who_names_no_cluster_means_the_one_that_was_described_last(redis_url):
    lab = dataclasses.replace(CLUSTER, name="lab", nodes=CLUSTER.nodes[:1])
    gpus = [gpu.gpu_id for _, gpu in lab.gpus()]

    async def current(ingest: Ingest) -> str:
        request = telemetry_service_pb2.GetClusterRequest()
        return str((await ingest.call(ingest.telemetry.GetCluster, request)).cluster.name)

    async with (
        ingest_here(redis_url, cluster_cache_s=0.0) as here,
        Ingest(here) as ingest,
        ingest_here(redis_url, cluster_cache_s=0.0) as there,
        Ingest(there) as replica,
        ingest_here(redis_url, cluster_cache_s=0.0, cluster="default") as set_there,
        Ingest(set_there) as kept,
    ):
        with pytest.raises(NotFound, match=r"none is described yet, no cluster is known yet; .*UpsertCluster"):
            await current(ingest)
        await ingest.describe()
        assert await current(ingest) == await current(replica) == "default"
        await replica.describe(lab)
        assert await current(ingest) == await current(replica) == "lab"
        assert await current(kept) == "default"  # by its setting
        # Jobs are checked against it: one that only the other cluster can hold is refused.
        largest = max(node.cpu_cores for node in lab.nodes)
        with pytest.raises(InvalidInput, match="of cluster 'lab' has"):
            await ingest.submit(job(cpu_cores=largest + 1))
        assert await push(ingest, block(cluster="lab", gpu_ids=gpus, columns=[column(POWER, W, [10] * len(gpus))]))
        assert list((await telemetry(replica)).latest.gpu_ids) == gpus
        await ingest.describe()
        assert await current(replica) == "default"


async def test_a_cluster_that_grew_is_seen_by_the_next_block(redis_url):
    # The description is cached for a minute, and replaced by another replica.
    async with (
        ingest_here(redis_url, cluster_cache_s=60.0) as here,
        Ingest(here) as ingest,
        ingest_here(redis_url) as there,
        Ingest(there) as other,
    ):
        await ingest.describe(dataclasses.replace(CLUSTER, nodes=CLUSTER.nodes[:1]))
        with pytest.raises(InvalidInput):
            await push(ingest, block())
        await other.describe()
        assert (await push(ingest, block())).block_count == 1


# --- limits and failures --------------------------------------------------------------------------------------------


async def test_the_stream_keeps_the_newest_blocks_only(redis_url):
    async with ingest_here(redis_url, telemetry_entries_kept=100) as there, Ingest(there) as ingest:
        await ingest.describe()
        assert (await push(ingest, *(block() for _ in range(1000)))).block_count == 1000
        assert 100 <= len(await entries(redis_url)) <= 300  # Redis trims whole nodes of 100 entries


async def test_sources_that_never_come_back_are_forgotten_when_newer_values_cover_them(ingest, redis_url):
    nodes = tuple(Node(f"n{i}", 1, 1, (Gpu(f"n{i}/0", "t4", 1), Gpu(f"n{i}/1", "t4", 1))) for i in range(20))
    await ingest.describe(Cluster("default", nodes))
    now = time.time()
    ids = [f"n{i}/{j}" for i in range(20) for j in range(2)]
    pairs = [[one, other] for one in ids for other in ids if one != other][:600]
    zeros = [column(POWER, W, [1, 1])]
    await push(ingest, *(block(gpu_ids=pair, columns=zeros, sample_times_unix_s=[now]) for pair in pairs))
    async with aioredis.Redis.from_url(redis_url) as client:
        assert await client.hlen(LATEST) <= 300
    power = latest_columns(await telemetry(ingest))[POWER]
    assert np.count_nonzero(~np.isnan(array(power.raw_f32, 40))) == len({each for pair in pairs for each in pair})


async def test_a_stream_that_meets_a_failure_of_redis_tells_how_much_is_stored(ingest, redis_server, redis_url):
    await ingest.describe()
    requests: asyncio.Queue[telemetry_pb2.TelemetryBlock] = asyncio.Queue()

    async def sent() -> AsyncIterator[telemetry_service_pb2.PushTelemetryRequest]:
        while True:
            yield telemetry_service_pb2.PushTelemetryRequest(block=await requests.get())

    call = ingest.telemetry.PushTelemetry(sent(), timeout=TIMEOUT_S)
    for _ in range(3):
        requests.put_nowait(block())
    async with aioredis.Redis.from_url(redis_url) as client:
        while await client.xlen(STREAM) < 3:
            await client.xread({STREAM: "$"}, block=20)
    # What Redis has stored, the service has heard of once it has heard of what came later.
    for _ in range(3):
        await telemetry(ingest)
    redis_server.kill()
    requests.put_nowait(block())
    # The stream ends by itself, without another block.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = from_rpc_error(caught.value)
    assert isinstance(error, Unavailable)
    assert error.metadata["index"] == "3"
    assert "the 3 blocks before it are stored" in error.message
    redis_server.start()
    assert len(await entries(redis_url)) == 3


@pytest.mark.slow
async def test_a_drain_stores_what_has_come_and_ends_the_stream(redis_url):
    with spawn_service("ingest", {"ADLRO_REDIS_URL": redis_url}) as service:
        async with Ingest(service.address) as ingest:
            await ingest.describe()
            push_telemetry: Any = ingest.telemetry.PushTelemetry  # the stubs know no call that is written to
            call = push_telemetry(timeout=TIMEOUT_S)
            for _ in range(5):
                await call.write(telemetry_service_pb2.PushTelemetryRequest(block=block()))
            async with aioredis.Redis.from_url(redis_url) as client:
                while await client.xlen(STREAM) < 5:
                    await client.xread({STREAM: "$"}, block=20)
            service.terminate()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            error = from_rpc_error(caught.value)
            assert isinstance(error, Unavailable)
            assert error.metadata["index"] == "5"
            assert "shutting down" in error.message
        assert await asyncio.to_thread(service.wait) == 0
