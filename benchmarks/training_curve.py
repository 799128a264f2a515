"""Draws how a training of `adlro train` went. Writes an SVG.

    python -m benchmarks.training_curve FOLDER OUT.svg

FOLDER is the training's own, of any recipe. Above: how much lower the mean completion time of the network at that
moment is than hold_greedy_fixed's on the same validation lists, with its 95 % interval, and the best so far, which is
kept. Below: the loss since the time before that it was judged, on a logarithmic scale. Across: episodes, which are job
lists; where they stand still while networks are trained, steps.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

WIDTH, PANEL, LEFT, GAP, RIGHT = 720, 200, 70, 50, 20
Scale = Callable[[float], float]


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """A line for each time that a training's network was judged.

    Raises:
        SystemExit: the folder is none of a training.
    """
    try:
        settings = json.loads((folder / "settings.json").read_text())
        if "recipe" not in settings:
            raise SystemExit(f"{folder}: the training began with a version of before, which kept its curve otherwise")
        return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}; FOLDER is one that `adlro train` has written") from error


def ticks(low: float, high: float) -> list[float]:
    """Some five round numbers from `low` to `high`."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5.0))
    step *= min((m for m in (1.0, 2.0, 5.0, 10.0) if (high - low) / (m * step) <= 6.0), default=10.0)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def linear(low: float, high: float, first: float, last: float) -> Scale:
    """Takes `low` to `first` and `high` to `last`."""
    return lambda value: first + (value - low) / (high - low) * (last - first)


def line(points: Iterable[tuple[float, float]], colour: str, width: float = 1.5) -> str:
    """A line through points."""
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def axis(top: float, at: Sequence[float], y: Scale, named: str, form: Callable[[float], str]) -> list[str]:
    """Lines and figures of a panel's upright axis."""
    drawn = [f'<text x="{LEFT - 60}" y="{top - 10:.1f}">{named}</text>']
    for value in at:
        drawn.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{form(value)}</text>')
    return drawn


def svg(curve: Sequence[dict[str, Any]]) -> str:
    """Both panels."""
    height = 2 * (PANEL + GAP) + 45
    across = "episodes" if all(a["episodes"] < b["episodes"] for a, b in pairwise(curve)) else "steps"
    last = curve[-1][across]
    x = linear(0.0, last, LEFT, WIDTH - RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    judged = [
        (x(each[across]), each["gain_percent"], each["half_width_percent"], each["best_percent"])
        for each in curve
        if each["gain_percent"] is not None
    ]
    low = min((gain - half for _, gain, half, _ in judged), default=-1.0)
    high = max((0.0, *(gain + half for _, gain, half, _ in judged)))
    high = max(high, low + 0.1)  # who does what the heuristic does gains nothing, and errs by nothing
    y = linear(low, high + 0.02 * (high - low), GAP + PANEL, GAP)
    parts += axis(GAP, ticks(low, high), y, "gain against hold_greedy_fixed, %", lambda value: f"{value:g}")
    edges = [*((at, gain + half) for at, gain, half, _ in judged)]
    edges += [(at, gain - half) for at, gain, half, _ in reversed(judged)]
    band = " ".join(f"{at:.1f},{y(edge):.1f}" for at, edge in edges)
    parts.append(f'<polygon points="{band}" fill="#9ecae1"/>')
    parts.append(line(((at, y(gain)) for at, gain, _, _ in judged), "#08519c"))
    parts.append(line(((at, y(best)) for at, _, _, best in judged if best is not None), "#d95f0e"))
    parts.append(f'<path d="M{LEFT} {y(0):.1f}H{WIDTH - RIGHT}" stroke="#333"/>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{GAP - 10}" text-anchor="end" fill="#d95f0e">best so far</text>')

    top = GAP + PANEL + GAP
    losses = [(x(each[across]), math.log10(each["loss"])) for each in curve if each["loss"]]
    lowest = math.floor(min((power for _, power in losses), default=0.0))
    highest = max(math.ceil(max((power for _, power in losses), default=0.0)), lowest + 1)
    y = linear(lowest, highest, top + PANEL, top)
    parts += axis(top, range(lowest, highest + 1), y, "loss", lambda power: f"{10.0**power:g}")
    parts.append(line(((at, y(power)) for at, power in losses), "#08519c"))
    for value in ticks(0.0, last):
        # The last one may stand at the picture's edge.
        anchor = "end" if x(value) > WIDTH - 2 * RIGHT else "middle"
        parts.append(f'<text x="{x(value):.1f}" y="{top + PANEL + 16}" text-anchor="{anchor}">{value:,.0f}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{top + PANEL + 34}" text-anchor="end">{across}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    curve = read_curve(arguments.folder)
    if not curve:
        raise SystemExit(f"{arguments.folder}: no network was judged yet")
    arguments.out.write_text(svg(curve))
    print(f"{arguments.out}: judged {len(curve)} times, the last after {curve[-1]['episodes']:,} episodes")


if __name__ == "__main__":
    main()
