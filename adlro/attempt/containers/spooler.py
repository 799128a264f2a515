"""Takes the engine's log of a container into the attempt's files: each byte once, also through a kill of the service.

The engine sends each entry with its time, in nanoseconds, and again from a time on. It also sends a part once more, in
the middle of a stream, when one of its files was full (seen with Docker 20.10). So a stream's place is the time of its
last entry, how many entries have that time (pieces of a long line do), and at which offset they end. Earlier entries,
and as many of that time, are not taken again. A mark with the places is written each second; what the files have beyond
it when another spooler begins is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from adlro.attempt import journal as names
from adlro.attempt.containers.engine import Engine, EngineAwayError, OutputStream, RefusedError, unix_s
from adlro.attempt.journal import Journal
from adlro.attempt.linux import boot_id, boottime_s
from adlro.attempt.log_files import Bound, open_log

_log = structlog.get_logger()

MARK = "logs.json"
_STREAMS = {1: names.STDOUT, 2: names.STDERR}
# Entries of the two streams may be a moment out of order: those of one that are so much older have all come.
_BEHIND_S = 2
# A wall clock that goes slower is none that was set back.
_CLOCK_BACK_S = 0.2
_IDLE_S = 0.5
_SAVE_S = 1.0
# Between two tries to write where the disk is full, and for how long after the container's end.
_FULL_LOOK_S, _FULL_S = 1.0, 30.0


@dataclass(slots=True)
class _Place:
    """How far a stream has come.

    Attributes:
        time: of the last entry, as the engine writes it; empty: there was none.
        count: entries of that time.
        end: offset of the byte behind them.
    """

    time: bytes = b""
    count: int = 0
    end: int = 0


class Spool:
    """The two log files of an attempt, and the mark.

    Args:
        journal: of the attempt.
        limit_bytes: what the disk is to hold of each stream.

    Raises:
        OSError: the files can't be opened.
    """

    def __init__(self, journal: Journal, limit_bytes: int) -> None:
        self._journal = journal
        self._fds = {number: open_log(journal.path(name), None) for number, name in _STREAMS.items()}
        self._bounds = {number: Bound(fd, limit_bytes) for number, fd in self._fds.items()}
        # Bytes that the files have. The places may be behind them.
        self._written = {number: os.fstat(fd).st_size for number, fd in self._fds.items()}
        self._places = {number: _Place() for number in _STREAMS}
        # Entries of a stream's last time that are still to come again.
        self._again = dict.fromkeys(_STREAMS, 0)
        self._clock_s = _clock_s()
        self._saved_s = self._looked_s = time.monotonic()
        mark = self._read_mark()
        if mark is not None:
            self._places = {
                number: _Place(mark[name]["time"].encode(), mark[name]["count"], mark[name]["end"])
                for number, name in _STREAMS.items()
            }
            if mark["boot_id"] != boot_id():
                # What was written after the mark may not have come to the disk.
                for number, fd in self._fds.items():
                    self._written[number] = min(self._written[number], self._places[number].end)
                    os.ftruncate(fd, self._written[number])
            for number, place in self._places.items():
                place.end = min(place.end, self._written[number])

    @property
    def last_unix_s(self) -> float:
        """Time of the last entry; 0: there was none."""
        return max(_unix_s(each.time) for each in self._places.values())

    def rewind(self) -> int:
        """The engine is about to send entries again; returns from which second on (Unix time) it must."""
        self._again = {number: place.count for number, place in self._places.items()}
        seconds = [int(_unix_s(each.time)) for each in self._places.values()]
        return max(0, min(seconds), max(seconds) - _BEHIND_S)

    def add(self, frames: list[tuple[int, bytes]]) -> None:
        """Takes entries.

        Raises:
            OSError: the disk does not take them. They must be sent again: rewind.
        """
        self._heed_clock()
        new: dict[int, list[bytes]] = {number: [] for number in _STREAMS}
        places = {number: replace(place) for number, place in self._places.items()}
        for number, frame in frames:
            place = places[number]
            cut = frame.index(b" ")
            stamp = frame[:cut]
            if stamp < place.time:
                # From here on the stream comes once more.
                self._again[number] = place.count
                continue
            if stamp == place.time:
                if self._again[number]:
                    self._again[number] -= 1
                    continue
                place.count += 1
            else:
                place.time, place.count = stamp, 1
                self._again[number] = 0
            known = max(self._written[number], place.end)
            at, place.end = place.end, place.end + len(frame) - cut - 1
            if place.end > known:
                new[number].append(frame[cut + 1 + known - at :])
        for number, pieces in new.items():
            self._append(number, b"".join(pieces))
        self._places = places
        if time.monotonic() >= self._saved_s + _SAVE_S:
            self.save()

    def save(self) -> None:
        """Writes the mark down.

        Raises:
            OSError: the disk does not take it.
        """
        self._saved_s = time.monotonic()
        for fd in self._fds.values():
            os.fdatasync(fd)
        mark: dict[str, Any] = {"boot_id": boot_id()}
        for number, name in _STREAMS.items():
            place = self._places[number]
            mark[name] = {"time": place.time.decode(), "count": place.count, "end": place.end}
        draft = self._journal.path(f".{MARK}")
        with open(draft, "w") as file:
            json.dump(mark, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, self._journal.path(MARK))

    def close(self) -> None:
        """The logs are on the disk."""
        with contextlib.suppress(OSError):
            self.save()
        for bound in self._bounds.values():
            bound.look(0.0)
            bound.close()
            if bound.problem:
                _log.warning("a log", attempt=self._journal.name, why=bound.problem)

    def _append(self, number: int, data: bytes) -> None:
        fd = self._fds[number]
        while data:
            count = os.write(fd, data)
            self._written[number] += count
            data = data[count:]
        present_s = time.monotonic()
        self._bounds[number].look(present_s - self._looked_s)
        self._looked_s = present_s

    def _heed_clock(self) -> None:
        """Where the wall clock was set back, entries have earlier times than the last, and are new all the same."""
        clock_s = _clock_s()
        if clock_s < self._clock_s - _CLOCK_BACK_S:
            for place in self._places.values():
                place.time, place.count = b"", 0
        self._clock_s = clock_s

    def _read_mark(self) -> dict[str, Any] | None:
        try:
            return self._journal.read(MARK)
        except ValueError:
            return None


def _clock_s() -> float:
    return time.time() - boottime_s()


def _unix_s(stamp: bytes) -> float:
    return unix_s(stamp.decode()) if stamp else 0.0


class Spooler:
    """Spools one container's log in a thread, as long as the container runs.

    Attributes:
        problem: why it ended before the log did; empty: it has not.

    Args:
        engine: of the container.
        container: its id.
        spool: takes the entries.
        ended: is called when the thread ends.
    """

    def __init__(self, engine: Engine, container: str, spool: Spool, ended: Callable[[], None]) -> None:
        self.problem = ""
        self._engine, self._container, self._spool, self._ended = engine, container, spool, ended
        self._stream: OutputStream | None = None
        self._closed = threading.Event()
        self._data_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"log of {container[:12]}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._thread.is_alive()

    @property
    def lag_s(self) -> float:
        """How old the last entry is that has come; 0: the engine has no more now."""
        last_s = self._spool.last_unix_s
        return 0.0 if not last_s or self.idle_s > _IDLE_S else max(0.0, time.time() - last_s)

    @property
    def idle_s(self) -> float:
        """For how long nothing has come."""
        return time.monotonic() - self._data_s

    def close(self) -> None:
        """Ends it; returns when it has ended."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.close()
        self._thread.join()

    def join(self, timeout_s: float) -> bool:
        """Returns when it has ended, or after a time; True: it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            copy_log(self._engine, self._container, self._spool, self._hear, self._closed, follow=True)
        except (EngineAwayError, RefusedError, OSError) as error:
            self.problem = str(error)
            _log.info("a container's log is asked for again", container=self._container, why=self.problem)
        except Exception:
            self.problem = "a bug"
            _log.exception("a container's log can't be spooled", container=self._container)
        finally:
            self._ended()

    def _hear(self, stream: OutputStream | None) -> None:
        if stream is not None:
            self._stream = stream
            if self._closed.is_set():  # while the engine was asked: `close` did not see this stream
                stream.close()
        self._data_s = time.monotonic()


def copy_log(
    engine: Engine,
    container: str,
    spool: Spool,
    heard: Callable[[OutputStream | None], None],
    closed: threading.Event,
    *,
    follow: bool,
) -> None:
    """Takes a container's log from the mark on, until its end. A full disk is waited for.

    Args:
        engine: of the container.
        container: its id.
        spool: takes the entries.
        heard: is called with the stream when it begins, and with None when something has come of it.
        closed: ends it.
        follow: also what comes later, until the container ends.

    Raises:
        EngineAwayError: the engine does not answer.
        RefusedError: it says no.
        OSError: the disk has been full for too long.
    """
    full_s: float | None = None
    while not closed.is_set():
        stream = engine.logs(container, spool.rewind(), follow=follow)
        heard(stream)
        try:
            while frames := stream.read():
                spool.add(frames)
                heard(None)
                full_s = None
            return
        except OSError:
            full_s = time.monotonic() if full_s is None else full_s
            if not follow and time.monotonic() > full_s + _FULL_S:
                raise
            closed.wait(_FULL_LOOK_S)
        finally:
            stream.close()
