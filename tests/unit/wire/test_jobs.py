"""Records to messages and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adlro.placement import NOWHERE, GpuShare, Placement
from adlro.records.jobs import (
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobReservation,
    JobSpec,
    JobState,
    JobType,
    PendingReason,
    SimulatedWork,
)
from adlro.v1 import job_pb2
from adlro.wire import job_from_proto, job_to_proto, spec_from_proto, spec_to_proto

numbers = st.floats(0, 1e9)
maybe = st.none() | numbers
specs = st.builds(
    JobSpec,
    name=st.text(min_size=1, max_size=20),
    user=st.just("ann"),
    job_type=st.sampled_from(JobType),
    application=st.text(max_size=10),
    priority=st.floats(0, 1),
    cpu_cores=st.integers(1, 64),
    memory_mib=st.integers(1, 10**6),
    gpu_memory_mib=st.integers(0, 10**6),
    expected_runtime=st.none() | st.builds(ExpectedRuntime, st.just("t4"), numbers),
    time_limit_s=maybe,
    begin_time_s=maybe,
    labels=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
    simulated_work=st.none() | st.builds(SimulatedWork, numbers, maybe),
    gpu_count=st.integers(1, 1024),
    max_node_count=st.integers(0, 1024),
    gpu_models=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    exclusive=st.booleans(),
    node_ids=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    excluded_node_ids=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
)
placements = st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0, 1, exclude_min=True), max_size=3).map(
    lambda shares: Placement(tuple(GpuShare(gpu_id, share) for gpu_id, share in shares.items()))
)
jobs = st.builds(
    Job,
    job_id=st.just("job-1"),
    spec=specs,
    state=st.sampled_from(JobState),
    pending_reason=st.sampled_from(PendingReason),
    submit_s=maybe,
    start_s=maybe,
    end_s=maybe,
    placement=placements,
    attempts=st.lists(st.builds(JobAttempt, st.integers(1, 5), placements, st.text(max_size=5), maybe, maybe)).map(
        tuple
    ),
    revision=st.integers(0, 10**12),
    cancel_requested=st.booleans(),
    reservation=st.none()
    | st.builds(
        JobReservation,
        job_id=st.just("job-1"),
        since_s=numbers,
        gpu_model=st.just("t4"),
        node_ids=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
        expected_start_s=numbers,
        slack_gpu_count=st.integers(0, 64),
        gpu_count=st.integers(2, 64),
    ),
    reserved_for_job_id=st.sampled_from(["", "job-7"]),
    reserved_until_s=maybe,
)


def test_what_an_older_version_wrote_has_all_of_its_one_gpu() -> None:
    attempt = job_pb2.JobAttempt(attempt=1, gpu_id="volta-0/0")
    old = job_pb2.Job(
        job_id="job-1",
        spec=spec_to_proto(JobSpec("n", "ann", JobType.SIMULATION)),
        state=job_pb2.JOB_STATE_RUNNING,
        gpu_id="volta-0/0",
        attempts=[attempt],
    )
    job = job_from_proto(old)
    assert job.placement == job.attempts[0].placement == Placement.on("volta-0/0")
    assert job_from_proto(job_pb2.Job(spec=old.spec, state=old.state)).placement == NOWHERE


@given(jobs)
def test_the_first_gpu_stands_beside_the_placement_for_older_clients(job: Job) -> None:
    message = job_to_proto(job)
    assert message.gpu_id == job.placement.gpu_id == job.gpu_id
    assert [each.gpu_id for each in message.attempts] == [each.placement.gpu_id for each in job.attempts]


@given(jobs)
def test_a_job_comes_back_as_it_went(job: Job) -> None:
    assert job_from_proto(job_pb2.Job.FromString(job_to_proto(job).SerializeToString())) == job


@given(specs)
def test_a_spec_comes_back_as_it_went(spec: JobSpec) -> None:
    assert spec_from_proto(spec_to_proto(spec)) == spec


def test_defaults_are_those_of_the_contract() -> None:
    spec = spec_from_proto(job_pb2.JobSpec(name="a", user="b", job_type=job_pb2.JOB_TYPE_SIMULATION, cpu_cores=2))
    assert (spec.priority, spec.memory_mib, spec.gpu_memory_mib, spec.gpu_count) == (0.5, 8192, 0, 1)
    assert (spec.max_node_count, spec.gpu_models, spec.accepts("any")) == (0, (), True)
    assert spec_from_proto(job_pb2.JobSpec(job_type=job_pb2.JOB_TYPE_SIMULATION)).cpu_cores == 1
    assert spec_from_proto(job_pb2.JobSpec(job_type=job_pb2.JOB_TYPE_SIMULATION, priority=0)).priority == 0.0
