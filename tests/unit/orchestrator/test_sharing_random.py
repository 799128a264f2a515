"""Sessions in which two jobs share a GPU, in any order, with everything that can fail: each step is checked."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from adlro.errors import Conflict, DeadlineExceeded
from adlro.records.events import ClockMode
from adlro.records.jobs import JobAttempt, JobState, Preemptible
from adlro.records.outcomes import SIZE_LABEL, ApplicationSize
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.session.core.recording import differences
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.test_gangs import TURING, V100, nodes
from tests.volume import cases

APPLICATIONS = ("resnet50", "lstm", "")
KINDS = [ApplicationSize(name, size) for name in APPLICATIONS for size in ("", "32")]


def drawn_pairs(draw: random.Random) -> PairTable:
    """Of most kinds; some pairs are refused, and what is expected is mostly wrong."""
    kinds = draw.sample(KINDS, draw.randint(2, len(KINDS)))
    rng = np.random.default_rng(draw.randrange(1 << 30))
    kept = rng.uniform(0.3, 1.0, (len(kinds), len(kinds), 2))
    kept[rng.random(kept.shape) < 0.1] = 0.0
    return PairTable.of(kinds, kept)


def random_house(seed: int, jobs: int, policy: str) -> CoreHouse:
    draw = random.Random(seed)
    house = CoreHouse(nodes((V100, 2), (V100, 1), (TURING, 1), cores=24), draw)
    house.cluster.shares = draw.random() < 0.95
    house.cluster.kept = draw.choice([0.6, 0.9, 0.5])
    house.pairs = drawn_pairs(draw)
    house.min_run_s = draw.choice([0.0, 3.0])
    house.cluster.grace_s = draw.choice([0.0, 0.0, 0.5, 4.0])
    house.cluster.tells_share = draw.random() < 0.7
    if house.cluster.grace_s:
        house.cluster.clock, house.real_time = replace(house.cluster.clock, mode=ClockMode.REAL), True
    for number in draw.sample(range(1, jobs + 1), jobs // 4):
        troubles = [Conflict("a part is taken", reason="GPU_BUSY"), DeadlineExceeded("no answer in 10 s")]
        house.cluster.refused[f"job-{number}"] = [draw.choice(troubles)] * draw.randint(1, 3)
    for number in draw.sample(range(1, jobs + 1), jobs // 8):
        house.cluster.unanswered[f"job-{number}"] = draw.randint(1, 3)
    house.cluster.deaf = draw.choice([0, 3])
    house.kill_odds, house.meddle_odds = draw.choice([0.0, 0.01, 0.04]), draw.choice([0.0, 0.02, 0.1])
    house.meddling = [*house.meddling, "pairs", "pairs"]
    house.policies = [policy, policy, "shares", "share_pairs", "fcfs"]
    house.start(policy)
    for _ in range(jobs):
        stoppable = Preemptible(draw.choice([0.0, 1.0]), draw.choice([0.0, 0.5, 20.0]))
        size = draw.choice([None, "32"])
        house.submit(
            draw.choice((draw.uniform(0.5, 4.0), draw.uniform(10.0, 60.0))),
            begin_time_s=draw.choice((None, draw.uniform(0.0, 2.0 * jobs))),
            gpu_count=draw.choice((1, 1, 1, 1, 2)),
            cpu_cores=draw.choice((1, 4, 8)),
            memory_mib=draw.choice((0, 1 << 16, 3 << 16)),
            gpu_memory_mib=draw.choice((0, 4000, 8192, 9000)),
            application=draw.choice(APPLICATIONS),
            user=draw.choice(("ann", "bob")),
            labels={} if size is None else {SIZE_LABEL: size},
            preemptible=stoppable if draw.random() < 0.6 else None,
            shareable=draw.random() < 0.85,
        )
    for number in draw.sample(range(1, jobs + 1), jobs // 8):
        house.cancel(f"job-{number}")
    return house


def random_shares(seed: int, jobs: int = 25, policy: str = "shares", restarts: bool = True) -> CoreHouse:
    """Sessions whose GPUs, launches, clusters and orchestrators die at any point, until all jobs have ended."""
    house, draw = random_house(seed, jobs, policy), random.Random(f"course {seed}")
    lost, later = "", policy == "shares" and draw.random() < 0.3  # starts take time
    for step in range(60_000):
        if house.store.final_count == jobs:
            return house
        if step == 4000:
            house.kill_odds = house.meddle_odds = 0.0  # it is to come to an end
        if step >= 4000 and house.recorded is not None and house.policy.name == "shares_and_stops":
            house.set_policy("shares")
        if step % 400 == 200 and step < 4000 and draw.random() < 0.7:
            lost = draw.choice([gpu.gpu_id for _, gpu in house.cluster.cluster.gpus()])
            house.cluster.lose(lost)
        if step % 400 == 300 and lost:
            house.cluster.give_gpu_back(lost)
            lost = ""
        if later and step % 40 == 39:
            house.cluster.start_later = step < 4000 and draw.random() < 0.5
            house.cluster.start_accepted()
        if restarts and step % 1000 == 999 and step < 4000 and draw.random() < 0.3:
            house.cluster.shares = draw.random() < 0.8
            house.cluster.restart()
        if not house.advance():
            revision = house.cluster.revision
            house.cluster.start_accepted()
            house.cluster.go_on()  # a launch may have come after the moment that it belonged to
            if house.cluster.revision > revision:
                continue
            assert house.drained or lost, f"seed {seed}: nothing more happens"
            if lost:
                house.cluster.give_gpu_back(lost)
                lost = ""
            house.drain({})
    raise AssertionError("it takes for ever")


def beside_s(house: CoreHouse, job_id: str, attempt: int) -> dict[ApplicationSize, float]:
    """By kind, how long others were on an attempt's GPU, as the cluster saw it."""
    run, times_s = house.cluster.runs[job_id, attempt], Counter[ApplicationSize]()
    assert run.end_s is not None
    for (other, _), each in house.cluster.runs.items():
        if each is run or not set(each.placement.gpu_ids) & set(run.placement.gpu_ids) or each.end_s is None:
            continue
        together_s = min(run.end_s, each.end_s) - max(run.start_s, each.start_s)
        if together_s > 0.0:
            assert other != job_id, f"{job_id} beside itself"
            times_s[ApplicationSize.of(each.spec)] += together_s  # type: ignore[assignment]
    return dict(times_s)


def check_neighbours(house: CoreHouse, job_id: str, attempt: JobAttempt, *, exactly: bool) -> float:
    """Checks what an attempt's record says of neighbours; returns the time beside them."""
    said = {each.neighbour: each.time_s for each in attempt.neighbours}
    assert len(said) == len(attempt.neighbours)
    assert all(time_s > 0.0 for time_s in said.values())
    total_s = math.fsum(said.values())
    if attempt.start_s is None or attempt.end_s is None:
        assert not said
        return 0.0
    assert total_s <= attempt.end_s - attempt.start_s + 1e-6
    assert not said or attempt.placement.gpus[0].share == 0.5
    if exactly:
        assert said == pytest.approx(beside_s(house, job_id, attempt.attempt), abs=1e-6), job_id
    return total_s


def check(house: CoreHouse, seed: int, *, exactly: bool) -> float:
    """What holds of every course; returns the time that jobs spent beside others."""
    for life in house.lives:
        assert differences(life.begin(), life.steps) == [], f"seed {seed}"
    total_s = 0.0
    for job_id, (_, job) in house.store.records.items():
        assert job.state in (JobState.SUCCEEDED, JobState.CANCELLED), f"seed {seed}: {job.message}"
        assert sum(each.outcome == "succeeded" for each in job.attempts) == (job.state is JobState.SUCCEEDED)
        for attempt in job.attempts:
            assert len(attempt.placement.gpus) == job.spec.gpu_count
            total_s += check_neighbours(house, job_id, attempt, exactly=exactly)
        outcome = house.store.outcomes.get(job_id)
        assert (outcome is not None) == (job.state is JobState.SUCCEEDED)
        if outcome is not None:
            assert outcome.neighbours == job.attempts[-1].neighbours
            stopped = [each.neighbours for each in job.attempts if each.preempted and each.start_s is not None]
            assert [each.neighbours for each in outcome.stopped_runs] == stopped
    if house.recorded is not None:
        ledger = house.core.ledger
        assert ledger.occupancy.idle.all(), f"seed {seed}"
        assert (ledger.occupancy.cores_free == ledger.layout.node_cores).all()
    return total_s


@pytest.mark.parametrize("policy", ["shares", "shares_and_stops"])
@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 3 + cases(17)), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_random_sessions_that_share_gpus_lose_nothing_and_replay(seeds: range, policy: str) -> None:
    """Each step is checked: the ledger agrees with the records.

    The cluster counts for itself what each GPU and node has left, and refuses to be asked for more.
    """
    together_s, stops, restarted = 0.0, 0, 0
    for seed in seeds:
        house = random_shares(seed, policy=policy, restarts=seed % 2 == 0)
        exactly = seed % 2 == 1  # a cluster that forgets everything knows no ends
        together_s += check(house, seed, exactly=exactly)
        stops += len(house.cluster.preempted)
        restarted += len(house.lives) > 1
    assert together_s > 50.0 * len(seeds)
    assert restarted > len(seeds) / 4
    assert policy == "shares" or stops > len(seeds)
