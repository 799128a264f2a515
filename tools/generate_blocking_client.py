"""Makes adlro/client/blocking.py from adlro/client/aio.py; `--check` fails where the committed file is stale.

Run by `make client` and `make check`. Writes nothing else. What is changed stands in `CODE` and `TEXT`; a rule that
changes nothing, and anything of asyncio that no rule knows, is an error.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("adlro/client/aio.py")
TARGET = Path("adlro/client/blocking.py")

HEADER = f'''"""The blocking client. Uses gRPC; arguments and results are plain records. Safe to share between threads.

Generated from {SOURCE} by `make client`. Don't edit.
"""'''

# Code, and what stands in its place: compared token by token, the longest first. With nothing goes the space behind it.
CODE = {
    "async": "",
    "await": "",
    "import asyncio\n": "",
    "asyncio.sleep": "time.sleep",
    "asyncio.to_thread(ship, function, args, kwargs or {}, folder=folder, keep=keep)": (
        "ship(function, args, kwargs or {}, folder=folder, keep=keep)"
    ),
    "grpc.aio.Channel": "grpc.Channel",
    "AsyncChannels(shown, grace_s=timeout_s)": "Channels(shown)",
    "AsyncChannels": "Channels",
    "AsyncClient": "Client",
    "AsyncFuture": "Future",
    "AsyncFutures": "Futures",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}
# The same for parts of strings, docstrings among them, and of comments.
TEXT = {
    "A connection to a running suite, for asyncio.": "A connection to a running suite.",
}

_ASYNCIO = re.compile(r"async|await|\baio\b|\baclose\b|\banext\b|__a(iter|next|enter|exit)__", re.IGNORECASE)


def blocking(source: str, code: dict[str, str], text: dict[str, str]) -> str:
    """The source without asyncio, by the rules `code` and `text`; not yet formatted.

    Raises:
        ValueError: a rule changes nothing, or something of asyncio is left.
    """
    phrases = {phrase: [token.text for token in _tokens(phrase)] for phrase in sorted(code, key=len, reverse=True)}
    tokens = _tokens(source)
    texts = [token.text for token in tokens]
    unused = {*code, *text}
    parts: list[str] = []
    number = copied = 0
    while number < len(tokens):
        token = last = tokens[number]
        new = token.text
        found = next((p for p, of_it in phrases.items() if of_it == texts[number : number + len(of_it)]), None)
        if found is not None:
            number += len(phrases[found]) - 1
            last, new = tokens[number], code[found]
            unused.discard(found)
        elif token.kind in (tokenize.STRING, tokenize.COMMENT):
            for part in (each for each in text if each in new):
                new = new.replace(part, text[part])
                unused.discard(part)
        parts += [source[copied : token.start], new]
        copied = last.end
        while not new and source[copied] == " ":
            copied += 1
        number += 1
    if unused:
        raise ValueError(f"rules that change nothing: {', '.join(map(repr, sorted(unused)))}")
    made = "".join(parts)
    left = [line.strip() for line in made.splitlines() if _ASYNCIO.search(line)]
    if left:
        raise ValueError(f"no rule says what becomes of: {'; '.join(left)}")
    return made


def generate() -> str:
    """What `TARGET` shall hold."""
    source = (ROOT / SOURCE).read_text()
    docstring, *_ = _tokens(source)
    made = HEADER + blocking(source[docstring.end :], CODE, TEXT)
    # Lines are shorter now, imports are called otherwise, and what follows a stream is a plain `yield from`.
    made = _ruff(made, "check", "--select=I,UP028", "--fix", "--unsafe-fixes")
    return _ruff(made, "format")


class _Token(NamedTuple):
    """A token, and where it stands: of the source, the characters from `start` to `end`."""

    kind: int
    text: str
    start: int
    end: int


def _tokens(source: str) -> list[_Token]:
    """The tokens that have a text; indents and empty lines count as space between them."""
    lines = list(accumulate((len(line) for line in source.splitlines(keepends=True)), initial=0))
    return [
        _Token(each.type, each.string, lines[each.start[0] - 1] + each.start[1], lines[each.end[0] - 1] + each.end[1])
        for each in tokenize.generate_tokens(io.StringIO(source).readline)
        if each.string and each.type not in (tokenize.INDENT, tokenize.NL)
    ]


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--stdin-filename", str(TARGET), "-"]
    ended = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"ruff refuses what was made:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main() -> None:
    """Generates in place, or compares with what is committed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the committed file is stale")
    check = parser.parse_args().check
    try:
        made = generate()
    except ValueError as error:
        sys.exit(f"{SOURCE}: {error}; see CODE and TEXT in tools/{Path(__file__).name}")
    target = ROOT / TARGET
    fresh = target.exists() and target.read_text() == made
    if check:
        if not fresh:
            sys.exit(f"{TARGET} is stale, or was edited by hand: change {SOURCE}, then run `make client`")
        print(f"{TARGET} is up to date")
        return
    if not fresh:
        target.write_text(made)
    print(f"{TARGET} {'was up to date' if fresh else 'written'}")


if __name__ == "__main__":
    main()
