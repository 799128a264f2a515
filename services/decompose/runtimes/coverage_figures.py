"""Prometheus metrics of the predictor's intervals: the share of runtimes in them, and the calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from adlro.kit.metrics import WhenScraped
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.runtimes.interval_coverage import Calibration, PredictionKind


class CoverageFigures(NamedTuple):
    """The exported figures of the predictor's intervals.

    counts: by basis, the finished jobs compared with their prediction, and those of them in their interval.
    calibrations: by kind of predictions, the present calibration.
    """

    counts: Mapping[PredictionBasis, tuple[int, int]]
    calibrations: Mapping[PredictionKind, Calibration]


def show_coverage(take: Callable[[], CoverageFigures], registry: CollectorRegistry) -> None:
    """Exports the share of runtimes in their intervals, and the present calibration, at each scrape."""
    WhenScraped(take, _coverage_metrics, CoverageFigures({}, {}), registry)


def _coverage_metrics(figures: CoverageFigures) -> Iterator[Metric]:
    compared = CounterMetricFamily(
        "adlro_decompose_intervals_compared",
        "finished jobs compared with the interval that was predicted without them, by what that rests on",
        labels=["basis"],
    )
    hit = CounterMetricFamily(
        "adlro_decompose_intervals_hit", "those whose runtime lay in it: 0.8 of them should", labels=["basis"]
    )
    for basis, (total, hits) in figures.counts.items():
        compared.add_metric([basis.name.lower()], total)
        hit.add_metric([basis.name.lower()], hits)
    yield compared
    yield hit
    widening = GaugeMetricFamily(
        "adlro_decompose_interval_widening_ratio",
        "factor by which either end of an interval lies further out, since too few runtimes lay in them",
        labels=["basis", "new"],
    )
    share = GaugeMetricFamily(
        "adlro_decompose_regression_share_ratio",
        "share of what was learned in predictions; what is missing to 1 is the prior's, which was nearer",
        labels=["basis", "new"],
    )
    for kind, calibration in figures.calibrations.items():
        labels = [kind.basis.name.lower(), str(kind.is_new).lower()]
        widening.add_metric(labels, calibration.widening_ratio)
        share.add_metric(labels, calibration.share)
    yield widening
    yield share
