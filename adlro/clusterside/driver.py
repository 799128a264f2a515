"""What an adapter to a cluster implements, and what it may tell. Plain: knows no gRPC and no Redis.

A driver starts and ends attempts, and says what has happened to them. All rules (who may launch, what was launched
before, what fits, what is told to whom) are the cluster side's, which asks it only for what it has let through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.kept import Kept
from adlro.clusterside.telemetry import Sample
from adlro.clusterside.timers import Timers
from adlro.clusterside.wake_ups import WakeUps
from adlro.errors import Unsupported
from adlro.records.cluster import Cluster
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterEvent


class Side(Protocol):
    """What a driver may ask and tell."""

    wake_ups: WakeUps

    def emit(self, events: Sequence[ClusterEvent]) -> Sequence[ClusterEvent]:
        """Tells the events of one moment; returns them with their revisions."""

    def change_cluster(self, cluster: Cluster) -> None:
        """Nodes or GPUs have joined or left: what was open on those that left is lost, and all are told."""

    def open_attempts(self) -> Sequence[Attempt]:
        """The attempts that have not ended."""

    def is_open(self, attempt: Attempt) -> bool:
        """This attempt has not ended."""

    async def settled(self) -> None:
        """Returns when all that has happened until now is written down, and so would survive this process.

        Raises:
            Unavailable: the store does not take it.
        """

    @property
    def told_s(self) -> float | None:
        """Cluster time of the newest event that is told, where there are others that are not; else None."""

    @property
    def waits(self) -> bool:
        """An event that may change what the orchestrator wants is not acknowledged yet."""


class Driver(ABC):
    """A cluster behind the cluster side: what starts and ends jobs, and its time.

    Attributes:
        cluster: nodes and GPUs.
        capabilities: what it can do.
        side: what it tells; there once it is attached.
        timers: wall time and callbacks; there once it is attached.
    """

    cluster: Cluster
    capabilities = Capabilities(stop=True)
    side: Side
    timers: Timers

    def attach(self, side: Side, timers: Timers) -> None:
        """Called once, before all else."""
        self.side, self.timers = side, timers

    # ---- jobs

    @abstractmethod
    def launch(self, attempt: Attempt) -> None:
        """Starts an attempt that was accepted; tells its STARTED event, now or when it has started.

        Raises:
            AdlroError: it can't, and nothing has changed.
        """

    @abstractmethod
    def stop(self, attempt: Attempt) -> None:
        """Ends an open attempt; tells the event of its end, now or when it is over."""

    # ---- time

    @abstractmethod
    def present_s(self) -> float:
        """Cluster time now, after everything that is due before it has happened and is told."""

    @abstractmethod
    def go_on(self) -> None:
        """Something has changed (an event, an acknowledgement, a wake-up): time may go on, or a timer be set."""

    @abstractmethod
    def clock(self, time_s: float | None = None) -> Clock:
        """The clock, at the time of what is told just now, or at a given one."""

    # ---- what not every cluster has

    def sample(self) -> tuple[float, Sample] | None:
        """Cluster time, and what the GPUs report then; None: nothing is known of them."""
        return None

    async def set_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """Sets what is given of the clock.

        Raises:
            Unsupported: its time is no one's to set.
        """
        raise Unsupported(
            f"the clock of cluster '{self.cluster.name}' can't be set: it keeps real time", reason="NO_VIRTUAL_CLOCK"
        )

    def set_gpu_availability(self, gpu_id: str, available: bool) -> str:
        """Takes a GPU away or gives it back, now; returns the job that was lost, or "".

        Raises:
            Unsupported: only faults take its GPUs away.
            NotFound: no such GPU.
        """
        raise Unsupported(
            f"the GPUs of cluster '{self.cluster.name}' can't be removed by a call", reason="NO_GPU_AVAILABILITY"
        )

    # ---- its life

    async def prepare(self) -> None:
        """What takes its time at the start, before anything is asked of it."""

    def note(self) -> str:
        """What it wants to be told after a restart; written down with each event."""
        return ""

    async def begin(self, kept: Kept | None) -> None:
        """Takes up what was before; before anything but `prepare`. It is called again where the store is away.

        Args:
            kept: what was written down; its open attempts run on, or are told to have ended. None: nothing was before.

        Raises:
            redis.exceptions.RedisError, OSError: the store does not answer.
        """

    async def run(self, tell: Callable[[str], None]) -> None:
        """What it does beside the calls, until it is cancelled.

        Args:
            tell: told what keeps the cluster from serving; empty: nothing.
        """

    async def close(self) -> None:
        """Its last word; nothing is told after it."""
