"""Settings of every cluster's service."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from adlro.kit.settings import ServiceSettings


class ClusterSettings(ServiceSettings):
    """The settings of the server half of a cluster."""

    service_name: ClassVar[str] = "cluster"

    telemetry_hz: float = Field(default=2.0, ge=0, le=1000, allow_inf_nan=False)
    """Telemetry samples a second of wall time; 0: none."""
    ingest_address: str = ""
    """Ingest, for the cluster's description and telemetry; empty: neither is sent."""
