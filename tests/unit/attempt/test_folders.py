"""Directories that several services may make at once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adlro.attempt.folders import PASSABLE_MODE, passable_directory


@pytest.mark.parametrize("umask", [0, 0o077])
def test_a_new_one_has_its_mode_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        passable_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == PASSABLE_MODE


def test_of_many_at_once_each_finds_it_made(tmp_path: Path) -> None:
    at_once = 8
    for number in range(50):
        gate = threading.Barrier(at_once)

        def make(path: Path = tmp_path / f"{number}" / "a", gate: threading.Barrier = gate) -> None:
            gate.wait()
            passable_directory(path)

        with ThreadPoolExecutor(at_once) as pool:
            for each in [pool.submit(make) for _ in range(at_once)]:
                each.result()


def test_one_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o750)
    passable_directory(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        passable_directory(tmp_path / "a")
