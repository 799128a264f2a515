"""Processors that this one can stand for: numpy's, numba's and the C library's features switched off, level by level.

Run as a program in a process that was started so, it says what numpy and the C library then compute, so that a test
can see that the levels differ.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_NUMPY_OFF = "NPY_DISABLE_CPU_FEATURES"
C_LIBRARY_OFF = "GLIBC_TUNABLES"


class Level(NamedTuple):
    """Features switched off by the environment."""

    name: str
    environment: dict[str, str]


def numpy_features() -> list[str]:
    """What numpy can do here beyond its baseline, the least first."""
    here: Any = importlib.import_module("numpy._core._multiarray_umath")  # as numpy.show_runtime does
    return [feature for feature in here.__cpu_dispatch__ if here.__cpu_features__[feature]]


def levels() -> list[Level]:
    """From the processor as this process sees it down to the least that numpy runs on; the last has everything off."""
    features = numpy_features()
    found = [Level(f"this one ({' '.join(features) or 'no features'})", {})]
    # What is off here stays off: these tests run under such an environment too.
    already_off = re.split(r"[\s,]+", os.environ.get(_NUMPY_OFF, "").strip())
    for count in range(1, len(features) + 1):
        off = features[-count:]
        found.append(Level(f"numpy without {' '.join(off)}", {_NUMPY_OFF: " ".join([*already_off, *off]).strip()}))
    found.append(Level("numba for any processor", {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}))
    if platform.libc_ver()[0] == "glibc" and platform.machine() == "x86_64":
        # Two spellings: glibc before 2.33 told the usable from the present; it passes over names that it doesn't know.
        off = [f"-{name}{ending}" for name in ("AVX512F", "AVX2", "FMA", "FMA4") for ending in ("", "_Usable")]
        found.append(Level("C library without AVX2 and FMA", {C_LIBRARY_OFF: f"glibc.cpu.hwcaps={','.join(off)}"}))
    if platform.machine() == "x86_64":
        found.append(Level("matrix products for an old processor", {"OPENBLAS_CORETYPE": "Nehalem"}))
    everything: dict[str, str] = {}
    for level in found:
        everything |= level.environment
    return [*found, Level("everything off", everything)]


def environment_of(level: Level, cache: Path) -> dict[str, str]:
    """Of a process at a level; code that is compiled for another processor goes into a folder of its own."""
    root = Path(__file__).resolve().parents[1]
    own = {"NUMBA_CACHE_DIR": str(cache)} if "NUMBA_CPU_NAME" in level.environment else {}
    return {**os.environ, **level.environment, **own, "PYTHONPATH": str(root)}


def fingerprints() -> dict[str, str]:
    """Digests of what the C library and numpy compute here."""
    x = np.random.default_rng(1).random(4000) * 5.0
    found = {
        "the C library's exp": [math.exp(each) for each in x.tolist()],
        "numpy's exp": np.exp(x).tolist(),
        "matrix products": (x.reshape(40, 100) @ x.reshape(100, 40)).tolist(),
    }
    return {name: hashlib.sha256(repr(each).encode()).hexdigest()[:8] for name, each in found.items()}


if __name__ == "__main__":
    print(json.dumps({"features": " ".join(numpy_features()), **fingerprints()}))  # noqa: T201
