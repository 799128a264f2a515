"""The kept shares of pairs on each GPU model, and a regression over similarity that predicts pairs never seen.

Arrays and plain records only. A pair is ordered: the job, and the one beside it. Its hypervector would be

    pair = (1 + GPU model) x bundle of products of (family, size, name) of the job and of its neighbour

and the regression takes the similarity of these products in the limit of infinite dimension
(`hypervectors.similarity_kernel`), as that of runtimes does. Terms without the GPU model let models learn from each
other; the term of both names on one model is what only the pair itself can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats, KernelTerm, self_similarity
from adlro.services.decompose.pairs.shared_runs import SharedRun, SharingKind
from adlro.services.decompose.regression.kernel_regression import Cells, KernelRegression

PAIR_LIMIT = 2048
"""Largest number of ordered pairs (on a GPU model); a full memory drops the one learned from longest ago."""
MOST_PRECISION = 1 / 0.01**2
"""Limit of a pair's precision (1 / variance): with it, what is new still counts, so that a pair may change."""
PRIOR_MEAN = 0.6
"""Kept share where nothing is known: the median of Gavel's pairs."""
PRIOR_COUNT = 4
"""Weight of PRIOR_MEAN in pairs."""
LENGTH_OCTAVES = 4.0
TERM_VARIANCE = 0.002
"""Prior variance of each of some twenty terms. Errors on Gavel's pairs are the same from half to five times it."""
OWN_STD = 0.02
"""Prior standard deviation of what only the pair itself can tell; the same from half to twice it."""
CALIBRATION_PRIOR_COUNT = 12
"""Weight, in pairs, of the standard deviations as the prior has them, against those of the errors on left-out pairs."""
_GPU, _FAMILY, _OTHER_FAMILY, _NAME, _OTHER_NAME = range(5)
_SIZE, _OTHER_SIZE = range(2)


class PairKey(NamedTuple):
    """An ordered pair on a GPU model."""

    gpu_model: str
    kind: SharingKind
    beside: SharingKind


class _Kept(NamedTuple):
    mean: float
    precision: float


class KeptShares(NamedTuple):
    """Predicted kept shares of N ordered pairs: mean in 0..1, standard deviation; N each."""

    mean: Floats
    std: Floats


def pair_terms() -> tuple[KernelTerm, ...]:
    """The similarity of ordered pairs."""
    scale = TERM_VARIANCE
    terms = [KernelTerm(OWN_STD**2, (_GPU, _NAME, _OTHER_NAME))]
    for shared in ((), (_GPU,)):
        terms += [
            KernelTerm(scale, shared),
            KernelTerm(scale, (*shared, _FAMILY)),
            KernelTerm(scale, (*shared, _OTHER_FAMILY)),
            KernelTerm(scale, (*shared, _FAMILY, _OTHER_FAMILY)),
            KernelTerm(scale, (*shared, _NAME)),
            KernelTerm(scale, (*shared, _OTHER_NAME)),
            KernelTerm(scale, (*shared, _FAMILY), (_SIZE,)),
            KernelTerm(scale, (*shared, _OTHER_FAMILY), (_OTHER_SIZE,)),
            KernelTerm(scale, (*shared, _FAMILY, _OTHER_FAMILY), (_SIZE,)),
            KernelTerm(scale, (*shared, _FAMILY, _OTHER_FAMILY), (_OTHER_SIZE,)),
            KernelTerm(scale, (*shared, _FAMILY, _OTHER_FAMILY), (_SIZE, _OTHER_SIZE)),
        ]
    return tuple(terms)


_TERMS = pair_terms()


class PairMemory:
    """The kept shares of pairs seen so far.

    Args:
        limit: largest number of ordered pairs on a GPU model.
    """

    def __init__(self, limit: int = PAIR_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._limit = limit
        self._kept: dict[PairKey, _Kept] = {}  # the one learned from last at the end
        self.revision = 0
        """Grows with each learned run."""

    def __len__(self) -> int:
        return len(self._kept)

    def learn(self, run: SharedRun) -> None:
        """Learns from a run; runs of the same pair are averaged by their precision.

        Raises:
            ValueError: the kept share is not finite, or its standard deviation is not above 0.
        """
        if not (math.isfinite(run.kept_share) and 0.0 < run.std < math.inf):
            raise ValueError(f"a kept share is finite, and its standard deviation above 0: {run}")
        key = PairKey(run.gpu_model, run.kind, run.beside)
        before = self._kept.pop(key, _Kept(0.0, 0.0))
        precision = min(run.std**-2, MOST_PRECISION)
        total = before.precision + precision
        mean = before.mean + precision / total * (run.kept_share - before.mean)
        self._kept[key] = _Kept(mean, min(total, MOST_PRECISION))
        if len(self._kept) > self._limit:
            del self._kept[next(iter(self._kept))]
        self.revision += 1

    def __contains__(self, pair: object) -> bool:
        return pair in self._kept

    def pairs(self) -> list[PairKey]:
        """All pairs."""
        return list(self._kept)

    def copy(self) -> PairMemory:
        """A copy, which another thread may use."""
        other = PairMemory(self._limit)
        other._kept, other.revision = dict(self._kept), self.revision
        return other

    def runs(self) -> list[SharedRun]:
        """One run for each pair that gives the same memory, if they are learned in this order."""
        return [SharedRun(*key, kept.mean, kept.precision**-0.5) for key, kept in self._kept.items()]

    def clear(self) -> None:
        """Forgets all runs; the revision still grows."""
        self._kept.clear()
        self.revision += 1

    def fit(self) -> PairFit:
        """A fit to the present pairs; later ones do not change it, so another thread may use it.

        It takes a second with 2,000 pairs.
        """
        return PairFit.of(list(self._kept), list(self._kept.values()))


class _Numbers(NamedTuple):
    """The numbers of the learned values."""

    gpu_models: dict[str, int]
    families: dict[str, int]
    names: dict[str, int]


@dataclass(frozen=True, slots=True)
class PairFit:
    """The regression over the learned pairs. Without arguments, nothing is learned yet.

    Attributes:
        centre: the kept share where nothing similar is known.
        width_ratios: by number of a GPU model, how much wider the errors on left-out pairs are than their prediction.
    """

    model: KernelRegression | None = None
    centre: float = PRIOR_MEAN
    numbers: _Numbers = field(default_factory=lambda: _Numbers({}, {}, {}))
    width_ratios: Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, keys: Sequence[PairKey], kept: Sequence[tuple[float, float]]) -> PairFit:
        """Fits N pairs.

        Args:
            keys: N.
            kept: N means and precisions.
        """
        if not keys:
            return cls()
        numbers = _Numbers({}, {}, {})
        for key in keys:
            numbers.gpu_models.setdefault(key.gpu_model, len(numbers.gpu_models))
            for each in (key.kind, key.beside):
                numbers.families.setdefault(each.family, len(numbers.families))
                numbers.names.setdefault(each.name, len(numbers.names))
        mean, precision = np.array(kept).T
        centre = (float(mean.sum()) + PRIOR_COUNT * PRIOR_MEAN) / (len(mean) + PRIOR_COUNT)
        features = _features(keys, numbers)
        cells = Cells(features, np.arange(len(keys)), precision, mean - centre, np.zeros(len(keys)))
        # The noise is 1: a cell's count is its precision.
        model = KernelRegression(cells, _TERMS, LENGTH_OCTAVES, 1.0)
        both = np.sort(features.categories[:, [_NAME, _OTHER_NAME]], axis=1)
        found, latent = model.without(
            np.unique(np.column_stack([features.categories[:, _GPU], both]), axis=0, return_inverse=True)[1].ravel()
        )
        squares = (cells.mean - found) ** 2 / (latent + 1 / precision)
        gpus = features.categories[:, _GPU]
        width = (np.bincount(gpus, squares) + CALIBRATION_PRIOR_COUNT) / (np.bincount(gpus) + CALIBRATION_PRIOR_COUNT)
        return cls(model, centre, numbers, np.sqrt(width))

    def predict(self, pairs: Sequence[PairKey]) -> KeptShares:
        """The kept shares of the first jobs of N pairs, seen or not."""
        if self.model is None:
            return KeptShares(np.full(len(pairs), self.centre), np.full(len(pairs), math.sqrt(self_similarity(_TERMS))))
        features = _features(pairs, self.numbers)
        found = self.model.estimate(features)
        latent = np.clip(found.variance - self.model.noise**2, 0.0, None)
        # A model without pairs: the widest of those that have some.
        gpus = features.categories[:, _GPU]
        width = np.where(gpus >= 0, self.width_ratios[gpus], self.width_ratios.max())
        return KeptShares(np.clip(self.centre + found.mean, 0.0, 1.0), width * np.sqrt(latent))

    def left_out(self, groups: NDArray[np.intp]) -> Floats:
        """The kept shares of the N learned pairs, each predicted without those of its group.

        Args:
            groups: N numbers.
        """
        assert self.model is not None
        return np.clip(self.centre + self.model.without(groups)[0], 0.0, 1.0)


def _features(pairs: Sequence[PairKey], numbers: _Numbers) -> Features:
    gpus, families, names = numbers
    categories = [
        [
            gpus.get(gpu_model, -1),
            families.get(kind.family, -1),
            families.get(beside.family, -1),
            names.get(kind.name, -1),
            names.get(beside.name, -1),
        ]
        for gpu_model, kind, beside in pairs
    ]
    sizes = [[kind.size, beside.size] for _, kind, beside in pairs]
    return Features(
        np.array(categories, dtype=np.int32).reshape(-1, 5), np.array(sizes, dtype=np.float64).reshape(-1, 2)
    )
