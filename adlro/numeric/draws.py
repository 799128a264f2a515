"""Normal and exponential random numbers that are the same on every processor. numpy only.

numpy draws both by a ziggurat (G. Marsaglia, W. W. Tsang, 2000): nearly all numbers are an integer times an entry of a
table, exact everywhere. It computes the rest, beyond a border, with the C library's `log1p`, whose last bits depend on
the processor. This module computes those again, from the uniform number that numpy took for them: the stream stays
numpy's, and so does nearly every number.

One comparison still uses the C library: numpy accepts about one in a hundred of its candidates by `u < exp(-x^2 / 2)`,
u uniform on 2^53 points. Two libraries can differ there only if u is within an ulp of the border: less than one draw in
10^15.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.exact import log1p

Floats = NDArray[np.float64]

EXPONENTIAL_BORDER = 7.6971174701310497140446280481
NORMAL_BORDER = 3.6541528853610087963519472518
_NORMAL_BORDER_INVERSE = 0.27366123732975827203338247596
"""From numpy's tables (numpy/random/src/distributions/ziggurat_constants.h)."""


def standard_exponential(rng: np.random.Generator) -> float:
    """One exponential number with mean 1; draws the same numbers of `rng` as its `standard_exponential`.

    Args:
        rng: a generator of `numpy.random.default_rng`.
    """
    drawn = rng.standard_exponential()
    if drawn <= EXPONENTIAL_BORDER:
        return drawn
    return EXPONENTIAL_BORDER - log1p(-_taken(rng, 1))


def standard_normal(rng: np.random.Generator) -> float:
    """One normal number with mean 0 and deviation 1; as `standard_exponential` for `standard_normal`."""
    drawn = rng.standard_normal()
    if -NORMAL_BORDER <= drawn <= NORMAL_BORDER:
        return drawn
    beyond = NORMAL_BORDER - _NORMAL_BORDER_INVERSE * log1p(-_taken(rng, 2))
    return beyond if drawn > 0.0 else -beyond


def standard_exponentials(rng: np.random.Generator, shape: int | tuple[int, ...]) -> Floats:
    """An array of `standard_exponential`, in C order."""
    before = rng.bit_generator.state
    drawn = rng.standard_exponential(shape)
    beyond = np.flatnonzero(drawn > EXPONENTIAL_BORDER)
    if len(beyond):
        flat, done = drawn.reshape(-1), 0
        rng.bit_generator.state = before
        for place in beyond.tolist():
            rng.standard_exponential(place - done)
            flat[place] = standard_exponential(rng)
            done = place + 1
        rng.standard_exponential(drawn.size - done)
    return drawn


def standard_normals(rng: np.random.Generator, count: int) -> Floats:
    """An array of `standard_normal`."""
    before = rng.bit_generator.state
    drawn = rng.standard_normal(count)
    beyond = np.flatnonzero(np.abs(drawn) > NORMAL_BORDER)
    if len(beyond):
        done = 0
        rng.bit_generator.state = before
        for place in beyond.tolist():
            rng.standard_normal(place - done)
            drawn[place] = standard_normal(rng)
            done = place + 1
        rng.standard_normal(count - done)
    return drawn


def _taken(rng: np.random.Generator, back: int) -> float:
    """The uniform number that was drawn `back` numbers ago; the stream's position stays."""
    bits = rng.bit_generator
    if not isinstance(bits, np.random.PCG64):
        raise TypeError(f"the generator must be one of numpy.random.default_rng, not of {type(bits).__name__}")
    state = bits.state
    bits.advance(-back)
    uniform = rng.random()
    bits.state = state
    return uniform
