"""Rounds of decisions on a clock that goes on by itself: cut short, with a part of the queue first."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from adlro.decide.policies.base import Judgement
from adlro.decide.policies.srtf import Srtf
from adlro.records.cluster import Cluster
from adlro.records.events import ClockMode
from adlro.records.jobs import JobState
from adlro.services.orchestrator.session.core import round as rounds
from adlro.state.observation import Observation
from tests.unit.orchestrator.core_house import CoreHouse


def scaled(house: CoreHouse) -> CoreHouse:
    house.cluster.clock = replace(house.cluster.clock, mode=ClockMode.SCALED)
    return house


@pytest.mark.parametrize("policy", ["fcfs", "hold_gang", "sjf"])
@pytest.mark.parametrize("seed", range(4))
def test_every_job_ends_once_however_short_rounds_are(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, policy: str, seed: int
) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", -1.0)
    monkeypatch.setattr(rounds, "PAIRS_AT_ONCE", 8)
    draw = random.Random(seed)
    house = scaled(CoreHouse(cluster, draw))
    house.start(policy)
    for _ in range(30):
        house.submit(draw.uniform(1.0, 20.0))
    done = house.until_final(30)
    assert all(job.state is JobState.SUCCEEDED and job.attempt_count == 1 for job in done)


def test_idle_gpus_take_jobs_behind_a_first_part_that_can_not_start(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "PAIRS_AT_ONCE", 8)  # 5 idle GPUs: the first job alone
    house = scaled(CoreHouse(cluster))
    house.start("fcfs_fastest")
    for _ in range(6):
        house.submit(1.0, gpu_memory_mib=90_000)
    small = house.submit(1.0)
    house.until_state(small.job_id, JobState.SUCCEEDED)


@pytest.mark.parametrize("min_run_s", [None, 0.0])
def test_where_no_job_may_be_stopped_a_policy_that_could_sees_a_first_part_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, min_run_s: float | None
) -> None:
    """The owner has switched stops off, or on, but none of the jobs is preemptible."""
    shown: list[int] = []

    def weigh(policy: Srtf, seen: Observation) -> Judgement:
        shown.append(int(seen.job_waiting.sum()))
        return whole(policy, seen)

    whole = Srtf.weigh
    monkeypatch.setattr(Srtf, "weigh", weigh)
    monkeypatch.setattr(rounds, "PAIRS_AT_ONCE", 8)  # 5 idle GPUs: the first job alone
    house = scaled(CoreHouse(cluster))
    house.min_run_s = min_run_s
    house.start("srtf")
    house.pause()
    for _ in range(6):
        house.submit(1.0)
    house.settle()
    house.resume()
    house.until_final(6)
    assert shown[0] == 1


def test_in_virtual_time_a_round_is_whole_and_sees_all(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    for pairs, round_s in ((8, -1.0), (10**9, 10**9)):
        monkeypatch.setattr(rounds, "PAIRS_AT_ONCE", pairs)
        monkeypatch.setattr(rounds, "ROUND_S", round_s)
        house = CoreHouse(cluster)
        house.start("sjf")
        house.pause()
        draw = random.Random(3)
        for _ in range(40):
            house.submit(draw.uniform(1.0, 20.0))
        house.settle()
        house.resume()
        starts.append([(job.start_s, job.gpu_id) for job in house.until_final(40)])
    assert starts[0] == starts[1]
