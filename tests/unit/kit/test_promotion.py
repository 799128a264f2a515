"""Promoted checkpoints in their folder: which is in use, and what a withdrawal leaves."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from adlro.errors import NotFound
from adlro.kit.promotion import changing, promote, promoted, withdraw


def test_the_last_promoted_is_in_use_and_a_withdrawal_gives_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert promoted(folder) == []
    folder.mkdir()
    first, second = promote(folder, b"one", "aa"), promote(folder, b"two", "bb")
    assert [each.version for each in promoted(folder)] == ["bb", "aa"]
    assert second.path.read_bytes() == b"two"
    assert withdraw(folder) == second
    assert promoted(folder) == [first]
    assert withdraw(folder) == first
    with pytest.raises(NotFound, match="no checkpoint is promoted"):
        withdraw(folder)


def test_numbers_are_not_used_again_and_other_files_do_not_count(tmp_path: Path) -> None:
    promote(tmp_path, b"one", "aa")
    withdraw(tmp_path)
    for name in ("best.onnx", "0007-cc.part", "0009-dd.onnx.withdrawn", "notes"):
        (tmp_path / name).touch()
    assert promoted(tmp_path) == []
    assert promote(tmp_path, b"two", "aa").number == 10
    assert [path.name for path in tmp_path.glob("*.onnx")].count("0010-aa.onnx") == 1
    assert not list(tmp_path.glob("0010*.part"))


def test_only_their_owner_can_open_a_new_folder_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    with changing(tmp_path / "new" / "checkpoints"):
        promote(tmp_path / "new" / "checkpoints", b"one", "aa")
    assert stat.S_IMODE((tmp_path / "new" / "checkpoints").stat().st_mode) == 0o700
    old = tmp_path / "old"
    (old / "project").mkdir(parents=True)
    for path in (old, old / "project"):
        path.chmod(0o755)
    with changing(old):
        promote(old, b"one", "aa")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, old / "project")] == [0o755, 0o755]


def test_one_may_be_withdrawn_that_is_not_in_use(tmp_path: Path) -> None:
    first, second = promote(tmp_path, b"one", "aa"), promote(tmp_path, b"two", "bb")
    assert withdraw(tmp_path, first) == first
    assert promoted(tmp_path) == [second]
