"""Speeds of jobs of several GPUs: spread over more nodes than they need, and of Gavel's configurations when packed.

Arrays and plain records only.

A job of n GPUs is packed if it is on the fewest nodes that can hold n GPUs of the model, and spread if it is on more.
Spread, it runs at a share of its packed speed. `data/spread_speeds.csv` has these shares.

Measured, by Gavel with 2 and 4 workers on one server or on different ones: the families ResNet-18, ResNet-50,
Transformer and LM on V100, P100 and K80. Everything else is assumed:

- Each application of `data/speeds.csv` has the figures of the family with the most similar communication (`FAMILY_OF`).
- Other models with a fast link between GPUs (V100, SXM and OAM cards) lose as V100s do, others as P100s do. A faster
  GPU waits longer for a network.
- `simulation`, `stream_triad` and `ncf` have one figure for all models and sizes up to 7.
- Eight GPUs and more keep 0.9: on nodes of four they need two nodes anyway. Gavel's figures for 8 compare one server of
  eight with several, and are not used.
- Sizes between have the figure of the nearest smaller size.
- An application without a family has the geometric mean of the listed ones of its job type, as in
  `adlro.hardware.speeds`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from adlro.hardware.speeds import GAVEL_APPLICATIONS, GAVEL_REFERENCE_GPU_MODEL, GAVEL_STEPS_PER_S, JOB_TYPE_OF
from adlro.numeric.exact import exp, log
from adlro.package_data import csv_rows
from adlro.records.jobs import JobType

EVERY_FAMILY = "*"

FAMILY_OF: Mapping[str, str] = {
    **{name: "simulation" for name, job_type in JOB_TYPE_OF.items() if job_type is JobType.SIMULATION},
    "stream_triad": "stream_triad",
    "ncf_fp16": "ncf",
    "resnet50_fp32": "ResNet-50",
    "resnet50_fp16": "ResNet-50",
    "bert_base_fp16": "Transformer",
    "bert_large_fp16": "Transformer",
    "gnmt_fp16": "LM",
    "mask_rcnn_fp32": "ResNet-50",
    "tacotron2_fp32": "Transformer",
    "deepspeech2": "Transformer",
    "yolov3": "ResNet-50",
    **{
        name: family
        for name in GAVEL_APPLICATIONS
        if (family := name.partition(" (")[0]) in ("LM", "ResNet-18", "ResNet-50", "Transformer")
    },
}
"""The family of an application. Gavel's A3C, CycleGAN and Recommendation were not measured on several GPUs."""

_MODELS = ("v100", "p100", "k80")
_ROWS = csv_rows("adlro.hardware", "spread_speeds.csv")
SPREAD_SPEEDS: Mapping[tuple[str, int], tuple[float, ...]] = {
    (row["family"], int(row["gpu_count"])): tuple(float(row[model]) for model in _MODELS) for row in _ROWS
}
"""By family (`EVERY_FAMILY`: all) and number of GPUs, the shares on V100, P100 and K80."""
_SIZES = sorted({gpu_count for _, gpu_count in SPREAD_SPEEDS}, reverse=True)


GAVEL_GANG_STEPS_PER_S: Mapping[tuple[str, int], float] = {
    (row["application"], int(row["gpu_count"])): float(row["v100_steps_per_s"])
    for row in csv_rows("adlro.hardware", "gavel_gang_throughputs.csv")
}
"""By Gavel's configuration and number of GPUs from 2: measured steps/s on packed V100s."""


def gavel_steps_per_s(application: str, gpu_count: int) -> tuple[float, bool]:
    """Steps/s of one of Gavel's configurations on packed V100s, and whether they were measured.

    Others grow in proportion to the number of GPUs from the nearest smaller one that was measured: assumed.
    """
    sizes = [gpus for name, gpus in GAVEL_GANG_STEPS_PER_S if name == application and gpus <= gpu_count]
    if gpu_count == 1 or not sizes:
        return gpu_count * GAVEL_STEPS_PER_S[application][GAVEL_REFERENCE_GPU_MODEL], gpu_count == 1
    nearest = max(sizes)
    return gpu_count / nearest * GAVEL_GANG_STEPS_PER_S[application, nearest], nearest == gpu_count


def spread_speeds(
    applications: Sequence[str], job_types: Sequence[JobType], gpu_counts: Sequence[int], gpu_models: Sequence[str]
) -> NDArray[np.float64]:
    """Speeds of J spread jobs on K GPU models, as shares of their packed speeds.

    Args:
        applications: names, as in `adlro.hardware.speeds`.
        job_types: used for applications without a family.
        gpu_counts: GPUs of each job, from 1.
        gpu_models: K names; any.

    Returns:
        (J, K) in (0, 1]; 1 for a job of one GPU.
    """
    # Lists have few kinds of jobs: one look-up per kind.
    numbers: dict[tuple[str, JobType, int], int] = {}
    kinds = [
        numbers.setdefault((application, job_type, int(gpus)), len(numbers))
        for application, job_type, gpus in zip(applications, job_types, gpu_counts, strict=True)
    ]
    table = np.empty((len(numbers), len(gpu_models)))
    for kind, number in numbers.items():
        table[number] = [spread_speed(*kind, gpu_model) for gpu_model in gpu_models]
    found: NDArray[np.float64] = table[kinds] if kinds else np.empty((0, len(gpu_models)))
    return found


def spread_speed(application: str, job_type: JobType, gpu_count: int, gpu_model: str) -> float:
    """Speed of one spread job on one GPU model, as a share of its packed speed; see `spread_speeds`."""
    if gpu_count <= 1:
        return 1.0
    column = _column(gpu_model)
    family = FAMILY_OF.get(application)
    if family is not None:
        return _of_family(family, gpu_count, column)
    return _of_type(job_type, gpu_count, column)


def _of_family(family: str, gpu_count: int, column: int) -> float:
    for size in _SIZES:
        if size <= gpu_count:
            row = SPREAD_SPEEDS.get((EVERY_FAMILY, size)) or SPREAD_SPEEDS.get((family, size))
            if row is not None:
                return row[column]
    raise ValueError(f"no figure for {gpu_count} GPUs of {family}")


@functools.lru_cache(maxsize=4096)
def _of_type(job_type: JobType, gpu_count: int, column: int) -> float:
    of_type = [name for name, each in JOB_TYPE_OF.items() if each is job_type] or list(JOB_TYPE_OF)
    shares = {_of_family(FAMILY_OF[name], gpu_count, column) for name in of_type}
    if len(shares) == 1:  # a mean by logarithms could differ from it in its last bit
        return shares.pop()
    return exp(math.fsum(log(_of_family(FAMILY_OF[name], gpu_count, column)) for name in of_type) / len(of_type))


def _column(gpu_model: str) -> int:
    if gpu_model.startswith("k80"):
        return _MODELS.index("k80")
    # OAM: AMD's cards with links between them, from the MI250X on. Before that the Instincts are PCIe cards.
    linked = gpu_model.startswith(("v100", "b200", "mi250", "mi3")) or "_sxm" in gpu_model
    # A P100 with NVLink is a P100: that is the model that was measured.
    return _MODELS.index("v100" if linked and not gpu_model.startswith("p100") else "p100")
