"""Finds the commands on the pages: in fences of a shell, in indented lines, and in `code` within sentences.

A fence `sh` holds commands, or a script with `#!`; one `console` has commands behind `$ ` with what they print; `text`
holds none, and a fence without a language is none of these (test_shell_commands.py refuses it).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    ((?:adlro|python -m) (?:.*\\\n)*.*)", re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_OPERATORS = frozenset({";", "&&", "||", "|", "&", ">", ">>", "<", "2>", "(", ")"})


@dataclass(frozen=True)
class Command:
    """One command of a page.

    Attributes:
        page: its path from the repository's root.
        line: from 1; of the fence's line that it stands on.
        words: the program and its arguments, without variables before it and redirections behind it.
    """

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


@dataclass(frozen=True)
class Fence:
    """A fence of a page: its language, its text, and the line that the text begins on."""

    page: str
    line: int
    language: str
    text: str


def fences(page: Path) -> list[Fence]:
    """All fences of a page."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [Fence(name, text.count("\n", 0, m.start()) + 2, m[1], m[2]) for m in _FENCE.finditer(text)]


def commands(page: Path) -> Iterator[Command]:
    """The commands in shell fences and indented lines.

    Raises:
        ValueError: a line is no shell's, such as with an open quote.
    """
    for fence in fences(page):
        if fence.language in ("sh", "console") and not fence.text.startswith("#!"):  # which is a script
            yield from _of_lines(fence.page, fence.line, fence.text, prompted=fence.language == "console")
    text = page.read_text(encoding="utf-8")
    outside = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)
    for found in _INDENTED.finditer(outside):
        line = text.count("\n", 0, found.start()) + 1
        yield from _of_lines(str(page.relative_to(ROOT)), line, found[1], prompted=False)


def _of_lines(page: str, first: int, text: str, *, prompted: bool) -> Iterator[Command]:
    # What a command reads from lines of its own (<<END) is no command; the lines still count.
    text = re.sub(r"<<(\w+)\n(.*?)^\1$", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    joined = re.sub(r"\\\n", lambda _: " \0", text)
    number = first
    for line in joined.split("\n"):
        shown = line.replace("\0", "")
        if prompted:
            shown = shown[2:] if shown.startswith("$ ") else ""
        yield from (Command(page, number, words) for words in split(shown))
        number += 1 + line.count("\0")


def split(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line: `export A=1; B=2 adlro up > file && adlro queue` has three.

    Raises:
        ValueError: an open quote.
    """
    # Placeholders in angle brackets stand for one word, and are no redirections.
    lexer = shlex.shlex(
        re.sub(r"<([a-z][^<>]*)>", lambda m: m[1].replace(" ", "-"), line), posix=True, punctuation_chars=True
    )
    lexer.commenters = ""
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in _until_comment(lexer):
        if word in _OPERATORS:
            skip = word in (">", ">>", "<", "2>")
            if not skip and words:
                yield tuple(words)
                words = []
        elif skip:
            skip = False
        elif words or not re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", word):
            words.append(word)
    if words:
        yield tuple(words)


def _until_comment(lexer: shlex.shlex) -> Iterator[str]:
    for word in lexer:
        if word.startswith("#"):
            return
        yield word


def script_options(page: Path) -> Iterator[Command]:
    """The lines #ADLRO of scripts in fences, as what they mean: options of `adlro submit`."""
    for fence in fences(page):
        for number, line in enumerate(fence.text.splitlines(), fence.line):
            if line.startswith("#ADLRO "):
                yield Command(fence.page, number, ("adlro", "submit", *shlex.split(line)[1:], "true"))


def mentions(page: Path) -> Iterator[Command]:
    """Commands of adlro in `code` within sentences and tables; they may be parts, and have placeholders."""
    text = page.read_text(encoding="utf-8")
    outside = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)
    for found in _CODE.finditer(outside):
        if re.match(r"adlro [a-z]", found[1]):
            plain = " ".join(found[1].split()).replace("\\|", "|")
            line = outside.count("\n", 0, found.start()) + 1
            try:
                for words in split(plain):
                    yield Command(str(page.relative_to(ROOT)), line, words)
            except ValueError:  # a quote that is closed on the next line, or an apostrophe
                yield Command(str(page.relative_to(ROOT)), line, tuple(plain.split()))
