"""Draws how a training of `adlro train` went. Writes an SVG.

    python -m benchmarks.training_curve FOLDER OUT.svg

FOLDER is the training's own. Above: how much lower the mean completion time of the network at that moment is than
hold_greedy_fixed's on the same validation lists, with two standard errors, and the best so far, which is kept. Below:
the loss, mean of a generation's updates, on a logarithmic scale. Across: episodes, which are job lists.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

WIDTH, PANEL, LEFT, GAP, RIGHT = 720, 200, 70, 50, 20
_POINTS = 400
"""Drawn of the loss at most: more can't be told apart."""

Scale = Callable[[float], float]


def read_curve(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The generations of a training, and the episodes of each.

    Raises:
        SystemExit: the folder is none of a training.
    """
    try:
        lines = (folder / "curve.jsonl").read_text().splitlines()
        settings = json.loads((folder / "settings.json").read_text())
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}; FOLDER is one that `adlro train` has written") from error
    return [json.loads(line) for line in lines], int(settings["lists"])


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


def svg(curve: Sequence[dict[str, Any]], lists: int) -> str:
    """Both panels."""
    height = 2 * (PANEL + GAP) + 45
    episodes = [(each["generation"] + 1) * lists for each in curve]
    x = linear(0.0, episodes[-1], LEFT, WIDTH - RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    judged = [(x(e), each["score"], each["best"]) for e, each in zip(episodes, curve, strict=True) if each["score"]]
    gains = [100.0 * score["gain"] for _, score, _ in judged]
    errors = [200.0 * score["error"] for _, score, _ in judged]
    low = min((gain - error for gain, error in zip(gains, errors, strict=True)), default=-1.0)
    high = max(0.0, *(gain + error for gain, error in zip(gains, errors, strict=True))) if gains else 1.0
    high = max(high, low + 1e-3)  # who does what the heuristic does gains nothing, and errs by nothing
    y = linear(low, high + 0.02 * (high - low), GAP + PANEL, GAP)
    parts += axis(GAP, ticks(low, high), y, "gain against hold_greedy_fixed, %", lambda value: f"{value:g}")
    upper = [(at, y(gain + error)) for (at, _, _), gain, error in zip(judged, gains, errors, strict=True)]
    lower = [(at, y(gain - error)) for (at, _, _), gain, error in zip(judged, gains, errors, strict=True)]
    band = " ".join(f"{at:.1f},{down:.1f}" for at, down in [*upper, *reversed(lower)])
    parts.append(f'<polygon points="{band}" fill="#9ecae1"/>')
    parts.append(line(((at, y(gain)) for (at, _, _), gain in zip(judged, gains, strict=True)), "#08519c"))
    parts.append(line(((at, y(100.0 * best)) for at, _, best in judged if best is not None), "#d95f0e"))
    parts.append(f'<path d="M{LEFT} {y(0):.1f}H{WIDTH - RIGHT}" stroke="#333"/>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{GAP - 10}" text-anchor="end" fill="#d95f0e">best so far</text>')

    top = GAP + PANEL + GAP
    every = max(1, len(curve) // _POINTS)
    losses = [
        (x(episodes[first]), sum(each["loss"] for each in part) / len(part))
        for first in range(0, len(curve), every)
        if (part := [each for each in curve[first : first + every] if each["loss"] > 0.0])
    ]
    powers = [math.log10(loss) for _, loss in losses] or [0.0]
    lowest = math.floor(min(powers))
    highest = max(math.ceil(max(powers)), lowest + 1)
    y = linear(lowest, highest, top + PANEL, top)
    parts += axis(top, range(lowest, highest + 1), y, "loss", lambda power: f"{10.0**power:g}")
    parts.append(line(((at, y(math.log10(loss))) for at, loss in losses), "#08519c"))
    for value in ticks(0.0, episodes[-1]):
        # The last one may stand at the picture's edge.
        anchor = "end" if x(value) > WIDTH - 2 * RIGHT else "middle"
        parts.append(f'<text x="{x(value):.1f}" y="{top + PANEL + 16}" text-anchor="{anchor}">{value:,.0f}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{top + PANEL + 34}" text-anchor="end">episodes</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    curve, lists = read_curve(arguments.folder)
    if not curve:
        raise SystemExit(f"{arguments.folder}: no generation has ended yet")
    arguments.out.write_text(svg(curve, lists))
    print(f"{arguments.out}: {len(curve)} generations of {lists} episodes")


if __name__ == "__main__":
    main()
