"""The GPU models that ADLRO knows, with their figures. Plain records; the file has each figure's source.

A model is what runs jobs equally fast: V100 SXM2 cards with 16 and with 32 GB are one, A100 cards with 40 and with
80 GB are two, since their bandwidths differ. A card with two GPUs (K80, MI250X) counts as what programs see: two GPUs,
each with half of the card's figures.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from adlro.package_data import csv_rows
from adlro.records.cluster import Gpu, GpuSpec


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model.

    Attributes:
        name: as in jobs, clusters and messages.
        vendor: "nvidia" or "amd".
        memory_mib: of a GPU as it is sold; where there are several sizes, the smallest.
        spec: figures by which telemetry is normalised.
        product_names: what drivers call it, without "NVIDIA".
        pci_ids: AMD's device ids in hexadecimal: `device`, `device:revision` or `device/compute_units`.
    """

    name: str
    vendor: str
    memory_mib: int
    spec: GpuSpec
    product_names: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(";") if each)


KNOWN_MODELS: Mapping[str, GpuModel] = MappingProxyType(
    {
        row["gpu_model"]: GpuModel(
            name=row["gpu_model"],
            vendor=row["vendor"],
            memory_mib=int(row["memory_mib"]),
            spec=GpuSpec(
                memory_bandwidth_gb_per_s=float(row["memory_bandwidth_gb_per_s"]),
                power_limit_w=float(row["power_limit_w"]),
                max_temperature_c=float(row["max_temperature_c"]),
            ),
            product_names=_listed(row["product_names"]),
            pci_ids=_listed(row["pci_ids"]),
        )
        for row in csv_rows("adlro.hardware", "gpu_specs.csv")
    }
)
"""By name."""

GPU_SPECS: Mapping[str, GpuSpec] = MappingProxyType({name: each.spec for name, each in KNOWN_MODELS.items()})
"""By GPU model."""

_MOST_NEAREST, _MOST_OTHERS = 6, 8
_COMMON = ("v100_sxm2", "a100_sxm4_80gb", "h100_sxm5", "rtx_3090", "rtx_4090", "mi250x", "mi300x")
"""For names that are near none."""


def known_spec(gpu: Gpu) -> GpuSpec | None:
    """The GPU's own figures, or else those of its model; None: unknown."""
    return gpu.spec or GPU_SPECS.get(gpu.gpu_model)


def known_models_text(unknown: str, others: Iterable[str] = ()) -> str:
    """GPU models to choose from, for a message about one that is not known: `use one of ...`.

    Not all of them: a gRPC status has room for a few hundred characters only.

    Args:
        unknown: what was given. Models whose names are near it are listed.
        others: models that are known besides ADLRO's own, such as those of the cluster. They are listed first.
    """
    own = sorted({*others} - {*KNOWN_MODELS})
    near = _nearest(unknown, [*own, *KNOWN_MODELS]) or list(_COMMON)
    shown = list(dict.fromkeys([*own[:_MOST_OTHERS], *near]))
    more = f", and {len(own) - _MOST_OTHERS} more of the cluster" if len(own) > _MOST_OTHERS else ""
    return f"{', '.join(shown)}{more} (of {len(KNOWN_MODELS)} known models; docs/real_gpus.md lists all)"


def _nearest(unknown: str, names: list[str]) -> list[str]:
    """Names that share a part with the unknown one (there is no `a100`, but four variants of it), or look like it."""
    given = re.sub(r"[^a-z0-9]+", "_", unknown.lower()).strip("_")
    sharing = [each for each in names if _model_parts(given) & _model_parts(each)]
    if sharing:
        return list(difflib.get_close_matches(given, sharing, n=_MOST_NEAREST, cutoff=0.0))
    ranked = difflib.get_close_matches(given, names, n=_MOST_NEAREST, cutoff=0.6)
    # The nearest one's variants: v100_sxm2 beside v100.
    variants = [each for each in names if ranked and _model_parts(ranked[0]) & _model_parts(each)]
    return list(dict.fromkeys([*ranked[:1], *variants, *ranked]))[:_MOST_NEAREST]


def _model_parts(name: str) -> set[str]:
    """The parts of a name that say which model it is: those with letters and digits, such as `v100`."""
    return {each for each in name.split("_") if any(c.isdigit() for c in each) and any(c.isalpha() for c in each)}
