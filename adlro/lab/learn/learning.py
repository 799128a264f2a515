"""The interface between a recipe and the runner (training.py). torch."""

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
    """The initial state of a recipe, in addition to its settings.

    Attributes:
        folder: for results that are too large for a checkpoint; each file is written as a whole or not at all.
        seed: seed of all random numbers.
        device: device of the trained networks.
        threads: 2: two threads do as much as possible; the result is the same.
        validation: scores the networks.
        start: an initial network, which the recipe may change.
        commit: commit of this code.
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
    """The results of a step.

    Attributes:
        text: progress for people; empty if there are too many steps.
        loss: mean loss of its updates; None: no training.
        score: score of the present `Learning.network`, if it was computed.
        keep: name under which the scored network is stored, in addition to the best and the last; empty: it is not.
        figures: for TensorBoard.
    """

    text: str = ""
    loss: float | None = None
    score: Score | None = None
    keep: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


class Learning(Protocol):
    """A learning method, as steps of seconds to a minute.

    Between two steps `state`, together with the folder's content, has all that a new object with the same settings
    needs to reach the same result, bit by bit.
    """

    @property
    def steps(self) -> int:
        """Number of steps so far."""

    @property
    def episodes(self) -> int:
        """Number of job lists run to their end so far."""

    @property
    def decisions(self) -> int:
        """Number of decisions for training so far."""

    @property
    def all_steps(self) -> float:
        """Number of steps until its own end; inf: none."""

    def step(self) -> LearningStep:
        """Makes one step."""

    def network(self) -> Network:
        """The present network."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: tensors and plain values."""

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from `state`."""
