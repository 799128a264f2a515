"""Chooses the margins of a trained network, by playing on validation lists. torch.

    python -m adlro.lab.learn.margins NETWORK OUT.onnx

NETWORK is a file of `adlro train` or of the policy iteration (.pt), or a model that serves (.onnx); OUT is the same
network with the margins (planes/choice.py) that do best: the mean over the cells of playing.py of the completion time's
ratio to the base's, among those margins that keep two limits in every cell: next to no throughput is lost, and the 95th
percentile is next to the base's. The margin for a mostly idle cluster comes last, with a third limit: where the load is
low the mean is next to the base's. Only where none keeps the limits are those taken that don't.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.model import OnnxModel
from adlro.errors import InvalidInput
from adlro.lab.learn import playing
from adlro.lab.learn.export import export_onnx, load_network, to_onnx

MARGINS = tuple(
    Margins(start, hold, age)
    for start, hold in ((0.0, 0.05), (0.0, 0.08), (0.0, 0.1), (0.02, 0.08), (0.05, 0.1))
    for age in (0.0, 0.1, 0.2, 0.3)
)
IDLE = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Tried for the best of `MARGINS`."""
LISTS = 100
THROUGHPUT_CELLS = (("paper", 0.9, "true"), ("paper", 1.1, "true"))
THROUGHPUT_LISTS = 300
LEAST_THROUGHPUT = -0.01
"""Against the base, in each of those cells: what holds cost shows in throughput first."""
MOST_P95 = 0.02
"""Against the base, in each cell."""
IDLE_CELLS = (("paper", 0.3, "true"), ("paper_roomy", 0.3, "true"))
MOST_MEAN = 0.001
"""Against the base, in each of those cells."""


class _Tried(NamedTuple):
    breaks: bool
    mean: float
    scores: dict[str, str]


def say(text: str) -> None:
    """On standard output, as it comes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def validate(trained: Path, out: Path) -> None:
    """Writes the model with the margins that do best on validation lists.

    Raises:
        InvalidInput: `trained` is no network of this version.
    """
    network, metadata = load_network(trained)
    by_priority = bool(metadata.training.get("by_priority"))
    model = OnnxModel(to_onnx(network, metadata))
    tried = {margins: _try(model, margins, trained.name, by_priority) for margins in MARGINS}
    best = min(MARGINS, key=lambda margins: tried[margins][:2])
    further = {
        margins: _at_low_load(model, margins, tried.get(margins), trained.name, by_priority)
        for margins in with_idle(best)
    }
    best = min(further, key=lambda margins: further[margins][:2])
    found = further[best]
    say(f"{trained.name}: {best}{', which break a limit' if found.breaks else ''}")
    found_best = {
        "validation": found.scores,
        "validation_mean": found.mean,
        "validation_lists": LISTS,
        "breaks_limits": found.breaks,
    }
    training = {**metadata.training, **found_best}
    export_onnx(network, dataclasses.replace(metadata, margins=best, training=training), out)


def with_idle(margins: Margins) -> list[Margins]:
    """The same with each of `IDLE`."""
    return [dataclasses.replace(margins, idle=idle) for idle in IDLE]


def _try(model: OnnxModel, margins: Margins, name: str, by_priority: bool) -> _Tried:
    act = playing.with_margins(model, margins)
    found = {
        cell: playing.paired(cell, act, lists=LISTS, seed=playing.VALIDATION_SEED, by_priority=by_priority)
        for cell in playing.CELLS
    }
    mean = math.fsum(score.ratio for score in found.values()) / len(found)
    p95 = max(score.p95 for score in found.values())
    throughput = min(
        playing.paired(cell, act, lists=THROUGHPUT_LISTS, seed=playing.VALIDATION_SEED).throughput
        for cell in THROUGHPUT_CELLS
    )
    scores = {f"{name} {load:g} {known}": str(score) for (name, load, known), score in found.items()}
    figures = ", ".join(f"{figure:g}" for figure in dataclasses.astuple(margins))
    told = f"{100 * mean:+.2f} %, highest p95 {100 * p95:+.1f} %, throughput {100 * throughput:+.2f} %"
    say(f"{name}: margins {figures}: {told} {scores}")
    return _Tried(p95 > MOST_P95 or throughput < LEAST_THROUGHPUT, mean, scores)


def _at_low_load(model: OnnxModel, margins: Margins, known: _Tried | None, name: str, by_priority: bool) -> _Tried:
    """With what is found at low load; `known` is what is found elsewhere, or None."""
    act = playing.with_margins(model, margins)
    found = {
        cell: playing.paired(cell, act, lists=LISTS, seed=playing.VALIDATION_SEED, by_priority=by_priority)
        for cell in IDLE_CELLS
    }
    idle = {f"{name} {load:g} {known}": str(score) for (name, load, known), score in found.items()}
    say(f"{name}: {margins}: {idle}")
    above = any(score.ratio > MOST_MEAN for score in found.values())
    tried = known or _try(model, margins, name, by_priority)
    return _Tried(above or tried.breaks, tried.mean, {**idle, **tried.scores})


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args(arguments)
    validate(asked.network, asked.out)


if __name__ == "__main__":
    try:
        main()
    except InvalidInput as error:
        sys.exit(f"error: {error}")
