"""The largest size of a request by its field rules. Uses protobuf and the rules' schema; no I/O.

The rules are checked on parsed messages, one value after the other, and each broken rule costs some 50 us. So
two checks come first: the size of the bytes, against the largest that the rules allow (`largest_bytes`); the number of
items in every list and map (`Items`). The values are checked last.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from adlro.vendor.buf.validate import validate_pb2

# Fields of newer clients that this release does not have.
_UNKNOWN_FIELDS_BYTES: Final = 4096
_BYTES_PER_CHARACTER: Final = 4
_VARINT_BYTES: Final = 10
_FIXED_BYTES: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_BOOL: 1,
}
# Messages that are limited as a whole, below the sum of their fields: 128 KiB of text, and what frames it.
_WHOLE_BYTES: Final = {"adlro.v1.Payload": 192 << 10}
# Limit of the search for the largest field, in bytes that may be no message.
_FIELDS_LOOKED_AT: Final = 1000


class TooManyItems(Exception):
    """A list or map has more items than its rule allows.

    Attributes:
        path: the field, such as `records[1].job.labels`.
        limit: the rule's limit.
        count: the number of items.
    """

    def __init__(self, path: str, limit: int, count: int) -> None:
        super().__init__(path)
        self.path = path
        self.limit = limit
        self.count = count

    def below(self, where: str) -> TooManyItems:
        """The same error, with the path from the enclosing message."""
        return TooManyItems(f"{where}.{self.path}", self.limit, self.count)


class Items:
    """Counts the items in all lists and maps of a message type; made once a type (`Items.of`).

    Args:
        descriptor: the type.

    Raises:
        ValueError: it has a list or map without `max_items` or `max_pairs`.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        # Of each field that has items, or whose message has: name, the most items (-1: one message), what is nested.
        self._fields: list[tuple[str, int, Items | None]] = []
        for field in descriptor.fields:
            nested = Items.of(field.message_type) if field.message_type is not None and not _is_map(field) else None
            if nested is not None and not nested._fields:
                nested = None
            if field.is_repeated:
                most = _most_items(field)
                if most is None:
                    raise ValueError(f"{field.full_name} has no max_items or max_pairs")
                self._fields.append((field.name, most, nested))
            elif nested is not None:
                self._fields.append((field.name, -1, nested))

    @staticmethod
    @cache
    def of(descriptor: Descriptor) -> Items:
        """The counter of a type."""
        return Items(descriptor)

    def count(self, message: Message) -> int:
        """The number of all items.

        Raises:
            TooManyItems: a list is too long; its items are unread.
        """
        total = 0
        for name, most, nested in self._fields:
            value: Any = getattr(message, name)
            if most < 0:
                assert nested is not None
                try:
                    total += nested.count(value)
                except TooManyItems as error:
                    raise error.below(name) from None
                continue
            count = len(value)
            if count > most:
                raise TooManyItems(name, most, count)
            total += count
            if nested is not None:
                total += nested._count_each(value, name)
        return total

    def _count_each(self, messages: Any, name: str) -> int:
        total = 0
        for index, each in enumerate(messages):
            try:
                total += self.count(each)
            except TooManyItems as error:
                raise error.below(f"{name}[{index}]") from None
        return total


@cache
def largest_bytes(descriptor: Descriptor) -> int:
    """The largest size on the wire of a valid message of this type, and a little more, in bytes.

    Raises:
        ValueError: a field has no bound; names it.
    """
    unbounded = unbounded_fields(descriptor)
    if unbounded:
        raise ValueError(f"without a bound: {', '.join(unbounded)}")
    return _message_bytes(descriptor) + _UNKNOWN_FIELDS_BYTES


def unbounded_fields(descriptor: Descriptor) -> list[str]:
    """The fields of a request, nested ones too, that may hold any number of items, characters or bytes."""
    return list(_unbounded(descriptor, ()))


def largest_field(data: bytes, descriptor: Descriptor) -> tuple[str, int] | None:
    """The largest text, list or blob in bytes that are too long to be read: its path and about its size in bytes.

    None where the bytes are no message.
    """
    path: list[str] = []
    view, size = memoryview(data), len(data)
    here: Descriptor | None = descriptor
    while here is not None:
        found = _largest_of(view, here)
        if found is None:
            break
        field, size, view = found
        path.append(field.name)
        here = None if field.is_repeated else field.message_type
    return (".".join(path), size) if path else None


def _rules(field: FieldDescriptor) -> Any:
    return field.GetOptions().Extensions[validate_pb2.field]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _most_items(field: FieldDescriptor) -> int | None:
    rules = _rules(field)
    if _is_map(field):
        return rules.map.max_pairs if rules.map.HasField("max_pairs") else None
    return rules.repeated.max_items if rules.repeated.HasField("max_items") else None


def _value_rules(field: FieldDescriptor) -> Any:
    """The rules of one value of a field: of a list those of its items."""
    rules = _rules(field)
    return rules.repeated.items if field.is_repeated else rules


def _parts(field: FieldDescriptor) -> Iterator[tuple[FieldDescriptor, Any]]:
    """The values of a field, each with its rules; of a map key and value."""
    entry = field.message_type
    if entry is not None and _is_map(field):
        rules = _rules(field).map
        yield entry.fields_by_name["key"], rules.keys
        yield entry.fields_by_name["value"], rules.values
    else:
        yield field, _value_rules(field)


def _most_bytes(field: FieldDescriptor, rules: Any) -> int | None:
    """Of one value that is no message; None where it has no bound."""
    if field.type == FieldDescriptor.TYPE_STRING:
        for name, factor in (("max_bytes", 1), ("len_bytes", 1), ("max_len", _BYTES_PER_CHARACTER), ("len", 4)):
            if rules.string.HasField(name):
                return int(getattr(rules.string, name)) * factor
        return None
    if field.type == FieldDescriptor.TYPE_BYTES:
        return int(rules.bytes.max_len) if rules.bytes.HasField("max_len") else None
    return _FIXED_BYTES.get(field.type, _VARINT_BYTES)


def _unbounded(descriptor: Descriptor, above: tuple[Descriptor, ...]) -> Iterator[str]:
    if descriptor in above:
        yield f"{descriptor.full_name} (holds itself)"
        return
    for field in descriptor.fields:
        if field.is_repeated and _most_items(field) is None:
            yield field.full_name
        for part, rules in _parts(field):
            if part.message_type is not None:
                yield from _unbounded(part.message_type, (*above, descriptor))
            elif _most_bytes(part, rules) is None:
                yield field.full_name


def _message_bytes(descriptor: Descriptor) -> int:
    if descriptor.full_name in _WHOLE_BYTES:
        return _WHOLE_BYTES[descriptor.full_name]
    total = 0
    for field in descriptor.fields:
        size = sum(_part_bytes(part, rules) for part, rules in _parts(field))
        if _is_map(field):
            size = _framed(size)
        total += size * (_most_items(field) or 0 if field.is_repeated else 1)
    return total


def _part_bytes(field: FieldDescriptor, rules: Any) -> int:
    size = _message_bytes(field.message_type) if field.message_type is not None else _most_bytes(field, rules) or 0
    return _framed(size)


def _framed(size: int) -> int:
    """With tag and length."""
    return size + 2 + (size.bit_length() + 6) // 7


def _largest_of(view: memoryview, descriptor: Descriptor) -> tuple[FieldDescriptor, int, memoryview] | None:
    """The field whose values are largest together, their size, and the largest one of them."""
    sums: dict[int, int] = {}
    largest: dict[int, memoryview] = {}
    at = 0
    try:
        for _ in range(_FIELDS_LOOKED_AT):
            if at >= len(view):
                break
            tag, at = _varint(view, at)
            number, kind = tag >> 3, tag & 7
            size, at = _varint(view, at) if kind in (0, 2) else ({1: 8, 5: 4}[kind], at)
            if kind == 0:
                continue
            value = view[at : at + size]
            at += size
            if kind == 2 and len(value) == size:
                sums[number] = sums.get(number, 0) + size
                largest[number] = max(largest.get(number, value), value, key=len)
    except (IndexError, KeyError):
        return None
    number = max(sums, key=lambda each: sums[each], default=0)
    field = descriptor.fields_by_number.get(number)
    # Where there are more fields than are looked at, the rest is taken for more of the same.
    return (field, sums[number] + len(view) - at, largest[number]) if field is not None else None


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number, and where the next begins. Raises IndexError where the bytes end before it does."""
    value = shift = 0
    while view[at] >= 0x80:
        value |= (view[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | view[at] << shift, at + 1
