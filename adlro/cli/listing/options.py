"""The options of reading commands, and the view of their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from adlro.cli.listing.columns import Column, Listing, Row, chosen_columns, custom_columns, no_such
from adlro.cli.listing.view import Format, View
from adlro.cli.listing.watching import DEFAULT_EVERY_S
from adlro.cli.option_types import interval
from adlro.errors import InvalidInput

_NAMED = tuple(each for each in Format if each is not Format.CUSTOM)


def format_names(incomplete: str) -> list[str]:
    """The formats whose names begin so, for the shell's completion."""
    return [each.value for each in _NAMED if each.value.startswith(incomplete)]


NoHeaderOption = Annotated[bool, typer.Option("--no-header", help="Without the line of headings.")]
IsoOption = Annotated[bool, typer.Option("--iso", help="Wall-clock times as ISO 8601, with the offset from UTC.")]
WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch",
        "-w",
        parser=interval,
        metavar="[TIME]",
        help=f"Show it again every TIME (default {DEFAULT_EVERY_S:g} s), until Ctrl-C.",
        show_default=False,
    ),
]


def _choices(listing: Listing[Any]) -> dict[str, Any]:
    """The options whose help names the columns of a listing."""
    first, second = (listing.by_name[name] for name in listing.narrow[:2])
    own = f"A={first.key or first.name},B={second.key or second.name}"
    return {
        "format_": Annotated[
            str,
            typer.Option(
                "--format",
                metavar="COLUMN,...",
                help=f"The columns, such as {first.name},{second.name}:20 (20 characters wide). "
                f"There are: {', '.join(listing.by_name)}.",
                show_default=False,
            ),
        ],
        "sort": Annotated[
            str,
            typer.Option(
                "--sort",
                metavar="COLUMN,...",
                help=f"Sort by columns, such as {second.name},-{first.name}: - begins with the greatest.",
                show_default=False,
            ),
        ],
        "output": Annotated[
            str,
            typer.Option(
                "--output",
                "-o",
                metavar="FORMAT",
                help="table; wide: more columns; json, yaml: all of each record; csv: figures without units; name: ids "
                f"only; or headings and fields of your own: {own}.",
                autocompletion=format_names,
            ),
        ],
    }


def with_view(listing: Listing[Row], *, watch: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a view; it gets the view as its argument `view`.

    Args:
        listing: the kind of rows.
        watch: with --watch; the command's class is to be `ReadingCommand` then.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [each for each in inspect.signature(command).parameters.values() if each.name != "view"]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            view = make_view(
                listing,
                given.pop("output"),
                given.pop("format_"),
                given.pop("sort"),
                header=not given.pop("no_header"),
                iso=given.pop("iso"),
                every_s=given.pop("watch", None),
            )
            command(view=view, **given)

        def option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

        choices = _choices(listing)
        parameters = [
            *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name]) for each in own),
            option("format_", "", choices["format_"]),
            option("sort", "", choices["sort"]),
            option("no_header", False, NoHeaderOption),
            option("iso", False, IsoOption),
            *([option("watch", None, WatchOption)] if watch else []),
            option("output", Format.TABLE.value, choices["output"]),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def make_view(
    listing: Listing[Row],
    output: str = "table",
    columns: str = "",
    sort: str = "",
    *,
    header: bool = True,
    iso: bool = False,
    every_s: float | None = None,
) -> View[Row]:
    """The view of the options' values.

    Raises:
        BadParameter: of a format, a column or a width.
    """
    try:
        chosen: tuple[tuple[Column[Row], int | None], ...] = ()
        if "=" in output:
            shown, chosen = Format.CUSTOM, tuple((each, None) for each in custom_columns(listing, output))
        elif output.lower() in _NAMED:
            shown = Format(output.lower())
        else:
            known = [*_NAMED, "HEADING=FIELD,..."]
            raise InvalidInput(no_such(f"--output: no format {output!r}", output.lower(), known, "formats"))
        if columns:
            if not (shown.is_table or shown is Format.CSV) or shown is Format.CUSTOM:
                raise InvalidInput(f"--format chooses columns of tables and of CSV, and -o {output} has none to choose")
            chosen = chosen_columns(listing, columns)
        keys = [each.strip() for each in sort.split(",")] if sort else []
        by = tuple((listing.column(each.lstrip("+-"), "--sort"), each.startswith("-")) for each in keys)
        if every_s is not None and not (shown.is_table or shown is Format.JSON):
            raise InvalidInput(f"--watch goes with tables and with -o json, not with -o {shown}")
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from None
    return View(listing, shown, chosen, by, header, iso, every_s)


class ReadingCommand(TyperCommand):
    """A command whose option --watch may be without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives --watch its default time where no time follows it."""
        given: list[str] = []
        for place, word in enumerate(args):
            given.append(word)
            following = args[place + 1] if place + 1 < len(args) else ""
            if word in ("--watch", "-w") and not following[:1].isdecimal() and following[:1] != ".":
                given.append(f"{DEFAULT_EVERY_S:g}")
        return super().parse_args(ctx, given)
