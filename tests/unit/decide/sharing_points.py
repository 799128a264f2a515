"""Decision points with GPUs that two jobs may share, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from adlro.state.observation import Observation, Sharing

ALONE = -1
"""Stands for the family of a job that shares no GPU."""


def shared(
    seen: Observation,
    families: Sequence[int],
    residents: Mapping[int, int],
    kept: Mapping[tuple[int, int], float] | np.ndarray,
    *,
    memory_left_mib: Mapping[int, int] | None = None,
) -> Observation:
    """A decision point of one cluster with what concerns shared GPUs.

    Args:
        families: of each waiting job; ALONE: it shares no GPU.
        residents: by GPU with one job that may share the family of that job.
        kept: [family, partner's family] shares on all models, 0 where left out; or the whole (F, F, K) array.
        memory_left_mib: of a GPU, if not as much as every job asks for.
    """
    gpus, models = seen.gpu_idle.shape[1], len(seen.gpu_models)
    if isinstance(kept, np.ndarray):
        table = kept
    else:
        count = 1 + max(max(pair) for pair in kept)
        table = np.zeros((count, count, models))
        for (one, other), share in kept.items():
            table[one, other] = share
    is_open, family = np.zeros((1, gpus), dtype=np.bool_), np.zeros((1, gpus), dtype=np.int64)
    left_mib = np.zeros((1, gpus), dtype=np.int64)
    for gpu, of in residents.items():
        is_open[0, gpu], family[0, gpu], left_mib[0, gpu] = True, of, 8000
    for gpu, mib in (memory_left_mib or {}).items():
        left_mib[0, gpu] = mib
    sharing = Sharing(
        job_shareable=np.array([[of != ALONE for of in families]], dtype=np.bool_),
        job_family=np.array([[max(of, 0) for of in families]], dtype=np.int64),
        gpu_open=is_open,
        gpu_family=family,
        gpu_memory_left_mib=left_mib,
        kept=table,
    )
    return replace(seen, sharing=sharing)


def merged_sharing(points: Sequence[Observation]) -> Sharing:
    """Of points with one table of kept shares that of a batch."""
    found = [point.sharing for point in points if point.sharing is not None]
    columns = {
        name: np.concatenate([getattr(each, name) for each in found]) for name in Sharing._fields if name != "kept"
    }
    return Sharing(**columns, kept=found[0].kept)
