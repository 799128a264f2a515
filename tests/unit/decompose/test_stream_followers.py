"""Followers over a Redis that is a dictionary: cursors, outages, streams that begin anew, clusters that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.errors import NotFound, Unavailable
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec, JobType
from adlro.records.telemetry import Metric
from adlro.services.decompose import stream_followers
from adlro.services.decompose.clients import BadEntry, StreamEntry, StreamInfo, decode_outcome
from adlro.services.decompose.clusters.gpu_matrix import GpuMatrices
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import OutcomeMemory
from adlro.services.decompose.runtimes.plain_predictor import PlainPredictor
from adlro.services.decompose.stream_followers import FollowedStreams
from adlro.services.decompose.variables.variables import Variables
from adlro.store.keys import OUTCOMES, telemetry_key
from adlro.v1 import stream_pb2, telemetry_pb2
from adlro.wire import cluster_to_proto, spec_to_proto


class FakeRedis:
    """Streams, descriptions and latest blocks in memory; `down` makes every call fail."""

    def __init__(self) -> None:
        self.streams: dict[str, list[StreamEntry]] = {}
        self.added: dict[str, int] = {}
        self.described: dict[str, bytes] = {}
        self.current = ""
        self.latest: dict[str, list[bytes]] = {}
        self.down = False
        self.calls = 0
        self._milliseconds = 0
        self._news = asyncio.Event()

    def add(self, stream: str, payload: bytes) -> None:
        self._milliseconds += 1
        self.streams.setdefault(stream, []).append(StreamEntry(f"{self._milliseconds}-0", payload))
        self.added[stream] = self.added.get(stream, 0) + 1
        self._news.set()
        self._news = asyncio.Event()

    def lose(self, stream: str) -> None:
        self.streams.pop(stream, None)
        self.added.pop(stream, None)

    def _call(self) -> None:
        self.calls += 1
        if self.down:
            raise Unavailable("Redis does not answer: it is down")

    async def read(self, stream: str, after: str, count: int, block_ms: int | None = None) -> list[StreamEntry]:
        self._call()
        milliseconds = int(after.partition("-")[0])
        for _ in range(2):
            found = [each for each in self.streams.get(stream, []) if int(each.entry_id[:-2]) > milliseconds][:count]
            if found or block_ms is None:
                break
            try:
                async with asyncio.timeout(block_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                break
            self._call()
        await asyncio.sleep(0)
        return found

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        self._call()
        return self.streams.get(stream, [])[-count:]

    async def info(self, stream: str) -> StreamInfo | None:
        self._call()
        entries = self.streams.get(stream)
        return StreamInfo(entries[-1].entry_id, self.added[stream]) if entries else None

    async def clusters(self) -> dict[str, bytes]:
        self._call()
        return dict(self.described)

    async def current_cluster(self) -> str:
        self._call()
        return self.current

    async def latest_blocks(self, cluster: str) -> list[bytes]:
        self._call()
        return self.latest.get(cluster, [])


class Suite:
    """Followers of a fake Redis, and what they fold into."""

    def __init__(self, tail_count: int = 4, **followers) -> None:
        self.redis = FakeRedis()
        self.states: list[str] = []
        self.clusters = GpuMatrices()
        variables, speeds = Variables(), ModelSpeeds()
        self.memory = OutcomeMemory(variables, speeds)
        predictor = PlainPredictor(self.memory, speeds, self.clusters.gpu_models)
        self.registry = CollectorRegistry()
        self.followers = FollowedStreams(
            self.redis,
            predictor,
            self.clusters,
            poll_s=0.05,
            telemetry_tail_count=tail_count,
            metrics=DecomposeMetrics(self.registry),
            log=structlog.get_logger(),
            on_state=self.states.append,
            **followers,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Suite]:
        life = asyncio.create_task(self.followers.run())
        try:
            yield self
            assert not life.done(), life.exception()
        finally:
            life.cancel()
            await asyncio.wait([life])

    def temperatures(self, cluster: str = "default") -> list[float]:
        plane = self.clusters.find(cluster).snapshot().planes[Metric.TEMPERATURE]
        return [float(value) for value in plane.raw]

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"adlro_decompose_{name}_total", labels) or 0.0


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(stream_followers, "BLOCK_MS", 20)
    monkeypatch.setattr(stream_followers, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(stream_followers, "_FOLD_TIMEOUT_S", 60.0)  # no test waits for its end


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Waits until a condition holds, looking at it between the turns of other tasks."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the conditions are of plain objects
            await asyncio.sleep(0.002)


def outcome(number: int, *, succeeded: bool = True, runtime_s: float = 10.0) -> bytes:
    spec = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")
    return stream_pb2.OutcomeStreamEntry(
        job_id=f"job-{number}",
        spec=spec_to_proto(spec),
        gpu_model="v100_sxm2",
        runtime_s=runtime_s,
        succeeded=succeeded,
    ).SerializeToString()


def description(*gpu_ids: str, name: str = "default") -> bytes:
    gpus = tuple(Gpu(gpu_id, "v100_sxm2", 16160) for gpu_id in gpu_ids)
    return cluster_to_proto(Cluster(name, (Node("n", 20, 1024, gpus),))).SerializeToString()


def normalized(gpu_ids: list[str], time: float, celsius: list[float]) -> telemetry_pb2.NormalizedBlock:
    values = np.array(celsius, dtype="<f4")
    column = telemetry_pb2.NormalizedColumn(
        metric=telemetry_pb2.METRIC_TEMPERATURE,
        unit=telemetry_pb2.UNIT_CELSIUS,
        raw_f32=values.tobytes(),
        normalized_f32=(values / 100).tobytes(),
    )
    return telemetry_pb2.NormalizedBlock(gpu_ids=gpu_ids, sample_times_unix_s=[time], columns=[column])


def telemetry(gpu_ids: list[str], time: float, celsius: list[float]) -> bytes:
    return stream_pb2.TelemetryStreamEntry(block=normalized(gpu_ids, time, celsius)).SerializeToString()


async def test_learning_is_waited_for_after_every_outcome():
    known = []

    async def learned() -> None:
        known.append(len(suite.memory))

    suite = Suite(learned=learned)
    for number in range(30):
        suite.redis.add(OUTCOMES, outcome(number))
    async with suite.running():
        await until(lambda: len(suite.memory) == 30)
    assert known == list(range(1, 31))


async def test_the_whole_stream_is_folded_then_what_comes():
    suite = Suite()
    for number in range(450):
        suite.redis.add(OUTCOMES, outcome(number))
    async with suite.running():
        assert suite.followers.waiting_for()
        await until(lambda: not suite.followers.waiting_for())
        assert len(suite.memory) == 450
        suite.redis.add(OUTCOMES, outcome(450))
        await until(lambda: len(suite.memory) == 451)


async def test_failed_jobs_and_entries_that_cannot_be_read_are_counted_and_left_out():
    suite = Suite()
    suite.redis.add(OUTCOMES, b"\xff\xff not a message")
    suite.redis.add(OUTCOMES, b"")
    suite.redis.add(OUTCOMES, outcome(1, succeeded=False))
    suite.redis.add(OUTCOMES, outcome(2, runtime_s=float("nan")))
    suite.redis.add(OUTCOMES, outcome(3))
    suite.redis.add(OUTCOMES, outcome(3))
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
    assert len(suite.memory) == 1
    # An empty message is an outcome that did not succeed.
    assert suite.count("bad_entries") == 1
    assert suite.count("outcomes", result="failed") == 2
    assert suite.count("outcomes", result="left_out") == 2
    assert suite.count("outcomes", result="learned") == 1


async def test_after_an_outage_it_goes_on_at_the_cursor():
    suite = Suite()
    suite.redis.add(OUTCOMES, outcome(1))
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        revision = suite.memory.revision
        suite.redis.down = True
        await until(lambda: suite.states[-1] == "Redis does not answer: it is down")
        suite.redis.add(OUTCOMES, outcome(2))
        suite.redis.down = False
        await until(lambda: len(suite.memory) == 2 and suite.states[-1] == "")
        assert suite.memory.revision == revision + 1  # nothing was folded again


async def test_redis_away_at_start_is_waited_for():
    suite = Suite()
    suite.redis.down = True
    async with suite.running():
        await until(lambda: suite.redis.calls > 10)
        assert suite.followers.waiting_for() == "Redis does not answer: it is down"
        with pytest.raises(Unavailable, match="it is down"):
            await suite.followers.matrix("default")
        suite.redis.described["default"] = description("n/0")
        suite.redis.add(OUTCOMES, outcome(1))
        suite.redis.down = False
        await until(lambda: not suite.followers.waiting_for())
        assert len(suite.memory) == 1


async def test_who_names_no_cluster_means_the_one_that_was_described_last():
    suite = Suite()
    suite.redis.described = {"default": description("n/0"), "lab": description("n/1")}
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        assert await suite.followers.named("") == "default"  # none is kept: a store of an older version
        suite.redis.current = "lab"
        await suite.followers.refresh_descriptions()
        assert await suite.followers.named("") == "lab"
        assert await suite.followers.named("default") == "default"
        suite.redis.down = True
        assert await suite.followers.named("") == "lab"


@pytest.mark.parametrize("again", [0, 1, 2])
async def test_a_stream_that_vanished_or_began_anew_is_folded_from_its_start(again):
    suite = Suite()
    for number in range(3):
        suite.redis.add(OUTCOMES, outcome(number))
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        calls = suite.redis.calls
        await until(lambda: suite.redis.calls > calls + 10)  # it has looked at the stream's count
        suite.redis.lose(OUTCOMES)
        for number in range(again):
            suite.redis.add(OUTCOMES, outcome(100 + number))
        await until(lambda: len(suite.memory) == again and not suite.followers.waiting_for())
        suite.redis.add(OUTCOMES, outcome(200))
        await until(lambda: len(suite.memory) == again + 1)


async def test_telemetry_is_seeded_from_the_latest_blocks_and_the_streams_tail():
    suite = Suite(tail_count=2)
    suite.redis.described["default"] = description("n/0", "n/1", "n/2")
    suite.redis.latest["default"] = [normalized(["n/2"], 1.0, [30.0]).SerializeToString(), b"\xff"]
    for time in range(1, 10):
        suite.redis.add(telemetry_key("default"), telemetry(["n/0"], time, [50.0 + time]))
    suite.redis.add(telemetry_key("default"), telemetry(["n/1"], 10.0, [40.0]))
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        assert suite.temperatures() == [59.0, 40.0, 30.0]
        assert suite.count("telemetry_blocks") == 2  # the tail, not all ten
        assert suite.count("bad_entries") == 1
        suite.redis.add(telemetry_key("default"), telemetry(["n/1"], 11.0, [41.0]))
        await until(lambda: suite.temperatures()[1] == 41.0)


async def test_a_block_whose_columns_do_not_fit_is_left_out_whole():
    suite = Suite()
    suite.redis.described["default"] = description("n/0", "n/1")
    bad = normalized(["n/0", "n/1"], 1.0, [50.0])
    nowhen = normalized(["n/0"], float("nan"), [50.0])
    for block in (bad, nowhen):
        suite.redis.add(telemetry_key("default"), stream_pb2.TelemetryStreamEntry(block=block).SerializeToString())
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
    assert suite.count("bad_entries") == 2
    assert np.isnan(suite.temperatures()).all()


async def test_a_cluster_described_later_is_found_at_once_with_what_it_has_reported():
    suite = Suite()
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        with pytest.raises(NotFound):
            await suite.followers.matrix("lab")
        suite.redis.described["lab"] = description("n/0", name="lab")
        suite.redis.add(telemetry_key("lab"), telemetry(["n/0"], 1.0, [50.0]))
        matrix = await suite.followers.matrix("lab")
        assert matrix.snapshot().planes[Metric.TEMPERATURE].raw.tolist() == [50.0]
        del suite.redis.described["lab"]
        await until(lambda: "lab" not in suite.clusters.matrices)


async def test_gpus_added_to_a_cluster_show_what_they_reported_before():
    suite = Suite()
    suite.redis.described["default"] = description("n/0")
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        suite.redis.add(telemetry_key("default"), telemetry(["n/0", "n/1"], 1.0, [50.0, 60.0]))
        await until(lambda: suite.temperatures() == [50.0])
        suite.redis.described["default"] = description("n/1", "n/0")
        await until(lambda: suite.temperatures() == [60.0, 50.0])


async def test_a_description_that_cannot_be_read_does_not_hide_the_others():
    suite = Suite()
    suite.redis.described = {"default": description("n/0"), "broken": b"\xff"}
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        assert list(suite.clusters.matrices) == ["default"]
        with pytest.raises(NotFound, match="known: default"):
            await suite.followers.matrix("broken")


@pytest.mark.parametrize("error", [ValueError("no"), OverflowError("no"), np.linalg.LinAlgError("no")])
async def test_a_job_that_cannot_be_learned_is_left_out_and_the_rest_goes_on(error, monkeypatch):
    suite = Suite()
    learn = suite.memory.add

    def add(job):
        if job.job_id == "job-1":
            raise error
        return learn(job)

    monkeypatch.setattr(suite.memory, "add", add)
    for number in range(3):
        suite.redis.add(OUTCOMES, outcome(number))
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        assert [job.job_id for job in suite.memory.jobs()] == ["job-0", "job-2"]
        assert suite.count("bad_entries") == 1


async def test_other_work_has_its_turn_while_many_outcomes_are_folded():
    suite = Suite()
    for number in range(stream_followers.OUTCOMES_BATCH_COUNT):
        suite.redis.add(OUTCOMES, outcome(number))
    seen = [0]
    async with suite.running():
        while len(suite.memory) < stream_followers.OUTCOMES_BATCH_COUNT:
            await asyncio.sleep(0)
            seen.append(len(suite.memory))
            assert suite.followers.outcomes_cursor in {stream_followers.START, f"{seen[-1]}-0"}
    assert max(np.diff(seen)) <= 20


def test_an_outcome_says_on_which_gpus_a_job_ran_and_whether_they_were_spread():
    entry = stream_pb2.OutcomeStreamEntry.FromString(outcome(1))
    entry.gpu_id, entry.spread = "n/0", True
    one = decode_outcome(entry.SerializeToString())
    assert one is not None
    assert (one.gpus, one.gpu_ids, one.spread) == ((("default", "n/0"),), (), False)  # one GPU is on one node
    entry.spec.gpu_count = 2
    for gpu_id in ("n/0", "m/1"):
        entry.placement.gpus.add(gpu_id=gpu_id, share=1.0)
    two = decode_outcome(entry.SerializeToString())
    assert two is not None
    assert (two.gpu_id, two.gpus, two.spread) == ("n/0", (("default", "n/0"), ("default", "m/1")), True)
    entry.placement.gpus[1].gpu_id = "n/0"
    with pytest.raises(BadEntry, match="placement: a placement names a GPU twice"):
        decode_outcome(entry.SerializeToString())


async def test_what_a_file_holds_is_kept_though_the_stream_is_empty_or_began_anew():
    suite = Suite(keep_outcomes=True, outcomes_after="170000-0")
    job = decode_outcome(outcome(1))
    assert job is not None
    suite.memory.add(job)
    async with suite.running():
        await until(lambda: not suite.followers.waiting_for())
        await until(lambda: suite.followers.outcomes_cursor == stream_followers.START)
        assert len(suite.memory) == 1
        suite.redis.add(OUTCOMES, outcome(1))
        suite.redis.add(OUTCOMES, outcome(2))
        await until(lambda: len(suite.memory) == 2)
