"""The orchestrator's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """Counters and gauges of one process.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.acting = Gauge("adlro_orchestrator_acting", "1 while this instance places jobs", registry=registry)
        self.queue_length = Gauge("adlro_orchestrator_queue_length_jobs", "jobs that wait for a GPU", registry=registry)
        self.running = Gauge("adlro_orchestrator_running_jobs", "jobs launched or running", registry=registry)
        self.sessions = Counter("adlro_orchestrator_sessions", "acting sessions begun", registry=registry)
        self.prediction_fallbacks = Counter(
            "adlro_orchestrator_prediction_fallbacks", "predictions made without decompose", registry=registry
        )
        self.decision_s = Histogram(
            "adlro_orchestrator_decision_seconds",
            "time of one policy call, observation included",
            buckets=(25e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.25),
            registry=registry,
        )

    def observe_decision(self, took_s: float) -> None:
        """Notes one policy call."""
        self.decision_s.observe(took_s)
