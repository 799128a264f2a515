"""The whole cluster as one hypervector: a bundle of slot x record. Knows arrays and names only.

    record(gpu)  = a_1[value] * a_2[value] * ...        one random atom for each variable's value
    memory       = sum over GPUs of slot(gpu) * record(gpu)

A GPU is updated in place: the memory subtracts its old product and adds the new one. `decode` recovers a GPU's values:
it unbinds the GPU's slot, then searches the product codebook of all combinations, up to EXHAUSTIVE_LIMIT of them;
beyond that it uses a resonator network (`adlro.services.decompose.hypervectors.resonator`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.algebra import Signs, bind, unbind
from adlro.services.decompose.hypervectors.codebook import Codebook
from adlro.services.decompose.hypervectors.resonator import resonate

EXHAUSTIVE_LIMIT = 100_000
"""Combinations up to which decoding compares with all."""
CLEAR_MARGIN = 1.2
"""Lead of the best after half the components, in standard deviations, that is accepted without the other half."""
_BLOCK_COMBINATIONS = 2_048  # combinations of the product codebook per comparison
_KEPT_BYTES = 64 * 2**20  # a product codebook up to this size is stored as floats


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The decoded records of N slots.

    values: N x V numbers of values. similarity: N, the dot product with the decoded record over the compared components
    (half of them if these sufficed); about 1 for a right one, about 0 for an empty slot.
    """

    values: NDArray[np.intp]
    similarity: NDArray[np.float64]


class GpuRecordCode:
    """Codes of records: V variables with a fixed number of values each.

    Args:
        codebook: source of the atoms.
        sizes: number of values of each variable, by name; their order is that of a record's values.
        exhaustive_limit: combinations up to which `decode` compares with all.
    """

    def __init__(self, codebook: Codebook, sizes: Mapping[str, int], exhaustive_limit: int = EXHAUSTIVE_LIMIT) -> None:
        if not sizes or min(sizes.values()) < 1:
            raise ValueError(f"every variable needs at least one value, not {dict(sizes)}")
        self.codebook = codebook
        self.sizes = dict(sizes)
        self.factors = [
            codebook.atoms([f"value/{name}/{number}" for number in range(size)]) for name, size in sizes.items()
        ]
        self.combinations = math.prod(self.sizes.values())
        self.exhaustive = self.combinations <= exhaustive_limit

    def encode(self, values: NDArray[Any]) -> Signs:
        """The records of N x V numbers of values: N x d.

        Raises:
            IndexError: a number is not one of its variable's values.
        """
        numbers = np.asarray(values, dtype=np.intp)
        if numbers.ndim != 2 or numbers.shape[1] != len(self.factors):
            raise IndexError(f"values must be N x {len(self.factors)}, not of shape {numbers.shape}")
        for column, (name, size) in enumerate(self.sizes.items()):
            if len(numbers) and not 0 <= numbers[:, column].min() <= numbers[:, column].max() < size:
                raise IndexError(f"{name}: numbers of values are 0 to {size - 1}")
        first, *others = (factor[numbers[:, column]] for column, factor in enumerate(self.factors))
        return bind(first, *others)

    def decode(self, noisy: NDArray[Any], keys: NDArray[np.float32] | None = None) -> DecodedRecords:
        """The values in noisy records.

        Args:
            noisy: N x d; or d if all are in one bundle.
            keys: N x d, the keys to unbind; None: the records are not bound.
        """
        held = np.asarray(noisy, dtype=np.float32)
        if self.exhaustive and self._kept_halves is not None:
            which, similarity = self._by_halves(held, keys, *self._kept_halves)
            return DecodedRecords(np.stack(np.unravel_index(which, tuple(self.sizes.values())), axis=1), similarity)
        vectors = held if keys is None else unbind(held, keys)
        if not self.exhaustive:
            found = [resonate(vector, self.factors) for vector in vectors]
            numbers = np.array([each.values for each in found], dtype=np.intp).reshape(len(vectors), len(self.factors))
            return DecodedRecords(numbers, np.array([each.similarity for each in found]))
        which = self._in_blocks(vectors)
        numbers = np.stack(np.unravel_index(which, tuple(self.sizes.values())), axis=1)
        similarity = (vectors * self.encode(numbers)).sum(axis=1).astype(np.float64) / self.codebook.dimension
        return DecodedRecords(numbers, similarity)

    def _by_halves(
        self,
        held: NDArray[np.float32],
        keys: NDArray[np.float32] | None,
        first: NDArray[np.float32],
        second: NDArray[np.float32],
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The most similar combinations, and their similarities.

        Records that half the components decide clearly are not compared by the other half.
        """
        half = len(first)
        left = held[..., :half] if keys is None else unbind(held[..., :half], keys[:, :half])
        dots = left @ first  # N x combinations
        which: NDArray[np.intp] = dots.argmax(axis=1)
        rows = np.arange(len(left))
        best = dots[rows, which].copy()
        dots[rows, which] = -np.inf
        margin = best - dots.max(axis=1)
        dots[rows, which] = best
        # The difference of two wrong ones' dot products has this standard deviation. With a larger margin, the right
        # one would have to be five of them below its expectation in a full bundle, more in others.
        spread = np.sqrt(2.0 * np.einsum("nd,nd->n", left, left))
        unclear = np.flatnonzero(margin <= CLEAR_MARGIN * spread)
        similarity = best.astype(np.float64) / half
        if len(unclear):
            right = held[unclear, half:] if keys is None else unbind(held[half:], keys[unclear, half:])
            both = dots[unclear] + right @ second
            which[unclear] = both.argmax(axis=1)
            similarity[unclear] = both.max(axis=1) / self.codebook.dimension
        return which, similarity

    def _in_blocks(self, vectors: NDArray[np.float32]) -> NDArray[np.intp]:
        """The most similar combinations of a product codebook that is computed in blocks."""
        best = np.full(len(vectors), -np.inf, dtype=np.float32)
        which = np.zeros(len(vectors), dtype=np.intp)
        rows = np.arange(len(vectors))
        for start in range(0, self.combinations, _BLOCK_COMBINATIONS):
            products = self._block(start, min(start + _BLOCK_COMBINATIONS, self.combinations))
            dots = vectors @ products.T  # N x combinations of the block
            at = dots.argmax(axis=1)
            better = dots[rows, at] > best
            best = np.where(better, dots[rows, at], best)
            which = np.where(better, start + at, which)
        return which

    @functools.cached_property
    def _kept_halves(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """The product codebook by halves of the components, d/2 x combinations each; None if it is too large."""
        if self.combinations * self.codebook.dimension * 4 > _KEPT_BYTES:
            return None
        products = self._block(0, self.combinations)
        half = self.codebook.dimension // 2
        return np.ascontiguousarray(products[:, :half].T), np.ascontiguousarray(products[:, half:].T)

    def _block(self, start: int, stop: int) -> NDArray[np.float32]:
        numbers = np.stack(np.unravel_index(np.arange(start, stop), tuple(self.sizes.values())), axis=1)
        return self.encode(numbers).astype(np.float32)


class ClusterMemory:
    """Slots by name, and the bundle of their records.

    Args:
        record: codes of the records.
        slots: names, such as GPU ids.
    """

    def __init__(self, record: GpuRecordCode, slots: Sequence[str]) -> None:
        if len(set(slots)) != len(slots):
            raise ValueError("slots must have different names")
        self.record = record
        self.slots = tuple(slots)
        self._number = {name: number for number, name in enumerate(self.slots)}
        self._atoms = record.codebook.atoms([f"slot/{name}" for name in self.slots])  # N x d
        self._float_atoms = self._atoms.astype(np.float32)  # as floats, the input of the matrix product
        self._values = np.full((len(self.slots), len(record.factors)), -1, dtype=np.intp)
        self.bundle: NDArray[np.int32] = np.zeros(record.codebook.dimension, dtype=np.int32)

    def update(self, slots: Sequence[str], values: NDArray[Any]) -> None:
        """Replaces the records of slots; slots with unchanged values cost nothing.

        Args:
            slots: n names, each at most once.
            values: n x V numbers of values.

        Raises:
            KeyError: no such slot.
            IndexError: a number is not one of its variable's values.
        """
        rows = np.array([self._number[name] for name in slots], dtype=np.intp)
        wanted = np.asarray(values, dtype=np.intp)
        changed = (self._values[rows] != wanted).any(axis=1)
        rows, wanted = rows[changed], wanted[changed]
        if not len(rows):
            return
        products = bind(self._atoms[rows], self.record.encode(wanted))
        held = self._values[rows, 0] >= 0
        if held.any():
            old = bind(self._atoms[rows[held]], self.record.encode(self._values[rows[held]]))
            self.bundle -= _sum(old)
        self.bundle += _sum(products)
        self._values[rows] = wanted

    def decode(self, slots: Sequence[str] | None = None, bundle: NDArray[Any] | None = None) -> DecodedRecords:
        """The values of slots, decoded from the bundle alone.

        Args:
            slots: names; all if left out.
            bundle: decodes this (d) in place of the memory's own, such as a received or noisy one.

        Raises:
            KeyError: no such slot.
        """
        rows = slice(None) if slots is None else np.array([self._number[name] for name in slots], dtype=np.intp)
        held = np.asarray(self.bundle if bundle is None else bundle, dtype=np.float32)
        return self.record.decode(held, self._float_atoms[rows])


def _sum(products: Signs) -> NDArray[np.int32]:
    """The sum of n x d signs. In bytes by blocks of at most 127: an eighth of the time of int32 throughout."""
    total = np.zeros(products.shape[1], dtype=np.int32)
    for start in range(0, len(products), 127):
        total += np.add.reduce(products[start : start + 127], axis=0, dtype=np.int8)
    return total
