"""No request is without a bound, and what breaks one is refused before it costs more than its bytes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor

import adlro.v1
from adlro.errors import InvalidInput
from adlro.kit import validation
from adlro.kit.bounds import Items, largest_bytes, largest_field, unbounded_fields
from adlro.kit.validation import check
from adlro.records.payloads import MOST_TEXT_BYTES, Payload, Process
from adlro.v1 import (
    cluster_pb2,
    decompose_service_pb2,
    job_pb2,
    job_service_pb2,
    payload_pb2,
    telemetry_pb2,
    telemetry_service_pb2,
)
from adlro.wire import payload_to_proto

STOCK_RECEIVE_BYTES = 4 << 20


def requests() -> Iterator[Descriptor]:
    """The request of every method of every contract."""
    for path in sorted(Path(adlro.v1.__file__).parent.glob("*_service_pb2.py")):
        module = importlib.import_module(f"adlro.v1.{path.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield method.input_type


@pytest.mark.parametrize("request_type", {each.full_name: each for each in requests()}.values(), ids=lambda d: d.name)
def test_every_list_map_and_text_of_a_request_has_a_bound(request_type):
    assert unbounded_fields(request_type) == []


def full_job() -> job_pb2.JobSpec:
    """As large as the rules let a job be."""
    return job_pb2.JobSpec(
        name="€" * 253,
        user="u" * 64,
        job_type=job_pb2.JOB_TYPE_SIMULATION,
        application="€" * 128,
        priority=0.5,
        cpu_cores=4096,
        memory_mib=16_777_216,
        gpu_memory_mib=1_048_576,
        gpu_count=1024,
        expected_runtime=job_pb2.ExpectedRuntime(gpu_model="€" * 64, runtime_s=1.0),
        time_limit_s=1.0,
        begin_time_s=1.0,
        labels={f"{index:02}" + "€" * 61: "€" * 255 for index in range(64)},
        simulated_work=job_pb2.SimulatedWork(work_s=1.0, fails_at_ratio=0.5),
        payload=full_payload(),
        max_node_count=1024,
        gpu_models=[f"{index:02}" + "€" * 62 for index in range(16)],
        node_ids=[f"{index:04}" + "€" * 124 for index in range(1024)],
        excluded_node_ids=[f"n{index:04}" + "€" * 123 for index in range(1024)],
    )


def full_payload() -> payload_pb2.Payload:
    """As large as a payload may be: many short arguments."""
    argv = ["x" * 31] * (MOST_TEXT_BYTES // 32)
    payload = Payload(process=Process(tuple(argv)))
    assert not payload.violations()
    return payload_to_proto(payload)


def test_the_largest_request_that_the_rules_allow_is_not_too_large():
    full = job_service_pb2.SubmitJobRequest(job=full_job(), request_id="r" * 128)
    check(full)
    assert full.ByteSize() <= largest_bytes(full.DESCRIPTOR) < 2 * full.ByteSize()
    ids = job_service_pb2.JobFilter(job_ids=[f"job-{index:018}" for index in range(10_000)])
    listing = job_service_pb2.ListJobsRequest(filter=ids, page_size=2**31 - 1, page_token="t" * 512)
    check(listing)
    assert listing.ByteSize() <= largest_bytes(listing.DESCRIPTOR) < STOCK_RECEIVE_BYTES


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            job_service_pb2.ListJobsRequest(filter=job_service_pb2.JobFilter(states=[1] * 17)),  # type: ignore[list-item]
            "filter.states: must contain no more than 16 item(s) (got 17)",
        ),
        (
            job_service_pb2.SubmitJobRequest(job=job_pb2.JobSpec(labels={str(index): "" for index in range(65)})),
            "job.labels: must contain no more than 64 item(s) (got 65)",
        ),
        (
            decompose_service_pb2.DecomposeRequest(
                records=[
                    decompose_service_pb2.Record(),
                    decompose_service_pb2.Record(job=job_pb2.JobSpec(labels={str(i): "" for i in range(65)})),
                ]
            ),
            "records[1].job.labels: must contain no more than 64 item(s) (got 65)",
        ),
        (
            telemetry_service_pb2.PushTelemetryRequest(
                block=telemetry_pb2.TelemetryBlock(cluster_times_s=[0.0] * 65_537)
            ),
            "block.cluster_times_s: must contain no more than 65536 item(s) (got 65537)",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_too_many_items_are_refused_before_any_of_them_is_looked_at(message, told, monkeypatch):
    monkeypatch.setattr(validation, "_collect", lambda *_args, **_more: pytest.fail("each item was looked at"))
    with pytest.raises(InvalidInput) as refused:
        check(message)
    assert refused.value.message == told
    assert refused.value.reason == "FIELD_RULE_VIOLATED"


def test_of_a_long_request_the_first_broken_rule_is_told_and_no_list_is_made_of_all():
    bad = cluster_pb2.Node(gpus=[cluster_pb2.Gpu()] * 64)
    message = telemetry_service_pb2.UpsertClusterRequest(cluster=cluster_pb2.Cluster(name="x", nodes=[bad] * 100))
    with pytest.raises(InvalidInput) as refused:
        check(message)
    assert [each.field for each in refused.value.violations] == ["cluster.nodes[0].node_id"]
    short = telemetry_service_pb2.UpsertClusterRequest(
        cluster=cluster_pb2.Cluster(name="X", nodes=[cluster_pb2.Node()])
    )
    with pytest.raises(InvalidInput) as refused:
        check(short)
    assert len(refused.value.violations) == 5


def test_items_are_counted_through_all_that_is_nested():
    node = cluster_pb2.Node(gpus=[cluster_pb2.Gpu()] * 3)
    message = telemetry_service_pb2.UpsertClusterRequest(cluster=cluster_pb2.Cluster(nodes=[node] * 2))
    assert Items.of(message.DESCRIPTOR).count(message) == 2 + 2 * 3
    empty = message_factory.GetMessageClass(job_service_pb2.GetJobRequest.DESCRIPTOR)()
    assert Items.of(empty.DESCRIPTOR).count(empty) == 0


def test_what_is_too_large_is_named_without_reading_it_as_a_message():
    message = job_service_pb2.SubmitJobRequest(job=full_job(), request_id="r")
    del message.job.node_ids[:], message.job.excluded_node_ids[:]  # of so many fields only the first are looked at
    message.job.name = "n" * 3_000_000
    found = largest_field(message.SerializeToString(), message.DESCRIPTOR)
    assert found == ("job.name", 3_000_000)
    many = job_pb2.JobSpec(labels={f"{index:x}": "" for index in range(100_000)})
    path, size = largest_field(job_service_pb2.SubmitJobRequest(job=many).SerializeToString(), message.DESCRIPTOR) or (
        "",
        0,
    )
    assert path == "job.labels"
    assert size > 0.9 * many.ByteSize()
    assert largest_field(b"\xff" * 100, message.DESCRIPTOR) is None
    assert largest_field(b"\x0a\x7f", message.DESCRIPTOR) is None
