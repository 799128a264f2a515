"""Decompose's own metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class DecomposeMetrics:
    """Counters and gauges of one process.

    Args:
        registry: the registry of the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = Counter(
            "adlro_decompose_outcomes",
            "outcomes folded: learned from, failed (nothing is learned), left out (known before, or no runtime)",
            ["result"],
            registry=registry,
        )
        self.remembered = Gauge("adlro_decompose_remembered_jobs", "finished jobs in memory", registry=registry)
        self.blocks = Counter("adlro_decompose_telemetry_blocks", "telemetry blocks folded", registry=registry)
        self.bad_entries = Counter("adlro_decompose_bad_entries", "stream entries left out", registry=registry)
        self.predict_s = Histogram(
            "adlro_decompose_predict_seconds",
            "time of one call of the predictor",
            buckets=(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.5),
            registry=registry,
        )
        self.refit_s = Histogram(
            "adlro_decompose_refit_seconds",
            "time of making the regressions anew, beside the calls",
            buckets=(1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
            registry=registry,
        )
        self.failed_refits = Counter(
            "adlro_decompose_failed_refits",
            "times that no regression could be made of what was learned; the last one stays",
            registry=registry,
        )
        self.unreadable_memory_files = Counter(
            "adlro_decompose_unreadable_memory_files",
            "memory files put aside: they could not be read",
            registry=registry,
        )
        self.flagged_gpus = Gauge(
            "adlro_decompose_flagged_gpus",
            "GPUs slower than their kind, at a false-alarm rate of 1 % a look",
            registry=registry,
        )
        self.mix_drift = Gauge(
            "adlro_decompose_mix_drift_score",
            "how unlike the newest jobs' mix is, 0..1; flagged from 0.99",
            registry=registry,
        )
        self._predictions = Counter(
            "adlro_decompose_predictions",
            "jobs whose runtimes were predicted, by what that rests on",
            ["basis"],
            registry=registry,
        )

    def count_predictions(self, count_of: Mapping[str, int]) -> None:
        """Counts predictions by their basis."""
        for basis, count in count_of.items():
            self._predictions.labels(basis).inc(count)
