"""Decompose's settings: environment keys ADLRO_DECOMPOSE_*."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from adlro.kit.settings import ServiceSettings


class DecomposeSettings(ServiceSettings):
    """The settings of decompose."""

    service_name: ClassVar[str] = "decompose"

    # Largest number of stored finished jobs; the oldest are dropped.
    memory_capacity: int = Field(default=100_000, ge=1, le=1_000_000)
    # Cluster time after which a finished job is forgotten, counted back from the newest end: 180 days.
    memory_max_age_s: float = Field(default=15_552_000.0, gt=0)
    # File that stores the memory; empty: every start learns it again from the stream of outcomes.
    memory_path: Path | None = None
    # Seconds between two writes of the file, while there are changes.
    memory_save_interval_s: float = Field(default=60.0, ge=0.1, le=86_400)
    # The predictor: "learned", or "plain", medians of groups.
    predictor: Literal["learned", "plain"] = "learned"
    # Seconds that a prediction waits for a running refit; after them the previous fit answers.
    refit_patience_s: float = Field(default=0.25, ge=0, le=60)
    # Seconds between two reads of the clusters' descriptions; telemetry of an unknown GPU triggers a read at once.
    descriptions_poll_s: float = Field(default=1.0, ge=0.05, le=60)
    # Entries of a telemetry stream folded at start, in addition to the latest block of each source.
    telemetry_tail_count: int = Field(default=64, ge=1, le=10_000)

    @field_validator("memory_path", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value
