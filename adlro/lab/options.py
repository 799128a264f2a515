"""What the command lines of the laboratory have in common: `adlro compare`, `evaluate` and `learn`. Uses typer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import typer

from adlro.cli.shell import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_USAGE, report, say
from adlro.errors import AdlroError, InvalidInput
from adlro.terminal import escape


def new_app() -> typer.Typer:
    """A command line of one command."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def wait_ratio_option(default: str) -> Any:
    """`--wait-ratio`; `default`: whose limit holds without it."""
    return typer.Option(
        help="The same limit on waits for every policy, as ADLRO_ORCHESTRATOR_WAIT_RATIO; 0: none. Default: "
        f"{default}.",
        show_default=False,
    )


def precedence_option(default: str) -> Any:
    """`--precedence`; `default`: whose rule holds without it."""
    return typer.Option(
        metavar="RULE",
        help="Which waiting jobs go before others, under every policy, as ADLRO_ORCHESTRATOR_PRECEDENCE: such as "
        f"fair_share=2,age=1,half_life=7d; off: none. Default: {default}.",
        show_default=False,
    )


def policy_file_option() -> Any:
    """`--policy-file`, several times."""
    return typer.Option(
        "--policy-file",
        metavar="PATH:CLASS",
        help="A policy of your own: a Python file and the class in it, such as mine.py:MyPolicy. Its code is run. May "
        "be given several times.",
        show_default=False,
    )


def json_option(what: str) -> Any:
    """`--json`; `what`: what is written."""
    return typer.Option("--json", metavar="OUT", help=f"{what} to this file.")


def message_on_options(error: AdlroError, arguments: Mapping[str, str] = MappingProxyType({})) -> str:
    """An error's message in which the field at its begin is named as on the command line.

    Args:
        error: of a request that options made; a field is the option of its name.
        arguments: how fields are named that no option stands for.
    """
    if not error.field or not error.message.startswith(f"{error.field}:"):
        return error.message
    named = arguments.get(error.field, f"--{error.field.replace('_', '-')}")
    return named + error.message.removeprefix(error.field)


def run_app(app: typer.Typer, name: str, arguments: Mapping[str, str]) -> None:
    """Runs a command line that speaks with a suite, and ends the process.

    Args:
        app: the command line.
        name: of the command, for people.
        arguments: as for `message_on_options`.
    """
    try:
        app(prog_name=name, standalone_mode=True)
    except AdlroError as error:
        named = message_on_options(error, arguments)
        if named != error.message:
            error.message, error.violations = named, ()
        code = report(error)
        sys.exit(EXIT_USAGE if isinstance(error, InvalidInput) and code == EXIT_ERROR else code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except asyncio.CancelledError:
        sys.exit(EXIT_TERMINATED)
    except OSError as error:
        say(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(EXIT_ERROR)
