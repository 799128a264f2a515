"""Output on a terminal, by rich: whatever is printed, no character of it is obeyed but those of rich's own styles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import markup
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from adlro.text import visible

_KEPT = "\n"


def escape(text: str) -> str:
    """Other people's text for rich markup: no bracket is a style, no line ends, and nothing hides (`adlro.text`)."""
    return markup.escape(visible(text))


def escape_lines(text: str) -> str:
    """As `escape`, for a message of ours that may have several lines, such as the end of a log."""
    return markup.escape(visible(text, _KEPT))


class PlainConsole(Console):
    """A console that writes hidden characters out, also where `escape` was forgotten."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Markup as text: before a table measures its cells."""
        return super().render_str(visible(text, _KEPT), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is written, styles and cursor movements apart; also of what is no markup."""
        for segment in super().render(renderable, options):
            if segment.control or (text := visible(segment.text, _KEPT)) == segment.text:
                yield segment
            else:
                yield Segment(text, segment.style)
