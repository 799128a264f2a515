"""A small cluster and jobs for it, for tests of what decides and of the orchestrator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobSpec, JobType
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger

MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")


def node(name: str, model: str, memory_mib: int, *, gpus: int = 2, cores: int = 8) -> Node:
    return Node(name, cores, 65536, tuple(Gpu(f"{name}/{i}", model, memory_mib) for i in range(gpus)))


def small_cluster() -> Cluster:
    """Two nodes of two GPUs, one node of one; GPUs 0, 1 Volta, 2, 3 Turing, 4 Radeon; 8 cores each."""
    return Cluster(
        "default",
        (
            node("volta-0", "v100_sxm2", 16160),
            node("turing-0", "rtx_2080_ti", 11264),
            node("radeon-0", "radeon_vii", 16368, gpus=1),
        ),
    )


def job(number: int, **spec: object) -> Job:
    fields: dict[str, object] = {
        "name": f"j{number}",
        "user": "ann",
        "job_type": JobType.SIMULATION,
        "memory_mib": 1024,
    }
    return Job(job_id=f"job-{number}", spec=JobSpec(**{**fields, **spec}))  # type: ignore[arg-type]


def queue(ledger: Ledger, number: int, durations_s: tuple[float, float, float], **spec: object) -> Entry:
    """Enters and enqueues a job with its duration on Volta, Turing, Radeon: the first, second, third model."""
    submit_s = float(spec.pop("submit_s", 0.0))  # type: ignore[arg-type]
    record = job(number, **spec)
    entry = ledger.enter(record, 0, np.array(durations_s[: len(ledger.layout.gpu_models)], dtype=np.float64))

    entry.job = replace(record, submit_s=submit_s)
    ledger.enqueue(entry)
    return entry
