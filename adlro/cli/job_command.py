"""Commands that submit a job: their options from the command line, a job file, or lines `#ADLRO` of a script.

A file's options become words before those of the command line, so the command line's count where both have one.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from adlro.cli.job_file import JobFile, read_job_file
from adlro.cli.job_options import JobOptions
from adlro.cli.script_options import GivenOptions, is_script, read_script, script_argv
from adlro.cli.shell import USAGE_ERROR, plain_usage, say
from adlro.errors import InvalidInput
from adlro.terminal import escape

_MOST_FILE_BYTES = 1 << 20
_PROGRAM_KEY = "adlro.program"
_SEVERAL_KEY = "adlro.several"

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="JOB.yaml",
        help="A job file: YAML with these options as keys, and command; or with several jobs. Options given here count "
        "before the file's.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]
ProgramArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- PROGRAM | SCRIPT",
        help="After --, a program and its arguments. Else a script and its arguments: lines #ADLRO before its first "
        "command are options; it is not copied. Options of adlro come first.",
        show_default=False,
    ),
]


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `JobOptions`; it gets them as its first argument, `options`."""
    hints = get_type_hints(command, include_extras=True)
    own = [each for each in inspect.signature(command).parameters.values() if each.name != "options"]
    fields = dataclasses.fields(JobOptions)
    option_hints = get_type_hints(JobOptions, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = JobOptions(**{each.name: given.pop(each.name) for each in fields})
        command(options=options, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(
            inspect.Parameter(each.name, keyword, default=each.default, annotation=option_hints[each.name])
            for each in fields
        ),
        *(each.replace(kind=keyword, annotation=hints[each.name]) for each in own),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


@dataclasses.dataclass(frozen=True, slots=True)
class GivenJob:
    """A job of a file that has several.

    Attributes:
        name: in the file.
        where: file and line, for messages.
        options: of the file and the command line.
        argv: program and arguments; empty: none.
    """

    name: str
    where: str
    options: JobOptions
    argv: tuple[str, ...]


class JobCommand(TyperCommand):
    """A command with `JobOptions`, a program or script, and `--file`: reads the options of files.

    The first word that is no option ends the options, so that those behind it are the program's.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts a file's options before those of the command line."""
        given = {} if ctx.resilient_parsing else self._given(ctx, args)
        if "help" in given or ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        words = list(given.get("command") or ())
        before = args[: len(args) - len(words)]
        try:
            options, name, program, several = _from_files(given.get("file"), words, after_dashes=before[-1:] == ["--"])
        except InvalidInput as error:
            raise USAGE_ERROR(error.message, ctx) from None
        if several is not None:
            ctx.meta[_SEVERAL_KEY] = [self._given_job(ctx, *each, name, before) for each in several.items()]
            return super().parse_args(ctx, args)
        for each in options:
            self._check(ctx, each, f"{name}:{each.line}")
        ctx.meta[_PROGRAM_KEY] = tuple(program)
        return super().parse_args(ctx, [*(word for each in options for word in each.words), *args])

    def _given_job(self, ctx: Any, name: str, job: JobFile, file: str, words: Sequence[str]) -> GivenJob:
        """A job of a file; options of the command line count before the file's."""
        for each in job.options:
            self._check(ctx, each, f"{file}:{each.line}")
        own = self.context_class(self, info_name=ctx.info_name, parent=ctx.parent)
        super().parse_args(own, [*(word for each in job.options for word in each.words), *words])
        # The parser gives an empty collection for a repeatable option that is not given, and typer's callback None.
        given = {each: own.params[each] for each in _JOB_PARAMETERS}
        values: dict[str, Any] = {each: None if value in ((), []) else value for each, value in given.items()}
        options = JobOptions(**values)
        return GivenJob(name, f"{file}:{job.line}: {name}", options, job.command)

    def _given(self, ctx: Any, words: Sequence[str]) -> dict[str, Any]:
        """Texts of the options that are given, by parameter."""
        found = self.make_parser(ctx).parse_args(args=list(words))[0]
        # An argument that is not given is there too: as None, as () or as a mark, by the parser's version.
        return {
            name: each for name, each in found.items() if each != () and isinstance(each, bool | str | list | tuple)
        }

    def _check(self, ctx: Any, options: GivenOptions, where: str) -> None:
        """Refuses what the options of one line have wrong, with their place."""
        try:
            if foreign := set(self._given(ctx, options.words)) - _JOB_PARAMETERS:
                if foreign == {"command"}:
                    raise USAGE_ERROR("has words that belong to no option")
                raise USAGE_ERROR(f"only a job's options may stand here, not --{min(foreign).replace('_', '-')}")
            super().parse_args(
                self.context_class(self, info_name=ctx.info_name, parent=ctx.parent), list(options.words)
            )
        except USAGE_ERROR as error:
            plain_usage(error)
            raise USAGE_ERROR(f"{where}: {error.format_message()}", ctx) from None


_JOB_PARAMETERS = frozenset(each.name for each in dataclasses.fields(JobOptions))


def _from_files(
    job_file: str | None, words: Sequence[str], *, after_dashes: bool
) -> tuple[Sequence[GivenOptions], str, Sequence[str], Mapping[str, JobFile] | None]:
    """Options of a job file or a script, the file's name, what is to run, and the jobs of a file that has several.

    Args:
        job_file: value of --file.
        words: what follows the options on the command line.
        after_dashes: `--` stands before the words.

    Raises:
        InvalidInput: of the file.
    """
    if job_file is not None:
        read = read_job_file(_text(job_file), job_file)
        if read.jobs is not None and words:
            raise InvalidInput(f"{job_file} has several jobs, each with its command: leave out {words[0]!r}")
        return read.options, job_file, words or read.command, read.jobs
    if after_dashes or not words:
        return (), "", words, None
    first = words[0]
    if first.lower().endswith((".yaml", ".yml")):
        raise InvalidInput(f"{first} is no script: a job file is given with --file {first}")
    try:
        with open(first, "rb") as file:
            head = file.read(2)
    except OSError:
        head = b""
    if is_script(head):
        script = read_script(_text(first), first)
        for line in script.unread_lines:
            say(f"[yellow]{escape(first)}:{line}: this line is not read: options stand before the first command[/]")
        return script.options, first, script_argv(script, os.path.abspath(first), words[1:]), None
    if os.path.isfile(first):
        raise InvalidInput(
            f"{first} is no script: its first line names no interpreter, such as #!/bin/sh; a program is written after "
            "--, with its interpreter if it needs one (-- python train.py)"
        )
    return (), "", words, None


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    if len(data) > _MOST_FILE_BYTES:
        raise InvalidInput(f"{path}: has more than {_MOST_FILE_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}:{line}: is not UTF-8") from None


def program(ctx: typer.Context) -> tuple[str, ...]:
    """What the command line, a job file or a script wants to run; empty: nothing."""
    return tuple(ctx.meta.get(_PROGRAM_KEY, ()))


def several_jobs(ctx: typer.Context) -> list[GivenJob] | None:
    """The jobs of a file that has several; None: there is one job."""
    found: list[GivenJob] | None = ctx.meta.get(_SEVERAL_KEY)
    return found
