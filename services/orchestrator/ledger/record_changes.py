"""The ledger together with the records that are to be written for it: nothing changes in one without the other."""

from __future__ import annotations

from adlro.records.jobs import Job, JobState
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger, Phase
from adlro.store import Move, Outcome


class RecordChanges:
    """A ledger and the moves that are not written yet.

    Args:
        ledger: who holds what, and who waits.
        max_attempts: lost attempts after which a job fails.
    """

    def __init__(self, ledger: Ledger, max_attempts: int) -> None:
        self.ledger = ledger
        self.moves: list[Move] = []
        self._max_attempts = max_attempts

    def record(self, entry: Entry, job: Job, outcome: Outcome | None = None) -> None:
        """The job's next record."""
        self._note(entry.job, entry.version, job, outcome)
        entry.job = job
        entry.version += 1

    def record_untracked(self, before: Job, version: int, job: Job) -> None:
        """The next record of a job that is not in the ledger (yet)."""
        self._note(before, version, job)

    def end(self, entry: Entry, job: Job, *, learn: bool) -> None:
        """The job's last record; with what is learned from it, where it ended by itself."""
        outcome = None
        if learn and job.start_s is not None and job.end_s is not None:
            name = self.ledger.layout.cluster.name
            outcome = Outcome(job.end_s - job.start_s, job.state is JobState.SUCCEEDED, name)
        self.record(entry, job, outcome)
        self.ledger.forget(entry)

    def lose(self, entry: Entry, why: str, time_s: float, *, excused: bool = False) -> None:
        """The job's attempt is lost: it waits again, or has had enough; `excused`: this attempt does not count."""
        self._put_back(entry, transitions.lost(entry.job, time_s, why, self._max_attempts, excused=excused))

    def refuse(self, entry: Entry, why: str, time_s: float, retry_s: float, *, final: bool = False) -> bool:
        """The cluster did not take the job's attempt: it waits until `retry_s`, or has had enough.

        Args:
            entry: of the job.
            why: for people.
            time_s: cluster time of that.
            retry_s: cluster time of the next attempt.
            final: another attempt would be refused as well.

        Returns:
            It stands in no queue, and is to join it at `retry_s`.
        """
        job = transitions.refused(entry.job, time_s, why, self._max_attempts, retry_s=retry_s, final=final)
        paused = retry_s > time_s and not job.state.final
        self._put_back(entry, job, paused=paused)
        return paused

    def take_moves(self) -> list[Move]:
        """What is to be written; it is not asked for twice."""
        moves, self.moves = self.moves, []
        return moves

    def _note(self, before: Job, version: int, job: Job, outcome: Outcome | None = None) -> None:
        took_s = transitions.attempt_took_s(before, job)
        user_service_s = self.ledger.user_service.add(job.spec.user, took_s) if took_s else None
        self.moves.append(Move(job, version, outcome, user_service_s))

    def _put_back(self, entry: Entry, job: Job, *, paused: bool = False) -> None:
        self.record(entry, job)
        self.ledger.release(entry)
        if job.state.final:
            self.ledger.forget(entry)
        elif paused:
            entry.phase = Phase.PAUSED
        else:
            self.ledger.enqueue(entry)
