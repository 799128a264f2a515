"""Chooses the margins of a trained network, by the score of validation.py. torch.

    python -m adlro.lab.learn.margins NETWORK OUT.onnx

NETWORK is a file of `adlro train` (.pt), or a model that serves (.onnx); OUT is the same network with the margins
(planes/choice.py) that do best: the greatest gain among those margins that keep two limits in every cell: next to no
throughput is lost, and the 95th percentile is next to the base's. The margin for a mostly idle cluster comes last, with
a third limit: where the load is low the mean is next to the base's. Only where none keeps the limits are those taken
that don't.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.model import ModelMetadata, OnnxModel
from adlro.errors import InvalidInput
from adlro.lab.learn.export import export_onnx, load_network, to_onnx
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.validation import Score, Validation, with_margins

MARGINS = tuple(
    Margins(start, hold, age)
    for start, hold in ((0.0, 0.05), (0.0, 0.08), (0.0, 0.1), (0.02, 0.08), (0.05, 0.1))
    for age in (0.0, 0.1, 0.2, 0.3)
)
IDLE = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Candidates for the best of `MARGINS`."""


class MarginChoice:
    """The choice of a network's margins by trials.

    Args:
        network, metadata: the network.
        validation: scores each trial.

    Attributes:
        tried: the trials so far: each of `MARGINS`, and then, with the limit at low load, the best with each of `IDLE`.
    """

    def __init__(self, network: PairNetwork, metadata: ModelMetadata, validation: Validation) -> None:
        self._model = OnnxModel(to_onnx(network, metadata))
        self._validation = validation
        self.tried: list[Score] = []

    @property
    def ended(self) -> bool:
        """Whether all were tried."""
        return len(self.tried) == len(MARGINS) + len(IDLE)

    @property
    def best(self) -> tuple[Margins, Score]:
        """The best of the trials in the last part."""
        place = min(range(len(self.tried)), key=lambda place: (place < len(MARGINS), self.tried[place].order))
        return self._margins_at(place), self.tried[place]

    def try_next(self) -> str:
        """Plays with the next margins; returns the result as text."""
        place = len(self.tried)
        margins = self._margins_at(place)
        act = with_margins(self._model, margins)
        if place < len(MARGINS):
            score = self._validation.score(act)
        else:
            first = self._best_of_first()
            score = self.tried[first] if margins == MARGINS[first] else self._validation.score(act)
            score = self._validation.with_low_load(act, score)
        self.tried.append(score)
        figures = ", ".join(f"{figure:g}" for figure in dataclasses.astuple(margins))
        throughput = f"throughput {100 * score.throughput:+.2f} %"
        return f"margins {figures}: {score}, highest p95 {100 * score.p95:+.1f} %, {throughput} {score.cells}"

    def _margins_at(self, place: int) -> Margins:
        if place < len(MARGINS):
            return MARGINS[place]
        return dataclasses.replace(MARGINS[self._best_of_first()], idle=IDLE[place - len(MARGINS)])

    def _best_of_first(self) -> int:
        return min(range(len(MARGINS)), key=lambda place: self.tried[place].order)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args(arguments)
    network, metadata = load_network(asked.network)
    validation = Validation(by_priority=bool(metadata.training.get("by_priority")))
    choice = MarginChoice(network, metadata, validation)
    while not choice.ended:
        sys.stdout.write(f"{asked.network.name}: {choice.try_next()}\n")
        sys.stdout.flush()
    margins, score = choice.best
    training = {**metadata.training, "validation": dataclasses.asdict(score)}
    export_onnx(network, dataclasses.replace(metadata, margins=margins, training=training), asked.out)
    sys.stdout.write(f"{asked.out}: {margins}: {score}\n")


if __name__ == "__main__":
    try:
        main()
    except InvalidInput as error:
        sys.exit(f"error: {error}")
