"""Simulates a job list with unknown runtimes: decompose learns them from the list's own ended jobs.

The acting orchestrator's own session core decides, on a simulated cluster: it receives starts and ends, requests
predictions for jobs as they join the queue, in one batch, and for waiting jobs whenever enough was learned for new
predictions. At each decision all ended jobs have been learned, in order, so the same list gives the same schedule
again. Plain records and arrays; `decompose` implements the port over Redis and gRPC.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.errors import AdlroError, InternalError
from adlro.records.cluster import Cluster
from adlro.records.events import (
    Capabilities,
    Clock,
    ClockMode,
    ClusterDescription,
    ClusterEvent,
    EventBatch,
    EventKind,
)
from adlro.records.jobs import Job, JobSpec
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.ports import RuntimePredictor
from adlro.services.orchestrator.runtimes.predictions import NEVER, Expected, ExpectedRuntimes
from adlro.services.orchestrator.runtimes.refresh import Predict, RuntimesPredicted
from adlro.services.orchestrator.session import reconcile
from adlro.services.orchestrator.session.core import effects, inputs
from adlro.services.orchestrator.session.core.core import Core
from adlro.services.orchestrator.session.holding import Holding
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Bools, Floats, Ints, Observation
from adlro.store import Move
from adlro.workload.job_lists import WorkloadJob

_INCARNATION = "evaluation"
_BEFORE_S = -1.0
"""Cluster time at which a list is submitted: before its first job begins."""


class Decompose(RuntimePredictor, Protocol):
    """A decompose that knows no job when a list begins. Every call raises AdlroError on failure."""

    async def begin(self, cluster: Cluster, specs: Sequence[JobSpec]) -> list[str]:
        """Records the jobs of a list, as their submission would; returns their ids, in order."""

    async def learn(self, moves: Sequence[Move]) -> None:
        """Writes jobs' next records; returns once the memory has learned their outcomes."""


def specs_of(jobs: Sequence[WorkloadJob]) -> list[JobSpec]:
    """The submitted specs of a list, without the true runtimes."""
    return [
        dataclasses.replace(job.spec(f"job-{number}"), simulated_work=None) for number, job in enumerate(jobs, start=1)
    ]


async def simulate_learned(
    cluster: Cluster,
    jobs: Sequence[WorkloadJob],
    arrays: JobArrays,
    act: Callable[[Observation], Ints] | Policy,
    decompose: Decompose,
    kept: Floats | None = None,
    expected_kept: Floats | None = None,
    half_life_s: float = math.inf,
) -> BatchOutcome:
    """Simulates one list to its end.

    Args:
        cluster: the cluster to simulate.
        jobs: the list.
        arrays: the list as arrays; its expectations are not used.
        act: a policy, or its (1, 1 + W) actions for an observation of one row: these keep no GPUs free for a job.
        decompose: learns and predicts.
        kept, expected_kept: for a policy that shares GPUs, as for `BatchSimulator`; the policy's knowledge of pairs is
            not learned.
        half_life_s: as for `BatchSimulator`.

    Raises:
        AdlroError: decompose does not answer, or does not learn. There is no fallback: figures of a run with other
            expectations for a while would be wrong.
    """
    policy = act if isinstance(act, Policy) else _Evaluated(act)
    simulator = BatchSimulator(
        cluster,
        arrays,
        preempts=policy.preempts,
        shares=policy.shares,
        kept=kept,
        expected_kept=expected_kept,
        half_life_s=half_life_s,
    )
    specs, pairs = specs_of(jobs), None
    if policy.shares and kept is not None:
        pairs = _pairs(specs, arrays, kept if expected_kept is None else expected_kept)
    rules, job_ids = UserRules(half_life_s=half_life_s), await decompose.begin(cluster, specs)
    course = _Course(cluster, specs, job_ids, policy, simulator, decompose, pairs, rules)
    await course.submit()
    while len(simulator.active):
        await course.follow()
    return simulator.outcome()


def _pairs(specs: Sequence[JobSpec], arrays: JobArrays, kept: Floats) -> PairTable:
    """The table of a list's kinds of jobs, by the families of its arrays."""
    families = arrays.family[0, : len(specs)].tolist()
    number_of = {ApplicationSize.of(spec): family for spec, family in zip(specs, families, strict=True)}
    return PairTable(number_of, np.pad(kept, ((0, 1), (0, 1), (0, 0))))


class _Evaluated(Policy):
    """A policy that only needs actions.

    Args:
        act: (1, 1 + W) actions for an observation of one row.
    """

    name = "evaluated"
    description = "what is evaluated"

    def __init__(self, act: Callable[[Observation], Ints]) -> None:
        self._act = act

    def judge(self, observation: Observation) -> Judgement:
        """The judgement has only the action."""
        action = self._act(observation)[0]
        job, first_gpu, table = int(action[0]), int(action[1]), observation.table
        scores, gpus = np.full(len(table.job), -np.inf), table.gpu.copy()
        if job != HOLD:
            several = observation.gangs is not None and observation.gangs.gpu_count[0, job] > 1
            row = table.row_of_set(0, job, action[1:]) if several else table.row_of(0, job, first_gpu)
            scores[row], gpus[row] = 0.0, first_gpu
        return Judgement(scores, gpu=gpus)


class _Course:
    """A session's core, and its simulated cluster.

    Args:
        cluster: the cluster to simulate.
        specs, job_ids: specs and ids of its J jobs.
        policy: decides.
        simulator: the list's simulator.
        decompose: learns and predicts.
        pairs: what jobs that share a GPU are expected to keep of their speeds; None: none shares one.
        user_rules: of the users; None: none.
    """

    def __init__(
        self,
        cluster: Cluster,
        specs: Sequence[JobSpec],
        job_ids: Sequence[str],
        policy: Policy,
        simulator: BatchSimulator,
        decompose: Decompose,
        pairs: PairTable | None = None,
        user_rules: UserRules | None = None,
    ) -> None:
        self._specs, self._job_ids = specs, job_ids
        self._simulator, self._decompose = simulator, decompose
        self._predictions = ExpectedRuntimes(decompose, _fail)
        clock = Clock(ClockMode.VIRTUAL, 0.0, False, _BEFORE_S)
        can = Capabilities(virtual_clock=True, gangs=True, preemption=True, shares=pairs is not None)
        description = ClusterDescription(cluster, (), (), clock, _INCARNATION, 0, 1, capabilities=can)
        min_run_s = 0.0 if policy.preempts else None
        self._core = Core(
            reconcile.begin(description, None, _BEFORE_S, (), 1, {}, min_run_s, pairs, user_rules),
            0,
            _INCARNATION,
            1,
            clock,
            Holding(_BEFORE_S),
            policy,
            predictor=self._predictions.standing,
            learns_first=True,
        )
        self._number = {job_id: number for number, job_id in enumerate(job_ids)}
        self._queue: list[int] = []  # numbers of the jobs in the simulator's queue, in its order
        self._joined = 0
        self._runs: Bools = np.zeros(len(specs), dtype=np.bool_)
        self._attempts: Ints = np.zeros(len(specs), dtype=np.int64)
        # Starts and stops of the last round, which the core has not heard of.
        self._news: list[ClusterEvent] = []
        self._records: dict[str, list[Move]] = {}  # of jobs that have not ended
        self._launches: list[effects.Launch] = []
        self._revision = 0
        self._decisions = 0

    async def submit(self) -> None:
        """Gives the core all jobs at the beginning, as in a replay."""
        models = self._core.ledger.layout.gpu_models
        # A placeholder until a job joins the queue; no policy sees it before decompose's prediction.
        unknown = Expected(np.ones(len(models)), 0.0, NEVER)
        jobs = [(Job(job_id, spec), 0, unknown) for job_id, spec in zip(self._job_ids, self._specs, strict=True)]
        await self._give(inputs.Begun())
        await self._give(inputs.Arrived(jobs, self._predictions.standing))

    async def follow(self) -> None:
        """Gives the core the starts and ends up to the simulator's decision, and lets it decide.

        Raises:
            InternalError: it decides at other times than the simulator.
        """
        now_s, before = self._now_s, self._decisions
        outcome = self._simulator.outcome()
        end_s, gpu, gpus = (each[0, : len(self._specs)] for each in (outcome.end_s, outcome.gpu, outcome.gpus))
        events, self._news = self._news, []
        ended = np.flatnonzero(self._runs & (end_s <= now_s))
        for number in ended[np.lexsort((gpu[ended], end_s[ended]))].tolist():
            self._runs[number] = False
            events.append(self._event(EventKind.FINISHED, number, gpus_of(gpus[number]), float(end_s[number])))
        self._revision += 1
        events.append(ClusterEvent(self._revision, EventKind.WAKE_UP, now_s))
        self._join(now_s)
        # The simulator ends a hold by the same rule.
        self._core.step(inputs.AskAgain(), 0.0)
        await self._give(EventBatch(_INCARNATION, tuple(events), Clock(ClockMode.VIRTUAL, 0.0, False, now_s)))
        while self._launches:  # an answer may lead to another launch
            order = self._launches.pop(0)
            await self._give(inputs.LaunchAnswered(order.job_id, order.attempt, inputs.Accepted(0)))
        if before == self._decisions:
            raise InternalError(f"nothing was decided at {now_s:.10g} s, where the simulator says that something could")

    @property
    def _now_s(self) -> float:
        return float(self._simulator.time_s[0])

    def _join(self, now_s: float) -> None:
        while self._joined < len(self._specs) and (self._specs[self._joined].begin_time_s or 0.0) <= now_s:
            self._queue.append(self._joined)
            self._joined += 1

    def _event(self, kind: EventKind, number: int, gpus: tuple[int, ...], time_s: float) -> ClusterEvent:
        self._revision += 1
        placement, attempt = self._core.ledger.layout.placement(gpus), int(self._attempts[number])
        return ClusterEvent(self._revision, kind, time_s, self._job_ids[number], attempt, placement)

    def _carry_out(self, decided: effects.Decided) -> None:
        self._decisions += 1
        (place, gpus), now_s, victims = decided.action, self._now_s, []
        if decided.made is not None:
            victims = [(self._number[ref.job_id], ref) for ref in decided.made.preempts]
            place = bisect.bisect_left(self._queue, self._number[decided.made.job_id])
        where = {number: self._core.ledger.entries[ref.job_id].gpus for number, ref in victims}
        self._simulator.act(np.array([[place, *(gpus or (HOLD,))]]), stops=np.array([bool(victims)]))
        for number, ref in victims:
            self._runs[number] = False
            event = self._event(EventKind.PREEMPTED, number, where[number], now_s)
            share = float(self._simulator.share_left[0, number])
            self._news.append(dataclasses.replace(event, attempt=ref.attempt, remaining_ratio=share))
        if decided.made is not None:
            number = self._queue.pop(place)
            self._runs[number] = True
            self._attempts[number] += 1
            self._news.append(self._event(EventKind.STARTED, number, gpus, now_s))
        for number, _ in victims:
            bisect.insort(self._queue, number)

    async def _give(self, given: inputs.Event | inputs.Answer | None) -> None:
        while given is not None:
            done = self._core.step(given, 0.0)
            self._launches += done.launches
            if done.decided is not None:
                self._carry_out(done.decided)
            given = None if done.request is None else await self._answer(done.request)

    async def _answer(self, request: effects.Request) -> inputs.Answer:
        match request:
            case effects.Write(moves, _):
                await self._learn(moves)
                return inputs.Written()
            case effects.WakeUps():
                return inputs.WokenAt(_BEFORE_S)
            case effects.Ask(policy, observation, _):
                return inputs.Judged(policy.judge(observation), 0.0)
            case Predict(specs):
                expected = await self._predictions.ask(specs, self._core.ledger.layout.gpu_models)
                return RuntimesPredicted(expected, self._predictions.standing)
            case effects.StopNow() | effects.Newest():
                raise InternalError("nothing runs when a list begins, and every launch is answered at once")
            case effects.ReadEnds():
                raise AssertionError("no job of an evaluation waits for another one")
            case effects.More():
                return inputs.Continue()

    async def _learn(self, moves: Sequence[Move]) -> None:
        """Learns the ends among new records, one by one; the others wait for their jobs' ends."""
        for move in moves:
            self._records.setdefault(move.job.job_id, []).append(move)
            if move.job.state.final:
                await self._decompose.learn(self._records.pop(move.job.job_id))


def _fail(error: AdlroError) -> NoReturn:
    """A service falls back on declared runtimes; here a fallback would go unnoticed."""
    raise error
