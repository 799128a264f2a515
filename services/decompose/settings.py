"""Decompose's settings: environment keys ADLRO_DECOMPOSE_*."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from adlro.kit.settings import ServiceSettings


class DecomposeSettings(ServiceSettings):
    """The settings of decompose."""

    service_name: ClassVar[str] = "decompose"

    memory_capacity: int = Field(default=100_000, ge=1, le=1_000_000)
    """Finished jobs in the memory; when it is full, the oldest job of the most frequent kind is dropped."""
    memory_max_age_s: float = Field(default=15_552_000.0, gt=0)
    """Cluster time after which a finished job is dropped: 180 days."""
    memory_path: Path | None = None
    """File of the memory; empty: every start rebuilds the memory from the outcomes."""
    memory_save_interval_s: float = Field(default=60.0, ge=0.1, le=86_400)
    """Interval at which the file is written, if the memory has changed."""
    predictor: Literal["learned", "plain"] = "learned"
    """The predictor; `plain`: medians of groups of finished jobs."""
    refit_patience_s: float = Field(default=0.25, ge=0, le=60)
    """How long a prediction waits for a running refit with new outcomes."""
    descriptions_poll_s: float = Field(default=1.0, ge=0.05, le=60)
    """Interval at which the clusters' descriptions are read."""
    telemetry_tail_count: int = Field(default=64, ge=1, le=10_000)
    """Latest entries of a telemetry stream that are read at start."""

    @field_validator("memory_path", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value
