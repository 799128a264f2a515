"""A job list whose runtimes nobody knows: policies see what decompose has learned from the list's own ended jobs.

It is asked as in service, by the acting orchestrator's own `RuntimeRefresh`: about jobs as they join the queue, in one
batch, and about those that wait whenever enough was learned to predict anew. At each decision all jobs that ended by
then have been learned from, one after the other, so the same list gives the same schedule again. Plain records and
arrays; `decompose` is the port's other side over Redis and gRPC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import numpy as np

from adlro.errors import AdlroError
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job, JobSpec, PendingReason
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.ports import RuntimePredictor
from adlro.services.orchestrator.runtimes.predictions import ExpectedRuntimes
from adlro.services.orchestrator.runtimes.refresh import RuntimeRefresh, RuntimesPredicted
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.store import Move
from adlro.workload.job_lists import WorkloadJob


class Decompose(RuntimePredictor, Protocol):
    """A decompose that has seen nothing when a list begins. Every call raises AdlroError where it can't be done."""

    async def begin(self, cluster: Cluster, specs: Sequence[JobSpec]) -> list[str]:
        """Makes the jobs of a list known, as submissions are recorded; their ids, in order."""

    async def learn(self, moves: Sequence[Move]) -> None:
        """Writes jobs' next records; returns when what their outcomes teach is in the memory."""


def specs_of(jobs: Sequence[WorkloadJob]) -> list[JobSpec]:
    """What is submitted of a list; how long the jobs truly run stays here."""
    return [
        dataclasses.replace(job.spec(f"job-{number}"), simulated_work=None) for number, job in enumerate(jobs, start=1)
    ]


async def simulate_learned(
    cluster: Cluster,
    jobs: Sequence[WorkloadJob],
    arrays: JobArrays,
    act: Callable[[Observation], Ints],
    decompose: Decompose,
) -> BatchOutcome:
    """Runs one list to its end.

    Args:
        cluster: on which it runs.
        jobs: the list.
        arrays: the same as arrays; what they expect plays no part.
        act: a policy: (1, 2) actions for an observation of one row.
        decompose: learns and predicts.

    Raises:
        AdlroError: decompose can't be asked, or does not learn. There is nothing to fall back on: figures of a run in
            which something else was believed for a while would not be what they are said to be.
    """
    # Of each job there stands something until it joins the queue; no policy sees it before decompose was asked.
    arrays = arrays._replace(
        expected_s=np.ones_like(arrays.expected_s), expected_spread=np.zeros_like(arrays.expected_spread)
    )
    simulator = BatchSimulator(cluster, arrays)
    specs = specs_of(jobs)
    job_ids = await decompose.begin(cluster, specs)
    course = _Course(cluster, specs, job_ids, arrays, decompose)
    while len(simulator.active):
        observation = simulator.observe()
        if await course.follow(float(observation.time_s[0]), simulator.outcome()):
            observation = simulator.observe()
        simulator.act(act(observation))
    return simulator.outcome()


class _Course:
    """What the orchestrator would have known and written of a list so far: its ledger, and the jobs' records.

    Args:
        cluster: on which the list runs.
        specs, job_ids: of its J jobs.
        arrays: of the list; what is expected of waiting jobs is written there.
        decompose: learns and predicts.
    """

    def __init__(
        self,
        cluster: Cluster,
        specs: Sequence[JobSpec],
        job_ids: Sequence[str],
        arrays: JobArrays,
        decompose: Decompose,
    ) -> None:
        self._specs, self._job_ids = specs, job_ids
        self._submit_s: Floats = arrays.submit_s[0, : len(specs)]
        self._expected_s: Floats = arrays.expected_s[0]
        self._spread: Floats = arrays.expected_spread[0]
        self._decompose = decompose
        self._ledger = Ledger(cluster)
        self._book = RecordChanges(self._ledger, max_attempts=1)
        self._predictions = ExpectedRuntimes(decompose, _fail)
        self._expectations = RuntimeRefresh(lambda: 0.0, self._predictions.standing)
        self._entries: list[Entry] = []  # of the jobs that have come
        self._number = {job_id: number for number, job_id in enumerate(job_ids)}
        self._waits: Bools = np.zeros(len(specs), dtype=np.bool_)
        self._runs: Bools = np.zeros(len(specs), dtype=np.bool_)

    async def follow(self, now_s: float, outcome: BatchOutcome) -> bool:
        """Brings everything to a decision at `now_s`: what started, what ended and is learned, what joins the queue.

        Returns:
            Whether something else is expected of a waiting job than at the last decision.
        """
        start_s, end_s, gpu = (each[0, : len(self._specs)] for each in (outcome.start_s, outcome.end_s, outcome.gpu))
        for number in np.flatnonzero(self._waits & ~np.isnan(start_s)).tolist():
            self._start(number, int(gpu[number]), float(start_s[number]))
        ended = np.flatnonzero(self._runs & (end_s <= now_s))
        for number in ended[np.lexsort((gpu[ended], end_s[ended]))].tolist():
            await self._end(number, float(end_s[number]))
        joined = self._join(int(np.searchsorted(self._submit_s, now_s, side="right")))
        changed = await self._bring_up_to_date(joined)
        if not joined and not changed:
            return False
        for entry in self._ledger.queued():
            number = self._number[entry.job.job_id]
            self._expected_s[number], self._spread[number] = entry.expected_s, entry.spread
        return True

    async def _bring_up_to_date(self, joined: Sequence[Entry]) -> bool:
        course, answer = self._expectations.bring_up_to_date(self._ledger, joined, virtual=True), None
        while True:
            try:
                question = course.send(answer)
            except StopIteration as end:
                return bool(end.value)
            expected = await self._predictions.ask(question.specs, self._ledger.layout.gpu_models)
            answer = RuntimesPredicted(expected, self._predictions.standing)

    def _join(self, arrived: int) -> list[Entry]:
        known = len(self._entries)
        for number in range(known, arrived):
            job = Job(self._job_ids[number], self._specs[number])
            entry = self._ledger.enter(job, 0, np.ones(len(self._ledger.layout.gpu_models)))
            submit_s = float(self._submit_s[number])
            self._book.record(entry, transitions.taken_up(job, submit_s, PendingReason.RESOURCES, "waits"))
            self._ledger.enqueue(entry)
            self._entries.append(entry)
            self._waits[number] = True
        return self._entries[known:]

    def _start(self, number: int, gpu: int, start_s: float) -> None:
        entry, layout = self._entries[number], self._ledger.layout
        launching = transitions.launching(entry.job, Placement.on(layout.gpu_ids[gpu]), layout.model_of(gpu))
        self._ledger.place(entry, gpu, start_s)
        self._book.record(entry, transitions.started(launching, start_s))
        self._waits[number], self._runs[number] = False, True

    async def _end(self, number: int, end_s: float) -> None:
        entry = self._entries[number]
        self._book.end(entry, transitions.succeeded(entry.job, end_s), learn=True)
        self._runs[number] = False
        await self._decompose.learn(self._book.take_moves())
        self._expectations.ended()


def _fail(error: AdlroError) -> NoReturn:
    """In service an expectation falls back on what was declared; here nothing would tell."""
    raise error
