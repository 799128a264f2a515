"""Predicted runtimes and their basis, as plain data. Knows no gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adlro.records.jobs import JobSpec
from adlro.records.named import NamedEnum


class PredictionBasis(NamedEnum):
    """The basis of a prediction, best first; numbers as in decompose_service.proto."""

    DECLARED = 1
    USER_APPLICATION = 2
    APPLICATION = 3
    JOB_TYPE = 4
    PRIOR = 5

    @property
    def label(self) -> str:
        """The basis in words."""
        return {
            PredictionBasis.DECLARED: "the declared runtime",
            PredictionBasis.USER_APPLICATION: "this user's jobs of this application",
            PredictionBasis.APPLICATION: "jobs of this application",
            PredictionBasis.JOB_TYPE: "jobs of this type",
            PredictionBasis.PRIOR: "the prior alone: no similar job has ended",
        }[self]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A finished job that supports a prediction."""

    job_id: str
    similarity: float
    gpu_model: str
    runtime_s: float
    gpu_count: int = 1
    spread: bool = False
    """Its GPUs were on more nodes than could hold them in the empty cluster."""


@dataclass(frozen=True, slots=True)
class RuntimePrediction:
    """A job's runtime on one GPU model: between low_s and high_s with probability interval_coverage.

    That is with its GPUs on as few nodes as can hold them (packed); on more, `spread_s`.

    Attributes:
        basis: None: the server does not report it.
        novelty: 0 close to the jobs so far, 1 unlike any of them.
        gpu_id: a single GPU of that model, at its own speed; empty: any GPU.
        spread_speed: the speed on more nodes than needed, as a share of the packed one; None: a job of one GPU.
        spread_low_s, spread_high_s: the interval of the runtime there.
    """

    gpu_model: str
    median_s: float
    low_s: float
    high_s: float
    interval_coverage: float
    basis: PredictionBasis | None
    novelty: float
    evidence: tuple[Evidence, ...] = ()
    gpu_id: str = ""
    spread_speed: float | None = None
    spread_low_s: float | None = None
    spread_high_s: float | None = None

    @property
    def spread_s(self) -> float | None:
        """The median runtime on more nodes than needed; None: a job of one GPU."""
        return None if self.spread_speed is None else self.median_s / self.spread_speed


class PredictedInterval(NamedTuple):
    """The interval of a job's predicted runtime on each of M GPU models.

    Attributes:
        low_s, high_s: M each; the runtime is between them with probability `coverage`.
        basis: of the prediction; None: not reported.
    """

    low_s: Sequence[float]
    high_s: Sequence[float]
    coverage: float
    basis: PredictionBasis | None


@dataclass(frozen=True, slots=True)
class Recollection:
    """A finished job similar to the one in the request."""

    job_id: str
    similarity: float
    job: JobSpec
    gpu_model: str
    runtime_s: float
    spread: bool = False
