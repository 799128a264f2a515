"""Records are there whole or not at all; the lock tells who lives."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adlro.attempt import journal as names
from adlro.attempt.journal import SLOT_BYTES, Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path))


def test_a_record_is_made_once(journal: Journal):
    assert journal.read(names.SPAWN) is None
    assert journal.write_once(names.SPAWN, {"n": 1})
    assert not journal.write_once(names.SPAWN, {"n": 2})
    assert journal.read(names.SPAWN) == {"n": 1}
    assert os.listdir(journal.folder) == [names.SPAWN]


def test_a_record_of_the_end_takes_no_more_room_than_was_reserved(journal: Journal):
    journal.reserve()
    if os.stat(journal.path("exit.slot")).st_blocks * 512 != SLOT_BYTES:
        pytest.skip("this file system counts its blocks in another way")
    before = {path.stat().st_ino: path.stat().st_blocks for path in Path(journal.folder).iterdir()}
    journal.write_reserved(names.EXIT, {"detail": "x" * names.DETAIL_CHARS})
    assert journal.read(names.EXIT) == {"detail": "x" * names.DETAIL_CHARS}
    assert {path.stat().st_ino: path.stat().st_blocks for path in Path(journal.folder).iterdir()} == before


def test_the_longest_detail_fits_however_json_spells_it(journal: Journal):
    journal.write_reserved(names.EXIT, {"detail": "\N{FIRE}" * names.DETAIL_CHARS})
    assert journal.has(names.EXIT)


def test_of_two_records_of_an_end_the_first_stays(journal: Journal):
    journal.reserve()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: journal.write_reserved(names.STOP, {"n": n}), range(64)))
    first = journal.read(names.STOP)
    journal.write_reserved(names.STOP, {"n": "another"})
    assert first == journal.read(names.STOP) != {"n": "another"}


def test_a_record_is_no_link_to_something_else(journal: Journal, tmp_path: Path):
    (tmp_path / "other").write_text("{}")
    os.symlink(tmp_path / "other", journal.path(names.RUN))
    with pytest.raises(OSError, match="symbolic"):
        journal.read(names.RUN)


def test_where_there_are_no_locks_it_is_not_said_that_another_one_has_it(journal: Journal, monkeypatch):
    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.fcntl", refuses)
    with pytest.raises(OSError, match="No locks"):
        journal.take_lock()


def test_what_is_no_record_is_an_error(journal: Journal):
    for text in (b"", bytes(64), b"[]", b'{"n": '):
        Path(journal.path(names.RUN)).write_bytes(text)
        with pytest.raises(ValueError):  # noqa: PT011
            journal.read(names.RUN)


def test_the_lock_is_one_s_alone_and_a_look_does_not_take_it(journal: Journal):
    assert not journal.supervised()
    assert journal.supervisor() is None
    assert journal.take_lock()
    assert journal.supervised()
    assert not Journal(journal.folder).take_lock()
    found = journal.supervisor()
    assert found is not None
    assert found[0] == os.getpid()
