"""The features of jobs: rows of numbers, from which similarity is computed. Knows plain records and arrays only.

Categories are numbers of values in growing vocabularies, reals logarithms of a job's demands and of numeric labels
(such as batch_size=64); labels that are not numbers form one category together, without labels that differ for each job
(`labels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from adlro.records.jobs import JobSpec
from adlro.services.decompose.hypervectors.similarity_kernel import Features
from adlro.services.decompose.variables.labels import LABEL_LIMIT, as_number
from adlro.services.decompose.variables.variables import Variables
from adlro.services.decompose.variables.vocabulary import UNKNOWN, Vocabulary


class Category(IntEnum):
    """Columns of categories. JOB_TYPE is UNKNOWN for an unspecified one."""

    JOB_TYPE = 0
    APPLICATION = 1
    USER = 2
    GPU_MODEL = 3
    LABELS = 4


class Real(IntEnum):
    """The first columns of reals; numeric labels follow."""

    GPU_COUNT = 0
    GPU_MEMORY = 1
    CPU_CORES = 2
    PRIORITY = 3


REAL_COUNT = len(Real) + LABEL_LIMIT


class FeatureExtractor:
    """Computes the features of jobs, a row of numbers each.

    Args:
        variables: the vocabularies.
    """

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._labels = Vocabulary("labels", [""], grows=True)
        self.on_cleared: list[Callable[[int], None]] = []
        """Called with a column of reals when its label changes."""

    def note(self, job: JobSpec) -> None:
        """Learns from a finished job, once, the labels in use."""
        for column in self._variables.labels.note(job.labels):
            for cleared in self.on_cleared:
                cleared(len(Real) + column)

    def row(self, job: JobSpec, *, learn: bool) -> tuple[list[int], list[float]]:
        """A job's categories (GPU_MODEL left UNKNOWN) and reals.

        Args:
            job: the job's spec.
            learn: adds unseen values to the vocabularies; otherwise they are UNKNOWN, equal to no value.
        """
        reals = [math.nan] * REAL_COUNT
        reals[Real.GPU_COUNT] = math.log2(max(1, job.gpu_count))
        reals[Real.GPU_MEMORY] = math.log2(job.gpu_memory_mib) if job.gpu_memory_mib > 0 else math.nan
        reals[Real.CPU_CORES] = math.log2(max(1, job.cpu_cores))
        reals[Real.PRIORITY] = 4.0 * job.priority
        texts = []
        for key, value in sorted(job.labels.items()):
            number = as_number(value)
            if number is None:
                if not self._variables.labels.is_left_out(key):
                    texts.append(f"{key}={value}")
                continue
            column = self._variables.labels.column(key)
            if column is not None:
                reals[len(Real) + column] = math.copysign(math.log2(1.0 + abs(number)), number)
        variables = self._variables
        categories = [
            int(job.job_type) - 1,
            _number(variables.application, job.application, learn),
            _number(variables.user, job.user, learn),
            UNKNOWN,
            _number(self._labels, "\0".join(texts), learn),
        ]
        return categories, reals

    def hold(self, categories: Sequence[int]) -> None:
        """Protects the values of a row's categories from replacement."""
        for vocabulary, number in zip(self._vocabularies, categories, strict=True):
            vocabulary.hold(number)

    def release(self, categories: Sequence[int]) -> None:
        """Releases protected values."""
        for vocabulary, number in zip(self._vocabularies, categories, strict=True):
            vocabulary.release(number)

    @property
    def _vocabularies(self) -> tuple[Vocabulary, ...]:
        variables = self._variables
        return variables.job_type, variables.application, variables.user, variables.gpu_model, self._labels

    def category_name(self, column: int, number: int) -> str:
        """The value of a category's number.

        Raises:
            IndexError: no value has this number.
        """
        return self._vocabularies[column].value(number)

    def real_name(self, column: int) -> str:
        """The name of a column of reals; a label is `label/<key>`."""
        return (
            Real(column).name.lower()
            if column < len(Real)
            else f"label/{self._variables.labels.key(column - len(Real))}"
        )

    def rows(self, jobs: Sequence[JobSpec]) -> Features:
        """J jobs as rows; unseen values equal no value."""
        made = [self.row(job, learn=False) for job in jobs]
        categories = np.array([each[0] for each in made], dtype=np.int32).reshape(-1, len(Category))
        # An unknown value equals no known one, and must not equal the UNKNOWN of a full vocabulary either. No job type
        # is unknown: those that are not stated are alike.
        others = categories[:, Category.JOB_TYPE + 1 :]
        others[others == UNKNOWN] = UNKNOWN - 1
        return Features(categories, np.array([each[1] for each in made]).reshape(-1, REAL_COUNT))


def _number(vocabulary: Vocabulary, value: str, learn: bool) -> int:
    return vocabulary.learn(value) if learn else vocabulary.number(value)
