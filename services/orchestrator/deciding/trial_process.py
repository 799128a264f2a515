"""Opens a network and lets it answer, as a separate process that may hang (for trial.py beside this).

    python -m adlro.services.orchestrator.deciding.trial_process CPU_LIMIT_S MEMORY_LIMIT_MIB

reads an npz file from standard input (`model`: bytes of an ONNX file; `<n>/<input>`: made-up decisions), and writes one
JSON document: the problem, and the file's metadata. Imports only numpy and ONNX Runtime, to start quickly.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.decide.planes.session import OUTPUTS, open_session


def main() -> None:
    """Reads the input, sets the limits, runs the network, writes the result."""
    given = np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
    content, probes = given["model"].tobytes(), _probes(given)
    _limit(*map(int, sys.argv[1:]))
    json.dump(_tried(content, probes), sys.stdout)


def _probes(given: Any) -> list[dict[str, NDArray[Any]]]:
    probes: dict[str, dict[str, NDArray[Any]]] = {}
    for key in given.files:
        number, slash, name = key.partition("/")
        if slash:
            probes.setdefault(number, {})[name] = given[key]
    return list(probes.values())


def _limit(cpu_s: int, memory_mib: int) -> None:
    """Sets the limits on top of the use so far, which is the same for every network."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s += int(used.ru_utime + used.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # SIGXCPU at the first limit, SIGKILL at the second
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm") as statm:
            taken_bytes = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return  # not Linux: address space can't be limited
    most_bytes = taken_bytes + memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def _tried(content: bytes, probes: list[dict[str, NDArray[Any]]]) -> dict[str, Any]:
    try:
        session = open_session(content)
    except Exception as error:  # ONNX Runtime's errors have no common base
        return {"problem": f"not an ONNX model that can be run: {error}"}
    stated = dict(session.get_modelmeta().custom_metadata_map)
    inputs = [each.name for each in session.get_inputs()]
    if not all(set(inputs) <= set(probe) for probe in probes):
        return {"problem": "", "stated": stated}  # the caller's error for this says more
    try:
        for probe in probes:
            session.run(OUTPUTS, {name: probe[name] for name in inputs})
    except Exception as error:
        return {"problem": f"it can't answer: {error}", "stated": stated}
    return {"problem": "", "stated": stated}


if __name__ == "__main__":
    main()
