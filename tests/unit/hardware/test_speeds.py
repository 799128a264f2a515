"""The two tables of speeds, what stands in where one does not list a pair, and rows of one's own."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.hardware.specs import GPU_SPECS
from adlro.hardware.speeds import (
    APPLICATIONS,
    GAVEL_APPLICATIONS,
    GAVEL_GPU_MODELS,
    GPU_MODELS,
    SHIPPED,
    SpeedRow,
    require_speeds,
    speed,
)
from adlro.package_data import csv_rows
from adlro.placement import Placement
from adlro.records.jobs import KINDS_OF_WORK, JobSpec, JobType, SimulatedWork
from adlro.sim.simulator import ClusterSimulator
from adlro.workload.scenario import load_cluster, load_scenario

SHARED_DATA = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


def test_gavels_speeds_are_ratios_of_its_measured_steps():
    assert len(GAVEL_APPLICATIONS) == 26
    assert GAVEL_GPU_MODELS == ("v100", "p100", "k80")
    for row in csv_rows("adlro.hardware", "gavel_throughputs.csv"):
        assert row["source"]
        for gpu_model in GAVEL_GPU_MODELS:
            ratio = float(row[f"{gpu_model}_steps_per_s"]) / float(row["v100_steps_per_s"])
            assert speed(row["application"], JobType.MACHINE_LEARNING, gpu_model) == ratio
    # Recommendation runs faster on the P100: a measured figure, however odd.
    assert speed("Recommendation (batch size 512)", JobType.MACHINE_LEARNING, "p100") > 2


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="no shared data; ADLRO_SHARED_DATA says where it is")
def test_gavels_figures_are_those_of_the_measured_file():
    with (SHARED_DATA / "gavel" / "isolated_throughputs_flat.csv").open(encoding="utf-8") as file:
        measured = {row["job_type"]: row for row in csv.DictReader(file) if row["scale_factor"] == "1"}
    shipped = {row["application"]: row for row in csv_rows("adlro.hardware", "gavel_throughputs.csv")}
    assert measured.keys() == shipped.keys()
    for name, row in measured.items():
        for gpu_model in GAVEL_GPU_MODELS:
            assert float(shipped[name][f"{gpu_model}_steps_per_s"]) == float(row[f"{gpu_model}_steps_per_s"])


def test_what_one_table_does_not_list_runs_at_a_geometric_mean():
    learning = [speed(name, JobType.MACHINE_LEARNING, "k80") for name in GAVEL_APPLICATIONS]
    mean = pytest.approx(np.exp(np.mean(np.log(learning))))
    assert speed("resnet50_fp16", JobType.MACHINE_LEARNING, "k80") == mean
    assert speed("neutral", JobType.SIMULATION, "k80") == mean  # the table has no simulation
    assert speed("A3C", JobType.MACHINE_LEARNING, "rtx_2080_ti") == SHIPPED.type_speed(
        JobType.MACHINE_LEARNING, "rtx_2080_ti"
    )
    assert SHIPPED.lists("A3C", "k80")
    assert not SHIPPED.lists("A3C", "rtx_2080_ti")
    every = [speed(name, JobType.SIMULATION, "radeon_vii") for name in APPLICATIONS]
    assert SHIPPED.model_speed("radeon_vii") == pytest.approx(np.exp(np.mean(np.log(every))))


def test_every_measured_speed_is_a_finite_number_above_zero_with_its_source():
    for name, models in (("speeds.csv", GPU_MODELS), ("gavel_throughputs.csv", GAVEL_GPU_MODELS)):
        for row in csv_rows("adlro.hardware", name):
            assert row["source"]
            assert all(0 < speed(row["application"], JobType.SIMULATION, model) < np.inf for model in models)


def test_all_shipped_models_are_known_with_their_specs():
    assert SHIPPED.gpu_models == (*GPU_MODELS, *GAVEL_GPU_MODELS)
    assert set(SHIPPED.gpu_models) <= set(GPU_SPECS)


def test_rows_of_ones_own_count_first_and_leave_other_means_alone():
    rows = [
        SpeedRow("mine", JobType.SIMULATION, {"a100": 2.0, "v100_sxm2": 0.9}),
        SpeedRow("other", JobType.SIMULATION, {"a100": 8.0}),
        SpeedRow("neutral", JobType.SIMULATION, {"radeon_vii": 0.5}),
    ]
    table = SHIPPED.extended(rows)
    assert table.speed("mine", JobType.SIMULATION, "a100") == 2.0
    assert table.speed("mine", JobType.SIMULATION, "v100_sxm2") == 0.9
    assert table.speed("neutral", JobType.SIMULATION, "radeon_vii") == 0.5
    assert table.speed("", JobType.SIMULATION, "a100") == pytest.approx(4.0)
    assert table.speed("", JobType.MACHINE_LEARNING, "a100") == pytest.approx(4.0)
    for job_type in KINDS_OF_WORK:
        assert table.type_speed(job_type, "radeon_vii") == SHIPPED.type_speed(job_type, "radeon_vii")
    assert table.gpu_models == (*SHIPPED.gpu_models, "a100")
    with pytest.raises(InvalidInput, match="GPU model 'a100'"):
        SHIPPED.speed("mine", JobType.SIMULATION, "a100")


def test_a_gavel_cluster_can_be_simulated():
    cluster = load_cluster("gavel")
    assert cluster.gpu_models == GAVEL_GPU_MODELS
    assert len(list(cluster.gpus())) == 24
    assert [gpu.memory_mib for _, gpu in cluster.gpus()][::8] == [16384, 16384, 12288]
    require_speeds(cluster)
    simulator = ClusterSimulator(cluster)
    spec = JobSpec(
        name="n",
        user="u",
        job_type=JobType.MACHINE_LEARNING,
        application="A3C",
        simulated_work=SimulatedWork(100.0),
    )
    simulator.launch("job-0", 1, spec, Placement.on("k80-0/0"))
    assert simulator.next_event_time() == pytest.approx(100.0 / speed("A3C", JobType.MACHINE_LEARNING, "k80"))


def test_the_scenario_gavel_draws_only_what_its_cluster_can_hold():
    scenario = load_scenario("gavel")
    assert set(scenario.job_types) == set(GAVEL_APPLICATIONS)
    assert sum(scenario.mix.values()) == pytest.approx(1.0)
    assert len(scenario.groups) == 3 * 26
