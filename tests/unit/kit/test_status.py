from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from adlro import errors
from adlro.errors import AdlroError, FieldViolation
from adlro.kit.status import CODES, DETAILS_KEY, from_rpc_error, from_status, to_code, to_status, to_trailing_metadata

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, AdlroError) and kind is not AdlroError
]


def rpc_error(
    code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details, None)


def test_every_class_of_the_tree_has_a_code_of_its_own():
    assert set(CODES) == set(KINDS)
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize("kind", KINDS)
def test_each_class_survives_the_wire(kind):
    sent = kind(
        "job-17 is not there",
        field="job_id",
        reason="A_REASON",
        metadata={"job_id": "job-17"},
        retry_after_s=1.5,
    )
    status = to_status(sent)
    got = from_rpc_error(rpc_error(to_code(sent), status.message, to_trailing_metadata(status)))
    assert type(got) is kind
    assert got.message == sent.message
    assert got.field == "job_id"
    assert got.violations == (FieldViolation("job_id", "job-17 is not there"),)
    assert got.reason == "A_REASON"
    assert got.metadata == {"job_id": "job-17"}
    assert got.retry_after_s == 1.5


def test_details_are_those_of_google_rpc():
    status = to_status(errors.LimitExceeded("too many", field="jobs", retry_after_s=2.25))
    info, retry, bad = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert status.details[2].Unpack(bad)
    assert (info.reason, info.domain) == ("LIMIT_EXCEEDED", "adlro")
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.25
    assert bad.field_violations[0].field == "jobs"


def test_a_subclass_gets_its_parents_code():
    class QueueFull(errors.LimitExceeded):
        pass

    assert to_code(QueueFull("full")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert to_code(AdlroError("something")) is grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unsupported),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LimitExceeded),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.ABORTED, errors.Stale),
    ],
)
def test_a_status_without_details_is_told_by_its_code(code, kind):
    got = from_rpc_error(rpc_error(code, "what gRPC says"))
    assert type(got) is kind
    assert got.message == "what gRPC says"


def test_details_that_are_no_status_are_passed_over():
    got = from_rpc_error(rpc_error(grpc.StatusCode.NOT_FOUND, "gone", ((DETAILS_KEY, b"\xff\xff\xff"),)))
    assert type(got) is errors.NotFound
    assert got.message == "gone"


def test_a_status_always_fits_into_trailers():
    many = [FieldViolation(f"jobs[{i}].name", "ä" * 5000) for i in range(1000)]
    sent = errors.InvalidInput("ä" * 100_000, violations=many, metadata={f"key{i}": "v" * 9000 for i in range(100)})
    status = to_status(sent)
    # gRPC's default limit is 8 KiB for all trailers; the message goes percent-encoded, details in base64.
    assert 3 * len(status.message.encode()) + status.ByteSize() * 4 / 3 < 8192 - 256
    got = from_status(status)
    assert got.message.startswith("ä" * 100)
    assert got.message.endswith("...")
    assert 0 < len(got.violations) < 1000


def test_a_lone_surrogate_does_not_break_the_answer():
    assert to_status(errors.NotFound("job \ud800")).message == "job ?"


def test_unknown_numbers_are_unknown():
    assert type(from_status(status_pb2.Status(code=99, message="odd"))) is errors.InternalError


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
@pytest.mark.parametrize(
    "details",
    [
        "Internal error from Core",
        "Stream removed (Failed parsing HTTP/2 (Frame size 7238701 is larger than max frame size 4194304))",
        "Error in HTTP transport completing operation: Pending writes failed due to stream closure",
        "Failed parsing HTTP/2 (Incomplete header at the end of a header/continuation sequence)",
        "Received RST_STREAM with error code 2",
    ],
)
def test_a_connection_that_broke_during_a_call_is_no_bug_of_the_service(code, details):
    got = from_rpc_error(rpc_error(code, details))
    assert isinstance(got, errors.Unavailable)
    assert got.reason == "CONNECTION_BROKEN"


def test_what_a_strange_service_calls_internal_stays_so():
    assert type(from_rpc_error(rpc_error(grpc.StatusCode.INTERNAL, "a bug"))) is errors.InternalError
    unknown = rpc_error(grpc.StatusCode.UNKNOWN, "Unexpected <class 'ValueError'>: a bug")
    assert type(from_rpc_error(unknown)) is errors.InternalError
