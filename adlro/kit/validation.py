"""The field rules of the contracts (protovalidate), checked on every request message, with readable errors.

Knows protobuf. A valid message costs a count and one native call. The size of the request bounds the cost, also if
every value breaks a rule (see adlro.kit.bounds).
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar, cast

import protovalidate
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from adlro.errors import FieldViolation, InvalidInput
from adlro.kit.bounds import Items, TooManyItems, largest_bytes, largest_field
from adlro.text import is_hidden, visible

M = TypeVar("M", bound=Message)
T_co = TypeVar("T_co", covariant=True)

_VALUE_SHOWN_CHARACTERS = 60
_KEY_SHOWN_CHARACTERS = 40
_TEXT_SEARCHED_CHARACTERS = 10_000
_VIOLATIONS_IN_MESSAGE = 4
_VIOLATIONS_KEPT = 100
# For a message with more items than this, the error names only the first broken rule: finding one takes microseconds,
# describing each of a million a minute.
_ITEMS_TOLD = 200
# The contracts' patterns, in words.
_LAWFUL_CHARACTERS = {
    "^[A-Za-z0-9._@+-]*$": "letters A-Z and a-z, digits and . _ @ + -",
    "^([A-Za-z0-9._@+-]+|[*])$": "letters A-Z and a-z, digits and . _ @ + -, or * alone for everyone",
    "^@?[A-Za-z0-9._+-][A-Za-z0-9._@+-]*$": "letters A-Z and a-z, digits and . _ @ + -, and @ before a group's name",
    "^[A-Za-z0-9._+-]*$": "letters A-Z and a-z, digits and . _ + -",
    "^[a-z0-9-]*$": "small letters a-z, digits and -",
    "^[A-Za-z_][A-Za-z0-9_]*$": "letters A-Z and a-z, digits and _, and begins with no digit",
    r"^[\x21-\x7e]*$": "ASCII characters without spaces",
}

_validator = protovalidate.Validator()
_collect = _validator.collect_violations


class Unreadable:
    """Stands for a request whose bytes were not read, or could not be. `check` refuses it.

    Args:
        problem: the problem, about "the request" or a message of a stream.
        reason: reason code, for programs.
        violations: the invalid field, if there is one.
    """

    def __init__(self, problem: str, reason: str, violations: Sequence[FieldViolation] = ()) -> None:
        self._problem = problem
        self._reason = reason
        self._violations = violations

    def error(self, index: int | None = None) -> InvalidInput:
        """The caller's error; `index`: index of the message in its stream."""
        return InvalidInput(
            f"{'the request' if index is None else f'message {index} of the stream'} {self._problem}",
            violations=self._violations,
            reason=self._reason,
            metadata={} if index is None else {"index": str(index)},
        )


def request_reader(method: str) -> Callable[[bytes], Message | Unreadable]:
    """A deserializer that never raises: gRPC would answer UNKNOWN, and end a stream without notice to its handler.

    It does not read messages larger than the field rules allow.

    Args:
        method: `/package.Service/Method` of a contract.
    """
    service, _, name = method.removeprefix("/").partition("/")
    descriptor = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type
    deserialize = message_factory.GetMessageClass(descriptor).FromString
    most = largest_bytes(descriptor)

    def read(data: bytes) -> Message | Unreadable:
        if len(data) > most:
            return _too_large(data, descriptor, most)
        try:
            return deserialize(data)
        except DecodeError:
            return Unreadable(
                f"({len(data)} bytes) cannot be read as the request of {service}/{name}: the bytes are no protobuf "
                "message, or one of its strings is not UTF-8; send what the generated code of protos/adlro/v1 "
                "serialises",
                "REQUEST_UNREADABLE",
            )

    return read


def _too_large(data: bytes, descriptor: Descriptor, most: int) -> Unreadable:
    problem = f"has {len(data)} bytes; the field rules of {descriptor.name} allow at most {most}"
    found = largest_field(data, descriptor)
    if found is None:
        return Unreadable(problem, "REQUEST_TOO_LARGE")
    path, size = found
    text = f"has {size} of them; shorten it"
    return Unreadable(f"{problem}; {path}: {text}", "REQUEST_TOO_LARGE", [FieldViolation(path, text)])


def check(message: Message | Unreadable) -> None:
    """Raises InvalidInput with all broken rules of a message, if any."""
    if isinstance(message, Unreadable):
        raise message.error()
    _check_rules(message, None)


def _check_rules(message: Message, index: int | None) -> None:
    """As `check`; `index`: index of the message in its stream."""
    try:
        items = Items.of(message.DESCRIPTOR).count(message)
    except TooManyItems as error:
        text = f"must contain no more than {error.limit} item(s) (got {error.count})"
        raise _refusal([FieldViolation(error.path, text)], 1, index) from None
    violations = _collect(message, fail_fast=True)
    if violations:
        if items <= _ITEMS_TOLD:
            violations = _collect(message)
        descriptor = cast(Descriptor, message.DESCRIPTOR)
        told = [_told(descriptor, each) for each in violations[:_VIOLATIONS_KEPT]]
        raise _refusal(told, len(violations), index)


def warm(service_names: Iterable[str]) -> None:
    """Compiles the rules of all request messages of proto services, so that no client waits for that.

    Raises:
        protovalidate.CompilationError: a rule of a contract is invalid.
    """
    pool = descriptor_pool.Default()
    for name in service_names:
        for method in pool.FindServiceByName(name).methods:
            _collect(message_factory.GetMessageClass(method.input_type)())


class RequestStream(Protocol[T_co]):
    """The type of gRPC's request streams."""

    def __aiter__(self) -> AsyncIterator[T_co]:
        """The messages in order."""
        ...


class CheckedStream(Generic[M]):
    """The messages of a client stream, each checked when it is read.

    A broken rule raises InvalidInput out of `async for`; its `index` metadata is the message's index, from 0. The
    stream can be read on after it (see `attempt_each`).
    """

    def __init__(self, requests: RequestStream[M | Unreadable]) -> None:
        self._requests = requests.__aiter__()
        self._index = -1

    def __aiter__(self) -> CheckedStream[M]:
        return self

    async def __anext__(self) -> M:
        message = await self._requests.__anext__()
        self._index += 1
        if isinstance(message, Unreadable):
            raise message.error(self._index)
        _check_rules(message, self._index)
        return message


async def attempt_each(requests: RequestStream[M]) -> AsyncIterator[tuple[int, M | None, InvalidInput | None]]:
    """Reads a client stream past invalid messages: (index, message, None), or (index, None, the error).

    For handlers that report bad messages by index instead of ending the stream at the first.
    """
    messages = requests.__aiter__()
    index = 0
    while True:
        try:
            message = await messages.__anext__()
        except StopAsyncIteration:
            return
        except InvalidInput as error:
            yield index, None, error
        else:
            yield index, message, None
        index += 1


def _refusal(told: Sequence[FieldViolation], count: int, index: int | None) -> InvalidInput:
    """The error for broken rules: those it describes, of `count` in all."""
    text = "; ".join(f"{each.field}: {each.description}" for each in told[:_VIOLATIONS_IN_MESSAGE])
    more = count - _VIOLATIONS_IN_MESSAGE
    if more > 0:
        text += f"; and {more} more"
    metadata = {}
    if index is not None:
        text = f"message {index} of the stream: {text}"
        metadata["index"] = str(index)
    return InvalidInput(text, violations=told, reason="FIELD_RULE_VIOLATED", metadata=metadata)


def _told(descriptor: Descriptor, violation: protovalidate.Violation) -> FieldViolation:
    proto = violation.proto
    path, field = _path(descriptor, violation)
    rule_id = proto.rule_id
    value = violation.field_value
    if rule_id == "required":
        return FieldViolation(path, "must be set")
    enum = field.enum_type if field is not None else None
    if enum is not None and rule_id in ("enum.not_in", "enum.defined_only"):
        allowed = ", ".join(each.name for each in enum.values if each.number)
        named = enum.values_by_number.get(value) if isinstance(value, int) else None
        return FieldViolation(path, f"must be one of {allowed} (got {named.name if named else value})")
    if rule_id == "string.min_len" and value == "":
        text = "must not be empty"
    elif rule_id == "string.pattern" and (hidden := _hidden(_key(violation) if proto.for_key else value)):
        text = f"must not contain control or other hidden characters: remove {hidden}"
    elif rule_id == "string.pattern" and (lawful := _LAWFUL_CHARACTERS.get(str(violation.rule_value))):
        text = f"may contain only {lawful}"
    else:
        text = proto.message.removeprefix("repeated ").removeprefix("value ") or f"breaks the rule {rule_id}"
    if proto.for_key:
        return FieldViolation(path, f"its key {text}")
    shown = _shown(value)
    return FieldViolation(path, f"{text} (got {shown})" if shown else text)


def _path(descriptor: Descriptor, violation: protovalidate.Violation) -> tuple[str, FieldDescriptor | None]:
    """`job.labels["x"]`, and its last field; for a rule of the whole message, the message's name."""
    parts: list[str] = []
    field: FieldDescriptor | None = None
    here: Descriptor | None = descriptor
    path = violation.proto.field
    for element in path.elements if path is not None else ():
        # A oneof has a name, but no field.
        field = here.fields_by_name.get(element.field_name) if here is not None else None
        here = field.message_type if field is not None else None
        text = element.field_name
        subscript = element.subscript
        if subscript is not None:
            key = subscript.value
            text += f"[{_quoted(key) if isinstance(key, str) else key}]"
            if here is not None and here.GetOptions().map_entry:
                field = here.fields_by_name["value"]
                here = field.message_type
        parts.append(text)
    return ".".join(parts) or descriptor.name, field


def _key(violation: protovalidate.Violation) -> object:
    path = violation.proto.field
    subscript = path.elements[-1].subscript if path is not None and path.elements else None
    return subscript.value if subscript is not None else None


def _hidden(value: object) -> str:
    """The first character of a text that breaks the rule against hidden ones; empty for another rule."""
    found = (
        next((each for each in value[:_TEXT_SEARCHED_CHARACTERS] if is_hidden(each)), "")
        if isinstance(value, str)
        else ""
    )
    return f"U+{ord(found):04X} {unicodedata.name(found, '')}".rstrip() if found else ""


def _quoted(key: str) -> str:
    key = visible(key)
    return '"' + (key if len(key) <= _KEY_SHOWN_CHARACTERS else key[: _KEY_SHOWN_CHARACTERS - 3] + "...") + '"'


def _shown(value: object) -> str:
    """A short form of a value, so that a 10 MB name does not come back to its sender."""
    if isinstance(value, str):
        # Cut first: repr of 10 MB takes time.
        cut = visible(repr(value[:_VALUE_SHOWN_CHARACTERS]))
        if len(value) > _VALUE_SHOWN_CHARACTERS or len(cut) > _VALUE_SHOWN_CHARACTERS:
            return f"{cut[: _VALUE_SHOWN_CHARACTERS - 4]}...', {len(value)} characters"
        return cut
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        return f"{len(value)} of them"
    return ""
