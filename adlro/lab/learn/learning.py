"""What a recipe plugs into the runner (training.py). torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from adlro.decide.planes.model import ModelMetadata
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.validation import Score, Validation

Network = tuple[PairNetwork, ModelMetadata]


@dataclass(frozen=True)
class Given:
    """What a recipe begins with, beside its settings.

    Attributes:
        folder: for what is made once and is too large for a checkpoint; each file is written whole or not at all.
        seed: of everything by chance.
        device: of networks that learn.
        threads: 2: as much as possible is done by two threads; the result is the same.
        validation: by which networks are judged.
        start: a network to begin with, which the recipe may change.
        commit: of this code.
    """

    folder: Path
    seed: int
    device: torch.device
    threads: int
    validation: Validation
    start: Network | None
    commit: str


@dataclass(frozen=True, slots=True)
class LearningStep:
    """What a step brought.

    Attributes:
        text: for people who watch; nothing where there are too many steps to tell each.
        loss: mean of its updates; None: nothing was learned.
        score: of `Learning.network` as it is now, where it was judged.
        keep: the name under which the network that was judged is kept, beside the best and the last; none: it is not.
        figures: for TensorBoard.
    """

    text: str = ""
    loss: float | None = None
    score: Score | None = None
    keep: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


class Learning(Protocol):
    """One way to learn, as steps of seconds to a minute.

    Between two steps `state` has all that a new one with the same settings needs to go on to the same result, bit by
    bit, together with what lies in the folder.
    """

    @property
    def steps(self) -> int:
        """Done so far."""

    @property
    def episodes(self) -> int:
        """Job lists that were run to their end so far."""

    @property
    def decisions(self) -> int:
        """To learn from, that were made so far."""

    @property
    def all_steps(self) -> float:
        """After which it ends by itself; inf: never."""

    def step(self) -> LearningStep:
        """Goes on by one step."""

    def network(self) -> Network:
        """As it stands."""

    def state(self) -> dict[str, Any]:
        """For a checkpoint: tensors and plain values."""

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from `state`."""
