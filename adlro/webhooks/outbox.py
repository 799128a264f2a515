"""The messages that are not delivered yet, and how far events were noted: a SQLite file in a directory of its own.

Position and messages are written in one transaction: whatever process is killed, an event is either noted with all of
its messages, or is read again. After a power cut the file may be that of a moment before (SQLite's WAL, without an
fsync for each transaction): position and messages then go back together, and what is read again has the same ids.

One process writes (`lock`); the command reads beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from adlro.errors import Conflict, DataLoss
from adlro.kit.private_files import private_directory, private_opener
from adlro.webhooks.events import Event, EventName
from adlro.webhooks.file import Webhook

DATABASE, LOCK = "outbox.sqlite3", "lock"

_FORMAT: Final = "1"
# Ends that were noted, known by their ids: a store that was rolled back numbers changes anew.
TOLD_KEPT: Final = 50_000
_BUSY_S: Final = 5.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS told (
    number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, webhook TEXT NOT NULL, event_id TEXT NOT NULL, event TEXT NOT NULL,
    document TEXT NOT NULL, bytes INTEGER NOT NULL, noted_unix_s REAL NOT NULL, tries INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS messages_of ON messages (webhook, number);
CREATE TABLE IF NOT EXISTS webhooks (
    name TEXT PRIMARY KEY, delivered_count INTEGER NOT NULL DEFAULT 0, given_up_count INTEGER NOT NULL DEFAULT 0,
    dropped_count INTEGER NOT NULL DEFAULT 0, untold_count INTEGER NOT NULL DEFAULT 0,
    delivered_unix_s REAL, next_try_unix_s REAL, problem TEXT NOT NULL DEFAULT ''
);
"""


@dataclass(frozen=True, slots=True)
class Message:
    """An event for one webhook.

    Attributes:
        number: in the outbox, in the order in which events were noted.
        document: what the receiver gets, without `lost_count`.
        tries: that have failed.
    """

    number: int
    webhook: str
    event_id: str
    event: str
    document: Mapping[str, Any]
    noted_unix_s: float
    tries: int


@dataclass(frozen=True, slots=True)
class WebhookState:
    """How far a webhook's messages are.

    Attributes:
        waiting_count: messages that are not delivered yet.
        given_up_count: messages that the receiver did not take, in all tries.
        dropped_count: messages that left because too many waited.
        untold_count: given up or dropped, and no delivered message has told it.
        delivered_unix_s: of the last delivery; None: there was none.
        next_try_unix_s: of the message that failed last; None: none has.
        problem: why the last try failed; empty: it did not.
    """

    name: str
    waiting_count: int = 0
    delivered_count: int = 0
    given_up_count: int = 0
    dropped_count: int = 0
    untold_count: int = 0
    delivered_unix_s: float | None = None
    next_try_unix_s: float | None = None
    problem: str = ""


class Outbox:
    """The outbox of this process. Not for several threads at once.

    Args:
        directory: its own; is made.
        most_count, most_bytes: of the messages of one webhook that wait; beyond, the oldest ones are dropped.

    Raises:
        Conflict: another process uses it, or the directory belongs to another user.
        DataLoss: its file can't be read.
        OSError: it can't be written.
    """

    def __init__(self, directory: Path, most_count: int, most_bytes: int) -> None:
        self._most_count = most_count
        self._most_bytes = most_bytes
        private_directory(directory)
        self._lock = open(directory / LOCK, "a", encoding="utf-8", opener=private_opener)  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise Conflict(
                f"{directory} is in use by another notify; stop that one, or name another directory "
                "(ADLRO_NOTIFY_DATA_DIR)"
            ) from None
        path = directory / DATABASE
        os.close(private_opener(str(path), os.O_CREAT | os.O_RDWR))
        try:
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
            known = self._fact("format")
            if known not in (None, _FORMAT):
                raise DataLoss(f"{path} has format {known}, of a newer release; use that one, or move the file away")
            self._set("format", _FORMAT)
            rows = self._db.execute("SELECT webhook, count(*), sum(bytes) FROM messages GROUP BY webhook")
            self._held = {name: (count, size) for name, count, size in rows}
        except sqlite3.DatabaseError as error:
            self._lock.close()
            raise DataLoss(
                f"{path} can't be read ({error}); move it away: notify then begins with what is new"
            ) from None

    def close(self) -> None:
        """Closes the file, and lets another process have it."""
        self._db.close()
        self._lock.close()

    # How far events were noted

    @property
    def position(self) -> int | None:
        """The revision up to which ends of jobs were noted; None: nothing was noted ever."""
        found = self._fact("position")
        return None if found is None else int(found)

    @property
    def last_end(self) -> tuple[str, str] | None:
        """Job and event of the end at the position; None: the position is that of no end."""
        found = json.loads(self._fact("last_end") or "null")
        return None if found is None else (found[0], found[1])

    def begin_at(self, revision: int) -> None:
        """Begins with the ends after a revision."""
        with self._transaction():
            self._set("position", str(revision))
            self._set("known_from", str(revision))
            self._set("last_end", "null")

    @property
    def known_from(self) -> int:
        """The ends after this revision were noted, each with its id, as far as they had been told of."""
        if (self._db.execute("SELECT count(*) FROM told").fetchone()[0]) >= TOLD_KEPT:
            return int(self._db.execute("SELECT min(revision) FROM told").fetchone()[0])
        return int(self._fact("known_from") or 0)

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What lasts, and was told: as `note` was given it last."""
        found: Mapping[str, Any] = json.loads(self._fact("conditions") or "{}")
        return found

    def note(
        self,
        events: Iterable[Event],
        webhooks: Collection[Webhook],
        *,
        position: int | None = None,
        conditions: Mapping[str, Any] | None = None,
    ) -> dict[str, int]:
        """Notes events with their messages, in one step; an end that is known already is left out.

        Args:
            events: in order.
            webhooks: all that there are.
            position: the revision up to which ends are noted with these; None: as before. It is that of the last of
                these events if it has the same revision.
            conditions: what lasts now; None: as before.

        Returns:
            By webhook, how many messages were dropped for these.
        """
        dropped: dict[str, int] = {}
        held = dict(self._held)
        last_end: tuple[str, str] | None = None
        with self._transaction():
            for event in events:
                if event.name is EventName.JOB_ENDED and event.revision == position:
                    last_end = (event.subject["job"]["job_id"], event.event_id)
                if event.name is EventName.JOB_ENDED and not self._is_new(event):
                    continue
                for webhook in webhooks:
                    if webhook.wants(event):
                        self._add(event, webhook.name, held)
            for name in held:
                if count := self._drop_beyond(name, held):
                    dropped[name] = count
            if position is not None:
                self._set("position", str(position))
                self._set("last_end", json.dumps(last_end))
            if conditions is not None:
                self._set("conditions", json.dumps(conditions))
        self._held = held
        return dropped

    # Deliveries

    def next_of(self, webhook: str) -> tuple[Message, int] | None:
        """The oldest message of a webhook, and how many were lost before it without a word; None: none waits."""
        row = self._db.execute(
            "SELECT number, webhook, event_id, event, document, noted_unix_s, tries FROM messages"
            " WHERE webhook = ? ORDER BY number LIMIT 1",
            (webhook,),
        ).fetchone()
        if row is None:
            return None
        number, name, identity, event, document, noted_unix_s, tries = row
        untold = self._db.execute("SELECT untold_count FROM webhooks WHERE name = ?", (webhook,)).fetchone()
        message = Message(number, name, identity, event, json.loads(document), noted_unix_s, tries)
        return message, 0 if untold is None else untold[0]

    def delivered(self, message: Message, told_count: int, now_unix_s: float) -> None:
        """The receiver has a message, which told it of `told_count` lost ones."""
        with self._transaction():
            self._remove(message)
            self._row(message.webhook)
            self._db.execute(
                "UPDATE webhooks SET delivered_count = delivered_count + 1, untold_count = max(untold_count - ?, 0),"
                " delivered_unix_s = ?, next_try_unix_s = NULL, problem = '' WHERE name = ?",
                (told_count, now_unix_s, message.webhook),
            )

    def failed(self, message: Message, problem: str, next_try_unix_s: float, *, given_up: bool) -> None:
        """A try has failed, and is made again, or the message is given up."""
        with self._transaction():
            self._row(message.webhook)
            self._db.execute(
                "UPDATE webhooks SET next_try_unix_s = ?, problem = ? WHERE name = ?",
                (next_try_unix_s, problem, message.webhook),
            )
            if given_up:
                if self._remove(message):
                    self._db.execute(
                        "UPDATE webhooks SET given_up_count = given_up_count + 1, untold_count = untold_count + 1"
                        " WHERE name = ?",
                        (message.webhook,),
                    )
            else:
                self._db.execute("UPDATE messages SET tries = tries + 1 WHERE number = ?", (message.number,))

    def keep_only(self, names: Collection[str]) -> int:
        """Forgets all about webhooks that are not among these; returns how many of their messages waited."""
        gone = [name for name in self._names() if name not in names]
        count = 0
        with self._transaction():
            for name in gone:
                count += self._db.execute("DELETE FROM messages WHERE webhook = ?", (name,)).rowcount
                self._db.execute("DELETE FROM webhooks WHERE name = ?", (name,))
        for name in gone:
            self._held.pop(name, None)
        return count

    def held(self, webhook: str) -> tuple[int, int]:
        """How many messages of a webhook wait, and their bytes."""
        return self._held.get(webhook, (0, 0))

    # Below: parts of a transaction

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _names(self) -> set[str]:
        rows = self._db.execute("SELECT name FROM webhooks UNION SELECT webhook FROM messages")
        return {name for (name,) in rows}

    def _is_new(self, event: Event) -> bool:
        added = self._db.execute(
            "INSERT OR IGNORE INTO told (event_id, revision) VALUES (?, ?)", (event.event_id, event.revision)
        )
        if not added.rowcount:
            return False
        self._db.execute("DELETE FROM told WHERE number <= ?", ((added.lastrowid or 0) - TOLD_KEPT,))
        return True

    def _add(self, event: Event, webhook: str, held: dict[str, tuple[int, int]]) -> None:
        document = json.dumps(event.document(), ensure_ascii=True, separators=(",", ":"))
        self._db.execute(
            "INSERT INTO messages (webhook, event_id, event, document, bytes, noted_unix_s) VALUES (?, ?, ?, ?, ?, ?)",
            (webhook, event.event_id, str(event.name), document, len(document), event.noted_unix_s),
        )
        count, size = held.get(webhook, (0, 0))
        held[webhook] = (count + 1, size + len(document))

    def _drop_beyond(self, webhook: str, held: dict[str, tuple[int, int]]) -> int:
        """Drops the oldest messages that are too many: news is worth more than what is old."""
        count, size = held[webhook]
        dropped = 0
        while count > self._most_count or (size > self._most_bytes and count > 1):
            number, one = self._db.execute(
                "SELECT number, bytes FROM messages WHERE webhook = ? ORDER BY number LIMIT 1", (webhook,)
            ).fetchone()
            self._db.execute("DELETE FROM messages WHERE number = ?", (number,))
            count, size, dropped = count - 1, size - one, dropped + 1
        if dropped:
            held[webhook] = (count, size)
            self._row(webhook)
            self._db.execute(
                "UPDATE webhooks SET dropped_count = dropped_count + ?, untold_count = untold_count + ? WHERE name = ?",
                (dropped, dropped, webhook),
            )
        return dropped

    def _remove(self, message: Message) -> bool:
        """Removes a message; False: it was dropped meanwhile."""
        row = self._db.execute("SELECT bytes FROM messages WHERE number = ?", (message.number,)).fetchone()
        if row is None:
            return False
        self._db.execute("DELETE FROM messages WHERE number = ?", (message.number,))
        count, size = self._held[message.webhook]
        self._held[message.webhook] = (count - 1, size - row[0])
        return True

    def _row(self, webhook: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO webhooks (name) VALUES (?)", (webhook,))

    def _fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _set(self, name: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )


def read_states(directory: Path) -> Sequence[WebhookState]:
    """How far the webhooks' messages are, by name, beside the process that writes; empty: there is no outbox yet.

    Raises:
        DataLoss: the file can't be read.
    """
    path = directory / DATABASE
    if not path.exists():
        return ()
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        ) as db:
            waiting = dict(db.execute("SELECT webhook, count(*) FROM messages GROUP BY webhook").fetchall())
            rows = db.execute(
                "SELECT name, delivered_count, given_up_count, dropped_count, untold_count, delivered_unix_s,"
                " next_try_unix_s, problem FROM webhooks"
            ).fetchall()
    except sqlite3.Error as error:
        raise DataLoss(f"{path} can't be read: {error}") from None
    found = {name: WebhookState(name, waiting.get(name, 0), *rest) for name, *rest in rows}
    for name, count in waiting.items():
        found.setdefault(name, WebhookState(name, count))
    return [found[name] for name in sorted(found)]
