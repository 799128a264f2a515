"""simcluster's settings: environment keys ADLRO_SIMCLUSTER_*."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from adlro.clusterside.settings import ClusterSettings


class SimclusterSettings(ClusterSettings):
    """The settings of simcluster."""

    service_name: ClassVar[str] = "simcluster"

    cluster: str = Field(default="paper", min_length=1)
    """`paper` (20 cores a node), `paper_roomy` (32), `gavel` (24 GPUs of three other models), or a TOML file; `adlro up
    --cluster` overrides it.
    """
    clock_mode: Literal["real", "scaled", "virtual"] = "real"
    """How cluster time passes: with the wall clock, at another speed, or from event to event. This and the next two
    keys apply at the first start and after a change of them; otherwise the clock keeps its last settings.
    """
    clock_scale: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    """Cluster seconds a second; in virtual time the upper limit, 0: no limit."""
    clock_paused: bool = False
    """Start with a paused clock."""
    start_cost_s: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """Cluster seconds between a job's start and the beginning of its work."""
