"""Predictions of single GPUs, and checks of requests. No state, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from adlro.errors import FieldViolation, InvalidInput
from adlro.records.jobs import JobSpec
from adlro.services.decompose.pairs.shared_runs import SharingKind
from adlro.services.decompose.runtimes.predictor import SpreadPredictions
from adlro.v1 import decompose_service_pb2 as pb
from adlro.v1 import sharing_pb2
from adlro.wire import SpreadColumns, application_size_from_proto


def add_gpus(prediction: pb.JobPrediction, gpus: Sequence[tuple[str, int, float]]) -> None:
    """Adds predictions for single GPUs: those of their models at the GPUs' own speeds."""
    of_models = list(prediction.predictions)
    for gpu_id, number, speed_ratio in gpus:
        own = prediction.predictions.add()
        own.CopyFrom(of_models[number])
        own.gpu_id = gpu_id
        own.median_s, own.low_s, own.high_s = (each / speed_ratio for each in (own.median_s, own.low_s, own.high_s))
        if own.HasField("spread_speed"):
            own.spread_low_s, own.spread_high_s = own.spread_low_s / speed_ratio, own.spread_high_s / speed_ratio


def spread_columns(jobs: Sequence[JobSpec], spread: SpreadPredictions | None) -> list[SpreadColumns | None]:
    """For each of J jobs its predictions with the GPUs on more nodes than needed; None: it has one GPU."""
    if spread is None:
        return [None] * len(jobs)
    columns = zip(*(each.tolist() for each in spread), strict=True)
    return [SpreadColumns(*each) if job.gpu_count > 1 else None for job, each in zip(jobs, columns, strict=True)]


def sharing_kind(message: sharing_pb2.ApplicationSize) -> SharingKind:
    """The kind of jobs that a message names."""
    return SharingKind.of_size(application_size_from_proto(message))


def refuse_unknown_fields(request: pb.DecomposeRequest) -> None:
    """Refuses fields that this release doesn't have: a silently ignored variable would give a wrong answer.

    Other calls ignore them, as protobuf does, so that a newer orchestrator can be rolled out first.

    Raises:
        InvalidInput: names each such field by its path and number.
    """
    violations: list[FieldViolation] = []
    _find_unknown_fields(request, "", violations)
    if violations:
        raise InvalidInput(violations[0].description, violations=violations[:20], reason="UNKNOWN_FIELD")


def _find_unknown_fields(message: Message, path: str, violations: list[FieldViolation]) -> None:
    unknown_fields = UnknownFieldSet(message)
    for unknown in (unknown_fields[i] for i in range(len(unknown_fields))):
        where = path or message.DESCRIPTOR.name
        violations.append(
            FieldViolation(
                where,
                f"{where}: field number {unknown.field_number} is unknown to this release; "
                "omit it, or use a newer decompose",
            )
        )
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        name = f"{path}.{field.name}" if path else field.name
        if field.is_repeated:
            for number, each in enumerate(value):
                _find_unknown_fields(each, f"{name}[{number}]", violations)
        else:
            _find_unknown_fields(value, name, violations)
