"""Why a job of one GPU can't have each GPU, as numbers over all GPUs, and in words by group. Plain data and arrays.

`Occupancy.mask_reason` says the same of one GPU in full; a test holds both to the same answers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import numpy as np

from adlro.records.decisions import MaskedGroup
from adlro.records.jobs import JobSpec
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.state.observation import Ints

EXAMPLES = 3
"""GPUs that a group names."""


class Mask(enum.IntEnum):
    """Why a job can't have a GPU; the first that applies, in the order of `Occupancy.mask_reason`."""

    NONE = 0
    MODEL = 1
    LOST = 2
    DRAINED = 3
    GPU_MEMORY = 4
    BUSY = 5
    CORES = 6
    MEMORY = 7
    # It fits, and the policy does not want it:
    OVERDUE = 8
    REJECTED = 9
    REJECTED_KEPT_FREE = 10  # its node has GPUs that are kept free for another job
    EQUAL = 11
    OUTSIDE = 12
    # The cluster's again, behind MODEL and behind BUSY:
    NODE = 13
    NODE_SHARED = 14


def masks(spec: JobSpec, occupancy: Occupancy) -> Ints:
    """(G,) why a job can't start on each GPU at this moment, as numbers of `Mask`; NONE: it fits."""
    layout = occupancy.layout
    node = layout.gpu_node
    found: Ints = np.zeros(len(layout.gpu_ids), dtype=np.int64)
    found[(occupancy.memory_free_mib < spec.memory_mib)[node]] = Mask.MEMORY
    found[(occupancy.cores_free < spec.cpu_cores)[node]] = Mask.CORES
    if spec.exclusive:
        found[occupancy.node_busy[node]] = Mask.NODE_SHARED
    found[~occupancy.idle] = Mask.BUSY
    found[layout.gpu_memory_mib < spec.gpu_memory_mib] = Mask.GPU_MEMORY
    found[occupancy.drained[node]] = Mask.DRAINED
    found[occupancy.lost] = Mask.LOST
    if spec.chooses_nodes:
        found[~layout.allowed_nodes(spec)[node]] = Mask.NODE
    accepted = np.array([spec.accepts(model) for model in layout.gpu_models])
    found[~accepted[layout.gpu_model]] = Mask.MODEL
    return found


def in_words(mask: Mask, spec: JobSpec) -> str:
    """The reason of a group of GPUs that the job does not fit on."""
    match mask:
        case Mask.MODEL:
            return "the job does not accept this model"
        case Mask.LOST:
            return "the GPU is lost"
        case Mask.DRAINED:
            return "its node is drained"
        case Mask.GPU_MEMORY:
            return f"needs {spec.gpu_memory_mib} MiB of GPU memory, it has less"
        case Mask.NODE:
            return "the job excludes its node"
        case Mask.NODE_SHARED:
            return "the job is exclusive, and others run on its node"
        case Mask.BUSY:
            return "busy with other jobs"
        case Mask.CORES:
            return f"needs {spec.cpu_cores} cores, fewer are free on its node"
        case Mask.MEMORY:
            return f"needs {spec.memory_mib} MiB, less is free on its node"
    raise ValueError(f"{mask.name} is the policy's, not the cluster's")


def grouped(found: Ints, words: Mapping[int, str], gpu_ids: Sequence[str]) -> tuple[MaskedGroup, ...]:
    """The groups of GPUs with the same reason, the largest first.

    Args:
        found: (G,) numbers of `Mask`.
        words: the reason of each number that occurs, but for NONE.
        gpu_ids: G.
    """
    groups = []
    for number, reason in words.items():
        gpus = np.flatnonzero(found == number)
        if len(gpus):
            groups.append(MaskedGroup(reason, len(gpus), tuple([gpu_ids[gpu] for gpu in gpus[:EXAMPLES].tolist()])))
    return tuple(sorted(groups, key=lambda group: -group.gpu_count))
