"""Pieces of text with the name of a look, and lines made of them. Pure; no terminal library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from adlro.text import visible

Fragment = tuple[str, str]
"""Text, and its look: "" (plain), dim, bold, accent, good, warn, bad."""
Line = list[Fragment]
"""Fragments from left to right."""

LOOKS = ("", "dim", "bold", "accent", "good", "warn", "bad")
"""The looks that a screen must know."""
_GAP = 3
_MORE = "…"


def plain(line: Iterable[Fragment]) -> str:
    """The text of a line."""
    return "".join(text for text, _ in line)


def width_of(line: Iterable[Fragment]) -> int:
    """Columns that a line takes."""
    return sum(cell_len(text) for text, _ in line)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Text of exactly `width` columns: cut with an ellipsis, or filled with spaces. Hidden characters are written out.

    Args:
        text: whatever somebody sent.
        width: columns.
        right: fill at the left.
    """
    shown = visible(text)
    size = cell_len(shown)
    if size > width:
        return set_cell_size(shown, max(width - 1, 0)) + _MORE[:width]
    return " " * (width - size) + shown if right else shown + " " * (width - size)


def cut(line: Sequence[Fragment], width: int) -> Line:
    """The line, of at most `width` columns; an ellipsis at the end of a longer one."""
    if width_of(line) <= width:
        return list(line)
    kept: Line = []
    left = width - 1
    for text, look in line:
        size = cell_len(text)
        if size > left:
            kept.append((set_cell_size(text, max(left, 0)), look))
            break
        kept.append((text, look))
        left -= size
    return [*kept, (_MORE, "dim")]


def flow(items: Iterable[Sequence[Fragment]], width: int) -> list[Line]:
    """Items side by side, as many in a line as fit; none is broken, one too long is cut.

    Args:
        items: each stays together; empty ones are left out.
        width: columns of a line.
    """
    found: list[Line] = []
    for item in items:
        if not item:
            continue
        if found and width_of(found[-1]) + _GAP + width_of(item) <= width:
            found[-1] += [(" " * _GAP, ""), *item]
        else:
            found.append(cut(item, width))
    return found


def wrapped(text: str, width: int, look: str = "") -> list[Line]:
    """Words of a text as lines of at most `width` columns; hidden characters are written out."""
    out: list[str] = []
    for paragraph in text.split("\n"):
        current = ""
        for given in visible(paragraph).split(" "):
            word = given
            while cell_len(word) > width:
                if current:
                    out.append(current)
                    current = ""
                head = set_cell_size(word, width).rstrip()
                out.append(head)
                word = word[len(head) :]
            joined = f"{current} {word}" if current else word
            if cell_len(joined) > width:
                out.append(current)
                current = word
            else:
                current = joined
        out.append(current)
    return [[(each, look)] for each in out]
