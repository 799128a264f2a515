"""Compiles the simulator's inner loops with numba; compiled code is kept on disk wherever that is possible.

Exact arithmetic: no fast-math, so that a run gives the same floats on every machine and beside plain Python.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., Any])


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _can_keep() -> bool:
    """Numba keeps what it compiled in NUMBA_CACHE_DIR, beside the source, or in the user's cache; else it gives up."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return _writable(Path(named))
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _writable(Path(__file__).parent / "__pycache__") or _writable(Path(user) / "numba")


_KEEP = _can_keep()


def compiled(function: _F) -> _F:
    """Compiles a function of arrays and numbers at its first call for each combination of types."""
    return cast("_F", numba.njit(cache=_KEEP, nogil=True, error_model="numpy")(function))


def compiled_part(function: _F) -> _F:
    """The same for a function that only compiled ones call: no way in from Python, which takes long to compile.

    Give it variables, not constants: numba compiles it anew for each constant.
    """
    # The two options are numba's own (numba.core.options), and missing in its type information.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("_F", numba.njit(cache=_KEEP, nogil=True, error_model="numpy", **options)(function))
