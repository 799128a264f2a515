"""Rules for a job's specification beyond those of single fields."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import JobSpec, JobType
from adlro.records.payloads import Container, Mount, Payload, process_payload
from adlro.records.specifications import completed, for_predictions, violations

PROGRAM = process_payload(["python", "train.py"], environment={"A": "b"}, secret_names=["TOKEN"])
SPEC = JobSpec("train", "ada", JobType.UNSPECIFIED, payload=PROGRAM)


def test_a_program_needs_no_job_type_and_has_its_application():
    assert completed(SPEC).application == "python:train.py"
    assert completed(replace(SPEC, application="own")).application == "own"


def test_a_job_without_a_program_needs_a_job_type():
    with pytest.raises(InvalidInput, match="job_type: must be one of JOB_TYPE_SIMULATION"):
        completed(replace(SPEC, payload=None), "jobs[3]")
    [violation] = violations(replace(SPEC, payload=None), "jobs[3]")
    assert violation.field == "jobs[3].job_type"
    stated = replace(SPEC, payload=None, job_type=JobType.SIMULATION)
    assert completed(stated) is stated


def test_each_field_of_a_payload_that_no_node_can_run_is_named():
    payload = process_payload(["x"], workdir="relative", environment={"LD_PRELOAD": "evil.so"})
    with pytest.raises(InvalidInput) as refused:
        completed(replace(SPEC, payload=payload))
    assert [each.field for each in refused.value.violations] == [
        "job.payload.process.workdir",
        "job.payload.environment",
    ]
    assert refused.value.message.startswith("job.payload.process.workdir: must be an absolute path")


def test_only_a_job_of_one_gpu_shares_it():
    assert violations(replace(SPEC, shareable=True)) == []
    for payload in (PROGRAM, None):
        spec = replace(SPEC, shareable=True, gpu_count=4, payload=payload, job_type=JobType.SIMULATION)
        [violation] = violations(spec, "jobs[3]")
        assert violation.field == "jobs[3].shareable"
        assert violation.description == (
            "only a job of one GPU can share it (gpu_count is 4); ask for one GPU, or leave it out"
        )
        with pytest.raises(InvalidInput, match=r"job\.shareable: only a job of one GPU"):
            completed(spec)
    both = violations(replace(SPEC, shareable=True, gpu_count=2, payload=None))
    assert [each.field for each in both] == ["job.job_type", "job.shareable"]


def test_predictions_get_neither_arguments_nor_environment():
    long = process_payload(["x" * 30_000])
    for payload in (PROGRAM, long, Payload(container=Container("a", ("b", "c"), "/w", (Mount("/x", "/y"),)))):
        spec = completed(replace(SPEC, payload=payload))
        asked = for_predictions(spec)
        assert asked.application == spec.application
        assert asked.payload is not None
        assert sum(len(each) for each in asked.payload.argv) <= 64
        assert not asked.payload.environment
        assert not asked.payload.secret_names
        assert completed(asked) == asked
    stated = replace(SPEC, payload=None)
    assert for_predictions(stated) is stated
