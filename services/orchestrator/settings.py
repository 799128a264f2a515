"""The orchestrator's settings: environment keys ADLRO_ORCHESTRATOR_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from adlro.kit.settings import ServiceSettings


class OrchestratorSettings(ServiceSettings):
    """What the orchestrator needs to know."""

    service_name: ClassVar[str] = "orchestrator"

    cluster_address: str = "127.0.0.1:7704"
    decompose_address: str = "127.0.0.1:7702"
    # Empty: the one last set by SetPolicy, or the default.
    policy: str = ""
    lease_s: float = Field(default=3.0, ge=0.5, le=60)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    # Where decompose does not answer in this time, declared runtimes and the speed table serve instead.
    prediction_timeout_s: float = Field(default=2.0, gt=0, le=60)
    decisions_kept: int = Field(default=10_000, ge=1, le=1_000_000)
