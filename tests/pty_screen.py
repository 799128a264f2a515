"""A program on a terminal of its own: what it writes, and the terminal's settings before and after it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class PtyProgram:
    """A running program whose stdin and stdout are a new terminal.

    Args:
        command: the program and its arguments.
        env: its environment.
        cwd: its working directory.
        size: columns and lines.
        stderr: where its stderr goes; None: to the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        size: tuple[int, int] = (120, 40),
        stderr: Any = None,
    ) -> None:
        self.main, side = pty.openpty()
        self.resize(*size, notify=False)
        self.settings = termios.tcgetattr(side)
        self._side = side
        self.written = bytearray()
        self.process = subprocess.Popen(
            command,
            env={**env, "TERM": "xterm-256color"},
            cwd=cwd,
            stdin=side,
            stdout=side,
            stderr=side if stderr is None else stderr,
            start_new_session=True,
        )
        self._wake, self._woken = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                ready, _, _ = select.select([self.main, self._wake], [], [])
                data = b"" if self._wake in ready else os.read(self.main, 65536)
            except OSError:
                return
            if not data:
                return
            self.written += data

    def stop_reading(self) -> None:
        """From now on nobody takes what the program writes, as of a connection that stands still."""
        os.write(self._woken, b"x")
        self._reader.join(5.0)

    def read_again(self) -> None:
        """The connection goes on."""
        os.read(self._wake, 1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def vanish(self) -> None:
        """The terminal is gone, as when its window or its connection is; nobody tells the program."""
        self.stop_reading()
        os.close(self._side)
        os.close(self.main)

    def resize(self, columns: int, lines: int, *, notify: bool = True) -> None:
        """Another size of the terminal; the program is told, as terminals do."""
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if notify:
            self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: bytes) -> None:
        """Types."""
        os.write(self.main, keys)

    def wait_for(self, text: str, timeout_s: float = 60.0, *, after: int = 0) -> float:
        """Returns how long it took until the program had written that, seconds."""
        begin_s = time.monotonic()
        while text.encode() not in self.written[after:]:
            if self.process.poll() is not None or time.monotonic() - begin_s > timeout_s:
                raise AssertionError(f"no {text!r} in:\n{self.written[-4000:].decode(errors='replace')}")
            time.sleep(0.005)
        return time.monotonic() - begin_s

    @property
    def settings_now(self) -> list[Any]:
        """Of the terminal."""
        return termios.tcgetattr(self._side)

    def end(self, timeout_s: float = 30.0) -> int:
        """Waits for the end; kills what does not end."""
        try:
            return self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def close(self) -> None:
        """Ends the program and the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.stop_reading()
        for each in (self._side, self.main, self._wake, self._woken):
            with contextlib.suppress(OSError):
                os.close(each)
