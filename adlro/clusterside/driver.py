"""The interface of an adapter to a cluster, and its reports. Plain: no gRPC and no Redis.

A driver starts and stops attempts, and reports their events. The cluster side implements all rules (fencing, repeated
launches, capacity, delivery of events), and calls the driver only for accepted attempts.
"""

from __future__ import annotations

import asyncio
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
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterEvent, GpuCondition
from adlro.records.payloads import LogChunk, LogStream

# Between two looks at a log that is followed.
LOG_LOOK_S = 0.1


class Side(Protocol):
    """The cluster side, as a driver uses it."""

    wake_ups: WakeUps

    def emit(self, events: Sequence[ClusterEvent]) -> Sequence[ClusterEvent]:
        """Appends the events of one moment; returns them with their revisions."""

    def change_cluster(self, cluster: Cluster) -> None:
        """Changes nodes and GPUs: open attempts on removed ones are lost, and all watchers get the change."""

    def open_attempts(self) -> Sequence[Attempt]:
        """The open attempts."""

    def is_open(self, attempt: Attempt) -> bool:
        """Whether this attempt is open."""

    def is_waiting(self, attempt: Attempt) -> bool:
        """Whether an open attempt waits for the ends of those that it preempts; `launch` is called for it later."""

    def preemptor_of(self, attempt: Attempt) -> Attempt | None:
        """The open attempt that waits for the end of this one; None: there is none."""

    @property
    def incarnation(self) -> str:
        """Of the event log: another one means that the store has lost the cluster's record."""

    def knows(self, job_id: str, attempt: int) -> bool:
        """Whether the record has this attempt of a job, or a later one."""

    def is_over(self, job_id: str, attempt: int) -> bool:
        """Whether nobody asks for this attempt any more: its end is acknowledged, or the record does not have it."""

    def adopt(self, attempt: Attempt) -> bool:
        """Accepts an attempt that runs, and that the record does not have: the store has lost its last changes.

        The driver then reports its STARTED event, and the orchestrator stops it or continues with it.

        Returns:
            False: a GPU of it is not there or has another attempt, or the job has; nothing has changed.
        """

    def renew_note(self, job_id: str, note: str) -> None:
        """Changes the note of a job's open attempt; journaled with the events that the driver reports next."""

    async def settled(self) -> None:
        """Returns when all changes until now are journaled, and so survive this process.

        Raises:
            Unavailable: the store does not accept the journal.
        """

    @property
    def told_s(self) -> float | None:
        """Cluster time of the newest sent event if there are unsent ones; otherwise None."""

    @property
    def waits(self) -> bool:
        """Whether an event that may change the orchestrator's decisions is unacknowledged."""


def for_whom(preemptor: Attempt | None) -> str:
    """The message of a PREEMPTED event, which follows "preempted: " in the job's record.

    Args:
        preemptor: the attempt that waits for this end; None: it was asked for by a call alone.
    """
    return "on request" if preemptor is None else f"for {preemptor.job_id}"


class Driver(ABC):
    """A cluster behind the cluster side: starts and stops jobs, and has the clock.

    Attributes:
        cluster: nodes and GPUs.
        capabilities: its abilities.
        side: receives its reports; set by `attach`.
        timers: wall time and callbacks; set by `attach`.
    """

    cluster: Cluster
    capabilities = Capabilities(stop=True)
    side: Side
    timers: Timers

    def attach(self, side: Side, timers: Timers) -> None:
        """Called once, before all other methods."""
        self.side, self.timers = side, timers

    # ---- jobs

    @abstractmethod
    def launch(self, attempt: Attempt) -> None:
        """Starts an accepted attempt; reports its STARTED event, now or when it has started.

        Raises:
            AdlroError: it can't, and nothing has changed.
        """

    @abstractmethod
    def stop(self, attempt: Attempt) -> None:
        """Stops an open attempt; reports the event of its end, now or when it is over.

        One whose `preempt_asked` is set goes on later: its end is PREEMPTED.

        Raises:
            Conflict: NOT_PREEMPTIBLE: it can't be preempted now, and nothing has changed.
        """

    def preempt(self, attempt: Attempt, victims: Sequence[Attempt]) -> None:
        """Stops open attempts to make room for an accepted one, for which `launch` is called after their last end.

        Their `preempt_asked` is set. A driver that stops and starts at once reports all ends and the start together, as
        events of one moment; `launch` is not called then.

        Args:
            attempt: that waits for their ends.
            victims: they.

        Raises:
            AdlroError: one of them can't be stopped now, or the attempt not be started; nothing has changed.
        """
        for each in victims:
            self.stop(each)

    # ---- time

    @abstractmethod
    def present_s(self) -> float:
        """Cluster time now, after all earlier due events have been reported."""

    @abstractmethod
    def go_on(self) -> None:
        """Called after a change (an event, an acknowledgement, a wake-up): time may continue, or a timer be set."""

    @abstractmethod
    def clock(self, time_s: float | None = None) -> Clock:
        """The clock, at the time of the present report, or at a given time."""

    # ---- what not every cluster has

    def gpu_conditions(self) -> Sequence[GpuCondition]:
        """The reasons why GPUs are lost, where it knows them."""
        return ()

    async def read_log(
        self, job_id: str, attempt: int, stream: LogStream, offset: int, most_bytes: int, rank: int = 0
    ) -> LogChunk:
        """Reads an attempt's output, also after its end.

        Args:
            job_id: the job.
            attempt: its attempt.
            stream: of its output.
            offset: of the first byte; below 0: so many bytes before the end.
            most_bytes: to read.
            rank: of the program, where the attempt has several.

        Raises:
            Unsupported: no output is stored.
            NotFound: no such attempt, or its output is deleted; NO_RANK: it has no such program.
        """
        raise Unsupported(f"cluster '{self.cluster.name}' stores no output of jobs", reason="NO_LOGS")

    async def log_grown(self, job_id: str, attempt: int, stream: LogStream, size: int, rank: int = 0) -> None:
        """Returns when a stream may have become longer than `size`, or its attempt has ended."""
        await asyncio.sleep(LOG_LOOK_S)

    def newest_attempt(self, job_id: str) -> int:
        """The newest attempt of a job whose output is stored; 0: none."""
        return 0

    def sample(self) -> tuple[float, Sample] | None:
        """Cluster time, and the GPUs' metrics then; None: no metrics."""
        return None

    async def set_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """Sets the given values of the clock.

        Raises:
            Unsupported: its clock can't be set.
        """
        raise Unsupported(
            f"the clock of cluster '{self.cluster.name}' can't be set: it keeps real time", reason="NO_VIRTUAL_CLOCK"
        )

    def set_gpu_availability(self, gpu_id: str, available: bool) -> str:
        """Removes a GPU or brings it back, now; returns the lost job, or "".

        Raises:
            Unsupported: its GPUs can't be removed by a call.
            NotFound: no such GPU.
        """
        raise Unsupported(
            f"the GPUs of cluster '{self.cluster.name}' can't be removed by a call", reason="NO_GPU_AVAILABILITY"
        )

    # ---- its life

    async def prepare(self) -> None:
        """Slow preparations at the start, before all other calls."""

    def note(self) -> str:
        """The driver's own text, returned after a restart; journaled with each event."""
        return ""

    async def begin(self, kept: Kept | None) -> None:
        """Restores the previous state; called after `prepare`, before all else, and again while the store is away.

        Args:
            kept: the journaled state; its open attempts run on, or their ends are reported. None: no previous state.

        Raises:
            redis.exceptions.RedisError, OSError: the store does not answer.
        """

    async def run(self, tell: Callable[[str], None]) -> None:
        """Runs beside the calls, until it is cancelled.

        Args:
            tell: called with the reason why the cluster can't serve; empty: none.
        """

    async def close(self) -> None:
        """Closes the driver; it reports nothing afterwards."""
