"""Declared runtimes are corrected by what was observed of declarations, and never beyond it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.learned_predictor import NOVEL, LearnedPredictor
from adlro.services.decompose.runtimes.predictor import Predictions
from adlro.services.decompose.variables.variables import Variables

MODEL = "v100_sxm2"


def spec(user: str, application: str = "tealeaf", declared_s: float | None = None) -> JobSpec:
    declared = None if declared_s is None else ExpectedRuntime(MODEL, declared_s)
    return JobSpec("a", user, JobType.SIMULATION, application, expected_runtime=declared)


class House:
    """A predictor and the jobs that finished."""

    def __init__(self) -> None:
        variables, speeds = Variables(), ModelSpeeds()
        self.predictor = LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: ())
        self.count = 0

    def finish(self, job: JobSpec, runtime_s: float, gpu_id: str = "") -> None:
        self.predictor.learn(FinishedJob(f"job-{self.count}", job, MODEL, runtime_s, float(self.count), gpu_id))
        self.count += 1

    def ask(self, job: JobSpec) -> Predictions:
        return self.predictor.predict([job], [MODEL])


def numbers(answer: Predictions) -> tuple[float, float, float]:
    return float(answer.low_s[0, 0]), float(answer.median_s[0, 0]), float(answer.high_s[0, 0])


finished = st.tuples(
    st.sampled_from(["ann", "bob", "cat"]),
    st.sampled_from(["tealeaf", "neutral", ""]),
    st.one_of(st.none(), st.floats(0.0, 5.0)),  # log10 of the declared seconds
    st.one_of(st.sampled_from([0.0, -1.0, 1e-4]), st.floats(-2.5, 2.5)),  # log10 of what it took beside that
    st.sampled_from(["", "n/0", "n/1"]),
)


@settings(max_examples=120, deadline=None)
@given(
    history=st.lists(finished, max_size=45),
    again=st.integers(1, 3),
    user=st.sampled_from(["ann", "bob", "new"]),
    application=st.sampled_from(["tealeaf", "", "new"]),
    log10_s=st.floats(-1.0, 6.0),
)
def test_a_declared_jobs_median_stays_within_the_corrections_seen(history, again, user, application, log10_s):
    house, ratios = House(), []
    for _ in range(again):
        for who, what, declared, ratio, gpu_id in history:
            declared_s = None if declared is None else 10.0**declared
            runtime_s = (declared_s or 30.0) * 10.0**ratio
            house.finish(spec(who, what, declared_s), runtime_s, gpu_id)
            if declared_s is not None:
                ratios.append(runtime_s / declared_s)
    low_s, median_s, high_s = numbers(house.ask(spec(user, application, 10.0**log10_s)))
    least, greatest = (min(ratios), max(ratios)) if ratios else (1.0, 1.0)
    assert least * (1 - 2e-6) <= median_s / 10.0**log10_s <= greatest * (1 + 2e-6)
    assert 0 < low_s <= median_s <= high_s < math.inf


@pytest.mark.parametrize("count", [16, 56])
@pytest.mark.parametrize("seed", range(6))
def test_a_declaration_unlike_all_that_were_learned_from_stands_with_a_wide_interval(count, seed):
    # Everyone declared about a minute, was off by a factor of 1.6, and ran a minute. Then somebody declares an hour.
    house, rng = House(), random.Random(seed)
    for user, times in (("bob", 3), ("ann", count)):
        for _ in range(times):
            house.finish(spec(user, declared_s=60 * math.exp(rng.gauss(0, 0.5))), 60 * math.exp(rng.gauss(0, 0.1)))
    answer = house.ask(spec("bob", declared_s=3600.0))
    low_s, median_s, high_s = numbers(answer)
    assert 1800 < median_s < 7200
    assert low_s < median_s / 2.5
    assert high_s > median_s * 2.5
    assert answer.novelty[0] > 0.6
    far = house.ask(spec("bob", declared_s=3600.0 * 24 * 30))
    assert far.novelty[0] >= NOVEL
    assert numbers(far)[2] / numbers(far)[0] > high_s / low_s
    # What is like what was learned from is as well known as before.
    known = numbers(house.ask(spec("ann", declared_s=60.0)))
    assert 40 < known[1] < 80
    assert known[2] / known[0] < 3


def test_what_was_learned_of_small_declarations_fades_with_their_distance():
    house, rng = House(), random.Random(1)
    for _ in range(60):
        declared_s = 60 * math.exp(rng.gauss(0, 0.3))
        house.finish(spec("ann", declared_s=declared_s), declared_s * 0.25 * math.exp(rng.gauss(0, 0.1)))
    house.finish(spec("bob", declared_s=60.0), 60.0)
    asked_s = [60.0, 240.0, 960.0, 3840.0, 15360.0, 61440.0]
    ratios = [numbers(house.ask(spec("ann", declared_s=each)))[1] / each for each in asked_s]
    assert ratios[0] == pytest.approx(0.25, rel=0.15)
    assert ratios == sorted(ratios)
    assert max(np.diff(np.log(ratios))) < 1.0  # no leap back to the declaration, which would be 1.4
    assert ratios[-1] > 0.6


def test_intervals_of_another_users_declarations_cover_what_they_claim():
    rng, covered = random.Random(4), []
    for _ in range(12):
        house = House()
        factor = {f"user-{number}": math.exp(rng.gauss(-0.7, 0.7)) for number in range(12)}

        def draw(user: str, factor: dict[str, float] = factor) -> tuple[JobSpec, float]:
            declared_s = 60 * math.exp(rng.gauss(0, 1.0))
            return spec(user, declared_s=declared_s), declared_s * factor[user] * math.exp(rng.gauss(0, 0.2))

        for number in range(240):
            house.finish(*draw(f"user-{number % 10}"))
        for user in ("user-10", "user-11"):
            for _ in range(5):
                job, runtime_s = draw(user)
                low_s, _, high_s = numbers(house.ask(job))
                covered.append(low_s <= runtime_s <= high_s)
    assert 0.7 <= np.mean(covered) <= 0.9
