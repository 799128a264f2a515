"""The rows of the GPU table and of the decisions, as text. Pure functions on records."""

from __future__ import annotations

from adlro.cli.places import placement_text
from adlro.cli.top.gpu_cells import GLYPHS, GpuCell, StripMetric, look_of
from adlro.cli.top.job_rows import WIDE
from adlro.cli.top.lines import Line, fitted
from adlro.cli.units_text import UNKNOWN, whole_seconds
from adlro.records.decisions import Decision
from adlro.records.telemetry import Metric

_BAR = 10


def gpu_head(width: int) -> Line:
    """The head of the GPU table."""
    return [
        (
            _gpu_text(
                (
                    "GPU",
                    "MODEL",
                    "STATE",
                    "JOB",
                    "BUSY" if width >= WIDE else "",
                    "" if width >= WIDE else "BUSY",
                    "MEMORY",
                    "BW",
                    "TEMP",
                    "POWER",
                    "SPEED",
                ),
                width,
            ),
            "dim",
        )
    ]


def _gpu_widths(width: int) -> tuple[int, ...]:
    bar = _BAR if width >= WIDE else 0
    fixed = (16, 13, 10, 0, bar, 5, 6, 5, 5, 6, 6) if width >= WIDE else (12, 0, 9, 0, 0, 5, 6, 0, 5, 6, 0)
    used = sum(fixed) + sum(each > 0 for each in fixed)
    return tuple(max(width - used - 1, 4) if number == 3 else each for number, each in enumerate(fixed))


def _gpu_text(texts: tuple[str, ...], width: int) -> str:
    return "".join(
        fitted(text, size, right=number > 4) + " "
        for number, (text, size) in enumerate(zip(texts, _gpu_widths(width), strict=True))
        if size
    )


def gpu_row(cell: GpuCell, width: int) -> Line:
    """A GPU: its state, job and figures."""
    sizes = _gpu_widths(width)
    job = " and ".join(cell.job_ids) or cell.why
    if cell.job_ids and cell.why:
        job += f" ({cell.why})"
    glyph, look = GLYPHS[cell.mode]
    busy = cell.ratios.get(Metric.UTILIZATION)
    full = round(min(max(busy or 0.0, 0.0), 1.0) * sizes[4])
    speed = f"{100 * cell.drift.speed_ratio:.0f} %" if cell.drift.job_count else UNKNOWN
    parts = [
        (cell.gpu_id, "accent"),
        (cell.gpu_model, "dim"),
        (f"{glyph} {cell.mode}", look),
        (job, "bad" if cell.why and not cell.job_ids else ""),
        ("█" * full + ("░" * (sizes[4] - full) if busy is not None else ""), "good"),
        (_percent(cell, Metric.UTILIZATION), ""),
        (_percent(cell, Metric.MEMORY_USED), _metric_look(cell, Metric.MEMORY_USED, StripMetric.MEMORY)),
        (_percent(cell, Metric.MEMORY_BANDWIDTH), ""),
        (_number(cell, Metric.TEMPERATURE, "°C"), _metric_look(cell, Metric.TEMPERATURE, StripMetric.TEMPERATURE)),
        (_number(cell, Metric.POWER, "W"), ""),
        (speed, "bad" if cell.drift.flagged else "dim"),
    ]
    return [
        (fitted(text, size, right=number > 4) + " ", look)
        for number, ((text, look), size) in enumerate(zip(parts, sizes, strict=True))
        if size
    ]


def _percent(cell: GpuCell, metric: Metric) -> str:
    return f"{100 * cell.ratios[metric]:.0f} %" if metric in cell.ratios else UNKNOWN


def _number(cell: GpuCell, metric: Metric, unit: str) -> str:
    return f"{cell.raw[metric]:.0f} {unit}" if metric in cell.raw else UNKNOWN


def _metric_look(cell: GpuCell, metric: Metric, shown: StripMetric) -> str:
    if metric not in cell.ratios:
        return "dim"
    look = look_of(cell.ratios[metric], shown)
    return "" if look == "good" else look


# ---- decisions


def decision_head(width: int) -> Line:
    """The head of the decisions' table."""
    return [
        (_decision_text(("TIME", "DECISION", "JOB", "GPU", "WAITING", "BY", "BASIS", "SHADOW", "US"), width), "dim")
    ]


def _decision_widths(width: int) -> tuple[int, ...]:
    fixed = (8, 12, 12, 0, 7, 18, 12, 30, 6) if width >= 120 else (8, 10, 11, 0, 0, 14, 0, 20, 0)
    used = sum(fixed) + sum(each > 0 for each in fixed)
    return tuple(max(width - used - 1, 4) if number == 3 else each for number, each in enumerate(fixed))


def _decision_text(texts: tuple[str, ...], width: int) -> str:
    return "".join(
        fitted(text, size, right=number in (0, 4, 8)) + " "
        for number, (text, size) in enumerate(zip(texts, _decision_widths(width), strict=True))
        if size
    )


def decision_row(decision: Decision, width: int) -> Line:
    """A decision: when, which job went where, who decided, and what the shadow would have done."""
    by = decision.deciding_policy or decision.policy
    shadow = decision.shadow
    other = ""
    if shadow is not None:
        where = f"{shadow.job_id} on {placement_text(shadow.placement, 1)}" if shadow.job_id else "hold"
        other = "agrees" if shadow.agrees else where
    basis = str(decision.basis).replace("_", " ") if decision.basis is not None else ""
    parts = [
        (whole_seconds(decision.time_s), "dim"),
        (decision.decision_id, "dim"),
        (decision.job_id, "accent"),
        (placement_text(decision.placement, 2) or "not placed", ""),
        (str(decision.queue_length), ""),
        (by, "" if by == decision.policy else "warn"),
        (basis, "warn" if decision.basis is not None and decision.basis.fallback else "dim"),
        (other, "dim" if shadow is None or shadow.agrees else "warn"),
        (f"{decision.decision_us:.0f}", "dim"),
    ]
    return [
        (fitted(text, size, right=number in (0, 4, 8)) + " ", look)
        for number, ((text, look), size) in enumerate(zip(parts, _decision_widths(width), strict=True))
        if size
    ]
