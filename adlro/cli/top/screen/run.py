"""Draws the screen on the terminal of stdout, and leaves the terminal as it was, however the program ends."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from textual.drivers.linux_driver import LinuxDriver

from adlro.cli.shell import EXIT_ERROR, connect_async
from adlro.cli.top.job_rows import JobSearch, RowOrder
from adlro.cli.top.screen.app import TopApp

_TIMEOUT_S = 5.0
"""A call without an answer for so long has failed: what the screen shows must not be old."""
_KEPT_BYTES = 65536
_STDOUT, _STDERR = 1, 2


class _TerminalDriver(LinuxDriver):
    """Draws on stdout's terminal. Textual's own draws on stderr, which may be redirected, and libraries write there."""

    drawn_on: io.TextIOWrapper

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = self.drawn_on


@contextlib.contextmanager
def _stderr_held() -> Iterator[BinaryIO]:
    """Lets what anything writes to stderr, gRPC's C core too, go to a file while the screen is drawn."""
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STDERR)
        try:
            yield held
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STDERR)
            os.close(kept)


def run_screen(server: str | None, search: str, order: RowOrder, interval_s: float) -> int:
    """Shows the screen until the user leaves it; returns its exit code."""
    client = connect_async(server, patience_s=0.0, timeout_s=_TIMEOUT_S)
    with open(os.dup(_STDOUT), "w", encoding="utf-8", errors="replace", closefd=True) as terminal:
        driver = type("TerminalDriver", (_TerminalDriver,), {"drawn_on": terminal})
        with _stderr_held() as held:
            app = TopApp(client, JobSearch(search), order, interval_s)
            app.driver_class = driver
            returned = app.run()
            size = held.seek(0, os.SEEK_END)
            held.seek(max(size - _KEPT_BYTES, 0))
            said = held.read()
    code = returned if returned is not None else app.return_code or 0
    # Of a good end nobody wants to read what a library noted, unless he asked for it by a redirection.
    if said and (app.return_code == EXIT_ERROR or not sys.stderr.isatty()):
        sys.stderr.buffer.write(said)
        sys.stderr.flush()
    return code
