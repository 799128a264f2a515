"""Stores as older versions left them, for tests of taking them over: all keys by name, in tests/stores/<commit>.json.

Each was dumped from a suite of that version which had run jobs and was killed. Values that are plain text stand as
`text:...`, others in base 64.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import redis

FOLDER = Path(__file__).parent / "stores"


def restore(redis_url: str, commit: str) -> None:
    """Puts the store that a version left into an empty Redis."""
    client: Any = redis.Redis.from_url(redis_url)
    assert not client.dbsize()
    for key, kept in json.loads((FOLDER / f"{commit}.json").read_text()).items():
        value = kept["value"]
        match kept["type"]:
            case "string":
                client.set(key, _bytes(value))
            case "hash":
                client.hset(key, mapping={_bytes(name): _bytes(each) for name, each in value.items()})
            case "set":
                client.sadd(key, *map(_bytes, value))
            case "zset":
                client.zadd(key, {_bytes(each): score for each, score in value})
            case "stream":
                for entry_id, fields in value:
                    client.xadd(key, {_bytes(name): _bytes(each) for name, each in fields.items()}, id=entry_id)
            case other:
                raise AssertionError(other)
    client.close()


def _bytes(text: str) -> bytes:
    return text.removeprefix("text:").encode() if text.startswith("text:") else base64.b64decode(text)
