"""Jobs that fit nowhere are found before a list runs, with line and demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.records.jobs import JobType
from adlro.workload.demand import demand_warnings, find_unplaceable, node_kinds, packed_node_counts, split_placeable
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_cluster, load_scenario

PAPER = load_cluster("paper")
JOB = WorkloadJob(0.0, "u", "neutral", JobType.SIMULATION, 5.0, 1000, 2, 4096, 0.5)


def test_every_drawn_job_fits_somewhere():
    scenario = load_scenario("paper")
    assert find_unplaceable(PAPER, draw_jobs(scenario, load=0.9, rng=np.random.default_rng(0), count=500)) is None


@pytest.mark.parametrize(
    ("change", "demand"),
    [
        ({"gpu_memory_mib": 20000}, "gpu_memory_mib: asks for 20000, where the most is 16368 MiB on a GPU"),
        ({"cpu_cores": 21}, "cpu_cores: asks for 21, where the most is 20 cores on a node"),
        ({"memory_mib": 300000}, "memory_mib: asks for 300000, where the most is 262144 MiB on a node"),
    ],
)
def test_what_fits_nowhere_is_counted_and_the_first_is_named(change, demand):
    jobs = [JOB, replace(JOB, **change, source_line=7), JOB, replace(JOB, **change, source_line=9)]
    found = find_unplaceable(PAPER, jobs)
    assert found is not None
    assert (found.jobs, found.count, found.first, found.first_line, found.demand) == (4, 2, 1, 7, demand)
    assert found.sentence.startswith("2 of 4 jobs can never run")
    assert f"line 7: {demand}" in found.sentence
    assert split_placeable(PAPER, jobs) == [JOB, JOB]


def test_demands_that_no_node_meets_together_are_found_too():
    nodes = (replace(PAPER.nodes[0], cpu_cores=4), PAPER.nodes[2])  # much GPU memory or many cores
    found = find_unplaceable(replace(PAPER, nodes=nodes), [replace(JOB, gpu_memory_mib=15000, cpu_cores=8)])
    assert found is not None
    assert found.demand.startswith("gpu_memory_mib: no node has at once a GPU with 15000 MiB, 8 CPU cores")
    assert "job 1 of the list" in found.sentence


def test_kinds_of_nodes_are_counted():
    assert [(kind.gpu_model, kind.gpus, count) for kind, count in node_kinds(PAPER).items()] == [
        ("v100_sxm2", 4, 2),
        ("rtx_2080_ti", 4, 1),
        ("radeon_vii", 4, 1),
    ]


def test_an_offered_load_above_one_is_a_warning_with_the_figure():
    assert demand_warnings(None, 0.99) == ()
    (warning,) = demand_warnings(None, 9.4814)
    assert "a load of 9.481" in warning
    found = find_unplaceable(PAPER, [replace(JOB, cpu_cores=21)])
    assert len(demand_warnings(found, float("inf"))) == 2


def test_packed_is_the_fewest_nodes_of_an_empty_cluster():
    kinds = node_kinds(PAPER)
    every = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
    for gpu_count, counts in (
        (1, dict.fromkeys(every, 1)),
        (4, dict.fromkeys(every, 1)),
        (5, {"v100_sxm2": 2}),
        (8, {"v100_sxm2": 2}),
        (9, {}),
    ):
        assert packed_node_counts(kinds, replace(JOB, gpu_count=gpu_count)) == counts
    # Eight cores with each GPU: two of them on a node of twenty.
    assert packed_node_counts(kinds, replace(JOB, gpu_count=4, cpu_cores=8)) == {"v100_sxm2": 2}
    assert packed_node_counts(kinds, replace(JOB, gpu_count=2, cpu_cores=8)) == dict.fromkeys(every, 1)
    assert packed_node_counts(kinds, replace(JOB, gpu_count=2, memory_mib=200_000)) == {"v100_sxm2": 2}
    assert packed_node_counts(kinds, replace(JOB, gpu_count=2, cpu_cores=0, memory_mib=0)) == dict.fromkeys(every, 1)
    assert packed_node_counts(kinds, replace(JOB, gpu_count=2, gpu_memory_mib=12_000)).keys() == {every[0], every[2]}
    assert packed_node_counts(kinds, replace(JOB, gpu_count=2, gpu_models=("radeon_vii", "a100"))) == {"radeon_vii": 1}
    assert packed_node_counts(kinds, replace(JOB, gpu_count=8, max_node_count=1)) == {}
    assert packed_node_counts(kinds, replace(JOB, gpu_count=8, max_node_count=2)) == {"v100_sxm2": 2}


def test_the_nodes_with_the_most_room_come_first():
    small = replace(PAPER.nodes[0], node_id="small", gpus=PAPER.nodes[0].gpus[:1])
    kinds = node_kinds(replace(PAPER, nodes=(small, *PAPER.nodes)))
    assert packed_node_counts(kinds, replace(JOB, gpu_count=4))["v100_sxm2"] == 1
    assert packed_node_counts(kinds, replace(JOB, gpu_count=8))["v100_sxm2"] == 2
    assert packed_node_counts(kinds, replace(JOB, gpu_count=9)) == {"v100_sxm2": 3}


@pytest.mark.parametrize(
    ("change", "demand"),
    [
        ({"gpu_count": 9}, "gpu_count: asks for 9 GPUs of one model, where the most that can be its own is 8"),
        (
            {"gpu_count": 4, "cpu_cores": 20, "gpu_models": ("radeon_vii",)},
            "gpu_count: asks for 4 GPUs of one model, where the most that can be its own is 1",
        ),
        (
            {"gpu_count": 8, "max_node_count": 1},
            "max_node_count: 8 GPUs need 2 nodes, where at most 1 is accepted",
        ),
        (
            {"gpu_count": 2, "gpu_models": ("a100", "h100")},
            "gpu_models: accepts a100, h100, and no node with one of them can hold it",
        ),
        ({"gpu_count": 2, "cpu_cores": 21}, "cpu_cores: asks for 21, where the most is 20 cores on a node"),
    ],
)
def test_a_gang_that_never_runs_is_told_why(change, demand):
    jobs = [JOB, replace(JOB, **change, source_line=7)]
    found = find_unplaceable(PAPER, jobs)
    assert found is not None
    assert (found.count, found.first_line, found.demand) == (1, 7, demand)
    assert found.sentence.startswith("1 of 2 jobs can never run, for no set of GPUs of the cluster can hold them;")
    assert split_placeable(PAPER, jobs) == [JOB]


def test_a_job_that_its_nodes_can_not_hold_is_told() -> None:
    first = PAPER.nodes[0].node_id
    here, elsewhere = replace(JOB, node_ids=(first,)), replace(JOB, node_ids=("elsewhere",))
    assert find_unplaceable(PAPER, [here]) is None
    found = find_unplaceable(PAPER, [here, elsewhere])
    assert found is not None
    assert (found.count, found.first) == (1, 1)
    assert found.demand == "node_ids: the cluster has no node with GPUs on which it may run"
    assert split_placeable(PAPER, [here, elsewhere]) == [here]
