"""The operator's file of webhooks, in TOML: where messages go, which ones, and how they are signed.

    [[webhook]]
    name = "ops"
    url = "https://alerts.example.org/adlro"
    events = ["gpu_lost", "gpu_back", "job_ended"]
    secret_file = "ops.secret"        # beside this file, or a whole path
    job_states = ["failed"]           # of job_ended; likewise job_users, job_labels

Every error names the file, the line, the field and the way out; none shows a URL, which may hold a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import ssl
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import SplitResult, urlsplit

from adlro.errors import InvalidInput
from adlro.records.jobs import JobState
from adlro.webhooks.events import CHOSEN, Event, EventName
from adlro.webhooks.signature import read_secrets

_TABLE = "webhook"
_KEYS = ("name", "url", "events", "secret_file", "unsigned", "ca_file", "job_states", "job_users", "job_labels")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_WEBHOOKS = 64
_MOST_BYTES = 1 << 20
_ENDS = {state.name.lower(): state for state in JobState if state.final}


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of messages.

    Attributes:
        name: in logs, metrics and lists.
        url: `http` or `https`; not shown, since it may hold a secret.
        events: what it is told of.
        secrets: that messages are signed with; empty: they are not.
        ca_file: PEM, the authorities for its certificate; empty: those of the system.
        job_states, job_users: of `job_ended`, only these; empty: all.
        job_labels: of `job_ended`, only of jobs with all of these labels.
    """

    name: str
    url: str = field(repr=False)
    events: frozenset[EventName]
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    ca_file: str = ""
    job_states: frozenset[JobState] = frozenset()
    job_users: frozenset[str] = frozenset()
    job_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def receiver(self) -> str:
        """Host and port, for people."""
        parts = urlsplit(self.url)
        return parts.netloc

    def wants(self, event: Event) -> bool:
        """Whether it is told of an event."""
        if event.name not in self.events:
            return False
        if event.name is not EventName.JOB_ENDED:
            return True
        job = event.subject["job"]
        return (
            (not self.job_states or JobState[job["state"].upper()] in self.job_states)
            and (not self.job_users or job["user"] in self.job_users)
            and all(job["labels"].get(key) == value for key, value in self.job_labels.items())
        )


class WebhooksFile:
    """The file, and whether it has changed.

    Args:
        path: of the file.
        key: what names it, in error messages.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self._key = key
        self._others: tuple[Path, ...] = ()
        self._seen: object = None

    def read(self) -> tuple[Webhook, ...]:
        """The webhooks of now.

        Raises:
            InvalidInput: the file can't be read, or something in it is wrong.
        """
        self._seen = self._state()
        found, self._others = _read(self.path, self._key)
        self._seen = self._state()
        return found

    def changed(self) -> bool:
        """Whether the file, or one that it names, was changed since it was read last."""
        return self._state() != self._seen

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(_state(path) for path in (self.path, *self._others))


def read_webhooks(path: Path, key: str) -> tuple[Webhook, ...]:
    """The webhooks of a file.

    Args:
        path: of the file.
        key: what names it (an option, a setting), in error messages.

    Raises:
        InvalidInput: the file can't be read, or something in it is wrong.
    """
    return WebhooksFile(path, key).read()


def _state(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _read(path: Path, key: str) -> tuple[tuple[Webhook, ...], tuple[Path, ...]]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise InvalidInput(f"{key}: can't read {path}: {error.strerror}", field=key) from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{key}: {path} holds no text in UTF-8; write it as TOML", field=key) from None
    if len(data) > _MOST_BYTES:
        raise InvalidInput(f"{key}: {path} is larger than {_MOST_BYTES >> 20} MiB", field=key)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: is no TOML: {error}", field=key) from None
    where = f"{path}"
    for name in table:
        if name != _TABLE:
            raise InvalidInput(
                f"{where}: {name}: is an unknown key{_line(text, -1, name)}; the file has [[{_TABLE}]] tables",
                field=name,
            )
    tables = table.get(_TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables) or not tables:
        raise InvalidInput(
            f"{where}: {_TABLE}: the file needs at least one [[{_TABLE}]] table, with name, url and events",
            field=_TABLE,
        )
    if len(tables) > _MOST_WEBHOOKS:
        raise InvalidInput(f"{where}: {_TABLE}: there are {len(tables)}; {_MOST_WEBHOOKS} at most", field=_TABLE)
    others: list[Path] = []
    found: list[Webhook] = []
    for index, each in enumerate(tables):
        fields = _Fields(each, index, path, text, others)
        webhook = fields.webhook()
        if any(webhook.name == other.name for other in found):
            fields.refuse("name", f"there are two webhooks '{webhook.name}'; give each its own name")
        found.append(webhook)
    return tuple(found), tuple(others)


class _Fields:
    """One [[webhook]] table; every error names file, field and line."""

    def __init__(self, table: Mapping[str, Any], index: int, path: Path, text: str, others: list[Path]) -> None:
        self._table = table
        self._index = index
        self._path = path
        self._text = text
        self._others = others

    def refuse(self, key: str, complaint: str) -> NoReturn:
        """Raises InvalidInput about a key."""
        name = self._table.get("name")
        of = f" of '{name}'" if isinstance(name, str) and _NAME.fullmatch(name) and key != "name" else ""
        raise InvalidInput(
            f"{self._path}: {self._field(key)}{of}: {complaint}{_line(self._text, self._index, key)}",
            field=self._field(key),
        )

    def webhook(self) -> Webhook:
        """The webhook of the table."""
        for key in self._table:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, 1)
                self.refuse(key, f"is an unknown key; {_nearest(near)}known are {', '.join(_KEYS)}")
        name = self._text_of("name", 'a name such as "ops"')
        if not _NAME.fullmatch(name):
            self.refuse("name", f"'{name}' must be letters, digits and any of . _ -, 63 at most")
        url = self._url()
        if "ca_file" in self._table and url.scheme != "https":
            self.refuse("ca_file", "has no effect without https; write an https:// URL, or leave ca_file out")
        return Webhook(
            name,
            url.geturl(),
            frozenset(EventName(each) for each in self._names("events", CHOSEN, required=True)),
            self._secrets(),
            self._ca_file(),
            frozenset(_ENDS[each] for each in self._names("job_states", tuple(_ENDS))),
            frozenset(self._texts("job_users")),
            self._labels(),
        )

    def _field(self, key: str) -> str:
        return f"{_TABLE}[{self._index}].{key}"

    def _text_of(self, key: str, wanted: str) -> str:
        value = self._table.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, f"is missing; write {wanted}" if value is None else f"must be {wanted}")
        return value

    def _texts(self, key: str) -> list[str]:
        value = self._table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            self.refuse(key, f'must be a list of texts such as ["{key}"]')
        if key in self._table and not value:
            self.refuse(key, "is empty; leave it out for all")
        return value

    def _names(self, key: str, known: Collection[str], *, required: bool = False) -> list[str]:
        names = [str(each) for each in known]
        if required and key not in self._table:
            self.refuse(key, f"is missing; write a list of any of {', '.join(names)}")
        found = self._texts(key)
        for each in found:
            if each not in names:
                near = difflib.get_close_matches(each, names, 1)
                self.refuse(key, f"there is no '{each}'; {_nearest(near)}there are {', '.join(names)}")
        return found

    def _labels(self) -> dict[str, str]:
        value = self._table.get("job_labels", {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            self.refuse("job_labels", 'must be a table of texts such as {team = "vision"}')
        if self._has_filters() and "job_ended" not in self._table.get("events", ()):
            key = next(each for each in ("job_states", "job_users", "job_labels") if each in self._table)
            self.refuse(key, "chooses among job_ended, which `events` does not name; add it there, or leave this out")
        return value

    def _has_filters(self) -> bool:
        return any(key in self._table for key in ("job_states", "job_users", "job_labels"))

    def _url(self) -> SplitResult:
        text = self._text_of("url", "an http:// or https:// URL")
        if not text.isascii() or not text.isprintable() or " " in text:
            self.refuse("url", "has characters that no URL may have; write them percent-encoded")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            self.refuse("url", "is no URL; write one such as https://alerts.example.org/adlro")
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            self.refuse("url", "must be an http:// or https:// URL with a host")
        if parts.username is not None or parts.password is not None:
            self.refuse("url", "has a user or a password before its host; a receiver knows us by the signature instead")
        return parts._replace(fragment="")

    def _secrets(self) -> tuple[bytes, ...]:
        unsigned = self._table.get("unsigned", False)
        if not isinstance(unsigned, bool):
            self.refuse("unsigned", "must be true or false")
        if unsigned and "secret_file" in self._table:
            self.refuse("unsigned", "is true, and there is a secret_file; leave one of the two out")
        if unsigned:
            return ()
        if "secret_file" not in self._table:
            self.refuse(
                "secret_file",
                "is missing: a receiver could not tell our messages from others'; name a file with a secret "
                "(`openssl rand -base64 32 > FILE`), or write unsigned = true",
            )
        path = self._beside("secret_file")
        try:
            return read_secrets(path, self._field("secret_file"))
        except InvalidInput as error:
            self.refuse("secret_file", error.message.partition(": ")[2])

    def _ca_file(self) -> str:
        if "ca_file" not in self._table:
            return ""
        path = self._beside("ca_file")
        try:
            ssl.create_default_context(cafile=str(path))
        except OSError as error:  # ssl's errors are of this kind, too
            self.refuse("ca_file", f"can't read certificates of {path}: {error.strerror or error}; name a file in PEM")
        return str(path)

    def _beside(self, key: str) -> Path:
        """A file that is named beside this one, or by its whole path."""
        path = self._path.absolute().parent / self._text_of(key, "a file's name")
        self._others.append(path)
        return path


def _nearest(near: Collection[str]) -> str:
    return f"did you mean {next(iter(near))}? " if near else ""


def _line(text: str, index: int, key: str) -> str:
    """` (line 7)`: where a key of the n-th table stands, or the table that lacks it; index -1: outside of tables."""
    key_here = re.compile(rf"(?:{_TABLE}\.)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    header = 0
    for number, place, line in _lines(text):
        if index not in (-1, place):
            continue
        if not header and place == index:
            header = number
        if key_here.match(line.lstrip("[ ")):
            return f" (line {number})"
    return f" (line {header})" if header and index >= 0 else ""


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Number of the line, index of the [[webhook]] table that it is in, and the line."""
    place = -1
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if re.match(rf"\[\[\s*[\"']?{_TABLE}[\"']?\s*\]\]", stripped):
            place += 1
        yield number, place, stripped
