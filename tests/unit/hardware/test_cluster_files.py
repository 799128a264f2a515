"""Cluster files: what is read, speeds of one's own, and complaints that name file, key and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.hardware.cluster_files import read_cluster, read_cluster_file, read_speeds
from adlro.hardware.specs import known_spec
from adlro.hardware.speeds import SHIPPED
from adlro.records.cluster import GpuSpec
from adlro.records.jobs import JobType
from adlro.workload.scenario import SCENARIO_NAMES, load_cluster, load_speeds
from adlro.workload.traces import TRACE_FORMATS

NODE = """
[[nodes]]
name = "n"
gpu_model = "v100_sxm2"
gpus = 2
gpu_memory_mib = 16160
cpu_cores = 8
memory_mib = 65536
"""
OWN = NODE.replace('"v100_sxm2"', '"a100"')
SPEEDS = """
[[speeds]]
application = "resnet50_fp16"
job_type = "machine_learning"
a100 = 2.0
source = "our runs"

[[speeds]]
application = "our_solver"
job_type = "simulation"
a100 = 1.5
v100_sxm2 = 1.0
"""


def write(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def test_gpus_and_applications_of_ones_own_are_read(tmp_path):
    path = write(tmp_path, OWN + SPEEDS)
    cluster, speeds = read_cluster_file(path)
    assert cluster.gpu_models == ("a100",)
    assert speeds.speed("resnet50_fp16", JobType.MACHINE_LEARNING, "a100") == 2.0
    assert speeds.speed("vgg16_fp16", JobType.MACHINE_LEARNING, "a100") == 2.0  # its job type's only row
    assert speeds.speed("our_solver", JobType.SIMULATION, "v100_sxm2") == 1.0
    assert speeds.speed("x", JobType.DATA_PROCESSING, "a100") == pytest.approx((2.0 * 1.5) ** 0.5)
    assert load_cluster(str(path)) == cluster
    assert load_speeds(str(path)).speed("our_solver", JobType.SIMULATION, "a100") == 1.5


def test_scenarios_and_files_without_speeds_have_those_that_ship(tmp_path):
    assert read_speeds(write(tmp_path, NODE)) is SHIPPED
    assert load_speeds("gavel") is SHIPPED
    with pytest.raises(InvalidInput, match="neither a scenario"):
        load_speeds("papre")


def test_figures_for_telemetry_can_be_given(tmp_path):
    figures = "memory_bandwidth_gb_per_s = 1555\npower_limit_w = 400\nmax_temperature_c = 92.5\n"
    (node,) = read_cluster(write(tmp_path, OWN + figures + SPEEDS)).nodes
    assert known_spec(node.gpus[0]) == GpuSpec(1555.0, 400.0, 92.5)


@pytest.mark.parametrize(
    ("text", "field", "complaint"),
    [
        (NODE.replace("gpu_memory_mib = 16160\n", ""), "nodes[0].gpu_memory_mib", "and is missing (line 2)"),
        (NODE.replace("16160", "0"), "nodes[0].gpu_memory_mib", "a whole number above 0, not 0 (line 6)"),
        (NODE.replace("16160", "nan"), "nodes[0].gpu_memory_mib", "a whole number above 0, not nan (line 6)"),
        (NODE.replace("16160", "true"), "nodes[0].gpu_memory_mib", "a whole number above 0, not True (line 6)"),
        (NODE.replace("gpus = 2", "gpus = 100000000000"), "nodes[0].gpus", "at most 1024, not 100000000000 (line 5)"),
        (NODE + "gpu_memory = 5\n", "nodes[0].gpu_memory", "is an unknown key; known are name, gpu_model,"),
        (NODE + NODE, "nodes[1].name", "'n' is used twice (line 11)"),
        ("nodse = 1\n" + NODE, "nodse", "is an unknown key; known are name, nodes, speeds (line 1)"),
        (OWN, "nodes[0].gpu_model", "no speeds are known for GPU model 'a100'; use one of v100_sxm2, "),
        (NODE + "interconnect_bandwidth_gb_per_s = nan", "nodes[0].interconnect_bandwidth_gb_per_s", "from 0, not nan"),
        (NODE + "interconnect_bandwidth_gb_per_s = inf", "nodes[0].interconnect_bandwidth_gb_per_s", "from 0, not inf"),
        (NODE + "power_limit_w = 5", "nodes[0].memory_bandwidth_gb_per_s", "a number above 0, and is missing"),
        (OWN + SPEEDS.replace("2.0", "nan"), "speeds[0].a100", "must be a number above 0, not nan (line 13)"),
        (OWN + SPEEDS.replace("2.0", "-1"), "speeds[0].a100", "must be a number above 0, not -1 (line 13)"),
        (OWN + SPEEDS.replace("2.0", "0"), "speeds[0].a100", "must be a number above 0, not 0 (line 13)"),
        (OWN + SPEEDS.replace("1.5", "inf"), "speeds[1].a100", "must be a number above 0, not inf (line 19)"),
        (OWN + SPEEDS.replace("a100 = 1.5\n", ""), "speeds[1].a100", "a number above 0, and is missing (line 16)"),
        (OWN + SPEEDS.replace("v100_sxm2", "v10"), "speeds[1].v10", "is an unknown key"),
        (OWN + SPEEDS.replace("our_solver", "resnet50_fp16"), "speeds[1].application", "has a row already (line 17)"),
        (OWN + SPEEDS.replace("machine_learning", "ml"), "speeds[0].job_type", "must be one of simulation, machine_"),
        (NODE + '[[speeds]]\napplication = "x"\njob_type = "simulation"', "speeds[0].application", "gives no speed"),
        ("speeds = 3\n" + NODE, "speeds", "must be [[speeds]] tables"),
        ("nodes = [3]", "nodes[0]", "must be a table"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_line(tmp_path, text, field, complaint):
    with pytest.raises(InvalidInput) as caught:
        read_cluster(write(tmp_path, text))
    assert caught.value.field == field
    assert f"cluster.toml: {field}: " in caught.value.message
    assert complaint in caught.value.message


@pytest.mark.parametrize("speed", ["1e-300", "1e300", "0.00009", "10001"])
def test_a_speed_that_can_be_none_is_refused(tmp_path, speed):
    path = write(tmp_path, OWN + SPEEDS.replace("a100 = 2.0", f"a100 = {speed}"))
    with pytest.raises(InvalidInput, match=r"cluster\.toml: speeds\[0\]\.a100: must be from 0\.0001 to 10000.*line 13"):
        read_cluster(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x = " + b"9" * 5000, b"[" * 5000, b"x = 1\nx = 2\n"])
def test_what_is_no_toml_is_refused_with_the_file(tmp_path, content):
    path = tmp_path / "cluster.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"cluster\.toml: "):
        read_cluster(path)


@given(
    st.lists(
        st.sampled_from(
            [*(NODE + OWN + SPEEDS).splitlines(), "gpus = nan", "name = ''", "a100 = []", "nodes = {}", "[speeds]", "é"]
        ),
        max_size=25,
    )
)
def test_lines_in_any_order_are_a_cluster_or_refused(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("fuzz") / "cluster.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    refused = None
    try:
        cluster, speeds = read_cluster_file(path)
        speeds.require(cluster.gpu_models)
    except InvalidInput as error:
        refused = error
    assert refused is None or "cluster.toml: " in refused.message


def test_the_example_in_the_documentation_is_a_cluster(tmp_path):
    document = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    example = document.partition("```toml\n")[2].partition("```")[0]
    cluster, speeds = read_cluster_file(write(tmp_path, example))
    assert [gpu.memory_mib for _, gpu in cluster.gpus()] == [40960] * 4
    assert speeds.speed("", JobType.MACHINE_LEARNING, "a100") == pytest.approx(2.1)
    assert all(f"`{model}`" in document for model in SHIPPED.gpu_models)
    assert all(f"| `{name}` |" in document for name in (*SCENARIO_NAMES, *TRACE_FORMATS))
