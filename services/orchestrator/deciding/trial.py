"""Tries a network out in a separate process before this process loads it. Starts processes; no gRPC.

An ONNX file is a program: it may loop for ever or use all memory, and a thread can't be stopped. So a process with
limits, which can be (trial_process.py beside this), runs it first. A network that fails only on other decisions than
the made-up ones passes the trial; the guard (guard.py) handles those.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np

from adlro.decide.planes.probe import probe_planes
from adlro.errors import InvalidInput, Unavailable

CPU_LIMIT_S = 5
"""Processor seconds to open the network and answer PROBES times, which takes milliseconds."""
MEMORY_LIMIT_MIB = 512
"""Address space in MiB on top of an idle ONNX Runtime's."""
LIMIT_S = 60.0
"""Wall seconds, on a machine of any load."""
PROBES = 8


class Trial:
    """The trial of one network: one thread calls `run`, any other may call `end`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def run(self, content: bytes, source: str) -> None:
        """Returns once the network has answered made-up decisions.

        Args:
            content: content of the ONNX file.
            source: the file's name in errors.

        Raises:
            InvalidInput: the network exceeded the limits, can't be opened, or can't answer.
            Unavailable: no process can be started at present.
        """
        if importlib.util.find_spec("onnxruntime") is None:
            return  # without ONNX Runtime no network can run; the caller reports that
        try:
            process = self._begin()
        except OSError as error:
            raise Unavailable(f"{source} can't be tried out: no process can be started: {error.strerror}") from error
        try:
            answer, _ = process.communicate(_question(content), timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise InvalidInput(f"{source}: its trial took longer than {LIMIT_S:.0f} s", field="checkpoint") from None
        finally:
            self.end()
            process.wait()
        if process.returncode:
            raise InvalidInput(f"{source}: {_ended_by(process.returncode)}", field="checkpoint")
        verdict: dict[str, Any] = json.loads(answer)
        if verdict["problem"]:
            from adlro.decide.planes.model import KEY, metadata_from_json

            if KEY in verdict.get("stated", ()):
                # The file may be of another version of ADLRO: then this error says more.
                metadata_from_json(verdict["stated"][KEY], source)
            raise InvalidInput(f"{source}: {verdict['problem']}", field="checkpoint")

    def end(self) -> None:
        """Ends the process if it still runs."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _begin(self) -> subprocess.Popen[bytes]:
        # Secrets are files whose paths the settings contain: a network's process needs none.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ADLRO_")}
        command = [
            sys.executable,
            "-m",
            "adlro.services.orchestrator.deciding.trial_process",
            str(CPU_LIMIT_S),
            str(MEMORY_LIMIT_MIB),
        ]
        with self._lock:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            if self._ended:
                self._process.kill()
            return self._process


def _question(content: bytes) -> bytes:
    arrays: dict[str, Any] = {"model": np.frombuffer(content, dtype=np.uint8)}
    for number in range(PROBES):
        arrays |= {f"{number}/{name}": array for name, array in probe_planes(number)._asdict().items()}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _ended_by(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"it did not answer {PROBES} made-up decisions within {CPU_LIMIT_S} s of processor time"
    how = signal.Signals(-code).name if code < 0 else f"code {code}"
    return f"the process that tried it out ended by {how}"
