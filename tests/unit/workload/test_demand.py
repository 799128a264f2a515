"""Jobs that fit nowhere are found before a list runs, with line and demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.records.jobs import JobType
from adlro.workload.demand import demand_warnings, find_unplaceable, node_kinds, split_placeable
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
