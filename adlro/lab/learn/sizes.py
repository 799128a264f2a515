"""Sizes of a network, which recipes and the command line name without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Sizes.

    Attributes:
        channels: of the GPU matrix after each convolution, and of a job's features.
        hidden: of the first fully connected layer.
        hidden2: of the second.
        convolutions: False: pairs and jobs only, nothing of the GPU matrix (an arm of the ablation).
    """

    channels: int = 24
    hidden: int = 64
    hidden2: int = 32
    convolutions: bool = True
