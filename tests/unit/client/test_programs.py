"""Jobs that run programs, by both clients: what is sent, how logs are read and resumed, what is submitted again."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlro.client import AsyncClient, Client, LogStream, Mount, Preemptible, program_spec, transport
from adlro.errors import Conflict, InvalidInput, NotFound, Unavailable
from adlro.records.jobs import Job, JobSpec, JobState, JobType
from adlro.records.payloads import EndReason, ExitStatus
from tests.unit.client.fake_suite import FakeSuite

DONE = ExitStatus(EndReason.EXITED)
SPEC = JobSpec("train", "ada", JobType.UNSPECIFIED)


@pytest.fixture
def client(suite: FakeSuite) -> Iterator[Client]:
    with Client(endpoints=suite.endpoints, patience_s=60) as opened:
        yield opened


@pytest.fixture
def job_id(suite: FakeSuite) -> str:
    """A job that runs and has written nothing."""
    suite.add(SPEC)
    suite.start("job-1")
    return "job-1"


def test_a_command_is_submitted_with_the_defaults_of_the_command_line(suite: FakeSuite, client: Client) -> None:
    job = client.submit(command=["python", "train.py"], cpu_cores=4, environment={"A": "b"}, stop_grace_s=3.0)
    sent = suite.jobs[job.job_id].spec
    assert sent.payload is not None
    assert sent.payload.process is not None
    assert (sent.payload.process.argv, sent.payload.process.workdir) == (("python", "train.py"), os.getcwd())
    assert (sent.payload.environment, sent.payload.stop_grace_s) == ({"A": "b", "PATH": os.environ["PATH"]}, 3.0)
    assert (sent.name, sent.user, sent.job_type) == ("python:train.py", getpass.getuser(), JobType.UNSPECIFIED)
    # The last two are left to the services.
    assert (sent.cpu_cores, sent.application) == (4, "")


def test_a_spec_says_what_a_program_needs(suite: FakeSuite, client: Client) -> None:
    spec = JobSpec(job_type="ml", gpus=2, time_limit="1h", memory="1GiB")
    sent = suite.jobs[client.submit(spec, command=["python", "train.py"], env={"A": "b"}).job_id].spec
    assert (sent.gpu_count, sent.time_limit_s, sent.memory_mib, sent.name) == (2, 3600.0, 1024, "python:train.py")
    assert sent.payload is not None
    assert sent.payload.argv == ("python", "train.py")
    assert sent.payload.environment["A"] == "b"


def test_several_gpus_are_asked_for(suite: FakeSuite, client: Client) -> None:
    job = client.submit(command=["torchrun", "train.py"], gpu_count=4, max_node_count=2, gpu_models=["v100_sxm2", "t4"])
    sent = suite.jobs[job.job_id].spec
    assert (sent.gpu_count, sent.max_node_count, sent.gpu_models) == (4, 2, ("v100_sxm2", "t4"))
    assert program_spec(["x"], gpu_models="t4").gpu_models == ("t4",)
    assert program_spec(["x"]).gpu_models == ()


def test_a_program_may_be_stopped_and_share_its_gpu(suite: FakeSuite, client: Client) -> None:
    stops = Preemptible(restart_s=60.0, lost_s=600.0, grace_s=120.0)
    sent = suite.jobs[client.submit(command=["train"], preemptible=stops, shareable=True).job_id].spec
    assert (sent.preemptible, sent.shareable) == (stops, True)
    again = suite.jobs[client.submit(JobSpec("a", "ada", JobType.SIMULATION, preemptible=stops)).job_id].spec
    assert (again.preemptible, again.shareable) == (stops, False)
    assert program_spec(["x"], preemptible=True).preemptible == Preemptible()
    assert program_spec(["x"], preemptible=False).preemptible is None
    assert program_spec(["x"]).preemptible is None


def test_paths_are_words_of_a_command(suite: FakeSuite, client: Client) -> None:
    job = client.submit(command=["python", Path("a/train.py")], environment={"DATA": Path("/d")})
    payload = job.spec.payload
    assert payload is not None
    assert (payload.argv, payload.environment) == (
        ("python", "a/train.py"),
        {"DATA": "/d", "PATH": os.environ["PATH"]},
    )


def test_a_container_is_submitted(suite: FakeSuite, client: Client) -> None:
    client.submit(image="team/net:1", mounts=[Mount("/data", "/d", writable=True)], shared_memory_mib=64, name="n")
    sent = suite.jobs["job-1"].spec
    assert sent.payload is not None
    assert sent.payload.container is not None
    assert (sent.payload.container.image, sent.payload.container.argv) == ("team/net:1", ())
    assert sent.payload.container.mounts == (Mount("/data", "/d", writable=True),)
    assert (sent.payload.container.shared_memory_mib, sent.name) == (64, "n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a command or an image"),
        ({"command": "python train.py"}, "a command is a list"),
        ({"command": ["x"], "mounts": [Mount("/a", "/b")]}, "name an image"),
        ({"command": ["x"], "environment": {"ADLRO_JOB_ID": "1"}}, "which the node sets"),
        ({"command": ["x" * 200_000]}, "the kernel accepts"),
        ({"command": ["x", "--lr", 0.1]}, "0.1 is no text: write '0.1'"),
        ({"command": ["x"], "environment": {"LR": 0.1}}, "0.1 is no text: write '0.1'"),
        (
            {"spec": SPEC, "command": ["x"], "priority": 1},
            r"priority: the spec has all.*JobSpec\(priority=",
        ),
        ({"spec": program_spec(["x"]), "command": ["x"]}, "the spec has a program already"),
        ({"spec": SPEC, "env": {"A": "b"}}, "a job needs a command or an image"),
    ],
)
def test_a_job_that_no_node_can_run_is_refused_here(
    suite: FakeSuite, client: Client, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        client.submit(**arguments)  # type: ignore[arg-type]  # mixed arguments
    assert not suite.jobs


def test_a_log_is_read_in_pieces(suite: FakeSuite, client: Client, job_id: str) -> None:
    suite.write(job_id, b"x" * 2500)
    chunks = list(client.logs(job_id))
    assert [(each.offset, len(each.data)) for each in chunks] == [(0, 1000), (1000, 1000), (2000, 500)]
    assert not any(each.end for each in chunks)
    assert b"".join(each.data for each in client.logs(job_id, LogStream.STDERR)) == b""
    assert list(client.logs(job_id, "stdout")) == chunks
    assert b"".join(each.data for each in client.logs(job_id, stream="stderr")) == b""
    with pytest.raises(InvalidInput, match="stream: 'both' is neither 'stdout' nor 'stderr'"):
        list(client.logs(job_id, "both"))
    assert [each.data for each in client.logs(job_id, offset=2498)] == [b"xx"]
    assert [each.offset for each in client.logs(job_id, tail_bytes=10)] == [2490]


def test_an_ended_log_says_so(suite: FakeSuite, client: Client, job_id: str) -> None:
    suite.write(job_id, b"done\n")
    suite.end(job_id, DONE)
    for follow in (False, True):
        assert [(each.data, each.end) for each in client.logs(client.get(job_id), follow=follow)] == [(b"done\n", True)]


def test_a_followed_log_goes_on_where_the_connection_broke(suite: FakeSuite, client: Client, job_id: str) -> None:
    whole = bytes(range(256)) * 40
    suite.write(job_id, whole[:3000])
    suite.log_breaks = [2]
    read = b""
    for chunk in client.logs(job_id, follow=True):
        assert chunk.offset == len(read)
        read += chunk.data
        if len(read) == 3000:
            suite.fail("ReadJobLogs", Unavailable("going away"), grpc.StatusCode.UNAVAILABLE)
            suite.break_streams()
            suite.write(job_id, whole[3000:])
            suite.end(job_id, DONE)
    assert read == whole
    assert [each.offset for each in suite.log_requests][0:2] == [0, 2000]


@pytest.mark.parametrize("breaks_after", [1, -1])
def test_a_log_that_is_not_followed_is_resumed_too(
    suite: FakeSuite, client: Client, job_id: str, breaks_after: int
) -> None:
    suite.write(job_id, b"x" * 5000)
    suite.log_breaks = [breaks_after]
    lengths = []
    for chunk in client.logs(job_id, tail_bytes=4500):
        lengths.append(len(chunk.data))
    assert lengths == [1000, 1000, 1000, 1000, 500]
    assert suite.log_requests[0].tail_bytes == 4500
    assert (suite.log_requests[1].offset, suite.log_requests[1].tail_bytes) == (1500, 0)


def test_a_resumed_log_is_of_the_same_attempt(suite: FakeSuite, client: Client, job_id: str) -> None:
    suite.write(job_id, b"first")
    read = b""
    for chunk in client.logs(job_id, follow=True):
        read += chunk.data
        if chunk.data:
            suite.end(job_id, ExitStatus(EndReason.GPU_FAILED), JobState.PENDING)
            suite.start(job_id)
            suite.write(job_id, b"second")
            suite.break_streams()
    assert read == b"first"
    assert suite.log_requests[-1].attempt == 1


def test_deleted_bytes_are_a_gap_between_offsets(suite: FakeSuite, client: Client, job_id: str) -> None:
    suite.write(job_id, b"x" * 5000)
    suite.logs[job_id, 1, LogStream.STDOUT].kept = 4096
    assert [(each.offset, len(each.data), each.size) for each in client.logs(job_id)] == [(4096, 904, 5000)]


def test_errors_of_logs_are_not_tried_again(suite: FakeSuite, client: Client) -> None:
    with pytest.raises(NotFound, match="there is no job job-9"):
        list(client.logs("job-9"))
    suite.add(SPEC)
    suite.fail("ReadJobLogs", Conflict("this cluster has no logs"))
    with pytest.raises(Conflict, match="no logs"):
        list(client.logs("job-1"))


def test_an_outage_longer_than_the_patience_is_an_error(suite: FakeSuite, client: Client, job_id: str) -> None:
    suite.fail("ReadJobLogs", *[Unavailable("away")] * 50)
    with pytest.raises(Unavailable, match="away"):
        list(client.logs(job_id, patience_s=0.1))


async def test_the_asyncio_client_reads_logs_as_well(suite: FakeSuite, job_id: str) -> None:
    suite.write(job_id, b"a line\n")
    suite.end(job_id, DONE)
    async with AsyncClient(endpoints=suite.endpoints) as client:
        assert [each.data async for each in client.logs(job_id, follow=True)] == [b"a line\n"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 4000), min_size=1, max_size=5),
    chunk_bytes=st.integers(100, 1500),
    breaks=st.lists(st.integers(-3, 3).filter(bool), max_size=4),
    follow=st.booleans(),
)
def test_no_byte_is_lost_or_repeated_however_the_connection_breaks(
    suite: FakeSuite,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    chunk_bytes: int,
    breaks: list[int],
    follow: bool,
) -> None:
    monkeypatch.setattr(transport, "_FIRST_DELAY_S", 0.001)
    suite.chunk_bytes, suite.log_breaks = chunk_bytes, list(breaks)
    job = suite.add(SPEC)
    suite.start(job.job_id)
    whole = b"".join(bytes([number + 1]) * size for number, size in enumerate(sizes))
    suite.write(job.job_id, whole)
    suite.end(job.job_id, DONE)
    read = b""
    for chunk in client.logs(job, follow=follow):
        assert chunk.offset == len(read)
        read += chunk.data
    assert read == whole


def test_a_job_is_submitted_again(suite: FakeSuite, client: Client, job_id: str) -> None:
    with pytest.raises(Conflict, match=r"job-1 is running: cancel it first \(adlro cancel job-1\)"):
        client.requeue(job_id)
    suite.end(job_id, ExitStatus(EndReason.EXITED, 3))
    again: Job = client.requeue(client.get(job_id))
    assert again.job_id == "job-2"
    assert again.spec.labels == {"requeued-from": "job-1"}
    assert again.spec.name == "train"
    with pytest.raises(NotFound):
        client.requeue("job-9")


def test_the_label_names_the_last_job_alone() -> None:
    spec = program_spec(["x"], labels={"team": "vision", "requeued-from": "job-1"})
    from adlro.client.programs import requeued_spec

    ended = Job("job-2", spec, state=JobState.FAILED)
    assert requeued_spec(ended).labels == {"team": "vision", "requeued-from": "job-2"}


def test_a_process_is_found_as_in_the_callers_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/venv/bin:/usr/bin")

    def environment(**more: Any) -> Mapping[str, str]:
        payload = program_spec(["python"], **more).payload
        assert payload is not None
        return payload.environment

    assert environment() == {"PATH": "/venv/bin:/usr/bin"}
    assert environment(environment={"PATH": "/bin"}) == {"PATH": "/bin"}
    assert environment(image="python:3.13") == {}, "an image has its own"
