"""The terminal that the screen is drawn on: it may be slow, stand still or vanish, and is put back at the end.

Textual's own driver draws on stderr, which may be redirected and which libraries write to; it waits without end for a
terminal that takes nothing, and goes on without one that is gone. Imports Textual, and nothing of the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import termios
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

_STDIN, _STDOUT = 0, 1
_KEPT_BACK_BYTES = 8192
_LOOK_S = 0.5
"""Between two looks whether the terminal is still there."""
_LAST_WORDS_S = 1.0
"""At the end a terminal that takes nothing for so long gets no more of the pictures."""
_HANGS_AFTER_S = 4.0
"""A screen that has not ended so long after a signal is ended by force."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_GONE = select.POLLHUP | select.POLLERR
_MODES_BACK = (
    b"\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # paste, wrap, size, mouse
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"  # keys, screen, cursor, focus
)
"""What Textual writes at its end, for when it could not."""


class Terminal:
    """Stdout's terminal, as the file that Textual's thread writes to.

    Its writes do not fail: after the terminal has vanished, or at the end if it takes nothing, what is written is
    dropped, so that nobody waits for it.

    Attributes:
        vanished: whether it is gone: its window was closed, or its connection broke.
    """

    def __init__(self) -> None:
        self.vanished = False
        self._file = _opened_anew()
        self._settings = _settings()
        self._parts: list[bytes] = []
        self._kept_back = 0
        self._taken_s = time.monotonic()
        self._ends = False
        self._dropped = False

    # As a file

    def fileno(self) -> int:
        """Its number."""
        return self._file

    def write(self, text: str) -> int:
        """Writes, perhaps at the next flush."""
        data = text.encode("utf-8", "replace")
        self._parts.append(data)
        self._kept_back += len(data)
        if self._kept_back >= _KEPT_BACK_BYTES:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Writes what was kept back, and waits until it is taken or nobody will take it."""
        rest = memoryview(b"".join(self._parts))
        self._parts.clear()
        self._kept_back = 0
        while rest and not self.vanished:
            try:
                rest = rest[os.write(self._file, rest) :]
                self._taken_s = time.monotonic()
            except BlockingIOError:
                if not self._has_room():
                    return
            except OSError:
                self.vanished = True

    def _has_room(self) -> bool:
        """Waits for room, at the end for a while only."""
        while not select.select((), (self._file,), (), 0.1)[1]:
            if self._ends and time.monotonic() - self._taken_s > _LAST_WORDS_S:
                self._dropped = True
                return False
        return True  # or it is gone, which the write says

    # Its life

    def look(self) -> bool:
        """Whether the terminal is still there."""
        for number in (self._file, _STDIN):
            seen = select.poll()
            seen.register(number, 0)
            if any(events & _GONE for _, events in seen.poll(0)):
                self.vanished = True
        return not self.vanished

    def begin(self) -> None:
        """From now on all that is written is waited for."""
        self._ends = False

    def end(self) -> None:
        """From now on a terminal that takes nothing is not waited for. Safe in the handler of a signal."""
        if not self._ends:
            self._taken_s = time.monotonic()
            self._ends = True

    def restore(self, *, by_force: bool = False) -> None:
        """Puts the settings back, and the modes if Textual did not.

        Never waits: of a terminal that takes nothing, the rest of the pictures is thrown away to make room.
        """
        if self._settings is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(_STDIN, termios.TCSANOW, self._settings)
        if not (by_force or self._dropped):
            return
        blocks = os.get_blocking(self._file)
        with contextlib.suppress(termios.error, OSError):
            termios.tcflush(self._file, termios.TCOFLUSH)
            os.set_blocking(self._file, False)
            os.write(self._file, _MODES_BACK)
        os.set_blocking(self._file, blocks)

    def close(self) -> None:
        """Closes its file."""
        os.close(self._file)


def _opened_anew() -> int:
    """A file of stdout's terminal that never blocks; the shell's own one, which stdout is, must stay as it is."""
    try:
        return os.open(os.ttyname(_STDOUT), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        # Another user's, as after sudo, or of another root folder, as in a container.
        return os.dup(_STDOUT)


def _settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(_STDIN)
    except termios.error:
        return None


def driver_on(terminal: Terminal) -> type[LinuxDriver]:
    """Textual's driver, on this terminal; signals and the terminal's end leave the app."""

    class TerminalDriver(LinuxDriver):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._file = terminal  # type: ignore[assignment]  # it has what Textual's thread uses of a file
            self._looks = False

        def start_application_mode(self) -> None:
            """Also after Ctrl-Z and `fg`."""
            terminal.begin()
            _leave_on_signals(terminal, asyncio.get_running_loop(), self._leave)
            if not self._looks:
                self._looks = True
                self._look()
            super().start_application_mode()  # type: ignore[no-untyped-call]

        def stop_application_mode(self) -> None:
            """Also before Ctrl-Z stops the program."""
            terminal.end()
            super().stop_application_mode()

        def _leave(self, code: int) -> None:
            self._app.exit(code)

        def _look(self) -> None:
            # A vanished terminal's input ends without a word, and a paused screen writes nothing that could fail.
            if terminal.look():
                asyncio.get_running_loop().call_later(_LOOK_S, self._look)
            else:
                self._leave(128 + signal.SIGHUP)

    return TerminalDriver


def _leave_on_signals(terminal: Terminal, loop: asyncio.AbstractEventLoop, leave: Callable[[int], None]) -> None:
    """Lets a signal leave the app with 128 + its number, and end the process if the app does not end soon.

    Not by the loop's own handlers: they run when the loop goes on, and it may be waiting for the terminal.
    """
    code = 0

    def ask(number: int, _frame: FrameType | None) -> None:
        nonlocal code
        code = 128 + number
        terminal.end()
        signal.setitimer(signal.ITIMER_REAL, _HANGS_AFTER_S)
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(leave, code)

    def end_by_force(_number: int, _frame: FrameType | None) -> None:
        terminal.restore(by_force=True)
        os._exit(code)

    signal.signal(signal.SIGALRM, end_by_force)
    for number in _SIGNALS:
        signal.signal(number, ask)


@contextlib.contextmanager
def signals_as_before() -> Iterator[None]:
    """At its end signals do what they did at its begin."""
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
