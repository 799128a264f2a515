"""What a cluster keeps over restarts, and what of it is to be written down next. Plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adlro.clusterside.attempts import Attempt
from adlro.records.cluster import Cluster
from adlro.records.events import EventBatch


@dataclass(frozen=True, slots=True)
class Kept:
    """What was written down.

    Attributes:
        incarnation, revision, acknowledged: of the event log.
        batches: what is kept of it, in order.
        cluster: nodes and GPUs.
        attempts: all that are known.
        lost_gpu_ids: GPUs that were lost.
        token: the newest fencing token that was used.
        wake_ups_s: cluster times asked for.
        note: the driver's.
    """

    incarnation: str
    revision: int
    acknowledged: int
    batches: Sequence[EventBatch]
    cluster: Cluster
    attempts: Sequence[Attempt]
    lost_gpu_ids: Sequence[str]
    token: int
    wake_ups_s: Sequence[float]
    note: str

    @property
    def open_attempts(self) -> list[Attempt]:
        """Attempts that had not ended, in the order of their starts, then those that had not started."""
        found = [each for each in self.attempts if not each.end_revision]
        return sorted(found, key=lambda each: (not each.start_revision, each.start_revision))

    @property
    def time_s(self) -> float:
        """The newest cluster time of an event; 0: there is none."""
        return self.batches[-1].clock.time_s if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be written down.

    Attributes:
        whole: it is all that there is to know; else what is new since the write before.
        incarnation, revision, acknowledged, token, lost_gpu_ids, note: as in Kept.
        first_revision: older events are dropped.
        cluster: None: as before.
        batches: of the event log.
        attempts: by job; None: it is forgotten.
        wake_ups_s: new ones.
        woken_s: those up to here are over.
    """

    whole: bool
    incarnation: str
    revision: int
    acknowledged: int
    token: int
    lost_gpu_ids: Sequence[str]
    note: str
    first_revision: int
    cluster: Cluster | None
    batches: Sequence[EventBatch]
    attempts: Mapping[str, Attempt | None]
    wake_ups_s: Sequence[float]
    woken_s: float
