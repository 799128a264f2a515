"""Partial results and output files: one run at a time, nothing half-written, links and streams stay what they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adlro.errors import InvalidInput
from adlro.lab.evaluate.partial import PartialResults, same_file, write_whole

KEY = "0" * 32


def test_a_second_run_to_the_same_place_is_refused_at_once(tmp_path: Path) -> None:
    first, second = (PartialResults(tmp_path / "out.json.partial") for _ in range(2))
    first.prepare()
    first.put(KEY, b"x")
    with pytest.raises(InvalidInput, match=r"out\.json\.partial: another run writes there"):
        second.prepare()
    assert [path.name for path in first.folder.iterdir()] == [f"{KEY}.npz"]
    first.clear()
    assert list(tmp_path.iterdir()) == []
    second.prepare()
    second.clear()
    assert list(tmp_path.iterdir()) == []


def test_results_of_a_run_that_was_left_are_there_for_the_next(tmp_path: Path) -> None:
    first, second = (PartialResults(tmp_path / "parts") for _ in range(2))
    first.prepare()
    first.put(KEY, b"x")
    first.release()
    second.prepare()
    assert [path.name for path in tmp_path.rglob("*.npz")] == [f"{KEY}.npz"]


def test_a_lock_file_that_a_killed_run_left_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / "parts.lock").touch()
    partial = PartialResults(tmp_path / "parts")
    partial.prepare()
    partial.clear()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_was_writing_goes_too_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    partial = PartialResults(tmp_path / "parts")
    partial.prepare()
    (partial.folder / f".{KEY}.npz.ab12cd").touch()
    partial.clear()
    assert not partial.folder.exists()
    partial.prepare()
    for name in (f".{KEY}.npz.ab12cd", "notes.txt"):
        (partial.folder / name).touch()
    partial.clear()
    assert [path.name for path in partial.folder.iterdir()] == ["notes.txt"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "out.json", tmp_path / "there" / "real.json"
    link.symlink_to(file)
    write_whole(link, b"1")
    assert link.is_symlink()
    assert file.read_bytes() == b"1"


def test_two_names_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert same_file(Path("out"), tmp_path / "there" / ".." / "out")
    assert not same_file(Path("out"), Path("other"))
    (tmp_path / "link").symlink_to("out")
    assert same_file(Path("link"), Path("out"))
    Path("out").touch()
    os.link("out", "hard")
    assert same_file(Path("hard"), Path("link"))
