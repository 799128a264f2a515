"""A network in ONNX Runtime: how a file is opened and asked, whoever does it. ONNX Runtime only.

A network may answer never. What asks it is a thread that nobody can end, so each run carries the means to end it: at
the end of the process all are ended, since ONNX Runtime aborts the process where one is under way.
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
        content: of the file.
        threads: that compute one decision.

    Raises:
        Exception: it can't be run; ONNX Runtime has a dozen exceptions, with no common base but this.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong comes as an exception
    opening = onnxruntime.RunOptions()  # in ONNX Runtime, as a run is: the end of the process waits for it
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
        """OUTPUTS for the inputs.

        Raises:
            Exception: it can't answer, or was stopped.
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
        """Ends what is under way, at its next operator."""
        _stop(self._under_way)


_ALL: set[onnxruntime.RunOptions] = set()
_END_S = 1.5
_ending = threading.Event()


def _refuse_at_the_end() -> None:
    """For what would begin when all else has been ended: a thread on a loaded machine may come so late."""
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
