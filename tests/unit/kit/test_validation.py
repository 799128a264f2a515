from __future__ import annotations

import importlib
import math

import pytest

from adlro.errors import InvalidInput
from adlro.kit.validation import CheckedStream, attempt_each, check, warm
from adlro.v1 import job_pb2, job_service_pb2, orchestrator_service_pb2


def spec(**fields) -> job_pb2.JobSpec:
    good = job_pb2.JobSpec(name="train", user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION)
    good.MergeFrom(job_pb2.JobSpec(**fields))
    return good


def refused(message) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        check(message)
    assert error.value.reason == "FIELD_RULE_VIOLATED"
    return error.value


def told(message) -> list[str]:
    return [f"{each.field}: {each.description}" for each in refused(message).violations]


def test_a_good_message_passes():
    check(job_service_pb2.SubmitJobRequest(job=spec(priority=1.0, labels={"team": "vision"}), request_id="r-1"))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"priority": 1.5},
            "job.priority: must be greater than or equal to 0 and less than or equal to 1 (got 1.5)",
        ),
        ({"memory_mib": -1}, "job.memory_mib: must be greater than or equal to 0 and less than or equal to 16777216"),
        ({"user": "a b"}, "job.user: may contain only letters A-Z and a-z, digits and . _ @ + - (got 'a b')"),
        (
            {"job_type": 7},
            "job.job_type: must be one of JOB_TYPE_SIMULATION, JOB_TYPE_MACHINE_LEARNING, JOB_TYPE_DATA_PROCESSING"
            " (got 7)",
        ),
        (
            {"gpu_count": 1025},
            "job.gpu_count: must be greater than or equal to 0 and less than or equal to 1024 (got 1025)",
        ),
        (
            {"max_node_count": -1},
            "job.max_node_count: must be greater than or equal to 0 and less than or equal to 1024 (got -1)",
        ),
        ({"gpu_models": ["t4", "t4"]}, "job.gpu_models: must contain unique items"),
        ({"gpu_models": ["t4", ""]}, "job.gpu_models[1]: must not be empty (got '')"),
        ({"labels": {"x": "v" * 300}}, 'job.labels["x"]: must be at most 255 characters (got'),
        ({"labels": {"": "v"}}, 'job.labels[""]: its key must not be empty'),
        (
            {"expected_runtime": job_pb2.ExpectedRuntime(gpu_model="v100", runtime_s=-3)},
            "job.expected_runtime.runtime_s: must be greater than 0 and less than or equal to 31536000 (got -3.0)",
        ),
    ],
)
def test_the_field_is_named_with_rule_and_value(fields, text):
    message = job_service_pb2.SubmitJobRequest(job=spec(**fields))
    assert told(message)[0].startswith(text)
    assert text in refused(message).message


def test_nan_is_refused():
    assert told(job_service_pb2.SubmitJobRequest(job=spec(priority=math.nan)))[0].endswith("(got nan)")


def test_what_is_missing_is_named():
    assert told(job_service_pb2.SubmitJobRequest()) == ["job: must be set"]
    assert told(job_service_pb2.GetJobRequest()) == ["job_id: must not be empty (got '')"]


def test_items_of_a_list_have_their_index():
    message = job_service_pb2.WatchJobsRequest(
        filter=job_service_pb2.JobFilter(states=[job_pb2.JOB_STATE_PENDING, job_pb2.JOB_STATE_UNSPECIFIED])
    )
    assert told(message)[0].startswith("filter.states[1]: must be one of JOB_STATE_PENDING, ")


def test_a_oneof_is_named():
    assert told(orchestrator_service_pb2.ExplainDecisionRequest()) == ["target: must be set"]


def test_all_violations_are_told_and_the_message_stays_short():
    job = job_pb2.JobSpec(priority=2, cpu_cores=-1, time_limit_s=-1, job_type=99)  # type: ignore[arg-type]
    message = job_service_pb2.SubmitJobRequest(job=job)
    error = refused(message)
    fields = {each.field for each in error.violations}
    assert fields == {"job.name", "job.user", "job.job_type", "job.priority", "job.cpu_cores", "job.time_limit_s"}
    assert error.message.startswith("job.name: must not be empty (got ''); job.user: ")
    assert error.message.endswith("; and 2 more")


def test_a_long_value_is_cut():
    error = refused(job_service_pb2.SubmitJobRequest(job=spec(name="n" * 10_000_000)))
    assert error.violations[0].field == "job.name"
    assert "must be at most 253 characters (got 'nnn" in error.message
    assert "10000000 characters" in error.message
    assert len(error.message) < 200


def test_a_long_map_key_is_cut():
    error = refused(job_service_pb2.SubmitJobRequest(job=spec(labels={"k" * 1_000_000: "v"})))
    assert len(error.message) < 200


def test_an_empty_name_is_said_plainly():
    message = job_service_pb2.SubmitJobRequest(job=job_pb2.JobSpec(user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION))
    assert told(message) == ["job.name: must not be empty (got '')"]


async def stream(*messages):
    for message in messages:
        yield message


GOOD = job_service_pb2.SubmitJobsRequest(job=spec())
BAD = job_service_pb2.SubmitJobsRequest(job=spec(priority=1.5))


async def test_a_stream_breaks_at_the_first_bad_message_and_names_its_index():
    messages = CheckedStream(stream(GOOD, GOOD, BAD, GOOD))
    assert [await anext(messages), await anext(messages)] == [GOOD, GOOD]
    with pytest.raises(InvalidInput) as error:
        await anext(messages)
    assert error.value.metadata == {"index": "2"}
    assert error.value.message.startswith("message 2 of the stream: job.priority: ")
    assert error.value.field == "job.priority"


async def test_a_handler_can_go_past_bad_messages():
    seen = [
        (index, message is not None, error.metadata["index"] if error else "")
        async for index, message, error in attempt_each(CheckedStream(stream(BAD, GOOD, BAD, BAD, GOOD)))
    ]
    assert seen == [(0, False, "0"), (1, True, ""), (2, False, "2"), (3, False, "3"), (4, True, "")]


def test_the_rules_of_every_contract_compile():
    services = ["JobService", "TelemetryService", "ClusterService", "DecomposeService", "OrchestratorService"]
    for module in ("cluster", "decompose", "telemetry"):
        importlib.import_module(f"adlro.v1.{module}_service_pb2")
    warm(f"adlro.v1.{name}" for name in services)
    with pytest.raises(KeyError):
        warm(["adlro.v1.NoService"])
