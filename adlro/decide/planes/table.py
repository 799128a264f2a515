"""Every plane that a network sees: its name, unit, meaning, and how it is brought to the network's range.

The one place where planes are named and normalised: `figures.py` fills in raw figures in these units and this order,
and `normalised` does the rest by this table. A model file keeps the table's digest, and is refused by another table.

Times are ratios to a decision's own scale, a typical duration among the jobs that wait and run there: a policy sees the
same in a cluster whose jobs all take a thousand times as long. No plane tells how many jobs are still to come, nor what
is not known in service.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import astuple, dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.compiled import compiled_part
from adlro.numeric.exact_compiled import log, log1p

TABLE_VERSION = 2


class Transform(Enum):
    """What is done to a raw figure before it is multiplied and clipped."""

    PLAIN = 0
    LN = 1  # of a figure above 0
    LN1P = 2  # of a figure from 0


@dataclass(frozen=True, slots=True)
class Plane:
    """One figure.

    Attributes:
        name: as in documents and ablations.
        unit: of the raw figure; `scale` is the decision's typical duration.
        what: it says.
        group: planes that are left out together in ablations.
        transform: of the raw figure.
        factor: by which the transformed figure is multiplied.
        low, high: to which it is then clipped.
    """

    name: str
    unit: str
    what: str
    group: str
    transform: Transform = Transform.PLAIN
    factor: float = 1.0
    low: float = 0.0
    high: float = 1.0


_LN, _LN1P = Transform.LN, Transform.LN1P

GPU_PLANES = (
    Plane("present", "0 or 1", "there, and its node takes jobs", "paper"),
    Plane("utilization", "0 or 1", "a job runs on it", "paper"),
    Plane("remaining", "scale", "expected time until it is idle", "remaining", _LN1P, 0.5, 0.0, 4.0),
    Plane("next_end", "scale", "expected time until a GPU of its node is free", "remaining", _LN1P, 0.5, 0.0, 4.0),
    Plane("memory", "GiB", "memory of the GPU", "hardware", _LN1P, 0.25, 0.0, 2.0),
    Plane("cores_free", "cores", "free on its node", "cores", _LN1P, 0.25, 0.0, 2.0),
    Plane("cores_free_share", "ratio", "of its node's cores", "cores"),
    Plane("cores_held", "cores", "that end of its job gives back", "cores", _LN1P, 0.25, 0.0, 2.0),
    Plane("cores_each", "cores", "free on its node for each idle GPU there", "cores", _LN1P, 0.25, 0.0, 2.0),
    Plane("memory_free_share", "ratio", "of its node's main memory", "cores"),
    Plane("idle_share", "ratio", "of its node's GPUs idle", "paper"),
    Plane("speed", "ratio", "mean over the window of the best duration to that on it", "hardware"),
    Plane("wanted", "ratio", "jobs of the window to which it is about as fast as any", "demand"),
    Plane("fitting", "ratio", "jobs of the window that fit on it now", "demand"),
)
"""Planes of the GPU matrix; all 0 where no GPU is, or it is lost."""

JOB_PLANES = (
    Plane("present", "0 or 1", "a job stands here", "paper"),
    Plane("duration", "scale", "expected, on the fastest GPU that can hold it", "duration", _LN, 0.5, -4.0, 4.0),
    Plane("priority", "0..1", "its priority", "paper"),
    Plane("simulation", "0 or 1", "job type", "paper"),
    Plane("machine_learning", "0 or 1", "job type", "paper"),
    Plane("data_processing", "0 or 1", "job type", "paper"),
    Plane("cores", "cores", "asked for", "cores", _LN1P, 0.25, 0.0, 2.0),
    Plane("memory", "GiB", "main memory asked for", "cores", _LN1P, 0.2, 0.0, 2.0),
    Plane("gpu_memory", "GiB", "GPU memory asked for", "hardware", _LN1P, 0.25, 0.0, 2.0),
    Plane("waited", "its duration", "since its submission", "waiting", _LN1P, 0.5, 0.0, 4.0),
    Plane("waited_scale", "scale", "since its submission", "waiting", _LN1P, 0.5, 0.0, 4.0),
    Plane("completion", "its duration", "its earliest expected completion anywhere", "remaining", _LN, 0.5, 0.0, 4.0),
    Plane(
        "best_wait",
        "its duration",
        "until a GPU about as fast as its fastest is free",
        "remaining",
        _LN1P,
        0.5,
        0.0,
        4.0,
    ),
    Plane("possible", "ratio", "GPUs that can hold it when their node is empty", "hardware"),
    Plane("shorter", "ratio", "waiting jobs that are expected to be shorter", "duration"),
    Plane("fits", "0 or 1", "it can start somewhere now", "demand"),
)
"""Planes of the window's jobs; all 0 in padding."""

PAIR_PLANES = (
    Plane("slowdown", "ratio", "duration on this GPU to the job's best", "duration", _LN, 1.0, 0.0, 4.0),
    Plane("duration", "scale", "expected on this GPU", "duration", _LN, 0.5, -4.0, 4.0),
    Plane(
        "excess",
        "ratio",
        "duration to the job's earliest expected completion anywhere",
        "remaining",
        _LN,
        1.0,
        -1.0,
        4.0,
    ),
    Plane("drains", "ratio", "drain of the queue to the duration on this GPU", "remaining", _LN1P, 0.5, 0.0, 4.0),
    Plane("cost_gap", "nat", "cost by the base's rule, above the cheapest pair's", "base", high=4.0, factor=0.5),
    Plane("refused", "0 or 1", "the base's rule refuses it", "base"),
    Plane("base_choice", "0 or 1", "the base would do it", "base"),
    Plane(
        "misfit", "ratio", "cores asked for, from an equal share of the node's free ones", "cores", high=4.0, low=-1.0
    ),
    Plane(
        "cores_left",
        "cores",
        "for each idle GPU left on the node, or where none is left in all",
        "cores",
        _LN1P,
        0.25,
        0.0,
        2.0,
    ),
    Plane("last_idle", "0 or 1", "no other GPU of the node is idle", "cores"),
    Plane("twins", "GPUs", "others of the node that are the same in everything", "hardware", _LN1P, 0.5, 0.0, 2.0),
    Plane(
        "rivals",
        "jobs",
        "others of the window that fit here and are about as fast on no better one",
        "demand",
        _LN1P,
        0.25,
        0.0,
        2.0,
    ),
    Plane("cheapest_of_job", "0 or 1", "no other pair of the job costs less", "base"),
    Plane("cheapest_of_gpu", "0 or 1", "no other pair of the GPU costs less", "base"),
)
"""Planes of the pairs (job of the window, GPU) that fit now."""

BASE_CHOICE = [plane.name for plane in PAIR_PLANES].index("base_choice")
"""Of these the one that a network computes with, beside taking it in."""

CLUSTER_PLANES = (
    Plane("queue_length", "jobs", "that wait", "paper", _LN1P, 0.2, 0.0, 2.0),
    Plane("queue_per_gpu", "jobs", "that wait, for each GPU", "paper", _LN1P, 0.5, 0.0, 4.0),
    Plane("utilization", "ratio", "GPUs that are busy", "paper"),
    Plane(
        "work_per_gpu",
        "scale",
        "best durations of what waits and remaining times, for each GPU",
        "remaining",
        _LN1P,
        0.5,
        0.0,
        4.0,
    ),
    Plane("fitting", "ratio", "waiting jobs that fit somewhere now", "demand"),
    Plane("oldest", "scale", "longest time that a job has waited", "waiting", _LN1P, 0.5, 0.0, 4.0),
    Plane("priority", "0..1", "mean of the waiting jobs", "paper"),
    Plane("drain", "scale", "time until the last waiting job is expected to start", "remaining", _LN1P, 0.5, 0.0, 4.0),
    Plane("base_holds", "0 or 1", "the base would hold", "base"),
)
"""Figures of the whole cluster."""

GROUPS = tuple(
    dict.fromkeys(plane.group for planes in (GPU_PLANES, JOB_PLANES, PAIR_PLANES, CLUSTER_PLANES) for plane in planes)
)
"""For ablations."""


@functools.cache
def table_digest() -> str:
    """Of all that a network's weights depend on; documents of planes do not count."""
    digest = hashlib.blake2b(digest_size=8)
    for planes in (GPU_PLANES, JOB_PLANES, PAIR_PLANES, CLUSTER_PLANES):
        for plane in planes:
            digest.update(repr((plane.name, plane.unit, *astuple(plane)[4:])).encode())
        digest.update(b"|")
    return f"{TABLE_VERSION}-{digest.hexdigest()}"


def rules_of(planes: tuple[Plane, ...]) -> NDArray[np.float64]:
    """(planes, 4): transform, factor, low, high, for `normalise`."""
    return np.array([(plane.transform.value, plane.factor, plane.low, plane.high) for plane in planes])


@compiled_part
def normalised(raw: float, rules: NDArray[np.float64], plane: int) -> tuple[float, int]:
    """A raw figure brought to the network's range, and 1 where it had to be clipped to it."""
    value = raw
    if rules[plane, 0] == 1.0:
        value = log(raw) if raw > 0.0 else -np.inf
    elif rules[plane, 0] == 2.0:
        value = log1p(raw)
    value *= rules[plane, 1]
    low, high = rules[plane, 2], rules[plane, 3]
    if value >= low and value <= high:
        return value, 0
    return (high if value > high else low), 1  # what is no number is low
