"""Common code of all commands: options, readable output and JSON, errors and exit codes.

Exit codes: 0 success, 1 error, 2 wrong usage, 3 no service answers, 130 interrupted, 143 terminated.
stdout has the command's result, stderr everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from adlro.cli.documents import document
from adlro.errors import AdlroError, InternalError, InvalidInput, Unauthenticated, Unavailable
from adlro.kit.wrong_values import wrong_value
from adlro.terminal import PlainConsole, escape, escape_lines
from adlro.text import to_json, visible

if TYPE_CHECKING:
    from adlro.client import AsyncClient, Client

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOTHING_RUNNING = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
"""What typer reports as wrong usage; its parent library is not imported, since typer may bring its own copy of it."""

_TOKEN_FILE = "ADLRO_TOKEN_FILE"
# How long a short command retries. Short, so that users see at once if no suite runs.
PATIENCE_S = 1.0

# A command that was told to end has so long to put the terminal back.
_LAST_WORDS_S = 2

_SHOWN_CHARACTERS = 60

# Piped output is not wrapped, so that lines can be searched.
_PIPED_WIDTH = 10_000

T = TypeVar("T")


class Output(enum.StrEnum):
    """Output format of a reading command."""

    TABLE = "table"
    JSON = "json"


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        help="The suite's address (ingest; the other services are at the next ports). "
        "Default: $ADLRO_SERVER, else 127.0.0.1:7701.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="A readable table, or one JSON document on stdout."),
]


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
    return PlainConsole(stderr=stderr, width=width, highlight=False, emoji=False)


def stdout() -> Console:
    """The console for results. Made at each call, since tests and pipes replace stdout."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console for progress, notes and errors."""
    return _console(stderr=True)


def say(text: str) -> None:
    """A note for people, on stderr; rich markup."""
    stderr().print(text)


def emit_json(value: Any) -> None:
    """One JSON document on stdout: records become objects, enums lower-case names, NaN null."""
    sys.stdout.write(to_json(document(value), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def emit_json_line(value: Any) -> None:
    """One JSON document on one line, for commands with several documents."""
    sys.stdout.write(to_json(document(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def plain_table(*columns: str, right: Collection[str] = (), wrapped: Collection[str] = ()) -> Table:
    """A table without lines between its columns, readable and easy to cut with other tools.

    Args:
        columns: the heads.
        right: columns of numbers, which are right-aligned.
        wrapped: columns that may shrink and wrap on a narrow screen.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in wrapped,
            overflow="fold" if column in wrapped else "ellipsis",
        )
    return table


def connect(server: str | None, *, patience_s: float = PATIENCE_S) -> Client:
    """A blocking client; a malformed address is wrong usage."""
    from adlro.client import Client

    return _checked(lambda: Client(server, patience_s=patience_s))


def connect_async(server: str | None, *, patience_s: float = PATIENCE_S, timeout_s: float | None = None) -> AsyncClient:
    """An asyncio client; a malformed address is wrong usage."""
    from adlro.client import AsyncClient

    if timeout_s is None:
        return _checked(lambda: AsyncClient(server, patience_s=patience_s))
    return _checked(lambda: AsyncClient(server, patience_s=patience_s, timeout_s=timeout_s))


def token_user(server: str | None) -> str:
    """The user of the token that this process shows to a server; empty without one."""
    from adlro.client import Endpoints
    from adlro.client.found import found_credentials

    return _checked(lambda: found_credentials(Endpoints.resolve(server))).user


def given_options(ctx: typer.Context) -> list[str]:
    """The options of a command line as words, in the order of the command's help; each in its long form."""
    words: list[str] = []
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is None or source.name != "COMMANDLINE" or not option.opts[0].startswith("-"):
            continue
        value = ctx.params[option.name or ""]
        if isinstance(value, bool):
            words.append((option.opts if value else option.secondary_opts)[0])
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            words += [option.opts[0], str(each)]
    return words


def silence_stdout() -> None:
    """Lets what stdout still holds go nowhere: Python would report a closed pipe once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _checked(make: Callable[[], T]) -> T:
    try:
        return make()
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from None


def report(error: AdlroError) -> int:
    """Prints an error on stderr, and returns its exit code."""
    console = stderr()
    if isinstance(error, Unavailable) and error.reason == "NO_ANSWER":
        address = error.metadata.get("address", "the server")
        service = error.metadata.get("service", "ingest")
        # During a start, ingest answers before the others.
        starting = "if the suite is starting, wait until [bold]adlro up[/] says Ready; otherwise "
        console.print(
            f"[bold red]no service answers at {escape(address)}[/]"
            + ("; " if service == "ingest" else f" ({escape(service)}); {starting}")
            + "start the suite with [bold]adlro up[/], or name it with [bold]--server[/] or ADLRO_SERVER",
        )
        return EXIT_NOTHING_RUNNING
    lines = [
        each.description if each.description.startswith(each.field) else f"{each.field}: {each.description}"
        for each in error.violations
    ]
    if len(lines) > 1:
        console.print("[bold red]error:[/] the request was refused")
        for line in lines:
            console.print(f"  {escape_lines(line)}")
    else:
        text = error.message
        if lines and error.field not in text:
            text = f"{error.field}: {text}"
        console.print(f"[bold red]error:[/] {escape_lines(text)}")
    if isinstance(error, Unauthenticated) and not os.environ.get(_TOKEN_FILE):
        console.print(
            "  the token of your own `adlro up --cluster local` is found at its address, 127.0.0.1:PORT in these digits"
        )
    if isinstance(error, InternalError) and error.metadata.get("error_id"):
        console.print(
            f"  this is a bug in a service; its log has details under error id {escape(error.metadata['error_id'])}",
        )
    return EXIT_ERROR


def plain_usage(error: Any) -> None:
    """Says what is wrong with an option's value in ADLRO's words, where typer left that to pydantic."""
    errors = getattr(error.__cause__, "errors", None)
    if errors is not None:
        first = errors()[0]
        # A text of our own, or of typer's about choices, names the value.
        told = "" if first["type"] == "value_error" else f", not {str(first['input'])[:_SHOWN_CHARACTERS]}"
        error.message = f"{wrong_value(first)}{told}"


def cancel_on_sigterm() -> None:
    """Lets SIGTERM cancel the current task, so that it cleans up as after Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread, as in tests
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end a command without asyncio as Ctrl-C does, so that it puts the terminal back."""

    def end(_number: int, _frame: FrameType | None) -> None:
        # The terminal may take nothing more.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(EXIT_TERMINATED))
        signal.alarm(_LAST_WORDS_S)
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class PlainCommand(TyperCommand):
    """A command that stands alone and tells wrong values as those of the group do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words."""
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            plain_usage(error)
            raise


class ReportingGroup(TyperGroup):
    """Commands whose expected errors end in a message and an exit code, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except AdlroError as error:
            raise typer.Exit(report(error)) from None
        except USAGE_ERROR as error:
            plain_usage(error)
            # It may quote a file that somebody else has written, and typer prints the characters as they are.
            error.message = visible(error.message, "\n")
            raise
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except asyncio.CancelledError:
            raise typer.Exit(EXIT_TERMINATED) from None
        except BrokenPipeError:
            # The reader has closed the pipe, as with `| head`: no error.
            silence_stdout()
            raise typer.Exit(0) from None
