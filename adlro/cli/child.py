"""`python -m adlro.cli.child MODULE PARENT_PID` runs a module as `python -m MODULE`, and ends with its parent.

Its log has a report of its start from the first import on (adlro.kit.start_report).

On Linux it requests SIGTERM from the kernel for its parent's end, so that a killed `adlro up` leaves no processes. It
does so here, not between fork and exec, where code beside gRPC's threads may hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys

from adlro.kit import start_report

_PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int) -> None:
    """Requests SIGTERM for the parent's end; no effect on systems without this function."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it ended before the request
        sys.exit(1)


if __name__ == "__main__":
    module, parent = sys.argv[1:]
    sys.argv[1:] = []
    end_with(int(parent))
    start_report.begin(module.rpartition(".")[2])
    runpy.run_module(module, run_name="__main__", alter_sys=True)
