"""A resonator network: factorizes a product of atoms without a search of all combinations. Knows arrays only.

Each factor's estimate is the product with the other estimates unbound, cleaned up by the factor's codebook; the network
updates all in turn until they are stable. Source: Frady, Kent, Olshausen, Sommer 2020, "Resonator networks for
factoring distributed representations of data structures".

Two estimates may both be negative: their signs cancel in the product, so the network also converges there. The read-out
therefore selects the greatest |similarity| of each factor, never the greatest similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.algebra import Signs

MAX_STEPS = 60
RESTARTS = 12


@dataclass(frozen=True, slots=True)
class Factorization:
    """The number of each factor's atom, and the product's dot product with the input over d."""

    values: tuple[int, ...]
    similarity: float


def resonate(
    vector: NDArray[Any], codebooks: Sequence[Signs], *, max_steps: int = MAX_STEPS, restarts: int = RESTARTS
) -> Factorization:
    """Factorizes a (noisy) product of one atom of each codebook.

    Args:
        vector: d; a product, or one with noise such as the rest of a bundle.
        codebooks: V arrays of C_v x d.
        max_steps: rounds before a restart.
        restarts: largest number of starts; the first from the superposition of each codebook, the others from random
            mixtures.

    Returns:
        The best factorization found. Its similarity shows its reliability: about 1 for a right one, about 0 for a wrong
        one.
    """
    noisy = np.asarray(vector, dtype=np.float32)
    atoms = [codebook.astype(np.float32) for codebook in codebooks]
    dimension = len(noisy)
    # The threshold of a right answer: the norm of the noise is at most that of the whole input.
    believed = 0.5 if float(noisy @ noisy) < 4 * dimension else 0.7
    best = Factorization(tuple(0 for _ in atoms), -np.inf)
    # The same input gives the same steps in every process.
    rng = np.random.Generator(np.random.Philox(key=np.array([dimension, len(atoms)], dtype=np.uint64)))
    for start in range(max(1, restarts)):
        if start == 0:
            estimates = [_signs(codebook.sum(axis=0)) for codebook in atoms]
        else:
            estimates = [_signs(rng.standard_normal(len(codebook)).astype(np.float32) @ codebook) for codebook in atoms]
        found = _settle(noisy, atoms, estimates, max_steps)
        product = np.prod([codebook[value] for codebook, value in zip(atoms, found, strict=True)], axis=0)
        similarity = float(product @ noisy) / dimension
        if similarity > best.similarity:
            best = Factorization(found, similarity)
        if best.similarity >= believed:
            break
    return best


def _settle(
    noisy: NDArray[np.float32],
    atoms: Sequence[NDArray[np.float32]],
    estimates: list[NDArray[np.float32]],
    max_steps: int,
) -> tuple[int, ...]:
    product = np.prod(estimates, axis=0)
    read: tuple[int, ...] = ()
    for _ in range(max_steps):
        answers = []
        for number, codebook in enumerate(atoms):
            others = product * estimates[number]  # signs are their own inverse
            similarities = codebook @ (noisy * others)
            answers.append(int(np.abs(similarities).argmax()))
            cleaned = _signs(similarities @ codebook)
            product = others * cleaned
            estimates[number] = cleaned
        if tuple(answers) == read and all(
            abs(float(estimate @ codebook[answer])) > 0.98 * len(noisy)
            for estimate, codebook, answer in zip(estimates, atoms, answers, strict=True)
        ):
            break
        read = tuple(answers)
    return read


def _signs(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(values < 0, np.float32(-1), np.float32(1))
