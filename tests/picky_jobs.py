"""Lists of jobs of which some are exclusive and some choose their nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adlro.placement import shortage
from adlro.records.cluster import Cluster
from adlro.workload.job_lists import WorkloadJob


def picky(jobs: list[WorkloadJob], cluster: Cluster, rng: np.random.Generator) -> list[WorkloadJob]:
    """The same jobs, of which some are exclusive and some, of one GPU, choose nodes; a GPU of these can hold each."""
    names = [node.node_id for node in cluster.nodes]
    found = []
    for job in jobs:
        kind, some = int(rng.integers(4)), tuple(str(each) for each in rng.choice(names, size=2, replace=False))
        exclusive = bool(rng.random() < 0.2)
        changed = replace(
            job,
            exclusive=exclusive,
            node_ids=some if kind == 0 else (),
            excluded_node_ids=some[:1] if kind == 1 else (),
        )
        holds = any(
            changed.accepts_node(node.node_id)
            and shortage(changed, gpu.memory_mib, node.cpu_cores, node.memory_mib) is None
            for node, gpu in cluster.gpus()
        )
        found.append(changed if holds and job.gpu_count == 1 else replace(job, exclusive=exclusive))
    return found
