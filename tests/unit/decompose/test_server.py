"""The server without a network: its memory file at start, and how much one call may ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.errors import InvalidInput
from adlro.jobs import JobSpec, JobType
from adlro.kit.settings import load_settings
from adlro.v1 import decompose_service_pb2 as pb
from adlro.wire import spec_to_proto
from services.decompose.follow import START
from services.decompose.memory import FinishedJob
from services.decompose.metrics import Metrics
from services.decompose.server import DecomposeServer
from services.decompose.settings import DecomposeSettings

SPEC = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")


def server(path=None) -> Any:
    made = cast(Any, DecomposeServer(DecomposeSettings(memory_path=path)))
    made._log = structlog.get_logger()
    made._metrics = Metrics(CollectorRegistry())
    gpus = [(f"n/{number}", "n", "v100_sxm2") for number in range(1024)]

    async def matrix(name: str) -> SimpleNamespace:
        return SimpleNamespace(snapshot=lambda: SimpleNamespace(gpus=gpus))

    made._followers = SimpleNamespace(outcomes_cursor="5-0", matrix=matrix)
    return made


async def saved(path) -> None:
    writer = server(path)
    for number in range(20):
        writer._predictor.learn(FinishedJob(f"job-{number}", SPEC, "v100_sxm2", 10.0, float(number)))
    await writer._save_memory(path)


def test_an_empty_path_is_none(monkeypatch):
    monkeypatch.setenv("ADLRO_DECOMPOSE_MEMORY_PATH", "")
    assert load_settings(DecomposeSettings).memory_path is None
    monkeypatch.setenv("ADLRO_DECOMPOSE_MEMORY_PATH", "memory")
    assert str(load_settings(DecomposeSettings).memory_path) == "memory"


async def test_a_directory_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "precious").write_text("x")
    with pytest.raises(InvalidInput, match=r"data can't be read: Is a directory.*ADLRO_DECOMPOSE_MEMORY_PATH"):
        await server(path)._load_memory(path)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


async def test_a_file_that_may_not_be_read_is_refused_and_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    await saved(path)
    before = path.read_bytes()

    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("services.decompose.server.load", forbidden)
    with pytest.raises(InvalidInput, match="Permission denied"):
        await server(path)._load_memory(path)
    assert [each.name for each in tmp_path.iterdir()] == ["memory"]
    assert path.read_bytes() == before


async def test_damaged_files_are_put_aside_each_under_a_name_of_its_own(tmp_path):
    path = tmp_path / "memory"
    for content in (b"first", b"second", b"third"):
        path.write_bytes(content)
        assert await server(path)._load_memory(path) == START
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == {
        "memory.unreadable": b"first",
        "memory.unreadable.2": b"second",
        "memory.unreadable.3": b"third",
    }


async def test_a_damaged_file_that_cannot_be_put_aside_is_not_written_over(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    path.write_bytes(b"damaged")

    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("services.decompose.server.put_aside", forbidden)
    with pytest.raises(InvalidInput, match="can't be put aside: Permission denied"):
        await server(path)._load_memory(path)
    assert path.read_bytes() == b"damaged"


async def test_a_job_of_the_file_that_cannot_be_learned_is_left_out(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    await saved(path)
    reader = server(path)
    learn = reader._predictor.learn

    def refusing(job):
        if job.job_id == "job-3":
            raise OverflowError("too much")
        return learn(job)

    monkeypatch.setattr(reader._predictor, "learn", refusing)
    assert await reader._load_memory(path) == "5-0"
    assert len(reader._memory) == 19


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
