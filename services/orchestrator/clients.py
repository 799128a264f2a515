"""gRPC clients of the other services: the cluster and decompose. They translate messages and decide nothing."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import grpc
import numpy as np

from adlro.errors import DeadlineExceeded, InternalError
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.status import from_rpc_error, readable
from adlro.numeric.exact import log
from adlro.numeric.normal import quantile
from adlro.placement import Placement
from adlro.records.events import AttemptState, Clock, ClusterDescription, EventBatch
from adlro.records.jobs import AttemptRef, JobSpec
from adlro.records.matrices import SUSPECTED
from adlro.records.outcomes import ApplicationSize
from adlro.records.predictions import PredictedInterval, PredictionBasis
from adlro.records.specifications import for_predictions
from adlro.services.orchestrator.ports import Launched, Predicted, PredictedPairs
from adlro.v1 import (
    cluster_service_pb2,
    cluster_service_pb2_grpc,
    decompose_service_pb2,
    decompose_service_pb2_grpc,
)
from adlro.wire import (
    application_size_to_proto,
    attempt_ref_to_proto,
    batch_from_proto,
    clock_from_proto,
    description_from_proto,
    placement_to_proto,
    spec_to_proto,
)

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
# Pairs in one call to decompose: half a second of a core.
PAIRS_AT_A_TIME = 2000
# A service of an older version reports no state, one of a newer version perhaps a state unknown here.
_ATTEMPT_STATES = frozenset(int(state) for state in AttemptState)
_PREDICTION_BASES = frozenset(int(basis) for basis in PredictionBasis)


async def _answer(call: Awaitable[T]) -> T:
    try:
        return readable(await call)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


class ClusterClient:
    """A ClusterService: the simulated cluster, or an adapter to a real one.

    Raises:
        adlro.errors.AdlroError: from every method, the cluster's error.
    """

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.address = address
        self._channel = open_channel(address, credentials)
        self._stub = cluster_service_pb2_grpc.ClusterServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close(None)

    async def describe(self) -> ClusterDescription:
        """The cluster's description and its running attempts."""
        request = cluster_service_pb2.DescribeClusterRequest()
        return description_from_proto(await _answer(self._stub.DescribeCluster(request, timeout=CALL_TIMEOUT_S)))

    async def launch(
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        token: int,
        incarnation: str,
        *,
        preempts: Sequence[AttemptRef] = (),
        remaining_ratio: float = 1.0,
        resumes: bool = False,
    ) -> Launched:
        """See ClusterPort."""
        request = cluster_service_pb2.LaunchJobRequest(
            job_id=job_id,
            attempt=attempt,
            spec=spec_to_proto(spec),
            gpu_id=placement.gpu_id,
            placement=placement_to_proto(placement),
            fencing_token=token,
            incarnation=incarnation,
            preempts=map(attempt_ref_to_proto, preempts),
            remaining_ratio=None if remaining_ratio == 1.0 else remaining_ratio,
            resumes=resumes,
        )
        answer = await _answer(self._stub.LaunchJob(request, timeout=CALL_TIMEOUT_S))
        state = int(answer.state)
        return Launched(answer.revision, AttemptState(state) if state in _ATTEMPT_STATES else None)

    async def stop(self, job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        """Stops an attempt; safe to repeat. False: it is not open, or its stop is already requested."""
        request = cluster_service_pb2.StopJobRequest(
            job_id=job_id, attempt=attempt, fencing_token=token, incarnation=incarnation
        )
        return (await _answer(self._stub.StopJob(request, timeout=CALL_TIMEOUT_S))).stopped

    async def acknowledge(self, incarnation: str, revision: int, token: int) -> None:
        """Acknowledges all events up to a revision."""
        request = cluster_service_pb2.AcknowledgeEventsRequest(
            incarnation=incarnation, revision=revision, fencing_token=token
        )
        await _answer(self._stub.AcknowledgeEvents(request, timeout=CALL_TIMEOUT_S))

    async def wake_at(self, times_s: Sequence[float]) -> Clock:
        """Requests wake-ups; a past time gives one at once. Returns the clock at the request."""
        request = cluster_service_pb2.WakeAtRequest(times_s=times_s)
        return clock_from_proto((await _answer(self._stub.WakeAt(request, timeout=CALL_TIMEOUT_S))).clock)

    async def advance_to(self, time_s: float) -> Clock:
        """Moves a simulated clock forward to a time; a clock that is ahead stays as it is."""
        request = cluster_service_pb2.SetClockRequest(not_before_s=time_s)
        return clock_from_proto((await _answer(self._stub.SetClock(request, timeout=CALL_TIMEOUT_S))).clock)

    async def events(self, incarnation: str, after_revision: int) -> AsyncIterator[EventBatch]:
        """The cluster's events after a revision, then new ones, until the connection breaks."""
        request = cluster_service_pb2.WatchEventsRequest(incarnation=incarnation, after_revision=after_revision)
        call = self._stub.WatchEvents(request)
        try:
            async for message in call:
                yield batch_from_proto(readable(message))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()


class DecomposeClient:
    """A DecomposeService, for runtime predictions and the speeds of single GPUs.

    Of several replicas behind the address it calls one, until its connection breaks or a call times out.

    Args:
        address: `host:port`.
        timeout_s: timeout of each call.
        credentials: the credentials of the calls.
    """

    def __init__(self, address: str, timeout_s: float, credentials: Credentials | None = None) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._left: set[asyncio.Task[None]] = set()
        self._connect()

    def _connect(self) -> None:
        self._channel = open_channel(self.address, self._credentials)
        self._stub = decompose_service_pb2_grpc.DecomposeServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the connection."""
        for left in self._left:
            left.cancel()
        await self._channel.close(None)

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        """The expected duration of each job on each model.

        Raises:
            adlro.errors.AdlroError: decompose does not answer, or not in time.
        """
        request = decompose_service_pb2.PredictRuntimeRequest(
            jobs=[spec_to_proto(for_predictions(spec)) for spec in specs], gpu_models=gpu_models
        )
        answer = await self._asked(self._stub.PredictRuntime, request)
        median_s = np.array([[each.median_s for each in row.predictions] for row in answer.predictions])
        spread = np.array([_spread(row.predictions) for row in answer.predictions])
        spread_speed = None
        if any(spec.gpu_count > 1 for spec in specs):
            spread_speed = np.array(
                [
                    [each.spread_speed if each.HasField("spread_speed") else math.nan for each in row.predictions]
                    for row in answer.predictions
                ]
            )
        restart_s = None
        if any(spec.preemptible is not None for spec in specs):
            restart_s = np.array(
                [row.restart_s if row.HasField("restart_s") else math.nan for row in answer.predictions]
            )
        return Predicted(
            median_s,
            answer.prediction_revision,
            answer.memory_revision,
            spread,
            spread_speed,
            restart_s,
            [_interval(row.predictions) for row in answer.predictions],
        )

    async def pairs(self, kinds: Sequence[ApplicationSize], gpu_models: Sequence[str]) -> PredictedPairs:
        """The kept shares of F kinds of jobs beside each other on K GPU models; in several calls for many.

        Raises:
            adlro.errors.AdlroError: decompose does not answer, or not in time, or answers what can't be.
        """
        shape = len(kinds), len(kinds), len(gpu_models)
        kept, std, revision = np.ones(shape), np.zeros(shape), 0
        beside = [application_size_to_proto(each) for each in kinds]
        at_a_time = max(1, PAIRS_AT_A_TIME // max(1, len(kinds) * len(gpu_models)))
        for start in range(0, len(kinds), at_a_time):
            request = decompose_service_pb2.PredictPairsRequest(
                kinds=beside[start : start + at_a_time], beside=beside, gpu_models=gpu_models
            )
            answer = await self._asked(self._stub.PredictPairs, request)
            rows = len(request.kinds), *shape[1:]
            found = np.array(answer.kept_share), np.array(answer.std)
            if any(each.size != math.prod(rows) or not np.isfinite(each).all() or (each < 0).any() for each in found):
                raise InternalError("decompose answered with invalid kept shares")
            kept[start : start + at_a_time], std[start : start + at_a_time] = (each.reshape(rows) for each in found)
            revision = answer.revision
        return PredictedPairs(np.minimum(kept, 1.0), std, revision)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        """By id, the speed relative to its model of each GPU of a cluster that is suspected to be slower than that.

        Not only those that are flagged: a flag is for people, and comes later. The speed of a GPU that is suspected by
        chance is near 1, so that believing it costs little.

        Raises:
            adlro.errors.AdlroError: decompose does not answer, not in time, or does not know the cluster.
        """
        request = decompose_service_pb2.GetClusterStateRequest(cluster=cluster)
        answer = await self._asked(self._stub.GetClusterState, request)
        return {gpu.gpu_id: gpu.drift.speed_ratio for gpu in answer.state.gpus if gpu.drift.score >= SUSPECTED}

    async def _asked(self, method: Callable[..., Awaitable[T]], request: object) -> T:
        channel = self._channel
        try:
            return await _answer(method(request, timeout=self._timeout_s))
        except DeadlineExceeded:
            if channel is self._channel:  # another replica may respond
                # Other calls on the channel may still succeed; closing it now would cancel them.
                leaving = asyncio.create_task(channel.close(2 * self._timeout_s), name="leave a replica of decompose")
                self._left.add(leaving)
                leaving.add_done_callback(self._left.discard)
                self._connect()
            raise


_quantile = functools.lru_cache(maxsize=64)(quantile)  # decompose's intervals have one coverage


def _interval(predictions: Sequence[decompose_service_pb2.RuntimePrediction]) -> PredictedInterval:
    """The intervals of one job's predictions; coverage and basis are those of the first, which all have."""
    first = predictions[0] if predictions else decompose_service_pb2.RuntimePrediction()
    return PredictedInterval(
        [each.low_s for each in predictions],
        [each.high_s for each in predictions],
        first.interval_coverage,
        PredictionBasis(first.basis) if first.basis in _PREDICTION_BASES else None,
    )


def _spread(predictions: Sequence[decompose_service_pb2.RuntimePrediction]) -> float:
    """Standard deviation of ln(runtime) of one job, mean over the models; its intervals count as normal ones."""
    of_models = [
        log(each.high_s / each.low_s) / (2.0 * _quantile(0.5 + each.interval_coverage / 2.0))
        for each in predictions
        if 0.0 < each.low_s <= each.high_s < math.inf and 0.0 < each.interval_coverage < 1.0
    ]
    return math.fsum(of_models) / len(of_models) if of_models else 0.0
