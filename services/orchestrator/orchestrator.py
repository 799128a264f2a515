"""An orchestrator: its life as the acting instance or a standby, and what it is asked and told meanwhile.

No gRPC; the caller passes clients in. Its own Redis keys: drained nodes, users' quotas and shares.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

import numpy as np
import redis.asyncio as aioredis
import structlog

from adlro.errors import Conflict, InvalidInput, NotFound, Unavailable
from adlro.kit.identity import current_caller
from adlro.records.capacity import ClusterCapacity
from adlro.records.fair_share import GROUP, FairShare
from adlro.records.jobs import JobReservation
from adlro.records.quotas import EVERYONE, Quota
from adlro.records.status import EventLag, OrchestratorStatus
from adlro.services.orchestrator.answers import Answers
from adlro.services.orchestrator.deciding.policy_selection import Choices, PolicySelection
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.explain.reservations import held_reservation
from adlro.services.orchestrator.figures import LedgerFigures, figures_of, gpu_views
from adlro.services.orchestrator.forecasts.forecasting import Forecasting
from adlro.services.orchestrator.lease import Lease
from adlro.services.orchestrator.ledger.capacity import capacity_of
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.ledger.fair_shares import FairShares, stored
from adlro.services.orchestrator.ledger.quotas import Quotas
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.life import Life
from adlro.services.orchestrator.metrics import OrchestratorMetrics, View
from adlro.services.orchestrator.ports import ClusterPort, Predictor
from adlro.services.orchestrator.session.session import Session
from adlro.store import JobStore
from adlro.store.decisions import DecisionStore
from adlro.store.keys import DRAINED, FAIR_SHARES, QUOTAS


class Orchestrator:
    """One instance: acts while it holds the lease, stands by otherwise.

    Args:
        redis: for records, lease, policy and drains.
        store: job records.
        cluster: runs jobs.
        predictor: predicts durations (decompose).
        lease: the lease of the acting instance.
        choices: the policy settings.
        max_attempts: lost attempts after which a job fails.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.
        decisions_kept: size of the decision log.
        stored: the decisions in the store; None: there are none.
        metrics: counters of this process.
        log: a structlog logger.
    """

    def __init__(
        self,
        redis: aioredis.Redis,
        store: JobStore,
        cluster: ClusterPort,
        predictor: Predictor,
        lease: Lease,
        *,
        choices: Choices,
        max_attempts: int,
        decisions_kept: int,
        metrics: OrchestratorMetrics,
        log: structlog.typing.FilteringBoundLogger,
        min_run_s: float | None = None,
        stored: DecisionStore | None = None,
    ) -> None:
        self._redis: Any = redis
        self._lease = lease
        self._min_run_s = min_run_s
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self.explaining = SideThread("explain decisions")
        self.forecasting = Forecasting(redis, log)
        self.choosing = PolicySelection(redis, choices, decisions_kept, metrics, log)
        self.acting = self.choosing.acting
        self._sharing = asyncio.Lock()  # one change of shares at a time
        self.life = Life(redis, store, cluster, predictor, lease, self.choosing, metrics, log, max_attempts, min_run_s)
        self.answers = Answers(self.life, self.acting, store, stored, self.forecasting, self.explaining)
        metrics.acting.set_function(lambda: self.life.ready_session() is not None)
        metrics.queue_length.set_function(lambda: s.ledger.waiting_count if (s := self.life.ready_session()) else 0)
        metrics.running.set_function(lambda: s.ledger.count(Phase.PLACED) if (s := self.life.ready_session()) else 0)

    # ---- life

    async def run(self) -> None:
        """Runs until `stop`."""
        self._task = asyncio.current_task()
        await self.choosing.look_for_checkpoint()
        following = asyncio.create_task(self.choosing.follow_checkpoint(), name="follow checkpoint")
        forecasting = asyncio.create_task(
            self.forecasting.run(self.life.present_ledger, self.life.clock_now_s, self.life.clock_goes_on),
            name="forecasts",
        )
        try:
            await self.life.live()
        finally:
            following.cancel()
            forecasting.cancel()
            self.forecasting.close()
            self.answers.close()
            self.choosing.close()
            self.explaining.close()
            await self.life.give_up_lease()

    async def stop(self) -> None:
        """Stops placing jobs, and lets another instance act at once."""
        self.life.stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    # ---- requests

    async def status(self) -> OrchestratorStatus:
        """The orchestrator's status."""
        session = self.life.ready_session()
        decides, basis = self.acting.deciding
        count = session.ledger.count if session else (lambda phase: 0)
        return OrchestratorStatus(
            acting=session is not None,
            instance_id=self._lease.instance_id,
            lease_holder=self.life.holder,
            fencing_token=self.life.token,
            policy=self.acting.policy.name,
            cluster_connected=session is not None,
            cluster_incarnation=self.acting.incarnation,
            cluster_revision=session.applied if session else 0,
            cluster_time_s=0.0 if self.life.standing_by else self.acting.told_s,
            queue_length=session.ledger.waiting_count if session else 0,
            waiting_for_begin_time_count=count(Phase.BEGIN),
            running_count=count(Phase.PLACED),
            decision_count=self.acting.decisions.count,
            drained_node_ids=tuple(sorted(self.acting.drained)),
            drain_reasons={node_id: reason for node_id, reason in self.acting.drained.items() if reason},
            problem=self.life.problem,
            policy_version=self.acting.policy.version,
            policy_problem=self.choosing.problem,
            fallbacks=dict(self.acting.guard.counts),
            shadow=self.acting.shadow.status,
            wait_ratio=ratio if math.isfinite(ratio := self.acting.policy.wait_ratio) else 0.0,
            checkpoints_loaded_count=self.choosing.checkpoint.loaded,
            checkpoints_refused_count=self.choosing.checkpoint.refused,
            deciding_policy=decides,
            deciding_basis=basis,
            unreadable_job_count=session.unreadable_count if session else 0,
            reservations=() if (held := self._reservation(session)) is None else (held,),
            decisions_by_basis=dict(self.acting.guard.decisions_of(self.acting.policy)) if session else {},
            preemption=self._min_run_s is not None,
            preemption_min_run_s=self._min_run_s or 0.0,
            event_lag=session.event_lag() if session else None,
            held_count=count(Phase.HELD),
            dependent_count=count(Phase.DEPENDENT),
            precedence="" if (rule := self.acting.policy.precedence) is None else rule.text,
            **(figures_of(session.ledger) if session else LedgerFigures()),
        )

    @staticmethod
    def _reservation(session: Session | None) -> JobReservation | None:
        return None if session is None else held_reservation(session.ledger, session.now_s)

    def capacity(self) -> ClusterCapacity:
        """What is free now, by GPU model.

        Raises:
            Unavailable: this instance is a standby, or does not act now; a submitter is not told why, since the reason
                may name a job.
        """
        caller = current_caller()
        if self.life.ready_session() is None and caller is not None and not caller.sees_all:
            self.life.refuse_if_standing_by()
            raise Unavailable("this orchestrator does not act now; try again in a moment", retry_after_s=1.0)
        found = capacity_of(self.life.session_or_raise().ledger.occupancy)
        return dataclasses.replace(found, clock=self.acting.clock())

    def view(self) -> View:
        """The state that metrics export; a standby exports only its policy."""
        session = self.life.ready_session()
        if session is None:
            return View(self.acting.policy.name, (), 0.0, 0.0, EventLag(0, 0.0, 0))
        clock = self.acting.clock()
        now_s = session.now_s if clock is None else clock.time_s
        submitted_s = [entry.job.submit_s for entry in session.ledger.queued(0, 1) if entry.job.submit_s is not None]
        waited_s = max(now_s - submitted_s[0], 0.0) if submitted_s else 0.0
        return View(self.acting.policy.name, gpu_views(session.ledger), now_s, waited_s, session.event_lag())

    async def set_policy(self, name: str) -> str:
        """Changes the acting policy; returns the previous one.

        Raises:
            InvalidInput: unknown policy.
            Unavailable: this instance is a standby.
        """
        self.life.session_or_raise()
        before = await self.choosing.set_policy(name)
        self._log.info("policy set", policy=name, before=before)
        await self.life.session_or_raise().kick()
        return before

    async def set_shadow(self, name: str) -> str:
        """Changes the shadow policy, empty for none; returns the previous one.

        Raises:
            InvalidInput: unknown policy.
            Unavailable: this instance is a standby.
        """
        self.life.session_or_raise()
        before = await self.choosing.set_shadow(name)
        self._log.info("shadow policy set", policy=name, before=before)
        return before

    async def drain(self, node_id: str, reason: str) -> list[str]:
        """Drains a node: no job starts there any more; returns the jobs that still run there.

        Raises:
            NotFound: no such node.
        """
        self._check_node(self.life.session_or_raise(), node_id)
        await self._redis.hset(DRAINED, node_id, reason)
        self.acting.drained[node_id] = reason
        session = await self._use_drains()
        layout = session.ledger.layout
        on_node = np.flatnonzero(layout.gpu_node == layout.node_ids.index(node_id)).tolist()
        return [entry.job.job_id for entry in session.ledger.holders(on_node)]

    async def undrain(self, node_id: str) -> None:
        """Lets jobs start on a node again.

        Raises:
            NotFound: no such node.
            Conflict: the node is not drained.
        """
        self._check_node(self.life.session_or_raise(), node_id)
        if node_id not in self.acting.drained:
            raise Conflict(f"node_id: {node_id} is not drained", field="node_id")
        await self._redis.hdel(DRAINED, node_id)
        self.acting.drained.pop(node_id, None)
        await self._use_drains()

    async def set_quota(self, user: str, gpu_count: int | None) -> int | None:
        """Limits the GPUs that the jobs of a user may hold at once; returns his quota before.

        Args:
            user: his name; EVERYONE: each user who has no quota of his own.
            gpu_count: None: he has no quota of his own any more.

        Raises:
            Unavailable: this instance is a standby.
        """
        self.life.session_or_raise()
        if gpu_count is None:
            await self._redis.hdel(QUOTAS, user)
        else:
            await self._redis.hset(QUOTAS, user, gpu_count)
        rules = self.acting.user_rules  # after the wait: another call may have changed them
        known = dict(rules.quotas.gpu_count_of)
        before = known.pop(user, None)
        if gpu_count is not None:
            known[user] = gpu_count
        self._log.info("quota set", user=user, gpu_count=gpu_count, before=before)
        await self._use_user_rules(dataclasses.replace(rules, quotas=Quotas(known)))
        return before

    def quotas(self) -> list[Quota]:
        """The quotas, with what their users' jobs hold; a submitter's own, and that of everyone.

        Raises:
            Unavailable: this instance is a standby.
        """
        held = self.life.session_or_raise().ledger.limits.held_gpu_counts()
        caller = current_caller()
        quotas = self.acting.user_rules.quotas.gpu_count_of
        known = sorted(quotas.items(), key=lambda pair: (pair[0] != EVERYONE, pair[0]))
        return [
            Quota(user, gpu_count, held.get(user, 0))
            for user, gpu_count in known
            if caller is None or caller.sees_all or user in (EVERYONE, caller.user)
        ]

    async def set_fair_share(self, account: str, shares: float | None, group: str | None) -> FairShare:
        """Sets the shares of an account, or the group of a user; returns what is set now.

        Args:
            account: a user, or a group with `@` before its name.
            shares: None: as before.
            group: of a user; empty: he is in none; None: as before. With both None nothing is set any more.

        Raises:
            InvalidInput: a group can't be in a group.
            Unavailable: this instance is a standby.
        """
        self.life.session_or_raise()
        if group and account.startswith(GROUP):
            raise InvalidInput("group: a user is in a group, a group is in none; name a user", field="group")
        async with self._sharing:  # of two calls about one account the second adds to what the first has set
            before = self.acting.user_rules.fair_shares.of_account.get(account, FairShare(account))
            now = FairShare(
                account, before.shares if shares is None else shares, before.group if group is None else group
            )
            if (shares is None and group is None) or now == FairShare(account):
                now = FairShare(account)
                await self._redis.hdel(FAIR_SHARES, account)
            else:
                await self._redis.hset(FAIR_SHARES, account, stored(now))
            rules = self.acting.user_rules  # after the wait: another call may have changed them
            known = {name: each for name, each in rules.fair_shares.of_account.items() if name != account}
            if now != FairShare(account):
                known[account] = now
            self.acting.user_rules = dataclasses.replace(rules, fair_shares=FairShares(known))
        self._log.info("fair share set", account=account, shares=now.shares, group=now.group)
        await self._use_user_rules(self.acting.user_rules)
        return now

    def fair_shares(self) -> list[FairShare]:
        """The shares of accounts, with the GPU time that counts; of a submitter his own, and his group's.

        Raises:
            Unavailable: this instance is a standby.
        """
        ledger, caller = self.life.session_or_raise().ledger, current_caller()
        shares = self.acting.user_rules.fair_shares
        ledger.user_service.number_all()
        gpu_s = ledger.user_service.of_accounts(ledger.user_service_s(self.acting.told_s))
        names = sorted({*gpu_s, *shares.of_account}, key=lambda name: (not name.startswith(GROUP), name))
        listed = [
            dataclasses.replace(shares.of_account.get(name, FairShare(name)), gpu_s=gpu_s.get(name, 0.0))
            for name in names
        ]
        if caller is None or caller.sees_all:
            return listed
        return [each for each in listed if each.account in (caller.user, shares.account_of(caller.user))]

    async def _use_user_rules(self, rules: UserRules) -> None:
        """Passes the rules to the present session, which may be newer than the one at the request."""
        self.acting.user_rules = rules
        await self.life.session_or_raise().set_user_rules(rules)

    async def _use_drains(self) -> Session:
        """Passes the drains to the present session, which may be newer than the one at the request."""
        session = self.life.session_or_raise()
        await session.drain(self.acting.drained)
        return session

    @staticmethod
    def _check_node(session: Session, node_id: str) -> None:
        if node_id not in session.ledger.layout.node_ids:
            known = ", ".join(session.ledger.layout.node_ids)
            raise NotFound(f"node_id: there is no node {node_id!r}; the nodes are {known}", field="node_id")
