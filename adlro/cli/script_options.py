"""Options in a script's head: lines `#ADLRO --cores 4`, as sbatch reads its own. Pure functions on text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from adlro.errors import InvalidInput

MARK = "#ADLRO"


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """Words of the command line that a file has on one line, such as `--cores 4`."""

    line: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A script's head.

    Attributes:
        interpreter: the words of its first line, such as `/bin/sh`, or `/usr/bin/env` and `python3`.
        options: of its `#ADLRO` lines.
        unread_lines: `#ADLRO` lines after the first command, which are not read.
    """

    interpreter: tuple[str, ...]
    options: tuple[GivenOptions, ...]
    unread_lines: tuple[int, ...] = ()


def is_script(head: bytes) -> bool:
    """Whether a file that begins like this names its interpreter, as scripts do."""
    return head.startswith(b"#!")


def read_script(text: str, name: str) -> Script:
    """Reads a script: its interpreter, and the options in its comments before the first command.

    Args:
        text: of the script.
        name: of the file, for messages.

    Raises:
        InvalidInput: it names no interpreter, or an option line can't be split into words.
    """
    lines = text.split("\n")
    first = lines[0]
    if first.endswith("\r"):
        raise InvalidInput(f"{name}:1: lines end with CR LF, so no interpreter is found; sed -i 's/\\r$//' {name}")
    if not first.startswith("#!") or not first[2:].strip():
        raise InvalidInput(f"{name}:1: must name the script's interpreter, such as #!/bin/sh")
    # As the kernel splits it: the interpreter, and all the rest as one argument.
    interpreter = first[2:].strip().split(None, 1)
    options: list[GivenOptions] = []
    unread: list[int] = []
    in_head = True
    for number, line in enumerate(map(str.strip, lines[1:]), 2):
        in_head = in_head and (not line or line.startswith("#"))
        if line.startswith(MARK) and (not line[len(MARK) :] or line[len(MARK)].isspace()):
            if in_head:
                options.append(GivenOptions(number, _words(line[len(MARK) :], f"{name}:{number}")))
            else:
                unread.append(number)
    return Script(tuple(interpreter), tuple(options), tuple(unread))


def script_argv(script: Script, path: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """What runs a script: its interpreter, so the file need not be executable.

    Args:
        script: what was read of it.
        path: of the script, absolute.
        arguments: of the script.
    """
    return (*script.interpreter, path, *arguments)


def _words(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text, comments=True))
    except ValueError as error:
        raise InvalidInput(f"{where}: {str(error).lower()}: {text.strip()}") from None
