"""Each byte of an engine's log comes into the files once, whatever it sends again."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from adlro.attempt.containers import spooler
from adlro.attempt.containers.spooler import Spool, Spooler
from adlro.attempt.journal import Journal


def entry(second: float, text: str, stream: int = 1) -> tuple[int, bytes]:
    return stream, f"2026-11-23T16:03:{second:012.9f}Z {text}".encode()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path))


def stdout(journal: Journal) -> str:
    return Path(journal.path("stdout")).read_text()


ENTRIES = [entry(number / 10, f"{number}\n") for number in range(100)]
WHOLE = "".join(f"{number}\n" for number in range(100))


def test_what_the_engine_sends_again_in_the_middle_is_not_taken_again(journal):
    spool = Spool(journal, 1 << 20)
    spool.add(ENTRIES[:60])
    spool.add(ENTRIES[20:])
    assert stdout(journal) == WHOLE
    spool.close()


@pytest.mark.parametrize("cut", [0, 1, 7, 50, 99, 100])
def test_another_spool_goes_on_at_any_byte(journal, cut):
    first = Spool(journal, 1 << 20)
    first.add(ENTRIES[:30])
    first.save()
    first.add(ENTRIES[30:])
    # Killed: no mark but the one above, and the file ends anywhere behind it.
    marked = len("".join(f"{number}\n" for number in range(30)))
    os.truncate(journal.path("stdout"), marked + cut)
    second = Spool(journal, 1 << 20)
    since_s = second.rewind()
    assert since_s % 60 <= 2
    second.add([each for each in ENTRIES if int(each[1][17:19]) >= since_s % 60])
    assert stdout(journal) == WHOLE
    second.close()


def test_pieces_of_a_line_have_one_time(journal):
    pieces = [entry(5.0, text) for text in ("a" * 10, "b" * 10, "c\n")]
    first = Spool(journal, 1 << 20)
    first.add(pieces[:2])
    first.close()
    second = Spool(journal, 1 << 20)
    second.rewind()
    second.add([*pieces, entry(6.0, "d\n")])
    assert stdout(journal) == "a" * 10 + "b" * 10 + "c\nd\n"
    second.close()


def test_a_silent_stream_does_not_have_all_sent_again(journal):
    spool = Spool(journal, 1 << 20)
    spool.add([entry(1.0, "e\n", 2), entry(50.0, "o\n")])
    assert spool.rewind() % 60 == 48
    spool.add([entry(50.0, "o\n"), entry(51.0, "e2\n", 2)])
    assert Path(journal.path("stderr")).read_text() == "e\ne2\n"
    assert stdout(journal) == "o\n"
    spool.close()


def test_after_a_boot_what_is_behind_the_mark_is_written_again(journal, monkeypatch):
    first = Spool(journal, 1 << 20)
    first.add(ENTRIES[:30])
    first.save()
    with open(journal.path("stdout"), "ab") as file:
        file.write(b"\0" * 100)
    monkeypatch.setattr(spooler, "boot_id", lambda: "another")
    second = Spool(journal, 1 << 20)
    second.rewind()
    second.add(ENTRIES)
    assert stdout(journal) == WHOLE
    second.close()


def test_a_full_disk_loses_nothing(journal, monkeypatch):
    spool = Spool(journal, 1 << 20)
    spool.add(ENTRIES[:10])
    written = os.write

    def full(fd, data):
        if os.fstat(fd).st_size >= 25:
            raise OSError(errno.ENOSPC, "full")
        return written(fd, data[:5])

    def short(fd, data):
        return written(fd, data[:7])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        spool.add(ENTRIES[10:20])
    monkeypatch.setattr(os, "write", short)
    spool.rewind()
    spool.add(ENTRIES)
    assert stdout(journal) == WHOLE
    spool.close()


def test_a_clock_that_is_set_back_loses_nothing(journal, monkeypatch):
    spool = Spool(journal, 1 << 20)
    spool.add([entry(50.0, "before\n")])
    monkeypatch.setattr(spooler, "_clock_s", lambda: spool._clock_s - 30.0)
    spool.add([entry(20.0, "after\n")])
    assert stdout(journal) == "before\nafter\n"
    spool.close()


def test_a_log_is_kept_below_its_limit(journal):
    spool = Spool(journal, 1 << 20)
    for number in range(4000):
        spool.add([entry(number / 100, "x" * 1023 + "\n")])
    assert os.stat(journal.path("stdout")).st_size == 4000 << 10
    assert os.stat(journal.path("stdout")).st_blocks * 512 <= 1 << 20
    spool.close()


def test_one_that_is_closed_while_the_engine_is_asked_ends() -> None:
    """Its stream began too late for `close` to see it, and would never end by itself."""
    asked, closing, over = threading.Event(), threading.Event(), threading.Event()

    class Stream:
        def read(self) -> list[tuple[int, bytes]]:
            over.wait(30.0)
            return []

        def close(self) -> None:
            over.set()

    class Slow:
        def logs(self, container: str, since_s: int, *, follow: bool) -> Stream:
            asked.set()
            closing.wait(30.0)
            time.sleep(0.05)  # so that `close` waits for the thread
            return Stream()

    class Empty:
        def rewind(self) -> int:
            return 0

    closed_early = Spooler(Slow(), "c", Empty(), lambda: None)  # type: ignore[arg-type]
    assert asked.wait(30.0)
    closer = threading.Thread(target=closed_early.close)
    closer.start()
    closing.set()
    closer.join(10.0)
    assert not closer.is_alive()
