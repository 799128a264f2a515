"""The store of job records in memory, as far as the acting orchestrator needs it: strict. Nothing is awaited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adlro.errors import Stale
from adlro.records.attained import AttainedService
from adlro.records.job_requests import JobHold, JobRequest
from adlro.records.jobs import ArrayTask, Job, JobSpec, JobState
from adlro.store import MOVES_AT_ONCE, Cursor, JobEnd, Move, Outcome


class StoreModel:
    """Records, each change in order, and how far the cluster's log is applied."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, Job]] = {}
        self.history: dict[str, list[Job]] = {}
        self.cursor: Cursor | None = None
        self.user_service: dict[str, AttainedService] = {}
        self.scripts: list[int] = []  # moves of each
        self.outcomes: dict[str, Outcome] = {}
        self.final_count = 0
        self.arrays: dict[str, JobEnd] = {}

    def create(self, spec: JobSpec) -> Job:
        job = Job(f"job-{len(self.records) + 1}", spec, hold=JobHold() if spec.held else None)
        self._put(0, job)
        return job

    def create_array(self, spec: JobSpec, count: int, max_running_count: int = 0) -> list[Job]:
        array_id = f"array-{len(self.records) + 1}"
        self.arrays[array_id] = JobEnd(count, 0, 0)
        tasks = [ArrayTask(array_id, index, count, max_running_count) for index in range(count)]
        return [self.create(replace(spec, array=task)) for task in tasks]

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
            assert not move.job.requests, "the store itself keeps what is not applied"
            assert move.job.applied_request >= before.applied_request, "a request is applied twice"
            left = tuple(each for each in before.requests if each.number > move.job.applied_request)
            final = move.job.state.final
            if final and move.job.spec.array is not None:
                end, failed = self.arrays[move.job.spec.array.array_id], move.job.state is not JobState.SUCCEEDED
                now = JobEnd(end.count, end.ended_count + 1, end.failed_count + failed)
                self.arrays[move.job.spec.array.array_id] = now
            asked = {"cancel_requested": before.cancel_requested, "requests": () if final else left}
            self._put(version + 1, replace(move.job, **asked))  # type: ignore[arg-type]
            if move.user_service is not None:
                self.user_service[move.job.spec.user] = move.user_service
        if cursor is not None:
            before_it = self.cursor
            same = before_it is not None and before_it.incarnation == cursor.incarnation
            assert not same or before_it is None or cursor.revision >= before_it.revision, "the cursor goes back"
            self.cursor = cursor

    def request_cancel(self, job_id: str) -> None:
        version, job = self.records[job_id]
        self.records[job_id] = (version, replace(job, cancel_requested=True))

    def request(self, job_id: str, request: JobRequest) -> JobRequest | None:
        """Records a request; None: the job is past it."""
        version, job = self.records[job_id]
        if job.state is not JobState.PENDING:
            return None
        number = 1 + (job.requests[-1].number if job.requests else job.applied_request)
        request = replace(request, number=number)
        self.records[job_id] = (version, replace(job, requests=(*job.requests, request)))
        return request

    def ends(self, ids: Sequence[str]) -> dict[str, JobEnd]:
        out = {each: self.arrays[each] for each in ids if each in self.arrays}
        for each in ids:
            if each in self.records:
                state = self.get(each).state
                out[each] = JobEnd(1, int(state.final), int(state.final and state is not JobState.SUCCEEDED))
        return out

    def get(self, job_id: str) -> Job:
        return self.records[job_id][1]

    @property
    def active(self) -> list[Job]:
        return [job for _, job in self.records.values() if not job.state.final]

    def _put(self, version: int, job: Job) -> None:
        self.records[job.job_id] = (version, job)
        self.history.setdefault(job.job_id, []).append(job)
