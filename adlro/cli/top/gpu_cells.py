"""The GPUs of the screen: one character a GPU, by model, and the rows of the GPU table. Pure functions on records."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.cli.top.lines import Line, fitted
from adlro.hardware.specs import known_spec
from adlro.records.cluster import Cluster, Gpu
from adlro.records.matrices import ClusterPlanes, ClusterState, GpuDrift
from adlro.records.telemetry import Metric
from adlro.text import visible

_BUSY_RATIO = 0.5
_LEVELS = "▁▂▃▄▅▆▇█"
_NO_DRIFT = GpuDrift()
_LABEL = 18


class GpuMode(enum.StrEnum):
    """What a GPU is about."""

    IDLE = "idle"
    ALLOCATED = "allocated"  # a job has it, and it does little, or nothing is known of that
    BUSY = "busy"
    DRAINED = "drained"
    LOST = "lost"


GLYPHS = {
    GpuMode.BUSY: ("█", "good"),
    GpuMode.ALLOCATED: ("▒", "warn"),
    GpuMode.IDLE: ("·", "dim"),
    GpuMode.DRAINED: ("=", "accent"),
    GpuMode.LOST: ("×", "bad"),
}
"""The character of each mode, different without colour too, and its look."""


class StripMetric(enum.StrEnum):
    """What the strip shows of a GPU, as `m` goes through them."""

    STATE = "state"
    UTILIZATION = "utilization"
    MEMORY = "memory"
    BANDWIDTH = "bandwidth"
    TEMPERATURE = "temperature"
    POWER = "power"
    SPEED = "speed"

    @property
    def next(self) -> StripMetric:
        """The metric after this one."""
        every = list(StripMetric)
        return every[(every.index(self) + 1) % len(every)]


_HIGH = {StripMetric.MEMORY: (0.9, 0.98), StripMetric.TEMPERATURE: (0.8, 0.9)}
"""Where a value is worth a look, and where it is bad; others are never."""
_PLANES = {
    StripMetric.UTILIZATION: Metric.UTILIZATION,
    StripMetric.MEMORY: Metric.MEMORY_USED,
    StripMetric.BANDWIDTH: Metric.MEMORY_BANDWIDTH,
    StripMetric.TEMPERATURE: Metric.TEMPERATURE,
    StripMetric.POWER: Metric.POWER,
}


@dataclass(frozen=True, slots=True)
class GpuCell:
    """One GPU at a moment.

    Attributes:
        ratios: by metric, 0..1 of what its model can; a metric that was never reported is missing.
        raw: by metric, in its unit; the same.
        why: of a lost or drained one, where it is known.
    """

    gpu_id: str
    node_id: str
    gpu_model: str
    memory_mib: int
    mode: GpuMode
    job_ids: tuple[str, ...]
    ratios: Mapping[Metric, float]
    raw: Mapping[Metric, float]
    drift: GpuDrift = _NO_DRIFT
    why: str = ""


Figures = tuple[Mapping[Metric, float], Mapping[Metric, float], GpuDrift]
"""Of a GPU by metric: 0..1 of what its model can, in the metric's unit; and its drift."""
_NO_FIGURES: Figures = ({}, {}, _NO_DRIFT)


def gpu_figures(state: ClusterState) -> dict[str, Figures]:
    """What each GPU reports, by its id; what was never reported is left out."""
    ratios = {metric: plane.normalized.tolist() for metric, plane in state.planes.items()}
    raw = {metric: plane.raw.tolist() for metric, plane in state.planes.items()}
    return {
        each.gpu_id: (_known(ratios, number), _known(raw, number), each.drift) for number, each in enumerate(state.gpus)
    }


def plane_figures(planes: ClusterPlanes, cluster: Cluster) -> dict[str, Figures]:
    """As `gpu_figures`, of the matrix in short, which has ratios alone: raw values are those of the GPUs' full scales.

    Args:
        planes: ratios in steps of 1/254.
        cluster: with the figures of its GPUs; a GPU that is not of it has ratios without raw values.
    """
    scales = {gpu.gpu_id: _full_scales(gpu) for _, gpu in cluster.gpus()}
    unknown: dict[Metric, float] = {}
    ratios = {metric: plane.tolist() for metric, plane in planes.planes.items()}
    raw = {
        metric: (plane * np.array([scales.get(each[0], unknown).get(metric, np.nan) for each in planes.gpus])).tolist()
        for metric, plane in planes.planes.items()
    }
    return {
        each[0]: (_known(ratios, number), _known(raw, number), planes.drifts.get(each[0], _NO_DRIFT))
        for number, each in enumerate(planes.gpus)
    }


def _full_scales(gpu: Gpu) -> dict[Metric, float]:
    """What a ratio of 1 is, in the metric's unit; telemetry is normalised by these figures."""
    found = {Metric.UTILIZATION: 1.0, Metric.MEMORY_USED: float(gpu.memory_mib)}
    spec = known_spec(gpu)
    if spec is not None:
        found |= {
            Metric.MEMORY_BANDWIDTH: spec.memory_bandwidth_gb_per_s,
            Metric.TEMPERATURE: spec.max_temperature_c,
            Metric.POWER: spec.power_limit_w,
        }
    return found


def gpu_cells(
    cluster: Cluster,
    figures: Mapping[str, Figures],
    jobs_on: Mapping[str, Sequence[str]],
    lost: Mapping[str, str],
    drained: Mapping[str, str],
) -> list[GpuCell]:
    """The GPUs of a cluster, in its order.

    Args:
        cluster: nodes and GPUs.
        figures: what they report, by id.
        jobs_on: the jobs that have a GPU, by its id.
        lost: lost GPUs, with the reason where it is known.
        drained: drained nodes, with the reason where it is given.
    """
    found = []
    for node, gpu in cluster.gpus():
        own, raw, drift = figures.get(gpu.gpu_id, _NO_FIGURES)
        job_ids = tuple(jobs_on.get(gpu.gpu_id, ()))
        why = ""
        if gpu.gpu_id in lost:
            mode, why = GpuMode.LOST, lost[gpu.gpu_id]
        elif job_ids:
            mode = GpuMode.BUSY if own.get(Metric.UTILIZATION, 0.0) >= _BUSY_RATIO else GpuMode.ALLOCATED
        elif node.node_id in drained:
            mode = GpuMode.DRAINED
        else:
            mode = GpuMode.IDLE
        if not why and node.node_id in drained:
            why = drained[node.node_id] or "its node is drained"
        found.append(
            GpuCell(
                gpu.gpu_id,
                node.node_id,
                gpu.gpu_model,
                gpu.memory_mib,
                mode,
                job_ids,
                own,
                raw,
                drift,
                why,
            )
        )
    return found


def _known(planes: Mapping[Metric, Sequence[float]], number: int) -> dict[Metric, float]:
    return {metric: plane[number] for metric, plane in planes.items() if not math.isnan(plane[number])}


def by_model(cells: Iterable[GpuCell]) -> dict[str, list[GpuCell]]:
    """GPUs by model, in order of appearance."""
    found: dict[str, list[GpuCell]] = {}
    for each in cells:
        found.setdefault(each.gpu_model, []).append(each)
    return found


def ratio_of(cell: GpuCell, metric: StripMetric) -> float | None:
    """What the strip draws of a GPU, 0..1; None: not known, or of no use."""
    if metric is StripMetric.SPEED:
        return min(max(cell.drift.speed_ratio, 0.0), 1.0) if cell.drift.job_count else None
    if metric is StripMetric.STATE:
        return None
    return cell.ratios.get(_PLANES[metric])


def glyph(cell: GpuCell, metric: StripMetric) -> tuple[str, str]:
    """The character of a GPU and its look. Lost, drained and idle ones are told from each other in each metric."""
    if metric is StripMetric.STATE or cell.mode in (GpuMode.LOST, GpuMode.DRAINED):
        return GLYPHS[cell.mode]
    if cell.mode is GpuMode.IDLE and metric is not StripMetric.SPEED:
        return GLYPHS[cell.mode]
    ratio = ratio_of(cell, metric)
    if ratio is None:
        return ("?" if cell.mode is not GpuMode.IDLE else "·"), "dim"
    return level(ratio), look_of(ratio, metric, flagged=cell.drift.flagged)


def level(ratio: float) -> str:
    """A ratio 0..1 as a block of eight heights."""
    return _LEVELS[min(int(min(max(ratio, 0.0), 1.0) * 8), 7)]


def look_of(ratio: float, metric: StripMetric, *, flagged: bool = False) -> str:
    """The look of a metric's value."""
    if metric is StripMetric.SPEED:
        return "bad" if flagged else "warn" if ratio < 0.9 else "good"
    if metric is StripMetric.UTILIZATION:
        return "good" if ratio >= _BUSY_RATIO else "warn"
    warn, bad = _HIGH.get(metric, (2.0, 2.0))
    return "good" if ratio < warn else "warn" if ratio < bad else "bad"


def strip(cells: Sequence[GpuCell], metric: StripMetric, width: int, most_lines: int) -> tuple[list[Line], int]:
    """The GPUs by model, in order, and how many of them one character stands for.

    Args:
        cells: the GPUs.
        metric: what their characters show.
        width: columns of a line.
        most_lines: if one character a GPU takes more lines, it stands for 2, 4, 8 ... of them.
    """
    models = by_model(cells)
    heads = {name: f"{fitted(name, min(len(visible(name)), _LABEL))} {len(each)}" for name, each in models.items()}
    label = min(max((len(head) for head in heads.values()), default=0) + 2, max(width // 2, 1))
    room = max(width - label, 1)
    fold = 1
    while fold < len(cells) and sum(-(-len(each) // (fold * room)) for each in models.values()) > most_lines:
        fold *= 2
    lines: list[Line] = []
    for name, members in models.items():
        marks = [folded(members[start : start + fold], metric) for start in range(0, len(members), fold)]
        head = heads[name][: label - 1]
        for start in range(0, len(marks), room):
            line: Line = [((head if start == 0 else "").ljust(label), "dim")]
            for character, look in marks[start : start + room]:
                if len(line) > 1 and line[-1][1] == look:
                    line[-1] = (line[-1][0] + character, look)
                else:
                    line.append((character, look))
            lines.append(line)
    return lines, fold


def folded(cells: Sequence[GpuCell], metric: StripMetric) -> tuple[str, str]:
    """One character for several GPUs: the height of their mean, or the share that is allocated; lost ones are told."""
    if len(cells) == 1:
        return glyph(cells[0], metric)
    modes = [each.mode for each in cells]
    if all(each is modes[0] for each in modes) and (metric is StripMetric.STATE or modes[0] is not GpuMode.BUSY):
        return GLYPHS[modes[0]]
    if metric is StripMetric.STATE:
        busy, idling = modes.count(GpuMode.BUSY), modes.count(GpuMode.ALLOCATED)
        held = (busy + idling) / len(modes)
        look = "good" if busy > idling else "warn" if held else "dim"
        look = "bad" if GpuMode.LOST in modes else "accent" if GpuMode.DRAINED in modes else look
        return (level(held) if held else "·"), look
    ratios = [ratio for each in cells if (ratio := ratio_of(each, metric)) is not None]
    if not ratios:
        return "?", "dim"
    mean = math.fsum(ratios) / len(ratios)
    return level(mean), look_of(mean, metric, flagged=any(each.drift.flagged for each in cells))


def legend(metric: StripMetric, fold: int, width: int) -> Line:
    """What the characters mean."""
    line: Line = [("m ", "bold"), (f"{metric}: ", "")]
    if metric is StripMetric.STATE:
        names = (
            {GpuMode.BUSY: "busy (50 % or more)", GpuMode.ALLOCATED: "allocated, little work"} if width >= 100 else {}
        )
        shown = list(GLYPHS)
    else:
        what = "expected speed of its model" if metric is StripMetric.SPEED else "0 to 100 %"
        line += [("▁▃▅█", "good"), (f" {what}  ", "dim")]
        names, shown = {}, [GpuMode.IDLE, GpuMode.DRAINED, GpuMode.LOST]
    for mode in shown:
        character, look = GLYPHS[mode]
        line += [(character, look), (f" {names.get(mode, str(mode))}  ", "dim")]
    if fold > 1:
        line.append((f"one character is {fold} GPUs", "dim"))
    return line
