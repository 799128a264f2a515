"""The initial state of a session, read page by page, so that the event loop still serves callers and health checks.

However long the queue, decompose predicts only its first jobs, while the others are read. The others have their
declared runtimes until `RuntimeRefresh` asks, while the session already acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from adlro.records.events import ClusterDescription
from adlro.records.job_requests import JobRequest
from adlro.records.jobs import Job, JobSpec
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.runtimes.pairs import ExpectedPairs
from adlro.services.orchestrator.runtimes.predictions import Expected, ExpectedRuntimes, declared
from adlro.services.orchestrator.session.reconcile import Reconciled, begin, is_launched, newest_time_s, settle, take
from adlro.store import Cursor, JobStore, sequence_of

# Waiting jobs, from the head of the queue, that decompose predicts before the session acts.
PREDICTED_FIRST = 5000
RECONCILED_AT_ONCE = 1000


@dataclass(slots=True)
class Loaded:
    """The initial state of a session.

    Attributes:
        found: the ledger, and the actions that reconcile it with the cluster.
        cursor: position of the last applied cluster event; None before the first.
        job_revision: the session follows changes of jobs after it.
        newest: number of the newest job read.
        cancelling: ids of jobs whose cancellation was requested.
        requests: by job, what was asked for and is not applied yet.
        unreadable_count: number of records that can't be read, of jobs that are not final.
        generation: generation of the oldest predictions.
    """

    found: Reconciled
    cursor: Cursor | None
    job_revision: int
    newest: int
    cancelling: list[str]
    requests: dict[str, tuple[JobRequest, ...]]
    unreadable_count: int
    generation: int


async def load(
    store: JobStore,
    predictions: ExpectedRuntimes,
    description: ClusterDescription,
    drained: Iterable[str],
    max_attempts: int,
    min_run_s: float | None = None,
    pairs: ExpectedPairs | None = None,
    user_rules: UserRules | None = None,
) -> Loaded:
    """Reads every record that is not final, and reconciles it with the cluster.

    Args:
        store: job records.
        predictions: expected durations.
        description: the cluster's state.
        drained: ids of the drained nodes.
        max_attempts: lost attempts after which a job fails.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.
        pairs: what jobs that share a GPU are expected to keep of their speeds; None: none is to share one.
        user_rules: quotas, shares and groups of users.
    """
    with _without_collections():
        return await _load(store, predictions, description, drained, max_attempts, min_run_s, pairs, user_rules)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disables Python's garbage collector, which would search all loaded objects for cycles that they don't have.

    The searches take a quarter of the loading time, and stop all threads, also the one that renews the lease.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _load(
    store: JobStore,
    predictions: ExpectedRuntimes,
    description: ClusterDescription,
    drained: Iterable[str],
    max_attempts: int,
    min_run_s: float | None = None,
    pairs: ExpectedPairs | None = None,
    user_rules: UserRules | None = None,
) -> Loaded:
    # Read before the records: the session follows changes that come while it reads them.
    job_revision = await store.revision()
    cursor, user_service = await store.cursor(), await store.user_service()
    models = description.cluster.gpu_models
    questions: asyncio.Queue[list[JobSpec]] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(_ask(predictions, models, questions), name="ask for first")
        read = await _read(store, models, questions)
        questions.put_nowait([])
    answers = iter(asking.result())
    known_s = max((newest_time_s(job) for _, job, _ in read.records), default=0.0)
    table = None
    if pairs is not None:
        await pairs.meet((job.spec for _, job, _ in read.records), models)
        table = pairs.table
    found = begin(description, cursor, known_s, drained, max_attempts, user_service, min_run_s, table, user_rules)
    generation = predictions.generation
    for number, (version, job, said) in enumerate(read.records, start=1):
        if not number % RECONCILED_AT_ONCE:
            await asyncio.sleep(0)
        expected = next(answers) if said is None else said
        generation = min(generation, expected.generation)
        take(found, version, job, expected)
    settle(found)
    return Loaded(
        found=found,
        cursor=cursor,
        job_revision=job_revision,
        newest=sequence_of(read.records[-1][1].job_id) if read.records else 0,
        cancelling=[job.job_id for _, job, _ in read.records if job.cancel_requested],
        requests=read.requests,
        unreadable_count=read.unreadable_count,
        generation=generation,
    )


@dataclass(slots=True)
class _Read:
    """The records in order, as (version, job, expected; None: decompose predicts it)."""

    records: list[tuple[int, Job, Expected | None]]
    unreadable_count: int
    requests: dict[str, tuple[JobRequest, ...]] = field(default_factory=dict)


async def _read(store: JobStore, models: Sequence[str], questions: asyncio.Queue[list[JobSpec]]) -> _Read:
    """Reads all records; puts the jobs to predict now into `questions`, page by page."""
    read, ahead = _Read([], 0), PREDICTED_FIRST
    async for page in store.active_pages():
        read.unreadable_count += page.unreadable_count
        asked: list[JobSpec] = []
        for version, job in page.jobs:
            if job.requests:
                read.requests[job.job_id] = job.requests
                job = replace(job, requests=())  # noqa: PLW2901  # the store keeps them until they are applied
            launched = is_launched(job)
            if launched and not (job.attempts and job.gpu_id and job.submit_s is not None):
                # The record contradicts itself: without an attempt there is nothing to reconcile.
                store.unreadable.add(job.job_id, "it runs by its record, and has no attempt")
                read.unreadable_count += 1
            elif launched or ahead:
                ahead -= not launched
                asked.append(job.spec)
                read.records.append((version, job, None))
            else:
                read.records.append((version, job, declared(job.spec, models)))
        if asked:
            questions.put_nowait(asked)
    return read


async def _ask(
    predictions: ExpectedRuntimes, models: Sequence[str], questions: asyncio.Queue[list[JobSpec]]
) -> list[Expected]:
    """Predicts all jobs from `questions`, in order, up to an empty list."""
    answers: list[Expected] = []
    while specs := await questions.get():
        answers += await predictions.predict(specs, models)
    return answers
