"""A scheduler's knowledge of two jobs that share a GPU, before it has seen them together. numpy only.

A *pair* is an application, the one beside it, and a GPU model; its figure is the share of its own speed that a job of
the first one keeps (adlro/hardware/shared_speeds.py). Which pairs do not run together at all is known. Kinds of
knowledge (`--pairs`), from complete to little:

- `true`: each pair's own figures.
- `family`: the mean of the other pairs of the two families on the model, where a family has the sizes of one
  application; the model's mean, where there are none.
- `application`: the mean of the model's other pairs, plus by how much the other pairs of the one application differ
  from it, and those beside the other (row and column means).
- `mean`: one mean for each GPU model.

Other pairs are those without these two applications beside each other on the model, in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.hardware.shared_speeds import KEPT_SHARES, chip_of, family_and_size

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PAIR_KINDS = ("true", "family", "application", "mean")
LEAST_SHARE = 0.02
"""Least expected share: a mean of means may be below 0."""


@dataclass(frozen=True)
class PairTable:
    """Kept shares of F families of jobs: one for each application with figures, and the last one for all others.

    Attributes:
        applications: F - 1 names.
        kept: (F, F, K) [family, partner's family, model] shares of speeds; 0: such a pair can't share.
    """

    applications: tuple[str, ...]
    kept: Floats

    def families(self, applications: Sequence[str]) -> Ints:
        """The family of a job of each of these applications."""
        number = {name: place for place, name in enumerate(self.applications)}
        return np.array([number.get(name, len(number)) for name in applications], dtype=np.int64)


def pair_table(gpu_models: Sequence[str], known: str = "true") -> PairTable:
    """The kept shares as a scheduler expects them.

    Args:
        gpu_models: K models, each with the figures of its chip; on one without figures no pair can share.
        known: one of `PAIR_KINDS`; `true`: as they are.

    Raises:
        InvalidInput: no such kind of knowledge.
    """
    if known not in PAIR_KINDS:
        raise InvalidInput(f"pairs: must be one of {', '.join(PAIR_KINDS)}, not '{known}'", field="pairs")
    applications = tuple(dict.fromkeys(application for _, application, _ in KEPT_SHARES))
    size = len(applications)
    kept = np.zeros((size + 1, size + 1, len(gpu_models)))
    for (chip, one, other), (share, _) in KEPT_SHARES.items():
        of_chip = [number for number, model in enumerate(gpu_models) if chip_of(model) == chip]
        kept[applications.index(one), applications.index(other), of_chip] = share
    if known != "true":
        expect = {"family": _family_mean, "application": _row_and_column, "mean": _mean}[known]
        of_family = [family_and_size(name)[0] for name in applications]
        family = np.unique(np.array(of_family), return_inverse=True)[1]
        for number in range(len(gpu_models)):
            kept[:size, :size, number] = _expected(kept[:size, :size, number], family, expect)
    return PairTable(applications, kept)


_Expect = Callable[[Floats, Ints, int, int], float]
"""From the other pairs' figures (A, A), nan where there are none, and the applications' families: that of a pair."""


def _expected(kept: Floats, family: Ints, expect: _Expect) -> Floats:
    """(A, A) expected shares of a model; 0 where there are none."""
    known = np.where(kept > 0.0, kept, np.nan)
    expected = np.zeros_like(kept)
    for one, other in np.argwhere(kept > 0.0).tolist():
        others = known
        if expect is not _mean:
            others = known.copy()
            others[one, other] = others[other, one] = np.nan
        expected[one, other] = np.clip(expect(others, family, one, other), LEAST_SHARE, 1.0)
    return expected


def _known_mean(values: Floats, otherwise: float) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else otherwise


def _mean(others: Floats, family: Ints, one: int, other: int) -> float:
    return _known_mean(others, LEAST_SHARE)


def _family_mean(others: Floats, family: Ints, one: int, other: int) -> float:
    alike = others[np.ix_(family == family[one], family == family[other])]
    return _known_mean(alike, _known_mean(others, LEAST_SHARE))


def _row_and_column(others: Floats, family: Ints, one: int, other: int) -> float:
    mean = _known_mean(others, LEAST_SHARE)
    return mean + _known_mean(others[one] - mean, 0.0) + _known_mean(others[:, other] - mean, 0.0)
