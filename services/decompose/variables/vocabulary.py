"""Vocabularies: the values of a variable and their numbers. Knows plain values only.

A growing vocabulary is bounded: when it is full, a new value replaces the least recently seen one that is not held. The
memory holds the values of its finished jobs, so names that only requests have never replace these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from adlro.errors import InvalidInput
from adlro.records.matrices import Variable

UNKNOWN = -1
"""The number of a value that its vocabulary lacks."""
NOT_STATED = 0
"""The number of the empty value in a growing vocabulary."""
VOCABULARY_LIMIT = 65_536
"""Largest number of values of a growing vocabulary."""


class Vocabulary:
    """The values of one variable, numbered from 0 in order of appearance. No number is reused.

    Args:
        name: name of the variable.
        values: the initial values, which stay.
        grows: adds unseen values; at most `limit` are known at a time.
    """

    def __init__(
        self, name: str, values: Iterable[str] = (), *, grows: bool = False, limit: int = VOCABULARY_LIMIT
    ) -> None:
        self.name = name
        self._index = {value: index for index, value in enumerate(values)}
        self._value_of = {index: value for value, index in self._index.items()}
        self._first_count = self._next = len(self._index)
        self._grows = grows
        self._limit = limit
        self._held: dict[int, int] = {}  # by number, its count of holders
        self._idle: dict[int, None] = {}  # numbers without holders, the most recently seen at the end

    def __len__(self) -> int:
        return len(self._index)

    def number(self, value: str) -> int:
        """The value's number; UNKNOWN if it has none."""
        return self._index.get(value, UNKNOWN)

    def learn(self, value: str) -> int:
        """The value's number, a new one if it had none.

        Returns:
            UNKNOWN if the vocabulary is closed, or full of held values.
        """
        index = self._index.get(value)
        if index is not None:
            if index in self._idle:
                del self._idle[index]
                self._idle[index] = None
            return index
        if not self._grows:
            return UNKNOWN
        if len(self._index) >= self._limit:
            if not self._idle:
                return UNKNOWN
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._index[self._value_of.pop(oldest)]
        self._add(value, self._next)
        return self._next - 1

    def hold(self, number: int) -> None:
        """Protects a value from replacement until it is released as often as it was held. UNKNOWN is ignored."""
        if number >= self._first_count:
            self._held[number] = self._held.get(number, 0) + 1
            self._idle.pop(number, None)

    def release(self, number: int) -> None:
        """Releases a held value."""
        if number >= self._first_count:
            count = self._held.pop(number) - 1
            if count:
                self._held[number] = count
            else:
                self._idle[number] = None

    def values(self) -> list[str]:
        """All values, by number."""
        return list(self._index)

    def numbers(self) -> dict[str, int]:
        """All values with their numbers."""
        return dict(self._index)

    def restore(self, values: Sequence[str] | Mapping[str, int]) -> None:
        """Replaces the values by these: with their numbers, or numbered from 0. None of them is held.

        Raises:
            InvalidInput: the first is not the empty value, or a value or number is repeated.
        """
        items = list(values.items()) if isinstance(values, Mapping) else [(each, i) for i, each in enumerate(values)]
        numbers = [number for _, number in items]
        if (
            not items
            or items[0] != ("", NOT_STATED)
            or len({value for value, _ in items}) != len(items)
            or len(items) > self._limit
            or any(after <= before for before, after in itertools.pairwise(numbers))
        ):
            raise InvalidInput(
                f"{self.name}: invalid vocabulary: it must begin with '' and contain each value once", field=self.name
            )
        self._index, self._value_of, self._held, self._idle = {"": NOT_STATED}, {NOT_STATED: ""}, {}, {}
        for value, number in items[1:]:
            self._add(value, number)

    def value(self, index: int) -> str:
        """The value of a number.

        Raises:
            IndexError: no value has this number.
        """
        try:
            return self._value_of[index]
        except KeyError:
            raise IndexError(f"{self.name}: no value has the number {index}") from None

    def variable(self, index: int) -> Variable:
        """The variable with the value of a number."""
        return Variable(self.name, self.value(index), index)

    def _add(self, value: str, number: int) -> None:
        self._index[value] = number
        self._value_of[number] = value
        self._idle[number] = None
        self._next = number + 1
