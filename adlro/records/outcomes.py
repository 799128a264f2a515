"""What an outcome says of a job's course beside its last attempt's runtime, as plain data. Knows no gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

SIZE_LABEL = "batch_size"
"""The label that tells two sizes of one application apart."""


class Sized(Protocol):
    """A `JobSpec`; records of jobs name neighbours themselves."""

    @property
    def application(self) -> str:
        """Empty: not stated."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The user's labels."""


@dataclass(frozen=True, slots=True)
class ApplicationSize:
    """What distinguishes jobs that share a GPU.

    Attributes:
        application: empty: not stated.
        batch_size: the label of this name; empty: none. A size in the application's name counts before it.
    """

    application: str
    batch_size: str = ""

    @classmethod
    def of(cls, spec: Sized) -> ApplicationSize:
        """That of a job."""
        return cls(spec.application, spec.labels.get(SIZE_LABEL, ""))


@dataclass(frozen=True, slots=True)
class NeighbourTime:
    """Part of an attempt's time, in seconds, that its job spent beside another job on its GPU."""

    neighbour: ApplicationSize
    time_s: float


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """An earlier attempt of a job: it was stopped for another job, and the next one went on.

    Attributes:
        gpu_model: empty: not known.
        runtime_s: how long its program ran.
        spread: its GPUs were on more nodes than could hold them in the empty cluster.
        neighbours: the rest of runtime_s it was alone.
    """

    gpu_model: str
    runtime_s: float
    spread: bool = False
    neighbours: tuple[NeighbourTime, ...] = ()
