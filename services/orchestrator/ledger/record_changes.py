"""The ledger together with its unwritten records: every change of one changes the other."""

from __future__ import annotations

from adlro.records.jobs import Job, JobState
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.payloads import ExitStatus
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.outcomes import stopped_runs
from adlro.services.orchestrator.ledger.sharing import time_beside_s
from adlro.store import Move, Outcome


class RecordChanges:
    """A ledger and its unwritten moves.

    Args:
        ledger: placements and the queue.
        max_attempts: lost attempts after which a job fails.
    """

    def __init__(self, ledger: Ledger, max_attempts: int) -> None:
        self.ledger = ledger
        self.moves: list[Move] = []
        self._max_attempts = max_attempts

    def record(self, entry: Entry, job: Job, outcome: Outcome | None = None) -> None:
        """Sets the job's next record."""
        self._note(entry.job, entry.version, job, outcome)
        entry.job = job
        entry.version += 1
        self.ledger.count_anew(entry)

    def record_untracked(self, before: Job, version: int, job: Job) -> None:
        """Sets the next record of a job that is not in the ledger (yet)."""
        self._note(before, version, job)

    def end(self, entry: Entry, job: Job, *, learn: bool) -> None:
        """Sets the job's last record; `learn`: the job ended by itself, and its outcome is learned from."""
        outcome = None
        runtime_s = job.runtime_s
        # Of several GPUs that have left the cluster nobody knows whether they were on more nodes than needed.
        job = self._leave_mate(entry, job)
        if learn and runtime_s is not None and (entry.gpus or job.spec.gpu_count == 1):
            spread = bool(entry.gpus) and self.ledger.is_spread(job.spec, entry.gpus)
            outcome = Outcome(
                runtime_s,
                job.state is JobState.SUCCEEDED,
                self.ledger.layout.cluster.name,
                spread,
                stopped_runs(self.ledger, job),
                job.attempts[-1].neighbours,
            )
        self.record(entry, job, outcome)
        self.ledger.forget(entry, _end_s(job))

    def lose(
        self,
        entry: Entry,
        why: str,
        time_s: float,
        *,
        excused: bool = False,
        exit_status: ExitStatus | None = None,
        stops_asked: bool = True,
    ) -> None:
        """Loses the job's attempt: the job waits again, or fails.

        Args:
            entry: the job's entry.
            why: the reason, for people.
            time_s: cluster time of the loss.
            excused: the attempt does not count.
            exit_status: how its program ended, where that is known.
            stops_asked: as for `Ledger.release`.
        """
        job = transitions.lost(entry.job, time_s, why, self._max_attempts, excused=excused, exit_status=exit_status)
        self._put_back(entry, job, stops_asked=stops_asked)

    def preempt(
        self,
        entry: Entry,
        time_s: float,
        why: str,
        remaining_ratio: float | None,
        exit_status: ExitStatus | None = None,
    ) -> None:
        """The job's attempt was stopped for another job: the job waits again, at its place.

        Args:
            entry: the job's entry.
            time_s: cluster time of the end.
            why: for whom, for people; empty: the cluster does not say.
            remaining_ratio: the share of its work that is left; None: the cluster does not know it.
            exit_status: how its program ended, where that is known.
        """
        if remaining_ratio is None:
            remaining_ratio = self.ledger.share_left(entry, time_s)
        why = why or (f"for {entry.stopped_for}" if entry.stopped_for else "")
        self._put_back(entry, transitions.preempted(entry.job, time_s, why, remaining_ratio, exit_status))

    def refuse(
        self,
        entry: Entry,
        why: str,
        time_s: float,
        retry_s: float,
        *,
        final: bool = False,
        excused: bool = False,
        stops_asked: bool = False,
    ) -> bool:
        """The cluster refused the job's attempt: the job waits until `retry_s`, or fails.

        Args:
            entry: the job's entry.
            why: the reason, for people.
            time_s: cluster time of the refusal.
            retry_s: cluster time of the next attempt.
            final: the cluster would refuse another attempt as well.
            excused: the attempt does not count.
            stops_asked: the cluster stops the jobs that were to make room nevertheless.

        Returns:
            Whether the job is in no queue, and joins it at `retry_s`.
        """
        job = transitions.refused(
            entry.job, time_s, why, self._max_attempts, retry_s=retry_s, final=final, excused=excused
        )
        paused = retry_s > time_s and not job.state.final
        self._put_back(entry, job, paused=paused, stops_asked=stops_asked)
        return paused

    def take_moves(self) -> list[Move]:
        """Returns the unwritten moves, and clears them."""
        moves, self.moves = self.moves, []
        return moves

    def _note(self, before: Job, version: int, job: Job, outcome: Outcome | None = None) -> None:
        ended = transitions.ended_attempt(before, job)
        had = None if ended is None or not ended.took_s else self.ledger.user_service.add(job.spec.user, *ended)
        self.moves.append(Move(job, version, outcome, had))

    def _leave_mate(self, entry: Entry, job: Job) -> Job:
        """The record of a job whose attempt ends, with the time beside the other job on its GPU; that one gets it too.

        It is written now, since nobody knows it once the records of both are final.
        """
        mate = entry.mate
        if mate is None:
            return job
        time_s = time_beside_s(entry, mate, _end_s(job))
        if time_s > 0.0:
            kind, mates = ApplicationSize.of(job.spec), ApplicationSize.of(mate.job.spec)
            self.record(mate, transitions.was_beside(mate.job, NeighbourTime(kind, time_s)))
            job = transitions.was_beside(job, NeighbourTime(mates, time_s))
        return job

    def _put_back(self, entry: Entry, job: Job, *, paused: bool = False, stops_asked: bool = True) -> None:
        self.record(entry, self._leave_mate(entry, job))
        self.ledger.release(entry, _end_s(job), stops_asked=stops_asked)
        if job.state.final:
            self.ledger.forget(entry)
        elif paused:
            entry.phase = Phase.PAUSED
            self.ledger.count_anew(entry)
        else:
            self.ledger.enqueue(entry)


def _end_s(job: Job) -> float:
    """Cluster time of the end of a job's last attempt, which has ended; 0 without an attempt."""
    end_s = job.attempts[-1].end_s if job.attempts else None
    return 0.0 if end_s is None else end_s
