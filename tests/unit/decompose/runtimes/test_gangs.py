"""Jobs of several GPUs: packed runtimes by GPU count, and what spreading costs, from the table and from outcomes."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from adlro.hardware.gang_speeds import spread_speed
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.runtimes.plain_predictor import PlainPredictor
from adlro.services.decompose.variables.variables import Variables

V100 = "v100_sxm2"
RESNET = "resnet50_fp16"  # the table: spread, 4 of V100 keep 0.967
GNMT = "gnmt_fp16"  # 0.311


def spec(gpu_count: int, application: str = RESNET, user: str = "ann", declared_s: float = 0.0) -> JobSpec:
    expected = ExpectedRuntime(V100, declared_s) if declared_s else None
    return JobSpec("gang", user, JobType.MACHINE_LEARNING, application, gpu_count=gpu_count, expected_runtime=expected)


class World:
    """A predictor and what ran on V100s."""

    def __init__(self, seed: int = 1, *, plain: bool = False) -> None:
        variables, speeds = Variables(), ModelSpeeds()
        memory = OutcomeMemory(variables, speeds)
        self.predictor = (
            PlainPredictor(memory, speeds, lambda: ())
            if plain
            else LearnedPredictor(memory, variables, speeds, lambda: ())
        )
        self.rng = random.Random(seed)
        self.count = 0

    def run(self, job: JobSpec, runtime_s: float, *, spread: bool = False, noise: float = 0.1, gpus=(), model=V100):
        self.count += 1
        runtime_s *= math.exp(self.rng.gauss(0, noise)) if noise else 1.0
        gpu_id = gpus[0] if gpus else ""
        finished = FinishedJob(
            f"job-{self.count}", job, model, runtime_s, float(self.count), gpu_id, gpu_ids=tuple(gpus), spread=spread
        )
        assert self.predictor.learn(finished)

    def ask(self, job: JobSpec, model: str = V100):
        """Packed median, speed of a spread job, its interval."""
        found = self.predictor.predict([job], [model])
        assert found.spread is not None
        return found.median_s[0, 0], *(float(each[0, 0]) for each in found.spread)


def test_packed_runtimes_of_a_count_never_seen_come_from_neighbouring_counts():
    world = World()
    for _ in range(6):
        for gpu_count, runtime_s in ((1, 160.0), (2, 80.0), (8, 20.0)):
            world.run(spec(gpu_count), runtime_s)
    packed_s = [world.ask(spec(gpu_count))[0] for gpu_count in (2, 4, 8)]
    assert packed_s[0] == pytest.approx(80, rel=0.15)
    assert packed_s[1] == pytest.approx(40, rel=0.25)
    assert packed_s[2] == pytest.approx(20, rel=0.15)


@pytest.mark.parametrize("plain", [False, True])
def test_before_any_outcome_the_shipped_speeds_of_spread_jobs_stand(plain):
    world = World(plain=plain)
    jobs = [spec(gpu_count, application) for gpu_count in (1, 2, 4, 8) for application in (RESNET, GNMT, "unheard_of")]
    models = [V100, "rtx_2080_ti"]
    found = world.predictor.predict(jobs, models)
    assert found.spread is not None
    expected = [[spread_speed(job.application, job.job_type, job.gpu_count, model) for model in models] for job in jobs]
    assert found.spread.speed == pytest.approx(np.array(expected))
    one = [number for number, job in enumerate(jobs) if job.gpu_count == 1]
    assert (found.spread.speed[one] == 1.0).all()
    assert found.spread.low_s[one] == pytest.approx(found.low_s[one])
    # What spreading costs is another uncertainty.
    several = [number for number, job in enumerate(jobs) if job.gpu_count > 1]
    width, packed_width = found.spread.high_s / found.spread.low_s, found.high_s / found.low_s
    assert (width[several] > packed_width[several]).all()


def test_jobs_of_one_gpu_have_no_spread_prediction():
    assert World().predictor.predict([spec(1), spec(0)], [V100]).spread is None


def test_what_spreading_costs_is_learned_from_packed_and_spread_outcomes():
    world = World()
    for _ in range(12):
        world.run(spec(4), 40.0)
        world.run(spec(4), 100.0, spread=True)
    packed_s, speed, low_s, high_s = world.ask(spec(4))
    assert packed_s == pytest.approx(40, rel=0.1)
    assert speed == pytest.approx(0.4, rel=0.15)  # not the table's 0.967
    assert low_s < 100 < high_s
    assert high_s / low_s < 2


def test_it_is_learned_most_for_the_application_and_neighbouring_counts():
    world = World()
    for gpu_count in (1, 2, 4, 8):
        for application in (RESNET, "mask_rcnn_fp32"):
            for _ in range(6):
                world.run(spec(gpu_count, application), 40.0)
    prior = {key: world.ask(spec(*key))[1] for key in ((2, RESNET), (8, RESNET), (4, "mask_rcnn_fp32"))}
    for _ in range(12):
        world.run(spec(4), 100.0, spread=True)
    change = {key: math.log(world.ask(spec(*key))[1] / prior[key]) for key in prior}
    of_four = math.log(world.ask(spec(4))[1] / spread_speed(RESNET, JobType.MACHINE_LEARNING, 4, V100))
    assert of_four < change[2, RESNET] < change[4, "mask_rcnn_fp32"] < 0
    assert change[2, RESNET] < 0.6 * of_four
    assert change[4, "mask_rcnn_fp32"] > 0.5 * of_four


def test_spread_outcomes_alone_say_what_they_say_by_the_table():
    world = World()
    for _ in range(20):
        world.run(spec(4, GNMT), 100.0, spread=True)
    packed_s, speed, *_ = world.ask(spec(4, GNMT))
    assert speed == pytest.approx(0.311, rel=0.05)
    assert packed_s == pytest.approx(31.1, rel=0.1)


def test_spread_outcomes_do_not_count_as_longer_packed_ones():
    world = World()
    for _ in range(10):
        world.run(spec(4), 40.0)
    for _ in range(40):
        world.run(spec(4), 120.0, spread=True)
    packed_s, speed, *_ = world.ask(spec(4))
    assert packed_s == pytest.approx(40, rel=0.1)
    assert packed_s / speed == pytest.approx(120, rel=0.1)


def test_the_learned_speed_is_at_most_the_packed_one():
    world = World()
    for _ in range(10):
        world.run(spec(4), 40.0)
        world.run(spec(4), 30.0, spread=True)
    assert world.ask(spec(4))[1] == 1.0


def test_exact_declarations_stay_exact_to_the_last_bit_and_tell_what_spreading_costs():
    world = World()
    for number in range(20):
        declared_s = 3.7 + number
        world.run(spec(4, declared_s=declared_s), declared_s, noise=0)
        world.run(spec(4, declared_s=declared_s), declared_s / 0.5, spread=True, noise=0)
        assert world.ask(spec(4, declared_s=12.837))[0] == 12.837
    packed_s, speed, low_s, high_s = world.ask(spec(4, declared_s=12.837))
    assert packed_s == 12.837
    assert speed == pytest.approx(0.5, rel=0.05)
    assert low_s < 12.837 / 0.5 < high_s


def test_declarations_that_only_spread_jobs_tested_stay():
    world = World()
    for number in range(10):
        world.run(spec(4, declared_s=10.0 + number), 3 * (10.0 + number), spread=True)
    packed_s, speed, *_ = world.ask(spec(4, declared_s=20.0))
    assert packed_s == 20.0
    assert 1 / 3 < speed < 0.967


def test_wrong_declarations_of_spread_jobs_are_corrected_too():
    world = World()
    for _ in range(15):
        declared_s = math.exp(world.rng.uniform(2, 4))
        world.run(spec(4, declared_s=declared_s), 2 * declared_s)
        world.run(spec(4, declared_s=declared_s), 2 * declared_s / 0.5, spread=True)
    packed_s, speed, *_ = world.ask(spec(4, declared_s=20.0))
    assert packed_s == pytest.approx(40, rel=0.15)
    assert speed == pytest.approx(0.5, rel=0.2)


def test_a_gang_flags_none_of_its_gpus_and_is_as_slow_as_the_slowest():
    world = World()
    for _ in range(40):
        for gpu_id in ("a", "b", "c"):
            world.run(spec(1), 20.0 * (1.6 if gpu_id == "c" else 1.0), gpus=[gpu_id])
    assert isinstance(world.predictor, LearnedPredictor)
    drift = world.predictor.drift.gpus
    slow = drift.log_slowdown(("default", "c"))
    assert slow == pytest.approx(math.log(1.6), rel=0.3)
    counts = {key: state.job_count for key, state in drift.states().items()}
    for _ in range(20):
        world.run(spec(2), 20.0, gpus=["a", "b"])
        world.run(spec(2), 32.0, gpus=["b", "c"])
    assert {key: state.job_count for key, state in drift.states().items()} == counts
    assert world.ask(spec(2))[0] == pytest.approx(20, rel=0.15)


def test_intervals_of_spread_jobs_cover_what_they_claim():
    rng = random.Random(3)
    world = World(seed=4)
    hits = []
    for number in range(400):
        gpu_count, user = rng.choice((2, 4)), rng.choice("abc")
        application = rng.choice((RESNET, GNMT))
        job = spec(gpu_count, application, user)
        packed_s = 20.0 + 15.0 * "abc".index(user)
        share = {RESNET: 0.6, GNMT: 0.45}[application]
        spread = rng.random() < 0.4
        runtime_s = packed_s / (share if spread else 1.0) * math.exp(rng.gauss(0, 0.3))
        if spread and number > 60:
            _, _, low_s, high_s = world.ask(job)
            hits.append(low_s <= runtime_s <= high_s)
        world.run(job, runtime_s, spread=spread, noise=0)
    assert 0.7 < np.mean(hits) < 0.93


def test_evidence_says_how_a_job_ran():
    world = World()
    world.run(spec(4), 100.0, spread=True)
    [[[found]]] = world.predictor.evidence([spec(4)], [V100], 3)
    evidence = found.evidence()
    assert (evidence.gpu_count, evidence.spread) == (4, True)
    assert found.recollection().spread
