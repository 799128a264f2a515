"""The ledger together with its unwritten records: every change of one changes the other."""

from __future__ import annotations

from adlro.records.jobs import Job, JobState
from adlro.records.payloads import ExitStatus
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger, Phase
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

    def record_untracked(self, before: Job, version: int, job: Job) -> None:
        """Sets the next record of a job that is not in the ledger (yet)."""
        self._note(before, version, job)

    def end(self, entry: Entry, job: Job, *, learn: bool) -> None:
        """Sets the job's last record; `learn`: the job ended by itself, and its outcome is learned from."""
        outcome = None
        runtime_s = job.runtime_s
        # Of several GPUs that have left the cluster nobody knows whether they were on more nodes than needed.
        if learn and runtime_s is not None and (entry.gpus or job.spec.gpu_count == 1):
            spread = bool(entry.gpus) and self.ledger.is_spread(job.spec, entry.gpus)
            outcome = Outcome(runtime_s, job.state is JobState.SUCCEEDED, self.ledger.layout.cluster.name, spread)
        self.record(entry, job, outcome)
        self.ledger.forget(entry)

    def lose(
        self, entry: Entry, why: str, time_s: float, *, excused: bool = False, exit_status: ExitStatus | None = None
    ) -> None:
        """Loses the job's attempt: the job waits again, or fails.

        Args:
            entry: the job's entry.
            why: the reason, for people.
            time_s: cluster time of the loss.
            excused: the attempt does not count.
            exit_status: how its program ended, where that is known.
        """
        job = transitions.lost(entry.job, time_s, why, self._max_attempts, excused=excused, exit_status=exit_status)
        self._put_back(entry, job)

    def refuse(self, entry: Entry, why: str, time_s: float, retry_s: float, *, final: bool = False) -> bool:
        """The cluster refused the job's attempt: the job waits until `retry_s`, or fails.

        Args:
            entry: the job's entry.
            why: the reason, for people.
            time_s: cluster time of the refusal.
            retry_s: cluster time of the next attempt.
            final: the cluster would refuse another attempt as well.

        Returns:
            Whether the job is in no queue, and joins it at `retry_s`.
        """
        job = transitions.refused(entry.job, time_s, why, self._max_attempts, retry_s=retry_s, final=final)
        paused = retry_s > time_s and not job.state.final
        self._put_back(entry, job, paused=paused)
        return paused

    def take_moves(self) -> list[Move]:
        """Returns the unwritten moves, and clears them."""
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
