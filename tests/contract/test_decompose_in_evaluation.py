"""An evaluation that learns runtimes, on a real decompose and its store: the same figures as without either.

`adlro evaluate --runtime learned` as a command, with processes of its own, is in tests/e2e.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies import POLICIES
from adlro.errors import AdlroError, Conflict, DeadlineExceeded, Unavailable
from adlro.kit.redis import connect
from adlro.kit.testing import SpawnedService, serve, spawn_service
from adlro.lab.evaluate import decompose as module
from adlro.lab.evaluate.decompose import RunningDecompose
from adlro.lab.evaluate.learning import Decompose, simulate_learned, specs_of
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobSpec, NormalizedJob
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.server import DecomposeServer
from adlro.services.decompose.settings import DecomposeSettings
from adlro.services.decompose.variables.variables import Variables
from adlro.services.orchestrator.ports import Predicted
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Floats
from adlro.store import JobStore, Move
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario

SCENARIO = load_scenario("paper")
CLUSTER = SCENARIO.cluster


class InProcess:
    """Decompose's predictor without a store, streams and gRPC."""

    def __init__(self) -> None:
        variables, speeds = Variables(), ModelSpeeds()
        self.predictor = LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: ())

    async def begin(self, cluster: Cluster, specs: Sequence[JobSpec]) -> list[str]:
        return [f"job-{number}" for number in range(1, len(specs) + 1)]

    async def learn(self, moves: Sequence[Move]) -> None:
        job, outcome = moves[-1].job, moves[-1].outcome
        assert outcome is not None
        self.predictor.learn(
            FinishedJob(job.job_id, job.spec, job.gpu_model, outcome.runtime_s, job.end_s or 0.0, job.gpu_id)
        )
        await self.predict([job.spec], CLUSTER.gpu_models)  # as whoever waits for it over gRPC asks

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        revision = self.predictor.prediction_revision
        return Predicted(self.predictor.predict(specs, gpu_models).median_s, revision)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        return {}


def job_list(number: int, count: int = 100) -> list[WorkloadJob]:
    return draw_jobs(SCENARIO, load=1.1, rng=np.random.default_rng([3, number]), count=count)


async def jct_s(jobs: Sequence[WorkloadJob], decompose: Decompose) -> Floats:
    policy = POLICIES["mct"]()
    outcome = await simulate_learned(CLUSTER, jobs, pack_jobs([jobs], CLUSTER), policy.act, decompose)
    found: Floats = outcome.end_s[0] - outcome.jobs.submit_s[0]
    return found


@asynccontextmanager
async def decompose_on(redis_url: str, **settings: Any) -> AsyncIterator[str]:
    made = DecomposeSettings(redis_url=redis_url, refit_patience_s=60.0, **settings)
    async with serve(DecomposeServer(made), made) as address:
        yield address


async def keys_of(redis_url: str) -> list[Any]:
    client = connect(redis_url)
    try:
        return list(await client.keys("*"))
    finally:
        await client.aclose()


async def test_over_grpc_a_list_runs_as_in_process_and_the_next_begins_with_nothing(redis_url: str) -> None:
    async with decompose_on(redis_url) as address:
        for number in (0, 1):
            jobs = job_list(number)
            async with RunningDecompose(address, redis_url) as decompose:
                over_grpc = await jct_s(jobs, decompose)
            assert await keys_of(redis_url) == []
            assert over_grpc == pytest.approx(await jct_s(jobs, InProcess()), rel=1e-9)


async def test_a_memory_that_does_not_forget_is_refused(redis_url: str, tmp_path: Path) -> None:
    async with decompose_on(redis_url, memory_path=tmp_path / "memory") as address:
        decompose = RunningDecompose(address, redis_url, forget_timeout_s=1.5)
        with pytest.raises(Conflict, match="without ADLRO_DECOMPOSE_MEMORY_PATH"):
            async with decompose:
                await jct_s(job_list(0, 5), decompose)
        with pytest.raises(Conflict, match="keeps its memory"):
            async with RunningDecompose(address, redis_url, forget_timeout_s=1.5) as again:
                await again.begin(CLUSTER, specs_of(job_list(1, 5)))
    assert await keys_of(redis_url) == []


async def test_a_store_with_jobs_is_left_alone(redis_url: str) -> None:
    client = connect(redis_url)
    await JobStore(client).create(specs_of(job_list(0, 1))[0], NormalizedJob(), "", 0.0)
    before = sorted(await client.keys("*"))
    async with decompose_on(redis_url) as address:
        with pytest.raises(Conflict, match="holds jobs"):
            async with RunningDecompose(address, redis_url):
                pytest.fail("it began")
    assert sorted(await client.keys("*")) == before
    await client.aclose()


async def test_two_evaluations_do_not_share_a_store(redis_url: str) -> None:
    async with decompose_on(redis_url) as address, RunningDecompose(address, redis_url):
        with pytest.raises(Conflict, match="another evaluation uses"):
            async with RunningDecompose(address, redis_url):
                pytest.fail("it began")
        assert await keys_of(redis_url) == [b"adlro:evaluation"]


async def test_a_decompose_that_follows_another_store_is_found_out(redis_url: str) -> None:
    async with decompose_on(redis_url.replace("/0", "/1")) as address:
        decompose = RunningDecompose(address, redis_url, learn_timeout_s=0.5)
        with pytest.raises(DeadlineExceeded, match="does it follow the store"):
            async with decompose:
                await jct_s(job_list(0), decompose)
    assert await keys_of(redis_url) == []


async def test_nobody_at_the_address(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT_S", 0.3)
    with pytest.raises(Unavailable, match="is a decompose running there"):
        async with RunningDecompose("127.0.0.1:1", redis_url):
            pytest.fail("it began")


async def test_a_store_that_is_away(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STORE_TIMEOUT_S", 0.3)
    async with decompose_on(redis_url) as address:
        with pytest.raises(Unavailable, match=r"redis_url: the store at redis://127\.0\.0\.1:1/0 does not answer"):
            async with RunningDecompose(address, "redis://127.0.0.1:1/0"):
                pytest.fail("it began")


class Struck(RunningDecompose):
    """Strikes the process with a signal when it has learned from ten jobs; from then on it is not patient."""

    learned = 0

    def strike_with(self, process: SpawnedService, number: signal.Signals) -> None:
        self.process, self.number = process, number

    async def learn(self, moves: Sequence[Move]) -> None:
        await super().learn(moves)
        self.learned += 1
        if self.learned == 10:
            self._answer_timeout_s = self._client._timeout_s = 0.5
            self.process.process.send_signal(self.number)


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [
        (signal.SIGSTOP, DeadlineExceeded, "did not answer within 0.5 s"),
        (signal.SIGKILL, Unavailable, "does not answer:"),
    ],
)
async def test_one_that_hangs_or_dies_in_mid_run_ends_the_run(
    number: signal.Signals, error: type[AdlroError], said: str, redis_url: str
) -> None:
    with spawn_service("decompose", {"ADLRO_REDIS_URL": redis_url}) as process:
        decompose = Struck(process.address, redis_url)
        decompose.strike_with(process, number)
        with pytest.raises(error, match=said):
            async with decompose:
                await jct_s(job_list(0), decompose)
        process.kill()
    assert decompose.learned == 10
    assert await keys_of(redis_url) == []
