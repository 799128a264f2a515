"""The memory file at start: what cannot be read is refused or put aside, and never written over."""

from __future__ import annotations

from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.errors import InvalidInput
from adlro.jobs import JobSpec, JobType
from services.decompose.follow import START
from services.decompose.learned import LearnedPredictor
from services.decompose.memory import FinishedJob, OutcomeMemory
from services.decompose.memory_file import MemoryFile
from services.decompose.metrics import Metrics
from services.decompose.speeds import Speeds
from services.decompose.variables import Variables

SPEC = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")


def file(path) -> Any:
    variables, speeds = Variables(), Speeds()
    memory = OutcomeMemory(variables, speeds)
    predictor = LearnedPredictor(memory, variables, speeds, lambda: (), refits_itself=False)
    return cast(
        Any, MemoryFile(path, memory, variables, predictor, Metrics(CollectorRegistry()), structlog.get_logger())
    )


async def saved(path) -> None:
    writer = file(path)
    for number in range(20):
        writer._predictor.learn(FinishedJob(f"job-{number}", SPEC, "v100_sxm2", 10.0, float(number)))
    await writer.save("5-0")


async def test_a_directory_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "precious").write_text("x")
    with pytest.raises(InvalidInput, match=r"data can't be read: Is a directory.*ADLRO_DECOMPOSE_MEMORY_PATH"):
        await file(path).load(None)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


async def test_a_file_that_may_not_be_read_is_refused_and_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    await saved(path)
    before = path.read_bytes()

    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("services.decompose.memory_file.load", forbidden)
    with pytest.raises(InvalidInput, match="Permission denied"):
        await file(path).load(None)
    assert [each.name for each in tmp_path.iterdir()] == ["memory"]
    assert path.read_bytes() == before


async def test_damaged_files_are_put_aside_each_under_a_name_of_its_own(tmp_path):
    path = tmp_path / "memory"
    for content in (b"first", b"second", b"third"):
        path.write_bytes(content)
        assert await file(path).load(None) == START
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

    monkeypatch.setattr("services.decompose.memory_file.put_aside", forbidden)
    with pytest.raises(InvalidInput, match="can't be put aside: Permission denied"):
        await file(path).load(None)
    assert path.read_bytes() == b"damaged"


async def test_a_job_of_the_file_that_cannot_be_learned_is_left_out(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    await saved(path)
    reader = file(path)
    learn = reader._predictor.learn

    def refusing(job):
        if job.job_id == "job-3":
            raise OverflowError("too much")
        return learn(job)

    monkeypatch.setattr(reader._predictor, "learn", refusing)
    assert await reader.load(None) == "5-0"
    assert len(reader._memory) == 19
