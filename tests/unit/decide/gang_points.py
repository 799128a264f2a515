"""Decision points with jobs of several GPUs, by hand: nodes of GPUs, what runs, what waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adlro.state.candidate_table import with_new_table
from adlro.state.gangs import gpus_of
from adlro.state.observation import Gangs, Observation
from tests.unit.decide.decision_points import PAPER_MODELS, Waiting, decision

Set = tuple[int, tuple[int, ...]]
HELD: Set = (-1, ())


@dataclass(frozen=True)
class Several:
    """A waiting job: its GPUs, its duration on a packed set of each model, and what it asks for with each GPU."""

    gpu_count: int
    duration_s: float | tuple[float, ...]
    cores: int = 1
    spread_speed: float = 0.5
    max_nodes: int = 0
    submit_s: float = 0.0
    priority: float = 0.5
    service_s: float = 0.0


def point(
    jobs: Sequence[Several],
    nodes: Sequence[Sequence[float]],
    *,
    model: Sequence[int] | None = None,
    runs: Sequence[Sequence[int]] | None = None,
    cores_free: Sequence[int] | None = None,
    cores_held: Sequence[int] | None = None,
    elapsed_s: Sequence[float] | None = None,
    running_submit_s: Sequence[float] | None = None,
    reserved: int = -1,
    time_s: float = 1000.0,
    hold_allowed: bool = True,
) -> Observation:
    """One decision point.

    Args:
        jobs: in the order of submission.
        nodes: by node the remaining time of each of its GPUs; 0: idle; inf: lost.
        model: of each node; all of one if left out.
        runs: sets of GPUs that run one job; each other busy GPU runs a job of its own.
        reserved: place of the job that GPUs are kept free for.
    """
    remaining_s = [left for node in nodes for left in node]
    node_of = [number for number, node in enumerate(nodes) for _ in node]
    models = [0] * len(nodes) if model is None else list(model)
    model_of = [models[node] for node in node_of]
    waiting = [
        Waiting(
            tuple(job.duration_s if isinstance(job.duration_s, (int, float)) else job.duration_s[m] for m in model_of),
            cores=job.cores,
            submit_s=job.submit_s,
            priority=job.priority,
            service_s=job.service_s,
        )
        for job in jobs
    ]
    seen = decision(
        waiting,
        remaining_s,
        node=node_of,
        model=model_of,
        models=PAPER_MODELS[: max(models) + 1],
        cores_free=cores_free,
        cores_held=cores_held,
        elapsed_s=elapsed_s,
        running_submit_s=running_submit_s,
        hold_allowed=hold_allowed,
        time_s=time_s,
    )
    total = seen.node_cores_free[0] + np.bincount(node_of, weights=seen.gpu_cores_held[0]).astype(np.int64)
    kinds = len(PAPER_MODELS[: max(models) + 1])
    packed = np.zeros((1, len(jobs), kinds), dtype=np.int64)
    for place, job in enumerate(jobs):
        for number in range(kinds):
            sizes = sorted(
                (
                    min(len(node), int(total[at]) // job.cores if job.cores else 99)
                    for at, node in enumerate(nodes)
                    if models[at] == number
                ),
                reverse=True,
            )
            enough = [count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) >= job.gpu_count]
            if enough and not 0 < job.max_nodes < enough[0]:
                packed[0, place, number] = enough[0]
    run = np.where(seen.gpu_idle[0] | ~np.isfinite(seen.gpu_remaining_s[0]), -1, np.arange(len(remaining_s)))
    for gpus in runs or ():
        run[list(gpus)] = gpus[0]
    gangs = Gangs(
        gpu_count=np.array([[job.gpu_count for job in jobs]], dtype=np.int64),
        max_nodes=np.array([[job.max_nodes for job in jobs]], dtype=np.int64),
        nodes=packed,
        spread_speed=np.array([[[job.spread_speed] * kinds for job in jobs]]),
        gpu_run=run[None],
        reserved=np.array([reserved]),
    )
    duration_s = seen.kind_duration_s.copy()
    kind_model = np.zeros(duration_s.shape[2], dtype=np.int64)
    kind_model[seen.gpu_kind[0]] = seen.gpu_model[0]
    for place, job in enumerate(jobs):
        if job.gpu_count > 1:
            duration_s[0, place, packed[0, place, kind_model] == 0] = np.inf
    return with_new_table(replace(seen, kind_duration_s=duration_s, gangs=gangs))


def action(row: Sequence[int]) -> Set:
    """The job of an action and its GPUs."""
    return int(row[0]), gpus_of(np.array(row[1:]))
