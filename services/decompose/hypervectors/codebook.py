"""Codebooks: the same atoms in every process, on every machine, in every release. Knows arrays only.

An atom's components are the bits of a counter-based generator (Philox 4x64, whose stream numpy keeps fixed) with a key
made from the atom's name by BLAKE2b: independent of Python's hash, of the order of appearance and of stored state.
Three kinds of codes:

- random codes (`atom`, `atoms`): nearly orthogonal, for exact recovery;
- level codes (`levels`): similar neighbours, dissimilar ends, for ordered values in a closed range;
- fractional-power codes (`FractionalPowerCode`): similar by distance, for unbounded real values.

Level and fractional-power codes are only for retrieval: recovery from a bundle would confuse neighbours
(tests/unit/decompose/hypervectors/test_codebook.py shows by how much). Names keep the kinds apart.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.exact import cos_array, sin_array
from adlro.services.decompose.hypervectors.algebra import WORD_BITS, Signs

DIMENSION = 4096
_TURNS_PER_RADIAN = 1.0 / (2.0 * math.pi)
CODE_VERSION = "adlro-1"
"""Part of every key: another version is another set of atoms. Data stored under one version are not read by another."""


class Codebook:
    """Atoms of one dimension by name.

    Args:
        dimension: number of components of each; a multiple of 64.
        seed: another seed gives dissimilar atoms.

    Raises:
        ValueError: the dimension is not a multiple of 64, or not above 0.
    """

    def __init__(self, dimension: int = DIMENSION, seed: str = "") -> None:
        if dimension <= 0 or dimension % WORD_BITS:
            raise ValueError(f"dimension must be a multiple of {WORD_BITS} above 0, not {dimension}")
        self.dimension = dimension
        self.seed = seed
        self._atom = functools.lru_cache(maxsize=65_536)(self._make_atom)

    @property
    def version(self) -> str:
        """A text that identifies the atoms."""
        return f"{CODE_VERSION}/{self.dimension}/{self.seed}"

    def atom(self, name: str) -> Signs:
        """The random code of a name: d of -1 and 1. Read-only, shared."""
        return self._atom(name)

    def atoms(self, names: Sequence[str]) -> Signs:
        """The random codes of n names: n x d."""
        if not names:
            return np.empty((0, self.dimension), dtype=np.int8)
        return np.stack([self._atom(name) for name in names])

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a codebook lives as long as its process
    def levels(self, name: str, count: int) -> Signs:
        """Level codes for `count` ordered values: count x d; similarity decreases linearly from 1 to 0 over the range.

        From level to level a further share of the components comes from a second atom instead of the first.
        """
        first, last = self.atom(f"level/{name}/first"), self.atom(f"level/{name}/last")
        order = np.random.Generator(self._generator(f"level/{name}/order")).permutation(self.dimension)
        rank = np.empty(self.dimension)
        rank[order] = (np.arange(self.dimension) + 0.5) / self.dimension
        share = np.arange(count) / max(1, count - 1)
        codes = np.where(rank < share[:, None], last, first)
        codes.flags.writeable = False
        return codes

    @functools.lru_cache(maxsize=64)  # noqa: B019 - the same
    def fractional(self, name: str, length_scale: float = 1.0) -> FractionalPowerCode:
        """Fractional-power codes of a real variable; see `FractionalPowerCode`."""
        return FractionalPowerCode(self, name, length_scale)

    def uniform(self, name: str) -> NDArray[np.float64]:
        """D numbers in (0, 1) determined by a name."""
        raw = self._generator(name).random_raw(self.dimension)
        return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53

    def _make_atom(self, name: str) -> Signs:
        words = self._generator(name).random_raw(self.dimension // WORD_BITS)
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        atom = (1 - 2 * bits.astype(np.int8)).astype(np.int8)
        atom.flags.writeable = False
        return atom

    def _generator(self, name: str) -> np.random.Philox:
        key = hashlib.blake2b(f"{self.version}\0{name}".encode(), digest_size=16).digest()
        return np.random.Philox(key=np.frombuffer(key, dtype="<u8"))


@functools.cache
def default_codebook() -> Codebook:
    """The process's shared codebook of DIMENSION, so that each atom is computed once."""
    return Codebook()


class FractionalPowerCode:
    """Codes whose similarity depends only on the distance of two values: sign(cos(x w + b)), with random w and b.

    A fractional power of a unitary phasor hypervector (Plate 1994; Frady et al. 2021, "Computing on functions"),
    converted to signs by a random dither (Raginsky, Lazebnik 2009), so that it combines with the other codes. With
    Cauchy-distributed w (inverse distribution function of `Codebook.uniform`) the similarity decreases smoothly,
    without long-range ripples.

    Args:
        codebook: source of w and b.
        name: name of the variable.
        length_scale: distance over which similarity decreases to about a third.
    """

    def __init__(self, codebook: Codebook, name: str, length_scale: float) -> None:
        if not (length_scale > 0 and math.isfinite(length_scale)):
            raise ValueError(f"length_scale must be above 0 and finite, not {length_scale}")
        uniform = codebook.uniform(f"fractional/{name}/frequency")
        self._code = functools.lru_cache(maxsize=4096)(self._make_code)
        angle = np.pi * (uniform - 0.5)
        self._frequency = sin_array(angle) / cos_array(angle) / length_scale  # d
        self._phase = 2 * np.pi * codebook.uniform(f"fractional/{name}/phase")  # d

    def code_of(self, value: float) -> Signs:
        """The code of one value: d. Read-only, shared."""
        return self._code(value)

    def _make_code(self, value: float) -> Signs:
        code = self.code(value)
        code.flags.writeable = False
        return code

    def code(self, value: float | NDArray[np.float64]) -> Signs:
        """The codes of values of shape ...: ... x d.

        Raises:
            ValueError: a value is not finite.
        """
        values = np.asarray(value, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("a fractional-power code needs a finite value")
        # The cosine's sign without a cosine: it is negative on the half of the circle around half a turn.
        turns = (values[..., None] * self._frequency + self._phase) * _TURNS_PER_RADIAN
        turns -= np.floor(turns)
        return np.where(np.abs(turns - 0.5) < 0.25, -1, 1).astype(np.int8)
