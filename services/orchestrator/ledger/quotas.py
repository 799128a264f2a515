"""The quotas of all users, as the acting orchestrator knows them. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.records.quotas import EVERYONE


@dataclass(frozen=True, slots=True)
class Quotas:
    """GPUs by user; EVERYONE: of each user who is not named.

    A job that shares its GPU counts as one GPU.
    """

    gpu_count_of: Mapping[str, int] = field(default_factory=dict)

    def of(self, user: str) -> int | None:
        """The GPUs that a user's jobs may hold at once; None: any number."""
        found = self.gpu_count_of.get(user)
        return self.gpu_count_of.get(EVERYONE) if found is None else found

    def __bool__(self) -> bool:
        return bool(self.gpu_count_of)
