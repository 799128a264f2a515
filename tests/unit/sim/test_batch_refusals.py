"""What the batched simulator refuses, and what it does at the edges."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from adlro.decide.policies import POLICIES
from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobType
from adlro.sim.batch import BatchSimulator, simulate
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import WorkloadJob

CLUSTER = Cluster("two", (Node("n", 8, 1000, tuple(Gpu(f"n/{i}", "v100_sxm2", 16000) for i in range(2))),))


def jobs(*submit_s: float, work_s: float = 10.0, cores: int = 1) -> list[WorkloadJob]:
    return [WorkloadJob(at_s, "ann", "neutral", JobType.SIMULATION, work_s, 1, cores, 1, 0.5) for at_s in submit_s]


def arrays(*lists: list[WorkloadJob]) -> JobArrays:
    return pack_jobs(lists or [jobs(0.0, 1.0)], CLUSTER)


def changed(packed: JobArrays, field: str, value: float) -> JobArrays:
    column = getattr(packed, field).copy()
    column[0, 1] = value
    return packed._replace(**{field: column})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("duration_s", 0.0),
        ("duration_s", float("nan")),
        ("duration_s", -1.0),
        ("expected_s", 0.0),
        ("submit_s", float("nan")),
        ("submit_s", -1.0),
        ("submit_s", 1e13),
    ],
)
def test_job_arrays_that_cannot_be_are_refused(field, value):
    packed = changed(arrays(), field, value)
    with pytest.raises(InvalidInput, match="list 0, job 1") as caught:
        BatchSimulator(CLUSTER, packed)
    assert caught.value.field in (field, "duration_s")


def test_submissions_out_of_order_are_refused():
    packed = arrays(jobs(0.0, 5.0))
    packed.submit_s[0] = [5.0, 4.0]
    with pytest.raises(InvalidInput, match="submit_s"):
        BatchSimulator(CLUSTER, packed)


def test_durations_for_other_models_are_refused():
    packed = pack_jobs([jobs(0.0)], ("v100_sxm2", "radeon_vii"))
    with pytest.raises(InvalidInput, match="2 GPU models, and there are 1"):
        BatchSimulator(CLUSTER, packed)


def test_clusters_of_a_batch_have_the_models_that_the_jobs_were_packed_for():
    other = dataclasses.replace(
        CLUSTER, nodes=(dataclasses.replace(CLUSTER.nodes[0], gpus=(Gpu("x", "radeon_vii", 16000),)),)
    )
    with pytest.raises(InvalidInput, match="radeon_vii"):
        BatchSimulator([CLUSTER, other], arrays(jobs(0.0), jobs(0.0)))


def test_a_cluster_without_gpus_and_a_batch_of_none_are_refused():
    bare = Cluster("bare", (Node("n", 1, 1, ()),))
    with pytest.raises(InvalidInput, match="'bare' has no GPU"):
        BatchSimulator(bare, pack_jobs([jobs(0.0)], ("v100_sxm2",)), gpu_models=("v100_sxm2",))
    with pytest.raises(InvalidInput, match="at least one"):
        BatchSimulator([], pack_jobs([], ()))


@pytest.mark.parametrize("start_cost_s", [float("nan"), float("inf"), -3.0])
def test_a_start_costs_a_number_from_0(start_cost_s):
    with pytest.raises(InvalidInput, match="start_cost_s"):
        BatchSimulator(CLUSTER, arrays(), start_cost_s=start_cost_s)


@pytest.mark.parametrize("number", [-1, 1, 10_000])
def test_a_list_that_is_begun_is_one_of_the_pool(number):
    with pytest.raises(InvalidInput, match="there are job lists 0 to 0, not"):
        BatchSimulator(CLUSTER, arrays(), begin_with=[0, number])
    simulator = BatchSimulator(CLUSTER, arrays(), begin_with=[0, 0])
    with pytest.raises(InvalidInput, match="there are job lists 0 to 0, not"):
        simulator.begin(np.array([1]), np.array([number]))


@pytest.mark.parametrize("clusters", [[2], [-1], [0, 1]])
def test_clusters_that_begin_are_there_and_have_a_list_each(clusters):
    simulator = BatchSimulator(CLUSTER, arrays(), begin_with=[0, 0])
    with pytest.raises(InvalidInput, match="of 2 clusters"):
        simulator.begin(np.array(clusters), np.array([0]))


def test_actions_are_one_for_each_active_cluster():
    simulator = BatchSimulator(CLUSTER, arrays(jobs(0.0), jobs(0.0), jobs(0.0)))
    with pytest.raises(ValueError, match="shape"):
        simulator.act(np.zeros((1, 2), dtype=np.int64))
    assert (simulator.outcome().attempts == 0).all()


def hold_always(simulator: BatchSimulator) -> None:
    simulator.act(np.full((len(simulator.active), 2), HOLD))


def test_a_policy_that_always_holds_comes_to_an_end():
    simulator = BatchSimulator(CLUSTER, arrays(jobs(0.0, 1.0, 2.0)))
    for _ in range(100):
        if not len(simulator.active):
            break
        hold_always(simulator)
    assert simulator.stuck.tolist() == [True]


def test_nobody_is_told_of_a_gpus_speed_while_holding():
    """A hold from time 0 lasts its 30 s, whether a GPU slows down at 5 s or not; a lost GPU ends it."""

    def second_decision_s(*changes):
        simulator = BatchSimulator(CLUSTER, arrays(jobs(0.0, 100.0)), gpu_changes=[list(changes)])
        hold_always(simulator)
        return simulator.time_s[0]

    assert second_decision_s() == 30.0
    assert second_decision_s((5.0, 1, 0.9)) == 30.0
    assert second_decision_s((5.0, 1, 1.0)) == 30.0
    assert second_decision_s((5.0, 1, 0.0)) == 5.0


def test_clusters_of_a_pool_run_their_lists_as_if_each_had_its_own():
    """Three clusters, two lists: each runs what it was given, and another one after it."""
    policy = POLICIES["fcfs"]()
    packed = arrays(jobs(0.0, 1.0, 2.0), jobs(0.0, 5.0, work_s=3.0))
    alone = simulate(CLUSTER, packed, policy.act)
    simulator = BatchSimulator(CLUSTER, packed, begin_with=[1, 0, 1])
    for lists in ([1, 0, 1], [0, 1, 0]):
        simulator.begin(np.arange(3), np.array(lists))
        while len(simulator.active):
            simulator.act(policy.act(simulator.observe()))
        np.testing.assert_array_equal(simulator.outcome().end_s, alone.end_s[lists])


def test_what_a_start_costs_is_paid_and_not_known():
    """Two jobs of 10 s, one after the other on one GPU, 60 s a start: the ends are at 70 s and 140 s."""
    remaining_s = []
    one = dataclasses.replace(CLUSTER, nodes=(dataclasses.replace(CLUSTER.nodes[0], gpus=CLUSTER.nodes[0].gpus[:1]),))
    policy = POLICIES["fcfs"]()

    def act(observation):
        remaining_s.append(float(observation.gpu_remaining_s[0, 0]))
        return policy.act(observation)

    outcome = simulate(one, pack_jobs([jobs(0.0, 0.0)], one), act, start_cost_s=60.0)
    assert outcome.end_s[0].tolist() == [70.0, 140.0]
    assert remaining_s == [0.0, 0.0]
    simulator = BatchSimulator(CLUSTER, arrays(jobs(0.0, 0.0, 0.0)), start_cost_s=60.0)
    simulator.act(np.array([[0, 0]]))
    assert simulator.observe().gpu_remaining_s[0].tolist() == [10.0, 0.0]
