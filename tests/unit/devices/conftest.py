"""A fake NVML, compiled here, and trees of kernel files, recorded on other machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
A100 = "mib=81920|mig=0|mode=0|minor=0|used=1000|busy=50|memory_busy=25|temperature=45|power=250000|ecc=0|remap=0"
_OPTIONS = ("-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


class FakeNvml:
    """What the fake library says: its lines, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def say(self, *lines: str) -> None:
        new = self._path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self._path)


@pytest.fixture(scope="session")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, *_OPTIONS, "-o", str(folder / "libnvidia-ml.so.1"), str(HERE / "fake_nvml.c")],
        check=True,
        timeout=120,
    )
    return folder


@pytest.fixture
def nvml(library_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Child processes that look for NVML find the fake."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{library_folder}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}")
    monkeypatch.setenv("FAKE_NVML_STATE", str(tmp_path / "nvml_state"))
    return FakeNvml(tmp_path / "nvml_state")


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def unpack_kfd(recording: str, root: Path) -> None:
    """Makes /sys/class/kfd/kfd/topology of a recording, below `root`."""
    files: dict[str, str] = {}
    name = ""
    for line in (HERE / recording).read_text().splitlines():
        if line.startswith("== "):
            name = f"sys/class/kfd/kfd/topology/{line[3:]}"
            files[name] = ""
        elif name:
            files[name] += line + "\n"
    write_files(root, files)
