"""Similarity of records as an algebra of kernels: hypervectors in the limit of infinite dimension. Arrays only.

Binding multiplies similarities and bundling adds them, so the expected similarity of two records' hypervectors is a sum
over terms, each a product over variables:

    k(x, y) = sum over terms t of  weight_t * product over variables v in t of  k_v(x_v, y_v)

with k_v = 1 for equal values of a category and 0 otherwise (random codes), and exp(-|x - y| / length) for reals
(fractional-power codes with Cauchy frequencies). The direct computation has none of the noise of 1/sqrt(d);
benchmarks/decompose.py shows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class KernelTerm(NamedTuple):
    """A product of variables: categories and reals, by number. Without any: the constant."""

    weight: float
    categories: tuple[int, ...] = ()
    reals: tuple[int, ...] = ()


class Features(NamedTuple):
    """N records: categories N x C (numbers of values), reals N x R (NaN: not stated, unlike any other value)."""

    categories: NDArray[np.int32]
    reals: Floats

    def __len__(self) -> int:
        return len(self.categories)

    def rows(self, which: NDArray[np.intp] | slice) -> Features:
        """Some of the records."""
        return Features(self.categories[which], self.reals[which])


def kernel(first: Features, second: Features, terms: Sequence[KernelTerm], length: float) -> Floats:
    """The similarity of each of N records to each of M: N x M.

    Args:
        first: N records.
        second: M records.
        terms: the terms of the sum.
        length: the distance over which the similarity of two reals decreases to a third.
    """
    equal: dict[int, Floats] = {}
    near: dict[int, Floats] = {}
    products: dict[tuple[tuple[int, ...], tuple[int, ...]], Floats] = {}

    def category(column: int) -> Floats:
        if column not in equal:
            left, right = first.categories[:, column], second.categories[:, column]
            equal[column] = np.equal(left[:, None], right).astype(np.float64)
        return equal[column]

    def real(column: int) -> Floats:
        if column not in near:
            left, right = first.reals[:, column], second.reals[:, column]
            alike = np.exp(np.abs(left[:, None] - right) / -length)
            if np.isnan(left).any() or np.isnan(right).any():
                alike = np.where(np.isnan(left)[:, None] & np.isnan(right), 1.0, np.nan_to_num(alike, nan=0.0))
            near[column] = alike
        return near[column]

    def product(categories: tuple[int, ...], reals: tuple[int, ...]) -> Floats:
        found = products.get((categories, reals))
        if found is None:
            if reals:
                last = real(reals[-1])
                found = last if not categories and len(reals) == 1 else product(categories, reals[:-1]) * last
            else:
                last = category(categories[-1])
                found = last if len(categories) == 1 else product(categories[:-1], ()) * last
            products[categories, reals] = found
        return found

    total = np.zeros((len(first), len(second)))
    for term in terms:
        if term.categories or term.reals:
            total += term.weight * product(term.categories, term.reals)
        else:
            total += term.weight
    return total


def kernel_by_value(
    first: Features, second: Features, terms: Sequence[KernelTerm], length: float, column: int, values: Sequence[int]
) -> Floats:
    """The similarity of N records, with each of V values in one column of categories, to each of M: N V x M.

    Equals `kernel` of the N V records, value by value within a record, in a V-th of the time: terms without the column
    are computed once for all values.
    """
    without = [term for term in terms if column not in term.categories]
    within = [
        term._replace(categories=tuple(each for each in term.categories if each != column))
        for term in terms
        if column in term.categories
    ]
    equal = np.equal(np.array(values, dtype=np.int32)[:, None], second.categories[:, column])  # V x M
    shared, of_value = kernel(first, second, without, length), kernel(first, second, within, length)  # N x M
    total = shared[:, None, :] + equal * of_value[:, None, :]  # N x V x M
    return total.reshape(-1, len(second))


def self_similarity(terms: Sequence[KernelTerm]) -> float:
    """The similarity of every record to itself."""
    return sum(term.weight for term in terms)
