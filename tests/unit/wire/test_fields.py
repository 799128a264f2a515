"""Records and messages of the same fields: none is forgotten, both ways; what does not fit is refused at import."""

from __future__ import annotations

import ast
import dataclasses
import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlro.kit.testing import ROOT
from adlro.placement import GpuShare, Placement
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.records.history import AttemptOutcome
from adlro.records.jobs import (
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobSpec,
    JobState,
    JobType,
    NormalizedJob,
    PendingReason,
    SimulatedWork,
)
from adlro.records.matrices import ClusterPlanes, ClusterState, MetricColumn, StatePlane
from adlro.records.precedence import Precedence
from adlro.records.predictions import PredictionBasis, RuntimePrediction
from adlro.records.telemetry import Metric
from adlro.records.watching import JobEvent, JobEventKind, JobFilter, JobPage
from adlro.v1 import (
    cluster_pb2,
    decompose_service_pb2,
    job_pb2,
    job_service_pb2,
    orchestrator_service_pb2,
    telemetry_pb2,
)
from adlro.wire import (
    SpreadColumns,
    block_from_proto,
    clock_from_proto,
    clock_to_proto,
    cluster_state_from_proto,
    filter_from_proto,
    filter_to_proto,
    prediction_to_proto,
    predictions_to_proto,
    status_from_proto,
)
from adlro.wire.fields import TRANSLATIONS, Translation
from adlro.wire.matrices import floats_to_proto
from tests.unit.wire.records import drawn, enumerations, has_arrays, messages, record_classes

pb = orchestrator_service_pb2
BY_HAND: dict[type[Any], Any] = {
    Job: job_pb2.Job,
    JobAttempt: job_pb2.JobAttempt,
    JobSpec: job_pb2.JobSpec,
    ExpectedRuntime: job_pb2.ExpectedRuntime,
    NormalizedJob: job_pb2.NormalizedJob,
    SimulatedWork: job_pb2.SimulatedWork,
    JobPage: job_service_pb2.ListJobsResponse,
    ClusterPlanes: decompose_service_pb2.ClusterPlanes,
}
"""Translated by hand; their way there and back is that of tests/unit/wire/test_jobs.py and test_planes.py."""
# Written beside the record's fields: the format, and for older clients what follows from others.
DERIVED = {"Job": {"format", "gpu_id", "attempt_count"}, "JobAttempt": {"gpu_id"}}
IN_PARTS = {Placement, GpuShare, MetricColumn, StatePlane, Precedence}
"""Translated as a part of others; the rule of precedence as its text."""
WITHOUT_RECORD = {
    # what services keep for themselves, each known to one of them
    "AttemptRecord", "DecisionStreamEntry", "JobStreamEntry", "OutcomeStreamEntry", "TelemetryStreamEntry",
    # parts of the GPU matrix in short, translated by hand with it (tests/unit/wire/test_planes.py)
    "BytePlane", "GpuDriftOf", "PlaneGpus", "VariablePlane",
    # telemetry as it comes, which ingest alone reads
    "MetricColumn", "TelemetryBlock",
    # what decompose is asked, and answers beside predictions
    "BundleVariable", "ClusterBundle", "Decomposition", "GpuSample", "JobPrediction", "Record",
    # counts by what a decision rests on, and by what keeps a job from GPUs: mappings in a record
    "BasisCount", "FallbackCount", "GpuObstacleCount", "JobTypeCount", "PendingReasonCount",
    # parts of others
    "Change", "GpuShare", "Placement", "NormalizedColumn", "StatePlane",
}  # fmt: skip
translations = pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda each: each.record.__name__)
slowly = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_every_record_is_translated_once() -> None:
    translated = [each.record for each in TRANSLATIONS]
    records = {each for each in record_classes() if dataclasses.is_dataclass(each)}
    assert set(translated) | BY_HAND.keys() | IN_PARTS == records
    assert [each.__name__ for each, count in Counter(translated).items() if count > 1] == []


def test_every_message_has_a_record_but_for_those_of_one_service_and_of_a_call() -> None:
    known = {each.message.DESCRIPTOR.full_name for each in TRANSLATIONS}
    known |= {each.DESCRIPTOR.full_name for each in BY_HAND.values()}
    left = {
        each.name
        for each in messages()
        if each.full_name not in known and not each.name.endswith(("Request", "Response"))
    }
    assert left == WITHOUT_RECORD


@pytest.mark.parametrize("record", BY_HAND, ids=lambda each: each.__name__)
def test_a_record_that_is_translated_by_hand_has_the_fields_of_its_message(record: type[Any]) -> None:
    ours = {each.name for each in dataclasses.fields(record)}
    assert ours | DERIVED.get(record.__name__, set()) == set(BY_HAND[record].DESCRIPTOR.fields_by_name)


@translations
@slowly
@given(data=st.data())
def test_a_record_comes_back_as_it_went(translation: Translation[Any, Any], data: st.DataObject) -> None:
    record = data.draw(drawn(translation.record, full=False))
    message = translation.message.FromString(translation.to_proto(record).SerializeToString())
    again = translation.from_proto(message)
    if has_arrays(translation.record):  # which do not compare as one
        assert translation.to_proto(again) == message
    else:
        assert again == record


@translations
@slowly
@given(data=st.data())
def test_every_field_of_a_message_is_written(translation: Translation[Any, Any], data: st.DataObject) -> None:
    message = translation.to_proto(data.draw(drawn(translation.record, full=True)))
    written = {each.name for each, _ in message.ListFields()}
    written |= {each.name for one in message.DESCRIPTOR.oneofs for each in one.fields if message.WhichOneof(one.name)}
    assert written | translation.left_out == set(translation.message.DESCRIPTOR.fields_by_name)


def test_two_fields_of_messages_are_left_to_those_that_use_them() -> None:
    left_out = {each.record: set(each.left_out) for each in TRANSLATIONS if each.left_out}
    assert left_out == {ClusterState: {"bundle"}, JobEvent: {"changes"}}


@pytest.mark.parametrize(
    "kind", [each for each in record_classes() if issubclass(each, enum.Enum)], ids=lambda each: each.__name__
)
def test_an_enumeration_is_the_contracts(kind: type[enum.Enum]) -> None:
    name = "Kind" if kind is JobEventKind else kind.__name__
    (described,) = (each for each in enumerations() if each.name == name)
    prefix = described.values[0].name.removesuffix("UNSPECIFIED")
    numbers = {each.name.removeprefix(prefix): each.number for each in described.values if each.number}
    ours = {
        each.name: each.value
        for each in kind
        if not (kind in (JobType, PendingReason, AttemptOutcome) and each.value == 0)
    }
    if issubclass(kind, enum.IntEnum):
        assert ours == numbers
    assert ours.keys() == numbers.keys()


def test_no_class_has_the_name_of_a_record_that_stands_elsewhere() -> None:
    records = {each.__name__ for each in record_classes()}
    homes: dict[str, list[str]] = {name: [] for name in records}
    for folder in ("adlro", "services"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT)
            if path.parts[:2] in (("adlro", "v1"), ("adlro", "vendor"), ("adlro", "services")):
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef) and node.name in records:
                    homes[node.name].append(str(path))
    assert {name: found for name, found in homes.items() if len(found) != 1} == {}


@given(
    st.lists(drawn(RuntimePrediction, full=True), min_size=1, max_size=3),
    st.sampled_from(PredictionBasis),
    st.booleans(),
)
def test_predictions_from_columns_are_those_of_records(
    found: list[RuntimePrediction], basis: PredictionBasis, several: bool
) -> None:
    records = [
        dataclasses.replace(each, interval_coverage=0.8, basis=basis, novelty=0.5, evidence=(), gpu_id="")
        for each in found
    ]
    spread = None
    if several:
        columns = [(each.spread_speed, each.spread_low_s, each.spread_high_s) for each in records]
        spread = SpreadColumns(*zip(*columns, strict=True))
    else:
        without: Any = {"spread_speed": None, "spread_low_s": None, "spread_high_s": None}
        records = [dataclasses.replace(each, **without) for each in records]
    message = predictions_to_proto(
        [each.gpu_model for each in records],
        [each.median_s for each in records],
        [each.low_s for each in records],
        [each.high_s for each in records],
        interval_coverage=0.8,
        basis=basis,
        novelty=0.5,
        spread=spread,
    )
    assert list(message.predictions) == [prediction_to_proto(each) for each in records]


def test_numbers_of_a_newer_release_are_not_said_or_refused() -> None:
    newer: Any = 99
    counts = [pb.BasisCount(basis=newer, count=3), pb.BasisCount(basis=pb.DECISION_BASIS_LATE, count=2)]
    status = status_from_proto(pb.GetStatusResponse(deciding_basis=newer, decisions_by_basis=counts))
    assert (status.deciding_basis, status.decisions_by_basis) == (None, {DecisionBasis.LATE: 2})
    with pytest.raises(ValueError, match="mode: 99 is no ClockMode that this release knows"):
        clock_from_proto(cluster_pb2.Clock(mode=newer))
    with pytest.raises(ValueError, match="states: 99 is no JobState that this release knows"):
        filter_to_proto(JobFilter(states=[newer]))
    with pytest.raises(ValueError, match="mode: 99 is no ClockMode that this release knows"):
        clock_to_proto(Clock(newer, 1.0, False, 0.0))


def test_metrics_and_units_of_a_newer_release_take_nothing_from_the_others() -> None:
    newer: Any = 99
    values: dict[str, Any] = {
        name: floats_to_proto(np.ones(1, dtype=np.float32)) for name in ("raw_f32", "normalized_f32")
    }
    known, unknown = (
        {"metric": 1, "unit": 1, **values},
        [
            {"metric": newer, "unit": 1, **values},
            {"metric": 2, "unit": newer, **values},
            {"metric": 3, "unit": 0, **values},
        ],
    )
    columns = [telemetry_pb2.NormalizedColumn(**each) for each in (known, *unknown)]
    sent = telemetry_pb2.NormalizedBlock(gpu_ids=["a"], sample_times_unix_s=[5.0], columns=columns)
    assert list(block_from_proto(sent).columns) == [Metric.UTILIZATION]
    planes = [decompose_service_pb2.StatePlane(**each) for each in (known, *unknown)]
    state = cluster_state_from_proto(decompose_service_pb2.ClusterState(planes=planes))
    assert list(state.planes) == [Metric.UTILIZATION]


def test_what_a_message_lacks_has_the_records_default() -> None:
    state = decompose_service_pb2.GpuState(gpu_id="a")
    (translation,) = (each for each in TRANSLATIONS if each.message is decompose_service_pb2.GpuState)
    assert translation.from_proto(state).drift.speed_ratio == 1.0


def test_the_collections_of_a_filter_are_sets_when_they_arrive() -> None:
    (translation,) = (each for each in TRANSLATIONS if each.record is JobFilter)
    sent = JobFilter(
        states=[JobState.PENDING, JobState.PENDING], job_ids=("job-1",), pending_reasons=[PendingReason.POLICY]
    )
    assert filter_from_proto(translation.to_proto(sent)) == JobFilter(
        frozenset({JobState.PENDING}),
        frozenset(),
        job_ids=frozenset({"job-1"}),
        pending_reasons=frozenset({PendingReason.POLICY}),
    )


@dataclass
class Lacks:
    policy: str


@dataclass
class HasMore:
    job_id: str
    gpu_id: str
    score: float
    more: int


@dataclass
class OfAnotherType:
    job_id: str
    gpu_id: int
    score: float


@dataclass
class MayBeAbsent:
    job_id: str
    gpu_id: str
    score: float | None


class OtherNames(enum.IntEnum):
    REAL = 1
    SCALED = 2
    IMAGINARY = 3


class OtherNumbers(enum.IntEnum):
    REAL = 1
    SCALED = 3
    VIRTUAL = 2


def clock_of(kind: type[int]) -> type[Any]:
    return dataclasses.make_dataclass(
        "OtherClock", [("mode", kind), ("scale", float), ("paused", bool), ("time_s", float)]
    )


@dataclass
class CountsByWord:
    basis: Mapping[str, int]


@pytest.mark.parametrize(
    ("record", "message", "problem"),
    [
        (Lacks, pb.ShadowDecision, "Lacks lacks agrees, gpu_id, job_id, placement of adlro.v1.ShadowDecision"),
        (HasMore, pb.RunnerUp, "HasMore.more: adlro.v1.RunnerUp has no such field"),
        (OfAnotherType, pb.RunnerUp, "OfAnotherType.gpu_id: .*int.* does not belong to adlro.v1.RunnerUp.gpu_id"),
        (MayBeAbsent, pb.RunnerUp, "MayBeAbsent.score: adlro.v1.RunnerUp.score can't be absent; declare it optional"),
        (clock_of(OtherNames), cluster_pb2.Clock, "OtherNames and adlro.v1.ClockMode differ in IMAGINARY, VIRTUAL"),
        (clock_of(OtherNumbers), cluster_pb2.Clock, "OtherNumbers and adlro.v1.ClockMode have different numbers"),
        (clock_of(int), cluster_pb2.Clock, "OtherClock.mode: .* does not belong to adlro.v1.Clock.mode"),
        (CountsByWord, pb.BasisCount, "CountsByWord.basis: "),
    ],
)
def test_what_does_not_fit_is_refused(record: type[Any], message: type[Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        Translation(record, message)


def test_parts_and_constants_of_fields_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TypeError, match=r"adlro\.v1\.Clock has no format"):
        Translation(clock_of(ClockMode), cluster_pb2.Clock, constants={"format": 1})
