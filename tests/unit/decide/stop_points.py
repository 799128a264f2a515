"""Decision points at which running jobs can be stopped, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.state.gangs import gpus_of
from adlro.state.observation import Observation, Preemption
from tests.unit.decide.gang_points import Several, point

Start = tuple[int, tuple[int, ...], bool]
HELD: Start = (-1, (), False)


def stop_point(
    jobs: Sequence[Several],
    nodes: Sequence[Sequence[float]],
    *,
    fixed: Sequence[int] = (),
    restart_s: float | Sequence[float] = 1.0,
    attained_s: float | Sequence[float] = 0.0,
    job_attained_s: Sequence[float] | None = None,
    elapsed_s: Sequence[float] | None = None,
    **more: Any,
) -> Observation:
    """One decision point as `gang_points.point`, where all that runs can be stopped.

    Args:
        fixed: GPUs whose jobs can't be stopped.
        restart_s: what a restart of the running jobs costs, of each GPU or of all.
        attained_s: GPU time of the running jobs, the same way.
        job_attained_s: of the waiting jobs; 0 if left out.
        elapsed_s: since the running jobs started; 1 s if left out.
    """
    gpus = sum(len(node) for node in nodes)
    seen = point(jobs, nodes, elapsed_s=[1.0] * gpus if elapsed_s is None else elapsed_s, **more)
    assert seen.gangs is not None
    run = seen.gangs.gpu_run
    busy = run >= 0
    may = busy.copy()
    may[0, list(fixed)] = False
    attained = np.zeros(len(jobs)) if job_attained_s is None else np.array(job_attained_s)
    stops = Preemption(
        gpu_stoppable=may,
        gpu_restart_s=np.where(busy, restart_s, 0.0),
        gpu_attained_s=np.where(busy, attained_s, 0.0),
        gpu_run=run,
        job_restart_s=np.zeros((1, len(jobs))),
        job_attained_s=attained[None],
        job_share=np.ones((1, len(jobs))),
        kind_full_s=seen.kind_duration_s,
    )
    return replace(seen, preemption=stops)


def chosen(policy: Policy, seen: Observation) -> Start:
    """The job that starts, its GPUs, and whether the jobs there are stopped."""
    judgement = policy.judge(seen)
    row = policy.choose(seen, judgement)[0]
    stopping = policy.stopping(seen, judgement)
    return int(row[0]), gpus_of(row[1:]), bool(stopping is not None and stopping[0])
