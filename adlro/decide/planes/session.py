"""Opens and runs a network in ONNX Runtime, for any caller. ONNX Runtime only.

A network may never answer. It runs in a thread, which can't be killed, so each run can be stopped: at the end of the
process all are stopped, since ONNX Runtime aborts a process with a run under way.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any

import onnxruntime

INPUTS = ("gpus", "jobs", "cluster", "pairs", "pair_cluster", "pair_job", "pair_place")
OUTPUTS = ("q_pairs", "q_hold")


def open_session(content: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session for the content of an ONNX file.

    Args:
        content: content of the file.
        threads: number of threads for one decision.

    Raises:
        Exception: the network can't be run; ONNX Runtime has a dozen exceptions, without another common base.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # problems are raised as exceptions
    opening = onnxruntime.RunOptions()  # ends an opening as it ends a run: the end of the process waits for it
    _ALL.add(opening)
    try:
        _refuse_at_the_end()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    finally:
        _ALL.discard(opening)


class Runs:
    """The runs of one session that are under way."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._under_way: set[onnxruntime.RunOptions] = set()

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """The OUTPUTS for the inputs.

        Raises:
            Exception: the network can't answer, or was stopped.
        """
        options = onnxruntime.RunOptions()
        self._under_way.add(options)
        _ALL.add(options)
        try:
            _refuse_at_the_end()
            answer: list[Any] = self._session.run(OUTPUTS, inputs, options)
        finally:
            self._under_way.discard(options)
            _ALL.discard(options)
        return answer

    def stop(self) -> None:
        """Stops all runs under way, at their next operator."""
        _stop(self._under_way)


_ALL: set[onnxruntime.RunOptions] = set()
_END_S = 1.5
_ending = threading.Event()


def _refuse_at_the_end() -> None:
    """Refuses runs that would begin after all others were stopped: a thread on a loaded machine may be so late."""
    if _ending.is_set():
        raise RuntimeError("the process is ending")


def _stop(runs: set[onnxruntime.RunOptions]) -> None:
    for options in tuple(runs):
        options.terminate = True


@atexit.register
def _end_all() -> None:
    _ending.set()
    _stop(_ALL)
    until_s = time.monotonic() + _END_S
    while _ALL and time.monotonic() < until_s:
        time.sleep(0.001)
