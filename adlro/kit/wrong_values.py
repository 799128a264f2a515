"""What is wrong with a value, in ADLRO's words instead of pydantic's. Pure functions; pydantic is not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KINDS = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_CHOICES = re.compile(r"\^\(([a-z_|]+)\)\$")
_SUBJECT = re.compile(r"^[A-Z][a-z]+ should ")


def wrong_value(error: Mapping[str, Any]) -> str:
    """What a value must be: `must be at least 0`.

    Args:
        error: of those of a pydantic ValidationError's `errors()`; of ValueErrors that we raise, the text is as it is.
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        bound = context[key]
        return f"must be {words} {bound:.15g}" if isinstance(bound, float) else f"must be {words} {bound}"
    if choices := _CHOICES.fullmatch(str(context.get("pattern", ""))):
        return f"must be one of {choices[1].replace('|', ', ')}"
    message = str(error["msg"])
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    return _SUBJECT.sub("must ", message)
