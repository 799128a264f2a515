"""Plain records of a simulated cluster: its GPUs, moments, and the attempts that run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from adlro.records.cluster import Gpu
from adlro.records.events import RunningJob
from adlro.records.jobs import JobSpec
from adlro.sim.durations import PlannedRun


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A GPU's place in the cluster, and its state: `running`, or idle, or lost."""

    gpu: Gpu
    number: int
    node: int
    running: RunningJob | None
    lost: bool


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of cluster time, to the last bit: its time, and the sum of times since the origin."""

    time_s: float
    after_origin_s: float


class EarlierRun(NamedTuple):
    """An attempt that another simulator has started.

    Attributes:
        job: the attempt.
        spec: its job's requirements.
        start: when it started.
        share: the share of its job's work that was still to be done then.
        resumes: an earlier attempt of the job was preempted.
    """

    job: RunningJob
    spec: JobSpec
    start: Moment
    share: float = 1.0
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A running attempt.

    Attributes:
        job: the attempt.
        plan: of an undisturbed run of the whole job.
        spec: its job's requirements.
        gpus: the numbers of its GPUs.
        full_s: the whole work on these GPUs, at their model's own speed.
        share: of it, at the attempt's start.
    """

    job: RunningJob
    plan: PlannedRun
    spec: JobSpec
    gpus: tuple[int, ...]
    full_s: float
    share: float
