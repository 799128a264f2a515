"""DecomposeService over gRPC: translates between messages and decompose's own records; decides nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from adlro.errors import FieldViolation, InvalidInput
from adlro.kit.redis import connect, connect_blocking, watch_redis
from adlro.kit.server import ServiceContext
from adlro.v1 import decompose_service_pb2 as pb
from adlro.v1 import decompose_service_pb2_grpc as pb_grpc
from adlro.wire import spec_from_proto, spec_to_proto
from services.decompose.clients import RedisReader
from services.decompose.follow import Followers
from services.decompose.memory import OutcomeMemory, Recollection
from services.decompose.metrics import Metrics
from services.decompose.predict import PlainPredictor, Predictor
from services.decompose.settings import DecomposeSettings
from services.decompose.speeds import Speeds
from services.decompose.state import METRIC_UNITS, Clusters, Snapshot
from services.decompose.variables import Variable, Variables

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_CLUSTER = "default"
DEFAULT_RECALL_COUNT = 8
DEFAULT_WATCH_INTERVAL_S = 0.1
# Work between two looks at other calls: a few milliseconds each.
_JOBS_AT_A_TIME, _JOBS_WITH_EVIDENCE_AT_A_TIME, _RECORDS_AT_A_TIME = 250, 8, 500


class DecomposeServer(pb_grpc.DecomposeServiceServicer):
    """Decompose as a service of the kit."""

    name = "decompose"
    service_names: Sequence[str] = ("adlro.v1.DecomposeService",)

    def __init__(self, settings: DecomposeSettings) -> None:
        self._settings = settings
        self._variables = Variables()
        self._clusters = Clusters()
        speeds = Speeds()
        self._memory = OutcomeMemory(self._variables, speeds, settings.memory_capacity)
        self._predictor: Predictor = PlainPredictor(self._memory, self._variables, speeds, self._clusters.gpu_models)
        self._states: dict[str, tuple[Snapshot, pb.ClusterState]] = {}
        self._followers: Followers
        self._metrics: Metrics
        self._draining: asyncio.Event

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicer."""
        pb_grpc.add_DecomposeServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        """Connects and begins to follow the streams."""
        settings = self._settings
        self._draining = context.draining
        self._metrics = Metrics(context.registry)
        self._metrics.remembered.set_function(lambda: len(self._memory))
        redis = connect(settings.redis_url)
        self._reader = RedisReader(redis, connect_blocking(settings.redis_url))
        self._followers = Followers(
            self._reader,
            self._predictor,
            self._clusters,
            poll_s=settings.descriptions_poll_s,
            telemetry_tail_count=settings.telemetry_tail_count,
            metrics=self._metrics,
            log=context.log,
            on_state=lambda waiting_for: context.health.set_serving(not waiting_for, waiting_for, source="streams"),
        )
        context.health.set_serving(False, "nothing has been folded yet", source="streams")
        context.spawn(watch_redis(context, redis), "watch redis")
        self._life = context.spawn(self._followers.run(), "follow streams")

    async def stop(self) -> None:
        """Stops following, closes connections."""
        self._life.cancel()
        await asyncio.wait([self._life], timeout=1.0)
        await self._reader.close()

    # ---- DecomposeService

    async def Decompose(self, request: pb.DecomposeRequest, context: Context) -> pb.DecomposeResponse:
        """Records to variables."""
        _refuse_unknown_fields(request)
        response = pb.DecomposeResponse()
        for number, record in enumerate(request.records):
            if number and not number % _RECORDS_AT_A_TIME:
                await asyncio.sleep(0)
            if record.WhichOneof("record") == "job":
                variables = self._variables.of_job(spec_from_proto(record.job))
            else:
                gpu = record.gpu
                variables = self._variables.of_gpu(
                    gpu.gpu_model,
                    gpu.utilization_ratio if gpu.HasField("utilization_ratio") else None,
                    gpu.memory_used_mib if gpu.HasField("memory_used_mib") else None,
                    gpu.temperature_c if gpu.HasField("temperature_c") else None,
                )
            response.decompositions.add(variables=_variables(variables))
        return response

    async def GetClusterState(self, request: pb.GetClusterStateRequest, context: Context) -> pb.GetClusterStateResponse:
        """The GPU matrix."""
        matrix = await self._followers.matrix(request.cluster or DEFAULT_CLUSTER)
        return pb.GetClusterStateResponse(state=self._state(matrix.snapshot()))

    async def WatchClusterState(
        self, request: pb.WatchClusterStateRequest, context: Context
    ) -> AsyncIterator[pb.WatchClusterStateResponse]:
        """The GPU matrix now and on change; changes between two messages become one."""
        name = request.cluster or DEFAULT_CLUSTER
        interval_s = request.min_interval_s or DEFAULT_WATCH_INTERVAL_S
        matrix = await self._followers.matrix(name)
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            while not draining.done():
                snapshot = matrix.snapshot()
                yield pb.WatchClusterStateResponse(state=self._state(snapshot))
                await asyncio.wait([draining], timeout=interval_s)
                changed = asyncio.ensure_future(matrix.changed(snapshot.revision))
                try:
                    await asyncio.wait([changed, draining], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                matrix = self._clusters.find(name)  # it may have gone, or come anew
        finally:
            draining.cancel()

    async def PredictRuntime(self, request: pb.PredictRuntimeRequest, context: Context) -> pb.PredictRuntimeResponse:
        """Jobs x GPU models."""
        models = list(request.gpu_models)
        response = pb.PredictRuntimeResponse(memory_revision=self._predictor.revision)
        step = _JOBS_WITH_EVIDENCE_AT_A_TIME if request.max_evidence else _JOBS_AT_A_TIME
        for start in range(0, len(request.jobs), step):
            if start:
                await asyncio.sleep(0)
            jobs = [spec_from_proto(job) for job in request.jobs[start : start + step]]
            began = time.perf_counter()
            predictions = self._predictor.predict(jobs, models)
            self._metrics.predict_s.observe(time.perf_counter() - began)
            rows = zip(
                predictions.median_s.tolist(),
                predictions.low_s.tolist(),
                predictions.high_s.tolist(),
                predictions.basis,
                predictions.novelty.tolist(),
                strict=True,
            )
            for medians, lows, highs, basis, novelty in rows:
                response.predictions.add(
                    predictions=[
                        pb.RuntimePrediction(
                            gpu_model=model,
                            median_s=median,
                            low_s=low,
                            high_s=high,
                            interval_coverage=predictions.coverage,
                            basis=int(basis),  # type: ignore[arg-type]  # enum numbers are those of Basis
                            novelty=novelty,
                        )
                        for model, median, low, high in zip(models, medians, lows, highs, strict=True)
                    ]
                )
            if request.max_evidence:
                evidence = self._predictor.evidence(jobs, models, request.max_evidence)
                for number, of_job in enumerate(evidence, start):
                    for prediction, of_model in zip(response.predictions[number].predictions, of_job, strict=True):
                        prediction.evidence.extend(_evidence(of_model))
        return response

    async def Recall(self, request: pb.RecallRequest, context: Context) -> pb.RecallResponse:
        """The finished jobs most like one."""
        found = self._predictor.recall(spec_from_proto(request.job), request.k or DEFAULT_RECALL_COUNT)
        return pb.RecallResponse(
            recollections=[
                pb.Recollection(
                    job_id=each.job.job_id,
                    similarity=each.similarity,
                    job=spec_to_proto(each.job.spec),
                    gpu_model=each.job.gpu_model,
                    runtime_s=each.job.runtime_s,
                )
                for each in found
            ]
        )

    def _state(self, snapshot: Snapshot) -> pb.ClusterState:
        """The message of a snapshot; made once for all who ask for it."""
        made = self._states.get(snapshot.cluster)
        if made is None or made[0] is not snapshot:
            made = self._states[snapshot.cluster] = snapshot, self._state_message(snapshot)
        return made[1]

    def _state_message(self, snapshot: Snapshot) -> pb.ClusterState:
        message = pb.ClusterState(
            cluster=snapshot.cluster, newest_sample_unix_s=snapshot.newest_sample_unix_s, revision=snapshot.revision
        )
        times, levels = snapshot.sample_times_unix_s.tolist(), snapshot.levels.T.tolist()
        for (gpu_id, node_id, gpu_model), sample_time, of_gpu in zip(snapshot.gpus, times, levels, strict=True):
            message.gpus.add(
                gpu_id=gpu_id,
                node_id=node_id,
                gpu_model=gpu_model,
                sample_time_unix_s=None if math.isnan(sample_time) else sample_time,
                variables=_variables(self._variables.of_gpu_levels(gpu_model, *of_gpu)),
            )
        for plane in snapshot.planes:
            message.planes.add(
                metric=int(plane.metric),
                normalized_f32=plane.normalized.astype("<f4").tobytes(),
                raw_f32=plane.raw.astype("<f4").tobytes(),
                unit=METRIC_UNITS[plane.metric],
            )
        return message


def _variables(variables: Iterable[Variable]) -> list[pb.Variable]:
    return [pb.Variable(name=each.name, value=each.value, index=each.index) for each in variables]


def _evidence(recollections: Iterable[Recollection]) -> list[pb.Evidence]:
    return [
        pb.Evidence(
            job_id=each.job.job_id,
            similarity=each.similarity,
            gpu_model=each.job.gpu_model,
            runtime_s=each.job.runtime_s,
        )
        for each in recollections
    ]


def _refuse_unknown_fields(request: pb.DecomposeRequest) -> None:
    """Refuses fields that this release doesn't know: a variable left out silently would be a wrong answer.

    Other calls ignore them, as protobuf does, so that a newer orchestrator can be rolled out first.

    Raises:
        InvalidInput: naming each such field by its path and number.
    """
    violations: list[FieldViolation] = []
    _find_unknown_fields(request, "", violations)
    if violations:
        raise InvalidInput(violations[0].description, violations=violations[:20], reason="UNKNOWN_FIELD")


def _find_unknown_fields(message: Message, path: str, violations: list[FieldViolation]) -> None:
    unknown_fields = UnknownFieldSet(message)
    for unknown in (unknown_fields[i] for i in range(len(unknown_fields))):
        where = path or message.DESCRIPTOR.name
        violations.append(
            FieldViolation(
                where,
                f"{where}: field number {unknown.field_number} is not known to this release; "
                "leave it out, or ask a newer decompose",
            )
        )
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        name = f"{path}.{field.name}" if path else field.name
        if field.is_repeated:
            for number, each in enumerate(value):
                _find_unknown_fields(each, f"{name}[{number}]", violations)
        else:
            _find_unknown_fields(value, name, violations)
