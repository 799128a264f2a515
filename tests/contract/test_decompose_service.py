"""What every DecomposeService does: one suite, run on a server in this process and on a spawned one."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.errors import AdlroError, InvalidInput, NotFound
from adlro.kit.testing import spawn_service
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import ExpectedRuntime, JobType, Preemptible
from adlro.records.outcomes import ApplicationSize, NeighbourTime, StoppedRun
from adlro.records.payloads import process_payload
from adlro.records.telemetry import Metric
from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.hypervectors.codebook import Codebook
from adlro.store.keys import CLUSTERS, OUTCOMES, telemetry_key
from adlro.v1 import decompose_service_pb2 as pb
from adlro.v1 import job_pb2, telemetry_pb2
from adlro.wire import PlanesAssembly, spec_to_proto
from tests.contract.decompose_suite import (
    IMPLEMENTATIONS,
    MODELS,
    TIMEOUT_S,
    Caller,
    Store,
    Watch,
    learned,
    plane,
    spec,
)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    made = Store(redis_url)
    yield made
    await made.redis.aclose()


@pytest.fixture(params=list(IMPLEMENTATIONS))
async def caller(request, redis_url: str) -> AsyncIterator[Caller]:
    async with IMPLEMENTATIONS[request.param](redis_url) as address:
        made = Caller(address)
        await made.until_serving()
        yield made
        await made.close()


async def test_records_become_variables(caller: Caller):
    job = spec(priority=0.9, gpu_memory_mib=8000, expected_runtime=ExpectedRuntime("v100_sxm2", 30.0))
    gpu = pb.GpuSample(gpu_model="v100_sxm2", utilization_ratio=0.87, memory_used_mib=5000, temperature_c=63)
    first, second = await caller.decompose(pb.Record(job=spec_to_proto(job)), pb.Record(gpu=gpu))
    assert {name: value for name, (value, _) in first.items()} == {
        "priority_class": "high",
        "job_type": "simulation",
        "application": "tealeaf",
        "user": "ann",
        "size_class": "10..60 s/<=8 GiB",
    }
    assert {name: value for name, (value, _) in second.items()} == {
        "gpu_model": "v100_sxm2",
        "utilization_level": "0.85..0.90",
        "memory_level": "4096..6144 MiB",
        "temperature_level": "60..65 C",
    }


async def test_numbers_of_values_stay(caller: Caller):
    [before] = await caller.decompose(pb.Record(job=spec_to_proto(spec("ann"))))
    [other] = await caller.decompose(pb.Record(job=spec_to_proto(spec("bob"))))
    [after] = await caller.decompose(pb.Record(job=spec_to_proto(spec("ann"))))
    assert before == after
    assert before["user"] != other["user"]
    assert before["application"] == other["application"]


BAD_RECORDS = [
    (pb.Record(), "records[0].record"),
    (pb.Record(gpu=pb.GpuSample()), "records[0].gpu.gpu_model"),
    (pb.Record(gpu=pb.GpuSample(gpu_model="t4", utilization_ratio=math.nan)), "records[0].gpu.utilization_ratio"),
    (pb.Record(gpu=pb.GpuSample(gpu_model="t4", utilization_ratio=1.5)), "records[0].gpu.utilization_ratio"),
    (pb.Record(gpu=pb.GpuSample(gpu_model="t4", temperature_c=math.inf)), "records[0].gpu.temperature_c"),
    (pb.Record(gpu=pb.GpuSample(gpu_model="t4", memory_used_mib=-1)), "records[0].gpu.memory_used_mib"),
    (pb.Record(job=job_pb2.JobSpec()), "records[0].job.name"),
    # Field 99 of a GPU sample, field 15 of a job, field 7 of a record: of a release that is not this one.
    (pb.Record(gpu=pb.GpuSample.FromString(b"\x0a\x02t4\x98\x06\x01")), "records[0].gpu"),
    (
        pb.Record(job=job_pb2.JobSpec.FromString(spec_to_proto(spec()).SerializeToString() + b"\x78\x01")),
        "records[0].job",
    ),
    (pb.Record.FromString(b"\x12\x04\x0a\x02t4\x38\x01"), "records[0]"),
]


async def test_a_bad_record_is_refused_by_its_field(caller: Caller):
    for record, field in BAD_RECORDS:
        with pytest.raises(InvalidInput) as caught:
            await caller.decompose(record)
        assert field in [each.field for each in caught.value.violations]
        assert field in caught.value.message
    assert await caller.decompose(pb.Record(gpu=pb.GpuSample(gpu_model="t4")))  # it serves on


async def test_nothing_to_decompose_is_refused(caller: Caller):
    with pytest.raises(InvalidInput, match="records"):
        await caller.decompose()


async def test_the_gpu_matrix(caller: Caller, store: Store):
    with pytest.raises(NotFound, match="no cluster 'default' is described"):
        await caller.state()
    await store.describe()
    state = await caller.state()
    assert [(gpu.gpu_id, gpu.node_id, gpu.gpu_model) for gpu in state.gpus] == [
        ("volta-0/0", "volta-0", "v100_sxm2"),
        ("volta-0/1", "volta-0", "v100_sxm2"),
        ("lab-0/0", "lab-0", "a100_pcie"),
    ]
    assert not state.HasField("newest_sample_unix_s")
    assert not any(gpu.HasField("sample_time_unix_s") for gpu in state.gpus)

    async with caller.watch() as watch:
        await watch.next()
        await store.report(["lab-0/0", "volta-0/1"], 1000.5, utilization=[0.25, 0.5], temperature=[40, math.nan])
        state = await watch.next()
    assert state.revision == (await caller.state()).revision
    raw, normalized = plane(state, "utilization")
    np.testing.assert_array_equal(raw, [math.nan, 0.5, 0.25])
    np.testing.assert_allclose(normalized, [math.nan, 0.005, 0.0025], rtol=1e-6)
    np.testing.assert_array_equal(plane(state, "temperature")[0], [math.nan, math.nan, 40])
    np.testing.assert_array_equal(plane(state, "power")[0], [math.nan] * 3)
    assert [telemetry_pb2.Unit.Name(each.unit) for each in state.planes] == [
        "UNIT_RATIO",
        "UNIT_MIB",
        "UNIT_GB_PER_S",
        "UNIT_CELSIUS",
        "UNIT_W",
    ]
    assert state.newest_sample_unix_s == 1000.5
    assert not state.gpus[0].HasField("sample_time_unix_s")
    assert state.gpus[2].sample_time_unix_s == 1000.5
    assert [(each.name, each.value) for each in state.gpus[2].variables] == [
        ("gpu_model", "a100_pcie"),
        ("utilization_level", "0.25..0.30"),
        ("temperature_level", "40..45 C"),
    ]


async def test_a_watcher_sees_the_newest_state_and_no_more_messages_than_it_asked_for(caller: Caller, store: Store):
    await store.describe()
    async with caller.watch(min_interval_s=0.3) as watch:
        first = await watch.next()
        began = time.monotonic()
        for number in range(50):
            await store.report(["volta-0/0"], 1000.0 + number, temperature=[number])
        states = [first]
        while plane(states[-1], "temperature")[0][0] != 49:
            states.append(await watch.next())
        took_s = time.monotonic() - began
    assert len(states) - 1 <= 1 + took_s / 0.3
    revisions = [state.revision for state in states]
    assert revisions == sorted(set(revisions))


async def test_planes_are_the_matrix_in_bytes_with_what_has_changed(caller: Caller, store: Store):
    await store.describe()
    view = pb.CLUSTER_STATE_VIEW_PLANES
    request = pb.WatchClusterStateRequest(min_interval_s=0.05, view=view)
    watches: list[Any] = [caller.stub.WatchClusterState(request, timeout=TIMEOUT_S) for _ in range(2)]
    assemblies = [PlanesAssembly() for _ in watches]
    firsts = [(await watch.read()).planes for watch in watches]
    for assembly, first in zip(assemblies, firsts, strict=True):
        assert [each[0] for each in assembly.add(first).gpus] == ["volta-0/0", "volta-0/1", "lab-0/0"]
    await store.report(["lab-0/0", "volta-0/1"], 1000.5, utilization=[0.25, 0.5])
    for watch, assembly in zip(watches, assemblies, strict=True):
        message = (await watch.read()).planes
        assert not message.HasField("gpus")
        assert [each.name for each in message.variables] == ["utilization_level"]
        told = assembly.add(message)
        state = await caller.state()
        assert (told.revision, told.newest_sample_unix_s) == (state.revision, 1000.5)
        _, normalized = plane(state, "utilization")
        np.testing.assert_allclose(told.planes[Metric.UTILIZATION], normalized, atol=0.5 / 254 + 1e-6)
        assert told.variables["utilization_level"] == ("", "0.50..0.55", "0.25..0.30")
        watch.cancel()
    whole = await caller._call("GetClusterState", pb.GetClusterStateRequest(view=view))
    assert not whole.HasField("state")
    newest = PlanesAssembly().add(whole.planes)
    assert newest.gpus == told.gpus
    np.testing.assert_array_equal(newest.planes[Metric.UTILIZATION], told.planes[Metric.UTILIZATION])
    with pytest.raises(InvalidInput) as caught:
        await caller._call("GetClusterState", pb.GetClusterStateRequest(view=view, include_bundle=True))
    assert caught.value.field == "include_bundle"


async def test_a_watcher_of_a_cluster_that_goes_is_told(caller: Caller, store: Store):
    await store.describe()
    async with caller.watch() as watch:
        await watch.next()
        await store.redis.hdel(CLUSTERS, "default")
        with pytest.raises(NotFound):
            await watch.next()


async def test_declared_runtimes_are_exact_while_they_hold_and_corrected_when_they_do_not(caller: Caller, store: Store):
    # tealeaf runs at 1.00, 0.70 and 0.97 of a V100.
    jobs = [spec(expected_runtime=ExpectedRuntime("v100_sxm2", 12.837))] * 2
    before = await caller.predict(jobs)
    await store.finish(1, jobs[0], "v100_sxm2", 12.837)
    await learned(caller, 1)
    after = await caller.predict(jobs)
    for answer in (before, after):
        for job in answer.predictions:
            assert [each.gpu_model for each in job.predictions] == MODELS
            assert [each.median_s for each in job.predictions] == [12.837, 12.837 / 0.7, 12.837 / 0.97]
            assert {each.basis for each in job.predictions} == {pb.PREDICTION_BASIS_DECLARED}
            assert all(each.low_s <= each.median_s <= each.high_s for each in job.predictions)
            assert {each.interval_coverage for each in job.predictions} == {0.8}
    assert before.predictions[0].predictions[0].novelty == 1.0
    assert after.predictions[0].predictions[0].novelty < 0.5
    assert after.memory_revision > before.memory_revision
    for number in range(2, 12):  # three times as long, again and again
        await store.finish(number, jobs[0], "v100_sxm2", 3 * 12.837)
    await learned(caller, 11)
    [corrected, _] = (await caller.predict(jobs)).predictions
    assert corrected.predictions[0].basis == pb.PREDICTION_BASIS_DECLARED
    assert 2 * 12.837 < corrected.predictions[0].median_s < 3.1 * 12.837


async def test_predictions_rest_on_the_closest_finished_jobs_and_show_them(caller: Caller, store: Store):
    await store.finish(1, spec("ann"), "rtx_2080_ti", 20.0)  # 14 s of work
    await store.finish(2, spec("bob"), "v100_sxm2", 40.0)
    await store.finish(3, spec("ann"), "v100_sxm2", 1.0, succeeded=False)
    await learned(caller, 2)
    jobs = [spec("ann"), spec("zoe"), spec("zoe", "", job_type=JobType.DATA_PROCESSING)]
    answer = await caller.predict(jobs, max_evidence=1)
    rows = [row.predictions for row in answer.predictions]
    assert [row[0].basis for row in rows] == [
        pb.PREDICTION_BASIS_USER_APPLICATION,
        pb.PREDICTION_BASIS_APPLICATION,
        pb.PREDICTION_BASIS_PRIOR,
    ]
    # ann's own jobs say most, bob's something; nothing says much about data processing.
    assert 14.0 < rows[0][0].median_s < rows[1][0].median_s < 40.0
    assert rows[2][0].median_s == pytest.approx(8.0, rel=0.3)
    for row in rows[:2]:
        assert row[0].median_s / row[1].median_s == pytest.approx(0.7, rel=0.1)
    assert rows[0][0].high_s / rows[0][0].low_s < rows[2][0].high_s / rows[2][0].low_s
    [evidence] = rows[0][1].evidence
    assert (evidence.job_id, evidence.similarity, evidence.gpu_model, evidence.runtime_s) == (
        "job-1",
        1.0,
        "rtx_2080_ti",
        20.0,
    )
    assert not (await caller.predict(jobs)).predictions[0].predictions[0].evidence


async def test_jobs_of_several_gpus_are_predicted_packed_and_spread(caller: Caller, store: Store):
    four, one = spec(gpu_count=4), spec()
    [before, alone] = (await caller.predict([four, one])).predictions
    assert [each.spread_speed for each in before.predictions] == pytest.approx([0.85] * len(MODELS))  # the table's
    assert not any(each.HasField("spread_speed") for each in alone.predictions)
    packed, spread = [f"volta-0/{number}" for number in range(4)], ["volta-0/0", "volta-0/1", "volta-1/0", "volta-1/1"]
    for number in range(1, 21, 2):
        await store.finish(number, four, "v100_sxm2", 40.0, gpu_id=packed[0], gpus=packed)
        await store.finish(number + 1, four, "v100_sxm2", 100.0, gpu_id=spread[0], gpus=spread)
    await learned(caller, 20)
    [after] = (await caller.predict([four], max_evidence=2)).predictions
    volta = after.predictions[0]
    assert volta.median_s == pytest.approx(40.0, rel=0.1)
    assert volta.spread_speed == pytest.approx(0.4, rel=0.15)
    assert volta.spread_low_s < 100.0 < volta.spread_high_s
    assert {(each.gpu_count, each.spread) for each in volta.evidence} == {(4, True), (4, False)}


async def test_restarts_are_as_stated_until_stopped_jobs_say_otherwise(caller: Caller, store: Store):
    stops, never, unstated = spec(preemptible=Preemptible(20.0)), spec(), spec(preemptible=Preemptible())
    [stated, none, typical] = (await caller.predict([stops, never, unstated])).predictions
    assert stated.restart_s == 20.0
    assert stated.restart_low_s < 20.0 < stated.restart_high_s
    assert not any(none.HasField(name) for name in ("restart_s", "restart_low_s", "restart_high_s"))
    assert typical.restart_s == pytest.approx(30.0)
    for number in range(20):
        await store.finish(number, stops, "v100_sxm2", 100.0 + number % 3)
    for number in range(20, 26):  # 100 s of work, and 60 s for each of two restarts
        runs = (StoppedRun("v100_sxm2", 30.0), StoppedRun("v100_sxm2", 110.0))
        await store.finish(number, stops, "v100_sxm2", 80.0, stopped=runs)
    await learned(caller, 26)
    [learnt] = (await caller.predict([stops])).predictions
    assert learnt.restart_s == pytest.approx(60.0, rel=0.1)
    assert 40.0 < learnt.restart_low_s < learnt.restart_s < learnt.restart_high_s < 80.0
    assert learnt.predictions[0].median_s == pytest.approx(100.0, rel=0.1)  # not 80


async def test_pairs_are_learned_from_jobs_that_shared_a_gpu(caller: Caller, store: Store):
    before = await caller.pairs(["tealeaf", ("bert", "32")])
    assert list(before.kept_share) == [0.6] * 4
    assert min(before.std) > 0.15
    for number in range(12):
        await store.finish(number, spec(), "v100_sxm2", 100.0 + number % 3)
    beside = NeighbourTime(ApplicationSize("bert", "32"), 240.0)
    for number in range(12, 18):
        await store.finish(number, spec(), "v100_sxm2", 250.0, neighbours=[beside])
    await learned(caller, 18)
    after = await caller.pairs(["tealeaf", ("bert", "32"), "zoe"], ["v100_sxm2", "rtx_2080_ti"])
    assert after.revision > before.revision
    kept = np.array(after.kept_share).reshape(3, 3, 2)
    assert kept[0, 1, 0] == pytest.approx(91 / 240, abs=0.05)
    assert np.array(after.std).reshape(3, 3, 2)[0, 1, 0] < 0.1
    assert kept[0, 1, 0] < kept[0, 1, 1] < kept[2, 2, 1] < 0.65  # on another model something, of others little
    rows = await caller.pairs(["tealeaf"], ["rtx_2080_ti"], beside=["zoe", ("bert", "32")])
    assert list(rows.kept_share) == pytest.approx([kept[0, 2, 1], kept[0, 1, 1]])
    [job] = (await caller.predict([spec()])).predictions
    assert job.predictions[0].median_s == pytest.approx(100.0, rel=0.1)  # not 250


async def test_gavels_pairs_are_known_from_the_start(caller: Caller):
    names = ["ResNet-18 (batch size 16)", "ResNet-18 (batch size 256)"]
    answer = await caller.pairs(names, ["v100_sxm2", "rtx_2080_ti"])
    kept = np.array(answer.kept_share).reshape(2, 2, 2)
    assert kept[0, 1, 0] == pytest.approx(0.7559, abs=0.04)
    assert kept[0, 1, 1] == 0.6


async def test_requests_for_pairs_that_cannot_be_are_refused_by_their_field(caller: Caller):
    many = [f"a{number}" for number in range(101)]
    for kinds, models, beside, field in (
        ([], ["v100_sxm2"], [], "kinds"),
        (["a"] * 1001, ["v100_sxm2"], ["a"], "kinds"),
        (["a"], ["v100_sxm2"], ["a"] * 1001, "beside"),
        (["a"], [], [], "gpu_models"),
        (["a"], ["v100_sxm2"] * 65, [], "gpu_models"),
        (["a", "b\0"], ["v100_sxm2"], [], "kinds[1].application"),
        ([("a", "x" * 256)], ["v100_sxm2"], [], "kinds[0].batch_size"),
        (["a"], ["v100_sxm2"], ["b" * 129], "beside[0].application"),
        (["a"], ["v100_sxm2", "no_such_gpu"], [], "gpu_models[1]"),
        (many, ["v100_sxm2"], [], "kinds"),  # 10,201 pairs
    ):
        with pytest.raises(AdlroError) as caught:
            await caller.pairs(kinds, models, beside)
        if caught.value.reason == "CLUSTERS_NOT_READ":
            continue
        assert isinstance(caught.value, InvalidInput)
        assert field in caught.value.message
    assert len((await caller.pairs(many[:100], ["v100_sxm2"])).std) == 10_000


async def test_recall_gives_the_most_similar_finished_jobs(caller: Caller, store: Store):
    assert await caller.recall(spec()) == []
    for number in range(12):
        await store.finish(number, spec("ann" if number % 2 else "bob"), "v100_sxm2", 10.0 + number)
    await learned(caller, 12)
    found = await caller.recall(spec("ann"))
    assert [each.job_id for each in found] == [f"job-{n}" for n in (11, 9, 7, 5, 3, 1, 10, 8)]
    assert [each.similarity for each in found] == pytest.approx([1.0] * 6 + [67 / 92] * 2)
    assert found[0].job == spec_to_proto(spec("ann"))
    assert (found[0].gpu_model, found[0].runtime_s) == ("v100_sxm2", 21.0)
    assert len(await caller.recall(spec("ann"), k=3)) == 3


async def test_models_without_speed_figures_are_known_by_the_cluster_that_has_them(caller: Caller, store: Store):
    job = spec(expected_runtime=ExpectedRuntime("v100_sxm2", 10.0))
    with pytest.raises(InvalidInput) as caught:
        await caller.predict([job], ["v100_sxm2", "a100_pcie"])
    assert caught.value.field == "gpu_models[1]"
    assert "v100_sxm2, rtx_2080_ti, radeon_vii" in caught.value.message
    await store.describe()
    await caller.state()
    [row] = (await caller.predict([job], ["v100_sxm2", "a100_pcie"])).predictions
    known, unknown = row.predictions
    assert unknown.median_s == 10.0
    assert unknown.high_s / unknown.low_s > known.high_s / known.low_s


async def test_programs_without_a_type_are_predicted_by_their_application(caller: Caller, store: Store):
    payload = process_payload(["python", "train.py"], environment={"PASSWORD": "hidden"})
    program = spec(application="", job_type=JobType.UNSPECIFIED, payload=payload)
    for number in range(8):
        await store.finish(number, replace(program, application="python:train.py"), "v100_sxm2", 40.0)
    await learned(caller, 8)
    [answer] = (await caller.predict([program])).predictions
    assert answer.predictions[0].basis == pb.PREDICTION_BASIS_USER_APPLICATION
    assert answer.predictions[0].median_s == pytest.approx(40.0, rel=0.1)
    found = await caller.recall(program, k=1)
    assert found[0].similarity == pytest.approx(1.0)
    assert (found[0].job.application, found[0].job.job_type) == ("python:train.py", 0)
    assert not found[0].job.HasField("payload"), "recall shows other users' jobs"
    [variables] = await caller.decompose(pb.Record(job=spec_to_proto(program)))
    assert variables["application"][0] == "python:train.py"
    assert "job_type" not in variables
    bad = pb.Record(job=spec_to_proto(replace(program, payload=None)))
    with pytest.raises(InvalidInput) as refused:
        await caller.decompose(bad)
    assert [each.field for each in refused.value.violations] == ["records[0].job.job_type"]


BAD_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"expected_runtime": {"gpu_model": "v100_sxm2", "runtime_s": math.nan}}, "jobs[0].expected_runtime.runtime_s"),
    ({"expected_runtime": {"gpu_model": "v100_sxm2", "runtime_s": -1}}, "jobs[0].expected_runtime.runtime_s"),
    ({"priority": math.nan}, "jobs[0].priority"),
    ({"name": ""}, "jobs[0].name"),
    ({"job_type": 0}, "jobs[0].job_type"),
]


async def test_a_bad_job_is_refused_by_its_field(caller: Caller):
    for change, field in BAD_JOBS:
        fields = {"name": "a", "user": "ann", "job_type": job_pb2.JOB_TYPE_SIMULATION, **change}
        with pytest.raises(InvalidInput) as caught:
            await caller.predict([job_pb2.JobSpec(**fields)])
        assert field in [each.field for each in caught.value.violations]
    assert (await caller.predict([spec()])).predictions  # it serves on


async def test_entries_that_cannot_be_read_do_no_harm(caller: Caller, store: Store):
    await store.describe()
    await caller.state()
    for stream in (OUTCOMES, telemetry_key("default")):
        await store.redis.xadd(stream, {"m": b"\xff\xff"})
        await store.redis.xadd(stream, {"other": b"x"})
    await store.finish(1, spec(), "v100_sxm2", 10.0)
    await learned(caller, 1)
    async with caller.watch() as watch:
        await watch.next()
        await store.report(["volta-0/0"], 1.0, temperature=[50])
        assert plane(await watch.next(), "temperature")[0][0] == 50
    assert await caller.serving()


async def test_the_matrix_of_a_thousand_gpus_is_fresh_within_250_ms(caller: Caller, store: Store):
    nodes = tuple(
        Node(f"n-{n}", 64, 1 << 20, tuple(Gpu(f"n-{n}/{g}", "v100_sxm2", 16160) for g in range(8))) for n in range(125)
    )
    cluster = Cluster("large", nodes)
    gpu_ids = [gpu.gpu_id for _, gpu in cluster.gpus()]
    await store.describe(cluster)
    numbers = itertools.count()

    async def late_s(watch: Watch) -> list[float]:
        """Of ten samples."""
        found = []
        for number in itertools.islice(numbers, 10):
            values = [float(number)] * len(gpu_ids)
            began = time.monotonic()
            await store.report(
                gpu_ids,
                1000.0 + number,
                "large",
                utilization=values,
                memory_used=values,
                temperature=values,
                power=values,
            )
            while (state := await watch.next()).newest_sample_unix_s != 1000.0 + number:
                pass
            found.append(time.monotonic() - began)
            assert plane(state, "temperature")[0] == values
        return found

    async with caller.watch("large", min_interval_s=0.001) as watch:
        await watch.next()
        # More than once where the machine stands still now and then.
        tries: list[list[float]] = []
        while len(tries) < 5 and (not tries or statistics.median(tries[-1]) >= 0.25):
            tries.append(await late_s(watch))
    assert statistics.median(tries[-1]) < 0.25, tries


async def test_errors_are_of_the_tree(caller: Caller):
    with pytest.raises(AdlroError) as caught:
        await caller.state("no-such")
    assert type(caught.value) is NotFound
    assert caught.value.field == "cluster"


async def test_the_cluster_as_one_hypervector_is_read_by_who_has_the_codebook(caller: Caller, store: Store):
    await store.describe()
    await store.report(["volta-0/0", "lab-0/0"], 1.0, utilization=[0.42, 0.9], memory_used=[5000, 100])
    answer = await caller.stub.GetClusterState(pb.GetClusterStateRequest(include_bundle=True), timeout=TIMEOUT_S)
    bundle = answer.state.bundle
    while not any(variable.name == "utilization_level" for variable in answer.state.gpus[0].variables):
        answer = await caller.stub.GetClusterState(pb.GetClusterStateRequest(include_bundle=True), timeout=TIMEOUT_S)
        bundle = answer.state.bundle
    codebook = Codebook()
    assert bundle.codebook_version == codebook.version
    code = GpuRecordCode(codebook, {each.name: len(each.values) for each in bundle.variables})
    memory = ClusterMemory(code, [gpu.gpu_id for gpu in answer.state.gpus])
    values = memory.decode(bundle=np.frombuffer(bundle.components_i32, dtype="<i4")).values.tolist()
    read = [[each.values[value] for each, value in zip(bundle.variables, row, strict=True)] for row in values]
    assert read == [
        ["v100_sxm2", "0.40..0.45", "4096..6144 MiB"],
        ["v100_sxm2", "not known", "not known"],
        ["a100_pcie", "0.90..0.95", "0..2048 MiB"],
    ]
    assert not (await caller.state()).HasField("bundle")


async def test_another_vocabulary_is_refused(caller: Caller):
    record = pb.Record(job=spec_to_proto(spec()))
    answer = await caller.stub.Decompose(pb.DecomposeRequest(records=[record]), timeout=TIMEOUT_S)
    known = pb.DecomposeRequest(records=[record], vocabulary_version=answer.vocabulary_version)
    assert await caller.stub.Decompose(known, timeout=TIMEOUT_S) == answer
    with pytest.raises(InvalidInput) as caught:
        await caller._call("Decompose", pb.DecomposeRequest(records=[record], vocabulary_version="0"))
    assert caught.value.field == "vocabulary_version"
    assert await caller.stub.Decompose(known, timeout=TIMEOUT_S) == answer  # it serves on


async def test_a_slow_gpu_is_flagged_and_predicted_slower(caller: Caller, store: Store):
    await store.describe()
    number = 0
    for round_number in range(60):
        for gpu_id in ("volta-0/0", "volta-0/1"):
            slow = 1.6 if gpu_id == "volta-0/0" and round_number >= 30 else 1.0
            runtime_s = 10.0 * slow * (1.1 if round_number % 2 else 0.9)
            await store.finish(number, spec(), "v100_sxm2", runtime_s, gpu_id=gpu_id)
            number += 1
    await learned(caller, number)
    gpus = {gpu.gpu_id: gpu.drift for gpu in (await caller.state()).gpus}
    assert gpus["volta-0/0"].flagged
    assert gpus["volta-0/0"].speed_ratio == pytest.approx(1 / 1.6, rel=0.1)
    assert not gpus["volta-0/1"].flagged
    assert gpus["lab-0/0"].job_count == 0
    request = pb.PredictRuntimeRequest(
        jobs=[spec_to_proto(spec())], gpu_models=["v100_sxm2"], gpu_ids=["volta-0/1", "volta-0/0"], max_evidence=1
    )
    [row] = (await caller._call("PredictRuntime", request)).predictions
    assert [each.gpu_id for each in row.predictions] == ["", "volta-0/1", "volta-0/0"]
    model, healthy, slow_gpu = row.predictions
    assert model.median_s == pytest.approx(10.0, rel=0.12)
    assert healthy.median_s == pytest.approx(model.median_s, rel=0.05)
    assert slow_gpu.median_s == pytest.approx(model.median_s * 1.6, rel=0.12)
    for bad in ("nowhere/0", "lab-0/0"):
        request.gpu_ids[1] = bad
        with pytest.raises(InvalidInput) as caught:
            await caller._call("PredictRuntime", request)
        assert caught.value.field == "gpu_ids[1]"


@pytest.mark.slow
async def test_a_memory_file_is_taken_up_at_start_and_put_aside_when_it_is_cut_short(redis_url: str, store, tmp_path):
    path = tmp_path / "memory"
    environment = {"ADLRO_REDIS_URL": redis_url, "ADLRO_DECOMPOSE_MEMORY_PATH": str(path)}
    for number in range(20):
        await store.finish(number, spec(), "v100_sxm2", 30.0)
    with spawn_service("decompose", environment) as service:
        caller = Caller(service.address)
        await caller.until_serving()
        await learned(caller, 20)
        service.terminate()
        assert service.wait() == 0
    cursor = json.loads(path.read_bytes().partition(b"\n")[0])["cursor"]
    assert cursor != "0-0"
    # Only what the file holds: the entries are gone, the stream goes on.
    await store.redis.xtrim(OUTCOMES, maxlen=0)
    await store.finish(99, spec(), "v100_sxm2", 30.0)
    with spawn_service("decompose", environment) as service:
        caller = Caller(service.address)
        await caller.until_serving()
        await learned(caller, 21)
        assert len(await caller.recall(spec(), k=100)) == 21
    path.write_bytes(path.read_bytes()[:-10])
    with spawn_service("decompose", environment) as service:
        caller = Caller(service.address)
        await caller.until_serving()
        await learned(caller, 1)
        assert (tmp_path / "memory.unreadable").exists()
        assert (await caller.predict([spec()])).predictions
        service.terminate()
        assert service.wait() == 0  # and its log is read
        assert any("truncated" in str(line) for line in service.log_lines())
