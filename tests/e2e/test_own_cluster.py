"""examples/own_cluster.py: it is short, keeps the contract, and runs jobs of the suite as programs."""

from __future__ import annotations

import asyncio
import contextlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.clusterside import inspect_cluster
from adlro.clusterside.attempts import Attempt
from adlro.clusterside.check.caller import ServiceCaller
from adlro.errors import Unsupported
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.testing import ROOT, SpawnedService, spawn_service
from adlro.placement import Placement
from adlro.records.events import EventKind
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobState, JobType
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.stack import Stack
from tests.unit.clusterside.double import OF_GANGS, OF_SHARES

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "own_cluster.py"
RUNTIMES_S = [0.2 + n / 50 for n in range(20)]


def start_example(folder: Path, redis_url: str, **settings: str) -> SpawnedService:
    environment = {"OWN_CLUSTER_FOLDER": str(folder), "ADLRO_REDIS_URL": redis_url, **settings}
    return spawn_service("own cluster", environment, arguments=[str(EXAMPLE)])


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "data")
    try:
        made.redis.start()
        yield made
    finally:
        made.stop()


def test_an_adapter_is_at_most_150_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 150


async def test_it_keeps_every_rule(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "data") as redis, start_example(tmp_path / "jobs", redis.url) as example:
        report = await inspect_cluster(example.address, redis_url=redis.url)
    assert not report.failed, str(report)
    assert set(report.skipped) == {
        *("tells_that_its_clock_was_set", "loses_a_gpu_with_its_job", "refuses_preemption_that_it_can_not_do"),
        *OF_GANGS,
        *OF_SHARES,
    }


async def test_twenty_jobs_run_through_the_suite_on_it(stack: Stack, tmp_path: Path) -> None:
    listen = stack.addresses["simcluster"]
    settings = {"ADLRO_CLUSTER_LISTEN": listen, "ADLRO_CLUSTER_INGEST_ADDRESS": stack.addresses["ingest"]}
    await asyncio.to_thread(stack.start, "ingest", "decompose", "orchestrator")
    with start_example(tmp_path / "jobs", stack.redis.url, **settings):
        async with (
            stack.client() as client,
            JobFollower(stack.addresses["ingest"]) as watched,
            ClusterFollower(listen) as cluster_log,
        ):
            specs = [
                JobSpec("job", "ada", JobType.SIMULATION, expected_runtime=ExpectedRuntime("v100_sxm2", runtime_s))
                for runtime_s in RUNTIMES_S
            ]
            submitted = await client.submit_many(specs, "twenty")
            done = await client.wait(submitted.job_ids, timeout_s=120.0)
            await cluster_log.catch_up()
            description = await client.describe_cluster()
            with contextlib.suppress(Unsupported):
                await client.set_clock(paused=True)
                pytest.fail("a clock of real time was set")
        assert {job.state for job in done} == {JobState.SUCCEEDED}
        verdict.check_changes(watched)
        verdict.check_attempts(done)
        verdict.check_cluster_log(cluster_log, {job.job_id: job for job in done})
        assert {job.gpu_id for job in done} == {gpu.gpu_id for _, gpu in description.cluster.gpus()}
        for job in done:
            assert job.start_s is not None
            assert job.end_s is not None
            assert job.spec.expected_runtime is not None
            assert job.end_s - job.start_s >= job.spec.expected_runtime.runtime_s, "each slept for what it declared"


async def test_programs_run_on_while_it_is_killed_and_started_again(tmp_path: Path) -> None:
    """An end that comes while nobody watches is found, and told with the same incarnation."""
    with EmbeddedRedis(tmp_path / "data") as redis:
        with start_example(tmp_path / "jobs", redis.url) as example:
            async with ServiceCaller(example.address, None, redis.url, 60.0) as caller:
                before = await caller.describe()
                short, long = caller.new_job(), caller.new_job()
                first, second, *_ = caller.gpu_ids
                await caller.launch(short, first, 1.0)
                await caller.launch(long, second, 120.0)
                async with caller.watch(before.revision, before.incarnation) as watch:
                    await watch.start_of(short)
                    start = await watch.start_of(long)
                    # STARTED comes before the program: killed between the two, it could only be told lost.
                    await watch.program_of(short)
                    await watch.program_of(long)
                token = caller.token
            example.kill()
            await asyncio.sleep(1.2)  # the short one ends meanwhile
        with start_example(tmp_path / "jobs", redis.url) as example:
            stub_of = ServiceCaller(example.address, None, "", 60.0)
            stub_of.token = token
            async with stub_of.watch(before.revision, before.incarnation) as watch:
                end = await watch.end_of(short)
                assert end.kind is EventKind.FINISHED
                found = await stub_of.describe()
                assert [(job.job_id, job.start_s) for job in found.running] == [(long, start.time_s)]
                assert await stub_of.stop(long)
                assert (await watch.end_of(long)).kind is EventKind.STOPPED
                assert [event.revision for event in watch.events] == list(range(1, len(watch.events) + 1))
            await stub_of.close()


@pytest.mark.parametrize("appears", [True, False])
async def test_a_program_whose_process_id_is_late_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appears: bool
) -> None:
    """The adapter died after it had started a program and before that one had left its process id."""
    module = runpy.run_path(str(EXAMPLE))
    own_cluster = module["OwnCluster"]
    cluster = own_cluster(tmp_path)
    told: list[str] = []
    monkeypatch.setattr(own_cluster, "runs", lambda _self, attempt: told.append(attempt.job_id))
    monkeypatch.setattr(own_cluster, "spawn", lambda _self, work, _name: work.close())
    monkeypatch.setitem(own_cluster.resume.__globals__, "APPEARS_WITHIN_S", 5.0 if appears else 0.1)
    attempt = Attempt("late", 1, Placement.on("here/0"), None)
    folder = tmp_path / "late.1"
    folder.mkdir()
    resumed = asyncio.create_task(cluster.resume(attempt))
    if appears:
        await asyncio.sleep(0.1)
        (folder / "pid").write_text("1")
    assert await resumed is appears
    assert told == ["late"] * appears
