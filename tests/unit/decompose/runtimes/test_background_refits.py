"""Fits are made beside the calls: one at a time, whole or not at all, and whoever asks meanwhile is answered."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob
from adlro.services.decompose.regression.tuned_regression import CELL_LIMIT
from adlro.services.decompose.runtimes.background_refits import BackgroundRefits
from adlro.services.decompose.runtimes.runtime_fit import Refit, RuntimeFit
from adlro.services.decompose.server import DecomposeServer
from adlro.services.decompose.settings import DecomposeSettings
from adlro.v1 import decompose_service_pb2 as pb
from adlro.wire import spec_to_proto

SPEC = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")
QUESTION = pb.PredictRuntimeRequest(jobs=[spec_to_proto(SPEC)], gpu_models=["v100_sxm2"])


class Server:
    """A server without a network and without a Redis; its fits are made when the test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = cast(Any, DecomposeServer(DecomposeSettings()))
        self.metrics = DecomposeMetrics(CollectorRegistry())
        self.server._metrics = self.metrics
        self.predictor = self.server._learned
        self.refits = self.server._refits = BackgroundRefits(self.predictor, self.metrics, structlog.get_logger())
        self.server._followers = SimpleNamespace()
        self.let_go, self.began, self.running, self.most_running = threading.Event(), threading.Event(), 0, 0
        make = Refit.make

        def slowly(refit: Refit) -> RuntimeFit:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.began.set()
            try:
                assert self.let_go.wait(60)
                return make(refit)
            finally:
                self.running -= 1

        monkeypatch.setattr(Refit, "make", slowly)
        self.count = 0

    def learn(self, count: int, runtime_s: float = 100.0, spec: JobSpec = SPEC) -> None:
        for _ in range(count):
            self.count += 1
            self.predictor.learn(FinishedJob(f"job-{self.count}", spec, "v100_sxm2", runtime_s, float(self.count)))

    async def ask(self) -> tuple[float, int]:
        answer = await self.server.PredictRuntime(QUESTION, None)
        return answer.predictions[0].predictions[0].median_s, answer.prediction_revision

    async def begun(self) -> bool:
        # The answer may come before the fit's thread has had its turn.
        return await asyncio.to_thread(self.began.wait, 60)

    async def made(self) -> None:
        self.let_go.set()
        await self.refits.stop()


@pytest.fixture
def server(monkeypatch):
    made = Server(monkeypatch)
    yield made
    made.let_go.set()


async def test_calls_are_answered_by_the_last_fit_while_the_next_is_made(server):
    server.learn(30)
    before = await server.ask()
    assert before[0] == pytest.approx(18.0)  # the prior: no fit was ever made
    assert await server.begun()
    assert await server.ask() == before
    other = await server.server.Recall(pb.RecallRequest(job=spec_to_proto(SPEC)), None)
    assert len(other.recollections) == 8
    assert server.most_running == 1
    await server.made()
    after = await server.ask()
    assert after[0] == pytest.approx(100, rel=0.05)
    assert after[1] > before[1]


async def test_exact_declarations_wait_for_no_fit(server):
    server.server._settings = DecomposeSettings(refit_patience_s=60.0)
    declared = dataclasses.replace(SPEC, expected_runtime=ExpectedRuntime("v100_sxm2", 12.837))
    question = pb.PredictRuntimeRequest(jobs=[spec_to_proto(declared)], gpu_models=["v100_sxm2"])
    server.learn(30)
    server.learn(30, 12.837, declared)
    async with asyncio.timeout(50):
        answer = await server.server.PredictRuntime(question, None)
    assert answer.predictions[0].predictions[0].median_s == 12.837
    assert server.predictor.due
    assert not server.began.is_set()  # nor is one made for them
    for runtime_s, asked in ((12.837, QUESTION), (20.0, question)):  # undeclared; one was off
        server.learn(1, runtime_s, declared)
        asking = asyncio.create_task(server.server.PredictRuntime(asked, None))
        await asyncio.wait([asking], timeout=0.2)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])
    server.let_go.set()  # the loop ends after the thread


async def test_what_is_learned_while_a_fit_is_made_is_in_the_next(server):
    server.learn(30)
    await server.ask()
    server.learn(30, runtime_s=25.0)
    await server.made()
    await server.refits.for_question(60.0)
    assert (await server.ask())[0] < 60
    assert server.most_running == 1
    assert not server.predictor.due


async def test_learning_waits_for_a_fit_when_the_last_is_far_behind(server):
    server.learn(30)
    waiting = asyncio.create_task(server.refits.for_learning())
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    await server.made()
    await asyncio.wait_for(waiting, 60)
    server.learn(5)  # a sixth: not far
    server.let_go.clear()
    await asyncio.wait_for(server.refits.for_learning(), 50)
    assert server.predictor.due
    assert not server.predictor.overdue


async def test_a_fit_of_what_was_forgotten_meanwhile_is_thrown_away(server):
    server.learn(30)
    await server.ask()
    server.predictor.start_over()
    await server.made()
    assert (await server.ask())[0] == pytest.approx(18.0)


async def test_a_fit_that_fails_leaves_the_last_one(server, monkeypatch):
    server.let_go.set()
    server.learn(30)
    await server.refits.for_learning()
    made = Refit.make

    def failing(refit: Refit) -> RuntimeFit:
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(Refit, "make", failing)
    server.learn(30, runtime_s=25.0)
    await server.refits.for_question(60.0)
    assert (await server.ask())[0] == pytest.approx(100, rel=0.05)
    assert server.metrics.failed_refits._value.get() == 1
    monkeypatch.setattr(Refit, "make", made)
    server.learn(30, runtime_s=25.0)
    await server.refits.for_learning()
    assert (await server.ask())[0] < 60


@pytest.mark.slow
async def test_more_configurations_than_the_regression_holds_are_fitted_beside_the_calls_too(server):
    for number in range(2 * CELL_LIMIT):
        server.learn(1, 100.0 if number % 2 else 5.0, JobSpec("a", f"user-{number}", JobType.SIMULATION, "x"))
    await server.ask()
    assert (await server.ask())[0] == pytest.approx(18.0)
    await server.made()
    outcomes = server.predictor._fit.outcomes
    assert len(outcomes.model.cells) == CELL_LIMIT
    assert len(outcomes._rest) == CELL_LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_its_matrices_take_one_thread() -> None:
    # In a process of its own: here numpy has been imported long ago.
    script = (
        "import os, adlro.services.decompose.regression.kernel_regression; print(len(os.listdir('/proc/self/task')))"
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    ended = subprocess.run([sys.executable, "-c", script], env=clean, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "1"
