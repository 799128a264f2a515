"""The orchestrator's settings: environment keys ADLRO_ORCHESTRATOR_*."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from adlro.kit.settings import ServiceSettings


class OrchestratorSettings(ServiceSettings):
    """The orchestrator's settings."""

    service_name: ClassVar[str] = "orchestrator"

    cluster_address: str = "127.0.0.1:7704"
    decompose_address: str = "127.0.0.1:7702"
    # Empty: the policy last set by SetPolicy, or the default.
    policy: str = ""
    # The shadow policy: it runs beside the acting one and places nothing. Empty: the one last set by SetShadowPolicy,
    # or none.
    shadow_policy: str = ""
    # The learned policy's checkpoint: a file, or a folder, whose newest `.onnx` file is used; the running service
    # switches to newer ones. Empty: the checkpoint that ADLRO includes.
    checkpoint: str = ""
    # Seconds that the learned policy may take for a decision (up to 16,384 pairs of job and GPU; in proportion above).
    decision_deadline_s: float = Field(default=0.05, gt=0, le=60)
    # A job whose wait reaches this multiple of its own best expected duration and of a typical one in the queue goes
    # first under any policy; 0: no limit. Empty: each policy's own ratio (20 for the learned one, none for others).
    wait_ratio: float | None = Field(default=None, ge=0, le=1e9)
    # on: a policy that stops jobs may stop those whose users allow it (preemptible), to start others; off: none is ever
    # stopped.
    preemption: Literal["off", "on"] = "off"
    # A job is not stopped before its program has run so many seconds of cluster time since its last start.
    preemption_min_run_s: float = Field(default=60.0, ge=0, le=31_536_000)
    lease_s: float = Field(default=3.0, ge=0.5, le=60)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    # Without an answer from decompose in this time, declared runtimes and the speed table are used.
    prediction_timeout_s: float = Field(default=2.0, gt=0, le=60)
    decisions_kept: int = Field(default=10_000, ge=1, le=1_000_000)
    # Decisions in the store, for ListDecisions, about: the oldest ones go. About 0.5 kB each. 0: none are stored.
    decisions_stored: int = Field(default=50_000, ge=0, le=10_000_000)
    # The newest of these are stored with the best pairs, candidates and reasons of exclusion. About 5 kB each.
    explanations_stored: int = Field(default=5_000, ge=0, le=1_000_000)
