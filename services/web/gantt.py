"""What ran where between two times: bars or, where there are too many, how much of each node was in use. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from adlro.records.jobs import Job, JobAttempt
from adlro.services.web.documents import number, outcome_name, type_name
from adlro.services.web.picture import Picture
from adlro.services.web.viewers import Viewer

MAX_BARS: Final = 5000
_BUCKETS: Final = 240


def gantt_answer(
    picture: Picture,
    viewer: Viewer,
    from_s: float,
    to_s: float,
    now_s: float,
    max_bars: int,
    gpu_ids: Collection[str],
) -> dict[str, Any]:
    """The attempts that a viewer may see, of the time between `from_s` and `to_s` of the cluster's clock.

    Args:
        picture: the services' state.
        viewer: who looks.
        from_s, to_s: the range.
        now_s: the clock's time now.
        max_bars: with more of them the answer has the nodes' occupancy instead.
        gpu_ids: only these GPUs; empty: all.
    """
    layout = picture.layout
    found: list[tuple[int, Job, JobAttempt]] = []
    for job in picture.jobs.jobs():
        if not viewer.sees(job):
            continue
        for attempt in job.attempts:
            if attempt.start_s is None or attempt.start_s > to_s:
                continue
            if attempt.end_s is not None and attempt.end_s < from_s:
                continue
            for gpu_id in attempt.placement.gpu_ids:
                at = layout.index.get(gpu_id)
                if at is not None and (not gpu_ids or gpu_id in gpu_ids):
                    found.append((at, job, attempt))
    found.sort(key=lambda each: (each[0], each[2].start_s or 0.0))
    many = len(found) > max_bars
    return {
        "from_s": from_s,
        "to_s": to_s,
        "now_s": number(now_s),
        "gpus": layout.gpu_ids,
        "nodes": layout.nodes,
        "node": layout.node,
        "models": layout.models,
        "model": layout.model,
        "bars": None if many else _bars(found),
        "occupancy": _occupancy(picture, found, from_s, to_s, now_s) if many else None,
        "bar_count": len(found),
        "left_out": len(found) if many else 0,
    }


def _bars(found: list[tuple[int, Job, JobAttempt]]) -> dict[str, list[Any]]:
    return {
        "gpu": [at for at, _, _ in found],
        "start_s": [number(attempt.start_s) for _, _, attempt in found],
        "end_s": [number(attempt.end_s) for _, _, attempt in found],
        "job": [job.job_id for _, job, _ in found],
        "name": [job.spec.name for _, job, _ in found],
        "user": [job.spec.user for _, job, _ in found],
        "type": [type_name(job.spec.job_type) for _, job, _ in found],
        "outcome": [outcome_name(job, attempt) for _, job, attempt in found],
        "differs": [None] * len(found),
    }


def _occupancy(
    picture: Picture, found: list[tuple[int, Job, JobAttempt]], from_s: float, to_s: float, now_s: float
) -> dict[str, Any]:
    """The share of each node's GPUs that was in use, in each part of the range."""
    layout = picture.layout
    bucket_s = max((to_s - from_s) / _BUCKETS, 1e-9)
    used = np.zeros((len(layout.nodes), _BUCKETS))
    for at, _, attempt in found:
        start_s = max(attempt.start_s or 0.0, from_s)
        end_s = min(attempt.end_s if attempt.end_s is not None else now_s, to_s)
        first, last = (start_s - from_s) / bucket_s, max((end_s - from_s) / bucket_s, 0.0)
        for bucket in range(int(first), min(int(last) + 1, _BUCKETS)):
            used[layout.node[at], bucket] += max(min(last, bucket + 1) - max(first, bucket), 0.0)
    sizes = np.bincount(np.array(layout.node, np.int64), minlength=len(layout.nodes))
    shares = np.clip(used / np.maximum(sizes, 1)[:, None], 0.0, 1.0)
    return {"bucket_s": bucket_s, "node": [[round(float(each), 3) for each in row] for row in shares]}
