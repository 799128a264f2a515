"""Decision points for policies, written out by hand or drawn: arrays alone, without a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from adlro.records.jobs import JobType
from adlro.state.candidate_table import with_new_table
from adlro.state.observation import CandidateTable, Observation

PAPER_MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")

_NONE = np.zeros(0, dtype=np.int64)
NO_CANDIDATES = CandidateTable(
    np.zeros((1, 1), dtype=np.int64), _NONE, _NONE, _NONE, np.zeros(0), _NONE[:, None], np.zeros(0, dtype=np.bool_)
)
"""Stands where a table is made anew."""


@dataclass(frozen=True)
class Waiting:
    """A waiting job: its duration on each GPU (inf: too small), and what it asks for."""

    duration_s: tuple[float, ...]
    cores: int = 1
    memory_mib: int = 1024
    priority: float = 0.5
    service_s: float = 0.0
    submit_s: float = 0.0
    job_type: JobType = JobType.SIMULATION
    waiting: bool = True


def decision(
    jobs: Sequence[Waiting],
    remaining_s: Sequence[float],
    *,
    node: Sequence[int] | None = None,
    model: Sequence[int] | None = None,
    models: tuple[str, ...] = PAPER_MODELS,
    cores_free: Sequence[int] | None = None,
    cores_held: Sequence[int] | None = None,
    memory_free_mib: Sequence[int] | None = None,
    memory_held_mib: Sequence[int] | None = None,
    gpu_memory_mib: Sequence[int] | None = None,
    elapsed_s: Sequence[float] | None = None,
    running_submit_s: Sequence[float] | None = None,
    hold_allowed: bool = True,
    time_s: float = 100.0,
) -> Observation:
    """One decision point, N = 1: GPUs with their remaining times (0: idle), each on a node of its own if not said.

    If not said, what runs holds no cores and no memory, and was submitted and started just now.
    """
    gpus = len(remaining_s)
    nodes = list(range(gpus)) if node is None else list(node)
    cores = [64] * (max(nodes) + 1) if cores_free is None else list(cores_free)
    idle = np.array([left == 0 for left in remaining_s])
    duration = np.array([job.duration_s for job in jobs], dtype=np.float64).reshape(len(jobs), gpus)
    asked = np.array([job.cores for job in jobs], dtype=np.int64)
    waiting = np.array([job.waiting for job in jobs], dtype=np.bool_)
    memory = [1 << 20] * len(cores) if memory_free_mib is None else list(memory_free_mib)
    asked_mib = np.array([job.memory_mib for job in jobs], dtype=np.int64)
    models_of = list(range(gpus)) if model is None else list(model)
    memory_of = [16000] * gpus if gpu_memory_mib is None else list(gpu_memory_mib)
    # GPUs of one model and memory on which every job takes the same time are of one kind.
    kinds: dict[tuple[float, ...], int] = {}
    alike = [(models_of[gpu], memory_of[gpu], *duration[:, gpu].tolist()) for gpu in range(gpus)]
    kind = [kinds.setdefault(each, len(kinds)) for each in alike]
    kind_duration = np.array([duration[:, kind.index(number)] for number in range(len(kinds))]).T
    seen = Observation(
        time_s=np.array([time_s]),
        gpu_model=np.array([models_of], dtype=np.int64),
        gpu_memory_mib=np.array([memory_of], dtype=np.int64),
        gpu_node=np.array([nodes], dtype=np.int64),
        gpu_idle=idle[None],
        gpu_remaining_s=np.array([remaining_s], dtype=np.float64),
        gpu_elapsed_s=np.array([[0.0] * gpus if elapsed_s is None else elapsed_s], dtype=np.float64),
        gpu_submit_s=np.where(idle, np.inf, [[time_s] * gpus if running_submit_s is None else running_submit_s]),
        gpu_cores_held=np.array([[0] * gpus if cores_held is None else cores_held], dtype=np.int64),
        gpu_memory_held_mib=np.array([[0] * gpus if memory_held_mib is None else memory_held_mib], dtype=np.int64),
        node_cores_free=np.array([cores], dtype=np.int64),
        node_memory_free_mib=np.array([memory], dtype=np.int64),
        job_waiting=waiting[None],
        job_type=np.array([[int(job.job_type) for job in jobs]], dtype=np.int64),
        job_priority=np.array([[job.priority for job in jobs]]),
        job_user_service_s=np.array([[job.service_s for job in jobs]]),
        job_submit_s=np.array([[job.submit_s for job in jobs]]),
        job_cores=asked[None],
        job_memory_mib=asked_mib[None],
        job_gpu_memory_mib=np.full((1, len(jobs)), 1000),
        job_spread=np.zeros((1, len(jobs))),
        gpu_kind=np.array([kind], dtype=np.int64),
        kind_duration_s=np.ascontiguousarray(kind_duration)[None],
        table=NO_CANDIDATES,
        hold_allowed=np.array([hold_allowed]),
        gpu_models=models,
    )
    return with_new_table(seen)


def drawn(rng: np.random.Generator, jobs: int, *, hold_allowed: bool = True) -> Observation:
    """A decision point of eight GPUs on three nodes; where no hold is allowed nothing runs and one GPU may be lost."""
    model = [0, 0, 0, 1, 1, 1, 2, 2]
    remaining_s = np.where(rng.random(8) < 0.5, 0.0, rng.exponential(20.0, 8))
    if not hold_allowed:
        remaining_s[:] = 0.0
        remaining_s[rng.integers(8)] = rng.choice([0.0, np.inf])
    waiting = []
    for number in range(jobs):
        # Few different values, so that there are ties.
        on_model = rng.choice([4.0, 5.0, 8.0, 13.0, 40.0]) * rng.choice([1.0, 1.25, 2.0, 3.0], 3)
        on_model[rng.integers(3)] *= rng.choice([1.0, np.inf], p=[0.7, 0.3])
        waiting.append(
            Waiting(
                tuple(on_model[model]),
                cores=int(rng.choice([1, 2, 4, 8])),
                priority=float(rng.choice([0.0, 0.5, 1.0])),
                service_s=float(rng.choice([0.0, 10.0, 50.0])),
                submit_s=float(number),
                job_type=JobType(int(rng.integers(1, 4))),
            )
        )
    return decision(
        waiting,
        list(remaining_s),
        node=model,
        model=model,
        cores_free=[12, 12, 12] if not hold_allowed else list(rng.integers(0, 12, 3)),
        cores_held=list(np.where((remaining_s > 0) & np.isfinite(remaining_s), rng.integers(0, 5, 8), 0)),
        hold_allowed=hold_allowed,
        time_s=float(rng.uniform(jobs, 200.0)),
    )


def merged(observations: Sequence[Observation]) -> Observation:
    """One batch of decision points of one shape."""
    first = observations[0]
    kinds = max(each.kind_duration_s.shape[2] for each in observations)
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(each, field.name) for each in observations])
        for field in fields(Observation)
        if field.name not in ("gpu_models", "kind_duration_s", "table", "gangs", "preemption", "sharing", "nodes")
    }
    duration_s = np.full((len(observations), *first.job_waiting.shape[1:], kinds), np.inf)
    for n, each in enumerate(observations):
        duration_s[n, :, : each.kind_duration_s.shape[2]] = each.kind_duration_s[0]
    return with_new_table(
        Observation(**columns, kind_duration_s=duration_s, table=NO_CANDIDATES, gpu_models=first.gpu_models)
    )


def padded(observation: Observation, places: Sequence[int]) -> Observation:
    """The same with rows before the jobs of `places` that stand for no job, with figures of jobs that have left."""
    columns = {}
    for field in fields(Observation):
        value = getattr(observation, field.name)
        if field.name == "job_waiting":
            value = np.insert(value, places, False, axis=1)
        elif field.name.startswith("job_") or field.name == "kind_duration_s":
            value = np.insert(value, places, value[:, :1], axis=1)
        columns[field.name] = value
    return with_new_table(Observation(**columns))
