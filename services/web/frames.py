"""Data frames of the live protocol: bytes that are made once and sent to every browser that shows the same. No I/O.

A frame is one byte (0: plain, 1: the rest is gzip), the length of the header as u32 little-endian, the header as JSON,
and the body: planes of one byte a GPU, or nothing. Control messages are JSON texts (`control`).
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Below this gzip gains less than a packet.
_COMPRESS_FROM_BYTES = 512
# Telemetry and rows shrink to a third at any level; the higher ones cost several times the time.
_LEVEL = 5
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Frame:
    """What a frame says; `base` is None in a snapshot."""

    key: str
    rev: int
    base: int | None
    data: Mapping[str, Any]
    body: bytes = b""


def compact(value: Any) -> str:
    """JSON without spaces. Hidden characters stay: a page shows text as text, and may mark them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def control(op: str, **fields: Any) -> str:
    """A control message; half a character, which a browser may have sent, is none in UTF-8."""
    return compact({"op": op, **fields}).encode("utf-8", "replace").decode()


def encode(frame: Frame) -> bytes:
    """The bytes of a frame."""
    header: dict[str, Any] = {"key": frame.key, "kind": "snapshot", "rev": frame.rev}
    if frame.base is not None:
        header |= {"kind": "delta", "base": frame.base}
    text = compact(header | {"data": frame.data}).encode("utf-8", "replace")
    plain = _LENGTH.pack(len(text)) + text + frame.body
    if len(plain) >= _COMPRESS_FROM_BYTES:
        packed = gzip.compress(plain, _LEVEL, mtime=0)
        if len(packed) < len(plain):
            return b"\x01" + packed
    return b"\x00" + plain


def decode(data: bytes) -> Frame:
    """The inverse of `encode`, for programs that read the page's stream.

    Raises:
        ValueError: it is no frame.
    """
    if not data or data[0] > 1:
        raise ValueError("a frame begins with 0 or 1")
    plain = gzip.decompress(data[1:]) if data[0] else data[1:]
    (length,) = _LENGTH.unpack_from(plain)
    header = json.loads(plain[_LENGTH.size : _LENGTH.size + length])
    return Frame(header["key"], header["rev"], header.get("base"), header["data"], plain[_LENGTH.size + length :])
