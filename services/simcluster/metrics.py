"""simcluster's own metrics, read from the runtime when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from adlro.records.events import EventKind
from adlro.services.simcluster.runtime import ClusterRuntime
from adlro.services.simcluster.telemetry import Outbox


class Metrics:
    """Collects from a runtime.

    Args:
        runtime: the cluster.
        outbox: telemetry on its way out.
        registry: where the metrics are registered.
    """

    def __init__(self, runtime: ClusterRuntime, outbox: Outbox, registry: CollectorRegistry) -> None:
        self._runtime = runtime
        self._outbox = outbox
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        runtime = self._runtime
        events = CounterMetricFamily("adlro_simcluster_events", "events of the cluster", labels=["kind"])
        for kind in EventKind:
            events.add_metric([kind.name], runtime.event_counts[kind])
        yield events
        yield GaugeMetricFamily("adlro_simcluster_running_jobs", "jobs that run", value=runtime.running_count)
        yield GaugeMetricFamily(
            "adlro_simcluster_unacknowledged_events",
            "events that the orchestrator has not acknowledged",
            value=runtime.log.revision - runtime.log.acknowledged,
        )
        yield CounterMetricFamily(
            "adlro_simcluster_telemetry_blocks_dropped",
            "telemetry blocks dropped because ingest did not take them",
            value=self._outbox.dropped_count,
        )
