"""Compiles the simulator's inner loops with numba; stores the code on disk if possible.

Exact arithmetic: no fast-math, so that a run gives the same floats on every machine and in plain Python.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event, types

_F = TypeVar("_F", bound=Callable[..., Any])
_R = TypeVar("_R")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


_KEPT_S = 7 * 86_400.0

_IMPORTS = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([\w.]+))", re.MULTILINE
)


def files_in_code(sources: Path) -> dict[Path, bytes]:
    """The files whose functions or constants may be in the compiled code of a folder, with their contents.

    They are the folder's files with compiled functions, and all files of the folder's own package and of `adlro` that
    these import, directly or not.
    """
    package, own = sources, Path(__file__).parents[1]
    while (package.parent / "__init__.py").exists():
        package = package.parent
    homes = {own.name: {own.parent}}
    homes.setdefault(package.name, set()).add(package.parent)
    texts = {file: file.read_bytes() for file in sources.glob("*.py")}
    found = {file: text for file, text in texts.items() if b"adlro.numeric.compiled" in text}
    found[Path(__file__)] = Path(__file__).read_bytes()
    unread = list(found)
    while unread:
        for module in _imported(found[unread.pop()]):
            path = module.replace(".", "/")
            places = homes.get(module.partition(".")[0], set())
            for file in (place / f"{path}{end}" for place in places for end in (".py", "/__init__.py")):
                if file not in found and file.is_file():
                    found[file] = file.read_bytes()
                    unread.append(file)
    return found


@functools.cache
def _imported(text: bytes) -> set[str]:
    """Names of the modules that a file imports; `from adlro.state import room` may import the module `room`."""
    modules = set()
    for package, names, module in _IMPORTS.findall(text):
        modules.add((package or module).decode())
        modules |= {f"{package.decode()}.{name.decode()}" for name in re.findall(rb"\w+", names)}
    return modules


@functools.cache
def _cache_folder(sources: Path) -> str | None:
    """The cache folder of a folder's files; None: no folder is writable.

    Its name has a digest of all files with functions or constants in that code: numba checks only a function's own
    file, and would otherwise use compiled code with an older version of a called function.
    """
    digest = hashlib.blake2b(digest_size=8)
    for _, text in sorted(files_in_code(sources).items()):
        digest.update(text)
    named = os.environ.get("NUMBA_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [Path(named)] if named else [sources / "__pycache__", Path(user) / "adlro"]
    for place in places:
        folder = place / f"numba-{digest.hexdigest()}"
        if _writable(folder):
            _sweep(folder)
            return str(folder)
    return None


def _sweep(folder: Path) -> None:
    """Marks a folder as used now, and deletes its older versions that were not used for a week."""
    try:
        os.utime(folder)
        for other in folder.parent.glob("numba-*"):
            if other.stat().st_mtime < time.time() - _KEPT_S:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        return  # another process deletes too


class _Notice(event.Listener):
    """Logs once per process that code is being compiled: that takes long, and would otherwise look like a hang.

    Attributes:
        told: whether it has logged.
        kept: whether the compiled code is stored.
    """

    def __init__(self) -> None:
        self.told = False
        self.kept = True

    def on_start(self, event: Any) -> None:
        """Called when a function is compiled, not loaded from the cache."""
        if self.told:
            return
        self.told = True
        if self.kept:
            _LOG.info("compiling, first start only")
        else:
            _LOG.info(
                "compiling, at every start: there is no folder to keep compiled code in; "
                "set NUMBA_CACHE_DIR to one that can be written"
            )

    def on_end(self, event: Any) -> None:
        """Ignored."""


_LOG = logging.getLogger(__name__)
_NOTICE = _Notice()
event.register("numba:compile", _NOTICE)  # type: ignore[no-untyped-call]  # numba has few types


def _compile(function: _F, **options: Any) -> _F:
    folder = _cache_folder(Path(function.__code__.co_filename).resolve().parent)
    _NOTICE.kept &= folder is not None
    before = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = folder or before
    try:
        dispatcher = numba.njit(cache=folder is not None, nogil=True, error_model="numpy", **options)(function)
    finally:
        _CONFIG.CACHE_DIR = before
    if not _CONFIG.DISABLE_JIT:
        _forget_constants(dispatcher)
    return cast("_F", dispatcher)


def _forget_constants(dispatcher: Any) -> None:
    """Makes one compiled function serve all calls with the same types: numba compiles one more for each constant.

    That took a quarter of the time of all compiling. Where a function is inlined, its constants are known all the same.
    """
    with_constants = dispatcher.get_call_template
    without: Callable[[Any], Any] = types.unliteral

    def get_call_template(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return with_constants(
            tuple(without(each) for each in arguments), {name: without(each) for name, each in keywords.items()}
        )

    dispatcher.get_call_template = get_call_template


_CONFIG: Any = numba.config

# Without numba's reference counts: compiled functions create no arrays here, and counting the references to the dozens
# of arrays of a simulation took two thirds of its time. The options are numba's own (numba.core.options), and missing
# in its type information.
_WAY_IN: dict[str, Any] = {"_nrt": False}
_CALL: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_PART: dict[str, Any] = {**_CALL, "forceinline": True}


def compiled(function: _F) -> _F:
    """Compiles a function of arrays and numbers at its first call for each combination of types.

    It may create views of the arrays, but no new arrays.
    """
    return _compile(function, **_WAY_IN)


def compiled_part(function: _F) -> _F:
    """The same for a function that only compiled ones call: without the entry from Python, which takes long to compile.

    It is inlined, and so compiled once more for every call, and again for every function around that one.
    """
    return _compile(function, **_PART)


def compiled_call(function: _F) -> _F:
    """As `compiled_part`, but called instead of inlined: for a long function with many callers.

    A call that passes dozens of arrays takes about a microsecond, nearly as long as a decision of a rollout: what a
    rollout does for each waiting job of a plain cluster is inlined.
    """
    return _compile(function, **_CALL)


def fixed(function: Callable[..., _R], *arguments: object) -> Callable[..., _R]:
    """A compiled function for arguments of exactly these types, compiled or loaded now.

    numba's dispatch on the types of so many arrays takes longer (13 us) than a step of one cluster (1 us): a caller
    whose arguments never change their types does it once. Calls with other types are unsafe: nothing checks them.
    """
    dispatcher = cast("Any", function)
    typeof: Callable[[object], object] = numba.typeof
    signature = tuple(typeof(argument) for argument in arguments)
    dispatcher.compile(signature)
    return cast("Callable[..., _R]", dispatcher.overloads[signature].entry_point)
