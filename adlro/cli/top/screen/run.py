"""Draws the screen on the terminal of stdout, and leaves the terminal as it was, however the program ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from adlro.cli.shell import EXIT_ERROR, connect_async
from adlro.cli.top.job_rows import JobSearch, RowOrder
from adlro.cli.top.screen.app import TopApp
from adlro.cli.top.screen.terminal import Terminal, driver_on, signals_as_before

_TIMEOUT_S = 5.0
"""A call without an answer for so long has failed: what the screen shows must not be old."""
_KEPT_BYTES = 65536
_STDERR = 2


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
    """Shows the screen until the user leaves it, a signal ends it or the terminal is gone; returns its exit code."""
    client = connect_async(server, patience_s=0.0, timeout_s=_TIMEOUT_S)
    terminal = Terminal()
    with _stderr_held() as held:
        app = TopApp(client, JobSearch(search), order, interval_s)
        app.driver_class = driver_on(terminal)
        with signals_as_before():
            returned = app.run()
            gone = not terminal.look()
            terminal.restore()
        terminal.close()
        size = held.seek(0, os.SEEK_END)
        held.seek(max(size - _KEPT_BYTES, 0))
        said = held.read()
    code = returned if returned is not None else app.return_code or 0
    if gone and returned is None:  # Textual may have failed by it first
        code = 128 + signal.SIGHUP
    # Of a good end nobody wants to read what a library noted, unless he asked for it by a redirection.
    if said and (app.return_code == EXIT_ERROR or not sys.stderr.isatty()):
        with contextlib.suppress(OSError):  # it is the vanished terminal's, too
            sys.stderr.buffer.write(said)
            sys.stderr.flush()
    return code
