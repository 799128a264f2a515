"""Separates records (a job, a GPU sample) into discrete variables. Knows plain records and arrays only.

    variable            of   values
    gpu_model           GPU  grows with new values
    utilization_level   GPU  "0.00..0.05" to "0.95..1.00"
    memory_level        GPU  "0..2048 MiB" to ">=131072 MiB"
    temperature_level   GPU  "<0 C", "0..5 C" to ">=120 C"
    priority_class      job  low (under 1/3), normal, high (2/3 and over)
    job_type            job  simulation, machine_learning, data_processing; absent if its user did not state it
    application         job  grows; number 0 is "" (not stated)
    user                job  grows; number 0 is ""
    size_class          job  "<declared runtime>/<GPU memory asked for>", such as "1..10 min/<=8 GiB"

A value's number stays while the vocabulary has it (`vocabulary`), and no other value gets it; another process may
number the growing vocabularies differently.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.records.jobs import KINDS_OF_WORK, JobSpec
from adlro.records.matrices import Variable
from adlro.services.decompose.variables.labels import LabelUse
from adlro.services.decompose.variables.vocabulary import UNKNOWN, Vocabulary

VOCABULARY_VERSION = "1"
"""Identifies the variables and the values of those that don't grow. Changes with any of them."""
UTILIZATION_STEP_RATIO = 0.05
MEMORY_STEP_MIB = 2048
TEMPERATURE_STEP_C = 5
_UTILIZATION_LEVELS = 20
_MEMORY_LEVELS = 65
_TEMPERATURE_LEVELS = 26
# 0.7 stored as float32 is 0.69999999: a value this close below a step belongs to the step.
_STEP_TOLERANCE = 1e-6

_RUNTIME_BOUNDS_S = (10.0, 60.0, 600.0, 3600.0, 86400.0)
_RUNTIME_CLASSES = ("<10 s", "10..60 s", "1..10 min", "10..60 min", "1..24 h", ">=1 d", "undeclared")
_MEMORY_BOUNDS_MIB = (0, 4096, 8192, 12288, 16384, 32768)
_MEMORY_CLASSES = ("any", "<=4 GiB", "<=8 GiB", "<=12 GiB", "<=16 GiB", "<=32 GiB", ">32 GiB")
_PRIORITY_BOUNDS = (1 / 3, 2 / 3)


class JobCodes(NamedTuple):
    """A job's variables as numbers, in the order of comparison in the memory of outcomes.

    `job_type`: UNKNOWN if its user did not state it.
    """

    application: int
    user: int
    job_type: int
    size_class: int
    priority_class: int


class Variables:
    """The vocabularies, and the separation of records into them."""

    def __init__(self) -> None:
        self.gpu_model = Vocabulary("gpu_model", [""], grows=True)
        self.application = Vocabulary("application", [""], grows=True)
        self.user = Vocabulary("user", [""], grows=True)
        self.labels = LabelUse()
        self.utilization_level = Vocabulary(
            "utilization_level", [f"{i / 20:.2f}..{(i + 1) / 20:.2f}" for i in range(_UTILIZATION_LEVELS)]
        )
        top_mib = (_MEMORY_LEVELS - 1) * MEMORY_STEP_MIB
        self.memory_level = Vocabulary(
            "memory_level",
            [f"{low}..{low + MEMORY_STEP_MIB} MiB" for low in range(0, top_mib, MEMORY_STEP_MIB)]
            + [f">={top_mib} MiB"],
        )
        top_c = (_TEMPERATURE_LEVELS - 2) * TEMPERATURE_STEP_C
        self.temperature_level = Vocabulary(
            "temperature_level",
            ["<0 C"]
            + [f"{low}..{low + TEMPERATURE_STEP_C} C" for low in range(0, top_c, TEMPERATURE_STEP_C)]
            + [f">={top_c} C"],
        )
        self.priority_class = Vocabulary("priority_class", ["low", "normal", "high"])
        self.job_type = Vocabulary("job_type", [job_type.label for job_type in KINDS_OF_WORK])
        self.size_class = Vocabulary(
            "size_class", [f"{runtime}/{memory}" for runtime in _RUNTIME_CLASSES for memory in _MEMORY_CLASSES]
        )

    def growing(self) -> dict[str, dict[str, int]]:
        """The growing vocabularies, and the labels in use: stored so that numbers stay across restarts."""
        return {
            **{each.name: each.numbers() for each in (self.gpu_model, self.application, self.user)},
            "label_columns": self.labels.columns(),
            "labels_left_out": {key: number for number, key in enumerate(self.labels.left_out())},
        }

    def restore(self, growing: Mapping[str, Sequence[str] | Mapping[str, int]]) -> None:
        """Restores another process's vocabularies; values that this process has added lose their numbers.

        Raises:
            InvalidInput: not the values of growing vocabularies.
        """
        try:
            for vocabulary in (self.gpu_model, self.application, self.user):
                vocabulary.restore(growing.get(vocabulary.name, [""]))
            columns = growing.get("label_columns", {})
            self.labels.restore(
                dict(columns) if isinstance(columns, Mapping) else {}, list(growing.get("labels_left_out", ()))
            )
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"not the values of growing vocabularies: {error}", field="vocabularies") from error

    def codes_of_job(self, spec: JobSpec, *, learn: bool = False) -> JobCodes:
        """A job's variables as numbers.

        Args:
            spec: the job.
            learn: adds an unseen application or user to the vocabularies.
        """
        if learn:
            application = self.application.learn(spec.application)
            user = self.user.learn(spec.user)
        else:
            application = self.application.number(spec.application)
            user = self.user.number(spec.user)
        return JobCodes(
            application, user, int(spec.job_type) - 1, size_class_of(spec), priority_class_of(spec.priority)
        )

    def of_job(self, spec: JobSpec) -> list[Variable]:
        """A job's variables, those that it states; unseen values are added to the vocabularies."""
        codes = self.codes_of_job(spec, learn=True)
        return [
            self.priority_class.variable(codes.priority_class),
            *([self.job_type.variable(codes.job_type)] if codes.job_type != UNKNOWN else []),
            Variable("application", spec.application, codes.application),
            Variable("user", spec.user, codes.user),
            self.size_class.variable(codes.size_class),
        ]

    def of_gpu(
        self,
        gpu_model: str,
        utilization_ratio: float | None = None,
        memory_used_mib: float | None = None,
        temperature_c: float | None = None,
    ) -> list[Variable]:
        """A GPU sample's variables; those whose values are None or NaN are left out."""
        levels = gpu_levels(
            np.array([np.nan if utilization_ratio is None else utilization_ratio]),
            np.array([np.nan if memory_used_mib is None else memory_used_mib]),
            np.array([np.nan if temperature_c is None else temperature_c]),
        )
        return self.of_gpu_levels(gpu_model, *levels[:, 0].tolist())

    def of_gpu_levels(self, gpu_model: str, utilization: int, memory: int, temperature: int) -> list[Variable]:
        """A GPU's variables from the numbers of its levels; UNKNOWN ones are left out."""
        variables = [Variable("gpu_model", gpu_model, self.gpu_model.learn(gpu_model))]
        if utilization != UNKNOWN:
            variables.append(self.utilization_level.variable(utilization))
        if memory != UNKNOWN:
            variables.append(self.memory_level.variable(memory))
        if temperature != UNKNOWN:
            variables.append(self.temperature_level.variable(temperature))
        return variables

    def of_level_planes(self, levels: NDArray[np.int32]) -> dict[str, tuple[tuple[str, ...], NDArray[np.uint8]]]:
        """The variables of G GPUs by name: the values that they have, and each GPU's place among these.

        Args:
            levels: 3 x G, see `gpu_levels`. An unknown level is the empty value.
        """
        found = {}
        for variable, of_gpus in zip(
            (self.utilization_level, self.memory_level, self.temperature_level), levels, strict=True
        ):
            numbers, places = np.unique(of_gpus, return_inverse=True)
            told = [None if number == UNKNOWN else variable.variable(number) for number in numbers.tolist()]
            values = tuple("" if each is None else each.value for each in told)
            found[variable.name] = values, places.astype(np.uint8)
        return found


def gpu_levels(
    utilization_ratio: NDArray[np.floating], memory_used_mib: NDArray[np.floating], temperature_c: NDArray[np.floating]
) -> NDArray[np.int32]:
    """The numbers of G GPUs' levels: 3 x G (utilization, memory, temperature), UNKNOWN for NaN."""
    return np.stack(
        [
            _level(utilization_ratio, 1 / UTILIZATION_STEP_RATIO, 0, _UTILIZATION_LEVELS),
            _level(memory_used_mib, 1 / MEMORY_STEP_MIB, 0, _MEMORY_LEVELS),
            _level(temperature_c, 1 / TEMPERATURE_STEP_C, 1, _TEMPERATURE_LEVELS),
        ]
    )


def size_class_of(spec: JobSpec) -> int:
    """The number of a job's size class, from the declared runtime and the requested GPU memory."""
    if spec.expected_runtime is None:
        runtime = len(_RUNTIME_BOUNDS_S) + 1
    else:
        runtime = bisect_right(_RUNTIME_BOUNDS_S, spec.expected_runtime.runtime_s)
    return runtime * len(_MEMORY_CLASSES) + bisect_left(_MEMORY_BOUNDS_MIB, spec.gpu_memory_mib)


def priority_class_of(priority: float) -> int:
    """0 low, 1 normal, 2 high."""
    return bisect_right(_PRIORITY_BOUNDS, priority)


def _level(values: NDArray[np.floating], per_unit: float, offset: int, count: int) -> NDArray[np.int32]:
    known = ~np.isnan(values)
    steps = np.floor(np.where(known, values, 0).astype(np.float64) * per_unit + _STEP_TOLERANCE) + offset
    return np.where(known, np.clip(steps, 0, count - 1), UNKNOWN).astype(np.int32)
