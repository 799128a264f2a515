"""`adlro up --cluster local` for tests: its client, its commands, and what of its programs is on the machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.attempt.journal import Journal
from adlro.attempt.linux import open_process
from adlro.client import Client, Credentials
from adlro.records.jobs import Job
from adlro.records.payloads import LogStream
from tests.e2e.running_suite import RunningSuite, adlro, environment, marked_pids, start_suite

FAKE_GPUS = "v100_sxm2:2,rtx_2080_ti:2"
OPTIONS = ("--cluster", "local", "--fake-gpus", FAKE_GPUS, "--port", "0")


@dataclass
class RealSuite:
    """The running suite of one machine, and the home of the user who started it."""

    running: RunningSuite
    home: Path

    @property
    def server(self) -> str:
        """ingest's address."""
        return self.running.server

    @property
    def user(self) -> str:
        """Of the token."""
        return self.token.rpartition(".")[0]

    @property
    def token(self) -> str:
        """The operator's."""
        return (self.running.data_dir / "secrets" / "operator.token").read_text().strip()

    def client(self, patience_s: float = 60.0) -> Client:
        """A client with the operator's token."""
        return Client(self.server, credentials=Credentials(token=self.token), patience_s=patience_s)

    def environment(self, **more: str) -> dict[str, str]:
        """Of a command of the user who started the suite."""
        return environment(XDG_STATE_HOME=str(self.home), **more)

    def command(self, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """An `adlro` command of that user, who names nothing but the address.

        Args:
            arguments: its words.
            timeout_s: for its end.
        """
        return adlro(*self.words(*arguments), env=self.environment(), timeout_s=timeout_s)

    def words(self, *arguments: str) -> list[str]:
        """The words of a command, with the address: before the program, if there is one."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        return [*arguments[:at], "--server", self.server, *arguments[at:]]

    def json(self, *arguments: str) -> Any:
        """What a command says with `-o json`; it must succeed."""
        ended = self.command(*arguments, "-o", "json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def folders(self) -> dict[str, Path]:
        """The folders of attempts on the machine, by the attempt's name: `<job>.<attempt>.<more>`."""
        # A glob would raise where a folder goes while it is looked at (Python 3.11).
        found = (Path(folder) for folder, _, files in os.walk(self.running.data_dir) if "intent.json" in files)
        return {each.name: each for each in found}

    def folder(self, job_id: str, attempt: int = 1) -> Path | None:
        """Of one attempt; None: there is none (yet)."""
        found = [path for name, path in self.folders().items() if name.split(".")[:2] == [job_id, str(attempt)]]
        assert len(found) <= 1, f"attempt {attempt} of {job_id} has several folders"
        return found[0] if found else None

    def log_file(self, job_id: str, stream: LogStream = LogStream.STDOUT) -> Path | None:
        """The log of a job's first attempt on the disk; None: there is none yet."""
        folder = self.folder(job_id)
        path = None if folder is None else folder / stream.name.lower()
        return path if path is not None and path.exists() else None

    def log(self, job_id: str, stream: LogStream = LogStream.STDOUT) -> tuple[int, bytes]:
        """The offset of the first byte of a log, and all that is kept of it; without gaps."""
        with self.client() as client:
            chunks = list(client.logs(job_id, stream))
        assert chunks, f"no answer about the output of {job_id}"
        end = chunks[0].offset
        for chunk in chunks:
            assert chunk.offset == end, "there is a gap in what is kept"
            end += len(chunk.data)
        assert end == chunks[-1].size
        return chunks[0].offset, b"".join(chunk.data for chunk in chunks)

    def processes(self) -> dict[int, str]:
        """What runs of the attempts: supervisors, and what bears their marks. Command lines by PID."""
        marks = set()
        folders = self.folders().values()
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):
                marks.add(f"ADLRO_MARK={json.loads((folder / 'intent.json').read_text())['mark']}".encode())
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                borne = (process / "environ").read_bytes().split(b"\0")
            except OSError:  # it has gone
                continue
            if marks & set(borne) or {*map(os.fsencode, folders)} & set(command.split(b"\0")):
                found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def kill_supervisor(self, folder: Path) -> bool:
        """Kills the supervisor of an attempt; False: there is none."""
        process = Journal(str(folder)).supervisor()
        fd = None if process is None else open_process(*process)
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def end_all(self) -> None:
        """Ends the suite and, whatever has become of it, what runs of its programs."""
        if self.running.process.poll() is None:
            with contextlib.suppress(Exception), self.client(5.0) as client:
                client.wait([job.job_id for job in _cancelled(client)], timeout_s=20.0)
        self.running.end()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_end(self, code: int) -> None:
        """The suite ended well, and nothing of it is left."""
        assert code == 0, self.running.text
        assert self.running.error_lines() == []
        assert marked_pids(self.running.mark) == []
        assert self.processes() == {}


def _cancelled(client: Client) -> Iterator[Job]:
    for job in client.list():
        if not job.state.final:
            with contextlib.suppress(Exception):
                yield client.cancel(job.job_id)


def start_real_suite(data_dir: Path, home: Path, *options: str, **env: str) -> RealSuite:
    """Starts `adlro up --cluster local` with pretended GPUs; returns when it is ready."""
    return RealSuite(start_suite(data_dir, *OPTIONS, *_users(home), *options, XDG_STATE_HOME=str(home), **env), home)


def _users(home: Path) -> tuple[str, ...]:
    """As which user programs run: as the tests' own, also where that is root."""
    if os.geteuid() != 0:
        return ()
    home.mkdir(parents=True, exist_ok=True)
    users = home / "users"
    users.write_text("* root\n")
    users.chmod(0o600)
    # Where the service could run programs of other users, these must come through to their files.
    home.parent.chmod(0o755)
    return ("--users-map", str(users))
