"""What a start after a stop is expected to cost: from decompose, or what the job states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from adlro.errors import AdlroError, Unavailable
from adlro.records.jobs import JobSpec, Preemptible
from adlro.services.orchestrator.ports import Predicted
from adlro.services.orchestrator.runtimes.predictions import ExpectedRuntimes
from tests.ledgers import job

SPECS = [job(1, preemptible=Preemptible(30.0)).spec, job(2).spec, job(3, preemptible=Preemptible()).spec]


class Says:
    def __init__(self, restart_s: Sequence[float] | None, *, away: bool = False) -> None:
        self.restart_s, self.away = restart_s, away

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        if self.away:
            raise Unavailable("away")
        restart_s = None if self.restart_s is None else np.array(self.restart_s)
        return Predicted(np.ones((len(specs), len(gpu_models))), 1, restart_s=restart_s)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        return {}


async def restarts(*args: Any, **keywords: Any) -> tuple[list[float], int]:
    errors: list[AdlroError] = []
    found = await ExpectedRuntimes(Says(*args, **keywords), errors.append).predict(SPECS, ["v100_sxm2"])
    return [each.restart_s for each in found], len(errors)


async def test_it_is_what_decompose_says() -> None:
    assert await restarts([45.0, math.nan, 12.0]) == ([45.0, 0.0, 12.0], 0)


@pytest.mark.parametrize("says", [None, [math.nan] * 3])
async def test_without_a_report_it_is_what_the_job_states(says: list[float] | None) -> None:
    assert await restarts(says) == ([30.0, 0.0, 0.0], 0)


async def test_without_decompose_it_is_what_the_job_states() -> None:
    assert await restarts(None, away=True) == ([30.0, 0.0, 0.0], 1)


@pytest.mark.parametrize("says", [[-1.0, 1.0, 1.0], [math.inf, 1.0, 1.0], [1.0]])
async def test_a_restart_that_cannot_be_is_no_answer(says: list[float]) -> None:
    assert await restarts(says) == ([30.0, 0.0, 0.0], 1)
