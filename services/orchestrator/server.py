"""OrchestratorService over gRPC: translates between messages and the orchestrator; decides nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import Gauge

from adlro.decide.catalog import split_files
from adlro.errors import InvalidInput
from adlro.kit.metrics import OnLoop
from adlro.kit.redis import connect, connect_blocking, connect_in_thread, watch_redis
from adlro.kit.server import ServiceContext
from adlro.records.decisions import DecisionView
from adlro.records.precedence import parse_precedence
from adlro.services.orchestrator.clients import ClusterClient, DecomposeClient
from adlro.services.orchestrator.deciding import checkpoint
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.feed import SUMMARIES_TOGETHER, DecisionFeed
from adlro.services.orchestrator.deciding.policy_selection import Choices
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.deciding.storing import CAUSES, StoringDecisions
from adlro.services.orchestrator.explain import waits
from adlro.services.orchestrator.forecasts import forecasting
from adlro.services.orchestrator.instrumented import InstrumentedCluster, InstrumentedStore
from adlro.services.orchestrator.lease import RENEWALS, Lease
from adlro.services.orchestrator.ledger import warm as warm_ledger
from adlro.services.orchestrator.metrics import OrchestratorMetrics, show_view
from adlro.services.orchestrator.orchestrator import Orchestrator
from adlro.services.orchestrator.settings import OrchestratorSettings
from adlro.services.orchestrator.status_feed import DEFAULT_INTERVAL_S, LEAST_INTERVAL_S, StatusFeed
from adlro.store import Unreadable
from adlro.store.decisions import DecisionStore
from adlro.store.format import checked, claim_at_start
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc
from adlro.wire import (
    capacity_to_proto,
    decision_filter_from_proto,
    decision_to_proto,
    fair_share_to_proto,
    policy_to_proto,
    quota_to_proto,
    status_to_proto,
    waiting_to_proto,
)

Context = grpc.aio.ServicerContext[Any, Any]

# Seconds between two checks whether this instance still makes the watched decisions.
_LOOK_S = 1.0
# Seconds that the last decisions have to be stored at the end.
_FLUSH_S = 1.0


class OrchestratorServer(pb_grpc.OrchestratorServiceServicer):
    """The orchestrator as a service of the kit."""

    name = "orchestrator"
    service_names: Sequence[str] = ("adlro.v1.OrchestratorService",)

    def __init__(self, settings: OrchestratorSettings) -> None:
        self._settings = settings
        self._orchestrator: Orchestrator
        self._feed: DecisionFeed
        self._stored: DecisionStore
        self._storing: StoringDecisions
        self._clients: list[ClusterClient | DecomposeClient] = []
        self._draining: asyncio.Event
        self._statuses = StatusFeed(self._encoded_status)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicer."""
        pb_grpc.add_OrchestratorServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        """Connects, then acts or stands by."""
        settings = self._settings
        self._draining = context.draining
        # Without cached code the compilation takes seconds: now rather than in the first decision, and in a thread, so
        # that the loop handles signals.
        await asyncio.to_thread(warm)
        redis = connect(settings.redis_url)
        self._redis = (redis, connect_blocking(settings.redis_url))
        self._of_thread = connect_in_thread(settings.redis_url, settings.lease_s / RENEWALS)
        cluster = ClusterClient(settings.cluster_address, context.credentials)
        decompose = DecomposeClient(settings.decompose_address, settings.prediction_timeout_s, context.credentials)
        self._clients = [cluster, decompose]
        metrics = OrchestratorMetrics(context.registry)
        self._reading, self._telling = SideThread("read decisions"), SideThread("tell decisions")
        self._stored = DecisionStore(
            redis,
            self._reading,
            settings.decisions_stored,
            settings.explanations_stored,
            Unreadable(metrics.unreadable.inc),
        )
        self._orchestrator = Orchestrator(
            redis,
            InstrumentedStore(*self._redis, metrics),
            InstrumentedCluster(cluster, metrics),
            decompose,
            Lease(
                redis,
                self._of_thread,
                f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
                settings.lease_s,
            ),
            choices=Choices(
                policy=settings.policy,
                shadow=settings.shadow_policy,
                checkpoint=Path(settings.checkpoint) if settings.checkpoint else None,
                promoted=Path(settings.promoted) if settings.promoted else None,
                candidate=Path(settings.candidate) if settings.candidate else None,
                deadline_s=settings.decision_deadline_s,
                wait_ratio=settings.wait_ratio,
                precedence=parse_precedence(settings.precedence),
                files=split_files(settings.policy_file),
            ),
            max_attempts=settings.max_attempts,
            min_run_s=settings.preemption_min_run_s if settings.preemption == "on" else None,
            decisions_kept=settings.decisions_kept,
            metrics=metrics,
            log=context.log,
            stored=self._stored,
        )
        self._follow_decisions(context, metrics)
        show_view(OnLoop(self._orchestrator.view), context.registry)
        await claim_at_start(redis)
        context.spawn(watch_redis(context, redis, check=checked(redis)), "watch redis")
        context.spawn(self._orchestrator.run(), "orchestrate")

    async def stop(self) -> None:
        """Stops placing jobs, releases the lease, closes connections."""
        await self._orchestrator.stop()
        await self._storing.flush(_FLUSH_S)
        for thread in (self._reading, self._telling):
            thread.close()
        for client in self._clients:
            await client.close()
        for redis in self._redis:
            await redis.aclose()
        self._of_thread.close()

    def _follow_decisions(self, context: ServiceContext, metrics: OrchestratorMetrics) -> None:
        """Tells watchers each decision, and stores it; both behind the deciding path."""
        self._feed = DecisionFeed(watch_message, self._telling, context.log)
        self._storing = StoringDecisions(
            self._stored, self._telling, metrics.count_stored, metrics.count_unstored, context.log
        )
        metrics.declare_unstored_causes(CAUSES)
        watchers = Gauge(
            "adlro_orchestrator_decision_watchers", "open WatchDecisions streams", registry=context.registry
        )
        watchers.set_function(lambda: self._feed.watcher_count)
        self._orchestrator.acting.decisions.listen(self._feed.tell)
        self._orchestrator.acting.decisions.listen(self._storing.take)
        context.spawn(self._storing.run(), "store decisions")
        context.spawn(self._end_watches(), "end watches")

    # ---- OrchestratorService

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The orchestrator's status."""
        return status_to_proto(await self._orchestrator.status())

    # Typed wider than the generated base class: the kit lets a stream yield serialised messages.
    async def WatchStatus(  # type: ignore[override]
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Sends the status now and after changes; bytes, encoded once for all watchers."""
        interval_s = request.min_interval_s or DEFAULT_INTERVAL_S
        if interval_s < LEAST_INTERVAL_S:
            raise InvalidInput(
                f"min_interval_s: {interval_s:g} s is too short; at least {LEAST_INTERVAL_S:g}, or 0 for "
                f"{DEFAULT_INTERVAL_S:g}",
                field="min_interval_s",
            )
        self._orchestrator.life.refuse_if_standing_by()
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            async for encoded in self._statuses.watch(
                interval_s, draining, self._orchestrator.life.refuse_if_standing_by
            ):
                yield encoded
        finally:
            draining.cancel()

    async def _encoded_status(self) -> bytes:
        return pb.WatchStatusResponse(status=status_to_proto(await self._orchestrator.status())).SerializeToString()

    async def ListPolicies(self, request: pb.ListPoliciesRequest, context: Context) -> pb.ListPoliciesResponse:
        """The policies to choose from."""
        self._orchestrator.life.refuse_if_standing_by()  # only the acting instance knows the choice
        return pb.ListPoliciesResponse(policies=[policy_to_proto(each) for each in self._orchestrator.choosing.offered])

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.SetPolicyResponse:
        """Changes the acting policy."""
        before = await self._orchestrator.set_policy(request.policy)
        return pb.SetPolicyResponse(policy=request.policy, previous_policy=before)

    async def SetShadowPolicy(self, request: pb.SetShadowPolicyRequest, context: Context) -> pb.SetShadowPolicyResponse:
        """Changes the shadow policy."""
        before = await self._orchestrator.set_shadow(request.policy)
        return pb.SetShadowPolicyResponse(policy=request.policy, previous_policy=before)

    async def ExplainDecision(self, request: pb.ExplainDecisionRequest, context: Context) -> pb.ExplainDecisionResponse:
        """Explains a decision, or why a job waits."""
        self._orchestrator.life.refuse_if_standing_by()
        if request.WhichOneof("target") == "decision_id":
            decision = await self._orchestrator.answers.decision(request.decision_id)
        else:
            decision = await self._orchestrator.answers.job(request.job_id)
        message = await self._orchestrator.explaining.run(lambda: decision_to_proto(decision))
        return pb.ExplainDecisionResponse(decision=message)

    async def ExplainWaiting(self, request: pb.ExplainWaitingRequest, context: Context) -> pb.ExplainWaitingResponse:
        """Explains why a job waits, and when it is expected to start."""
        told = await self._orchestrator.answers.waiting(request.job_id)
        return pb.ExplainWaitingResponse(explanation=waiting_to_proto(told))

    # Typed wider than the generated base class: the kit lets a stream yield serialised messages.
    async def WatchDecisions(  # type: ignore[override]
        self, request: pb.WatchDecisionsRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Sends each new decision; summaries several at a time."""
        self._orchestrator.life.refuse_if_standing_by()
        view = _view_of(request.view)
        with self._feed.watch(view) as watch:
            past = self._orchestrator.acting.decisions.last(request.history)
            together = 1 if view is DecisionView.FULL else SUMMARIES_TOGETHER
            for start in range(0, len(past), together):
                yield b"".join(await self._feed.of_past(past[start : start + together], view))
            while not watch.closed:
                news = await watch.news(_LOOK_S)
                if news is not None:
                    missed = pb.WatchDecisionsResponse(missed_count=news.missed).SerializeToString()
                    # Messages one after the other are one message, with all of their fields.
                    yield b"".join((missed, *news.messages))
                elif not watch.closed:
                    # Another instance decides now: the error names it, instead of a stream that stays silent.
                    self._orchestrator.life.refuse_if_standing_by()

    async def ListDecisions(self, request: pb.ListDecisionsRequest, context: Context) -> pb.ListDecisionsResponse:
        """Stored decisions, newest first, a page at a time; a standby reads them as well."""
        found, token = await self._stored.page(
            decision_filter_from_proto(request.filter),
            request.page_size,
            request.page_token,
            full=_view_of(request.view) is DecisionView.FULL,
        )
        decisions = await self._orchestrator.explaining.run(lambda: [decision_to_proto(each) for each in found])
        return pb.ListDecisionsResponse(decisions=decisions, next_page_token=token)

    async def _end_watches(self) -> None:
        await self._draining.wait()
        self._feed.close()

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.DrainNodeResponse:
        """Drains a node."""
        return pb.DrainNodeResponse(running_job_ids=await self._orchestrator.drain(request.node_id, request.reason))

    async def UndrainNode(self, request: pb.UndrainNodeRequest, context: Context) -> pb.UndrainNodeResponse:
        """Lets jobs start on a node again."""
        await self._orchestrator.undrain(request.node_id)
        return pb.UndrainNodeResponse()

    async def GetClusterCapacity(
        self, request: pb.GetClusterCapacityRequest, context: Context
    ) -> pb.GetClusterCapacityResponse:
        """What is free now, by GPU model."""
        return capacity_to_proto(self._orchestrator.capacity())

    async def SetQuota(self, request: pb.SetQuotaRequest, context: Context) -> pb.SetQuotaResponse:
        """Limits the GPUs that the jobs of a user may hold at once."""
        gpu_count = request.gpu_count if request.HasField("gpu_count") else None
        return pb.SetQuotaResponse(previous_gpu_count=await self._orchestrator.set_quota(request.user, gpu_count))

    async def ListQuotas(self, request: pb.ListQuotasRequest, context: Context) -> pb.ListQuotasResponse:
        """The quotas."""
        return pb.ListQuotasResponse(quotas=map(quota_to_proto, self._orchestrator.quotas()))

    async def SetFairShare(self, request: pb.SetFairShareRequest, context: Context) -> pb.SetFairShareResponse:
        """Sets the shares of an account, or the group of a user."""
        shares = request.shares if request.HasField("shares") else None
        group = request.group if request.HasField("group") else None
        if request.remove == (shares is not None or group is not None):
            raise InvalidInput("remove: give shares, a group or both, or remove alone", field="remove")
        now = await self._orchestrator.set_fair_share(request.account, shares, group)
        return pb.SetFairShareResponse(fair_share=fair_share_to_proto(now))

    async def ListFairShares(self, request: pb.ListFairSharesRequest, context: Context) -> pb.ListFairSharesResponse:
        """The shares of accounts."""
        return pb.ListFairSharesResponse(fair_shares=map(fair_share_to_proto, self._orchestrator.fair_shares()))


def warm() -> None:
    """Compiles the code for decisions, or loads it from numba's cache; image builds call it."""
    ledger = warm_ledger.warm()
    waits.warm(ledger)
    forecasting.warm(ledger)
    checkpoint.warm()


def _view_of(number: int) -> DecisionView:
    """The view of a request; not stated: all."""
    return DecisionView.SUMMARY if number == pb.DECISION_VIEW_SUMMARY else DecisionView.FULL


def watch_message(made: Made, view: DecisionView) -> bytes:
    """The message of WatchDecisions about a decision."""
    if view is DecisionView.SUMMARY:
        message = pb.WatchDecisionsResponse(decisions=[decision_to_proto(made.summarised())])
    else:
        message = pb.WatchDecisionsResponse(decision=decision_to_proto(made.explained()))
    return message.SerializeToString()
