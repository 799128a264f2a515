"""What the oracle is given, and what it makes of it. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Node:
    cores: int
    memory_mib: int


@dataclass(frozen=True)
class Gpu:
    """One GPU; GPUs stand in the order of their nodes."""

    node: int
    model: int
    memory_mib: int


@dataclass(frozen=True)
class Job:
    """One job. Tuples have one figure for each GPU model.

    Attributes:
        duration_s: on `gpu_count` packed GPUs of each model at speed 1; inf: it can't run there, or doesn't accept it.
        expected_s: what a rule is told; the same if empty.
        spread_speed: the speed of a spread placement relative to a packed one, in (0, 1]; 0: it never spreads.
        expected_spread_speed: what a rule is told; the same if empty.
        cores, memory_mib, gpu_memory_mib: with each GPU.
        max_nodes: most nodes of a placement; 0: any.
        family: whose row of the table of pairs counts.
    """

    submit_s: float
    duration_s: tuple[float, ...]
    gpu_count: int = 1
    max_nodes: int = 0
    spread_speed: tuple[float, ...] = ()
    cores: int = 1
    memory_mib: int = 1
    gpu_memory_mib: int = 1
    user: int = 0
    expected_s: tuple[float, ...] = ()
    expected_spread_speed: tuple[float, ...] = ()
    preemptible: bool = False
    restart_s: float = 0.0
    lost_s: float = 0.0
    shareable: bool = False
    family: int = 0

    def packed_s(self, model: int, expected: bool) -> float:
        return ((self.expected_s if expected else ()) or self.duration_s)[model]

    def spreads_at(self, model: int, expected: bool) -> float:
        speeds = (self.expected_spread_speed if expected else ()) or self.spread_speed
        return speeds[model] if speeds and self.gpu_count > 1 else 0.0

    def full_s(self, model: int, spread: bool, *, expected: bool = False) -> float:
        """The whole duration on GPUs of a model at speed 1; inf: never there."""
        packed_s = self.packed_s(model, expected)
        if not spread:
            return packed_s
        speed = self.spreads_at(model, expected)
        return packed_s / speed if speed > 0.0 else math.inf


@dataclass(frozen=True)
class Change:
    """From `time_s` on a GPU runs at `speed` relative to its model; 0: it is lost."""

    time_s: float
    gpu: int
    speed: float


@dataclass(frozen=True)
class Instance:
    """One cluster and one list of jobs, in the order of submission.

    Attributes:
        kept: (family, the partner's family, model): the share of its speed that a job keeps beside that partner.
        expected_kept: what a rule is told of the same pairs; the same if empty.
    """

    nodes: tuple[Node, ...]
    gpus: tuple[Gpu, ...]
    jobs: tuple[Job, ...]
    changes: tuple[Change, ...] = ()
    start_cost_s: float = 0.0
    kept: Mapping[tuple[int, int, int], float] = field(default_factory=dict)
    expected_kept: Mapping[tuple[int, int, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """GPUs of one model that a job can have, in ascending number."""

    job: int
    gpus: tuple[int, ...]
    model: int
    spread: bool


KEEP = -2
"""A choice leaves the reservation as it is."""
NOBODY = -1


@dataclass(frozen=True)
class Choice:
    """What a rule wants: to start a job on some GPUs, or, without a job, to hold.

    Attributes:
        stop: whoever holds these GPUs is stopped in the same act; otherwise a busy GPU is shared. A job that runs is
            stopped first, and so moves.
        reserve: the job that has the reservation from now on, NOBODY, or KEEP.
        illegal: a start that must be refused now: it is noted, not tried.
    """

    job: int = NOBODY
    gpus: tuple[int, ...] = ()
    stop: bool = False
    reserve: int = KEEP
    illegal: Choice | None = None


HOLD = Choice()


@dataclass(frozen=True)
class Run:
    """One ended attempt: `end` is completed, lost or stopped."""

    job: int
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    end: str


@dataclass(frozen=True)
class Decision:
    """What a rule was asked, and what it chose.

    Attributes:
        fitting, expected_s: the sets, and the expected duration on each.
        remaining_s, runs, mates: of each GPU, until it is idle; the (first) job on it, and the second, or NOBODY.
        free: of each node, cores and memory.
        service_s: of each user, GPU time so far.
        stoppable: of each GPU, whether all that runs there may be stopped.
        attained_s: of each job, GPU time so far.
        illegal: a start that must be refused now, or None.
    """

    time_s: float
    fitting: tuple[Placement, ...]
    expected_s: tuple[float, ...]
    remaining_s: tuple[float, ...]
    runs: tuple[int, ...]
    mates: tuple[int, ...]
    free: tuple[tuple[int, int], ...]
    service_s: dict[int, float]
    stoppable: tuple[bool, ...]
    attained_s: tuple[float, ...]
    hold_allowed: bool
    reserved: int
    choice: Choice
    illegal: Choice | None


@dataclass
class Outcome:
    """What became of each job. `start_s`, `gpus` and `end_s` are of its last attempt; nan, () and nan before any."""

    start_s: list[float]
    end_s: list[float]
    gpus: list[tuple[int, ...]]
    attempts: list[int]
    runs: list[Run] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def unfinished(self) -> list[int]:
        return [job for job, end_s in enumerate(self.end_s) if math.isnan(end_s)]
