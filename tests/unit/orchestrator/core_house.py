"""Sessions' cores with a store and a cluster in memory: nothing is awaited, nobody is polled, and each step is checked.

What a driver would do in the background (launches, stops, acknowledgements) is done one by one, in the order in which
it was asked for, or in any order where chance is handed in. Wall time passes when nothing else happens.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adlro.decide.policies import POLICIES
from adlro.decide.policies.base import Policy
from adlro.errors import AdlroError
from adlro.records.cluster import Cluster
from adlro.records.events import ClusterDescription
from adlro.records.job_requests import JobRequest, JobRequestKind, JobUpdate
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobState, JobType, PendingReason, SimulatedWork
from adlro.services.orchestrator.ledger.quotas import Quotas
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.runtimes.predictions import Expected, Standing, accepted_s
from adlro.services.orchestrator.runtimes.refresh import Predict, RuntimesPredicted
from adlro.services.orchestrator.session import reconcile
from adlro.services.orchestrator.session.calls import answer_to_launch, answer_to_stop
from adlro.services.orchestrator.session.core import effects, inputs
from adlro.services.orchestrator.session.core.core import Core
from adlro.services.orchestrator.session.core.recording import Recorded, Recording
from adlro.services.orchestrator.session.holding import Holding
from tests.unit.orchestrator.cluster_model import ClusterModel, HangsError, UntoldError
from tests.unit.orchestrator.reserving import Reserves
from tests.unit.orchestrator.sharing import Shares, SharesAndStops
from tests.unit.orchestrator.stopping import Stops, StopsFirst
from tests.unit.orchestrator.store_model import StoreModel

MANY = 1_000_000
"""Things that happen before a test gives up."""


def policy_of(name: str) -> Policy:
    """One of the policies, or one of those for tests."""
    of_tests = (Reserves, Stops, StopsFirst, Shares, SharesAndStops)
    policies: dict[str, type[Policy]] = {**POLICIES, **{each.name: each for each in of_tests}}
    return policies[name]()


class Declares:
    """Believes what is declared, on every model."""

    def __init__(self) -> None:
        self.away = False
        self.generation = 1

    def expected(self, specs: Sequence[JobSpec], models: Sequence[str]) -> list[Expected]:
        runtimes = (spec.expected_runtime.runtime_s if spec.expected_runtime else 1.0 for spec in specs)
        return [
            Expected(
                accepted_s(spec, np.full(len(models), runtime_s), models),
                0.0,
                self.standing.generation,
                restart_s=spec.preemptible.restart_s if spec.preemptible is not None else 0.0,
            )
            for spec, runtime_s in zip(specs, runtimes, strict=True)
        ]

    @property
    def standing(self) -> Standing:
        return Standing(self.generation)


@dataclass
class Life:
    """One session: from what it began, and what happened."""

    begin: Callable[[], Core]
    steps: list[Recorded] = field(default_factory=list)


class CoreHouse:
    """One store, one cluster, and sessions that can be killed and started again.

    Args:
        cluster: on which jobs run.
        draw: in any order, and kills lose some of the calls that are under way; None: in order, and they lose all.
        check_every: so many steps; 1,000 jobs are too many to be looked at after each one.

    Attributes:
        kill_odds: that a session is killed at a request of its core, before or after the request is carried out.
        meddle_odds: that something else comes before a request's answer, and likewise after the request is carried out.
    """

    def __init__(self, cluster: Cluster, draw: random.Random | None = None, check_every: int = 1) -> None:
        self.store = StoreModel()
        self.cluster = ClusterModel(cluster)
        self.predictor = Declares()
        self.now = 0.0
        self.token = 0
        self.lives: list[Life] = []
        self.decided: list[effects.Decided] = []
        self.logged: list[effects.LogLine] = []
        self.asked: list[int] = []  # jobs of each question about runtimes
        self.late_news = False  # nothing is heard of the cluster's events
        self.slow = False  # answers to launches that are carried out untold are kept back,
        self.kept_back: list[inputs.LaunchAnswered] = []  # here, until `answer_late`
        self.failures: list[Exception] = []
        self.drained: dict[str, str] = {}
        self.min_run_s: float | None = None  # jobs may be stopped for others once they have run so long
        self.user_rules = UserRules()
        self.launched: list[str] = []  # jobs, with each launch
        self.pairs: PairTable | None = None  # what jobs that share a GPU are expected to keep of their speeds
        self.real_time = False  # wall time passes as the cluster's does
        self.meddling = ["policy", "drain", "speeds", "kick"]
        self.policies = ["fcfs", "sjf", "hold_greedy"]  # between which is changed
        self.policy: Policy
        self.recorded: Recording | None = None
        self.kill_odds = self.meddle_odds = 0.0
        self.killed = self.meddled = 0  # so often
        self._draw = draw
        self._check_every = check_every
        self._max_attempts = 50
        self._clock_s = 0.0  # the cluster's, when wall time passed last
        self._written: set[tuple[str, int]] = set()
        self._forget()

    # ---- what tests do

    def start(self, policy: str = "", max_attempts: int = 50) -> None:
        """Begins a life; sessions that fail are followed by others."""
        if policy or not self.lives:
            self.policy = policy_of(policy or "sjf")
        self._max_attempts = max_attempts
        self._begin()

    def kill(self) -> None:
        """Breaks the session off where it stands; a call that is under way is perhaps carried out."""
        if self._draw is not None:
            for _, call in self._calls:
                if self._draw.random() < 0.5:
                    self._carry_out(call)
        self._forget()

    @property
    def core(self) -> Core:
        assert self.recorded is not None
        return self.recorded.core

    def submit(self, work_s: float, **spec: object) -> Job:
        fields: dict[str, object] = {
            "name": "j",
            "user": "ann",
            "job_type": JobType.SIMULATION,
            "simulated_work": SimulatedWork(work_s),
            "expected_runtime": ExpectedRuntime("v100_sxm2", work_s),
        }
        job = self.store.create(JobSpec(**{**fields, **spec}))  # type: ignore[arg-type]
        self._arrived([job])
        return job

    def submit_array(self, count: int, work_s: float, max_running_count: int = 0, **spec: object) -> list[Job]:
        common = JobSpec(
            **{  # type: ignore[arg-type]
                "name": "a",
                "user": "ann",
                "job_type": JobType.SIMULATION,
                "simulated_work": SimulatedWork(work_s),
                "expected_runtime": ExpectedRuntime("v100_sxm2", work_s),
                **spec,
            }
        )
        jobs = self.store.create_array(common, count, max_running_count)
        self._arrived(jobs)
        return jobs

    def _arrived(self, jobs: Sequence[Job]) -> None:
        if self.recorded is not None:
            expected = self.predictor.expected([job.spec for job in jobs], self.cluster.cluster.gpu_models)
            rows = [(job, 0, row) for job, row in zip(jobs, expected, strict=True)]
            self._inbox.append(inputs.Arrived(rows, self.predictor.standing))

    def ask(
        self, job_id: str, kind: JobRequestKind, update: JobUpdate | None = None, *, operator: bool = False
    ) -> bool:
        """Asks for a change of a job; False: it is past it."""
        request = self.store.request(job_id, JobRequest(kind, update, by_operator=operator))
        if request is not None and self.recorded is not None:
            self._inbox.append(inputs.Requested(job_id, (request,)))
        return request is not None

    def hold(self, job_id: str, *, operator: bool = False) -> bool:
        return self.ask(job_id, JobRequestKind.HOLD, operator=operator)

    def release(self, job_id: str, *, operator: bool = False) -> bool:
        return self.ask(job_id, JobRequestKind.RELEASE, operator=operator)

    def set_quotas(self, **gpu_count_of: int) -> None:
        self.user_rules = replace(self.user_rules, quotas=Quotas(gpu_count_of))
        if self.recorded is not None:
            self._step(inputs.UserRulesChanged(self.user_rules))
            self._kick()

    def cancel(self, job_id: str) -> None:
        self.store.request_cancel(job_id)
        if self.recorded is not None:
            self._inbox.append(inputs.CancelRequested(job_id))

    def pause(self) -> None:
        self.cluster.on_set_clock(replace(self.cluster.clock, paused=True))

    def resume(self) -> None:
        self.cluster.on_set_clock(replace(self.cluster.clock, paused=False))

    def set_policy(self, policy: str) -> None:
        self.policy = policy_of(policy)
        self._step(inputs.PolicyChanged(self.policy, self.core._state.basis))
        self._kick()

    def drain(self, nodes: Mapping[str, str]) -> None:
        self.drained = dict(nodes)
        self._step(inputs.Drained(self.drained))
        self._kick()

    def find_slow(self, speed_of: Mapping[str, float]) -> None:
        self._step(inputs.SpeedsChanged(speed_of))

    def set_pairs(self, pairs: PairTable) -> None:
        self.pairs = pairs
        self._step(inputs.PairsChanged(pairs))

    def until(self, condition: Callable[[], bool]) -> None:
        """Goes on until the condition holds; fails where nothing more happens."""
        for _ in range(MANY):
            if condition():
                return
            assert self.advance(), "nothing more happens"
        raise AssertionError("it takes for ever")

    def settle(self) -> None:
        """Goes on until nothing more happens."""
        for _ in range(MANY):
            if not self.advance():
                return
        raise AssertionError("it takes for ever")

    def settle_until(self, now: float) -> None:
        """Goes on until nothing more happens before this wall time."""
        while self._inbox or self._calls or self._news or (self._reminders and self._reminders[0][0] < now):
            self.advance()

    def until_final(self, count: int) -> list[Job]:
        self.until(lambda: len(self.store.records) == self.store.final_count == count)
        return [job for _, job in self.store.records.values()]

    def until_state(self, job_id: str, state: JobState, attempt: int = 0) -> Job:
        def there() -> bool:
            job = self.store.get(job_id)
            return job.state is state and attempt in (0, job.attempt_count)

        self.until(there)
        return self.store.get(job_id)

    def until_reason(self, job_id: str, reason: PendingReason) -> Job:
        self.until(lambda: self.store.get(job_id).pending_reason is reason)
        return self.store.get(job_id)

    def answer_late(self) -> None:
        """The answers that were kept back come."""
        self.slow = False
        self._inbox.extend(self.kept_back)
        self.kept_back.clear()

    # ---- one thing after the other

    def advance(self) -> bool:
        """Does one thing; False: there is nothing to do."""
        if self.recorded is None:
            if self.cluster.away or not self.lives:
                return False
            self._begin()
            return True
        try:
            return self._advance()
        except _KilledError:
            self.killed += 1
            self.kill()
            return True
        except (AdlroError, _FollowsNobodyError) as error:
            self.failures.append(error)
            self._forget()
            return True

    def _advance(self) -> bool:
        ready = [name for name, there in (("inbox", self._inbox), ("call", self._calls), ("news", self._news)) if there]
        if self.real_time:
            self.now += max(0.0, self.cluster.clock.time_s - self._clock_s)
            self._clock_s = self.cluster.clock.time_s
        if not ready or (self.real_time and self._reminders and self._reminders[0][0] <= self.now):
            if not self._reminders:
                return False
            due_s, _, reminder = heapq.heappop(self._reminders)
            self.now = max(self.now, due_s)
            self._inbox.append(inputs.Reminded(reminder))
            ready = ["inbox"]
        match self._draw.choice(ready) if self._draw is not None else ready[0]:
            case "inbox":
                self._give(self._inbox.popleft())
                if not self._inbox:
                    self._give(inputs.Quiet())
            case "call":
                place = 0 if self._draw is None else self._draw.randrange(len(self._calls))
                kind, call = self._calls[place]
                if kind == "acknowledge":  # these keep their order
                    place = next(number for number, (each, _) in enumerate(self._calls) if each == kind)
                    _, call = self._calls[place]
                del self._calls[place]
                answer = self._carry_out(call)
                if answer is not None:
                    self._inbox.append(answer)
            case "news":
                if self.cluster.incarnation != self.core._state.incarnation:
                    raise _FollowsNobodyError
                self.cluster.check_not_away()
                self._inbox.append(self._batches[self._place])
                self._place += 1
        return True

    @property
    def _news(self) -> bool:
        if self.late_news:
            return False
        return self._place < len(self._batches) or self.cluster.incarnation != self.core._state.incarnation

    def _forget(self) -> None:
        self.recorded = None
        self._inbox: deque[inputs.Event] = deque()
        self._calls: list[tuple[str, Any]] = []
        self._reminders: list[tuple[float, int, object]] = []
        self._count = itertools.count()

    def _begin(self) -> None:
        self._forget()
        try:
            description = self.cluster.on_describe()
        except AdlroError as error:
            self.failures.append(error)
            return
        # A store that has lost the counter goes on from what the cluster has seen.
        self.token = max(self.token, description.fencing_token) + 1
        core_of = self._loaded(description)
        core, life = core_of(), Life(core_of)
        self.lives.append(life)
        self.recorded = Recording(core)
        life.steps = self.recorded.steps
        self._batches = self.cluster.batches
        self._place = next(
            (number for number, batch in enumerate(self._batches) if batch.events[-1].revision > core.applied),
            len(self._batches),
        )
        self._written = {(job.job_id, job.attempt_count) for _, job in self.store.records.values()}
        arriving = core._found.arriving if core._found is not None else []
        cancelling = [job.job_id for job in self.store.active if job.cancel_requested]
        requests = {job.job_id: job.requests for job in self.store.active if job.requests}
        try:
            self._give(inputs.Begun())
            if arriving:
                self._inbox.append(inputs.Arrived(arriving, self.predictor.standing))
            self._inbox.extend(inputs.Requested(job_id, asked) for job_id, asked in requests.items())
            self._inbox.extend(inputs.CancelRequested(job_id) for job_id in cancelling)
        except _KilledError:
            self.killed += 1
            self.kill()
        except AdlroError as error:
            self.failures.append(error)
            self._forget()

    def _loaded(self, description: ClusterDescription) -> Callable[[], Core]:
        """Makes the same core each time: what was read and described is kept."""
        models = description.cluster.gpu_models
        records = [
            (version, replace(job, requests=())) for version, job in self.store.records.values() if not job.state.final
        ]
        expected = self.predictor.expected([job.spec for _, job in records], models)
        cursor, user_service, drained = self.store.cursor, dict(self.store.user_service), dict(self.drained)
        known_s = max((reconcile.newest_time_s(job) for _, job in records), default=0.0)
        token, policy, standing, decided = self.token, self.policy, self.predictor.standing, len(self.decided)
        min_run_s = self.min_run_s
        clock, pairs, rules = description.clock, self.pairs, self.user_rules

        def found() -> reconcile.Reconciled:
            made = reconcile.begin(
                description, cursor, known_s, drained, self._max_attempts, user_service, min_run_s, pairs, rules
            )
            for (version, job), row in zip(records, expected, strict=True):
                reconcile.take(made, version, job, row)
            reconcile.settle(made)
            return made

        first = found()
        if not first.same and not description.running and clock.time_s < first.now_s:
            clock = self.cluster.on_advance_to(first.now_s)

        def core() -> Core:
            made = found()
            holding = Holding(made.now_s)
            if cursor is not None and made.same:
                holding = Holding(cursor.last_event_s, None if made.record_changes.moves else cursor.hold_until_s)
            return Core(
                made,
                description.revision,
                description.incarnation,
                token,
                clock,
                holding,
                policy,
                decided=decided,
                predictor=standing,
            )

        return core

    def _step(self, given: inputs.Input) -> effects.Effects:
        assert self.recorded is not None
        done = self.recorded.step(given, self.now)
        if not len(self.recorded.steps) % self._check_every:
            self.core.validate()
        return done

    def _give(self, given: inputs.Event | inputs.Answer | None) -> None:
        while given is not None:
            done = self._step(given)
            self.logged += done.logs
            if done.decided is not None:
                self.decided.append(done.decided)
            for order in done.launches:
                assert (order.job_id, order.attempt) in self._written, "it is launched before it is written down"
                self._calls.append(("launch", order))
            self._calls += [("stop", end) for end in done.stops]
            for reminder in done.reminders:
                heapq.heappush(self._reminders, (self.now + reminder.after_s, next(self._count), reminder.of))
            if done.acknowledge is not None:
                self._calls.append(("acknowledge", done.acknowledge))
            given = None if done.request is None else self._interrupted(done.request)

    def _interrupted(self, request: effects.Request) -> inputs.Answer:
        """The answer, if nothing comes between."""
        draw = self._draw
        if draw is None:
            return self._answer(request)
        kill = draw.random() < self.kill_odds
        if kill and draw.random() < 0.5:
            raise _KilledError
        self._perhaps_meddle(draw)
        answer = self._answer(request)
        if kill:
            raise _KilledError
        self._perhaps_meddle(draw)
        return answer

    def _perhaps_meddle(self, draw: random.Random) -> None:
        if draw.random() >= self.meddle_odds:
            return
        self.meddled += 1
        cluster = self.cluster.cluster
        match draw.choice(self.meddling):
            case "policy":
                self.set_policy(draw.choice(self.policies))
            case "drain":
                nodes = draw.sample([node.node_id for node in cluster.nodes], draw.randint(0, 1))
                self.drain(dict.fromkeys(nodes, "to be repaired"))
            case "speeds":
                self.find_slow({draw.choice([gpu.gpu_id for _, gpu in cluster.gpus()]): 0.5})
            case "kick":
                self._kick()
            case "pairs":
                assert self.pairs is not None
                kept = np.clip(self.pairs.kept * draw.uniform(0.5, 1.5), 0.0, 1.0)
                self.set_pairs(replace(self.pairs, kept=kept))

    def _answer(self, request: effects.Request) -> inputs.Answer:
        match request:
            case effects.Write(moves, cursor):
                self.store.move(moves, cursor)
                self._written |= {(move.job.job_id, move.job.attempt_count) for move in moves}
                return inputs.Written()
            case effects.WakeUps(times_s):
                return inputs.WokenAt(self.cluster.on_wake_at(times_s).time_s)
            case effects.Ask(policy, observation, _):
                return inputs.Judged(policy.judge(observation), 0.0)
            case Predict(specs):
                self.asked.append(len(specs))
                away = self.predictor.away
                expected = None if away else self.predictor.expected(specs, self.cluster.cluster.gpu_models)
                return RuntimesPredicted(expected, self.predictor.standing)
            case effects.StopNow(job_id, attempt):
                self.cluster.on_stop(job_id, attempt, self.token, self.core._state.incarnation)
                return inputs.Stopped()
            case effects.Newest():
                return inputs.LogEnds(self.cluster.on_describe().revision)
            case effects.ReadEnds(ids):
                return inputs.EndsRead(self.store.ends(ids))
            case effects.More():
                return inputs.Continue()

    def _carry_out(self, call: effects.Launch | effects.Stop | int) -> inputs.Event | None:
        """Has the cluster do it; its answer, where there is one."""
        incarnation = self.core._state.incarnation
        match call:
            case effects.Launch() as order:
                return self._launch(order, incarnation)
            case effects.Stop(number, job_id, attempt):
                try:
                    stopped = self.cluster.on_stop(job_id, attempt, self.token, incarnation)
                except AdlroError as error:
                    return inputs.StopAnswered(number, answer_to_stop(error))
                return inputs.StopAnswered(number, stopped)
            case revision:
                self.cluster.on_acknowledge(incarnation, revision, self.token)
                return None

    def _launch(self, order: effects.Launch, incarnation: str) -> inputs.Event | None:
        key = (order.job_id, order.attempt)
        self.launched.append(order.job_id)
        try:
            launched = self.cluster.on_launch(
                *key,
                order.spec,
                order.placement,
                self.token,
                incarnation,
                preempts=order.preempts,
                remaining_ratio=order.remaining_ratio,
                resumes=order.resumes,
            )
        except HangsError:
            return None
        except UntoldError:
            answered = inputs.LaunchAnswered(*key, answer_to_launch(self.cluster.error))
            if self.slow:
                self.kept_back.append(answered)
                return None
            return answered
        except AdlroError as error:
            return inputs.LaunchAnswered(*key, answer_to_launch(error))
        return inputs.LaunchAnswered(*key, inputs.Accepted(*launched))

    def _kick(self) -> None:
        self._step(inputs.AskAgain())
        self.cluster.on_wake_at([0.0])


class _KilledError(Exception):
    """The session breaks off in the middle of a moment."""


class _FollowsNobodyError(Exception):
    """The cluster that was followed is gone."""
