"""Other people's text, shown: what a terminal or a page would obey, or not show, is written out as an escape.

Hidden here means Unicode's categories Cc (control characters, also those of C1), Cf (format: bidirectional controls,
zero-width and tag characters), Cs (surrogates), Co (private use), Zl and Zp (line and paragraph separators), and
letters and marks that are drawn as nothing, such as the fillers of Hangul. The contracts refuse the same in names,
labels and ids (protos/adlro/v1); stores and clusters may hold it all the same.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# Default_Ignorable_Code_Point of Unicode 16.0 outside those categories, without variation selectors, which scripts and
# emoji need.
_DRAWN_AS_NOTHING = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2065\u3164\uffa0").union(
    *(map(chr, range(first, last + 1)) for first, last in ((0xFFF0, 0xFFF8), (0xE0000, 0xE00FF), (0xE01F0, 0xE0FFF)))
)


def is_hidden(character: str) -> bool:
    """Whether a character is one that must not reach a terminal or a page as it is."""
    return unicodedata.category(character) in _HIDDEN or character in _DRAWN_AS_NOTHING


def visible(text: str, keep: str = "") -> str:
    r"""The text with hidden characters written out, `\x1b` or `\u202e`.

    Args:
        text: whatever somebody sent.
        keep: hidden characters that stay, such as the line ends of our own messages.
    """
    if _plain(text):
        return text
    return "".join(_escape(each) if is_hidden(each) and each not in keep else each for each in text)


def visible_all(value: Any) -> Any:
    """A document of mappings, lists and plain values with each of its strings made visible; keys too."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible_all(key): visible_all(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [visible_all(each) for each in value]
    return value


def to_json(value: Any, **options: Any) -> str:
    """JSON as `json.dumps` writes it, readable in any language, with hidden characters as JSON's escapes."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if _plain(text):
        return text
    # What is hidden outside a string is an indented document's line ends.
    return "".join(json.dumps(each)[1:-1] if is_hidden(each) and each != "\n" else each for each in text)


def _plain(text: str) -> bool:
    """Whether nothing in the text is hidden, quickly: most texts hide nothing."""
    return text.isprintable() and (text.isascii() or _DRAWN_AS_NOTHING.isdisjoint(text))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
