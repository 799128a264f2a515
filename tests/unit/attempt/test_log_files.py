"""Logs lose their beginning to holes; offsets stay, and no byte is told that was not written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adlro.attempt import log_files
from adlro.attempt.log_files import Bound, open_log, read_log
from tests.unit.attempt.node import skip_without_holes

LIMIT = 1 << 20


def pattern(begin: int, end: int) -> bytes:
    """What stands in a log at each offset."""
    return b"".join(b"%07d\n" % n for n in range(begin // 8, -(-end // 8)))[begin % 8 :][: end - begin]


@pytest.fixture
def log(tmp_path: Path) -> str:
    skip_without_holes(tmp_path)
    return str(tmp_path / "stdout")


def test_a_log_within_its_limit_is_whole(log: str):
    fd = open_log(log, None)
    bound = Bound(fd, LIMIT)
    os.write(fd, pattern(0, 8000))
    assert bound.look(1.0) is not None
    assert bound.look(1.0) is None, "it is quiet"
    piece = read_log(log, 0, 100)
    assert (piece.offset, piece.data, piece.size) == (0, pattern(0, 100), 8000)
    assert read_log(log, -16, 100).data == pattern(7984, 8000)
    assert read_log(log, 8000, 100).data == b""


def test_what_is_too_much_goes_from_the_beginning_and_offsets_stay(log: str):
    fd = open_log(log, None)
    bound = Bound(fd, LIMIT)
    size = 0
    for _ in range(50):
        os.write(fd, pattern(size, size + LIMIT // 10))
        size += LIMIT // 10
        bound.look(0.01)
        assert os.fstat(fd).st_blocks * 512 <= 1.1 * LIMIT
    assert os.fstat(fd).st_size == size
    piece = read_log(log, 0, 2 * LIMIT)
    assert piece.size == size
    assert piece.offset >= size - LIMIT
    assert len(piece.data) == size - piece.offset >= 0.79 * LIMIT
    assert piece.data == pattern(piece.offset, size)
    later = read_log(log, piece.offset + 5, 10)
    assert (later.offset, later.data) == (piece.offset + 5, pattern(piece.offset + 5, piece.offset + 15))
    bound.close()


def test_a_hole_that_grows_while_it_is_read_gives_no_zeros(log: str, monkeypatch):
    fd = open_log(log, None)
    os.write(fd, pattern(0, LIMIT))
    kept = iter([0, 8192])
    monkeypatch.setattr(log_files, "_first_kept", lambda *_: next(kept))
    piece = read_log(log, 0, 16384)
    assert (piece.offset, piece.data) == (8192, pattern(8192, 16384))


def test_a_log_that_its_program_has_cut_goes_on(log: str):
    fd = open_log(log, None)
    bound = Bound(fd, LIMIT)
    os.write(fd, bytes(2 * LIMIT))
    bound.look(0.01)
    os.truncate(log, 0)
    os.write(fd, pattern(0, 80))
    bound.look(0.01)
    assert read_log(log, 0, 100).data == pattern(0, 80)


def test_a_log_that_is_not_there_yet_is_empty(log: str):
    assert read_log(log, 0, 100).data == b""


def test_a_log_is_no_link_to_something_else(log: str, tmp_path: Path):
    (tmp_path / "other").write_text("secret")
    os.symlink(tmp_path / "other", log)
    with pytest.raises(OSError, match="symbolic"):
        open_log(log, None)
    with pytest.raises(OSError, match="symbolic"):
        read_log(log, 0, 100)
