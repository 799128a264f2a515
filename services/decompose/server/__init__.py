"""DecomposeService over gRPC: translates between messages and decompose's own records; decides nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from adlro.errors import InvalidInput
from adlro.hardware.shared_speeds import chip_of
from adlro.kit.metrics import OnLoop
from adlro.kit.redis import connect, connect_blocking, watch_redis
from adlro.kit.server import ServiceContext
from adlro.records.matrices import ClusterState, GpuState
from adlro.records.predictions import PredictionBasis
from adlro.records.specifications import completed
from adlro.services.decompose.clients import RedisReader
from adlro.services.decompose.clusters.cluster_bundle import ClusterBundle
from adlro.services.decompose.clusters.gpu_figures import GpuFigures, show_gpu_figures
from adlro.services.decompose.clusters.gpu_matrix import GpuMatrices, GpuMatrixSnapshot
from adlro.services.decompose.learning import Learning
from adlro.services.decompose.memory_file import MemoryFile
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import GpuKey, OutcomeMemory
from adlro.services.decompose.outcomes.restart_costs import RestartCosts
from adlro.services.decompose.pairs.pair_fits import PairFits, with_shipped
from adlro.services.decompose.pairs.pair_memory import PairKey, PairMemory
from adlro.services.decompose.runtimes.background_refits import BackgroundRefits
from adlro.services.decompose.runtimes.coverage_figures import CoverageFigures, show_coverage
from adlro.services.decompose.runtimes.drift import DriftDetectors, summary_of
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.runtimes.plain_predictor import PlainPredictor
from adlro.services.decompose.runtimes.predictor import Predictor, require_known
from adlro.services.decompose.server import messages
from adlro.services.decompose.settings import DecomposeSettings
from adlro.services.decompose.state_feed import StateFeed
from adlro.services.decompose.stream_followers import START, FollowedStreams
from adlro.services.decompose.variables.variables import VOCABULARY_VERSION, Variables
from adlro.store.format import checked, claim_at_start
from adlro.v1 import decompose_service_pb2 as pb
from adlro.v1 import decompose_service_pb2_grpc as pb_grpc
from adlro.wire import (
    PlanesNow,
    VariableValues,
    cluster_state_to_proto,
    evidence_to_proto,
    planes_to_proto,
    predictions_to_proto,
    recollection_to_proto,
    spec_from_proto,
    variable_to_proto,
)

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_RECALL_COUNT = 8
DEFAULT_WATCH_INTERVAL_S = 0.1
# Items of work before other calls run: a few milliseconds each.
_JOBS_AT_A_TIME, _JOBS_WITH_EVIDENCE_AT_A_TIME, _RECORDS_AT_A_TIME = 250, 8, 500
_PREDICTIONS_AT_A_TIME, _PREDICTIONS_WITH_EVIDENCE_AT_A_TIME = 1000, 24
_PAIRS_AT_A_TIME = 1000
PAIRS_LIMIT = 10_000
"""Limit of one call's pairs: seconds of one core."""
PREDICTION_LIMIT = 100_000
"""Limit of one call's predictions, jobs x (models + GPUs): their message is some 10 MB."""


class DecomposeServer(pb_grpc.DecomposeServiceServicer):
    """Decompose as a service of the kit."""

    name = "decompose"
    service_names: Sequence[str] = ("adlro.v1.DecomposeService",)

    def __init__(self, settings: DecomposeSettings) -> None:
        self._settings = settings
        self._variables = Variables()
        self._clusters = GpuMatrices()
        speeds = ModelSpeeds()
        self._memory = OutcomeMemory(
            self._variables, speeds, settings.memory_capacity, max_age_s=settings.memory_max_age_s
        )
        self._drift = DriftDetectors()
        self._predictor: Predictor
        self._learned: LearnedPredictor | None = None
        self._refits: BackgroundRefits | None = None
        if settings.predictor == "plain":
            self._predictor = PlainPredictor(self._memory, speeds, self._clusters.gpu_models)
        else:
            self._predictor = self._learned = LearnedPredictor(
                self._memory, self._variables, speeds, self._clusters.gpu_models, self._drift, refits_itself=False
            )
        self._speeds = speeds
        self._pairs = PairFits(PairMemory())
        self._learning = Learning(self._predictor, speeds, RestartCosts(), self._pairs)
        self._states: dict[str, tuple[GpuMatrixSnapshot, int, pb.ClusterState]] = {}
        self._bundles: dict[str, ClusterBundle] = {}
        self._planes: dict[str, PlanesNow] = {}
        self._feeds: dict[tuple[str, bool, float], StateFeed[GpuMatrixSnapshot] | StateFeed[PlanesNow]] = {}
        self._memory_file: MemoryFile | None = None
        self._followers: FollowedStreams
        self._metrics: DecomposeMetrics
        self._draining: asyncio.Event

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicer."""
        pb_grpc.add_DecomposeServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        """Connects and starts to follow the streams."""
        settings = self._settings
        self._draining = context.draining
        self._metrics = DecomposeMetrics(context.registry)
        self._metrics.remembered.set_function(lambda: len(self._memory))
        self._log = context.log
        self._metrics.flagged_gpus.set_function(
            OnLoop(lambda: sum(each.flagged for each in self._drift.gpus.states().values()))
        )
        self._metrics.mix_drift.set_function(OnLoop(lambda: self._drift.mix.state().score))
        show_gpu_figures(OnLoop(self._gpu_figures), context.registry)
        show_coverage(OnLoop(self._coverage_figures), context.registry)
        self._pairs.report_to(self._metrics, self._log)
        if self._learned is not None:
            self._refits = BackgroundRefits(self._learned, self._metrics, self._log)
        outcomes_after = START
        if settings.memory_path is not None:
            self._memory_file = MemoryFile(
                settings.memory_path, self._memory, self._variables, self._learning, self._metrics, self._log
            )
            refitted = None if self._refits is None else self._refits.for_learning
            outcomes_after = await self._memory_file.load(refitted)
        redis = connect(settings.redis_url)
        self._reader = RedisReader(redis, connect_blocking(settings.redis_url))
        self._followers = FollowedStreams(
            self._reader,
            self._learning,
            self._clusters,
            poll_s=settings.descriptions_poll_s,
            telemetry_tail_count=settings.telemetry_tail_count,
            metrics=self._metrics,
            log=context.log,
            outcomes_after=outcomes_after,
            keep_outcomes=settings.memory_path is not None,
            learned=None if self._refits is None else self._refits.for_learning,
            on_state=lambda waiting_for: context.health.set_serving(not waiting_for, waiting_for, source="streams"),
        )
        context.health.set_serving(False, "no stream has been read yet", source="streams")
        if self._memory_file is not None:
            keeping = self._memory_file.keep(
                lambda: self._followers.outcomes_cursor, settings.memory_save_interval_s, self._draining
            )
            context.spawn(keeping, "keep memory")
        await claim_at_start(redis, writes=False)
        context.spawn(watch_redis(context, redis, writes=False, check=checked(redis, writes=False)), "watch redis")
        self._life = context.spawn(self._followers.run(), "follow streams")

    async def stop(self) -> None:
        """Stops following, closes connections."""
        self._life.cancel()
        await asyncio.wait([self._life], timeout=1.0)
        if self._refits is not None:
            await self._refits.stop()
        await self._pairs.stop()
        await self._reader.close()
        if self._memory_file is not None:
            await self._memory_file.save(self._followers.outcomes_cursor)

    def _gpu_figures(self) -> GpuFigures:
        snapshots = [matrix.snapshot() for matrix in self._clusters.matrices.values()]
        return GpuFigures(snapshots, self._drift.gpus.states(), time.time())

    def _coverage_figures(self) -> CoverageFigures:
        if self._learned is None:
            return CoverageFigures({}, {})
        return CoverageFigures(self._learned.coverage.counts(), self._learned.calibrations)

    # ---- DecomposeService

    async def Decompose(self, request: pb.DecomposeRequest, context: Context) -> pb.DecomposeResponse:
        """Separates records into variables."""
        messages.refuse_unknown_fields(request)
        if request.vocabulary_version not in {"", VOCABULARY_VERSION}:
            raise InvalidInput(
                f"vocabulary_version: this release has version {VOCABULARY_VERSION!r}, not "
                f"{request.vocabulary_version!r}: in another version the numbers mean other values; omit the "
                "field, and read the variables again",
                field="vocabulary_version",
                reason="ANOTHER_VOCABULARY",
            )
        response = pb.DecomposeResponse(vocabulary_version=VOCABULARY_VERSION)
        for number, record in enumerate(request.records):
            if number and not number % _RECORDS_AT_A_TIME:
                await asyncio.sleep(0)
            if record.WhichOneof("record") == "job":
                variables = self._variables.of_job(completed(spec_from_proto(record.job), f"records[{number}].job"))
            else:
                gpu = record.gpu
                variables = self._variables.of_gpu(
                    gpu.gpu_model,
                    gpu.utilization_ratio if gpu.HasField("utilization_ratio") else None,
                    gpu.memory_used_mib if gpu.HasField("memory_used_mib") else None,
                    gpu.temperature_c if gpu.HasField("temperature_c") else None,
                )
            response.decompositions.add(variables=[variable_to_proto(each) for each in variables])
        return response

    async def GetClusterState(self, request: pb.GetClusterStateRequest, context: Context) -> pb.GetClusterStateResponse:
        """Returns the GPU matrix."""
        matrix = await self._followers.matrix(await self._followers.named(request.cluster))
        snapshot = matrix.snapshot()
        if request.view == pb.CLUSTER_STATE_VIEW_PLANES:
            if request.include_bundle:
                raise InvalidInput(
                    "include_bundle: the view PLANES has no bundle; ask for the view FULL", field="include_bundle"
                )
            return pb.GetClusterStateResponse(planes=planes_to_proto(self._planes_at(snapshot)))
        state = self._state(snapshot)
        if request.include_bundle:
            # A copy: the cached message is shared with callers that did not request it.
            state = pb.ClusterState.FromString(state.SerializeToString())
            bundle = self._bundles.setdefault(snapshot.cluster, ClusterBundle())
            components = bundle.fold(snapshot)
            state.bundle.codebook_version = bundle.codebook_version
            state.bundle.components_i32 = components.astype("<i4").tobytes()
            for name, values in bundle.variables(self._variables).items():
                state.bundle.variables.add(name=name, values=values)
        return pb.GetClusterStateResponse(state=state)

    async def WatchClusterState(  # type: ignore[override]  # bytes: the messages are serialised once for all
        self, request: pb.WatchClusterStateRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Sends the GPU matrix now and after changes; changes between two messages become one.

        Bytes: a message is encoded once for all watchers of a view and an interval.
        """
        name = await self._followers.named(request.cluster)
        await self._followers.matrix(name)
        planes = request.view == pb.CLUSTER_STATE_VIEW_PLANES
        key = name, planes, request.min_interval_s or DEFAULT_WATCH_INTERVAL_S
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = self._feed(*key)
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            async for encoded in feed.watch(draining):
                yield encoded
        finally:
            draining.cancel()
            if feed.is_idle and self._feeds.get(key) is feed:
                del self._feeds[key]

    def _feed(self, name: str, planes: bool, interval_s: float) -> StateFeed[GpuMatrixSnapshot] | StateFeed[PlanesNow]:
        """The messages of WatchClusterState for all watchers of one view and interval."""

        def snapshot() -> GpuMatrixSnapshot:
            return self._clusters.find(name).snapshot()  # the cluster may be gone, or new

        async def changed(state: GpuMatrixSnapshot | PlanesNow) -> None:
            await self._clusters.find(name).changed(state.revision)

        def whole(state: GpuMatrixSnapshot) -> bytes:
            return pb.WatchClusterStateResponse(state=self._state(state)).SerializeToString()

        def encoded(now: PlanesNow, before: PlanesNow | None = None) -> bytes:
            return pb.WatchClusterStateResponse(planes=planes_to_proto(now, before)).SerializeToString()

        if not planes:
            return StateFeed(snapshot, changed, whole, None, interval_s)
        return StateFeed(
            lambda: self._planes_at(snapshot()), changed, encoded, lambda before, now: encoded(now, before), interval_s
        )

    async def PredictRuntime(self, request: pb.PredictRuntimeRequest, context: Context) -> pb.PredictRuntimeResponse:
        """Predicts jobs x GPU models."""
        models = list(request.gpu_models)
        width = len(models) + len(request.gpu_ids)  # predictions per job
        if len(request.jobs) * width > PREDICTION_LIMIT:
            raise InvalidInput(
                f"jobs: {len(request.jobs)} jobs for {len(models)} models and {len(request.gpu_ids)} GPUs are "
                f"{len(request.jobs) * width} predictions, more than {PREDICTION_LIMIT}; request at most "
                f"{PREDICTION_LIMIT // width} jobs at a time, or name fewer gpu_ids",
                field="jobs",
                reason="TOO_MANY_PREDICTIONS",
            )
        if request.job_ids and len(request.job_ids) != len(request.jobs):
            raise InvalidInput(
                f"job_ids: {len(request.job_ids)} ids for {len(request.jobs)} jobs; give one for each job, empty if "
                "the job has none, or omit job_ids",
                field="job_ids",
                reason="JOB_IDS_DO_NOT_FIT",
            )
        gpus = await self._gpus(request)
        if self._refits is not None:
            exact = self._learned is not None and self._learned.all_exact
            # Predictions of exact declarations depend on the fit only in interval and novelty, and these may be as old
            # as the fit that finished jobs are compared with: no refit or wait is needed.
            if not (exact and all(job.HasField("expected_runtime") for job in request.jobs)):
                await self._refits.for_question(self._settings.refit_patience_s)
        response = pb.PredictRuntimeResponse(
            memory_revision=self._learning.revision, prediction_revision=self._predictor.prediction_revision
        )
        step = min(_JOBS_AT_A_TIME, _PREDICTIONS_AT_A_TIME // width)
        if request.max_evidence:
            step = min(step, _JOBS_WITH_EVIDENCE_AT_A_TIME, _PREDICTIONS_WITH_EVIDENCE_AT_A_TIME // len(models))
        step = max(1, step)
        for start in range(0, len(request.jobs), step):
            if start:
                await asyncio.sleep(0)
            asked = enumerate(request.jobs[start : start + step], start)
            jobs = [completed(spec_from_proto(job), f"jobs[{number}]") for number, job in asked]
            began = time.perf_counter()
            predictions = self._predictor.predict(jobs, models)
            self._metrics.predict_s.observe(time.perf_counter() - began)
            self._metrics.count_predictions(Counter(PredictionBasis(basis).name.lower() for basis in predictions.basis))
            rows = zip(
                predictions.median_s.tolist(),
                predictions.low_s.tolist(),
                predictions.high_s.tolist(),
                predictions.basis,
                predictions.novelty.tolist(),
                messages.spread_columns(jobs, predictions.spread),
                map(self._learning.restart, jobs),
                strict=True,
            )
            for medians, lows, highs, basis, novelty, spread, restart in rows:
                response.predictions.append(
                    predictions_to_proto(
                        models,
                        medians,
                        lows,
                        highs,
                        predictions.coverage,
                        basis,
                        novelty,
                        spread,
                        None if restart is None else restart[:3],
                    )
                )
                if gpus:
                    messages.add_gpus(response.predictions[-1], gpus)
            if request.max_evidence:
                ids = request.job_ids[start : start + step]
                evidence = self._predictor.evidence(jobs, models, request.max_evidence, ids)
                for number, of_job in enumerate(evidence, start):
                    # Predictions of single GPUs, which follow, have the same evidence as those of their models.
                    for prediction, of_model in zip(response.predictions[number].predictions, of_job, strict=False):
                        prediction.evidence.extend(evidence_to_proto(each.evidence()) for each in of_model)
        return response

    async def PredictPairs(self, request: pb.PredictPairsRequest, context: Context) -> pb.PredictPairsResponse:
        """Predicts the kept shares of kinds of jobs beside others, on GPU models."""
        beside = request.beside or request.kinds
        count = len(request.kinds) * len(beside) * len(request.gpu_models)
        if count > PAIRS_LIMIT:
            raise InvalidInput(
                f"kinds: {len(request.kinds)} kinds beside {len(beside)} on {len(request.gpu_models)} models are "
                f"{count} pairs, more than {PAIRS_LIMIT}; name fewer kinds at a time, each beside all of `beside`",
                field="kinds",
                reason="TOO_MANY_PAIRS",
            )
        require_known(request.gpu_models, self._speeds, self._clusters.gpu_models())
        await self._pairs.for_question(self._settings.refit_patience_s)
        response = pb.PredictPairsResponse(revision=self._pairs.revision)
        pairs = [
            PairKey(chip_of(model), kind, other)
            for kind in map(messages.sharing_kind, request.kinds)
            for other in map(messages.sharing_kind, beside)
            for model in request.gpu_models
        ]
        fit, seen = self._pairs.present(), self._pairs.seen()
        for start in range(0, count, _PAIRS_AT_A_TIME):
            # A third of a millisecond each, so in a thread.
            found = await asyncio.to_thread(with_shipped, fit, seen, pairs[start : start + _PAIRS_AT_A_TIME])
            response.kept_share.extend(found.mean.tolist())
            response.std.extend(found.std.tolist())
        return response

    async def Recall(self, request: pb.RecallRequest, context: Context) -> pb.RecallResponse:
        """The finished jobs that are most similar to one job."""
        found = self._predictor.recall(completed(spec_from_proto(request.job)), request.k or DEFAULT_RECALL_COUNT)
        return pb.RecallResponse(recollections=[recollection_to_proto(each.recollection()) for each in found])

    async def _gpus(self, request: pb.PredictRuntimeRequest) -> list[tuple[str, int, float]]:
        """The requested GPUs: id, number of the request's model, speed relative to it."""
        if not request.gpu_ids:
            return []
        name = await self._followers.named(request.cluster)
        model_of = {gpu_id: model for gpu_id, _, model in (await self._followers.matrix(name)).snapshot().gpus}
        number_of = {model: number for number, model in enumerate(request.gpu_models)}
        gpus = []
        for number, gpu_id in enumerate(request.gpu_ids):
            field = f"gpu_ids[{number}]"
            model = model_of.get(gpu_id)
            if model is None:
                raise InvalidInput(
                    f"{field}: cluster {name!r} has no GPU {gpu_id!r}", field=field, reason="UNKNOWN_GPU"
                )
            if model not in number_of:
                raise InvalidInput(
                    f"{field}: GPU {gpu_id!r} is a {model}, which is missing in gpu_models; add it", field=field
                )
            gpus.append((gpu_id, number_of[model], self._drift.gpus.state(GpuKey(name, gpu_id)).speed_ratio))
        return gpus

    def _state(self, snapshot: GpuMatrixSnapshot) -> pb.ClusterState:
        """The message of a snapshot; created once for all callers, until the next change."""
        made = self._states.get(snapshot.cluster)
        if made is None or made[0] is not snapshot or made[1] != self._predictor.revision:
            made = snapshot, self._predictor.revision, cluster_state_to_proto(self._state_of(snapshot))
            self._states[snapshot.cluster] = made
        return made[2]

    def _state_of(self, snapshot: GpuMatrixSnapshot) -> ClusterState:
        """The record of a snapshot, with the drift."""
        times, levels = snapshot.sample_times_unix_s.tolist(), snapshot.levels.T.tolist()
        drifts = [self._drift.gpus.state(GpuKey(snapshot.cluster, gpu_id)) for gpu_id, _, _ in snapshot.gpus]
        summary = summary_of(drifts, self._drift.mix.state())
        return ClusterState(
            cluster=snapshot.cluster,
            gpus=tuple(
                GpuState(
                    gpu_id=gpu_id,
                    node_id=node_id,
                    gpu_model=gpu_model,
                    sample_time_unix_s=None if math.isnan(sample_time) else sample_time,
                    variables=tuple(self._variables.of_gpu_levels(gpu_model, *of_gpu)),
                    drift=drift,
                )
                for (gpu_id, node_id, gpu_model), sample_time, of_gpu, drift in zip(
                    snapshot.gpus, times, levels, drifts, strict=True
                )
            ),
            planes=snapshot.planes,
            newest_sample_unix_s=snapshot.newest_sample_unix_s,
            revision=snapshot.revision,
            mix_drift=summary.mix_drift,
            flagged_count=summary.flagged_count,
            suspected_count=summary.suspected_count,
            suspected_by_chance_count=summary.suspected_by_chance_count,
        )

    def _planes_at(self, snapshot: GpuMatrixSnapshot) -> PlanesNow:
        """The planes of the newest snapshot, with the drift; created once for all callers, until the next change."""
        found = self._planes.get(snapshot.cluster)
        if found is None or found.revision != snapshot.revision:
            states = [self._drift.gpus.state(GpuKey(snapshot.cluster, gpu_id)) for gpu_id, _, _ in snapshot.gpus]
            found = self._planes[snapshot.cluster] = PlanesNow(
                snapshot.cluster,
                snapshot.revision,
                snapshot.newest_sample_unix_s,
                snapshot.gpus,
                {metric: plane.normalized for metric, plane in snapshot.planes.items()},
                {
                    name: VariableValues(*each)
                    for name, each in self._variables.of_level_planes(snapshot.levels).items()
                },
                {number: drift for number, drift in enumerate(states) if drift.job_count},
                summary_of(states, self._drift.mix.state()),
            )
        return found
