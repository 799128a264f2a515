"""`docker compose up` as a user has it: real containers, a client on the host, `kill -9`, replicas, an end and a start.

One project for all tests of this file, which run in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.client import Client, ClockMode, JobFilter
from adlro.client.health import wait_until_serving
from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.jobs import Job, JobSpec, JobState, JobType, SimulatedWork
from adlro.services.orchestrator.clients import ClusterClient
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from adlro.workload.traces.paper import PAPER_COLUMNS
from tests.e2e.compose_suite import ComposeSuite, running
from tests.e2e.records import check_placements
from tests.e2e.running_suite import ADLRO, adlro_json, environment, wait_until
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower

pytestmark = [pytest.mark.slow, pytest.mark.compose, pytest.mark.timeout(900)]  # the first one builds the images

HEALTHY_WITHIN_S = 60.0
LIVE_WITHIN_S = 30.0
TAKEN_OVER_WITHIN_S = 10.0
# Gateways and clients hold nothing; the store and the services first.
KILLED_IN_TURN = ("ingest", "decompose", "orchestrator", "redis", "simcluster", "gateway", "workload")
JOBS, ENDED_BETWEEN = 700, 30


@pytest.fixture(scope="module")
def suite(images: float) -> Iterator[ComposeSuite]:
    with running(ComposeSuite()) as started:
        yield started


def open_jobs(client: Client) -> list[Job]:
    return list(client.list(JobFilter(states=(JobState.PENDING, JobState.RUNNING))))


def test_up_is_healthy_and_shows_a_cluster_at_work(suite: ComposeSuite) -> None:
    began_s = time.monotonic()
    assert suite.up() < HEALTHY_WITHIN_S
    with Client(suite.server, patience_s=5.0) as client:
        wait_until(
            lambda: client.status().running_count > 0,
            began_s + HEALTHY_WITHIN_S + LIVE_WITHIN_S - time.monotonic(),
            "jobs of the workload to run",
        )
    wait_until(lambda: "jobs submitted" in suite.run("logs", "workload").stdout, 15.0, "the workload to tell of it")


def test_a_client_on_the_host_submits_200_jobs_and_all_finish(suite: ComposeSuite) -> None:
    specs = [
        JobSpec(f"job {n}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(2.0 + n % 7)) for n in range(200)
    ]
    with Client(suite.server, patience_s=30.0) as client:
        client.set_clock(ClockMode.SCALED, scale=20.0)
        submitted = client.submit_many(specs)
        assert len(set(submitted.job_ids)) == 200
        jobs = client.wait(submitted.job_ids, timeout_s=120.0)
        client.set_clock(ClockMode.SCALED, scale=5.0)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}


def test_the_demo_prints_its_table(suite: ComposeSuite) -> None:
    ended = suite.run("run", "--rm", "--no-deps", "demo", "demo", "--running", "--jobs", "64", "--fast", timeout_s=120)
    assert "64 jobs at load 0.9" in ended.stdout
    assert "throughput, jobs/h" in ended.stdout
    # The workload stepped aside for it and comes again.
    with Client(suite.server) as client:
        assert (client.clock().mode, client.clock().scale) == (ClockMode.SCALED, 5.0)
        wait_until(lambda: open_jobs(client), 30.0, "the workload to go on")


def write_trace(path: Path) -> Path:
    jobs = draw_jobs(load_scenario("paper"), load=0.9, rng=np.random.default_rng(6), count=JOBS)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(PAPER_COLUMNS)
        for job in jobs:
            row = [job.job_type.label if each is job.job_type else each for each in astuple(job)]
            writer.writerow(row[: len(PAPER_COLUMNS)])
    return path


async def kill_each_in_turn(suite: ComposeSuite, watched: JobFollower) -> None:
    for name in KILLED_IN_TURN:
        before = len(watched.final)
        await watched.until(lambda before=before: len(watched.final) >= before + ENDED_BETWEEN, "jobs to end")  # type: ignore[misc]
        (container,) = suite.containers(name)
        restarts = int(container.attrs["RestartCount"])
        suite.kill(container)
        await asyncio.to_thread(suite.wait_until_back, container, restarts)
        # Asked directly: the engine looks at their health every 5 s only.
        for address in suite.status["addresses"].values():
            await wait_until_serving(address, 40.0)
    assert len(watched.final) < JOBS, "the last kill came too late to matter"


def set_workload_aside(suite: ComposeSuite) -> None:
    """The verdict is on jobs that were seen from their submission on."""
    with Client(suite.server, patience_s=30.0) as client:
        client.set_clock(paused=True)
        for job in open_jobs(client):
            with contextlib.suppress(Conflict):  # it has just ended by itself
                client.cancel(job.job_id)
        wait_until(lambda: not open_jobs(client), 30.0, "the workload's jobs to end")


async def test_a_replay_survives_kill_9_of_each_container_in_turn(suite: ComposeSuite, tmp_path: Path) -> None:
    addresses = suite.status["addresses"]
    await asyncio.to_thread(set_workload_aside, suite)
    async with JobFollower(suite.server) as watched, ClusterFollower(addresses["simcluster"]) as cluster_log:
        # At most so fast, so that the kills find it at work.
        process = await asyncio.create_subprocess_exec(
            *ADLRO, "replay", str(write_trace(tmp_path / "jobs.csv")), "--format", "paper", "--scale", "20",
            "--server", suite.server, "-o", "json",
            env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        ending = asyncio.create_task(process.communicate())
        try:
            async with asyncio.timeout(200):
                await kill_each_in_turn(suite, watched)
                stdout, stderr = await ending
        except BaseException:
            if process.returncode is None:
                process.kill()
            print((await ending)[1].decode(), suite.text)  # noqa: T201  # for whoever reads the failure
            raise
        assert process.returncode == 0, stderr.decode()
        report = json.loads(stdout)
        for address in addresses.values():
            await wait_until_serving(address, 20.0)
        label = f"adlro-replay={report['replay_id']}"
        rows = (await asyncio.to_thread(adlro_json, "queue", "--all", "--label", label, server=suite.server))["jobs"]
        await watched.until(lambda: watched.revision >= max(row["revision"] for row in rows), "the last change")
        await cluster_log.catch_up()
    jobs = {job_id: job for job_id, job in watched.latest.items() if "adlro-replay" in job.spec.labels}
    assert len(rows) == len(jobs) == JOBS
    assert report["jobs"]["succeeded"] == JOBS
    assert report["jobs"]["several_attempts"] == 0, "what ran when the cluster was killed runs on"
    assert len(cluster_log.logs) == 1
    verdict.check_changes(watched)
    verdict.check_attempts(jobs.values())
    verdict.check_cluster_log(cluster_log, jobs)
    with Client(suite.server) as client:
        check_placements(list(jobs.values()), client.cluster())
        client.set_clock(ClockMode.SCALED, scale=5.0, paused=False)


def acting(client: Client, suite: ComposeSuite) -> Any:
    """The container of the orchestrator that holds the lease, which it signs with its host's name."""
    holder = client.status().lease_holder
    return next((each for each in suite.containers("orchestrator") if each.id.startswith(holder.split("-")[0])), None)


def test_replicas_work_and_a_standby_takes_over(suite: ComposeSuite) -> None:
    suite.up("--scale", "ingest=3", "--scale", "decompose=2", "--scale", "orchestrator=2")
    ports = [each.ports["7701/tcp"][0] for each in suite.containers("ingest")]
    assert {port["HostIp"] for port in ports} == {"127.0.0.1"}
    assert len({port["HostPort"] for port in ports}) == 3
    with Client(suite.server, patience_s=30.0) as client:
        client.set_clock(ClockMode.SCALED, scale=20.0)
        # Through each replica, and seen by the others.
        submitted = []
        for number, port in enumerate(ports):
            spec = JobSpec(f"by {number}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(400.0))
            with Client(f"127.0.0.1:{port['HostPort']}") as other:
                submitted.append(other.submit(spec).job_id)
        before = client.status()
        first = acting(client, suite)
        assert first is not None
        # Not started again: else it might be back before its own lease has run out.
        first.update(restart_policy={"Name": "no"})
        suite.kill(first)
        killed_s = time.monotonic()
        job = client.submit(JobSpec("after", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(1.0)))
        (ended,) = client.wait([job.job_id], timeout_s=TAKEN_OVER_WITHIN_S)
        assert time.monotonic() - killed_s < TAKEN_OVER_WITHIN_S
        assert ended.state is JobState.SUCCEEDED
        after = client.status()
        assert after.fencing_token > before.fencing_token
        assert after.lease_holder != before.lease_holder
        asyncio.run(the_old_token_is_refused(suite, before.fencing_token))
        assert {each.state for each in client.wait(submitted, timeout_s=60.0)} == {JobState.SUCCEEDED}
        client.set_clock(ClockMode.SCALED, scale=5.0)


async def the_old_token_is_refused(suite: ComposeSuite, old_token: int) -> None:
    cluster = ClusterClient(suite.status["addresses"]["simcluster"])
    try:
        spec = JobSpec("late", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(1.0))
        incarnation = (await cluster.describe()).incarnation
        with pytest.raises(Conflict) as refused:
            await cluster.launch("job-late", 1, spec, Placement.on("volta-0/0"), old_token, incarnation)
        assert refused.value.reason == "STALE_FENCING_TOKEN"
    finally:
        await cluster.close()


def test_it_stops_within_its_grace_and_knows_its_jobs_afterwards(suite: ComposeSuite) -> None:
    suite.up("--scale", "ingest=1", "--scale", "decompose=1", "--scale", "orchestrator=1")
    with Client(suite.server, patience_s=30.0) as client:
        stood = client.set_clock(paused=True)
        known = {job.job_id: job for job in client.list(JobFilter(user="ada"))}
    assert len(known) >= 204
    began_s = time.monotonic()
    suite.run("stop")
    assert time.monotonic() - began_s < 20.0
    codes = {each.name: each.attrs["State"]["ExitCode"] for each in suite.containers()}
    assert set(codes.values()) == {0}, codes
    assert not any(each.attrs["State"]["OOMKilled"] for each in suite.containers())
    suite.down()
    assert suite.containers() == []
    assert suite.up() < HEALTHY_WITHIN_S
    with Client(suite.server, patience_s=30.0) as client:
        # The cluster's clock lies in the store with the jobs: it still stands, where it stood.
        assert client.clock() == stood
        assert {job.job_id: job for job in client.list(JobFilter(user="ada"))} == known
        # It goes on: a job that is submitted now is placed.
        client.set_clock(paused=False)
        job = client.submit(JobSpec("again", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(1.0)))
        assert job.job_id not in known
        assert client.wait([job.job_id], timeout_s=30.0)[0].state is JobState.SUCCEEDED
