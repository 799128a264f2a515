"""One acting session: from the lease to the first failure of any kind.

The caller passes clients and stores in. A session reads all records from Redis and the running attempts from the
cluster, reconciles the two, and then follows two logs: the jobs' changes and the cluster's events. The core
(`session.core`) decides what to do about them; this module carries out its effects: it writes scripts, sends launches
and stops, and makes other calls. Its code does not depend on the states of jobs.

On a clock that goes on by itself, events that have come while a round of decisions went on are applied together before
the next one: what the ledger says is then never older than one round, however many events come.

Any failure ends the session, and the next one starts from the stored records.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from adlro.errors import Conflict, Stale, Unavailable, Unsupported
from adlro.records.events import Clock, ClockMode, ClusterDescription, EventBatch
from adlro.records.jobs import JobSpec
from adlro.records.status import EventLag
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.sharing import PairTable, asks_for_a_part
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.ports import ClusterPort
from adlro.services.orchestrator.runtimes.pairs import ExpectedPairs
from adlro.services.orchestrator.runtimes.predictions import ExpectedRuntimes
from adlro.services.orchestrator.runtimes.refresh import Predict, RuntimesPredicted
from adlro.services.orchestrator.session.calls import launch, stop
from adlro.services.orchestrator.session.core import effects, inputs
from adlro.services.orchestrator.session.core.arrivals import ARRIVALS_AT_ONCE
from adlro.services.orchestrator.session.core.core import Core
from adlro.services.orchestrator.session.core.effects import Effects
from adlro.services.orchestrator.session.event_lag import Arriving, KnownEvents
from adlro.services.orchestrator.session.holding import Holding
from adlro.services.orchestrator.session.loading import Loaded, load
from adlro.store import JobChange, JobStore, sequence_of

# Seconds between two requests to decompose for the GPUs that are slower than their model.
GPU_SPEEDS_S = 1.0
# Seconds between two requests to decompose for what jobs keep of their speeds beside others.
PAIRS_S = 10.0
# Seconds after which the core's work yields to the event loop.
SLICE_S = 0.005


class Session:
    """One acting session.

    Args:
        acting: the state that outlives a session; after a change of the policy call `kick`.
        store: job records.
        cluster: runs jobs.
        predictions: expected durations.
        token: the fencing token of the session's lease.
        max_attempts: lost attempts after which a job fails.
        log: a structlog logger.
        on_decision: called with each policy call's duration in seconds.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.
        pairs: what jobs that share a GPU are expected to keep of their speeds; None: none is to share one.
    """

    def __init__(
        self,
        acting: Acting,
        store: JobStore,
        cluster: ClusterPort,
        predictions: ExpectedRuntimes,
        token: int,
        max_attempts: int,
        log: structlog.typing.FilteringBoundLogger,
        on_decision: Callable[[float], None] = lambda _: None,
        min_run_s: float | None = None,
        pairs: ExpectedPairs | None = None,
    ) -> None:
        self.acting = acting
        self.token = token
        self.ready = asyncio.Event()
        self.unreadable_count = 0
        self._core: Core | None = None
        self._store = store
        self._cluster = cluster
        self._predictions = predictions
        self._max_attempts = max_attempts
        self._min_run_s = min_run_s
        self._pairs = pairs
        self._log = log
        self._on_decision = on_decision
        self._policy = acting.policy  # the policy that the core knows
        self._inbox: asyncio.Queue[inputs.Event | Arriving] = asyncio.Queue()
        self._arriving: Arriving | None = None  # in the inbox, and events that come may wait with it
        self._known_events = KnownEvents(0, 0, 0.0)
        self._background: asyncio.TaskGroup
        self._reminders: set[asyncio.TimerHandle] = set()
        self._acknowledge_up_to = 0
        self._acknowledge_due = asyncio.Event()
        self._slice_ends = 0.0

    @property
    def core(self) -> Core:
        """The core, which decides what to do; available once the session is ready."""
        assert self._core is not None
        return self._core

    @property
    def ledger(self) -> Ledger:
        """The jobs on the GPUs and in the queue; available once the session is ready."""
        return self.core.ledger

    @property
    def applied(self) -> int:
        """Revision up to which the cluster's events are applied."""
        return 0 if self._core is None else self._core.applied

    @property
    def now_s(self) -> float:
        """Cluster time of `applied`."""
        return 0.0 if self._core is None else self._core.now_s

    def event_lag(self) -> EventLag:
        """How far this session is behind the cluster."""
        return self._known_events.lag(self.applied, time.monotonic())

    # ---- the whole of it

    async def run(self) -> None:
        """Acts until a failure.

        Raises:
            ExceptionGroup: of the failures; contains `Stale` if another instance has taken over.
        """
        description = await self._cluster.describe()
        await self._refuse_spent_token(description)
        can = description.capabilities
        if can is None or not can.shares:
            self._pairs = None
        loaded = await load(
            self._store,
            self._predictions,
            description,
            self.acting.drained,
            self._max_attempts,
            self._min_run_s,
            self._pairs,
            self.acting.user_rules,
        )
        self.unreadable_count = loaded.unreadable_count
        clock = description.clock if loaded.found.same else await self._catch_up(description, loaded.found.now_s)
        self.acting.note_clock(clock)
        self.acting.incarnation = description.incarnation
        self._core = self._core_of(description, clock, loaded)
        self._known_events = KnownEvents(self.applied, description.revision, time.monotonic())
        try:
            async with asyncio.TaskGroup() as group:
                self._background = group
                group.create_task(self._acknowledge(), name="acknowledge")
                await self._give(inputs.Begun())
                for start in range(0, len(loaded.found.arriving), ARRIVALS_AT_ONCE):
                    part = loaded.found.arriving[start : start + ARRIVALS_AT_ONCE]
                    self._inbox.put_nowait(inputs.Arrived(part, self._predictions.standing))
                for job_id, requests in loaded.requests.items():
                    self._inbox.put_nowait(inputs.Requested(job_id, requests))
                for job_id in loaded.cancelling:
                    self._inbox.put_nowait(inputs.CancelRequested(job_id))
                group.create_task(self._follow_cluster(), name="follow cluster")
                group.create_task(self._follow_jobs(loaded.job_revision, loaded.newest), name="follow jobs")
                del loaded  # its parts are handed over: the first records would be kept as long as the session
                group.create_task(self._follow_gpu_speeds(), name="follow GPU speeds")
                if self._pairs is not None:
                    group.create_task(self._follow_pairs(self._pairs), name="follow pairs")
                group.create_task(self._act(), name="act")
                self.ready.set()
        finally:
            for reminder in self._reminders:
                reminder.cancel()

    async def kick(self) -> None:
        """Requests a new round of decisions, as after a change of policy."""
        self.core.step(inputs.AskAgain(), time.monotonic())
        await self._cluster.wake_at([0.0])

    async def drain(self, nodes: Mapping[str, str]) -> None:
        """Sets the drained nodes, with the reasons: no job starts on exactly these."""
        self.core.step(inputs.Drained(dict(nodes)), time.monotonic())
        await self.kick()

    async def set_user_rules(self, rules: UserRules) -> None:
        """Sets quotas, shares and groups of users."""
        self.core.step(inputs.UserRulesChanged(rules), time.monotonic())
        await self.kick()

    # ---- the beginning

    def _core_of(self, description: ClusterDescription, clock: Clock, loaded: Loaded) -> Core:
        acting, found, cursor = self.acting, loaded.found, loaded.cursor
        holding = Holding(found.now_s)
        if cursor is not None and found.same:
            held = not (acting.ask_again or found.record_changes.moves)
            holding = Holding(cursor.last_event_s, cursor.hold_until_s if held else None)
        if acting.ask_again:
            found.record_changes.ledger.end_reservation()  # another policy wanted it
        acting.ask_again = False
        self._policy = acting.policy
        return Core(
            found,
            description.revision,
            description.incarnation,
            self.token,
            clock,
            holding,
            acting.policy,
            acting.deciding[1],
            decided=acting.decisions.count,
            predictor=self._predictions.standing,
            caught_up=loaded.generation,
        )

    async def _catch_up(self, description: ClusterDescription, now_s: float) -> Clock:
        """Advances a cluster whose clock began anew after a restart to the time of the records."""
        own = description.clock
        can = description.capabilities
        if description.running or own.time_s >= now_s or (can is not None and not can.virtual_clock):
            return own
        try:
            return await self._cluster.advance_to(now_s)
        except (Unsupported, Conflict) as error:
            self._log.info("the cluster keeps its own clock", reason=str(error))
            return own

    async def _refuse_spent_token(self, description: ClusterDescription) -> None:
        """If the store has lost the counter of tokens, the cluster would refuse this session's token as an old one."""
        if description.fencing_token < self.token:
            return
        await self._store.raise_token(description.fencing_token)
        raise Stale(
            f"the cluster has seen fencing token {description.fencing_token}, and the newest lease has {self.token}: "
            "the store has lost its counter; it goes on from what the cluster has seen"
        )

    # ---- inputs

    async def _follow_cluster(self) -> None:
        async for batch in self._cluster.events(self.acting.incarnation, self.applied):
            self._known_events.heard(batch, self.applied, time.monotonic())
            self._put(batch)
        raise Unavailable("the cluster ended its event stream")

    def _put(self, batch: EventBatch) -> None:
        """Puts events into the inbox; a virtual clock stands still until each moment is applied by itself."""
        if batch.clock.mode is ClockMode.VIRTUAL:
            self._arriving = None
            self._inbox.put_nowait(batch)
        elif self._arriving is None or not self._arriving.take_up(batch):
            self._arriving = Arriving(batch)
            self._inbox.put_nowait(self._arriving)

    async def _follow_jobs(self, revision: int, newest: int) -> None:
        """Follows the changes that ingest writes; jobs up to number `newest` were read with the records."""
        while True:
            revision, events = await self._store.read_requests(revision, block_ms=1000)
            new = [
                event.job
                for event in events
                if event.change is JobChange.SUBMITTED and sequence_of(event.job.job_id) > newest
            ]
            if new:
                specs, models = [job.spec for job in new], self.ledger.layout.gpu_models
                expected = await self._predictions.predict(specs, models)
                if self._pairs is not None:
                    await self._meet_pairs(self._pairs, specs)
                jobs = [(replace(job, requests=()), 0, row) for job, row in zip(new, expected, strict=True)]
                self._inbox.put_nowait(inputs.Arrived(jobs, self._predictions.standing))
            for event in events:
                if event.change is JobChange.CANCEL_REQUESTED:
                    self._inbox.put_nowait(inputs.CancelRequested(event.job.job_id))
                elif event.change is JobChange.REQUESTED:
                    self._inbox.put_nowait(inputs.Requested(event.job.job_id, event.job.requests[-1:]))

    async def _follow_gpu_speeds(self) -> None:
        """Follows the speeds of GPUs: from the next event on, expected durations on a slow GPU are longer."""
        while True:
            speed_of = await self._predictions.gpu_speeds(self.ledger.layout.cluster.name)
            if speed_of is not None:
                self.core.step(inputs.SpeedsChanged(speed_of), time.monotonic())
            await asyncio.sleep(GPU_SPEEDS_S)

    async def _follow_pairs(self, pairs: ExpectedPairs) -> None:
        """Follows what decompose has learned of jobs that share a GPU.

        Not on a virtual clock: there the moment of an answer would decide how a list of jobs runs. So pairs are asked
        for as jobs arrive.
        """
        while True:
            await asyncio.sleep(PAIRS_S)
            if not self._is_virtual:
                self._use_pairs(await pairs.refresh())

    @property
    def _is_virtual(self) -> bool:
        clock = self.acting.clock()
        return clock is not None and clock.mode is ClockMode.VIRTUAL

    async def _meet_pairs(self, pairs: ExpectedPairs, specs: Sequence[JobSpec]) -> None:
        """Asks about the kinds of arriving jobs, which don't share before the answer; a virtual clock waits for it."""

        async def meet() -> None:
            self._use_pairs(await pairs.meet(specs, self.ledger.layout.gpu_models, up_to_date=self._is_virtual))

        if self._is_virtual:
            await meet()
        elif any(map(asks_for_a_part, specs)):
            self._background.create_task(meet(), name="meet pairs")

    def _use_pairs(self, table: PairTable | None) -> None:
        if table is not None:
            self.core.step(inputs.PairsChanged(table), time.monotonic())

    # ---- effects

    async def _act(self) -> None:
        while True:
            given = await self._inbox.get()
            if isinstance(given, Arriving):
                if given is self._arriving:
                    self._arriving = None
                await self._give(given.together())
            else:
                await self._give(given)
            if self._inbox.empty():
                await self._give(inputs.Quiet())
            await self._let_others()

    async def _let_others(self) -> None:
        """Gives the event loop to the lease, health checks and callers once a slice of time is used up."""
        if time.monotonic() > self._slice_ends:
            await asyncio.sleep(0)
            self._slice_ends = time.monotonic() + SLICE_S

    async def _give(self, event: inputs.Event) -> None:
        """Gives the core an event, and carries out the effects until the core has no request."""
        if isinstance(event, EventBatch):
            self.acting.note_clock(event.clock)
        given: inputs.Event | inputs.Answer | None = event
        while given is not None:
            began = time.monotonic()
            if self.acting.policy is not self._policy:
                self._policy = self.acting.policy
                self.core.step(inputs.PolicyChanged(self._policy, self.acting.deciding[1]), began)
            done = self.core.step(given, began)
            self._carry_out(done)
            given = None if done.request is None else await self._answer(done.request, began)

    def _carry_out(self, done: Effects) -> None:
        for line in done.logs:
            self._log.warning(line.event, **line.fields)
        if done.decided is not None:
            self._tell(done.decided)
        for order in done.launches:
            self._background.create_task(self._launch(order))
        for end in done.stops:
            self._background.create_task(self._stop(end))
        for reminder in done.reminders:
            self._remind(reminder)
        if done.acknowledge is not None:
            self._acknowledge_up_to = done.acknowledge
            self._acknowledge_due.set()

    async def _answer(self, request: effects.Request, began: float) -> inputs.Answer:
        match request:
            case effects.Write(moves, cursor):
                await self._store.move(self.token, moves, cursor)
                return inputs.Written()
            case effects.WakeUps(times_s):
                return inputs.WokenAt((await self._cluster.wake_at(times_s)).time_s)
            case effects.Ask(policy, observation, virtual):
                judgement = await self.acting.guard.judge(policy, observation, virtual=virtual)
                return inputs.Judged(judgement, time.monotonic() - began)
            case Predict(specs):
                expected = await self._predictions.ask(specs, self.ledger.layout.gpu_models)
                return RuntimesPredicted(expected, self._predictions.standing)
            case effects.StopNow(job_id, attempt):
                with contextlib.suppress(Unsupported):  # the attempt ends by itself
                    await self._cluster.stop(job_id, attempt, self.token, self.acting.incarnation)
                return inputs.Stopped()
            case effects.Newest():
                description = await self._cluster.describe()
                if description.incarnation != self.acting.incarnation:
                    raise Stale("the cluster has another incarnation than this session follows")
                return inputs.LogEnds(description.revision)
            case effects.ReadEnds(ids):
                return inputs.EndsRead(await self._store.ends(ids))
            case effects.More():
                await self._let_others()
                return inputs.Continue()

    def _tell(self, decided: effects.Decided) -> None:
        """Passes a decision to the shadow policy and, with the shadow's answer, to the watchers of decisions."""
        decisions, made = self.acting.decisions, decided.made
        self._on_decision(decided.took_s)
        if made is not None:
            decisions.add(made)
        self.acting.shadow.decided(
            decided.observation,
            decided.job_ids,
            self.ledger.layout.gpu_ids,
            decided.action,
            lambda answer: None if made is None else decisions.tell(made, answer),
        )

    async def _launch(self, order: effects.Launch) -> None:
        answer = await launch(self._cluster, order, self.token, self.acting.incarnation)
        self._inbox.put_nowait(inputs.LaunchAnswered(order.job_id, order.attempt, answer))

    async def _stop(self, order: effects.Stop) -> None:
        answer = await stop(self._cluster, order.job_id, order.attempt, self.token, self.acting.incarnation)
        self._inbox.put_nowait(inputs.StopAnswered(order.number, answer))

    def _remind(self, reminder: effects.Reminder) -> None:
        def come() -> None:
            self._reminders.discard(handle)
            self._inbox.put_nowait(inputs.Reminded(reminder.of))

        handle = asyncio.get_running_loop().call_later(reminder.after_s, come)
        self._reminders.add(handle)

    async def _acknowledge(self) -> None:
        """Acknowledges the newest permitted revision; newer ones that come during the call follow in the next call."""
        while True:
            await self._acknowledge_due.wait()
            self._acknowledge_due.clear()
            await self._cluster.acknowledge(self.acting.incarnation, self._acknowledge_up_to, self.token)


def failures(error: BaseException) -> list[BaseException]:
    """The single errors of a (nested) group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in failures(each)]
    return [error]
