"""The store of job records in memory, as far as the acting orchestrator needs it: strict. Nothing is awaited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adlro.errors import Stale
from adlro.records.jobs import Job, JobSpec
from adlro.store import MOVES_AT_ONCE, Cursor, Move, Outcome


class StoreModel:
    """Records, each change in order, and how far the cluster's log is applied."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, Job]] = {}
        self.history: dict[str, list[Job]] = {}
        self.cursor: Cursor | None = None
        self.user_service_s: dict[str, float] = {}
        self.scripts: list[int] = []  # moves of each
        self.outcomes: dict[str, Outcome] = {}
        self.final_count = 0

    def create(self, spec: JobSpec) -> Job:
        job = Job(f"job-{len(self.records) + 1}", spec)
        self._put(0, job)
        return job

    def move(self, moves: Sequence[Move], cursor: Cursor | None) -> None:
        assert len(moves) <= MOVES_AT_ONCE, "the store serves nobody else for too long"
        self.scripts.append(len(moves))
        for move in moves:
            version, before = self.records[move.job.job_id]
            assert not before.state.final, f"{move.job.job_id} has ended"
            if version != move.version:
                raise Stale(f"{move.job.job_id} is at version {version}, not {move.version}")
            self.final_count += move.job.state.final
            if move.outcome is not None:
                self.outcomes[move.job.job_id] = move.outcome
            self._put(version + 1, replace(move.job, cancel_requested=before.cancel_requested))
            if move.user_service_s is not None:
                self.user_service_s[move.job.spec.user] = move.user_service_s
        if cursor is not None:
            before_it = self.cursor
            same = before_it is not None and before_it.incarnation == cursor.incarnation
            assert not same or before_it is None or cursor.revision >= before_it.revision, "the cursor goes back"
            self.cursor = cursor

    def request_cancel(self, job_id: str) -> None:
        version, job = self.records[job_id]
        self.records[job_id] = (version, replace(job, cancel_requested=True))

    def get(self, job_id: str) -> Job:
        return self.records[job_id][1]

    @property
    def active(self) -> list[Job]:
        return [job for _, job in self.records.values() if not job.state.final]

    def _put(self, version: int, job: Job) -> None:
        self.records[job.job_id] = (version, job)
        self.history.setdefault(job.job_id, []).append(job)
