"""How unsure expected durations are: from decompose's intervals into what policies see."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from adlro.errors import AdlroError, Unavailable
from adlro.records.cluster import Cluster
from adlro.records.jobs import ExpectedRuntime, JobSpec
from adlro.services.orchestrator.clients import _spread
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ports import Predicted
from adlro.services.orchestrator.runtimes.predictions import PRIOR_SPREAD, ExpectedRuntimes, declared_runtime_s
from adlro.services.orchestrator.runtimes.refresh import RuntimeRefresh
from adlro.state.observation import Floats
from adlro.v1 import decompose_service_pb2 as pb
from tests.ledgers import job, queue
from tests.unit.orchestrator.house import answered

DECLARED = ExpectedRuntime(runtime_s=20.0, gpu_model="v100_sxm2")


class Says:
    """A predictor that answers every job alike."""

    def __init__(self, seconds: float, spread: Floats | None) -> None:
        self.seconds, self.spread, self.error = seconds, spread, False

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        if self.error:
            raise Unavailable("away")
        return Predicted(np.full((len(specs), len(gpu_models)), self.seconds), 1, 0, self.spread)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        return {}


def ask(says: Says) -> ExpectedRuntimes:
    errors: list[AdlroError] = []
    return ExpectedRuntimes(says, errors.append)


async def test_an_interval_becomes_the_spread_that_policies_see(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    entry = queue(ledger, 1, (5.0, 5.0, 5.0))
    assert ledger.observe(0.0).job_spread.tolist() == [[0.0]]
    predictions = ask(Says(5.0, np.array([0.7])))
    refresh = RuntimeRefresh(time.monotonic, predictions.standing)
    await answered(refresh.bring_up_to_date(ledger, [entry], virtual=True), predictions)
    assert ledger.observe(0.0).job_spread.tolist() == [[0.7]], "the same durations, but less sure of them"


async def test_what_was_declared_and_not_corrected_is_exact() -> None:
    says = Says(declared_runtime_s(job(1, expected_runtime=DECLARED).spec, "v100_sxm2"), np.array([0.7, 0.7]))
    expected = await ask(says).predict([job(1, expected_runtime=DECLARED).spec, job(2).spec], ["v100_sxm2"])
    assert [each.spread for each in expected] == [0.0, 0.7]


async def test_a_correction_of_what_was_declared_is_as_unsure_as_it_says() -> None:
    says = Says(31.0, np.array([0.4]))
    (expected,) = await ask(says).predict([job(1, expected_runtime=DECLARED).spec], ["v100_sxm2"])
    assert expected.spread == 0.4


async def test_without_decompose_a_type_says_little_and_a_declaration_is_taken_at_its_word() -> None:
    says = Says(1.0, None)
    says.error = True
    expected = await ask(says).predict([job(1, expected_runtime=DECLARED).spec, job(2).spec], ["v100_sxm2"])
    assert [each.spread for each in expected] == [0.0, PRIOR_SPREAD]


@pytest.mark.parametrize("spread", [[math.nan], [-0.1], [0.1, 0.2]])
async def test_a_spread_that_cannot_be_is_no_answer(spread: list[float]) -> None:
    (expected,) = await ask(Says(1.0, np.array(spread))).predict([job(1).spec], ["v100_sxm2"])
    assert expected.spread == PRIOR_SPREAD


def test_the_spread_is_that_of_a_normal_with_the_interval() -> None:
    def said(low_s: float, high_s: float, coverage: float) -> pb.RuntimePrediction:
        return pb.RuntimePrediction(median_s=1.0, low_s=low_s, high_s=high_s, interval_coverage=coverage)

    one_sigma = said(math.exp(-0.5), math.exp(0.5), 0.6826894921)
    assert _spread([one_sigma]) == pytest.approx(0.5)
    assert _spread([one_sigma, said(1.0, 1.0, 0.8)]) == pytest.approx(0.25), "the mean over the models"
    assert _spread([said(0.0, 0.0, 0.0)]) == 0.0, "no interval was given"
