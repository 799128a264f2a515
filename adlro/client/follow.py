"""Streams that resume after a failure: the next request, given the messages so far. No I/O; for both clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from adlro.client import calls
from adlro.client.endpoints import ServiceName
from adlro.errors import AdlroError, DeadlineExceeded, NotFound, OutOfRange, Unavailable
from adlro.records.decisions import Decision, DecisionView
from adlro.records.jobs import Job
from adlro.records.matrices import ClusterPlanes, ClusterState
from adlro.records.payloads import LogChunk, LogStream
from adlro.records.status import OrchestratorStatus
from adlro.records.watching import JobEvent, JobEventKind, JobFilter, JobView
from adlro.v1 import (
    decompose_service_pb2,
    decompose_service_pb2_grpc,
    job_service_pb2_grpc,
    orchestrator_service_pb2,
    orchestrator_service_pb2_grpc,
)
from adlro.wire import (
    PlanesAssembly,
    chunk_from_proto,
    cluster_state_from_proto,
    decision_from_proto,
    job_events_from_proto,
    status_from_proto,
)

T = TypeVar("T")

# WatchJobs accepts so many ids in a filter; with more of them the watch is unfiltered and the client selects.
MAX_FILTER_IDS = 10_000


class Follow(Generic[T]):
    """A server stream that is requested again after a failure.

    Args:
        request: makes the request message, at each try.
        read: makes a record of each message.
    """

    def __init__(
        self,
        service: ServiceName,
        stub: type[Any],
        method: str,
        request: Callable[[], Message],
        read: Callable[[Any], T],
    ) -> None:
        self.service = service
        self.stub = stub
        self.method = method
        self.request = request
        self.read = read

    def resumes_at_once(self, error: AdlroError) -> bool:
        """Whether the next try may follow at once; raises the error if another try can't succeed."""
        if not isinstance(error, Unavailable):
            raise error
        return False

    @property
    def complete(self) -> bool:
        """Whether a stream that the service ended has no more messages; otherwise it is requested again."""
        return False


class FollowLog(Follow[LogChunk]):
    """ReadJobLogs, resumed by offset; of the attempt whose output came first.

    Args:
        job_id: the job.
        stream: of its output.
        attempt: its attempt; 0: the newest one.
        offset: of the first byte; None: `tail_bytes` before the end.
        tail_bytes: without an offset; 0: from the first kept byte.
        follow: until the attempt has ended; otherwise until the present end.
        rank: of the program, where the attempt has several.
    """

    def __init__(
        self,
        job_id: str,
        stream: LogStream,
        *,
        attempt: int,
        offset: int | None,
        tail_bytes: int,
        follow: bool,
        rank: int = 0,
    ) -> None:
        super().__init__(
            ServiceName.INGEST, job_service_pb2_grpc.JobServiceStub, "ReadJobLogs", self._next_request, self._read
        )
        self._job_id = job_id
        self._stream = stream
        self._attempt = attempt
        self._offset = offset
        self._tail_bytes = tail_bytes
        self._follow = follow
        self._rank = rank
        # The end at the first answer: without `follow`, what is written later is not waited for.
        self._size: int | None = None
        self._ended = False

    def _next_request(self) -> Message:
        return calls.log_request(
            self._job_id,
            self._stream,
            self._attempt,
            self._offset,
            self._tail_bytes,
            follow=self._follow,
            rank=self._rank,
        )

    def _read(self, message: Any) -> LogChunk:
        chunk = chunk_from_proto(message.chunk)
        self._attempt = message.attempt
        self._offset = chunk.offset + len(chunk.data)
        self._ended = chunk.end
        if self._size is None:
            self._size = chunk.size
        return chunk

    @property
    def complete(self) -> bool:
        """The attempt's end was read or, without `follow`, all that was there at the first answer."""
        if self._ended:
            return True
        return not self._follow and (self._size is None or (self._offset or 0) >= self._size)


class FollowJobs(Follow[tuple[JobEvent, ...]]):
    """WatchJobs, a message at a time; resumed by revision, or by a new snapshot if that is no longer stored."""

    def __init__(
        self,
        job_filter: JobFilter | None,
        after_revision: int | None,
        view: JobView = JobView.FULL,
        min_interval_s: float = 0.0,
    ) -> None:
        super().__init__(
            ServiceName.INGEST,
            job_service_pb2_grpc.JobServiceStub,
            "WatchJobs",
            lambda: calls.watch_request(job_filter, self.after_revision, view, min_interval_s),
            self._read,
        )
        self.after_revision = after_revision

    def _read(self, message: Any) -> tuple[JobEvent, ...]:
        events = job_events_from_proto(message)
        # The revisions of snapshot messages are the jobs' own: resuming with one of them would skip other jobs.
        if message.kind != JobEventKind.SNAPSHOT:
            self.after_revision = message.revision
        return events

    def resumes_at_once(self, error: AdlroError) -> bool:
        """Requests a snapshot if the last revision received is no longer stored."""
        if isinstance(error, OutOfRange) and self.after_revision is not None:
            self.after_revision = None
            return True
        return super().resumes_at_once(error)


def follow_decisions(
    history: int, view: DecisionView, missed: Callable[[int], None] | None = None
) -> Follow[tuple[Decision, ...]]:
    """WatchDecisions, a message at a time; past decisions are requested only once, not again after a failure.

    `missed` is told how many decisions the server says that this reader does not get, before those of the message.
    """
    told = False

    def request() -> Message:
        return orchestrator_service_pb2.WatchDecisionsRequest(
            history=0 if told else history,
            view=int(view),  # type: ignore[arg-type]  # the numbers of DecisionView
        )

    def read(message: Any) -> tuple[Decision, ...]:
        nonlocal told
        told = True
        if message.missed_count and missed is not None:
            missed(message.missed_count)
        # A server of an older version knows no views, and sends all of one decision.
        alone = [message.decision] if message.HasField("decision") else []
        return tuple([decision_from_proto(each) for each in (*alone, *message.decisions)])

    return Follow(
        ServiceName.ORCHESTRATOR,
        orchestrator_service_pb2_grpc.OrchestratorServiceStub,
        "WatchDecisions",
        request,
        read,
    )


def follow_status(min_interval_s: float) -> Follow[OrchestratorStatus]:
    """WatchStatus."""
    return Follow(
        ServiceName.ORCHESTRATOR,
        orchestrator_service_pb2_grpc.OrchestratorServiceStub,
        "WatchStatus",
        lambda: orchestrator_service_pb2.WatchStatusRequest(min_interval_s=min_interval_s),
        lambda message: status_from_proto(message.status),
    )


def follow_cluster_state(cluster: str, min_interval_s: float) -> Follow[ClusterState]:
    """WatchClusterState."""
    return Follow(
        ServiceName.DECOMPOSE,
        decompose_service_pb2_grpc.DecomposeServiceStub,
        "WatchClusterState",
        lambda: decompose_service_pb2.WatchClusterStateRequest(cluster=cluster, min_interval_s=min_interval_s),
        lambda message: cluster_state_from_proto(message.state),
    )


def follow_cluster_planes(cluster: str, min_interval_s: float) -> Follow[ClusterPlanes]:
    """WatchClusterState with the view PLANES; each stream begins with whole planes."""
    assembly = PlanesAssembly()
    return Follow(
        ServiceName.DECOMPOSE,
        decompose_service_pb2_grpc.DecomposeServiceStub,
        "WatchClusterState",
        lambda: decompose_service_pb2.WatchClusterStateRequest(
            cluster=cluster,
            min_interval_s=min_interval_s,
            view=decompose_service_pb2.CLUSTER_STATE_VIEW_PLANES,
        ),
        lambda message: calls.read_planes(assembly, message),
    )


class FinalJobs:
    """Collects jobs from a watch until all of them are final."""

    def __init__(self, job_ids: Iterable[str]) -> None:
        self.job_ids = tuple(dict.fromkeys(job_ids))
        self._open = set(self.job_ids)
        self._seen: set[str] = set()
        self._final: dict[str, Job] = {}

    @property
    def filter(self) -> JobFilter | None:
        """The filter of the watch."""
        return JobFilter(job_ids=self.job_ids) if len(self.job_ids) <= MAX_FILTER_IDS else None

    @property
    def done(self) -> bool:
        """Every job is final."""
        return not self._open

    def take(self, event: JobEvent) -> bool:
        """Notes an event; True when every job is final. Raises NotFound for a job that does not exist."""
        if event.job is None:
            unknown = [each for each in self.job_ids if each not in self._seen]
            if unknown:
                more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
                raise NotFound(f"there is no job {unknown[0]}{more}")
        else:
            self._seen.add(event.job.job_id)
            if event.job.state.final and event.job.job_id in self._open:
                self._open.discard(event.job.job_id)
                self._final[event.job.job_id] = event.job
        return self.done

    def result(self) -> tuple[Job, ...]:
        """The jobs in the requested order, each once."""
        return tuple(self._final[each] for each in self.job_ids)

    def late(self, timeout_s: float) -> DeadlineExceeded:
        """The error of a wait beyond its timeout; names an unfinished job."""
        first = next(each for each in self.job_ids if each in self._open)
        return DeadlineExceeded(
            f"{len(self._open)} of {len(self.job_ids)} jobs have not ended within {timeout_s:g} s, {first} among them"
        )
