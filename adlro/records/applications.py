"""The application of a job that does not state it: the program and its script, or the image. Plain; knows no gRPC.

    python3.11 /home/ada/train.py --lr 1              python:train.py
    python -m pkg.train                               python:pkg.train
    torchrun --nproc-per-node 1 train.py              torchrun:train.py
    bash -c "..."                                     bash
    ./run.sh                                          run.sh
    docker.io/pytorch/pytorch:2.9 python train.py     pytorch/pytorch:2.9 python:train.py

Jobs of one application are predicted from each other: paths, versions of interpreters and arguments are left out, since
they differ between runs of the same work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from adlro.records.payloads import Payload
from adlro.text import is_hidden

MOST_CHARACTERS = 128
"""The limit of JobSpec.application."""
_DIGEST_CHARACTERS = 8


class _Interpreter(NamedTuple):
    """Options of a program that runs a script.

    Attributes:
        code: options after which code follows instead of a script.
        module: options whose value names a module, which counts as the script.
        valued: other options with a value as the next argument.
        letters: short options may stand together, as in `-uc`.
    """

    code: frozenset[str] = frozenset()
    module: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    letters: bool = False


def _options(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PYTHON = _Interpreter(_options("-c"), _options("-m"), _options("-W -X --check-hash-based-pycs"), letters=True)
_SHELL = _Interpreter(_options("-c"), valued=_options("-o -O +o +O --rcfile --init-file"), letters=True)
_INTERPRETERS: Mapping[str, _Interpreter] = {
    **dict.fromkeys(("python", "pypy"), _PYTHON),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh"), _SHELL),
    "perl": _Interpreter(_options("-e -E"), valued=_options("-I")),
    "ruby": _Interpreter(_options("-e"), valued=_options("-I -r")),
    "node": _Interpreter(_options("-e --eval -p --print"), valued=_options("-r --require --import")),
    "Rscript": _Interpreter(_options("-e")),
    "julia": _Interpreter(_options("-e --eval -E --print"), valued=_options("-p -t -L -J")),
    "java": _Interpreter(module=_options("-jar"), valued=_options("-cp -classpath --class-path -p --module-path")),
}
_VERSIONED = re.compile(r"(python|pypy|perl|ruby|node|julia)-?[0-9][0-9.]*t?")

# Launchers have many options, and which of these have a value differs by version: the first argument that looks like a
# script is the script.
_LAUNCHERS = _options("torchrun accelerate deepspeed horovodrun mpirun mpiexec srun nsys ncu")
_LAUNCHER_OF_MODULE = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun"}
_SCRIPT = re.compile(r".+\.(py|sh|pl|rb|R|r|jl|js|lua|m)")

# Programs that run the program in their arguments: options with a value, and the number of arguments before it.
_WRAPPERS: Mapping[str, tuple[frozenset[str], int]] = {
    "env": (_options("-u --unset -C --chdir"), 0),
    "nice": (_options("-n --adjustment"), 0),
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "stdbuf": (_options("-i -o -e --input --output --error"), 0),
    "timeout": (_options("-k -s --kill-after --signal"), 1),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_REGISTRIES = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/")


def application_of(payload: Payload) -> str:
    """The application of a payload; empty where it names no program.

    Returns:
        At most `MOST_CHARACTERS`, without control or other hidden characters. A longer name is cut, with a digest of it
        at its end.
    """
    program = _program(payload.argv)
    if payload.container is not None:
        image = _image(payload.container.image)
        program = f"{image} {program}" if program else image
    return _legal(program)


def _program(argv: Sequence[str]) -> str:
    """A command's program and script."""
    rest = list(argv)
    while rest:
        name = _base(rest[0])
        if name not in _WRAPPERS:
            break
        inside = _wrapped(name, rest[1:])
        if not inside:
            return name
        rest = inside
    if not rest:
        return ""
    name = _base(rest[0])
    if (versioned := _VERSIONED.fullmatch(name)) is not None:
        name = versioned[1]
    if name in _LAUNCHERS:
        return _launched(name, rest[1:])
    interpreter = _INTERPRETERS.get(name)
    if interpreter is None:
        return name
    script, after = _script(interpreter, rest[1:])
    if name in ("python", "pypy") and (launcher := _LAUNCHER_OF_MODULE.get(script)):
        return _launched(launcher, after)
    return f"{name}:{_base(script)}" if _base(script) else name


def _wrapped(name: str, arguments: list[str]) -> list[str]:
    """The command in the arguments of a wrapper."""
    valued, before = _WRAPPERS[name]
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if argument == "--":
            at += 1
            break
        if name == "env" and _ASSIGNMENT.fullmatch(argument):
            at += 1
        elif argument.startswith("-"):
            at += 1 + (argument in valued)
        else:
            break
    while name == "env" and at < len(arguments) and _ASSIGNMENT.fullmatch(arguments[at]):
        at += 1
    return arguments[at + before :]


def _script(interpreter: _Interpreter, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The script or module, empty for none, and the arguments after it."""
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        at += 1
        if argument == "--":
            return (arguments[at], arguments[at + 1 :]) if at < len(arguments) else ("", ())
        if not argument.startswith(("-", "+")):
            return argument, arguments[at:]
        if argument == "-":  # the program is read from its input
            return "", ()
        option, value = _option(interpreter, argument)
        if option in interpreter.code:
            return "", ()
        if option in interpreter.module:
            if value:
                return value, arguments[at:]
            return (arguments[at], arguments[at + 1 :]) if at < len(arguments) else ("", ())
        if option in interpreter.valued and not value:
            at += 1
    return "", ()


def _option(interpreter: _Interpreter, argument: str) -> tuple[str, str]:
    """An option and its value in the same argument, such as (-m, "pkg.train") of `-umpkg.train`."""
    if argument.startswith("--") or not interpreter.letters:
        option, _, value = argument.partition("=")
        return option, value
    for place, letter in enumerate(argument[1:], start=2):
        option = argument[0] + letter
        if option in interpreter.code | interpreter.module | interpreter.valued:
            return option, argument[place:]
    return argument, ""


def _launched(name: str, arguments: Sequence[str]) -> str:
    """A launcher and what it starts."""
    for place, argument in enumerate(arguments):
        if argument in ("-m", "--module") and place + 1 < len(arguments):
            return f"{name}:{_base(arguments[place + 1])}"
        if not argument.startswith("-") and _SCRIPT.fullmatch(argument):
            return f"{name}:{_base(argument)}"
    return name


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _image(name: str) -> str:
    """An image's name without the default registry and without its digest."""
    name = name.partition("@")[0]
    for registry in _REGISTRIES:
        if name.startswith(registry):
            return name.removeprefix(registry)
    return name


def _legal(text: str) -> str:
    """The text with hidden characters replaced, and cut to the limit."""
    shown = "".join("?" if is_hidden(each) else each for each in text).strip()
    if len(shown) <= MOST_CHARACTERS:
        return shown
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{shown[: MOST_CHARACTERS - _DIGEST_CHARACTERS - 1]}~{digest}"
