"""Three of ingest, two of decompose and two orchestrators on one cluster: each job once, each change once, same view.

And Prometheus beside them, with the shipped rules: whatever the dashboard asks for is there while jobs run.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from adlro.client import AsyncClient, ClockMode
from adlro.errors import NotFound
from adlro.kit.channel import open_channel
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, SimulatedWork
from adlro.records.telemetry import Metric
from adlro.v1 import telemetry_pb2, telemetry_service_pb2, telemetry_service_pb2_grpc
from adlro.wire import cluster_to_proto
from tests.dashboards import rules_text
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.replicas import Replicas
from tests.fault.stack import PATIENCE_S, eventually, wait_until_serving
from tests.prometheus_server import PrometheusServer
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.slow

JOBS = 300
PLACED_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    made = Replicas(
        tmp_path_factory.mktemp("replicas"),
        ADLRO_SIMCLUSTER_CLOCK_MODE="virtual",
        ADLRO_INGEST_CLUSTER="default",  # whatever other cluster a test describes
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def all_serving(replicas: Replicas) -> Replicas:
    """The replicas, all of them up; one orchestrator acts."""
    for services in replicas.of.values():
        for number, service in enumerate(services):
            if service.process.poll() is not None:
                services[number] = await asyncio.to_thread(replicas.start_again, service)
    await wait_until_serving(service.address for services in replicas.of.values() for service in services)
    await eventually(lambda: _has_acting(replicas), "an orchestrator to act")
    return replicas


def spec(number: int) -> JobSpec:
    work_s = 5.0 + number % 30
    return JobSpec(
        f"job {number}",
        f"user-{number % 3}",
        JobType(1 + number % 3),
        simulated_work=SimulatedWork(work_s),
        expected_runtime=ExpectedRuntime("v100_sxm2", work_s) if number % 2 else None,
    )


async def figures(address: str) -> dict[str, float]:
    """The metrics without labels of a process."""

    def read() -> str:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{address}/metrics") as answer:
            return str(answer.read().decode())

    lines = (await asyncio.to_thread(read)).splitlines()
    found = [re.fullmatch(r"(adlro_\w+) (\S+)", line) for line in lines]
    return {match[1]: float(match[2]) for match in found if match}


async def acting(replicas: Replicas) -> list[int]:
    """Numbers of the orchestrators that say that they act."""
    found = []
    for number, service in enumerate(replicas.of["orchestrator"]):
        if service.process.poll() is None:
            async with replicas.client(orchestrator=number) as client:
                if (await client.status()).acting:
                    found.append(number)
    return found


async def _has_acting(replicas: Replicas) -> bool:
    return len(await acting(replicas)) == 1


async def test_a_replay_through_all_replicas_while_one_of_each_is_killed(all_serving: Replicas) -> None:
    replicas = all_serving
    (first,) = await acting(replicas)
    prefix = f"replicas-{time.monotonic_ns()}"
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(replicas.client(ingest=number)) for number in range(3)]
        watching = [await opened.enter_async_context(JobFollower(service.address)) for service in replicas.of["ingest"]]
        cluster_log = await opened.enter_async_context(ClusterFollower(replicas.of["simcluster"][0].address))
        await clients[0].set_clock(ClockMode.VIRTUAL, scale=40.0)
        # The same jobs under the same request ids by every replica at once.
        specs = [spec(number) for number in range(JOBS)]
        answers = await asyncio.gather(*(client.submit_many(specs, prefix) for client in clients))
        assert len({answer.job_ids for answer in answers}) == 1
        job_ids = answers[0].job_ids
        assert len(set(job_ids)) == JOBS

        witness = watching[2]
        await witness.until(lambda: len(witness.final) >= 40, "40 jobs to end")
        async with Stopwatch() as watch:
            replicas.of["orchestrator"][first].kill()
            await cluster_log.catch_up()  # with what the killed one had sent
            before = cluster_log.started_count
            await cluster_log.until(lambda: cluster_log.started_count > before, "the second one to place a job")
            took_s = watch.read()
        assert took_s < PLACED_WITHIN_S
        print(f"{took_s:.2f} s from the kill to the next start")  # noqa: T201  # for whoever asks with -s

        replicas.of["ingest"][0].kill()
        replicas.of["decompose"][0].kill()
        await witness.until(lambda: len(witness.final) >= 120, "120 jobs to end")
        await asyncio.to_thread(replicas.start_again, replicas.of["ingest"][0])
        await asyncio.to_thread(replicas.start_again, replicas.of["decompose"][0])
        for watched in watching:
            ended = watched.final
            await watched.until(lambda ended=ended: len(ended) == JOBS, "all jobs to end")  # type: ignore[misc]
        await cluster_log.catch_up()

        for watched in watching:
            verdict.check_changes(watched)
        verdict.check_attempts(witness.latest.values())
        verdict.check_cluster_log(cluster_log, witness.latest)
        assert {job.attempt_count for job in witness.latest.values()} == {1}
        ends = [[(change.revision, change.job) for change in watched.changes] for watched in watching]
        assert ends[0] == ends[1] == ends[2]
        assert set(witness.latest) == set(job_ids)

    # Both of decompose have learned from all, the one that was killed by way of the file.
    await wait_until_serving(service.address for service in replicas.of["decompose"])
    # Beside it may be what is being written, or what the killed one had begun to write.
    assert {file.name for file in replicas.memory.iterdir()} - {"outcomes.tmp"} == {"outcomes"}
    for address in replicas.metrics()["decompose"]:

        async def learned(address: str = address) -> bool:
            return (await figures(address))["adlro_decompose_remembered_jobs"] == JOBS

        await eventually(learned, f"decompose at {address} to have learned from all jobs")
    recalled = []
    for number in range(2):
        async with replicas.client(decompose=number) as client:
            recalled.append({(each.job_id, each.runtime_s) for each in await client.recall(spec(1), k=20)})
    assert recalled[0] == recalled[1]
    assert len(recalled[0]) == 20


async def test_telemetry_goes_on_when_the_replica_that_took_it_is_killed(all_serving: Replicas) -> None:
    replicas = all_serving

    async def newest(decompose: int) -> float:
        async with replicas.client(decompose=decompose) as client:
            return (await client.cluster_state()).newest_sample_unix_s or 0.0

    async def comes_after(unix_s: float) -> None:
        for number in range(2):

            async def is_newer(number: int = number) -> bool:
                return await newest(number) > unix_s

            await eventually(is_newer, "newer telemetry in every decompose")

    async def samples() -> list[float]:
        found = [await figures(address) for address in replicas.metrics()["ingest"]]
        return [each["adlro_ingest_telemetry_samples_total"] for each in found]

    async def taking() -> list[int]:
        """Who has taken some since it was asked; two where the stream was opened anew meanwhile."""
        before = await samples()
        await comes_after(time.time())
        return [number for number, count in enumerate(await samples()) if count > before[number]]

    await comes_after(time.time())
    for _ in range(5):
        if len(found := await taking()) == 1:
            break
    else:
        pytest.fail(f"replicas {found} take samples")
    replicas.of["ingest"][found[0]].kill()
    await comes_after(time.time() + 0.5)


async def test_an_old_sample_by_way_of_another_replica_does_not_replace_a_newer_one(all_serving: Replicas) -> None:
    replicas = all_serving
    cluster = Cluster("lab", (Node("n", 8, 1024, (Gpu("n/0", "v100_sxm2", 16160),)),))
    channels = [open_channel(service.address) for service in replicas.of["ingest"]]
    stubs = [telemetry_service_pb2_grpc.TelemetryServiceStub(channel) for channel in channels]
    try:
        request = telemetry_service_pb2.UpsertClusterRequest(cluster=cluster_to_proto(cluster))
        await stubs[0].UpsertCluster(request, timeout=PATIENCE_S)
        now_unix_s = time.time()
        # Newest first; each by another replica, the fourth one again by the first. The last one is of another metric:
        # whoever has read it has read those before.
        busy = telemetry_pb2.METRIC_UTILIZATION, telemetry_pb2.UNIT_RATIO
        power = telemetry_pb2.METRIC_POWER, telemetry_pb2.UNIT_W
        sent = [(0.0, busy, 0.9), (5.0, busy, 0.1), (10.0, busy, 0.2), (2.0, busy, 0.3), (0.0, power, 100.0)]
        for number, (age_s, (metric, unit), value) in enumerate(sent):
            block = telemetry_pb2.TelemetryBlock(
                cluster="lab",
                gpu_ids=["n/0"],
                sample_times_unix_s=[now_unix_s - age_s],
                columns=[
                    telemetry_pb2.MetricColumn(
                        metric=metric, unit=unit, values_f32=np.array([value], dtype="<f4").tobytes()
                    )
                ],
            )
            requests = iter([telemetry_service_pb2.PushTelemetryRequest(block=block)])
            answer = await stubs[number % 3].PushTelemetry(requests, timeout=PATIENCE_S)
            assert answer.block_count == 1
    finally:
        for channel in channels:
            await channel.close(None)
    for number in range(3):
        async with replicas.client(ingest=number) as client:
            told = (await client.telemetry("lab")).latest
            assert told.columns[Metric.UTILIZATION].raw.item() == pytest.approx(0.9)
    for number in range(2):
        async with replicas.client(decompose=number) as client:

            async def knows(client: AsyncClient = client) -> bool:
                return (await client.cluster_state("lab")).value(Metric.POWER, 0) == pytest.approx(100.0)

            await eventually(knows, "decompose to have read all samples")
            state = await client.cluster_state("lab")
            assert state.value(Metric.UTILIZATION, 0) == pytest.approx(0.9)
            assert state.newest_sample_unix_s == pytest.approx(now_unix_s)


async def test_prometheus_has_all_that_the_dashboard_and_the_rules_ask_for(
    all_serving: Replicas, tmp_path: Path
) -> None:
    replicas = all_serving
    prometheus = await asyncio.to_thread(PrometheusServer, tmp_path / "prometheus", replicas.metrics())
    try:
        async with replicas.client(orchestrator=(await acting(replicas))[0]) as client:
            # Slowly enough that the jobs outlast all looks.
            await client.set_clock(ClockMode.VIRTUAL, scale=5.0)
            with pytest.raises(NotFound):  # refused calls are a panel too
                await client.get("job-0")
            submitted = await client.submit_many(
                [spec(number) for number in range(JOBS)], f"seen-{time.monotonic_ns()}"
            )
            assert await asyncio.to_thread(prometheus.lacks, PATIENCE_S) == []
            assert (await client.status()).queue_length > 0, "the jobs ended before all was there: no proof"
            await eventually(lambda: _all_up(prometheus, replicas), "a scrape of each replica")
            await _judge(prometheus, replicas)
            await client.set_clock(ClockMode.VIRTUAL, scale=0.0)
            await client.wait(submitted.job_ids, timeout_s=PATIENCE_S)
    finally:
        prometheus.stop()


async def _all_up(prometheus: PrometheusServer, replicas: Replicas) -> bool:
    """Whether the last scrape of each was in time; one comes late where the machine stands still."""
    up = {labels["job"]: value for labels, value in prometheus.query("sum by (job) (up)")}
    return up == {name: len(services) for name, services in replicas.of.items()}


async def _judge(prometheus: PrometheusServer, replicas: Replicas) -> None:
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert len(rules) == rules_text().count("- record:") + rules_text().count("- alert:")
    assert prometheus.query("sum(adlro_orchestrator_acting)")[0][1] == 1
    # Each GPU once, though two of decompose tell of it.
    assert prometheus.query('count(gpu:utilization_ratio:max{cluster="default"})')[0][1] == 16
    assert prometheus.query("sum(gpu_model:gpus:sum)")[0][1] == 16
    (policy,) = prometheus.query("adlro_orchestrator_policy_info and on (instance) (adlro_orchestrator_acting == 1)")
    async with replicas.client(orchestrator=(await acting(replicas))[0]) as client:
        assert policy[0]["policy"] == (await client.status()).policy
    firing = prometheus.query('ALERTS{alertstate="firing"}')
    assert [labels["alertname"] for labels, _ in firing] == []
