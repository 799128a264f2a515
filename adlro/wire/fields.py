"""Translates a record whose fields are those of its message, by name, in both directions.

A field that one side has and the other lacks raises when the translation is created, at the import of its module. A
record inside a record needs its own translation only if it has parts, and that is created first.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeGuard, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

R = TypeVar("R")
M = TypeVar("M", bound=Message)

_PLAIN = {
    str: {FieldDescriptor.CPPTYPE_STRING},
    bytes: {FieldDescriptor.CPPTYPE_STRING},
    bool: {FieldDescriptor.CPPTYPE_BOOL},
    int: {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64},
    float: {FieldDescriptor.CPPTYPE_DOUBLE},
}
"""Types that are equal on both sides."""


class Part(NamedTuple):
    """The translation of a record's field that differs from the message's field of its name.

    Attributes:
        write: by field of the message, its value from the record's.
        read: the record's value from the message.
    """

    write: Mapping[str, Callable[[Any], Any]]
    read: Callable[[Any], Any]


class _Way(NamedTuple):
    """One field: from the record's value to the message's, and from the message to the record's value."""

    write: Callable[[Any], Any] | None  # None: unchanged
    read: Callable[[Any], Any]


class Translation(Generic[R, M]):
    """A record and its message.

    Args:
        record: a dataclass.
        message: the generated class.
        parts: by field of the record, translations other than by name and type.
        constants: by field of the message, a value that is written and never read.
        left_out: fields of the message that the record does not have.

    Raises:
        TypeError: a field of one side is missing on the other, or their types do not match.
    """

    def __init__(
        self,
        record: type[R],
        message: type[M],
        *,
        parts: Mapping[str, Part] | None = None,
        constants: Mapping[str, Any] | None = None,
        left_out: Collection[str] = (),
    ) -> None:
        self.record, self.message = record, message
        self.left_out = frozenset(left_out)
        self.constants = dict(constants or {})
        parts = parts or {}
        self._writers: list[tuple[str, Callable[[Any], Any]]] = []
        self._readers: list[Callable[[Any], Any]] = []
        plain: list[str] = []
        described: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
        hints = typing.get_type_hints(record)
        translated = set(self.constants) | self.left_out
        for field in dataclasses.fields(record):  # type: ignore[arg-type]  # R is a dataclass
            name = field.name
            of_record = attrgetter(name)
            if name in parts:
                for target, write in parts[name].write.items():
                    self._writers.append((target, _after(of_record, write)))
                    translated.add(target)
                self._readers.append(parts[name].read)
                continue
            if name not in described:
                raise TypeError(f"{record.__name__}.{name}: {message.DESCRIPTOR.full_name} has no such field")
            try:
                way = _way(hints[name], described[name], field)
            except TypeError as error:
                raise TypeError(f"{record.__name__}.{name}: {error}") from None
            if way.write is None:
                plain.append(name)
            else:
                self._writers.append((name, _after(of_record, way.write)))
            self._readers.append(way.read)
            translated.add(name)
        self._plain, self._plain_values = plain, _values_of(plain)
        if missing := set(described) - translated:
            raise TypeError(f"{record.__name__} lacks {', '.join(sorted(missing))} of {message.DESCRIPTOR.full_name}")
        if strange := translated - set(described):
            raise TypeError(f"{message.DESCRIPTOR.full_name} has no {', '.join(sorted(strange))}")
        TRANSLATIONS.append(self)

    def to_proto(self, record: R) -> M:
        """The message of a record.

        Raises:
            ValueError: a field of an enumeration has something else.
        """
        fields = dict(zip(self._plain, self._plain_values(record), strict=True))
        for name, write in self._writers:
            fields[name] = write(record)
        return self.message(**self.constants, **fields)

    def from_proto(self, message: M) -> R:
        """The record of a message.

        Raises:
            ValueError: an enumeration has a number unknown to this release, in a field that the record requires.
        """
        return self.record(*[read(message) for read in self._readers])


TRANSLATIONS: list[Translation[Any, Any]] = []
"""All translations, also those of records inside records."""


def _values_of(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Reads all values at once, which is faster than one by one."""
    if len(names) < 2:
        return lambda record: [getattr(record, name) for name in names]
    return attrgetter(*names)


def _after(first: Callable[[Any], Any], then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: then(first(value))


def _way(hint: Any, described: FieldDescriptor, field: dataclasses.Field[Any]) -> _Way:
    """The translation of a field of that type to that field of the message, and back."""
    name, get = described.name, attrgetter(described.name)
    kind, optional = _without_none(hint)
    if described.is_repeated:
        return _repeated(kind, described, get)
    if _is_enumeration(kind):
        number_of, member_of = _numbers(kind, described.enum_type)
        if optional:
            return _Way(number_of.get, lambda m: member_of.get(get(m)))
        return _Way(lambda value: _known(number_of, value, kind, name), lambda m: _known(member_of, get(m), kind, name))
    if _is_record(kind):
        inner = _inside(kind, described.message_type)
        if optional:
            return _Way(
                lambda each: None if each is None else inner.to_proto(each),
                lambda m: inner.from_proto(get(m)) if m.HasField(name) else None,
            )
        if field.default is not dataclasses.MISSING:
            absent = field.default
            return _Way(inner.to_proto, lambda m: inner.from_proto(get(m)) if m.HasField(name) else absent)
        return _Way(inner.to_proto, lambda m: inner.from_proto(get(m)))
    _check_plain(kind, described)
    if optional:
        if not described.has_presence:
            raise TypeError(f"{described.full_name} can't be absent; declare it optional")
        return _Way(None, lambda m: get(m) if m.HasField(name) else None)
    return _Way(None, get)


def _repeated(kind: Any, described: FieldDescriptor, get: Callable[[Any], Any]) -> _Way:
    name = described.name
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Mapping:
        return _mapping(arguments, described, get)
    # The order of a collection has no meaning.
    together: type[Any] = {tuple: tuple, Collection: frozenset}.get(origin, type(None))
    if together is type(None):
        raise TypeError(f"{kind} is nothing that is repeated")
    item = arguments[0]
    if _is_enumeration(item):
        number_of, member_of = _numbers(item, described.enum_type)
        return _Way(
            lambda values: [_known(number_of, each, item, name) for each in values],
            lambda m: together([_known(member_of, each, item, name) for each in get(m)]),
        )
    if _is_record(item):
        inner = _inside(item, described.message_type)
        return _Way(
            lambda values: [inner.to_proto(each) for each in values],
            lambda m: together([inner.from_proto(each) for each in get(m)]),
        )
    _check_plain(item, described)
    return _Way(None, lambda m: together(get(m)))


def _mapping(arguments: tuple[Any, ...], described: FieldDescriptor, get: Callable[[Any], Any]) -> _Way:
    """A map, or pairs: messages of an enumeration's number and a value; unknown numbers are omitted."""
    if described.message_type is None:
        raise TypeError(f"a mapping does not belong to {described.full_name}")
    key, value = described.message_type.fields
    _check_plain(arguments[1], value)
    if described.message_type.GetOptions().map_entry:
        _check_plain(arguments[0], key)
        return _Way(None, lambda m: dict(get(m)))
    number_of, member_of = _numbers(arguments[0], key.enum_type)
    pair, key_name, value_name = GetMessageClass(described.message_type), key.name, value.name
    return _Way(
        lambda values: [
            pair(**{key_name: _known(number_of, each, arguments[0], described.name), value_name: count})
            for each, count in values.items()
        ],
        lambda m: {
            member: getattr(each, value_name)
            for each in get(m)
            if (member := member_of.get(getattr(each, key_name))) is not None
        },
    )


def _inside(record: type[Any], described: Descriptor | None) -> Translation[Any, Any]:
    if described is None:
        raise TypeError(f"{record.__name__} belongs to no field that is no message")
    for each in TRANSLATIONS:
        if each.record is record and each.message.DESCRIPTOR is described:
            return each
    return Translation(record, GetMessageClass(described))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(hint) if each is not type(None))
        return kind, True
    return hint, False


def _check_plain(kind: Any, described: FieldDescriptor) -> None:
    if described.cpp_type not in _PLAIN.get(kind, ()):
        raise TypeError(f"{kind} does not belong to {described.full_name}")


def _numbers(kind: type[enum.Enum], described: EnumDescriptor | None) -> tuple[dict[Any, int], dict[int, Any]]:
    """An enumeration's numbers in the contract, by member, and its members by number.

    Raises:
        TypeError: one of the two has a name that the other lacks, or they number it differently.
    """
    if described is None:
        raise TypeError(f"{kind.__name__} belongs to no field that is none of an enumeration")
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", described.name).upper() + "_"
    # Number 0 is "not stated", which few records have.
    in_contract = {
        name: each.number
        for each in described.values
        if (name := each.name.removeprefix(prefix)) in kind.__members__ or each.number
    }
    if differing := in_contract.keys() ^ {each.name for each in kind}:
        raise TypeError(f"{kind.__name__} and {described.full_name} differ in {', '.join(sorted(differing))}")
    number_of = {each: in_contract[each.name] for each in kind}
    if any(isinstance(each, int) and each != number for each, number in number_of.items()):
        raise TypeError(f"{kind.__name__} and {described.full_name} have different numbers")
    return number_of, {number: each for each, number in number_of.items()}


def _known(others: Mapping[Any, Any], each: Any, kind: type[enum.Enum], field: str) -> Any:
    """The member of a number, or the number of a member."""
    if each not in others:
        raise ValueError(f"{field}: {each!r} is no {kind.__name__} that this release knows")
    return others[each]


def _is_record(kind: Any) -> TypeGuard[type[Any]]:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _is_enumeration(kind: Any) -> TypeGuard[type[enum.Enum]]:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)
