"""ingest's settings: environment keys ADLRO_INGEST_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from adlro.kit.settings import ServiceSettings


class IngestSettings(ServiceSettings):
    """The settings of ingest."""

    service_name: ClassVar[str] = "ingest"

    cluster: str = Field(default="", max_length=64)
    """The cluster that jobs are checked against and normalised by; empty: the most recently described cluster."""
    cluster_address: str = ""
    """The cluster's service, which has the output of jobs; empty: ReadJobLogs is refused."""
    cluster_cache_s: float = Field(default=1.0, ge=0, le=60)
    """Time for which a cluster's description is cached."""
    watch_changes_kept: int = Field(default=8192, ge=1, le=1_000_000)
    """Changes held in memory for watchers; a watcher that is further behind is served from Redis."""
    watch_kept_mib: int = Field(default=16, ge=1, le=65_536)
    """Memory for the messages of the changes that are held for watchers; with large jobs, fewer changes are held."""
    telemetry_entries_kept: int = Field(default=10_000, ge=1, le=10_000_000)
    """Approximate number of entries in a cluster's telemetry stream; the oldest are deleted."""
    telemetry_kept_mib: int = Field(default=256, ge=1, le=1_000_000)
    """Approximate size of a cluster's telemetry stream; with large blocks, fewer entries are kept."""
    telemetry_future_limit_s: float = Field(default=5.0, ge=0, le=3600)
    """Largest lead of a sample over the wall clock; samples beyond it are refused."""
    telemetry_past_limit_s: float = Field(default=86_400.0, gt=0, le=31_536_000)
    """Largest age of a sample; older samples are refused."""
    telemetry_in_flight_mib: float = Field(default=16.0, gt=0, le=1024)
    """Telemetry of one stream that is accepted and not stored yet; beyond it, the client waits."""
    max_jobs_per_user: int = Field(default=0, ge=0, le=100_000_000)
    """Unfinished jobs of one user; 0: no limit."""
    submit_rate_per_user: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """Mean rate of one user's submissions, in jobs a second; 0: no limit."""
    submit_burst_per_user: int = Field(default=100, ge=1, le=1_000_000)
    """Jobs that one user may submit at once after a pause."""
