"""ClusterMetrics of a cluster, read from the cluster side when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.telemetry import Outbox
from adlro.records.events import EventKind


class ClusterMetrics:
    """Collects from a cluster side.

    Args:
        service: the name that the metrics carry.
        side: the cluster.
        outbox: telemetry on its way out.
        registry: where the metrics are registered.
    """

    def __init__(self, service: str, side: ClusterSide, outbox: Outbox, registry: CollectorRegistry) -> None:
        self._prefix = f"adlro_{service}"
        self._side = side
        self._outbox = outbox
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        side, prefix = self._side, self._prefix
        events = CounterMetricFamily(f"{prefix}_events", "events of the cluster", labels=["kind"])
        for kind in EventKind:
            events.add_metric([kind.name], side.event_counts[kind])
        yield events
        yield GaugeMetricFamily(f"{prefix}_running_jobs", "jobs that run", value=side.attempts.running_count)
        yield GaugeMetricFamily(
            f"{prefix}_unacknowledged_events",
            "events that the orchestrator has not acknowledged",
            value=side.log.revision - side.log.acknowledged,
        )
        yield CounterMetricFamily(
            f"{prefix}_telemetry_blocks_dropped",
            "telemetry blocks dropped because ingest did not take them",
            value=self._outbox.dropped_count,
        )
