"""The blocking and the asyncio client against a fake suite: what they send, what they give, when they try again."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from itertools import islice

import grpc
import pytest

from adlro.client import (
    NO_ANSWER,
    AsyncClient,
    Client,
    Endpoints,
    JobEventKind,
    JobFilter,
    Metric,
    PredictionBasis,
    Unit,
    transport,
)
from adlro.client.calls import SUBMIT_CHUNK
from adlro.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NotFound,
    Unavailable,
)
from adlro.records.decisions import DecisionFilter, DecisionView
from adlro.records.events import ClockMode
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobState, JobType, PendingReason, SimulatedWork
from tests.unit.client.fake_suite import FakeSuite

SPEC = JobSpec(
    name="a job",
    user="ada",
    job_type=JobType.MACHINE_LEARNING,
    application="resnet50_fp16",
    priority=0.25,
    cpu_cores=4,
    memory_mib=16384,
    gpu_memory_mib=8000,
    expected_runtime=ExpectedRuntime("v100_sxm2", 12.5),
    time_limit_s=100.0,
    begin_time_s=3.0,
    labels={"team": "vision"},
    simulated_work=SimulatedWork(12.0),
)


@pytest.fixture
def client(suite: FakeSuite) -> Iterator[Client]:
    with Client(endpoints=suite.endpoints, patience_s=60) as opened:
        yield opened


def nowhere() -> Endpoints:
    # Port 1 of loopback: nothing listens there, and a connection is refused at once.
    return Endpoints(*["127.0.0.1:1"] * 4)


def test_both_clients_have_the_same_surface() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    assert surface(Client) == surface(AsyncClient)
    for name in surface(Client):
        assert inspect.getdoc(getattr(Client, name)) == inspect.getdoc(getattr(AsyncClient, name))


def test_a_job_comes_back_as_it_was_submitted(client: Client) -> None:
    job = client.submit(SPEC)
    assert job.spec == SPEC
    assert client.get(job.job_id) == job


def test_the_same_request_id_gives_the_same_job(client: Client) -> None:
    first = client.submit(SPEC, "r-1")
    assert client.submit(SPEC, "r-1").job_id == first.job_id
    with pytest.raises(AlreadyExists):
        client.submit(JobSpec("other", "ada", JobType.SIMULATION), "r-1")


def test_without_a_request_id_every_call_is_a_job(client: Client) -> None:
    assert client.submit(SPEC).job_id != client.submit(SPEC).job_id


@pytest.mark.parametrize("failure", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_submission_is_sent_again_with_the_same_id(
    suite: FakeSuite, client: Client, failure: grpc.StatusCode
) -> None:
    suite.fail("SubmitJob", failure, failure)
    client.submit(SPEC)
    assert suite.calls["SubmitJob"] == 3
    assert len(suite.jobs) == 1


def test_a_refusal_is_not_sent_again(suite: FakeSuite, client: Client) -> None:
    suite.fail("SubmitJob", InvalidInput("no node has so many", field="job.cpu_cores"))
    with pytest.raises(InvalidInput, match="no node") as caught:
        client.submit(JobSpec("x", "ada", JobType.SIMULATION, cpu_cores=200))
    assert caught.value.field == "job.cpu_cores"
    suite.fail("GetJob", InternalError("a bug", metadata={"error_id": "e-1"}))
    with pytest.raises(InternalError):
        client.get("job-1")
    assert suite.calls == {"SubmitJob": 1, "GetJob": 1}


def test_patience_ends(suite: FakeSuite) -> None:
    with Client(endpoints=suite.endpoints, patience_s=0.3) as client:
        suite.fail("GetStatus", *[Unavailable("the lease is lost")] * 100)
        with pytest.raises(Unavailable, match="the lease is lost"):
            client.status()
        # At least 0.025, 0.05, 0.1 and 0.2 s lie between five tries.
        assert suite.calls["GetStatus"] <= 4


def test_where_nothing_answers_the_address_is_named() -> None:
    with Client(endpoints=nowhere(), patience_s=0) as client, pytest.raises(Unavailable) as caught:
        client.cluster_state()
    assert caught.value.reason == NO_ANSWER
    assert caught.value.metadata["address"] == "127.0.0.1:1"
    assert caught.value.metadata["service"] == "decompose"


def test_a_service_that_says_unavailable_is_not_nothing(suite: FakeSuite) -> None:
    suite.fail("GetJob", Unavailable("Redis does not answer"))
    with Client(endpoints=suite.endpoints, patience_s=0) as client, pytest.raises(Unavailable) as caught:
        client.get("job-1")
    assert caught.value.reason != NO_ANSWER


def test_many_jobs_go_in_chunks_and_rejections_are_numbered_through(suite: FakeSuite, client: Client) -> None:
    count = 2 * SUBMIT_CHUNK + 10
    bad = SUBMIT_CHUNK + 7
    specs = (
        JobSpec(f"job {index}", "ada", JobType.SIMULATION, priority=2 if index == bad else 0.5)
        for index in range(count)
    )
    suite.fail("SubmitJobs", grpc.StatusCode.UNAVAILABLE)
    answer = client.submit_many(specs, "batch")
    assert suite.calls["SubmitJobs"] == 4
    assert len(answer.job_ids) == count
    assert [(each.index, each.code) for each in answer.rejected] == [(bad, "INVALID_ARGUMENT")]
    assert answer.job_ids[bad] == ""
    names = [suite.jobs[job_id].spec.name for job_id in answer.accepted_ids]
    assert names == [f"job {index}" for index in range(count) if index != bad]
    assert set(suite.requests) == {f"batch-{index}" for index in range(count) if index != bad}


def test_lists_page_by_page(suite: FakeSuite, client: Client) -> None:
    for index in range(25):
        suite.add(JobSpec(f"{index}", "ada" if index % 2 else "bob", JobType.SIMULATION))
    found = client.list(JobFilter(user="bob"), page_size=5)
    assert next(found).spec.name == "0"
    assert suite.calls["ListJobs"] == 1  # no page before it is wanted
    assert [job.spec.name for job in found] == [str(index) for index in range(2, 25, 2)]
    assert suite.calls["ListJobs"] == 3


def test_cancelling_a_job_again_is_no_error_but_one_that_ended_is(suite: FakeSuite, client: Client) -> None:
    job = suite.add(SPEC)
    assert client.cancel(job.job_id).state is JobState.CANCELLED
    assert client.cancel(job.job_id).state is JobState.CANCELLED
    ended = suite.add(SPEC)
    suite.change(ended.job_id, state=JobState.SUCCEEDED, pending_reason=PendingReason.NONE)
    with pytest.raises(Conflict):
        client.cancel(ended.job_id)
    with pytest.raises(NotFound):
        client.cancel("job-99")


def test_a_watch_is_a_snapshot_and_then_changes(suite: FakeSuite, client: Client) -> None:
    suite.add(SPEC)
    watch = client.watch()
    assert next(watch).kind is JobEventKind.SNAPSHOT
    end = next(watch)
    assert (end.kind, end.job, end.revision) == (JobEventKind.SNAPSHOT_END, None, 1)
    suite.change("job-1", message="moved")
    event = next(watch)
    assert event.kind is JobEventKind.CHANGE
    assert event.job is not None
    assert (event.job.message, event.revision) == ("moved", 2)


def test_a_broken_watch_goes_on_without_losing_or_repeating_a_change(suite: FakeSuite, client: Client) -> None:
    suite.add(SPEC)
    watch = client.watch()
    seen = [next(watch).revision, next(watch).revision]
    for number in range(5):
        suite.change("job-1", message=f"{number}")
        if number in (1, 3):
            suite.break_streams()
            suite.fail("WatchJobs", grpc.StatusCode.UNAVAILABLE)
    seen += [next(watch).revision for _ in range(5)]
    assert seen == [1, 1, 2, 3, 4, 5, 6]
    assert suite.calls["WatchJobs"] > 1


def test_patience_with_a_watch_counts_from_the_failure(suite: FakeSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_LIVED_S", 0.3)
    with Client(endpoints=suite.endpoints, patience_s=0.25) as client:
        watch = client.watch()
        next(watch)
        timer = threading.Timer(0.4, suite.break_streams)  # longer than the client's patience
        timer.start()
        follow_up = threading.Timer(0.6, suite.add, [SPEC])
        follow_up.start()
        assert next(watch).kind is JobEventKind.CHANGE
        timer.join()
        follow_up.join()


def test_a_watch_that_is_too_far_behind_begins_with_a_snapshot_again(suite: FakeSuite, client: Client) -> None:
    for _ in range(3):
        suite.add(SPEC)
    suite.oldest_revision = 3
    kinds = [event.kind for event in islice(client.watch(after_revision=1), 4)]
    assert kinds == [JobEventKind.SNAPSHOT] * 3 + [JobEventKind.SNAPSHOT_END]


def test_a_watch_ends_at_its_timeout(suite: FakeSuite, client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        list(client.watch(timeout_s=0.2))


def test_wait_gives_the_jobs_in_the_order_asked_for(suite: FakeSuite, client: Client) -> None:
    for _ in range(3):
        suite.add(SPEC)
    suite.change("job-3", state=JobState.FAILED, pending_reason=PendingReason.NONE)

    def finish() -> None:
        for job_id in ("job-1", "job-2"):
            suite.change(job_id, state=JobState.SUCCEEDED, pending_reason=PendingReason.NONE)

    timer = threading.Timer(0.05, finish)
    timer.start()
    jobs = client.wait(["job-2", "job-3", "job-1", "job-2"], timeout_s=60)
    timer.join()
    assert [job.job_id for job in jobs] == ["job-2", "job-3", "job-1"]
    assert [job.state for job in jobs] == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]


def test_wait_says_which_job_is_late_or_unknown(suite: FakeSuite, client: Client) -> None:
    suite.add(SPEC)
    with pytest.raises(DeadlineExceeded, match=r"1 of 1 jobs have not ended within 0\.2 s, job-1 among them"):
        client.wait(["job-1"], timeout_s=0.2)
    with pytest.raises(NotFound, match="there is no job job-7"):
        client.wait(["job-1", "job-7"], timeout_s=60)
    assert client.wait([]) == ()


def test_the_cluster_and_what_it_reports(client: Client) -> None:
    cluster = client.cluster()
    assert [gpu.gpu_id for _, gpu in cluster.gpus()] == ["volta-0/0", "volta-0/1", "turing-0/0"]
    telemetry = client.telemetry(window_s=10)
    column = telemetry.latest.columns[Metric.MEMORY_USED]
    assert column.unit is Unit.MIB
    assert column.raw.shape == (1, 3)
    assert column.raw[0, 0] == 8000
    assert len(telemetry.window) == 1
    state = client.cluster_state()
    assert state.value(Metric.UTILIZATION, 0) == pytest.approx(0.97)
    assert state.value(Metric.POWER, 0) != state.value(Metric.POWER, 0)  # NaN: not reported
    assert next(client.watch_cluster_state()).gpus == state.gpus


def test_predictions_and_recollections(client: Client) -> None:
    (predictions,) = client.predict([SPEC], ["v100_sxm2", "rtx_2080_ti"], max_evidence=1)
    assert [each.gpu_model for each in predictions] == ["v100_sxm2", "rtx_2080_ti"]
    assert predictions[0].basis is PredictionBasis.USER_APPLICATION
    assert predictions[0].evidence[0].job_id == "job-900"
    ids = ["job-900", ""]
    itself, other = client.predict([SPEC, SPEC], ["v100_sxm2"], max_evidence=1, job_ids=ids)
    assert (len(itself[0].evidence), len(other[0].evidence)) == (0, 1)
    assert client.recall(SPEC)[0].job == SPEC


def test_decisions_policies_and_drains(suite: FakeSuite, client: Client) -> None:
    assert client.status().policy == "sjf"
    assert next(client.watch_status(min_interval_s=0.5)) == client.status()
    assert client.set_policy("fcfs") == "sjf"
    assert [policy.name for policy in client.policies() if policy.acting] == ["fcfs"]
    suite.add(SPEC)
    decision = client.explain("job-1")
    assert decision.candidates[0].gpu_id == decision.gpu_id == "volta-0/0"
    assert "busy" in decision.masked[0].reason
    assert client.explain(decision_id="d-1").decision_id == "d-1"
    assert next(client.watch_decisions(history=1)).summary == decision.summary
    missed: list[int] = []
    decisions = client.watch_decisions(history=1, view=DecisionView.SUMMARY, missed=missed.append)
    assert (next(decisions).summary, missed) == (decision.summary, [3])
    assert next(client.watch_decisions(history=1, view=DecisionView.SUMMARY)).summary == decision.summary
    listed = list(client.decisions(DecisionFilter(job_id="job-1")))
    assert [each.decision_id for each in listed] == ["d-1-4", "d-1-3", "d-1-2", "d-1-1"]
    assert listed[0].prediction is not None
    assert listed[0].prediction.median_s == 11.5
    client.drain("volta-0", "a fan")
    assert client.status().drained_node_ids == ("volta-0",)
    client.undrain("volta-0")
    assert client.status().drained_node_ids == ()


def test_the_clock(suite: FakeSuite, client: Client) -> None:
    clock = client.set_clock(ClockMode.SCALED, scale=30, paused=True)
    assert clock == client.clock() == suite.clock
    assert (clock.mode, clock.scale, clock.paused) == (ClockMode.SCALED, 30, True)
    client.set_clock(paused=False)
    assert (suite.clock.mode, suite.clock.scale, suite.clock.paused) == (ClockMode.SCALED, 30, False)
    assert client.describe_cluster().incarnation == "inc-1"


async def test_the_asyncio_client_does_the_same(suite: FakeSuite) -> None:
    async with AsyncClient(endpoints=suite.endpoints, patience_s=60) as client:
        suite.fail("SubmitJob", grpc.StatusCode.UNAVAILABLE)
        job = await client.submit(SPEC)
        assert job.spec == SPEC
        assert [each.job_id async for each in client.list()] == [job.job_id]
        answer = await client.submit_many([SPEC, JobSpec("x", "ada", JobType.SIMULATION, priority=3)])
        assert answer.rejected[0].index == 1
        seen = []
        async for event in client.watch():
            seen.append(event.revision)
            if event.kind is JobEventKind.SNAPSHOT_END:
                suite.break_streams()
                suite.change(job.job_id, message="moved")
            elif event.kind is JobEventKind.CHANGE:
                break
        assert seen == [1, 2, 2, 3]
        assert (await client.cancel(job.job_id)).state is JobState.CANCELLED
        assert (await client.cancel(job.job_id)).state is JobState.CANCELLED
        assert [each.job_id for each in await client.wait([job.job_id])] == [job.job_id]
        with pytest.raises(DeadlineExceeded, match="job-2"):
            await client.wait(["job-2"], timeout_s=0.2)
        with pytest.raises(NotFound):
            await client.get("job-99")
        assert (await client.telemetry()).latest.columns[Metric.UTILIZATION].raw[0, 0] == pytest.approx(0.97)
        assert (await client.set_clock(paused=True)).paused
    async with AsyncClient(endpoints=nowhere(), patience_s=0) as client:
        with pytest.raises(Unavailable) as caught:
            await client.status()
        assert caught.value.reason == NO_ANSWER
