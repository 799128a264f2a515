"""Jobs that share a GPU: what they are expected to keep of their speeds, and what an observation says of them.

Plain data and arrays. The physics that this follows is in adlro/state/machines.py: two jobs, each at the share of its
speed that it keeps beside the other, until one of them leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from adlro.hardware.shared_speeds import TURN_SHARE
from adlro.records.jobs import Job, JobSpec
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.occupancy import Layout
from adlro.state.observation import Bools, Floats, Ints
from adlro.state.scene import Shares


@dataclass(frozen=True, slots=True)
class PairTable:
    """What kinds of jobs are expected to keep of their speeds beside each other.

    Attributes:
        number_of: by kind its row, 0 to F - 1.
        kept: (F + 1, F + 1, K) [row, row of the one beside it, model] shares of speeds, 0..1; 0: such a pair must not
            share. The last row and column stand for all other kinds, and are 0.
    """

    number_of: Mapping[ApplicationSize, int] = field(default_factory=dict)
    kept: Floats = field(default_factory=lambda: np.zeros((1, 1, 1)))

    @classmethod
    def of(cls, kinds: Iterable[ApplicationSize], kept: Floats) -> PairTable:
        """The table of F kinds; `kept` is (F, F, K)."""
        return cls({kind: number for number, kind in enumerate(kinds)}, np.pad(kept, ((0, 1), (0, 1), (0, 0))))

    def without(self, refused: Iterable[tuple[ApplicationSize, ApplicationSize, int]]) -> PairTable:
        """A copy in which some pairs, each of two kinds on a model, must not share."""
        kept = self.kept.copy()
        for one, other, model in refused:
            if one in self.number_of and other in self.number_of:
                kept[self._row(one), self._row(other), model] = kept[self._row(other), self._row(one), model] = 0.0
        return PairTable(self.number_of, kept)

    def family(self, spec: JobSpec) -> int:
        """The row of a job."""
        # Of most jobs nobody asks: an application's hash for each of a long queue would take its time.
        return self._row(ApplicationSize.of(spec)) if asks_for_a_part(spec) else len(self.kept) - 1

    def kept_by(self, spec: JobSpec, beside: ApplicationSize, model: int) -> float:
        """The share of its speed that a job is expected to keep beside one of some kind, where both run."""
        if not self.number_of:
            return TURN_SHARE
        return float(self.kept[self.family(spec), self._row(beside), model]) or TURN_SHARE

    def _row(self, kind: ApplicationSize) -> int:
        return self.number_of.get(kind, len(self.kept) - 1)


def asks_for_a_part(spec: JobSpec) -> bool:
    """Whether a job may share its GPU."""
    return spec.shareable and spec.gpu_count == 1 and not spec.exclusive


def expect_together(earlier: Entry, later: Entry, table: PairTable, model: int, whole_s: float) -> None:
    """Sets what is expected of two jobs from the start of the later one on.

    Args:
        earlier, later: by their starts; each has the expected end that it would have alone.
        whole_s: expected duration of all of the later job's work, alone on the GPU.
    """
    kept = table.kept_by(earlier.job.spec, ApplicationSize.of(later.job.spec), model)
    if kept != earlier.told:  # a rounding error must not move an end
        earlier.expected_end_s = _moved_s(earlier.expected_end_s, later.since_s, earlier.told, kept)
    earlier.told = kept
    later.told = table.kept_by(later.job.spec, ApplicationSize.of(earlier.job.spec), model)
    later.expected_end_s = later.since_s + shared_duration_s(later, whole_s)


def shared_duration_s(entry: Entry, whole_s: float) -> float:
    """Expected duration of what is left of a job, at the share of its speed that it is expected to keep."""
    return float(entry.restart_s + entry.job.remaining_ratio * whole_s / entry.told)


def expect_alone(entry: Entry, time_s: float) -> None:
    """Sets what is expected of a job whose neighbour has left."""
    if entry.told != 1.0:
        entry.expected_end_s = _moved_s(entry.expected_end_s, time_s, entry.told, 1.0)
    entry.told = 1.0


def lost_beside_s(job: Job, table: PairTable, model: int) -> float:
    """What a job is expected to have lost beside those that have left its GPU."""
    beside = job.attempts[-1].neighbours
    return math.fsum(each.time_s * (1.0 - table.kept_by(job.spec, each.neighbour, model)) for each in beside)


def _moved_s(at_s: float, time_s: float, before: float, after: float) -> float:
    """A moment to come, moved by a change of speed now: as in adlro/state/machines.py, to the bit."""
    return time_s + (at_s - time_s) * (before / after)


def time_beside_s(entry: Entry, mate: Entry, time_s: float) -> float:
    """How long two jobs have run beside each other until `time_s`; 0 where one of them has not started.

    As in runtimes the start of a program counts, where the cluster reports it.
    """
    from_s = [since_s for each in (entry, mate) if (since_s := each.job.attempts[-1].runs_from_s) is not None]
    return max(0.0, time_s - max(from_s)) if len(from_s) == 2 else 0.0


def is_open(entry: Entry) -> bool:
    """Whether another job may share the GPU of a placed job that has a part of it."""
    return entry.mate is None and bool(entry.held) and not entry.victims


def shares_of(
    layout: Layout,
    table: PairTable,
    placed: Iterable[tuple[Entry, bool]],
    row_shareable: Bools,
    row_family: Ints,
) -> Shares:
    """What an observation says of shared GPUs.

    Args:
        placed: the jobs that hold a part of their GPU; whether they are the second there.
        row_shareable, row_family: (J,) of the waiting jobs.
    """
    gpus = len(layout.gpu_ids)
    opens, family, left_mib = [False] * gpus, [0] * gpus, layout.gpu_memory_mib.tolist()
    there, start_s, end_s, cores, memory_mib = [False] * gpus, [0.0] * gpus, [np.inf] * gpus, [0] * gpus, [0] * gpus
    for entry, second in placed:
        gpu, spec = entry.held[0], entry.job.spec
        left_mib[gpu] -= spec.gpu_memory_mib
        if second:
            there[gpu], start_s[gpu], end_s[gpu] = True, entry.since_s, entry.expected_end_s
            cores[gpu], memory_mib[gpu] = spec.cpu_cores, spec.memory_mib
        else:
            opens[gpu], family[gpu] = is_open(entry), table.family(spec)
    return Shares(
        row_shareable=row_shareable[None],
        row_family=row_family[None],
        gpu_open=np.array([opens]),
        gpu_family=np.array([family]),
        gpu_memory_left_mib=np.array([left_mib]),
        kept=table.kept,
        mate_there=np.array([there]),
        mate_start_s=np.array([start_s]),
        mate_expected_end_s=np.array([end_s]),
        mate_cores=np.array([cores]),
        mate_memory_mib=np.array([memory_mib]),
    )
