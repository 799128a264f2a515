"""Facts about one thing: names with their values, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

_LABEL_WIDTH = len("application") + 1
_MARGIN = 2
_NARROWEST = 20  # columns of a value


def print_facts(
    console: Console, rows: Sequence[tuple[str, str]], *, label_width: int = _LABEL_WIDTH, margin: int = _MARGIN
) -> None:
    """Prints names and their values; the arguments are those of `fact_lines`."""
    for line in fact_lines(console, rows, label_width=label_width, margin=margin):
        console.print(line, soft_wrap=True)


def fact_lines(
    console: Console, rows: Sequence[tuple[str, str]], *, label_width: int = _LABEL_WIDTH, margin: int = _MARGIN
) -> list[Text]:
    """Names and their values, those without text left out; a long value goes on below its begin.

    Args:
        console: where they will be printed.
        rows: name, and value as rich markup.
        label_width: of the names, columns.
        margin: empty columns before them.
    """
    indent = label_width + margin
    found = []
    for name, text in rows:
        if not text:
            continue
        lines = console.render_str(text).wrap(console, max(console.width - indent, _NARROWEST), overflow="fold")
        for number, line in enumerate(lines):
            line.rstrip()
            label = f"{' ' * margin}{name:<{label_width}}" if number == 0 else " " * indent
            found.append(Text(label, style="dim") + line)
    return found
