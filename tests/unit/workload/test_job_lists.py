"""Drawn job lists follow the scenario's rules; scenarios and cluster files say what is wrong with them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from adlro.errors import InvalidInput, NotFound
from adlro.hardware.specs import GPU_SPECS, known_spec
from adlro.hardware.speeds import APPLICATIONS, GPU_MODELS, JOB_TYPE_OF, speed, speeds
from adlro.records.jobs import JobType
from adlro.workload.job_lists import draw_groups, draw_jobs
from adlro.workload.scenario import load_cluster, load_scenario, read_cluster

SCENARIO = load_scenario("paper")


@pytest.fixture(scope="module")
def many():
    return draw_jobs(SCENARIO, load=0.9, rng=np.random.default_rng(5), count=20_000)


def test_arrivals_have_the_rate_of_load_times_capacity(many):
    gaps_s = np.diff([0.0, *(job.submit_s for job in many)])
    assert gaps_s.min() >= 0
    assert gaps_s.mean() == pytest.approx(3600 / (0.9 * 2977), rel=0.03)
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.05)  # exponential


def test_types_applications_and_users_have_their_shares(many):
    types = Counter(job.job_type for job in many)
    assert types[JobType.MACHINE_LEARNING] / len(many) == pytest.approx(0.40, abs=0.02)
    assert types[JobType.SIMULATION] / len(many) == pytest.approx(0.35, abs=0.02)
    applications = Counter(job.application for job in many if job.job_type is JobType.MACHINE_LEARNING)
    assert len(applications) == 9
    assert min(applications.values()) / max(applications.values()) > 0.8
    for application in APPLICATIONS:
        i = APPLICATIONS.index(application)
        users = {job.user for job in many if job.application == application}
        assert users == {f"user-{(3 * i + k) % 24:02d}" for k in range(3)}


def test_work_scatters_around_the_mean_of_its_group(many):
    group = next(group for group in SCENARIO.groups if 8 < group.mean_work_s < 20)
    logs = [np.log(j.work_s) for j in many if (j.user, j.application) == (group.user, group.application)]
    assert np.mean(logs) == pytest.approx(np.log(group.mean_work_s), abs=0.06)
    assert np.std(logs) == pytest.approx(0.4, abs=0.05)
    assert all(1.0 <= job.work_s <= 600.0 for job in many)


def test_demands_come_from_the_scenario(many):
    for job in many:
        assert job.gpu_memory_mib in SCENARIO.gpu_memory_mib[job.job_type]
        assert job.memory_mib == 4096 * job.cpu_cores
    sixteen = [job.cpu_cores == 16 for job in many if job.job_type is JobType.DATA_PROCESSING]
    assert np.mean(sixteen) == pytest.approx(0.1, abs=0.02)
    assert np.mean([job.priority == 0.25 for job in many]) == pytest.approx(0.5, abs=0.02)


def test_a_seed_gives_the_same_jobs_and_a_short_list_is_the_beginning_of_a_long_one():
    long = draw_jobs(SCENARIO, load=0.6, rng=np.random.default_rng(3), count=64)
    assert draw_jobs(SCENARIO, load=0.6, rng=np.random.default_rng(3), count=16) == long[:16]
    assert draw_jobs(SCENARIO, load=0.6, rng=np.random.default_rng(4), count=16) != long[:16]


def test_another_population_has_the_same_pairs_and_other_means():
    groups = draw_groups(SCENARIO, np.random.default_rng(1))
    assert [(g.user, g.application) for g in groups] == [(g.user, g.application) for g in SCENARIO.groups]
    assert all(a.mean_work_s != b.mean_work_s for a, b in zip(groups, SCENARIO.groups, strict=True))
    logs = np.log([group.mean_work_s / SCENARIO.median_work_s[group.job_type] for group in groups])
    assert np.std(logs) == pytest.approx(0.8, rel=0.35)
    draw_jobs(SCENARIO, load=0.6, rng=np.random.default_rng(3), count=64, groups=groups)


@pytest.mark.parametrize(("load", "count"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (0.5, 0)])
def test_impossible_lists_are_refused(load, count):
    with pytest.raises(InvalidInput):
        draw_jobs(SCENARIO, load=load, rng=np.random.default_rng(0), count=count)


def test_a_job_becomes_what_is_submitted():
    job = draw_jobs(SCENARIO, load=0.6, rng=np.random.default_rng(3), count=1)[0]
    spec = job.spec("first")
    assert spec.begin_time_s == job.submit_s
    assert spec.simulated_work is not None
    assert spec.simulated_work.work_s == job.work_s
    assert spec.expected_runtime is None


def test_the_scenarios_clusters():
    paper, roomy = load_scenario("paper"), load_scenario("paper_roomy")
    assert len(list(paper.cluster.gpus())) == 16
    assert paper.cluster.gpu_models == GPU_MODELS
    assert {node.cpu_cores for node in paper.cluster.nodes} == {20}
    assert {node.cpu_cores for node in roomy.cluster.nodes} == {32}
    assert roomy.capacity_jobs_per_h == 2978
    assert [gpu.gpu_id for _, gpu in paper.cluster.gpus()][6] == "volta-1/2"
    assert all(known_spec(gpu) is GPU_SPECS[gpu.gpu_model] for _, gpu in paper.cluster.gpus())
    with pytest.raises(NotFound, match="no scenario 'papre'; there are paper, paper_roomy"):
        load_scenario("papre")


def test_speeds_of_unknown_applications_are_the_geometric_mean_of_their_type():
    rows = [speed(name, JobType.SIMULATION, "radeon_vii") for name in SCENARIO.applications(JobType.SIMULATION)]
    assert speed("mine", JobType.SIMULATION, "radeon_vii") == pytest.approx(np.prod(rows) ** (1 / len(rows)))
    assert speed("", JobType.SIMULATION, "v100_sxm2") == pytest.approx(1.0)
    with pytest.raises(InvalidInput, match="GPU model 'a100'"):
        speed("neutral", JobType.SIMULATION, "a100")


def test_the_table_of_speeds_has_the_same_figures():
    types = [JOB_TYPE_OF[name] for name in APPLICATIONS]
    table = speeds(APPLICATIONS, types, GPU_MODELS)
    assert table.shape == (15, 3)
    for j, m in ((0, 1), (14, 2), (7, 0)):
        assert table[j, m] == speed(APPLICATIONS[j], types[j], GPU_MODELS[m])
    with pytest.raises(InvalidInput):
        speeds(["neutral"], [JobType.SIMULATION], ["a100"])


NODE = """
[[nodes]]
name = "n"
gpu_model = "v100_sxm2"
gpus = 2
gpu_memory_mib = 16160
cpu_cores = 8
memory_mib = 65536
"""


def test_a_cluster_file_is_read(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('name = "lab"' + NODE)
    cluster = load_cluster(str(path))
    assert cluster.name == "lab"
    assert [gpu.gpu_id for _, gpu in cluster.gpus()] == ["n/0", "n/1"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (NODE.replace("gpus = 2", "gpus = 0"), r"nodes\[0\].gpus: must be a whole number above 0, not 0"),
        (NODE.replace("gpus = 2", 'gpus = "2"'), r"nodes\[0\].gpus: must be a whole number"),
        (NODE.replace("cpu_cores = 8", ""), r"nodes\[0\].cpu_cores: .* is missing"),
        (NODE + NODE, r"nodes\[1\].name: 'n' is used twice"),
        ("name = 'x'", "nodes: needs at least one"),
        ("nodes = [", "is not TOML"),
        (
            NODE + "interconnect_bandwidth_gb_per_s = -1",
            r"nodes\[0\].interconnect_bandwidth_gb_per_s: must be a number from 0",
        ),
    ],
)
def test_a_wrong_cluster_file_is_refused_with_file_and_field(tmp_path, text, complaint):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=rf"cluster.toml: {complaint}"):
        read_cluster(path)


def test_a_name_that_is_neither_scenario_nor_file_is_refused():
    with pytest.raises(InvalidInput, match=r"neither a scenario \(paper, .*trace\) nor a file"):
        load_cluster("papre")
