"""simcluster's settings: environment keys ADLRO_SIMCLUSTER_*."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from adlro.clusterside.settings import ClusterSettings


class SimclusterSettings(ClusterSettings):
    """The settings of simcluster."""

    service_name: ClassVar[str] = "simcluster"

    # A scenario (paper, paper_roomy), or a TOML file of the form of adlro/workload/data/paper.toml's [cluster].
    cluster: str = Field(default="paper", min_length=1)
    clock_mode: Literal["real", "scaled", "virtual"] = "real"
    # Cluster seconds a second. scaled needs one; in virtual the most, 0 = no limit. Not set: 1 for real, 0 for virtual.
    clock_scale: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    clock_paused: bool = False
    # Cluster seconds that each start takes before the job's work begins.
    start_cost_s: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
