"""Sizes of a network, for recipes and the command line, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Sizes.

    Attributes:
        channels: channels of the GPU matrix after each convolution, and of a job's features.
        hidden: width of the first fully connected layer.
        hidden2: width of the second.
        convolutions: False: pairs and jobs only, without the GPU matrix (for the ablation).
    """

    channels: int = 24
    hidden: int = 64
    hidden2: int = 32
    convolutions: bool = True
