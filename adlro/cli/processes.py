"""One service as a child process: its start, its log, its end. Knows nothing of the services' functions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import adlro
from adlro.kit.private_files import UMASK, private_directory, private_opener

LOGS_KEPT = 3


def rotate(log: Path, kept: int = LOGS_KEPT) -> None:
    """Renames `x.log` to `x.log.1`, that to `x.log.2`, and so on; deletes the oldest."""
    if not log.exists():
        return
    for number in range(kept, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        newer = log if number == 1 else log.with_name(f"{log.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


def log_tail(log: Path, lines: int = 3) -> list[str]:
    """The last lines of a log, with the cause of a service's end; structured lines as their event and error."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64_000))
            found = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    told = []
    for line in reversed(found):
        text = line.strip()
        with contextlib.suppress(ValueError):
            entry = json.loads(text)
            if isinstance(entry, dict):
                if entry.get("level") in ("debug", "info"):
                    continue
                parts = [str(entry[key]) for key in ("event", "problem", "error") if entry.get(key)]
                # Only the last line of a traceback; the log has the others.
                parts += str(entry.get("exception", "")).splitlines()[-1:]
                text = ": ".join(parts)
        if text:
            told.append(text)
        if len(told) == lines:
            break
    return told[::-1]


class NewLogLines:
    """The new structured lines of a log: each once, as soon as it is complete."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_bytes = 0

    def read(self) -> list[dict[str, Any]]:
        """The lines since the last call; unstructured ones are left out."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return []
        self._read_bytes += len(whole) + 1 if whole else 0
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    found.append(entry)
        return found


class ServiceProcess:
    """`python -m <module>` with settings in its environment, which ends when this process ends.

    Args:
        name: name of the service, in messages and of its log.
        module: the module to run.
        settings: added to this process's own environment.
        log_dir: directory of `<name>.log`, only for logs; other users have no access.
        echo: also called with each line of the log.
    """

    def __init__(
        self,
        name: str,
        module: str,
        settings: Mapping[str, str],
        log_dir: Path,
        echo: Callable[[str, str], None] | None = None,
    ) -> None:
        self.name = name
        self.log = log_dir / f"{name}.log"
        self._module = module
        self._settings = dict(settings)
        self._echo = echo
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Id of the running process; None without one."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        """Starts the process; appends to an existing log."""
        private_directory(self.log.parent)
        with open(self.log, "ab", opener=private_opener) as log:  # noqa: ASYNC230  # it is a local file, and a moment
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "adlro.cli.child",
                self._module,
                str(os.getpid()),
                env={**os.environ, **import_path(), **self._settings},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self._echo else log,
                stderr=asyncio.subprocess.STDOUT,
                # A separate session: Ctrl-C in the terminal reaches only `adlro up`, which stops the services in order.
                start_new_session=True,
                umask=UMASK,
            )
        if self._echo:
            self._pump = asyncio.create_task(self._copy_log(self._echo))

    async def _copy_log(self, echo: Callable[[str, str], None]) -> None:
        assert self._process is not None
        stream = self._process.stdout
        assert stream is not None
        with self.log.open("ab", buffering=0) as log:
            await _copy(stream, log, lambda line: echo(self.name, line))

    async def ended(self) -> int:
        """Waits for the process's end; returns its exit code, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, grace_s: float) -> bool:
        """Sends SIGTERM, and SIGKILL after `grace_s`. True if it ended by itself in time, or was not running."""
        process = self._process
        in_time = True
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), grace_s)
            except TimeoutError:
                in_time = False
                self.kill()
                await process.wait()
        if self._pump is not None:
            await asyncio.wait([self._pump], timeout=1.0)
        return in_time

    def kill(self) -> None:
        """Sends SIGKILL at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def _copy(stream: asyncio.StreamReader, log: IO[bytes], echo: Callable[[str], None]) -> None:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # a line beyond the reader's limit; its rest follows
            continue
        if not line:
            return
        log.write(line)
        echo(line.decode(errors="replace").rstrip())


def import_path() -> dict[str, str]:
    """Lets the child import this process's packages, and no files of the working directory."""
    root = str(Path(adlro.__file__).resolve().parent.parent)
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{root}{os.pathsep}{others}" if others else root, "PYTHONSAFEPATH": "1"}


def exit_text(code: int) -> str:
    """An exit code in words: `exit code 1`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
