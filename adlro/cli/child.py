"""`python -m adlro.cli.child MODULE PARENT_PID` runs a module as `python -m MODULE` does, and ends with its parent.

Its start is reported in its log from the first import on (adlro.kit.start_report).

On Linux it asks the kernel for SIGTERM when its parent is gone, so that a killed `adlro up` leaves nothing behind. This
is done here and not between fork and exec, where code that runs beside gRPC's threads may hang.
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
    """From now on SIGTERM comes when the parent ends; does nothing where the system does not offer it."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it ended before this process could ask
        sys.exit(1)


if __name__ == "__main__":
    module, parent = sys.argv[1:]
    sys.argv[1:] = []
    end_with(int(parent))
    start_report.begin(module.rpartition(".")[2])
    runpy.run_module(module, run_name="__main__", alter_sys=True)
