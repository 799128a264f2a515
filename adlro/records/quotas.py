"""Quotas: the most GPUs that a user's jobs may hold at once. Plain data; no gRPC, no Redis."""

from __future__ import annotations

from dataclasses import dataclass

EVERYONE = "*"
"""Instead of a user's name: each user who has no quota of his own."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A user's quota; EVERYONE: of each user who has none of his own.

    Attributes:
        gpu_count: the most GPUs that his jobs may hold at once.
        held_gpu_count: GPUs that they hold now; 0 for EVERYONE.
    """

    user: str
    gpu_count: int
    held_gpu_count: int = 0
