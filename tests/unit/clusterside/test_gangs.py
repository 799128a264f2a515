"""Attempts on several GPUs: taken or refused wholly, lost with any of them, adopted wholly over restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.real_driver import RealDriver
from adlro.errors import Conflict, NotFound, Unsupported
from adlro.placement import GpuShare, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Capabilities, EventKind
from adlro.records.jobs import JobSpec, JobType
from tests.unit.clusterside.memory_record import kept_of
from tests.unit.simcluster.walltime import HandTimers


def node(name: str, gpus: int = 2) -> Node:
    return Node(name, 8, 65_536, tuple(Gpu(f"{name}/{number}", "v100_sxm2", 16_160) for number in range(gpus)))


CLUSTER = Cluster("c", (node("n"), node("m")))
SPEC = JobSpec("j", "ada", JobType.SIMULATION, memory_mib=1, gpu_count=2)
THREE = Placement.on("n/0", "n/1", "m/0")


class Programs(RealDriver):
    """An adapter that starts and ends at once, and finds everything again."""

    capabilities = Capabilities(stop=True, gangs=True)

    def __init__(self) -> None:
        super().__init__(CLUSTER)
        self.resumed: list[str] = []

    def launch(self, attempt: Attempt) -> None:
        self.runs(attempt)

    def stop(self, attempt: Attempt) -> None:
        self.ended(attempt, EventKind.FAILED)

    async def start(self, attempt: Attempt) -> None: ...

    async def end(self, attempt: Attempt) -> None: ...

    async def resume(self, attempt: Attempt) -> bool:
        self.resumed.append(attempt.job_id)
        return True


@pytest.fixture
def side() -> ClusterSide:
    return ClusterSide(Programs(), HandTimers())


def launch(side: ClusterSide, job_id: str, *gpu_ids: str, attempt: int = 1, **fields: Any) -> bool:
    spec = replace(SPEC, gpu_count=len(gpu_ids), **fields)
    return side.launch(job_id, attempt, spec, Placement.on(*gpu_ids), 0).existing


def told(side: ClusterSide) -> list[tuple[str, str, str, str]]:
    events = (event for batch in side.log.after(0) for event in batch.events)
    return [(each.kind.name, each.job_id, str(each.placement), each.message) for each in events]


def test_a_gang_starts_and_ends_once_on_all_its_gpus(side: ClusterSide) -> None:
    assert not launch(side, "a", *THREE.gpu_ids)
    (running,) = side.describe().running
    assert (running.placement, running.gpu_id) == (THREE, "n/0")
    for gpu_id in THREE.gpu_ids:
        with pytest.raises(Conflict, match=f"GPU {gpu_id} runs a"):
            launch(side, "b", gpu_id)
    assert launch(side, "a", *THREE.gpu_ids), "the same launch again"
    assert side.stop("a", 1, 0)
    assert told(side) == [
        ("STARTED", "a", "n/0, n/1, m/0", ""),
        ("RUNNING", "a", "n/0, n/1, m/0", ""),
        ("STOPPED", "a", "n/0, n/1, m/0", "stopped"),
    ]
    assert not launch(side, "b", "m/0", "n/1"), "free again"


def test_a_gang_is_refused_wholly_with_what_is_missing_where(side: ClusterSide) -> None:
    launch(side, "busy", "m/0", cpu_cores=3)
    side.driver.gpu_lost("m/1")  # type: ignore[attr-defined]
    before = told(side)
    for gpu_ids, fields, reason, text in (
        (("n/0", "m/0"), {}, "GPU_BUSY", "GPU m/0 runs busy"),
        (("n/0", "m/1"), {}, "GPU_LOST", "GPU m/1 is lost"),
        (("n/0", "n/1"), {"cpu_cores": 5}, "NODE_CORES_EXHAUSTED",
         "node n has 8 of 8 CPU cores free, a needs 10 for its 2 GPUs there"),
        (("n/0", "n/1"), {"memory_mib": 40_000}, "NODE_MEMORY_EXHAUSTED",
         "node n has 65536 of 65536 MiB free, a needs 80000 MiB for its 2 GPUs there"),
        (("n/1", "n/0"), {"gpu_memory_mib": 20_000}, "GPU_MEMORY_TOO_SMALL",
         "GPU n/1 has 16160 MiB, a needs 20000 MiB"),
    ):  # fmt: skip
        with pytest.raises(Conflict) as refused:
            launch(side, "a", *gpu_ids, **fields)
        assert (refused.value.reason, refused.value.message) == (reason, text)
    with pytest.raises(NotFound, match="nowhere/0"):
        launch(side, "a", "n/0", "nowhere/0")
    assert told(side) == before
    assert not launch(side, "a", "n/0", "n/1"), "nothing was held, and the attempt is new"


def test_an_attempt_stays_on_its_gpus_in_their_order(side: ClusterSide) -> None:
    launch(side, "a", "n/0", "m/0")
    for other in (("m/0", "n/0"), ("n/0",), ("n/0", "m/0", "m/1"), ("n/0", "m/1")):
        with pytest.raises(Conflict, match="was launched on n/0, m/0, not ") as refused:
            launch(side, "a", *other)
        assert refused.value.reason == "ATTEMPT_ON_OTHER_GPU"
    with pytest.raises(Conflict, match="a runs on n/0, m/0 already, attempt 1"):
        launch(side, "a", "n/1", attempt=2)


async def test_any_lost_gpu_loses_the_gang_and_frees_the_others(side: ClusterSide) -> None:
    launch(side, "a", "n/0", "m/0")
    side.driver.gpu_lost("m/0", "it broke")  # type: ignore[attr-defined]
    assert told(side)[2:] == [
        ("GPU_LOST", "", "m/0", "it broke"),
        ("LOST", "a", "n/0, m/0", "GPU m/0 was lost: it broke"),
    ]
    assert side.describe().running == ()
    assert not launch(side, "b", "n/0", "n/1")


def test_a_gang_is_lost_with_a_node_that_leaves(side: ClusterSide) -> None:
    launch(side, "a", "n/0", "m/0")
    launch(side, "b", "n/1")
    side.change_cluster(Cluster("c", (node("n"),)))
    assert ("LOST", "a", "n/0, m/0", "GPU m/0 left") in told(side)
    assert [each.job_id for each in side.describe().running] == ["b"]
    assert not launch(side, "c", "n/0")


async def test_after_a_restart_gangs_run_on_and_hold_all_their_gpus(side: ClusterSide) -> None:
    launch(side, "a", "n/1", "m/0", cpu_cores=3)
    await side.driver.begin(None)
    again = ClusterSide(driver := Programs(), HandTimers())
    again.restore(kept := kept_of(side.collect(whole=True)))
    await driver.begin(kept)
    while not driver.resumed:
        await driver._work_of(again.open_attempts()[0]).starting  # type: ignore[misc]
    assert again.describe().running == side.describe().running
    assert launch(again, "a", "n/1", "m/0")
    with pytest.raises(Conflict, match="GPU m/0 runs a"):
        launch(again, "b", "n/0", "m/0")
    with pytest.raises(Conflict, match="node n has 5 of 8 CPU cores free, b needs 6"):
        launch(again, "b", "n/0", cpu_cores=6)
    assert driver.resumed == ["a"]
    await driver.close()


def test_a_gang_that_the_record_lacks_is_taken_wholly_or_not(side: ClusterSide) -> None:
    launch(side, "known", "n/0")

    def found(*gpu_ids: str) -> Attempt:
        return Attempt("forgotten", 1, Placement.on(*gpu_ids), replace(SPEC, gpu_count=len(gpu_ids)))

    assert not side.adopt(found("m/0", "n/0")), "one of its GPUs runs another job"
    assert not side.adopt(found("m/0", "elsewhere/0")), "one of its GPUs is not there"
    assert side.adopt(found("m/0", "m/1"))
    with pytest.raises(Conflict, match="GPU m/1 runs forgotten"):
        launch(side, "new", "m/1")


def test_a_cluster_refuses_placements_that_it_does_not_offer(side: ClusterSide) -> None:
    half = Placement((GpuShare("n/0", 0.5),))
    with pytest.raises(Unsupported, match="gives whole GPUs only") as refused:
        side.launch("a", 1, replace(SPEC, gpu_count=1), half, 0)
    assert (refused.value.reason, refused.value.field) == ("NO_SHARES", "placement")
    side.driver.capabilities = Capabilities(stop=True)
    with pytest.raises(Unsupported, match="runs no jobs of several GPUs") as refused:
        launch(side, "a", "n/0", "n/1")
    assert (refused.value.reason, refused.value.field) == ("NO_GANGS", "placement")
    assert told(side) == []


async def test_an_exclusive_job_is_alone_on_its_nodes_also_after_a_restart(side: ClusterSide) -> None:
    launch(side, "busy", "m/0")
    for gpu_ids, reason in ((("m/1",), "NODE_NOT_EMPTY"), (("n/0", "m/1"), "NODE_NOT_EMPTY"), (("m/0",), "GPU_BUSY")):
        with pytest.raises(Conflict) as refused:
            launch(side, "a", *gpu_ids, exclusive=True)
        assert refused.value.reason == reason
    assert not launch(side, "a", "n/0", exclusive=True)
    with pytest.raises(Conflict, match="node n runs an exclusive job") as refused:
        launch(side, "b", "n/1")
    assert refused.value.reason == "NODE_EXCLUSIVE"
    await side.driver.begin(None)
    again = ClusterSide(driver := Programs(), HandTimers())
    again.restore(kept_of(side.collect(whole=True)))
    with pytest.raises(Conflict, match="node n runs an exclusive job"):
        launch(again, "b", "n/1", "m/1")
    assert side.stop("a", 1, 0)
    assert not launch(side, "b", "n/1")
    await driver.close()


def test_a_launch_on_a_node_that_the_job_does_not_accept_is_refused(side: ClusterSide) -> None:
    tries: list[dict[str, Any]] = [{"excluded_node_ids": ("n",)}, {"node_ids": ("m",)}]
    for fields in tries:
        with pytest.raises(Conflict, match="GPU n/0 is on n, and a ") as refused:
            launch(side, "a", "n/0", **fields)
        assert refused.value.reason == "NODE_NOT_ACCEPTED"
        assert not launch(side, f"b {next(iter(fields))}", "m/0" if "node_ids" in fields else "m/1", **fields)
