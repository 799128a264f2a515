"""Predicted runtimes and recollections, and their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from adlro.records.predictions import Evidence, PredictionBasis, Recollection, RuntimePrediction
from adlro.v1 import decompose_service_pb2
from adlro.wire.fields import Part, Translation
from adlro.wire.jobs import spec_from_proto, spec_to_proto

evidence_to_proto = Translation(Evidence, decompose_service_pb2.Evidence).to_proto

_PREDICTION = Translation(RuntimePrediction, decompose_service_pb2.RuntimePrediction)
prediction_to_proto, prediction_from_proto = _PREDICTION.to_proto, _PREDICTION.from_proto

_RECOLLECTION = Translation(
    Recollection,
    decompose_service_pb2.Recollection,
    parts={"job": Part({"job": spec_to_proto}, lambda message: spec_from_proto(message.job))},
)
recollection_to_proto, recollection_from_proto = _RECOLLECTION.to_proto, _RECOLLECTION.from_proto


class SpreadColumns(NamedTuple):
    """A job's predictions with its GPUs on more nodes than needed, on M models; see `RuntimePrediction`."""

    speed: Sequence[float]
    low_s: Sequence[float]
    high_s: Sequence[float]


def predictions_to_proto(
    gpu_models: Sequence[str],
    median_s: Sequence[float],
    low_s: Sequence[float],
    high_s: Sequence[float],
    interval_coverage: float,
    basis: PredictionBasis,
    novelty: float,
    spread: SpreadColumns | None = None,
    restart: tuple[float, float, float] | None = None,
) -> decompose_service_pb2.JobPrediction:
    """The message of a job's predictions on several GPU models, from their columns.

    The same as `prediction_to_proto` of each, but without single records: an answer has up to 100,000.

    Args:
        gpu_models: M.
        median_s, low_s, high_s: M each, packed.
        interval_coverage: of all.
        basis: of all.
        novelty: of all.
        spread: None: a job of one GPU.
        restart: the median, low and high seconds of its restarts; None: it is not preemptible.
    """
    message = decompose_service_pb2.JobPrediction(
        predictions=[
            decompose_service_pb2.RuntimePrediction(
                gpu_model=model,
                median_s=median,
                low_s=low,
                high_s=high,
                interval_coverage=interval_coverage,
                basis=int(basis),  # type: ignore[arg-type]  # enum numbers are those of PredictionBasis
                novelty=novelty,
            )
            for model, median, low, high in zip(gpu_models, median_s, low_s, high_s, strict=True)
        ]
    )
    if spread is not None:
        for each, speed, low, high in zip(message.predictions, *spread, strict=True):
            each.spread_speed, each.spread_low_s, each.spread_high_s = speed, low, high
    if restart is not None:
        message.restart_s, message.restart_low_s, message.restart_high_s = restart
    return message
