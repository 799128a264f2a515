"""The algebra of hypervectors, MAP-I (multiply, add, permute; integers). Knows arrays only.

A hypervector is an array whose last axis has d components: int8 of -1 and 1 for atoms and what is bound from them,
wider integers for bundles. Leading axes are batches. Source of the operations: Gayler 1998, "Multiplicative binding,
representation operators and analogy"; of the terms: Kanerva 2009, "Hyperdimensional computing".

Packed: one sign bit a component (1 for below 0), little-endian words of 64; similarity by counting bits.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Signs = NDArray[np.int8]
Words = NDArray[np.uint64]
Bundle = NDArray[Any]
WORD_BITS = 64


def bind(first: Signs, *others: Signs) -> Signs:
    """The product by components: dissimilar to each of its factors, and undone by another bind.

    Args:
        first: ... x d, -1 and 1.
        others: the same, of shapes that broadcast.
    """
    return reduce(np.multiply, others, first)


def unbind(bound: Bundle, *factors: Bundle) -> Bundle:
    """The rest of a product, or of a bundle of products, without some factors: each is its own inverse."""
    return reduce(np.multiply, factors, bound)


def bundle(vectors: Bundle, weights: NDArray[Any] | None = None) -> Bundle:
    """The sum over the first axis: similar to each of its members.

    Args:
        vectors: n x ... x d.
        weights: n; the weight of each vector.

    Returns:
        ... x d; int32 without weights, the weights' kind of float otherwise.
    """
    if weights is None:
        total: Bundle = np.asarray(vectors).sum(axis=0, dtype=np.int32)
        return total
    weighted: Bundle = np.tensordot(weights, vectors, axes=1)
    return weighted


def permute(vector: Bundle, steps: int = 1) -> Bundle:
    """Shifts components by `steps` places, cyclically; the negative undoes it. Encodes order."""
    return np.roll(vector, steps, axis=-1)


def similarity(first: Bundle, second: Bundle) -> NDArray[np.float64]:
    """The cosine of hypervectors: `first` A x d and `second` B x d give A x B; single ones drop their axis.

    A bundle of no members, all zeros, has similarity 0.
    """
    left, right = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    lengths = np.multiply.outer(np.linalg.norm(left, axis=-1), np.linalg.norm(right, axis=-1))
    cosine: NDArray[np.float64] = np.divide(left @ right.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return cosine


def signs(vectors: Bundle, ties: Signs) -> Signs:
    """-1 and 1 by sign; components of 0 come from `ties` (d), so that the result is the same everywhere."""
    return np.where(vectors == 0, ties, np.where(vectors < 0, -1, 1)).astype(np.int8)


def pack(vectors: Bundle) -> Words:
    """Sign bits of ... x d components as ... x d/64 words; d is a multiple of 64."""
    if vectors.shape[-1] % WORD_BITS:
        raise ValueError(f"packing needs a multiple of {WORD_BITS} components, not {vectors.shape[-1]}")
    return np.packbits(vectors < 0, axis=-1, bitorder="little").view("<u8")


def unpack(words: Words) -> Signs:
    """The signs that were packed: ... x d/64 words to ... x d of -1 and 1."""
    bits = np.unpackbits(
        np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8), axis=-1, bitorder="little"
    )
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def packed_similarity(query: Words, words: Words) -> NDArray[np.float64]:
    """The cosine of signs: d/64 words against N x d/64 give N."""
    different = np.bitwise_count(words ^ query).sum(axis=-1, dtype=np.int64)
    cosine: NDArray[np.float64] = 1.0 - 2.0 * different / (words.shape[-1] * WORD_BITS)
    return cosine


def recovery_probability(dimension: int, bundled: int, candidates: int, flipped_ratio: float = 0.0) -> float:
    """The capacity formula: the probability that cleanup selects the right one of `candidates` from a bundle.

    The right candidate's dot product is normal about d, every other's about 0, both with a variance of d for each
    bundled vector (the right one's without its own); the right one must be the greatest:

        p = E_z [ Phi((a d + sqrt((K - 1) d) z) / sqrt(K d)) ^ (C - 1) ],  a = 1 - 2 x flipped share

    after Frady, Kleyko, Sommer 2018, "A theory of sequence indexing and working memory in recurrent neural networks",
    eq. 15 with unequal variances. A sum with randomly flipped signs has the same variance, and its mean is lower by 2 x
    the share; the lost part of the right one's signal becomes noise.

    Args:
        dimension: d.
        bundled: K products in the bundle.
        candidates: C of the product codebook.
        flipped_ratio: share of the bundle's components whose sign was flipped.
    """
    kept = 1.0 - 2.0 * flipped_ratio
    nodes, weights = np.polynomial.hermite_e.hermegauss(96)
    spread = math.sqrt((bundled - kept**2) * dimension)
    arguments = (kept * dimension + spread * nodes) / math.sqrt(bundled * dimension)
    below = np.array([0.5 * math.erfc(-argument / math.sqrt(2)) for argument in arguments])
    return float((weights * below ** (candidates - 1)).sum() / weights.sum())
