from __future__ import annotations

import os
from pathlib import Path

import pytest

from adlro.errors import Conflict
from adlro.kit.private_files import private_directory, private_opener


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def careless_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_made_is_for_its_owner_alone(tmp_path):
    private_directory(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
    with open(tmp_path / "file", "w", opener=private_opener) as file:
        file.write("text")
    assert mode(tmp_path / "file") == 0o600


def test_a_directory_of_ours_alone_is_closed_with_all_in_it(tmp_path):
    log = tmp_path / "data" / "log"
    log.mkdir(parents=True)
    (log / "x.log").touch(0o666)
    (log / "script").touch(0o755)
    private_directory(tmp_path / "data", ("log", "lock"))
    assert [mode(path) for path in (tmp_path / "data", log, log / "x.log", log / "script")] == [
        0o700,
        0o700,
        0o600,
        0o700,
    ]


def test_a_directory_that_holds_other_things_keeps_its_mode_and_theirs(tmp_path):
    tmp_path.chmod(0o755)
    for name in ("log", "work"):
        (tmp_path / name).mkdir(0o755)
        (tmp_path / name / "file").touch(0o644)
    private_directory(tmp_path, ("log", "lock"))
    assert [mode(path) for path in (tmp_path, tmp_path / "work", tmp_path / "work" / "file")] == [0o755, 0o755, 0o644]
    assert [mode(path) for path in (tmp_path / "log", tmp_path / "log" / "file")] == [0o700, 0o600]


def test_a_directory_by_a_link_is_closed_where_it_is(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir(0o755)
    (tmp_path / "link").symlink_to(disk)
    private_directory(tmp_path / "link")
    assert mode(disk) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_what_belongs_to_another_user_is_refused(tmp_path):
    (tmp_path / "lock").touch()
    os.chown(tmp_path / "lock", 65534, 65534)
    with pytest.raises(Conflict, match=r"lock belongs to another user, who could .*; name another data directory"):
        private_directory(tmp_path, ("lock",))
