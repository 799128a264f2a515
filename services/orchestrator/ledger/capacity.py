"""What is free on the cluster by GPU model, for everybody: without jobs and users. Plain records and arrays."""

from __future__ import annotations

import numpy as np

from adlro.records.capacity import ClusterCapacity, GpuModelCapacity
from adlro.services.orchestrator.ledger.occupancy import Occupancy


def capacity_of(occupancy: Occupancy) -> ClusterCapacity:
    """What of an occupancy is free."""
    layout = occupancy.layout
    usable = ~occupancy.lost & ~occupancy.drained[layout.gpu_node]
    free = usable & occupancy.idle
    models = []
    for number, model in enumerate(layout.gpu_models):
        of_model = layout.gpu_model == number
        nodes = np.unique(layout.gpu_node[of_model & free])
        models.append(
            GpuModelCapacity(
                gpu_model=model,
                gpu_count=int(of_model.sum()),
                usable_gpu_count=int((of_model & usable).sum()),
                free_gpu_count=int((of_model & free).sum()),
                # Less than nothing is left on a node that has shrunk under its jobs.
                largest_free_cpu_cores=max(0, int(occupancy.cores_free[nodes].max(initial=0))),
                largest_free_memory_mib=max(0, int(occupancy.memory_free_mib[nodes].max(initial=0))),
            )
        )
    return ClusterCapacity(layout.cluster.name, tuple(models))
