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

from adlro.errors import InvalidInput
from adlro.kit.metrics import OnLoop
from adlro.kit.redis import connect, connect_blocking, connect_in_thread, watch_redis
from adlro.kit.server import ServiceContext
from adlro.services.orchestrator.clients import ClusterClient, DecomposeClient
from adlro.services.orchestrator.deciding import checkpoint
from adlro.services.orchestrator.deciding.policy_selection import Choices
from adlro.services.orchestrator.explain import waits
from adlro.services.orchestrator.instrumented import InstrumentedCluster, InstrumentedStore
from adlro.services.orchestrator.lease import RENEWALS, Lease
from adlro.services.orchestrator.ledger import warm as warm_ledger
from adlro.services.orchestrator.metrics import OrchestratorMetrics, show_view
from adlro.services.orchestrator.orchestrator import Orchestrator
from adlro.services.orchestrator.settings import OrchestratorSettings
from adlro.services.orchestrator.status_feed import DEFAULT_INTERVAL_S, LEAST_INTERVAL_S, StatusFeed
from adlro.store.format import checked, claim_at_start
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc
from adlro.wire import decision_to_proto, policy_to_proto, status_to_proto

Context = grpc.aio.ServicerContext[Any, Any]

# Seconds between two checks whether this instance still makes the watched decisions.
_LOOK_S = 1.0


class OrchestratorServer(pb_grpc.OrchestratorServiceServicer):
    """The orchestrator as a service of the kit."""

    name = "orchestrator"
    service_names: Sequence[str] = ("adlro.v1.OrchestratorService",)

    def __init__(self, settings: OrchestratorSettings) -> None:
        self._settings = settings
        self._orchestrator: Orchestrator
        self._draining: asyncio.Event
        self._clients: list[ClusterClient | DecomposeClient] = []
        self._feed = StatusFeed(self._encoded_status)

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
                deadline_s=settings.decision_deadline_s,
                wait_ratio=settings.wait_ratio,
            ),
            max_attempts=settings.max_attempts,
            min_run_s=settings.preemption_min_run_s if settings.preemption == "on" else None,
            decisions_kept=settings.decisions_kept,
            metrics=metrics,
            log=context.log,
        )
        show_view(OnLoop(self._orchestrator.view), context.registry)
        await claim_at_start(redis)
        context.spawn(watch_redis(context, redis, check=checked(redis)), "watch redis")
        context.spawn(self._orchestrator.run(), "orchestrate")

    async def stop(self) -> None:
        """Stops placing jobs, releases the lease, closes connections."""
        await self._orchestrator.stop()
        for client in self._clients:
            await client.close()
        for redis in self._redis:
            await redis.aclose()
        self._of_thread.close()

    # ---- OrchestratorService

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The orchestrator's status."""
        return status_to_proto(await self._orchestrator.status())

    async def WatchStatus(  # type: ignore[override]  # bytes: the messages are serialised once for all
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
        self._orchestrator.refuse_if_standing_by()
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            async for encoded in self._feed.watch(interval_s, draining, self._orchestrator.refuse_if_standing_by):
                yield encoded
        finally:
            draining.cancel()

    async def _encoded_status(self) -> bytes:
        return pb.WatchStatusResponse(status=status_to_proto(await self._orchestrator.status())).SerializeToString()

    async def ListPolicies(self, request: pb.ListPoliciesRequest, context: Context) -> pb.ListPoliciesResponse:
        """The policies to choose from."""
        self._orchestrator.refuse_if_standing_by()  # only the acting instance knows the choice
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
        self._orchestrator.refuse_if_standing_by()
        if request.WhichOneof("target") == "decision_id":
            decision = self._orchestrator.acting.decisions.get(request.decision_id).explained()
        else:
            decision = await self._orchestrator.explain_job(request.job_id)
        return pb.ExplainDecisionResponse(decision=decision_to_proto(decision))

    async def WatchDecisions(
        self, request: pb.WatchDecisionsRequest, context: Context
    ) -> AsyncIterator[pb.WatchDecisionsResponse]:
        """Sends each new decision."""
        self._orchestrator.refuse_if_standing_by()
        log = self._orchestrator.acting.decisions
        watcher = log.watch()
        draining = asyncio.ensure_future(self._draining.wait())
        newest = asyncio.ensure_future(watcher.get())
        try:
            for decision in log.last(request.history):
                yield pb.WatchDecisionsResponse(decision=decision_to_proto(decision.explained()))
            while True:
                await asyncio.wait([newest, draining], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if not newest.done():
                    if draining.done():
                        return
                    # Another instance decides now: the error names it, instead of a stream that stays silent.
                    self._orchestrator.refuse_if_standing_by()
                    continue
                yield pb.WatchDecisionsResponse(decision=decision_to_proto(newest.result().explained()))
                newest = asyncio.ensure_future(watcher.get())
        finally:
            draining.cancel()
            newest.cancel()
            log.unwatch(watcher)

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.DrainNodeResponse:
        """Drains a node."""
        return pb.DrainNodeResponse(running_job_ids=await self._orchestrator.drain(request.node_id, request.reason))

    async def UndrainNode(self, request: pb.UndrainNodeRequest, context: Context) -> pb.UndrainNodeResponse:
        """Lets jobs start on a node again."""
        await self._orchestrator.undrain(request.node_id)
        return pb.UndrainNodeResponse()


def warm() -> None:
    """Compiles the code for decisions, or loads it from numba's cache; image builds call it."""
    waits.warm(warm_ledger.warm())
    checkpoint.warm()
