"""Programs that note each of their starts, on a suite whose processes are killed; and what must hold of them after."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from adlro.client import Client
from adlro.records.jobs import Job, JobState
from adlro.records.payloads import EndReason
from tests.e2e.real_programs import PROGRAM, RealProgram
from tests.e2e.real_suite import RealSuite, start_real_suite
from tests.e2e.running_suite import wait_until

END_TIMEOUT_S = 120.0


class CountedPrograms:
    """A suite, and the programs that are given to it.

    Attributes:
        suite: it; another one after `start_again`.
        codes: of the jobs, the exit codes with which their programs end.
        killed: attempts whose supervisor was killed, by job and attempt.
        stopped: jobs that must end otherwise than by themselves: cancelled, or at their time limit.

    Args:
        folder: for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suite = self._start()
        self.codes: dict[str, int] = {}
        self.killed: set[tuple[str, int]] = set()
        self.stopped: dict[str, EndReason] = {}
        self._ticks: dict[str, int] = {}

    def _start(self) -> RealSuite:
        return start_real_suite(self.folder / "data", self.folder / "home", "--policy", "fcfs")

    @property
    def starts_file(self) -> Path:
        """Has a line for each start of a program."""
        return self.folder / "starts"

    def starts(self) -> Counter[tuple[str, int]]:
        """How often each attempt was started, by job and attempt: what the programs themselves have noted."""
        if not self.starts_file.exists():
            return Counter()
        lines = [line.split() for line in self.starts_file.read_text().splitlines()]
        return Counter((job_id, int(attempt)) for job_id, attempt in lines)

    # ---- jobs

    def submit(self, client: Client, ticks: Sequence[int]) -> list[str]:
        """Submits a program for each number of ticks, of which 20 are a second; each ends with a code of its own."""
        return [self.submit_one(client, count, len(self.codes) % 100) for count in ticks]

    def submit_one(self, client: Client, ticks: int, code: int, time_limit_s: float = END_TIMEOUT_S) -> str:
        """Submits one program."""
        argv = (*PROGRAM, "tick", str(self.starts_file), str(ticks), str(code))
        program = RealProgram("counted", argv, JobState.SUCCEEDED, time_limit_s=time_limit_s)
        job_id = client.submit(program.spec(self.suite.user)).job_id
        self.codes[job_id], self._ticks[job_id] = code, ticks
        if time_limit_s < END_TIMEOUT_S:
            self.stopped[job_id] = EndReason.TIME_LIMIT
        return job_id

    def cancel(self, client: Client, job_id: str) -> None:
        """Cancels a job whose program has not ended."""
        self.stopped[job_id] = EndReason.STOPPED
        client.cancel(job_id)

    def wait_until_started(self, job_ids: Iterable[str], attempt: int = 1) -> None:
        """Returns when the programs of these attempts have noted their starts."""
        wanted = {(job_id, attempt) for job_id in job_ids}
        wait_until(lambda: wanted <= self.starts().keys(), END_TIMEOUT_S, f"{wanted} start, of {self.starts()}")

    def running(self) -> list[tuple[str, int]]:
        """Attempts whose programs were started and have not ended, by their folders."""
        found = []
        for name, folder in self.suite.folders().items():
            if (folder / "run.json").exists() and not (folder / "exit.json").exists():
                job_id, attempt, *_ = name.split(".")
                found.append((job_id, int(attempt)))
        return sorted(found)

    # ---- faults

    def kill(self, *names: str) -> None:
        """Kills services (or `valkey`, or `supervisor`: of one attempt that runs) at one moment."""
        pids = self.suite.running.pids
        for name in names:
            if name == "supervisor":
                self.kill_supervisor()
            else:
                send(pids[name], signal.SIGKILL)

    def kill_supervisor(self, job_id: str = "") -> bool:
        """Kills the supervisor of a running attempt: of that job, or of any; False: there is none."""
        for job, attempt in self.running():
            folder = self.suite.folder(job, attempt)
            if job_id in ("", job) and folder is not None and self.suite.kill_supervisor(folder):
                self.killed.add((job, attempt))
                return True
        return False

    def pause(self, name: str) -> int | None:
        """Stops a service as it stands; its PID, for SIGCONT. None: it is down."""
        pid = self.suite.running.pids[name]
        send(pid, signal.SIGSTOP)
        return pid

    def wait_until_back(self, name: str, old: int) -> int:
        """Returns the PID of a service that was killed, when `adlro up` has started it again."""
        wait_until(lambda: self.suite.running.pids.get(name) not in (None, old), END_TIMEOUT_S, f"{name} is back")
        return self.suite.running.pids[name]

    def kill_all(self) -> None:
        """Kills `adlro up` and all that it has started; not the programs."""
        pids = self.suite.running.pids
        self.suite.running.process.kill()
        for pid in pids.values():
            send(pid, signal.SIGKILL)
        self.suite.running.end()

    def start_again(self) -> None:
        """Starts the suite on the same data."""
        self.suite = self._start()

    # ---- the verdict

    def check(self, client: Client, job_ids: Sequence[str]) -> list[Job]:
        """Waits for jobs and checks what must hold of them, whatever was killed; returns them."""
        client.wait(job_ids, timeout_s=END_TIMEOUT_S)
        jobs = [client.get(job_id) for job_id in job_ids]
        starts = self.starts()
        twice = {attempt: count for attempt, count in starts.items() if count > 1}
        assert not twice, f"started more than once: {twice}"
        for job in jobs:
            self._check_end(job, starts)
        wait_until(lambda: not self.suite.processes(), 20.0, f"nothing is left running of {self.suite.processes()}")
        assert [each.job_id for each in client.describe_cluster().running if each.job_id in job_ids] == []
        self._check_no_two_at_once(jobs)
        return jobs

    def _check_end(self, job: Job, starts: Counter[tuple[str, int]]) -> None:
        name, code = job.job_id, self.codes[job.job_id]
        assert [each.attempt for each in job.attempts] == list(range(1, job.attempt_count + 1)), name
        reason = self.stopped.get(name, EndReason.EXITED)
        if reason is EndReason.STOPPED and (not job.attempts or (name, job.attempt_count) not in starts):
            assert job.state is JobState.CANCELLED, f"{name}: {job.state.name}, {job.message}"
            assert job.message, f"{name} is {job.state.name} without a word"
            return
        *lost, last = job.attempts
        assert (name, last.attempt) in starts, f"{name} ended and never ran: {job.message}"
        state = JobState.CANCELLED if reason is EndReason.STOPPED else JobState.FAILED
        if reason is EndReason.EXITED and code == 0:
            state = JobState.SUCCEEDED
        assert job.state is state, f"{name}: {job.state.name}, {job.message}"
        assert last.exit is not None, f"nobody knows how {name} ended: {job.message}"
        if reason is EndReason.STOPPED and (name, last.attempt) in self.killed:
            reason = last.exit.reason
            assert reason in (EndReason.STOPPED, EndReason.SUPERVISOR_LOST), f"{name}: {last.exit}"
        assert last.exit.reason is reason, f"{name}: {last.exit}"
        assert job.message or state is JobState.SUCCEEDED, f"{name} is {state.name} without a word"
        if reason is EndReason.EXITED:
            assert last.exit.code == code, f"{name}: {last.exit}"
            assert code == 0 or f"exit code {code}" in job.message
        for each in lost:
            assert each.outcome.startswith("lost: "), f"{name}: {each}"
            assert len(each.outcome) > len("lost: "), f"{name}: attempt {each.attempt} was lost without a word"
            if (name, each.attempt) in starts:
                assert (name, each.attempt) in self.killed, f"{name}: a program was lost that nobody killed: {each}"
        ran = [attempt for job_id, attempt in starts if job_id == name]
        assert set(ran) <= {each.attempt for each in job.attempts}, f"{name}: an attempt ran that no record knows"
        begin, data = self.suite.log(name)
        wanted = b"".join(b"tick %d\n" % number for number in range(self._ticks[name]))
        if reason is not EndReason.EXITED:
            wanted = wanted[: len(data)]
        assert (begin, data) == (0, wanted), f"the log of {name}"

    @staticmethod
    def _check_no_two_at_once(jobs: Sequence[Job]) -> None:
        """No GPU had two of these attempts at once."""
        held: dict[str, list[tuple[float, float, str]]] = {}
        for job in jobs:
            for each in job.attempts:
                if each.start_s is not None:
                    assert each.end_s is not None
                    held.setdefault(each.gpu_id, []).append((each.start_s, each.end_s, job.job_id))
        for gpu_id, spans in held.items():
            spans.sort()
            for (_, end_s, one), (start_s, _, other) in itertools.pairwise(spans):
                assert end_s <= start_s, f"{one} and {other} were on {gpu_id} at once"


def send(pid: int | None, number: int) -> None:
    """Sends a signal to a process that may have gone; None: it is down."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
