"""What a decision's explanation says of each GPU, and whom it names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies.base import Judgement
from adlro.decide.policies.sjf import Sjf
from adlro.records.cluster import Cluster
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobReservation
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.sets import why_no_set
from adlro.services.orchestrator.ledger.ledger import Ledger
from tests.ledgers import job, node, queue

NO = -np.inf


def made(
    cluster: Cluster,
    basis: DecisionBasis,
    scores: list[float],
    values: list[float] | None,
    chosen: int = -1,
    gpu: list[int] | None = None,
) -> Made:
    """Of one job on the five idle GPUs of volta-0, two, turing-0, two, and radeon-0: three groups."""
    ledger = Ledger(cluster)
    entry = queue(ledger, 1, (1.0, 2.0, 3.0))
    valued = None if values is None else np.array(values)
    judgement, observation = Judgement(np.array(scores), {0: basis}, valued, notes={0: "why"}), ledger.observe(5.0)
    judgement.gpu = None if gpu is None else np.array(gpu)
    now = Made.now("d-1" if chosen >= 0 else "", entry, Sjf(), ledger, 5.0)
    if chosen < 0:
        return now.judged(judgement, observation, 0)
    return now.placed((chosen,), judgement, observation, 0, 1, None, 9.0)


def test_pairs_that_the_limit_on_waits_keeps_from_a_waiting_job_are_no_candidates(cluster: Cluster) -> None:
    found = made(cluster, DecisionBasis.OVERDUE, [NO] * 3, [3.0, 2.0, NO]).explained()
    assert found.candidates == ()
    assert {each.reason for each in found.masked} == {"a job that has waited too long goes first"}
    assert found.basis_text.startswith("the limit on waits decided in place of sjf")
    assert (found.policy, found.deciding_policy) == ("sjf", "sjf")


def test_a_job_that_went_first_is_not_told_that_another_does(cluster: Cluster) -> None:
    decision = made(cluster, DecisionBasis.OVERDUE, [1.0, NO, 0.5], [3.0, 2.0, 4.0], chosen=0)
    found = decision.explained()
    assert [each.gpu_id for each in found.candidates] == ["volta-0/0", "radeon-0/0"]
    assert {each.gpu_id: each.reason for each in found.masked} == {
        "volta-0/1": "equals another idle GPU of its node, which stands for both",
        "turing-0/0": "the limit on waits excludes it now",
        "turing-0/1": "equals another idle GPU of its node, which stands for both",
    }
    assert found.summary.startswith("the limit on waits starts job-1 on volta-0/0")


@pytest.mark.parametrize(
    ("basis", "who"),
    [
        (DecisionBasis.POLICY, "sjf"),
        (DecisionBasis.LATE, "hold_gang"),
        (DecisionBasis.MISSING, "hold_gang"),
    ],
)
def test_who_decided_is_who_takes_pairs_or_does_not(cluster: Cluster, basis: DecisionBasis, who: str) -> None:
    found = made(cluster, basis, [1.0, 0.5, NO], None, chosen=0).explained()
    assert found.summary.startswith(f"{who} starts job-1 on volta-0/0")
    assert (found.policy, found.deciding_policy, found.basis) == ("sjf", who, basis)
    assert {each.reason for each in found.masked} == {f"{who} rejects this GPU for the job now"}


def test_gpus_that_are_kept_free_for_another_job_are_told(cluster: Cluster) -> None:
    decision = made(cluster, DecisionBasis.POLICY, [NO, NO, 1.0], None)
    held = JobReservation("job-9", 1.0, "v100_sxm2", ("volta-0",), 20.0, 0, 2)
    found = {each.gpu_id: each.reason for each in replace(decision, reservation=held).explained().masked}
    assert found["volta-0/0"] == ("sjf rejects this GPU for the job now; GPUs of its node are kept free for job-9")
    assert found["turing-0/0"] == "sjf rejects this GPU for the job now"
    own = replace(decision, reservation=replace(held, job_id="job-1")).explained()
    assert {each.reason for each in own.masked} == {"sjf rejects this GPU for the job now"}


@pytest.mark.parametrize("chosen", [1, -1])
def test_of_a_group_only_the_gpu_that_its_row_takes_has_the_score(cluster: Cluster, chosen: int) -> None:
    found = made(cluster, DecisionBasis.POLICY, [1.0, NO, 0.5], None, chosen, gpu=[1, 2, 4]).explained()
    assert [(each.gpu_id, each.score) for each in found.candidates] == [("volta-0/1", 1.0), ("radeon-0/0", 0.5)]
    assert {each.gpu_id: each.reason for each in found.masked} == {
        "volta-0/0": "equals another idle GPU of its node, which stands for both",
        "turing-0/0": "sjf rejects this GPU for the job now",
        "turing-0/1": "sjf rejects this GPU for the job now",
    }


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"gpu_count": 2}, "needs 2 GPUs on 1 node, or on more where it runs slower; none is free"),
        ({"gpu_count": 2, "max_node_count": 1}, "needs 2 GPUs on 1 node; none is free"),
        ({"gpu_count": 2, "cpu_cores": 5}, "needs 2 GPUs on 2 nodes; none is free"),
    ],
)
def test_more_nodes_are_named_only_where_a_job_can_be_on_more(spec: dict[str, Any], says: str) -> None:
    two = Cluster("c", (node("a", "v100_sxm2", 16160), node("b", "v100_sxm2", 16160)))
    ledger = Ledger(two)
    ledger.set_lost(ledger.layout.gpu_ids, True)
    assert why_no_set(job(1, **spec).spec, ledger.occupancy, 0) == says


def test_one_gpu_that_is_free_is_one(cluster: Cluster) -> None:
    ledger = Ledger(Cluster("c", (node("a", "v100_sxm2", 16160),)))
    ledger.set_lost(ledger.layout.gpu_ids[1:], True)
    count = len(ledger.layout.gpu_ids)
    assert why_no_set(job(1, gpu_count=count).spec, ledger.occupancy, 0).endswith("; 1 is free, on 1 node")


def test_what_a_policy_says_of_its_own_choice_is_shown(cluster: Cluster) -> None:
    assert made(cluster, DecisionBasis.POLICY, [1.0, 0.5, NO], None, chosen=0).explained().basis_text == "why"
