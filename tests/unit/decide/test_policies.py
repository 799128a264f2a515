"""Each policy on hand-worked decision points."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies import DEFAULT_POLICY, POLICIES, Policy
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobType
from adlro.services.orchestrator.ledger.ledger import Ledger
from tests.ledgers import queue
from tests.policies import made, there
from tests.unit.decide.decision_points import merged


def pick(ledger: Ledger, policy: Policy) -> tuple[int, int]:
    job, gpu = policy.act(ledger.observe(0.0))[0]
    return int(job), int(gpu)


def drain(ledger: Ledger, policy: Policy) -> list[tuple[str, str]]:
    """Places until the policy holds."""
    placed: list[tuple[str, str]] = []
    while True:
        job, gpu = pick(ledger, policy)
        if job < 0:
            return placed
        entry = ledger.queued()[job]
        ledger.place(entry, [gpu], 0.0)
        placed.append((entry.job.job_id, ledger.layout.gpu_ids[gpu]))


@pytest.fixture
def ledger(cluster: Cluster) -> Ledger:
    return Ledger(cluster)


@pytest.mark.parametrize("name", POLICIES)
def test_an_empty_queue_is_held(ledger: Ledger, name: str) -> None:
    assert pick(ledger, made(name)) == (-1, -1)


def test_the_default_policy_exists() -> None:
    assert DEFAULT_POLICY in POLICIES


def test_fcfs_takes_the_head_and_the_lowest_number(ledger: Ledger) -> None:
    queue(ledger, 1, (9, 1, 1))
    queue(ledger, 2, (1, 1, 1))
    assert drain(ledger, POLICIES["fcfs"]()) == [("job-1", "volta-0/0"), ("job-2", "volta-0/1")]


def test_fcfs_spreads_by_the_cores_of_the_nodes(ledger: Ledger) -> None:
    for number in (1, 2, 3, 4):
        queue(ledger, number, (5, 5, 5), cpu_cores=8)
    # Three nodes of 8 cores take three jobs; the fourth waits.
    assert drain(ledger, POLICIES["fcfs"]()) == [
        ("job-1", "volta-0/0"),
        ("job-2", "turing-0/0"),
        ("job-3", "radeon-0/0"),
    ]


def test_fcfs_blocks_what_would_fit_behind_the_head(ledger: Ledger) -> None:
    queue(ledger, 1, (5, 5, 5), cpu_cores=6, gpu_memory_mib=16000)
    queue(ledger, 2, (5, 5, 5), cpu_cores=6, gpu_memory_mib=16200)  # Radeon only
    queue(ledger, 3, (5, 5, 5), cpu_cores=6, gpu_memory_mib=15000)  # no 16 GB card has 6 cores left
    queue(ledger, 4, (1, 1, 1), cpu_cores=1)
    assert drain(ledger, POLICIES["fcfs"]()) == [("job-1", "volta-0/0"), ("job-2", "radeon-0/0")]


def test_fcfs_fastest_takes_the_fastest_that_fits(ledger: Ledger) -> None:
    queue(ledger, 1, (9, 4, 5))
    queue(ledger, 2, (9, 4, 5), gpu_memory_mib=16000)
    assert drain(ledger, POLICIES["fcfs_fastest"]()) == [("job-1", "turing-0/0"), ("job-2", "radeon-0/0")]


def test_sjf_takes_the_shortest_pair_and_the_earlier_job_on_a_tie(ledger: Ledger) -> None:
    queue(ledger, 1, (9, 8, 7))
    queue(ledger, 2, (3, 4, 5))
    queue(ledger, 3, (3, 2.9, 5), gpu_memory_mib=12000)  # its 2.9 s are on a GPU too small for it
    assert [job_id for job_id, _ in drain(ledger, POLICIES["sjf"]())] == ["job-2", "job-3", "job-1"]


def test_sjf_does_not_wait_for_a_blocked_head(ledger: Ledger) -> None:
    queue(ledger, 1, (5, 5, 5), cpu_cores=9)  # no node has 9
    queue(ledger, 2, (6, 7, 8))
    assert drain(ledger, POLICIES["sjf"]()) == [("job-2", "volta-0/0")]


def test_static_keeps_types_to_their_models_and_overflows_by_memory(ledger: Ledger) -> None:
    queue(ledger, 1, (1, 9, 9), job_type=JobType.SIMULATION)
    queue(ledger, 2, (9, 1, 1), job_type=JobType.MACHINE_LEARNING)
    queue(ledger, 3, (1, 1, 9), job_type=JobType.DATA_PROCESSING)
    queue(ledger, 4, (1, 1, 9), job_type=JobType.DATA_PROCESSING)  # waits: one Radeon only
    queue(ledger, 5, (1, 1, 1), job_type=JobType.SIMULATION, gpu_memory_mib=15000)  # Turing is too small for it
    assert dict(drain(ledger, POLICIES["static"]())) == {
        "job-1": "turing-0/0",
        "job-2": "volta-0/0",
        "job-3": "radeon-0/0",
        "job-5": "volta-0/1",
    }


def test_scores_of_a_batch_are_those_of_its_members(cluster: Cluster) -> None:
    first, second = Ledger(cluster), Ledger(cluster)
    queue(first, 1, (9, 4, 5))
    queue(second, 1, (3, 4, 5))
    both = [ledger.observe(0.0) for ledger in (first, second)]
    for policy in (POLICIES[name]() for name in there()):
        alone = np.concatenate([policy.act(each) for each in both])
        np.testing.assert_array_equal(policy.act(merged(both)), alone)
