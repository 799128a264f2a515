"""Job files: YAML with the job's options as keys. They become words of the command line, read by its own parser.

A file with the key `jobs` has several jobs, by name, and may have `defaults` for all of them.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adlro.cli.script_options import GivenOptions
from adlro.errors import InvalidInput

_SHELL = ("/bin/sh", "-c")
# Tags of values without a tag of their own in the file: texts, numbers, dates and so on are all read as their text.
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{each}" for each in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
)
_NULL = "tag:yaml.org,2002:null"
_DEEPEST = 5
_JOB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a job file has.

    Attributes:
        options: a group for each key.
        command: the program and its arguments; empty: the file has none.
        line: where it begins, from 1.
        jobs: by name the jobs of a file that has several, with the defaults before their own options; None: the file
            has one job.
    """

    options: tuple[GivenOptions, ...]
    command: tuple[str, ...] = ()
    line: int = 1
    jobs: Mapping[str, JobFile] | None = None


@dataclass(frozen=True, slots=True)
class _Value:
    """A part of a file.

    Attributes:
        line: where it begins, from 1.
        text: of a plain value; None: it is empty, a list or a mapping.
        items: of a list.
        entries: of a mapping: key, line of the key, value.
    """

    line: int
    text: str | None = None
    items: tuple[_Value, ...] | None = None
    entries: tuple[tuple[str, int, _Value], ...] | None = None


def read_job_file(text: str, name: str) -> JobFile:
    """Reads a job file.

    Values are texts: `01:00:00`, `no` and `0x10` are not numbers or truth values here, as they would be in YAML 1.1.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        InvalidInput: it is no YAML, has an unknown key, a key twice, or a value of the wrong form; names the line.
    """
    root = _parsed(text, name)
    if root.entries is None:
        raise InvalidInput(
            f"{name}:{root.line}: must be a mapping of options, such as\n  cores: 4\n  command: [python, train.py]"
        )
    if any(key == "jobs" for key, _, _ in root.entries):
        return _several(root, name)
    return _one_job(root, name)


def _one_job(root: _Value, name: str) -> JobFile:
    options: list[GivenOptions] = []
    command: tuple[str, ...] = ()
    for key, line, value in root.entries or ():
        where = f"{name}:{line}: {key}"
        if key == "command":
            command = _command(value, where)
        elif key in _KEYS:
            options.append(GivenOptions(line, tuple(_KEYS[key](value, where))))
        else:
            raise InvalidInput(f"{name}:{line}: there is no key {key!r}{_hint(key, ('command', *_KEYS))}")
    return JobFile(tuple(options), command, root.line)


def _several(root: _Value, name: str) -> JobFile:
    """A file of several jobs."""
    defaults = JobFile(())
    jobs: dict[str, JobFile] = {}
    for key, line, value in root.entries or ():
        if key not in ("jobs", "defaults"):
            raise InvalidInput(
                f"{name}:{line}: there is no key {key!r} beside jobs{_hint(key, ('jobs', 'defaults'))}; options of all "
                "jobs stand under defaults"
            )
        if value.entries is None:
            form = "jobs by name" if key == "jobs" else "options"
            raise InvalidInput(f"{name}:{line}: {key}: must be a mapping of {form}")
        if key == "defaults":
            defaults = _one_job(value, name)
    (several,) = (value for key, _, value in root.entries or () if key == "jobs")
    for key, line, value in several.entries or ():
        if not _JOB_NAME.fullmatch(key):
            raise InvalidInput(
                f"{name}:{line}: {key!r} is no name of a job: letters, digits, _ . and -, a letter first, at most 63"
            )
        if value.entries is None:
            raise InvalidInput(f"{name}:{line}: {key}: must be a mapping of options, such as\n  {key}:\n    cores: 4")
        own = _one_job(value, name)
        named = GivenOptions(line, (f"--name={key}",))
        jobs[key] = JobFile((named, *defaults.options, *own.options), own.command or defaults.command, line)
    if not jobs:
        raise InvalidInput(f"{name}:{root.line}: jobs: has no job")
    return JobFile((), jobs=jobs)


def _hint(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), known, 1)
    return f"; do you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"


def _command(value: _Value, where: str) -> tuple[str, ...]:
    if value.text is not None:
        return (*_SHELL, value.text)
    words = tuple(_texts(value, where, "a list of the program and its arguments, or a text for /bin/sh -c"))
    if not words:
        raise InvalidInput(f"{where}: must name a program")
    return words


def _one(value: _Value, where: str) -> Iterator[str]:
    if value.text is None:
        raise InvalidInput(f"{where}: must be one value")
    yield value.text


def _list(value: _Value, where: str) -> Iterator[str]:
    return _texts(value, where, "a list")


def _one_or_list(value: _Value, where: str) -> Iterator[str]:
    return _one(value, where) if value.text is not None else _texts(value, where, "one value, or a list")


def _assignments(value: _Value, where: str) -> Iterator[str]:
    if value.entries is None:
        raise InvalidInput(f"{where}: must be a mapping, such as\n  {where.rpartition(' ')[2]}:\n    NAME: value")
    for key, line, each in value.entries:
        if each.items is not None or each.entries is not None:
            raise InvalidInput(f"{where}: line {line}: {key} must be one value")
        yield key if each.text is None else f"{key}={each.text}"


def _labels(value: _Value, where: str) -> Iterator[str]:
    return (each if "=" in each else f"{each}=" for each in _assignments(value, where))


def _texts(value: _Value, where: str, form: str) -> Iterator[str]:
    if value.items is None:
        raise InvalidInput(f"{where}: must be {form}")
    for each in value.items:
        if each.text is None:
            raise InvalidInput(f"{where}: line {each.line}: each entry must be one value")
        yield each.text


def _yes_or_no(option: str, value: _Value, where: str) -> Iterator[str]:
    word = (value.text or "").lower()
    if word not in (*_YES, *_NO):
        raise InvalidInput(f"{where}: must be true or false")
    yield f"--{option}" if word in _YES else f"--no-{option}"


def _stops(value: _Value, where: str) -> Iterator[str]:
    """Whether a job can be stopped for another one, or what such a stop costs."""
    form = f"{where}: must be true, false, or what a stop costs, such as {{restart: 60s, lost: 10m, grace: 2m}}"
    if value.entries is None:
        if value.text is None or value.text.lower() not in (*_YES, *_NO):
            raise InvalidInput(form)
        yield from _yes_or_no("preemptible", value, where)
        return
    yield "--preemptible"
    for key, line, each in value.entries:
        if key not in _COSTS:
            raise InvalidInput(f"{where}: line {line}: there is no {key!r}; there are {', '.join(_COSTS)}")
        if each.text is None:
            raise InvalidInput(f"{where}: line {line}: {key} must be one value, such as 60s")
        yield f"{_COSTS[key]}={each.text}"


_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")
_COSTS = {"restart": "--restart", "lost": "--lost", "grace": "--preempt-grace"}

_Words = Callable[[_Value, str], Iterator[str]]


def _values_of(option: str, words: _Words) -> _Words:
    # One word each: a value may begin with a dash.
    return lambda value, where: (f"{option}={word}" for word in words(value, where))


_KEYS: dict[str, _Words] = {
    **{
        key: _values_of(f"--{key.replace('_', '-')}", _one)
        for key in (
            *("name", "user", "type", "application", "priority", "gpus", "max_nodes", "cores", "memory", "gpu_memory"),
            *("runtime", "on", "time_limit", "begin", "work", "workdir", "image", "shm", "stop_grace", "log_limit"),
            "array",
        )
    },
    "after": _values_of("--after", _one_or_list),
    "hold": functools.partial(_yes_or_no, "hold"),
    "gpu_models": _values_of("--gpu-model", _one_or_list),
    "preemptible": _stops,
    "shareable": functools.partial(_yes_or_no, "shareable"),
    "exclusive": functools.partial(_yes_or_no, "exclusive"),
    "exclude": _values_of("--exclude", _one_or_list),
    "nodelist": _values_of("--nodelist", _one_or_list),
    "env": _values_of("--env", _assignments),
    "labels": _values_of("--label", _labels),
    "secrets": _values_of("--secret", _list),
    "mounts": _values_of("--mount", _list),
}

KEYS = ("command", *_KEYS)
"""The keys of a job file."""


def _parsed(text: str, name: str) -> _Value:
    """The file's one document. Nothing is constructed: values stay texts, and no tag is obeyed."""
    import yaml  # late: other commands start faster

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"{mark.line + 1}:"
        raise InvalidInput(f"{name}:{line} is no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInput(f"{name}: is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InvalidInput(f"{name}: is nested too deeply for a job file") from None
    return _Value(1) if node is None else _Reader(name).value(node)


class _Reader:
    """Nodes of YAML as values. A node that aliases name many times is read once, so the work is that of the file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._read: dict[int, _Value] = {}

    def value(self, node: Any, depth: int = 0) -> _Value:
        """The value of a node."""
        if id(node) not in self._read:
            # An alias may name what it stands in: depth has an end here.
            self._read[id(node)] = self._new(node, node.start_mark.line + 1, depth)
        return self._read[id(node)]

    def _new(self, node: Any, line: int, depth: int) -> _Value:
        if depth > _DEEPEST:
            raise InvalidInput(f"{self._name}:{line}: is nested too deeply for a job file")
        if node.tag not in _PLAIN_TAGS:
            raise InvalidInput(f"{self._name}:{line}: has the tag {node.tag!r}; job files have plain values only")
        if node.id == "sequence":
            return _Value(line, items=tuple(self.value(each, depth + 1) for each in node.value))
        if node.id == "mapping":
            return _Value(line, entries=tuple(self._entries(node, depth)))
        return _Value(line, text=None if node.tag == _NULL else str(node.value))

    def _entries(self, node: Any, depth: int) -> Iterator[tuple[str, int, _Value]]:
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise InvalidInput(f"{self._name}:{line}: a key must be a plain text")
            if key.value in first:
                raise InvalidInput(
                    f"{self._name}:{line}: {key.value!r} is there twice, first in line {first[key.value]}"
                )
            first[key.value] = line
            yield key.value, line, self.value(value, depth + 1)
