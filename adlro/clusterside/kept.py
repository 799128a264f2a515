"""The state of a cluster that survives restarts, and its unwritten changes. Plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adlro.clusterside.attempts import Attempt
from adlro.records.cluster import Cluster
from adlro.records.events import EventBatch


@dataclass(frozen=True, slots=True)
class Kept:
    """The stored state.

    Attributes:
        incarnation, revision, acknowledged: of the event log.
        batches: its stored batches, in order.
        cluster: nodes and GPUs.
        attempts: all known attempts.
        lost_gpu_ids: GPUs that were lost.
        token: the newest fencing token that was used.
        wake_ups_s: requested cluster times.
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
        """Open attempts: started ones in the order of their starts, then the others."""
        found = [each for each in self.attempts if not each.end_revision]
        return sorted(found, key=lambda each: (not each.start_revision, each.start_revision))

    @property
    def time_s(self) -> float:
        """The newest cluster time of an event; 0: there is none."""
        return self.batches[-1].clock.time_s if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to write.

    Attributes:
        whole: the whole state; otherwise the changes since the last write.
        incarnation, revision, acknowledged, token, lost_gpu_ids, note: as in Kept.
        first_revision: older events are dropped.
        cluster: None: as before.
        batches: of the event log.
        attempts: by job; None: dropped.
        wake_ups_s: new ones.
        woken_s: wake-ups up to this time are over.
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
