"""Records that can be written with the names of the command: `JobSpec(time_limit="1h")`. Standard library only."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from adlro.errors import InvalidInput
from adlro.records.named import nearest

T = TypeVar("T")

NO_SUCH_FIELD = "NO_SUCH_FIELD"
"""The reason of InvalidInput for an unknown name."""


class Spelling(NamedTuple):
    """Another name of a field.

    Attributes:
        field: the exact name.
        read: the field's value, of what was given and of this name for messages; raises InvalidInput.
        with_: names that belong to this one: they change the value that was read.
    """

    field: str
    read: Callable[[Any, str], Any]
    with_: Mapping[str, Callable[[Any, Any, str], Any]] = {}


def spelled(spellings: Mapping[str, Spelling]) -> Callable[[type[T]], type[T]]:
    """Decorates a dataclass: its arguments may have other names as well, by keyword. None there: not given.

    Args:
        spellings: by further name.

    Raises:
        InvalidInput: at construction: an unknown name, a value that can't be read, or a field that is given twice.
    """

    def decorate(record: type[T]) -> type[T]:
        exact = [each.name for each in dataclasses.fields(record)]  # type: ignore[arg-type]  # a dataclass
        known, plain_init = frozenset(exact), record.__init__

        def init(self: T, *values: Any, **given: Any) -> None:
            # Most records come from the wire, with exact names: they pay for no more than this comparison.
            if not given.keys() <= known or len(values) > len(exact):
                given = _exact(record.__name__, exact, spellings, values, given)
            plain_init(self, *values, **given)

        signature = inspect.signature(record)
        others = [*spellings, *(name for each in spellings.values() for name in each.with_)]
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in others]
        init.__doc__, init.__wrapped__ = plain_init.__doc__, plain_init  # type: ignore[attr-defined]
        record.__init__ = init  # type: ignore[assignment]
        # For help() and the hints of notebooks.
        record.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), *more]
        )
        return record

    return decorate


def _exact(
    record: str,
    exact: list[str],
    spellings: Mapping[str, Spelling],
    values: tuple[Any, ...],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments by their exact names."""
    if len(values) > len(exact):
        raise InvalidInput(f"{record} takes {len(exact)} values by position, not {len(values)}: name them")
    by_position = exact[: len(values)]
    found = {name: value for name, value in given.items() if name in exact}
    rest = {name: value for name, value in given.items() if name not in exact}
    for name, spelling in spellings.items():
        value = rest.pop(name, None)
        beside = {each: rest.pop(each, None) for each in spelling.with_}
        if value is None:
            for each in (each for each, of_it in beside.items() if of_it is not None):
                raise InvalidInput(f"{each}: belongs to {name}: add that, or leave it out", field=each)
            continue
        if spelling.field in by_position or found.get(spelling.field) is not None:
            raise InvalidInput(f"{name}: is {spelling.field} in other words: give one of the two", field=name)
        made = spelling.read(value, name)
        for each, change in spelling.with_.items():
            if beside[each] is not None:
                made = change(made, beside[each], each)
        found[spelling.field] = made
    for name in rest:
        refuse_keyword(record, name, [*exact, *spellings])
    return found


_OF_PROGRAMS = frozenset({"command", "image", "workdir", "environment", "env", "secret_names", "secrets", "mounts"})


def refuse_keyword(what: str, name: str, known: list[str]) -> None:
    """Raises InvalidInput for a keyword that `what` does not have; has the nearest one."""
    if name in _OF_PROGRAMS:
        raise InvalidInput(
            f"{name}: {what} says what a job needs; what it runs goes to client.submit(command=[...], ...), or to "
            "adlro.client.program_spec, which makes such a spec",
            field=name,
        )
    hint = nearest(name, known) or f"; there are {', '.join(known)}"
    raise InvalidInput(f"{name}: {what} has no such field{hint}", field=name, reason=NO_SUCH_FIELD)
