"""The keys that a browser subscribes to: `queue?count=60&from=0&sort=-priority`. Pure functions.

A key has one spelling, so that browsers that ask for the same share its frames: parameters in alphabetical order, each
once, none empty, encoded as `encodeURIComponent` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from adlro.errors import InvalidInput
from adlro.services.web.queue_filter import QueueFilter, parse_filter, parse_sort

MAX_ROWS: Final = 200
MAX_KEY_CHARACTERS: Final = 2000

_JOB_ID = re.compile(r"job-[1-9][0-9]{0,17}", re.ASCII)
_PART = re.compile(r"([a-z_]{1,20})=([^&=]{1,1500})", re.ASCII)
# What encodeURIComponent leaves as it is, beside letters, digits and _.-~
_UNESCAPED = "!'()*"


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed key; `params` has all parameters of the topic, with their defaults."""

    key: str
    name: str
    params: Mapping[str, Any]


def _rows(text: str) -> int:
    return _number("count", text, 1, MAX_ROWS)


def _from(text: str) -> int:
    return _number("from", text, 0, 100_000_000)


def _number(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) or not least <= int(text) <= most:
        raise InvalidInput(f"{name}: must be a whole number from {least} to {most}", field=name)
    return int(text)


def _job(text: str) -> str:
    if not _JOB_ID.fullmatch(text):
        raise InvalidInput("a job's id looks like job-17", field="id")
    return text


def _gpu(text: str) -> str:
    if len(text) > 256:
        raise InvalidInput("id: a GPU's id has at most 256 characters", field="id")
    return text


def _differs(text: str) -> bool:
    if text != "1":
        raise InvalidInput("differs: must be 1, or be left out", field="differs")
    return True


def _basis(text: str) -> str:
    if not re.fullmatch(r"[a-z_]{1,32}", text, re.ASCII):
        raise InvalidInput("basis: must be the name of a basis, such as policy or margin", field="basis")
    return text


_Reader = Callable[[str], Any]
_TOPICS: Final[dict[str, tuple[dict[str, _Reader], dict[str, Any]]]] = {
    "head": ({}, {}),
    "gpus": ({}, {}),
    "gpu": ({"id": _gpu}, {}),
    "job": ({"id": _job}, {}),
    "queue": (
        {"count": _rows, "filter": parse_filter, "from": _from, "sort": parse_sort},
        {"count": 60, "filter": QueueFilter(), "from": 0, "sort": parse_sort("place")},
    ),
    "decisions": (
        {"basis": _basis, "count": _rows, "differs": _differs, "job": _job},
        {"basis": "", "count": 50, "differs": False, "job": ""},
    ),
}
NAMES: Final = tuple(_TOPICS)


def parse(key: str) -> Topic:
    """Reads a key.

    Raises:
        InvalidInput: there is no such topic, a parameter is not right, or the key has another spelling.
    """
    if len(key) > MAX_KEY_CHARACTERS:
        raise InvalidInput(f"a key has at most {MAX_KEY_CHARACTERS} characters", field="key")
    name, mark, query = key.partition("?")
    if name not in _TOPICS:
        raise InvalidInput(f"there is no topic of this name; topics are {', '.join(NAMES)}", field="key")
    readers, defaults = _TOPICS[name]
    params = dict(defaults)
    texts: list[tuple[str, str]] = []
    for part in query.split("&") if mark else ():
        found = _PART.fullmatch(part)
        if found is None:
            raise InvalidInput("a parameter is written name=value, with a value that is encoded", field="key")
        parameter, text = found[1], _decoded(found[2])
        if parameter not in readers:
            known = ", ".join(readers) or "none"
            raise InvalidInput(f"{name} has no parameter {parameter}; its parameters are: {known}", field="key")
        params[parameter] = readers[parameter](text)
        texts.append((parameter, text))
    if missing := readers.keys() - params.keys():
        raise InvalidInput(f"{name} needs the parameter {min(missing)}", field="key")
    if canonical(name, texts) != key or len(dict(texts)) < len(texts):
        raise InvalidInput(
            "a key has its parameters in alphabetical order, each once, encoded as encodeURIComponent does", field="key"
        )
    return Topic(key, name, params)


def canonical(name: str, texts: list[tuple[str, str]]) -> str:
    """The one spelling of a key."""
    query = "&".join(f"{each}={quote(text, safe=_UNESCAPED)}" for each, text in sorted(texts))
    return f"{name}?{query}" if query else name


def _decoded(text: str) -> str:
    try:
        found = unquote(text, errors="strict")
        found.encode()  # half a character, which JSON can write, is none
        return found
    except UnicodeError:
        raise InvalidInput("a value is UTF-8", field="key") from None
