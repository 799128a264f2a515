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
    # A policy that runs beside it and places nothing. Empty: the one last set by SetShadowPolicy, or none.
    shadow_policy: str = ""
    # The learned policy's: a file, or a folder in which the newest `.onnx` file counts; a new one is taken up while it
    # runs. Empty: the one that comes with ADLRO.
    checkpoint: str = ""
    # How long the learned policy may take for a decision (up to 16,384 pairs of job and GPU; in proportion above).
    decision_deadline_s: float = Field(default=0.05, gt=0, le=60)
    # A job that has waited so many times its own best expected duration and a typical one of what waits goes first,
    # whatever the policy wants; 0: none does. Empty: as each policy has it (20 for the learned one, none for others).
    wait_ratio: float | None = Field(default=None, ge=0, le=1e9)
    lease_s: float = Field(default=3.0, ge=0.5, le=60)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    # Where decompose does not answer in this time, declared runtimes and the speed table serve instead.
    prediction_timeout_s: float = Field(default=2.0, gt=0, le=60)
    decisions_kept: int = Field(default=10_000, ge=1, le=1_000_000)
