"""ingest's settings: environment keys ADLRO_INGEST_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from adlro.kit.settings import ServiceSettings


class IngestSettings(ServiceSettings):
    """The settings of ingest."""

    service_name: ClassVar[str] = "ingest"

    # Jobs are checked against, and normalised by, this cluster. Empty: the one that was described last.
    cluster: str = Field(default="", max_length=64)
    # The service of the cluster, which has the output of jobs: `host:port`. Empty: ReadJobLogs is refused.
    cluster_address: str = ""
    # A description read from Redis serves so long; another replica's UpsertCluster is seen after it at the latest.
    cluster_cache_s: float = Field(default=1.0, ge=0, le=60)
    # Changes that are held in memory for watchers; one that is further behind reads them from Redis.
    watch_changes_kept: int = Field(default=8192, ge=1, le=1_000_000)
    # MiB of their messages, likewise.
    watch_kept_mib: int = Field(default=16, ge=1, le=65_536)
    # Entries of a cluster's telemetry stream, roughly; the oldest go. 512 samples of 5 metrics are 20 kB.
    telemetry_entries_kept: int = Field(default=10_000, ge=1, le=10_000_000)
    # MiB of a cluster's telemetry stream, roughly: with large blocks, fewer entries are kept.
    telemetry_kept_mib: int = Field(default=256, ge=1, le=1_000_000)
    # Samples of later or earlier than this, by the wall clock here, are refused.
    telemetry_future_limit_s: float = Field(default=5.0, ge=0, le=3600)
    telemetry_past_limit_s: float = Field(default=86_400.0, gt=0, le=31_536_000)
    # Of one PushTelemetry stream, accepted and not stored yet; its client waits beyond this.
    telemetry_in_flight_mib: float = Field(default=16.0, gt=0, le=1024)
    # Of one user: jobs that have not ended; jobs a second in the long run, and at once after a pause. 0: no limit.
    max_jobs_per_user: int = Field(default=0, ge=0, le=100_000_000)
    submit_rate_per_user: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    submit_burst_per_user: int = Field(default=100, ge=1, le=1_000_000)
