"""What a client gets for what a handler does, over real gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import redis.exceptions
from prometheus_client import CollectorRegistry, generate_latest

from adlro import errors
from adlro.kit.channel import open_channel
from adlro.kit.interceptor import CallInterceptor
from adlro.kit.metrics import CallMetrics
from adlro.kit.open_calls import OpenCalls
from adlro.kit.redis_errors import StoreParser
from adlro.kit.status import CODES, from_rpc_error
from adlro.kit.testing import serve
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.conditions import until
from tests.unit.kit.fake_service import FakeService, FakeSettings

SPEC = job_pb2.JobSpec(name="train", user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION)


def raising(error: BaseException):
    async def get():
        raise error

    return get


async def failure(call) -> tuple[grpc.StatusCode, errors.AdlroError]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code(), from_rpc_error(failed.value)


def get(served, job_id: str, timeout: float | None = 60.0):
    return served.stub.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=timeout)


async def test_a_good_call_passes(served):
    answer = await served.stub.SubmitJob(job_service_pb2.SubmitJobRequest(job=SPEC), timeout=60)
    assert answer.job.job_id == "job-1"


async def test_a_unary_call_without_deadline_is_refused_with_the_way_to_set_one(served):
    code, error = await failure(get(served, "job-1", timeout=None))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.message.startswith("GetJob needs a deadline")
    for hint in ("timeout=10", "grpcurl -max-time", "buf curl --timeout"):
        assert hint in error.message
    assert error.reason == "DEADLINE_MISSING"
    assert not served.service.in_flight.is_set()


async def test_the_deadline_rule_can_be_turned_off():
    settings = FakeSettings(require_deadline=False)
    async with serve(FakeService(settings), settings) as address, open_channel(address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        answer = await stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-1"))
    assert answer.job.job_id == "job-1"


async def test_streams_need_no_deadline(served):
    watch = served.stub.WatchJobs(job_service_pb2.WatchJobsRequest())
    assert (await watch.read()).revision == 1
    watch.cancel()
    answer = await served.stub.SubmitJobs(iter([job_service_pb2.SubmitJobsRequest(job=SPEC)]))
    assert answer.accepted_count == 1


async def test_a_broken_field_rule_never_reaches_the_handler(served):
    request = job_service_pb2.GetJobRequest(job_id="")
    code, error = await failure(served.stub.GetJob(request, timeout=60))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.violations == (errors.FieldViolation("job_id", "must not be empty (got '')"),)
    assert not served.service.in_flight.is_set()


async def test_a_name_of_3_mb_is_refused_by_name_not_by_the_transport(served):
    request = job_service_pb2.SubmitJobRequest(job=SPEC)
    request.job.name = "n" * 3_000_000
    code, error = await failure(served.stub.SubmitJob(request, timeout=60))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.field == "job.name"
    assert len(error.message) < 200


@pytest.mark.parametrize("kind", list(CODES))
async def test_each_error_of_the_tree_reaches_the_client_as_itself(served, kind):
    sent = kind("what is wrong", field="job_id", reason="A_REASON", metadata={"error_id": "e-1"}, retry_after_s=0.5)
    served.service.get["job-1"] = raising(sent)
    code, got = await failure(get(served, "job-1"))
    assert code is CODES[kind]
    assert type(got) is kind
    assert (got.message, got.field, got.reason) == ("what is wrong", "job_id", "A_REASON")
    assert (got.metadata, got.retry_after_s) == ({"error_id": "e-1"}, 0.5)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ConnectionError("Error 111 connecting to :password@10.0.0.1"),
        redis.exceptions.TimeoutError("Timeout reading from 10.0.0.1"),
        StoreParser.parse_error("LOADING Redis is loading the dataset in memory"),
        redis.exceptions.InvalidResponse("Protocol error"),
    ],
)
async def test_redis_away_is_unavailable_with_a_time_to_try_again(served, error):
    served.service.get["job-1"] = raising(error)
    code, got = await failure(get(served, "job-1"))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert got.retry_after_s == 1.0
    assert "Redis" in got.message
    assert "10.0.0.1" not in got.message


async def test_a_service_behind_that_is_away_is_unavailable(served):
    async def ask_nobody():
        async with open_channel("127.0.0.1:1") as channel:
            await job_service_pb2_grpc.JobServiceStub(channel).GetJob(
                job_service_pb2.GetJobRequest(job_id="j"), timeout=5
            )

    served.service.get["job-1"] = ask_nobody
    code, got = await failure(get(served, "job-1"))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert got.message.startswith("a service behind this one does not answer")


async def test_a_bug_gives_an_error_id_and_no_traceback(served, log_lines):
    code, got = await failure(get(served, "bug"))
    assert code is grpc.StatusCode.INTERNAL
    assert type(got) is errors.InternalError
    error_id = got.metadata["error_id"]
    assert got.message == f"internal error {error_id}; the service's log has the details"
    assert "secret" not in str(got.metadata) + got.message
    line = next(line for line in log_lines() if line["event"] == "internal error")
    assert line["error_id"] == error_id
    assert line["method"] == "/adlro.v1.JobService/GetJob"
    assert line["job_id"] == "bug"
    assert "ZeroDivisionError: the secret of the bug" in line["exception"]


async def test_a_bug_in_the_answer_is_no_different(served):
    async def wrong():
        served.service.context.health.no_such_attribute  # noqa: B018

    served.service.get["job-1"] = wrong
    code, got = await failure(get(served, "job-1"))
    assert code is grpc.StatusCode.INTERNAL
    assert "no_such_attribute" not in got.message


async def test_a_method_that_is_not_offered(served):
    code, got = await failure(served.stub.ListJobs(job_service_pb2.ListJobsRequest(), timeout=60))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert type(got) is errors.Unsupported


async def test_an_unknown_method(served):
    async with open_channel(served.address) as channel:
        call = channel.unary_unary("/adlro.v1.JobService/NoSuchMethod", None, None)
        code, got = await failure(call(b"", timeout=60))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert type(got) is errors.Unsupported


async def test_an_abort_of_the_handlers_own_passes(served):
    async def abort():
        raise grpc.aio.AbortError

    served.service.get["job-1"] = abort
    code, _ = await failure(get(served, "job-1"))
    assert code is not grpc.StatusCode.INTERNAL


async def test_a_stream_of_answers_ends_with_the_handlers_error(served):
    async def watch():
        yield job_service_pb2.WatchJobsResponse(revision=1)
        raise errors.OutOfRange("revision 3 is no longer kept", field="after_revision")

    served.service.watch = watch
    call = served.stub.WatchJobs(job_service_pb2.WatchJobsRequest())
    assert (await call.read()).revision == 1
    code, got = await failure(call.read())
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert got.field == "after_revision"


async def test_a_bug_in_a_stream_of_answers(served):
    async def watch():
        yield job_service_pb2.WatchJobsResponse(revision=1)
        raise KeyError("a secret")

    served.service.watch = watch
    call = served.stub.WatchJobs(job_service_pb2.WatchJobsRequest())
    assert (await call.read()).revision == 1
    code, got = await failure(call.read())
    assert code is grpc.StatusCode.INTERNAL
    assert "error_id" in got.metadata


async def test_a_request_of_a_stream_of_answers_is_checked(served):
    call = served.stub.WatchJobs(job_service_pb2.WatchJobsRequest(after_revision=-1))
    code, got = await failure(call.read())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert got.field == "after_revision"


async def test_answers_may_be_serialised_already(served):
    message = job_service_pb2.WatchJobsResponse(revision=7, job=job_pb2.Job(job_id="job-7"))

    async def watch():
        yield message.SerializeToString()
        yield message

    served.service.watch = watch
    got = [answer async for answer in served.stub.WatchJobs(job_service_pb2.WatchJobsRequest())]
    assert got == [message, message]


async def test_a_bad_message_of_a_client_stream_is_named_by_its_index(served):
    messages = [job_service_pb2.SubmitJobsRequest(job=SPEC), job_service_pb2.SubmitJobsRequest()]
    code, got = await failure(served.stub.SubmitJobs(iter(messages)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert got.metadata == {"index": "1"}
    assert got.violations == (errors.FieldViolation("job", "must be set"),)


async def test_a_handler_may_report_bad_messages_and_go_on(served):
    served.service.skip_bad = True
    good, bad = job_service_pb2.SubmitJobsRequest(job=SPEC), job_service_pb2.SubmitJobsRequest()
    answer = await served.stub.SubmitJobs(iter([good, bad, good]))
    assert list(answer.job_ids) == ["job", "", "job"]
    assert [each.index for each in answer.rejected] == [1]


UNREADABLE = (b"\xff\xff\xff", b"\x0a\x7f", b"\x0a\x01\xff", b"not protobuf at all")  # the third: no UTF-8


@pytest.mark.parametrize("sent", UNREADABLE)
@pytest.mark.parametrize("method", ["GetJob", "WatchJobs", "SubmitJobs"])
async def test_bytes_that_are_no_message_are_the_callers_fault(served, method, sent):
    path = f"/adlro.v1.JobService/{method}"
    async with open_channel(served.address) as channel:
        call: Any
        if method == "GetJob":
            call = channel.unary_unary(path, None, None)(sent, timeout=60)
        elif method == "WatchJobs":
            call = channel.unary_stream(path, None, None)(sent, timeout=60).read()
        else:
            call = channel.stream_unary(path, None, None)(iter([sent]), timeout=60)
        code, got = await failure(call)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert got.reason == "REQUEST_UNREADABLE"
    assert f"({len(sent)} bytes) cannot be read as the request of adlro.v1.JobService/{method}" in got.message
    assert not served.service.in_flight.is_set()
    registry = served.service.context.registry
    labels = {"method": path, "code": "INVALID_ARGUMENT"}
    # It is counted once it is over, which the client may hear of first.
    await until(lambda: registry.get_sample_value("adlro_grpc_requests_total", labels) == 1)


async def test_bytes_that_are_no_message_in_a_stream_are_named_by_their_index(served):
    served.service.skip_bad = True
    good = job_service_pb2.SubmitJobsRequest(job=SPEC).SerializeToString()
    async with open_channel(served.address) as channel:
        read = job_service_pb2.SubmitJobsResponse.FromString
        submit = channel.stream_unary("/adlro.v1.JobService/SubmitJobs", None, read)
        answer = await submit(iter([good, b"\xff", good]), timeout=60)
    assert list(answer.job_ids) == ["job", "", "job"]
    assert [each.index for each in answer.rejected] == [1]
    assert answer.rejected[0].message.startswith("message 1 of the stream (1 bytes) cannot be read")


async def test_a_watcher_that_goes_away_is_forgotten_at_once(served):
    call = served.stub.WatchJobs(job_service_pb2.WatchJobsRequest())
    await call.read()
    assert served.service.watchers == 1
    call.cancel()
    await until(lambda: served.service.watchers == 0)


async def test_a_watcher_that_goes_away_while_answers_flow_is_forgotten(served):
    ended = asyncio.Event()

    async def watch():
        try:
            while True:
                yield job_service_pb2.WatchJobsResponse(job=job_pb2.Job(message="x" * 10_000))
        finally:
            ended.set()

    served.service.watch = watch
    async with open_channel(served.address) as channel:
        call = job_service_pb2_grpc.JobServiceStub(channel).WatchJobs(job_service_pb2.WatchJobsRequest())
        await call.read()
    await asyncio.wait_for(ended.wait(), 60)
    await until(lambda: served.service.watchers == 0)


async def test_a_client_that_has_gone_when_it_is_written_to_is_no_error(log_lines):
    """gRPC may notice it at the write, before it cancels the call."""

    class Gone:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def time_remaining(self) -> None:
            return None

        async def read(self) -> bytes:
            return b""

        async def write(self, answer: Any) -> None:
            raise grpc.aio.InternalError('Failed "execute_batch"')

        async def abort(self, *_: Any) -> None:
            raise AssertionError("there is nobody to tell")

    async def watch(request: Any, context: Any):
        try:
            yield job_service_pb2.WatchJobsResponse()
        finally:
            closed.set()

    closed = asyncio.Event()
    registry = CollectorRegistry()
    interceptor = CallInterceptor(CallMetrics(registry), OpenCalls(), False)
    method = "/adlro.v1.JobService/WatchJobs"
    call = interceptor._streaming(
        method, interceptor._metrics.of_method(method), watch, job_service_pb2.WatchJobsRequest.FromString
    )
    with pytest.raises(asyncio.CancelledError):
        await call(None, Gone())  # type: ignore[arg-type]
    assert closed.is_set()
    assert not [line for line in log_lines() if line["event"] == "internal error"]
    assert 'code="CANCELLED"' in generate_latest(registry).decode()


async def test_a_call_whose_deadline_passes_is_cancelled_in_the_service(served):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang():
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    served.service.get["job-1"] = hang
    async with asyncio.timeout(60):
        while not begun.is_set():  # the deadline may pass on the way to the service
            code, got = await failure(get(served, "job-1", timeout=0.1))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert type(got) is errors.DeadlineExceeded
    await asyncio.wait_for(cancelled.wait(), 60)


async def test_calls_are_counted_by_method_and_code(served):
    registry = served.service.context.registry
    method = "/adlro.v1.JobService/GetJob"

    def count(code: str) -> float:
        return registry.get_sample_value("adlro_grpc_requests_total", {"method": method, "code": code}) or 0

    await get(served, "job-1")
    await failure(get(served, "bug"))
    await failure(get(served, "job-1", timeout=None))
    # A refused call is counted when its refusal is on its way, which the client may have already.
    await until(lambda: (count("OK"), count("INTERNAL"), count("INVALID_ARGUMENT")) == (1, 1, 1))
    assert registry.get_sample_value("adlro_grpc_latency_seconds_count", {"method": method}) == 3
    text = generate_latest(registry).decode()
    assert "process_cpu_seconds_total" in text
    assert "NoSuchMethod" not in text


async def test_open_streams_are_counted(served):
    registry = served.service.context.registry
    labels = {"method": "/adlro.v1.JobService/WatchJobs"}

    def open_streams():
        return registry.get_sample_value("adlro_grpc_open_streams", labels)

    call = served.stub.WatchJobs(job_service_pb2.WatchJobsRequest())
    await call.read()
    assert open_streams() == 1
    call.cancel()
    await until(lambda: open_streams() == 0)
    assert registry.get_sample_value("adlro_grpc_requests_total", labels | {"code": "CANCELLED"}) == 1


async def test_ids_of_one_call_do_not_show_in_another_calls_log(served, log_lines):
    async def log():
        served.service.context.log.info("in the handler")

    served.service.get["job-1"] = served.service.get["job-2"] = log
    await asyncio.gather(get(served, "job-1"), get(served, "job-2"))
    served.service.context.log.info("outside")
    lines = log_lines()
    assert sorted(line["job_id"] for line in lines if line["event"] == "in the handler") == ["job-1", "job-2"]
    assert "job_id" not in next(line for line in lines if line["event"] == "outside")
