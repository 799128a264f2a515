"""Chooses the margins of a trained network, by playing on validation lists. torch.

    python -m services.orchestrator.learn.margins NETWORK OUT.onnx

NETWORK is a file of `adlro train` or of the policy iteration (.pt), or a model that serves (.onnx); OUT is the same
network with the margins (planes/choice.py) that do best: the mean over the cells of playing.py of the completion time's
ratio to the base's, among those margins that keep two limits in every cell: next to no throughput is lost, and the 95th
percentile is next to the base's. Only where none keeps them are those taken that don't.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from services.orchestrator.learn import playing
from services.orchestrator.learn.export import export_onnx, load_network, to_onnx
from services.orchestrator.planes.choice import Margins
from services.orchestrator.planes.model import OnnxModel

MARGINS = tuple(
    Margins(start, hold, age)
    for start, hold in ((0.0, 0.05), (0.0, 0.08), (0.0, 0.1), (0.02, 0.08), (0.05, 0.1))
    for age in (0.0, 0.1, 0.2, 0.3)
)
LISTS = 100
THROUGHPUT_CELLS = (("paper", 0.9, "true"), ("paper", 1.1, "true"))
THROUGHPUT_LISTS = 300
LEAST_THROUGHPUT = -0.01
"""Against the base, in each of those cells: what holds cost shows in throughput first."""
MOST_P95 = 0.02
"""Against the base, in each cell."""


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
    scores: dict[Margins, dict[str, str]] = {}
    means: dict[Margins, float] = {}
    breaks: dict[Margins, bool] = {}
    for margins in MARGINS:
        act = playing.with_margins(model, margins)
        found = {
            cell: playing.paired(cell, act, lists=LISTS, seed=playing.VALIDATION_SEED, by_priority=by_priority)
            for cell in playing.CELLS
        }
        means[margins] = math.fsum(score.ratio for score in found.values()) / len(found)
        p95 = max(score.p95 for score in found.values())
        throughput = min(
            playing.paired(cell, act, lists=THROUGHPUT_LISTS, seed=playing.VALIDATION_SEED).throughput
            for cell in THROUGHPUT_CELLS
        )
        breaks[margins] = p95 > MOST_P95 or throughput < LEAST_THROUGHPUT
        scores[margins] = {f"{name} {load:g} {known}": str(score) for (name, load, known), score in found.items()}
        tried = f"margins {margins.start:g}, {margins.hold:g}, {margins.age:g}"
        told = f"{100 * means[margins]:+.2f} %, highest p95 {100 * p95:+.1f} %, throughput {100 * throughput:+.2f} %"
        say(f"{trained.name}: {tried}: {told} {scores[margins]}")
    best = min(MARGINS, key=lambda margins: (breaks[margins], means[margins]))
    say(f"{trained.name}: {best}{', which break a limit' if breaks[best] else ''}")
    found_best = {
        "validation": scores[best],
        "validation_mean": means[best],
        "validation_lists": LISTS,
        "breaks_limits": breaks[best],
    }
    training = {**metadata.training, **found_best}
    export_onnx(network, dataclasses.replace(metadata, margins=best, training=training), out)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args(arguments)
    validate(asked.network, asked.out)


if __name__ == "__main__":
    main()
