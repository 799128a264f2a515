"""Decompose's settings: environment keys ADLRO_DECOMPOSE_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from adlro.kit.settings import ServiceSettings


class DecomposeSettings(ServiceSettings):
    """What decompose needs to know."""

    service_name: ClassVar[str] = "decompose"

    # Finished jobs that are kept; the oldest give way.
    memory_capacity: int = Field(default=100_000, ge=1, le=1_000_000)
    # How often the clusters' descriptions are looked at; telemetry of a GPU that none names asks for a look at once.
    descriptions_poll_s: float = Field(default=1.0, ge=0.05, le=60)
    # Entries of a telemetry stream folded at start, beside the latest block of each source.
    telemetry_tail_count: int = Field(default=64, ge=1, le=10_000)
