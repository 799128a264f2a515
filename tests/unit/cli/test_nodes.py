"""`adlro nodes` and `adlro describe node`: what jobs hold, what is free, drained or lost; clusters of any size."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from rich.cells import cell_len

from adlro.cli.gpus import GPUS, gpu_table, gpu_views
from adlro.cli.listing.layout import TextTable
from adlro.cli.listing.options import make_view
from adlro.cli.nodes import NODES, NodeView, node_views
from adlro.errors import PermissionDenied
from adlro.placement import GpuShare, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import GpuCondition
from adlro.records.jobs import Job, JobSpec, JobState, JobType, PendingReason
from adlro.terminal import PlainConsole
from tests.unit.client.fake_suite import CLUSTER, FakeSuite

Run = Callable[..., Any]

SPEC = JobSpec("train", "ada", JobType.MACHINE_LEARNING, cpu_cores=4, memory_mib=8192)


def job(number: int, placement: Placement, **fields: Any) -> Job:
    return Job(f"job-{number}", replace(SPEC, **fields), JobState.RUNNING, placement=placement)


def by_id(views: list[NodeView]) -> dict[str, NodeView]:
    return {each.node_id: each for each in views}


def test_jobs_hold_cores_and_memory_with_each_gpu() -> None:
    jobs = [job(1, Placement.on("volta-0/0", "turing-0/0"), gpu_count=2), job(2, Placement.on("volta-0/1"))]
    found = by_id(node_views(CLUSTER, jobs, {}, {}))
    volta, turing = found["volta-0"], found["turing-0"]
    assert (volta.used_cpu_cores, volta.used_memory_mib, volta.free_gpu_count) == (8, 16_384, 0)
    assert (turing.used_cpu_cores, turing.used_memory_mib, turing.free_gpu_count) == (4, 8192, 0)
    assert (volta.job_ids, turing.job_ids) == (("job-1", "job-2"), ("job-1",))
    assert (volta.state, volta.gpu_models, volta.lost_gpu_count) == ("open", {"v100_sxm2": 2}, 0)


def test_beside_an_exclusive_job_no_gpu_is_free() -> None:
    found = by_id(node_views(CLUSTER, [job(1, Placement.on("volta-0/0"), exclusive=True)], {}, {}))
    volta = found["volta-0"]
    assert (volta.state, volta.free_gpu_count, volta.reason, volta.used_cpu_cores) == ("open", 0, "job-1: exclusive", 4)
    assert found["turing-0"].free_gpu_count == 1


def test_a_half_held_gpu_is_not_free() -> None:
    half = Placement((GpuShare("volta-0/0", 0.5),))
    found = by_id(node_views(CLUSTER, [job(1, half), job(2, half)], {}, {}))
    assert (found["volta-0"].used_cpu_cores, found["volta-0"].free_gpu_count) == (8, 1)


def test_drained_and_lost_nodes() -> None:
    lost = {"turing-0/0": "fell off the bus"}
    found = by_id(node_views(CLUSTER, [job(1, Placement.on("volta-0/0"))], lost, {"volta-0": "a fan"}))
    assert (found["volta-0"].state, found["volta-0"].reason, found["volta-0"].free_gpu_count) == (
        "draining",
        "a fan",
        0,
    )
    assert (found["turing-0"].state, found["turing-0"].reason) == ("lost", "fell off the bus")
    assert (found["turing-0"].lost_gpu_count, found["turing-0"].free_gpu_count) == (1, 0)
    assert by_id(node_views(CLUSTER, [], {}, {"volta-0": ""}))["volta-0"].state == "drained"
    one = by_id(node_views(CLUSTER, [], {"volta-0/1": "ECC"}, {}))["volta-0"]
    assert (one.state, one.free_gpu_count, one.reason) == ("open", 1, "1 lost: ECC")


def test_what_is_not_known_is_not_made_up() -> None:
    for each in (*node_views(CLUSTER, [], None, {}), *node_views(CLUSTER, [], {}, None)):
        assert each.free_gpu_count is None
    assert node_views(CLUSTER, [], {}, None)[0].state is None
    gone = job(1, Placement.on("elsewhere/0"))
    assert node_views(CLUSTER, [gone], {}, {})[0].used_cpu_cores == 0


def test_nodes_of_a_suite(suite: FakeSuite, adlro: Run) -> None:
    for _ in range(3):
        suite.add(SPEC)
    running = {"state": JobState.RUNNING, "pending_reason": PendingReason.NONE, "message": ""}
    suite.change("job-1", placement=Placement.on("volta-0/0"), **running)
    suite.change("job-2", placement=Placement.on("volta-0/1"), pending_reason=PendingReason.LAUNCHING)
    suite.drained, suite.drain_reasons = ["turing-0"], {"turing-0": "a fan"}
    result = adlro("nodes")
    lines = {line.split()[0]: " ".join(line.split()) for line in result.stdout.splitlines()}
    assert lines["volta-0"] == "volta-0 open 2x v100_sxm2 0 8/20 16/256 2"
    assert lines["turing-0"] == "turing-0 drained 1x rtx_2080_ti 0 0/20 0/256 0 a fan"
    assert "2 nodes, 3 GPUs, 0 of them free" in result.stderr
    assert adlro("nodes", "--state", "drained", "-o", "name").stdout == "turing-0\n"
    found = json.loads(adlro("nodes", "turing-0", "-o", "json").stdout)["nodes"]
    assert [(each["node_id"], each["reason"], each["gpu_models"]) for each in found] == [
        ("turing-0", "a fan", {"rtx_2080_ti": 1})
    ]
    rows = list(csv.DictReader(io.StringIO(adlro("nodes", "-o", "csv", "--sort", "node").stdout)))
    assert [(row["node_id"], row["used_cpu_cores"], row["job_ids"]) for row in rows] == [
        ("turing-0", "0", ""),
        ("volta-0", "8", "job-2,job-1"),
    ]


def test_describe_node_has_its_gpus_and_jobs(suite: FakeSuite, adlro: Run) -> None:
    suite.add(SPEC)
    suite.change(
        "job-1", state=JobState.RUNNING, pending_reason=PendingReason.NONE, placement=Placement.on("volta-0/0")
    )
    suite.drained, suite.drain_reasons = ["volta-0"], {"volta-0": "a fan"}
    text = " ".join(adlro("describe", "node", "volta-0").stdout.split())
    for part in ("volta-0 draining", "reason a fan", "GPUs 2x v100_sxm2, 0 free", "cores 4 of 20 held", "job-1 train"):
        assert part in text
    assert "turing" not in text
    found = json.loads(adlro("describe", "node", "volta-0", "-o", "json").stdout)
    assert (found["node"]["job_ids"], len(found["gpus"]), found["jobs"][0]["job_id"]) == (["job-1"], 2, "job-1")


@pytest.mark.parametrize("arguments", [["nodes", "volta-9"], ["describe", "node", "volta-9"]])
def test_a_node_that_is_not_there(suite: FakeSuite, adlro: Run, arguments: list[str]) -> None:
    result = adlro(*arguments)
    assert result.exit_code == 1
    assert "there is no node volta-9; adlro nodes lists them" in result.stderr


def test_nodes_go_without_the_other_services(suite: FakeSuite, adlro: Run) -> None:
    suite.gpu_conditions = (GpuCondition("turing-0/0", "fell off the bus"),)
    assert "lost" in adlro("nodes").stdout
    for method in ("GetStatus", "DescribeCluster"):
        suite.fail(method, *[grpc.StatusCode.UNAVAILABLE] * 50)
    result = adlro("nodes")
    assert result.exit_code == 0
    assert "which nodes are drained is not known" in result.stderr
    assert "which GPUs are lost is not known" in result.stderr


def test_who_sees_only_own_jobs_gets_no_wrong_figures(suite: FakeSuite, adlro: Run) -> None:
    suite.fail("GetStatus", PermissionDenied("GetStatus needs the role reader"))
    result = adlro("nodes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "needs the role reader" in result.stderr


@pytest.mark.parametrize("width", [80, 120])
def test_a_cluster_of_1024_gpus_fits_the_screen(width: int) -> None:
    cluster = Cluster(
        "large",
        tuple(
            Node(f"rack-{n // 16}-node-{n % 16}", 128, 2_097_152,
                 tuple(Gpu(f"rack-{n // 16}-node-{n % 16}/{i}", "h100_sxm5_80gb", 81_559) for i in range(8)))
            for n in range(128)
        ),
    )  # fmt: skip
    jobs = [job(n, Placement.on(gpu.gpu_id), name="名" * 253) for n, (_, gpu) in enumerate(cluster.gpus()) if n % 3]
    drained = {"rack-0-node-1": "the power supply unit is replaced on Monday " * 5}
    views = node_views(cluster, jobs, {"rack-0-node-2/3": "ECC"}, drained)
    gpus = gpu_views(cluster, jobs, None, ["rack-0-node-2/3"], list(drained), drained)
    tables: list[TextTable[Any]] = [
        TextTable(make_view(NODES).columns(width, views), views),
        TextTable(make_view(GPUS).columns(width, gpus), gpus),
        gpu_table(gpus, width),
    ]
    for table, count in zip(tables, (128, 1024, 1024), strict=True):
        console = PlainConsole(width=width, file=io.StringIO())
        console.print(table, soft_wrap=True)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # a StringIO
        assert len(lines) == count + 1
        assert max(map(cell_len, lines)) <= width, max(lines, key=cell_len)


def test_gpus_have_columns_and_formats(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("gpus", "-o", "name", "--sort=-gpu").stdout.split() == ["volta-0/1", "volta-0/0", "turing-0/0"]
    rows = list(csv.DictReader(io.StringIO(adlro("gpus", "-o", "csv").stdout)))
    assert (rows[0]["gpu_id"], rows[0]["memory_used_mib"], rows[2]["temperature_c"]) == ("volta-0/0", "8000.0", "")
    assert adlro("gpus", "--format", "gpu,temp").stdout.splitlines()[1].split() == ["volta-0/0", "61", "°C"]
