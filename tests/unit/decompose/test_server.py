"""The server without a network: its settings, and how much one call may ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.errors import InvalidInput
from adlro.kit.settings import load_settings
from adlro.records.jobs import JobSpec, JobType
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob
from adlro.services.decompose.server import DecomposeServer
from adlro.services.decompose.settings import DecomposeSettings
from adlro.v1 import decompose_service_pb2 as pb
from adlro.wire import prediction_from_proto, spec_to_proto

SPEC = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")


def server(path=None) -> Any:
    made = cast(Any, DecomposeServer(DecomposeSettings(memory_path=path)))
    made._log = structlog.get_logger()
    made._metrics = DecomposeMetrics(CollectorRegistry())
    gpus = [(f"n/{number}", "n", "v100_sxm2") for number in range(1024)]

    async def matrix(name: str) -> SimpleNamespace:
        return SimpleNamespace(snapshot=lambda: SimpleNamespace(gpus=gpus))

    async def named(name: str) -> str:
        return name or "default"

    made._followers = SimpleNamespace(outcomes_cursor="5-0", matrix=matrix, named=named)
    return made


def test_an_empty_path_is_none(monkeypatch):
    monkeypatch.setenv("ADLRO_DECOMPOSE_MEMORY_PATH", "")
    assert load_settings(DecomposeSettings).memory_path is None
    monkeypatch.setenv("ADLRO_DECOMPOSE_MEMORY_PATH", "memory")
    assert str(load_settings(DecomposeSettings).memory_path) == "memory"


def asked(jobs: int, gpus: int) -> pb.PredictRuntimeRequest:
    ids = [f"n/{number}" for number in range(gpus)]
    return pb.PredictRuntimeRequest(jobs=[spec_to_proto(SPEC)] * jobs, gpu_models=["v100_sxm2"], gpu_ids=ids)


async def test_more_predictions_than_one_answer_holds_are_refused_by_name():
    with pytest.raises(InvalidInput, match=r"500 jobs.*512500 predictions.*at most 97 jobs") as caught:
        await server().PredictRuntime(asked(500, 1024), None)
    assert caught.value.field == "jobs"


async def test_predictions_for_many_gpus_are_made_a_thousand_at_a_time(monkeypatch):
    made = server()
    predict, counts = made._predictor.predict, []

    def counting(jobs, models):
        counts.append(len(jobs))
        return predict(jobs, models)

    monkeypatch.setattr(made._predictor, "predict", counting)
    answer = await made.PredictRuntime(asked(9, 499), None)
    assert counts == [2, 2, 2, 2, 1]
    assert [len(each.predictions) for each in answer.predictions] == [500] * 9


async def test_a_finished_job_is_no_evidence_for_itself():
    made = server()
    for number in range(4):
        made._predictor.learn(FinishedJob(f"job-{number}", SPEC, "v100_sxm2", 10.0, float(number)))
    request = asked(3, 0)
    request.max_evidence = 2
    request.job_ids.extend(["job-3", "", "job-1"])
    answer = await made.PredictRuntime(request, None)
    evidence = [[each.job_id for each in row.predictions[0].evidence] for row in answer.predictions]
    assert evidence == [["job-2", "job-1"], ["job-3", "job-2"], ["job-3", "job-2"]]


async def test_a_job_of_several_gpus_is_predicted_packed_and_spread_also_on_a_slow_gpu(monkeypatch):
    made = server()
    request = asked(2, 1)
    request.jobs[1].gpu_count = 4
    monkeypatch.setattr(made._drift.gpus, "state", lambda key: SimpleNamespace(speed_ratio=0.5))
    answer = await made.PredictRuntime(request, None)
    for each in answer.predictions[0].predictions:
        assert not any(each.HasField(name) for name in ("spread_speed", "spread_low_s", "spread_high_s"))
    of_model, of_gpu = answer.predictions[1].predictions
    assert of_model.spread_speed == of_gpu.spread_speed == pytest.approx(0.85)  # the table's, of simulations
    assert 0 < of_model.spread_low_s < of_model.median_s / 0.85 < of_model.spread_high_s
    assert of_gpu.spread_low_s == 2 * of_model.spread_low_s
    assert of_gpu.spread_high_s == 2 * of_model.spread_high_s
    record = prediction_from_proto(of_model)
    assert record.spread_speed == of_model.spread_speed
    assert record.spread_s == of_model.median_s / of_model.spread_speed


async def test_ids_that_do_not_fit_the_jobs_are_refused():
    request = asked(3, 0)
    request.job_ids.extend(["job-1"])
    with pytest.raises(InvalidInput, match=r"job_ids: 1 ids for 3 jobs; give one for each job") as caught:
        await server().PredictRuntime(request, None)
    assert caught.value.field == "job_ids"
