"""History, usage and nodes of a running suite agree with its job records; the learned policy's gain is told of them."""

from __future__ import annotations

import asyncio
import csv
import io
import math
import re

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, replay, replay_specs
from adlro.client import AsyncClient, Client
from adlro.records.jobs import Job, JobSpec, JobState, JobType, SimulatedWork
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite, adlro, adlro_json, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # for what hangs

JOBS = 220


def test_what_ran_is_listed_and_added_up(suite: RunningSuite) -> None:
    drawn = draw_jobs(load_scenario("paper"), load=0.9, count=JOBS, rng=np.random.default_rng(22))

    async def run() -> tuple[float, list[Job]]:
        async with AsyncClient(suite.server, patience_s=30.0) as client:
            result = await replay(client, replay_specs(drawn), ReplayOptions(policy="fcfs"))
            return result.begin_s, list(result.jobs)

    begin_s, jobs = asyncio.run(run())
    ended = sorted((job for job in jobs if job.end_s is not None), key=lambda job: -(job.end_s or 0.0))
    assert len(ended) == JOBS
    since = ("--since", f"{begin_s}s")

    def listed(*options: str) -> list[str]:
        shown = adlro("history", "-o", "name", *options, server=suite.server)
        assert shown.returncode == 0, shown.stderr
        return shown.stdout.split()

    end_of = {job.job_id: job.end_s for job in ended}
    everything = listed("--limit", "0", *since)
    assert sorted(everything) == sorted(end_of)
    assert [end_of[each] for each in everything] == [job.end_s for job in ended]
    assert listed("--limit", "7", *since) == everything[:7]
    middle_s = ended[JOBS // 2].end_s
    assert middle_s is not None
    older = listed("--limit", "0", *since, "--until", f"{middle_s!r}s")
    assert set(older) == {each for each, end_s in end_of.items() if end_s is not None and end_s < middle_s}
    user = ended[0].spec.user
    assert set(listed("--limit", "0", *since, "--user", user)) == {j.job_id for j in ended if j.spec.user == user}

    held_s = math.fsum(
        (each.end_s - each.start_s) * len(each.placement.gpus)
        for job in ended
        for each in job.attempts
        if each.start_s is not None and each.end_s is not None
    )
    used = adlro_json("usage", "--by", "type,model", *since, server=suite.server)
    assert used["total"]["job_count"] == used["total"]["ended_count"] == JOBS
    assert used["total"]["gpu_hours"] == pytest.approx(held_s / 3600.0)
    assert math.fsum(row["gpu_hours"] for row in used["usage"]) == pytest.approx(held_s / 3600.0)
    rows = list(csv.DictReader(io.StringIO(adlro("usage", *since, "-o", "csv", server=suite.server).stdout)))
    assert {row["user"] for row in rows} == {job.spec.user for job in ended}

    shown = adlro("usage", *since, "--gain", server=suite.server, timeout_s=400.0)
    assert shown.returncode == 0, shown.stderr
    told = " ".join(shown.stdout.split())
    assert re.search(r"gain: .* under dqn, .* under fcfs \(95 % interval: .*; the 220 finished jobs", told), told


def test_nodes_hold_what_running_jobs_asked_for(suite: RunningSuite) -> None:
    with Client(suite.server) as client:
        client.set_clock(paused=True)
        spec = JobSpec(
            "held", "ada", JobType.SIMULATION, cpu_cores=3, memory_mib=2048, simulated_work=SimulatedWork(5000.0)
        )
        job_ids = client.submit_many([spec] * 5).accepted_ids
        wait_until(
            lambda: all(client.get(each).state is JobState.RUNNING for each in job_ids), 60.0, "five jobs that run"
        )
        placed = [client.get(each).placement.gpu_id for each in job_ids]
        client.drain("radeon-0", "a test")
        try:
            found = {each["node_id"]: each for each in adlro_json("nodes", server=suite.server)["nodes"]}
        finally:
            client.undrain("radeon-0")
    for node_id, node in found.items():
        count = sum(each.startswith(f"{node_id}/") for each in placed)
        assert (node["used_cpu_cores"], node["used_memory_mib"]) == (3 * count, 2048 * count)
        assert len(node["job_ids"]) == count
        drained = node_id == "radeon-0"
        assert node["free_gpu_count"] == (0 if drained else node["gpu_count"] - count)
        assert node["reason"] == ("a test" if drained else "")
    assert sum(len(each["job_ids"]) for each in found.values()) == 5
