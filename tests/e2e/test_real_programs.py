"""Fifty real programs through `adlro up --cluster local`, as their users see them: ends, logs, and what is left."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adlro.attempt.drivers import choose_driver
from adlro.kit.testing import ROOT
from adlro.records.jobs import Job, JobState
from adlro.records.payloads import EndReason, LogStream
from tests.e2e.program import HOSTILE, pattern
from tests.e2e.real_programs import PROGRAM, RealProgram, real_programs
from tests.e2e.real_suite import RealSuite, start_real_suite
from tests.e2e.records import check_placements
from tests.e2e.running_suite import ADLRO, is_alive, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

END_TIMEOUT_S = 180.0
MOST_RATIO = 1.1
"""What a log may have on the disk, of its limit."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="adlro-programs-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def suite(folder: Path) -> Iterator[RealSuite]:
    started = start_real_suite(folder / "data", folder / "home", "--policy", "fcfs")
    try:
        yield started
        code = started.running.end()
        started.check_end(code)
    finally:
        started.end_all()


@dataclass
class Ran:
    """The programs, and their jobs after the end.

    Attributes:
        most_log_bytes: what the log of the flood had on the disk, at most.
        followed: pieces of that log as a follower got them, offset and length.
        bad_offsets: of its pieces that were not what the program wrote there.
    """

    programs: dict[str, RealProgram]
    jobs: dict[str, Job]
    took_s: float = 0.0
    most_log_bytes: int = 0
    followed: list[tuple[int, int]] = field(default_factory=list)
    bad_offsets: list[int] = field(default_factory=list)

    def __getitem__(self, name: str) -> tuple[RealProgram, Job]:
        return self.programs[name], self.jobs[name]


@pytest.fixture(scope="module")
def ran(suite: RealSuite, folder: Path) -> Ran:
    limited = "memory_mib" in choose_driver().driver.enforced
    (folder / "programs").mkdir()
    programs = real_programs(folder / "programs", memory_is_limited=limited)
    found = Ran({program.name: program for program in programs}, {})
    assert len(found.programs) == len(programs) >= 50
    began_s = time.monotonic()
    with suite.client() as client, ThreadPoolExecutor() as pool:
        ids = {program.name: client.submit(program.spec(suite.user)).job_id for program in programs}
        beside = [
            pool.submit(_cancel, suite, ids[program.name], program.cancelled)
            for program in programs
            if program.cancelled
        ]
        beside += [pool.submit(each, suite, ids["flood"], found) for each in (_watch_disk, _follow)]
        ended = client.wait(ids.values(), timeout_s=END_TIMEOUT_S)
        for future in beside:
            future.result(END_TIMEOUT_S)
    found.took_s = time.monotonic() - began_s
    found.jobs = dict(zip(ids, ended, strict=True))
    return found


def _cancel(suite: RealSuite, job_id: str, when: str) -> None:
    """Cancels a job; `running`: once its program has written something."""
    if when == "running":
        wait_until(lambda: _length(suite.log_file(job_id)), END_TIMEOUT_S, f"{job_id} writes")
    with suite.client() as client:
        client.cancel(job_id)


def _length(path: Path | None) -> int:
    return 0 if path is None else path.stat().st_size


def _watch_disk(suite: RealSuite, job_id: str, found: Ran) -> None:
    """Notes how much a log has on the disk, until its job has ended."""
    wait_until(lambda: suite.log_file(job_id), END_TIMEOUT_S, f"{job_id} has a log")
    log = suite.log_file(job_id)
    assert log is not None
    with suite.client() as client:
        while not client.get(job_id).state.final:
            for _ in range(20):
                found.most_log_bytes = max(found.most_log_bytes, 512 * log.stat().st_blocks)
                time.sleep(0.005)


def _follow(suite: RealSuite, job_id: str, found: Ran) -> None:
    """Follows a log from its beginning, while its program writes faster than anybody reads."""
    wait_until(lambda: suite.log_file(job_id), END_TIMEOUT_S, f"{job_id} has a log")
    with suite.client() as client:
        for chunk in client.logs(job_id, offset=0, follow=True):
            found.followed.append((chunk.offset, len(chunk.data)))
            if chunk.data != pattern(0, chunk.offset, len(chunk.data)):
                found.bad_offsets.append(chunk.offset)


def _end(job: Job) -> tuple[object, ...]:
    if not job.attempts:
        return (job.state, None)
    found = job.attempts[-1].exit
    return (job.state, len(job.attempts), *((found.reason, found.code, found.signal) if found is not None else ()))


def test_each_job_ended_as_its_program_did(ran: Ran) -> None:
    wanted = {
        name: (each.state, None) if each.reason is None else (each.state, 1, each.reason, each.code, each.signal)
        for name, each in ran.programs.items()
    }
    others = [
        f"{name}: {_end(job)}, not {wanted[name]}: {job.message}"
        for name, job in ran.jobs.items()
        if _end(job) != wanted[name]
    ]
    assert not others, "\n".join(others)


def test_each_end_is_explained(ran: Ran) -> None:
    unsaid = {name: job.message for name, job in ran.jobs.items() if ran.programs[name].says not in job.message}
    assert unsaid == {}
    without = [name for name, job in ran.jobs.items() if not job.message and job.state is not JobState.SUCCEEDED]
    assert without == []
    left = {name: job.attempts[-1].exit for name, job in ran.jobs.items() if ran.programs[name].left_behind}
    assert left
    few = {name: end for name, end in left.items() if end is None or end.left_behind < ran.programs[name].left_behind}
    assert few == {}


def test_programs_ran_on_the_gpus_and_from_when_they_began(ran: Ran, suite: RealSuite) -> None:
    with suite.client() as client:
        cluster = client.cluster()
        assert sorted(gpu.gpu_model for _, gpu in cluster.gpus()) == ["rtx_2080_ti"] * 2 + ["v100_sxm2"] * 2
        check_placements([job for job in ran.jobs.values() if job.attempts], cluster)
    for name, job in ran.jobs.items():
        for attempt in job.attempts:
            if ran.programs[name].reason is not EndReason.NOT_STARTED:
                assert attempt.run_s is not None, f"{name} did not report when its program began"
                assert attempt.start_s is not None
                assert attempt.end_s is not None
                assert attempt.start_s <= attempt.run_s <= attempt.end_s, name


def test_what_is_kept_of_logs_is_what_was_written(ran: Ran, suite: RealSuite) -> None:
    problems = []
    for name, program in ran.programs.items():
        if program.reason is None:
            continue
        for stream, output, size in zip(LogStream, (program.stdout, program.stderr), program.sizes, strict=True):
            if output is None:
                continue
            begin, data = suite.log(ran.jobs[name].job_id, stream)
            if begin + len(data) != size:
                problems.append(f"{name}: {stream.name} has {begin + len(data)} bytes, not {size}")
            elif data != output(begin, len(data)):
                problems.append(f"{name}: {stream.name} is not what was written: {data[:80]!r}")
            if size <= program.log_limit_mib << 19 and begin != 0:
                problems.append(f"{name}: {stream.name} begins at {begin}, though all of it fits")
    assert not problems, "\n".join(problems)


def test_a_program_knows_its_job_its_attempt_and_its_gpu(ran: Ran, suite: RealSuite) -> None:
    job = ran.jobs["whoami"]
    (attempt,) = job.attempts
    wanted = f"ADLRO_JOB_ID={job.job_id}\nADLRO_ATTEMPT={attempt.attempt}\nADLRO_GPU_IDS={attempt.gpu_id}\n"
    assert suite.log(job.job_id)[1].decode() == wanted


@pytest.mark.parametrize("name", ["flood", "flood-small"])
def test_a_log_keeps_its_end_and_its_offsets_and_no_more_room_than_its_limit(
    ran: Ran, suite: RealSuite, name: str
) -> None:
    program, job = ran[name]
    size, limit_bytes = program.sizes[0], program.log_limit_mib << 20
    path = suite.log_file(job.job_id)
    assert path is not None
    found = path.stat()
    assert found.st_size == size
    assert 512 * found.st_blocks <= MOST_RATIO * limit_bytes
    assert program.stdout is not None
    with suite.client() as client:
        for offset in (0, 1, size // 2, size - limit_bytes // 2 + 7, size - 1):
            chunk = next(iter(client.logs(job.job_id, offset=offset)))
            assert chunk.data == program.stdout(chunk.offset, len(chunk.data))
            assert chunk.size == size
            if offset >= size - limit_bytes // 2:
                assert chunk.offset == offset, "this much must be kept"
        tail = b"".join(chunk.data for chunk in client.logs(job.job_id, tail_bytes=1000))
        assert tail == program.stdout(size - 1000, 1000)


def test_a_follower_of_a_flood_gets_its_pieces_at_their_offsets(ran: Ran) -> None:
    assert ran.bad_offsets == []
    end = 0
    for offset, length in ran.followed:
        assert offset >= end
        end = offset + length
    assert end == 1 << 30
    sys.stderr.write(
        f"{len(ran.jobs)} programs took {ran.took_s:.1f} s; the flood's log had {ran.most_log_bytes >> 20} MiB on the "
        f"disk at most; {sum(length for _, length in ran.followed) >> 20} MiB of it were followed\n"
    )


def test_nothing_is_left_behind(ran: Ran, suite: RealSuite) -> None:
    # An attempt ends when nothing of it runs; its supervisor has nothing left to do then.
    wait_until(lambda: not suite.processes(), 20.0, f"no process is left of {suite.processes()}")
    daemons = [int(each.pid_file.read_text()) for each in ran.programs.values() if each.pid_file is not None]
    assert [pid for pid in daemons if is_alive(pid)] == []
    assert len(daemons) == 2
    with suite.client() as client:
        assert client.describe_cluster().running == ()
        assert client.describe_cluster().gpu_conditions == ()
        assert client.status().running_count == 0
    gpus = suite.json("gpus")["gpus"]
    assert [(gpu["state"], gpu["job_id"]) for gpu in gpus] == [("idle", "")] * 4


def test_the_commands_tell_of_each_end(ran: Ran, suite: RealSuite) -> None:
    rows = {row["job_id"]: row for row in suite.json("queue", "--all")["jobs"]}
    for name, job in ran.jobs.items():
        row = rows[job.job_id]
        assert (row["state"], row["message"]) == (job.state.name.lower(), job.message), name
    described = suite.command("describe", "job", ran.jobs["exit-3-1"].job_id)
    assert "exit code 3" in described.stdout, described.stderr
    described = suite.command("describe", "job", ran.jobs["killed-sigsegv"].job_id)
    assert "SIGSEGV" in described.stdout, described.stderr


def on_terminal(suite: RealSuite, *arguments: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*ADLRO, *suite.words(*arguments)],
            cwd=ROOT,
            env=suite.environment(TERM="xterm-256color"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    written = b""
    try:
        while select.select([ours], [], [], 60.0)[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # nobody has it open any more
                break
        assert process.wait(60.0) == 0, written
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return written


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_gets_no_escape_sequences_from_a_log_and_a_pipe_gets_its_bytes(
    ran: Ran, suite: RealSuite, stream: str
) -> None:
    job_id = ran.jobs["hostile"].job_id
    shown = on_terminal(suite, "logs", "--stream", stream, job_id)
    assert b"red" in shown
    assert b"overridden" in shown
    assert set(shown) & {*range(0x20), 0x7F} <= set(b"\n\r\t"), shown
    assert "\x9b" not in shown.decode(), shown
    assert "\u202e" not in shown.decode(), shown
    piped = subprocess.run(
        [*ADLRO, *suite.words("logs", "--stream", stream, job_id)],
        cwd=ROOT,
        env=suite.environment(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert (piped.stdout if stream == "stdout" else piped.stdout + piped.stderr) == HOSTILE


def test_names_and_arguments_of_programs_are_shown_and_never_obeyed(ran: Ran, suite: RealSuite) -> None:
    with suite.client() as client:
        hostile = RealProgram("hostile-words", ("echo", HOSTILE[:60].decode()), JobState.SUCCEEDED)
        job = client.submit(hostile.spec(suite.user))
        (job,) = client.wait([job.job_id], timeout_s=60.0)
        assert job.state is JobState.SUCCEEDED, job.message
    for arguments in (("queue", "--all"), ("describe", "job", job.job_id)):
        said = suite.command(*arguments)
        assert said.returncode == 0, said.stderr
        assert "\x1b" not in said.stdout + said.stderr
        shown = on_terminal(suite, *arguments)
        assert b"\x1b]" not in shown
        assert b"\x07" not in shown
        assert b"\x1b[2J" not in shown
        assert b"\x1b[?1049h" not in shown


@pytest.mark.parametrize(("words", "code", "stdout", "stderr"), [
    ((*PROGRAM, "end", "0", "100000"), 0, pattern(0, 0, 100_000), b""),
    ((*PROGRAM, "both", "5000"), 0, pattern(1, 0, 5000), pattern(2, 0, 5000)),
    ((*PROGRAM, "end", "3"), 3, b"", b""),
    ((*PROGRAM, "die", "11"), 128 + 11, b"about to die\n", b""),
])  # fmt: skip
def test_run_ends_as_its_program_does_and_writes_what_it_writes(
    suite: RealSuite, words: tuple[str, ...], code: int, stdout: bytes, stderr: bytes
) -> None:
    ended = subprocess.run(
        [*ADLRO, *suite.words("run", "--memory", "192MiB", "--", *words)],
        cwd=ROOT,
        env=suite.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (code, stdout), ended.stderr
    assert stderr in ended.stderr
