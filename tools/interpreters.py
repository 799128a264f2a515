"""Runs the fast unit tests, and slow ones that say so, on every further Python that is promised and that is here.

Promised are the classifiers of pyproject.toml. Each version has a virtual environment of its own, without torch:
.venv-3.12, and so on. The version of .venv is left out: the other targets run on it. An interpreter is looked for on
PATH and among pyenv's versions; with --install, for CI, as root also in Debian's packages. With --brief, for CI,
only the newest Python runs the tests of all that users install (nine minutes on two cores, a third of them compiling);
those between it and the one of .venv run the rooms in ROOMS_IN_BRIEF. Which ran, and which could not be had, is said
at the end. Tests that fail are run once more, alone, as CI does with all its tests: what passes only then is said.
Exit code 1: tests failed twice on one, or its packages could not be installed.

Run by `make test-interpreters`. Writes .venv-*/, and installs Debian packages where that is asked for.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
ROOMS_IN_BRIEF = ("attempt", "cli", "client", "kit", "numeric", "records", "store", "wire")
"""Rooms of tests/unit that use what differs between Pythons most: asyncio, processes, argparse, dataclasses, floats."""
ROOMS_OF_THE_REPOSITORY = ("benchmarks", "deploy", "docs", "tools")
"""Rooms of tests/unit about what users don't install."""
_INSTALL_TIMEOUT_S = 240.0
_LOOK_TIMEOUT_S = 30
_TESTS_FAILED = 1  # pytest's exit code


def promised() -> list[str]:
    """The versions that pyproject.toml names, such as "3.12"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [match[1] for line in project["classifiers"] if (match := _CLASSIFIER.match(line))]


def candidates(version: str) -> Iterator[Path]:
    """Where an interpreter of a version may be."""
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [path for path in versions.glob(f"{version}.*") if re.fullmatch(r"[\d.]+", path.name)]
    for path in sorted(found, key=lambda each: [int(part) for part in each.name.split(".")], reverse=True):
        yield path / "bin" / "python"


def find(version: str) -> Path | None:
    """An interpreter of a version that runs and can make virtual environments; None: there is none."""
    return next((path for path in candidates(version) if _is_usable(path, version)), None)


def _is_usable(path: Path, version: str) -> bool:
    code = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        said = subprocess.run(
            [path, "-c", code], capture_output=True, text=True, check=False, timeout=_LOOK_TIMEOUT_S, cwd=ROOT
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and said.stdout.strip() == version


def install(version: str) -> bool:
    """Installs Debian's packages of a version, where it has them and this is root."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    packages = [f"python{version}", f"python{version}-venv"]
    commands = (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages],
    )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return all(
            subprocess.run(
                command, env=environment, capture_output=True, check=False, timeout=_INSTALL_TIMEOUT_S
            ).returncode
            == 0
            for command in commands
        )
    except subprocess.TimeoutExpired:
        return False


def run_tests(version: str, interpreter: Path, workers: int, paths: Sequence[str]) -> str:
    """Sets up a version's environment and runs the tests at these paths there; what has come of it, in words."""
    folder = f".venv-{version}"
    ready = subprocess.run(
        ["sh", "tools/setup.sh", "test", folder], cwd=ROOT, env={**os.environ, "PYTHON": str(interpreter)}, check=False
    )
    if ready.returncode:
        return "FAILED: its packages could not be installed"
    # A cache of its own: what has failed is remembered there.
    command = [f"{folder}/bin/python", "-m", "pytest", "-q", "-o", f"cache_dir={folder}/.pytest_cache"]
    command += ["-m", "not slow or each_python", *paths]
    first = subprocess.run([*command, "-n", str(workers), "--dist", "loadfile"], cwd=ROOT, check=False)
    if first.returncode == _TESTS_FAILED:
        print(f"--- Python {version}: what failed is run once more", flush=True)
        again = ["-n", "0", "--last-failed", "--last-failed-no-failures=none"]
        second = subprocess.run([*command, *again], cwd=ROOT, check=False)
        return "FAILED" if second.returncode else "passed, some tests only when they were run once more"
    return "FAILED" if first.returncode else "passed"


def main() -> int:
    """Runs all, and says how it went."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=2, help="processes that pytest uses")
    parser.add_argument("--install", action="store_true", help="get what is missing from Debian's packages, as root")
    parser.add_argument("--brief", action="store_true", help="all of the tests only on the newest Python")
    arguments = parser.parse_args()
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    results, found = {}, {}
    for version in promised():
        if version == own:
            results[version] = "left to the other targets: .venv is made with it"
            continue
        interpreter = find(version)
        if interpreter is None and arguments.install and install(version):
            interpreter = find(version)
        if interpreter is None:
            results[version] = "could not be had: neither on PATH nor among pyenv's versions"
            continue
        results[version] = ""
        found[version] = interpreter
    for version, interpreter in found.items():
        paths, of_rooms = ["tests/unit"], ""
        if arguments.brief and version != list(found)[-1]:
            paths = [f"tests/unit/{room}" for room in ROOMS_IN_BRIEF]
            of_rooms = f" (only {', '.join(ROOMS_IN_BRIEF)})"
        elif arguments.brief:
            paths += [f"--ignore=tests/unit/{room}" for room in ROOMS_OF_THE_REPOSITORY]
            of_rooms = f" (without {', '.join(ROOMS_OF_THE_REPOSITORY)})"
        print(f"--- Python {version}{of_rooms}: {interpreter}", flush=True)
        results[version] = run_tests(version, interpreter, arguments.workers, paths) + of_rooms
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
