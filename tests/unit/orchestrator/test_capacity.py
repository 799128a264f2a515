from __future__ import annotations

from adlro.records.capacity import ClusterCapacity, GpuModelCapacity
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.services.orchestrator.ledger.capacity import capacity_of
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy


def node(name: str, cores: int, *models: str) -> Node:
    return Node(name, cores, cores * 1000, tuple(Gpu(f"{name}/{n}", model, 16_160) for n, model in enumerate(models)))


def test_what_is_free_is_neither_held_nor_lost_nor_drained() -> None:
    layout = Layout(
        Cluster("lab", (node("a", 8, "v100_sxm2", "v100_sxm2"), node("b", 40, "v100_sxm2", "t4"), node("c", 64, "t4")))
    )
    occupancy = Occupancy.empty(layout)
    assert capacity_of(occupancy) == ClusterCapacity(
        "lab", (GpuModelCapacity("v100_sxm2", 3, 3, 3, 40, 40_000), GpuModelCapacity("t4", 2, 2, 2, 64, 64_000))
    )
    occupancy.drained[2] = True
    occupancy.lost[0] = True
    occupancy.idle[2] = False  # b's v100
    occupancy.cores_free[0], occupancy.memory_free_mib[0] = -1, 500
    assert capacity_of(occupancy) == ClusterCapacity(
        "lab", (GpuModelCapacity("v100_sxm2", 3, 2, 1, 0, 500), GpuModelCapacity("t4", 2, 1, 1, 40, 40_000))
    )
    occupancy.idle[:] = False
    assert capacity_of(occupancy).gpu_models[0] == GpuModelCapacity("v100_sxm2", 3, 2, 0, 0, 0)
