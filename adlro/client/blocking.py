"""The blocking client. Uses gRPC; arguments and results are plain records. Safe to share between threads.

Generated from adlro/client/aio.py by `make client`. Don't edit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

import grpc

from adlro.client import calls
from adlro.client.channels import Channels
from adlro.client.endpoints import Endpoints, ServiceName
from adlro.client.follow import (
    FinalJobs,
    Follow,
    FollowJobs,
    FollowLog,
    follow_cluster_planes,
    follow_cluster_state,
    follow_decisions,
    follow_status,
)
from adlro.client.found import found_credentials
from adlro.client.functions.futures import SESSION_LABEL, Future, Futures
from adlro.client.functions.shipping import Options, joined, ship, shipped_call_of, spec_of
from adlro.client.programs import (
    Word,
    check_kind_of_work,
    completed,
    job_id_of,
    log_stream_of,
    program_spec,
    requeued_spec,
    with_program,
)
from adlro.client.tables import GpuTable, JobTable, gpu_table, moment_unix_s, states_of
from adlro.client.transport import (
    DEFAULT_PATIENCE_S,
    DEFAULT_TIMEOUT_S,
    STANDING_BY,
    STATUS_TRIES,
    Tries,
    stands_by,
    stream_ended,
    to_error,
)
from adlro.errors import AdlroError, Conflict, DeadlineExceeded, PermissionDenied, Unavailable
from adlro.kit.credentials import Credentials
from adlro.kit.status import readable
from adlro.records.capacity import ClusterCapacity
from adlro.records.cluster import Cluster
from adlro.records.decisions import Decision, DecisionFilter, DecisionView
from adlro.records.events import Clock, ClockMode, ClusterDescription
from adlro.records.fair_share import FairShare
from adlro.records.history import AttemptHistory
from adlro.records.identity import Identity
from adlro.records.job_requests import JobRequestKind, JobUpdate
from adlro.records.jobs import Job, JobSpec, JobState, JobType
from adlro.records.matrices import ClusterPlanes, ClusterState, Telemetry
from adlro.records.payloads import LogChunk, LogStream
from adlro.records.predictions import Recollection, RuntimePrediction
from adlro.records.quotas import Quota
from adlro.records.status import OfferedPolicy, OrchestratorStatus
from adlro.records.submitting import RequestResult, SubmittedArray, SubmittedJobs
from adlro.records.waiting import WaitingExplanation
from adlro.records.watching import JobEvent, JobFilter, JobOrder, JobPage, JobView

# How far the clocks of two machines that take jobs may be apart, seconds.
_CLOCK_STEP_S = 60.0

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """A connection to a running suite.

    Every call has a deadline, and is repeated while a service does not answer (repetition is always safe:
    submissions carry request ids). Errors are those of `adlro.errors`.

    Args:
        server: `host:port` of ingest; None: `ADLRO_SERVER`, or 127.0.0.1:7701. The other services are at the next
            ports, unless `ADLRO_DECOMPOSE_SERVER`, `ADLRO_ORCHESTRATOR_SERVER` or `ADLRO_CLUSTER_SERVER` are set.
        endpoints: all addresses, instead of `server`.
        timeout_s: deadline of one try of a call, seconds.
        patience_s: how long to repeat a call while a service does not answer, seconds. 0: one try.
        credentials: certificates and token; None: from the files that `ADLRO_TLS_CA_FILE`,
            `ADLRO_TLS_CERT_FILE`, `ADLRO_TLS_KEY_FILE` and `ADLRO_TOKEN_FILE` name; without a token there, the
            token of this user's running `adlro up --cluster local`, if the addresses are that suite's.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        endpoints: Endpoints | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        patience_s: float = DEFAULT_PATIENCE_S,
        credentials: Credentials | None = None,
    ) -> None:
        self.endpoints = endpoints or Endpoints.resolve(server)
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        shown = found_credentials(self.endpoints) if credentials is None else credentials
        self._user = shown.user
        self._channels = Channels(shown)
        self._futures = Futures(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends open streams and closes the connections."""
        self._futures.close()
        self._channels.close()

    # Jobs (ingest)

    def submit(
        self,
        spec: JobSpec | None = None,
        request_id: str | None = None,
        *,
        command: Sequence[Word] | None = None,
        **options: Any,
    ) -> Job:
        """Submits a job. After the return the job is recorded; the same request id gives the same job.

        Args:
            spec: the job; None: made of `command` and `options`. With a command it says what that program needs.
            request_id: an id by which a repeated submission returns the same job.
            command: a program and its arguments, such as `["python", "train.py"]`.
            options: arguments of `adlro.client.program_spec`, and fields of JobSpec; also by the names of job files:
                `gpus=2, memory="16GiB", time_limit="1h"`.

        Raises:
            InvalidInput: a field has a value that no suite takes; names it. Nothing was sent.
        """
        if spec is None:
            options.setdefault("user", self._user)
            spec = program_spec(command or (), **options)
        elif command is not None or options:
            spec = with_program(spec, command or (), options)
        check_kind_of_work(spec)
        return self._run(calls.submit(completed(spec, self._user), request_id))

    def submit_many(
        self,
        specs: Iterable[JobSpec],
        request_id_prefix: str | None = None,
        *,
        on_answer: Callable[[SubmittedJobs], None] = lambda _: None,
    ) -> SubmittedJobs:
        """Submits jobs independently; `.rejected` has the invalid ones. Job i gets the request id `<prefix>-<i>`.

        Args:
            specs: the jobs.
            request_id_prefix: a repeated call with it gives the same jobs.
            on_answer: called for each chunk of jobs once it is recorded; a later failure does not undo the chunk.
        """
        answers = []
        complete = (completed(spec, self._user) for spec in specs)
        for chunk in calls.submit_chunks(complete, request_id_prefix):
            answers.append(self._run(chunk))
            on_answer(answers[-1])
        return calls.join(answers)

    def get(self, job_id: str) -> Job:
        """Returns one job. Raises NotFound."""
        return self._run(calls.get(job_id))

    def list(
        self,
        job_filter: JobFilter | None = None,
        *,
        page_size: int = 500,
        order: JobOrder = JobOrder.SUBMITTED,
        view: JobView = JobView.FULL,
    ) -> Iterator[Job]:
        """Yields jobs in an order, that of submission by default; reads a page at a time.

        With another order, a job that changes meanwhile may come twice. With BASIC, what the view does not have of a
        job is as if it were not set.
        """
        token = ""
        while True:
            page = self.list_page(job_filter, page_size=page_size, page_token=token, order=order, view=view)
            token = page.next_page_token
            yield from page.jobs
            if not token:
                return

    def list_page(
        self,
        job_filter: JobFilter | None = None,
        *,
        page_size: int = 0,
        page_token: str = "",
        order: JobOrder = JobOrder.SUBMITTED,
        view: JobView = JobView.FULL,
    ) -> JobPage:
        """Returns a page of a list: the first one, or the one that a page's token stands for."""
        return self._run(calls.list_page(job_filter, page_size, page_token, order, view))

    def jobs(
        self,
        *,
        since: datetime | timedelta | str | float | None = None,
        until: datetime | timedelta | str | float | None = None,
        state: JobState | str | Iterable[JobState | str] = (),
        user: str = "",
        job_type: JobType | str | None = None,
        application: str = "",
        labels: Mapping[str, str] | None = None,
        name: str = "",
        limit: int | None = None,
    ) -> JobTable:
        """Returns jobs, the last submission first, as a list that prints as a table; `.to_pandas()` makes a DataFrame.

        `client.jobs(since="7d", state="failed", user="ada")`. Times are of wall time: a datetime (without a zone: local
        time), an ISO text, or how long ago: `"2h"`, a number of seconds, a timedelta.

        Args:
            since, until: submitted then or later, and before then.
            state: one or several of pending, running, succeeded, failed, cancelled; `active`: the first two, `ended`:
                the others.
            user, job_type, application, labels: of the jobs.
            name: in their names, in upper or lower case.
            limit: at most so many.

        Raises:
            InvalidInput: a time, state or type is none.
        """
        asked_unix_s = time.time()
        since_s = None if since is None else moment_unix_s(since, "since", asked_unix_s)
        until_s = None if until is None else moment_unix_s(until, "until", asked_unix_s)
        wanted = JobFilter(
            states=states_of(state, "state"),
            job_types=() if job_type is None else (JobType.of(job_type, "job_type"),),
            user=user,
            application=application,
            labels=dict(labels or {}),
            name_contains=name,
        )
        found: list[Job] = []
        page_size = min(500, max(limit or 500, 1))
        for job in self.list(wanted, page_size=page_size, order=JobOrder.NEWEST_FIRST):
            # Jobs are created in the order of their submission, but for clocks that are set.
            if since_s is not None and job.created_unix_s < since_s - _CLOCK_STEP_S:
                break
            if (since_s is None or job.created_unix_s >= since_s) and (until_s is None or job.created_unix_s < until_s):
                found.append(job)
            if limit is not None and len(found) >= limit:
                break
        return JobTable(found[:limit])

    def gpus(self) -> GpuTable:
        """Returns the GPUs of the cluster and what they do, as a list that prints as a table."""
        described = self.describe_cluster()
        status = self.status()
        return gpu_table(described, status)

    def query_attempts(
        self,
        from_s: float,
        to_s: float | None = None,
        *,
        gpu_ids: Sequence[str] = (),
        max_bars: int = 0,
        cluster: str = "",
        bucket_count: int = 0,
    ) -> AttemptHistory:
        """Returns what ran where in a range of cluster time: bars, or the occupancy of more than `max_bars` of them.

        Args:
            from_s, to_s: the range; without an end, until now.
            gpu_ids: only on these; empty: on all.
            max_bars: 0: 5,000.
            cluster: empty: the default one.
            bucket_count: of an occupancy; 0: 600.
        """
        return self._run(calls.query_attempts(from_s, to_s, gpu_ids, max_bars, cluster, bucket_count))

    def whoami(self) -> Identity:
        """Returns the user and the roles of this client's token."""
        return self._run(calls.whoami())

    def cluster_capacity(self) -> ClusterCapacity:
        """Returns what is free now, by GPU model."""
        return self._run(calls.cluster_capacity())

    def submit_array(
        self,
        spec: JobSpec,
        indexes: Sequence[int],
        *,
        max_running: int = 0,
        request_id: str | None = None,
    ) -> SubmittedArray:
        """Submits a job as many times as there are indexes: all of them are recorded, or none.

        Args:
            spec: what the jobs have in common; a program finds its index in ADLRO_ARRAY_INDEX.
            indexes: in rising order, such as `range(100)`.
            max_running: the most of the jobs that may run at once; 0: any number.
            request_id: a repeated call with it gives the same array.
        """
        check_kind_of_work(spec)
        return self._run(calls.submit_array(completed(spec, self._user), indexes, max_running, request_id))

    def cancel_many(self, job_ids: Iterable[str]) -> tuple[RequestResult, ...]:
        """Requests the cancellation of jobs, each independently."""
        return self._about_jobs(None, job_ids)

    def hold(self, job_ids: Iterable[str]) -> tuple[RequestResult, ...]:
        """Requests that waiting jobs start only after their release, each independently.

        A hold is in force once the job's `hold` is set; a job that was launched before runs on.
        """
        return self._about_jobs(JobRequestKind.HOLD, job_ids)

    def release(self, job_ids: Iterable[str]) -> tuple[RequestResult, ...]:
        """Requests the release of held jobs, each independently."""
        return self._about_jobs(JobRequestKind.RELEASE, job_ids)

    def update(self, job_ids: Iterable[str], update: JobUpdate) -> tuple[RequestResult, ...]:
        """Requests a change of waiting jobs, each independently.

        It is made once `applied_request` of the job has the number of its last request; a job that was launched before
        stays as it is.
        """
        return self._about_jobs(JobRequestKind.UPDATE, job_ids, update)

    def _about_jobs(
        self, kind: JobRequestKind | None, job_ids: Iterable[str], update: JobUpdate | None = None
    ) -> tuple[RequestResult, ...]:
        results: tuple[RequestResult, ...] = ()
        for part in calls.about_jobs(kind, list(dict.fromkeys(job_ids)), update):
            results += self._run(part)
        return results

    def cancel(self, job_id: str) -> Job:
        """Cancels a job. Raises Conflict if it has ended by itself."""
        try:
            return self._run(calls.cancel(job_id))
        except Conflict:
            # Cancelled already, perhaps by a try of this very call whose answer was lost.
            job = self.get(job_id)
            if job.state is JobState.CANCELLED:
                return job
            raise

    def requeue(self, job: Job | str, request_id: str | None = None) -> Job:
        """Submits an ended job again: a new job of the same spec, with the label `requeued-from`.

        Raises:
            Conflict: the job has not ended.
        """
        old = self.get(job_id_of(job))
        return self._run(calls.submit(requeued_spec(old), request_id))

    def logs(
        self,
        job: Job | str,
        stream: LogStream | str = LogStream.STDOUT,
        *,
        attempt: int = 0,
        offset: int | None = None,
        tail_bytes: int = 0,
        follow: bool = False,
        rank: int = 0,
        patience_s: float | None = None,
    ) -> Iterator[LogChunk]:
        """Yields the output of a job's program in pieces, also after its end; resumes after outages.

        A piece that begins above the end of the one before it: the bytes between were deleted, as the log limit of the
        job demands.

        Args:
            job: the job, or its id.
            stream: of its output: LogStream, or `stdout` or `stderr`.
            attempt: its attempt; 0: the newest one.
            offset: of the first byte; None: `tail_bytes` before the present end.
            tail_bytes: without an offset; 0: from the first kept byte.
            follow: until the attempt has ended; otherwise until the present end.
            rank: of the program, where a job of several GPUs has several: one on each node, or one for each GPU.
            patience_s: how long a service may be away; None: the client's patience.

        Raises:
            Conflict: the job's cluster has no output of programs.
            InvalidInput: there is no such stream.
            NotFound: there is no such job or rank, or its output was deleted.
        """
        read = log_stream_of(stream)
        log = FollowLog(
            job_id_of(job), read, attempt=attempt, offset=offset, tail_bytes=tail_bytes, follow=follow, rank=rank
        )
        yield from self._follow(log, None, patience_s)

    def watch(
        self,
        after_revision: int | None = None,
        job_filter: JobFilter | None = None,
        *,
        timeout_s: float | None = None,
        patience_s: float | None = None,
        view: JobView = JobView.FULL,
        min_interval_s: float = 0.0,
    ) -> Iterator[JobEvent]:
        """Yields the jobs in their present state, then every change in order, endlessly; resumes after outages.

        If missed changes are no longer stored, a new snapshot follows in the middle: use
        every SNAPSHOT event as the job's present state.

        Args:
            after_revision: start after this revision, without a snapshot.
            job_filter: only these jobs.
            timeout_s: raises DeadlineExceeded after this time.
            patience_s: how long ingest may be away; None: the client's patience.
            view: with BASIC, what the view does not have of a job is as if it were not set.
            min_interval_s: 0: each change at once. Otherwise changes come together, so often at most, in seconds (60
                at most), and of each job only its last change that the filter matches. Who is far behind gets them
                without a pause.
        """
        follow = FollowJobs(job_filter, after_revision, view, min_interval_s)
        for events in self._follow(follow, timeout_s, patience_s):
            yield from events

    def wait(self, job_ids: Iterable[str], timeout_s: float | None = None) -> tuple[Job, ...]:
        """Waits until every job has ended; returns them in the requested order, each once. Raises DeadlineExceeded."""
        final = FinalJobs(job_ids)
        if final.done:
            return ()
        try:
            for event in self.watch(job_filter=final.filter, timeout_s=timeout_s):
                if final.take(event):
                    break
        except DeadlineExceeded:
            raise final.late(timeout_s or 0.0) from None
        return final.result()

    # Python functions as jobs

    def submit_function(
        self,
        function: Callable[..., R],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        python: str | os.PathLike[str] | None = None,
        keep: bool = False,
        options: Options | None = None,
        **more_options: Any,
    ) -> Future[R]:
        """Submits a job that calls a Python function; its result comes back, or its exception.

        `future = client.submit_function(train, 3, gpus=1, time_limit="1h")`, then `future.result()`. The call and the
        result travel as files; the program's output is in `client.logs(future.job_id)`. An attempt that is lost runs
        again: the function may be called more than once.

        Args:
            function: anything that cloudpickle can write, such as a function, a lambda or a closure.
            args, kwargs: its arguments.
            folder: where the files are: a folder that this process and the nodes see under the same path, and as whose
                owner the job runs; None: `~/.local/state/adlro-functions`, right for a cluster of this machine.
            python: the node's interpreter, of the same minor version and with cloudpickle; None: this one.
            keep: leave the files when the result was read; those of a failed job stay anyway.
            options, more_options: what the job asks for, as for `submit`: `gpus=2, memory="16GiB", env={...}`;
                `options` may also be a JobSpec without a payload.

        Raises:
            InvalidInput: the function can't be pickled, or an option is wrong.
        """
        given = joined(options, more_options)
        call = ship(function, args, kwargs or {}, folder=folder, keep=keep)
        try:
            spec = completed(spec_of(call, function, given, python), self._user)
            spec = replace(spec, labels={**spec.labels, SESSION_LABEL: self._futures.session})
            job = self._run(calls.submit(spec, call.request_id))
        except (Unavailable, DeadlineExceeded):
            raise  # the job may be recorded, and then needs its files
        except BaseException:
            call.remove()
            raise
        return self._futures.add(job, call)

    def future_of(self, job: Job | str) -> Future[Any]:
        """The future of a function's job, also of another process's.

        Raises:
            NotFound: there is no such job, or it runs no function.
        """
        found = self.get(job_id_of(job))
        return self._futures.add(found, shipped_call_of(found))

    def function_result(self, job: Job | str, timeout_s: float | None = None) -> Any:
        """Waits for a function's job, also of another process's, and returns its result. Raises as a future does."""
        future = self.future_of(job)
        return future.result(timeout_s)

    # Cluster and telemetry (ingest, decompose)

    def cluster(self, name: str = "") -> Cluster:
        """Returns the nodes and GPUs of a cluster; without a name, of the default cluster."""
        return self._run(calls.cluster(name))

    def telemetry(
        self,
        cluster: str = "",
        *,
        window_s: float = 0.0,
        max_blocks: int = 0,
        gpu_ids: Sequence[str] = (),
        step_s: float = 0.0,
    ) -> Telemetry:
        """Returns the newest sample of every GPU, and the blocks of the last `window_s` seconds of wall time.

        With `gpu_ids` only of these GPUs; with `step_s` the window is one block, with the means of each step.
        """
        return self._run(calls.telemetry(cluster, window_s, max_blocks, gpu_ids, step_s))

    def cluster_state(self, cluster: str = "") -> ClusterState:
        """Returns the GPU matrix: the newest value of each metric of each GPU."""
        return self._run(calls.cluster_state(cluster))

    def watch_cluster_state(self, cluster: str = "", min_interval_s: float = 0.0) -> Iterator[ClusterState]:
        """Yields the GPU matrix, now and after each change."""
        yield from self._follow(follow_cluster_state(cluster, min_interval_s))

    def cluster_planes(self, cluster: str = "") -> ClusterPlanes:
        """Returns the GPU matrix in short: each metric of each GPU in steps of 1/254 of its range."""
        return self._run(calls.cluster_planes(cluster))

    def watch_cluster_planes(self, cluster: str = "", min_interval_s: float = 0.0) -> Iterator[ClusterPlanes]:
        """Yields the GPU matrix in short, now and after each change: 5 kB a change for 1,024 GPUs."""
        yield from self._follow(follow_cluster_planes(cluster, min_interval_s))

    def predict(
        self,
        specs: Sequence[JobSpec],
        gpu_models: Sequence[str],
        *,
        max_evidence: int = 0,
        job_ids: Sequence[str] = (),
    ) -> Sequence[tuple[RuntimePrediction, ...]]:
        """Returns each job's predicted runtime on each GPU model, with past jobs as evidence.

        With `job_ids`, one for each job, a finished job is never evidence for itself.
        """
        return self._run(calls.predict(specs, gpu_models, max_evidence, job_ids))

    def recall(self, spec: JobSpec, k: int = 0) -> tuple[Recollection, ...]:
        """Returns the `k` finished jobs that are most similar to this one; 8 if `k` is 0."""
        return self._run(calls.recall(spec, k))

    # Decisions (orchestrator)

    def status(self) -> OrchestratorStatus:
        """Returns the state of the acting orchestrator: its policy, waiting and running jobs."""
        for _ in range(STATUS_TRIES - 1):
            channel = self._channel(ServiceName.ORCHESTRATOR)
            found = self._run(calls.status())
            if not stands_by(found):
                return found
            self._leave(ServiceName.ORCHESTRATOR, channel)
        return self._run(calls.status())

    def watch_status(self, min_interval_s: float = 0.0) -> Iterator[OrchestratorStatus]:
        """Yields the state of the acting orchestrator, now and when it has changed.

        Without a change it comes again after 10 seconds: a stream that is silent for longer is broken.

        Args:
            min_interval_s: smallest time between two, at least 0.1; 0: 0.5.
        """
        yield from self._follow(follow_status(min_interval_s))

    def policies(self) -> tuple[OfferedPolicy, ...]:
        """Returns the policies of the orchestrator."""
        return self._run(calls.policies())

    def set_policy(self, name: str) -> str:
        """Sets the acting policy, from the next decision on; returns the previous one."""
        return self._run(calls.set_policy(name))

    def set_shadow_policy(self, name: str) -> str:
        """Sets the shadow policy, which places nothing; empty: none. Returns the previous one."""
        return self._run(calls.set_shadow_policy(name))

    def explain(self, job_id: str | None = None, *, decision_id: str | None = None) -> Decision:
        """Returns the decision that placed a job, or the reason of its wait; or one decision by its id."""
        return self._run(calls.explain(job_id, decision_id))

    def explain_waiting(self, job_id: str) -> WaitingExplanation:
        """Returns why a job waits, what its user could change, and when it is expected to start."""
        return self._run(calls.explain_waiting(job_id))

    def watch_decisions(
        self,
        history: int = 0,
        *,
        view: DecisionView = DecisionView.FULL,
        missed: Callable[[int], None] | None = None,
    ) -> Iterator[Decision]:
        """Yields new decisions, after `history` past ones. Decisions during an outage of the service are missed.

        Summaries come several at a time, at most twice a second; they cost the orchestrator little.

        Args:
            history: number of past decisions.
            view: SUMMARY: without candidates.
            missed: called with the number of decisions that don't come because they were read too slowly, before the
                next decision is yielded.
        """
        for decisions in self._follow(follow_decisions(history, view, missed)):
            yield from decisions

    def decisions(
        self,
        decision_filter: DecisionFilter | None = None,
        *,
        view: DecisionView = DecisionView.SUMMARY,
        page_size: int = 0,
    ) -> Iterator[Decision]:
        """Yields past decisions, the newest first; gets them in pages.

        Also those of earlier processes and other instances, as far as they are kept. A decision is listed about a
        second after it was made.

        Args:
            decision_filter: only these decisions.
            view: FULL: with the best pairs, candidates and groups of masked GPUs, as far as these are kept.
            page_size: decisions per call; 0: 100.
        """
        token = ""
        while True:
            page, token = self._run(calls.decision_page(decision_filter, view, page_size, token))
            yield from page
            if not token:
                return

    def set_quota(self, user: str, gpu_count: int | None) -> int | None:
        """Limits the GPUs that the jobs of a user may hold at once; returns his quota before, None: he had none.

        Args:
            user: his name; "*": each user who has no quota of his own.
            gpu_count: None: he has no quota of his own any more.
        """
        return self._run(calls.set_quota(user, gpu_count))

    def quotas(self) -> tuple[Quota, ...]:
        """Returns the quotas, with what their users' jobs hold."""
        return self._run(calls.quotas())

    def set_fair_share(
        self, account: str, *, shares: float | None = None, group: str | None = None, remove: bool = False
    ) -> FairShare:
        """Sets the shares of a user or a group, or the group of a user; returns what is set now.

        Args:
            account: a user, or a group with `@` before its name.
            shares: by which the account's GPU time is divided; None: as before.
            group: of a user; empty: he is in none; None: as before.
            remove: forgets what was set, instead.
        """
        return self._run(calls.set_fair_share(account, shares, group, remove=remove))

    def fair_shares(self) -> tuple[FairShare, ...]:
        """Returns the shares of users and groups, with the GPU time that counts for each."""
        return self._run(calls.fair_shares())

    def drain(self, node_id: str, reason: str = "") -> tuple[str, ...]:
        """Starts no more jobs on a node; returns the jobs that still run there."""
        return self._run(calls.drain(node_id, reason))

    def undrain(self, node_id: str) -> None:
        """Opens a drained node to new jobs."""
        self._run(calls.undrain(node_id))

    # The cluster itself

    def describe_cluster(self) -> ClusterDescription:
        """Returns the cluster, its running attempts and its clock."""
        return self._run(calls.describe_cluster())

    def clock(self) -> Clock:
        """Returns the cluster's clock."""
        try:
            return (self.describe_cluster()).clock
        except PermissionDenied:  # a submitter asks the orchestrator
            clock = (self.cluster_capacity()).clock
            if clock is None:
                raise
            return clock

    def set_clock(
        self, mode: ClockMode | None = None, *, scale: float | None = None, paused: bool | None = None
    ) -> Clock:
        """Sets a simulated cluster's clock; None leaves a value unchanged."""
        return self._run(calls.set_clock(mode, scale, paused))

    # Below: how calls are made

    def _run(self, call: calls.Call[T]) -> T:
        attempts = Tries(self._timeout_s, self._patience_s, repeatable=call.repeatable)
        while True:
            # Looked up for each try: another call may have replaced the channel.
            channel = self._channel(call.service)
            method = getattr(call.stub(channel), call.method)
            try:
                answer = readable(self._channels.answer(method(call.request(), timeout=attempts.timeout_s)))
            except (grpc.RpcError, Unavailable) as error:
                failure = self._failed(error, call.service, channel)
            else:
                return call.read(answer)
            # Out of the except clause: gRPC's traceback would stand before the error that is raised here.
            time.sleep(attempts.delay_after(failure))

    def _follow(
        self, follow: Follow[T], timeout_s: float | None = None, patience_s: float | None = None
    ) -> Iterator[T]:
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        attempts = Tries(self._timeout_s, self._patience_s if patience_s is None else patience_s, stream=True)
        while True:
            channel = self._channel(follow.service)
            method = getattr(follow.stub(channel), follow.method)
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            stream = None
            failure: AdlroError
            try:
                stream = method(follow.request(), timeout=left_s)
                for message in self._channels.messages(stream):
                    attempts.reset()
                    yield follow.read(readable(message))
                if follow.complete:
                    return
                failure = stream_ended(follow.service, self.endpoints.address(follow.service))
            except (grpc.RpcError, Unavailable) as error:
                failure = self._failed(error, follow.service, channel)
            finally:
                if stream is not None:
                    stream.cancel()
            if not follow.resumes_at_once(failure):
                time.sleep(attempts.delay_after(failure))

    def _channel(self, service: ServiceName) -> grpc.Channel:
        return self._channels.to(self.endpoints.address(service))

    def _failed(self, error: grpc.RpcError | Unavailable, service: ServiceName, channel: grpc.Channel) -> AdlroError:
        """The error of a try; leaves the channel to a standby, so that the next try may reach another replica."""
        failure = error if isinstance(error, Unavailable) else self._error(error, service)
        if failure.reason == STANDING_BY:
            self._leave(service, channel)
        return failure

    def _leave(self, service: ServiceName, channel: grpc.Channel) -> None:
        self._channels.leave(self.endpoints.address(service), channel)

    def _error(self, error: grpc.RpcError, service: ServiceName) -> AdlroError:
        return to_error(error, service, self.endpoints.address(service))
