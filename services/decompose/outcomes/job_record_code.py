"""Jobs as hypervectors for retrieval, and the similarity that these approximate. Knows plain records and arrays only.

    job = sum over variables of  sqrt(weight) * role * code(value)

with random codes for categories and fractional-power codes for reals, so that the dot product of two jobs is about the
weighted similarity of their variables. A variable that a job does not state is left out of the sum: it has no
information. The search uses the packed signs of the sum; the similarity itself ranks the best.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from adlro.services.decompose.hypervectors.algebra import Words, pack, signs
from adlro.services.decompose.hypervectors.codebook import Codebook, FractionalPowerCode
from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats, KernelTerm, kernel
from adlro.services.decompose.variables.job_features import REAL_COUNT, Category, FeatureExtractor, Real
from adlro.services.decompose.variables.vocabulary import NOT_STATED, UNKNOWN

CATEGORY_WEIGHTS = {Category.APPLICATION: 40, Category.USER: 25, Category.JOB_TYPE: 15, Category.LABELS: 10}
GPU_MODEL_WEIGHT = 20
"""Weight of the GPU model of a job's run, if requested."""
DECLARED = REAL_COUNT
"""Column of the declared runtime, beyond the reals of `job_features`."""
REAL_WEIGHTS = {
    Real.PRIORITY: 8,
    Real.GPU_MEMORY: 4,
    Real.GPU_COUNT: 2,
    Real.CPU_CORES: 2,
    DECLARED: 4,
    **dict.fromkeys(range(len(Real), REAL_COUNT), 10),
}
LENGTH = 2.0
"""Distance at which the similarity of two reals (logarithms to the base 2) is a third."""
STEP = 0.25
"""Step of the rounding of reals, so that nearly equal jobs are one row of the memory."""


def rounded(reals: Sequence[float]) -> list[float]:
    """Reals rounded to the steps of rows."""
    return [round(value / STEP) * STEP if math.isfinite(value) else math.nan for value in reals]


class JobRecordCode:
    """Hypervectors of rows of numbers.

    Args:
        codebook: source of the atoms.
        features: has the names of categories' and labels' numbers: atoms depend on names, so that hypervectors are the
            same in every process, whatever its order of jobs.
    """

    def __init__(self, codebook: Codebook, features: FeatureExtractor) -> None:
        self.codebook = codebook
        self._features = features
        self._ties = codebook.atom("ties")
        self._category = functools.lru_cache(maxsize=16_384)(self._make_category)
        self._fractional = functools.lru_cache(maxsize=64)(self._make_fractional)
        self._real = functools.lru_cache(maxsize=16_384)(self._make_real)

    def sum(self, categories: Sequence[int], reals: Sequence[float]) -> Floats:
        """A record's hypervector, d real components.

        Args:
            categories: as in `job_features.Category`; UNKNOWN and NOT_STATED ones are left out.
            reals: those of `job_features`, then the declared runtime; NaN ones are left out.
        """
        total = np.zeros(self.codebook.dimension, dtype=np.float32)
        for column, weight in (*CATEGORY_WEIGHTS.items(), (Category.GPU_MODEL, GPU_MODEL_WEIGHT)):
            if stated(column, categories[column]):
                total += np.float32(math.sqrt(weight)) * self._category(int(column), int(categories[column]))
        for real, weight in REAL_WEIGHTS.items():
            if not math.isnan(reals[real]):
                name = "declared_runtime" if real == DECLARED else self._features.real_name(int(real))
                total += np.float32(math.sqrt(weight)) * self._real(name, float(reals[real]))
        return total.astype(np.float64)

    def packed(self, categories: Sequence[int], reals: Sequence[float]) -> Words:
        """The signs of a record's hypervector, packed."""
        return pack(signs(self.sum(categories, reals), self._ties))

    def _make_category(self, column: int, value: int) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        return self.codebook.atom(f"category/{Category(column).name}/{self._features.category_name(column, value)}")

    def _make_real(self, name: str, value: float) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        return self._fractional(name).code_of(value)

    def _make_fractional(self, name: str) -> FractionalPowerCode:
        return self.codebook.fractional(f"real/{name}", LENGTH)


def stated(column: int, value: int) -> bool:
    """Whether a category has information: an empty one, and an unspecified job type, have none."""
    if column == Category.JOB_TYPE:
        return value >= 0
    return value not in {UNKNOWN, NOT_STATED}


def similarity(query: Features, records: Features) -> Floats:
    """The share, 0..1, of the weight of the query's stated variables that N records have in common with it: N.

    Args:
        query: one row; a category below 0 is a value that equals none, and counts; a job type below 0 is not stated.
        records: N rows.
    """
    terms = [
        KernelTerm(float(weight), (column,))
        for column, weight in (*CATEGORY_WEIGHTS.items(), (Category.GPU_MODEL, GPU_MODEL_WEIGHT))
        if query.categories[0, column] != (UNKNOWN if column == Category.JOB_TYPE else NOT_STATED)
    ]
    terms += [
        KernelTerm(float(weight), (), (real,))
        for real, weight in REAL_WEIGHTS.items()
        if not np.isnan(query.reals[0, real])
    ]
    total = sum(term.weight for term in terms)
    return kernel(query, records, terms, LENGTH)[0] / total if total else np.zeros(len(records))
