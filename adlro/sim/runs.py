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
    """A GPU's place in the cluster, and its state: `running`, or idle, or lost; `mate` is the second of two jobs."""

    gpu: Gpu
    number: int
    node: int
    running: RunningJob | None
    lost: bool
    mate: RunningJob | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of cluster time, to the last bit: its time, and the sum of times since the origin."""

    time_s: float
    after_origin_s: float


class RunState(NamedTuple):
    """How far a running attempt is, to the last bit; times since the origin.

    Attributes:
        start_s: its start.
        end_s: the end of its work if nothing changes any more; a time limit may come before.
        work_from_s: when its work goes on: it starts, or restores, before.
        kept: the share of its speed that it keeps beside its partner; 1 alone.
    """

    start_s: float
    end_s: float
    work_from_s: float
    kept: float


class EarlierRun(NamedTuple):
    """An attempt that another simulator has started.

    Attributes:
        job: the attempt.
        spec: its job's requirements.
        start_s: when it started, since the origin.
        share: the share of its job's work that was still to be done then.
        resumes: an earlier attempt of the job was preempted.
        state: after the last change of its speed; None: it has run as it does now since its start.
    """

    job: RunningJob
    spec: JobSpec
    start_s: float
    share: float = 1.0
    resumes: bool = False
    state: RunState | None = None


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

    @property
    def share_of_gpu(self) -> float:
        """The share that it has of each of its GPUs."""
        return self.job.placement.gpus[0].share
