"""From the exit statuses of an attempt's programs to the event of its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adlro.attempt.records import AttemptView
from adlro.records.events import EventKind
from adlro.records.payloads import EndReason, ExitStatus
from adlro.services.local.notes import Note

_OF_NODE = frozenset((EndReason.GPU_FAILED, EndReason.NODE_LOST, EndReason.SUPERVISOR_LOST))
PEER_ENDED = "another program of the job ended: "
"""How the detail of a program's stop begins where that was only due to another one's end."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of one program of an attempt; without `view`: its folder is gone, and nothing is known."""

    note: Note
    view: AttemptView | None

    @property
    def status(self) -> ExitStatus | None:
        """How it ended; None: not known."""
        return None if self.view is None else self.view.exit

    @property
    def succeeded(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.status is not None and self.status.succeeded

    @property
    def told(self) -> ExitStatus | None:
        """Its exit status, with the program's rank where the attempt has several."""
        status = self.status
        if status is None or status.succeeded or self.note.program_count == 1:
            return status
        who = f"rank {self.note.rank} on {self.note.node_id}" if self.note.node_id else f"rank {self.note.rank}"
        return replace(status, detail=f"{who}: {status.detail}" if status.detail else who)


def decisive(ends: Sequence[ProgramEnd]) -> ProgramEnd:
    """The end that makes that of the attempt: of a program that was lost or stopped, else of the first that failed.

    All succeeded: that of rank 0. One that was ended with a peer decides nothing. One that was lost after its peer's
    end was noticed (connections break before a loss is told) has STOPPED, and its loss in the detail.
    """

    def order(end: ProgramEnd) -> tuple[bool, bool, bool, bool, float, int]:
        status, view = end.status, end.view
        if status is None or view is None:
            return False, False, False, False, 0.0, end.note.rank
        moment = view.program_ended or view.ended
        stopped = status.reason is EndReason.STOPPED
        by_peer = stopped and status.detail.startswith(PEER_ENDED)
        ended_s = 0.0 if moment is None or status.succeeded else moment.boottime_s
        lost = status.reason in _OF_NODE
        return status.succeeded, by_peer, not (lost or stopped), not lost, ended_s, end.note.rank

    return min(ends, key=order)


def end_of(
    status: ExitStatus,
    *,
    by_node: bool = False,
    stop_asked: bool = False,
    preempt_asked: bool = False,
    time_limit_s: float | None = None,
) -> tuple[EventKind, str]:
    """The event of an attempt's end, and its message.

    Args:
        status: how the attempt ended.
        by_node: where it was not started: the node could not start it; else the job is wrong.
        stop_asked: somebody asked for its stop by StopJob.
        preempt_asked: that was for another job.
        time_limit_s: of the job.

    Returns:
        FINISHED; FAILED: the job's own fault; STOPPED; PREEMPTED; LOST: not the job's fault, so it may run again.
    """
    if status.succeeded:
        return EventKind.FINISHED, ""
    if status.reason is EndReason.STOPPED:
        if preempt_asked:
            return EventKind.PREEMPTED, ""
        if stop_asked:
            return EventKind.STOPPED, "stopped"
        return EventKind.LOST, status.detail or status.text  # by this service, for reasons of its own
    if status.reason in _OF_NODE or (status.reason is EndReason.NOT_STARTED and by_node):
        return EventKind.LOST, status.text
    if status.reason is EndReason.TIME_LIMIT and time_limit_s is not None:
        return EventKind.FAILED, f"time limit of {time_limit_s:g} s reached"
    return EventKind.FAILED, status.text
