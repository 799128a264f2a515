"""The default predictor: what it learns, corrects, and how sure it says it is."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.hardware.speeds import APPLICATIONS, JOB_TYPE_OF, speed
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.hypervectors.similarity_kernel import Features, kernel_by_value
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.regression.observation_window import ObservationWindow
from adlro.services.decompose.regression.tuned_regression import CELL_LIMIT, Hyperparameters, TunedRegression
from adlro.services.decompose.runtimes.learned_predictor import NOVEL, LearnedPredictor
from adlro.services.decompose.runtimes.runtime_fit import Refit
from adlro.services.decompose.variables.job_features import REAL_COUNT, Category
from adlro.services.decompose.variables.variables import Variables

MODELS = ["v100_sxm2", "rtx_2080_ti", "radeon_vii"]


def spec(user="ann", application="tealeaf", **changes) -> JobSpec:
    return JobSpec(**{"name": "a", "user": user, "job_type": JobType.SIMULATION, "application": application, **changes})


class World:
    """A predictor and what runs: work by user and application, noise, GPUs at speeds of their own."""

    def __init__(self, seed: int = 0, in_clusters=()) -> None:
        variables, speeds = Variables(), ModelSpeeds()
        self.predictor = LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: in_clusters)
        self.rng = random.Random(seed)
        self.count = 0

    def run(
        self, job: JobSpec, work_s: float, gpu_model="v100_sxm2", gpu_id="", slowdown=1.0, cluster="default"
    ) -> None:
        known = gpu_model in MODELS
        ratio = speed(job.application, job.job_type, gpu_model) if known else 1.0
        finished = FinishedJob(
            f"job-{self.count}", job, gpu_model, work_s / ratio * slowdown, float(self.count), gpu_id, cluster
        )
        self.count += 1
        assert self.predictor.learn(finished)

    def median(self, job: JobSpec, model="v100_sxm2") -> float:
        return float(self.predictor.predict([job], [model]).median_s[0, 0])


def test_nothing_but_the_prior():
    answer = World().predictor.predict([spec(), spec(job_type=JobType.DATA_PROCESSING, application="")], MODELS)
    assert answer.median_s[:, 0] == pytest.approx([18.0, 8.0])
    assert answer.basis == [PredictionBasis.PRIOR] * 2
    assert answer.novelty.tolist() == [1.0, 1.0]
    assert (answer.low_s < answer.median_s).all()
    assert (answer.median_s < answer.high_s).all()


def test_a_users_own_jobs_say_most_and_others_of_the_application_something():
    world = World()
    for _ in range(30):
        world.run(spec("ann"), 40 * math.exp(world.rng.gauss(0, 0.3)))
        world.run(spec("bob"), 5 * math.exp(world.rng.gauss(0, 0.3)), "radeon_vii")
    assert world.median(spec("ann")) == pytest.approx(40, rel=0.15)
    assert world.median(spec("bob")) == pytest.approx(5, rel=0.15)
    assert 5 < world.median(spec("zoe")) < 40
    assert world.median(spec("ann"), "rtx_2080_ti") == pytest.approx(40 / 0.70, rel=0.15)


def test_numeric_labels_are_learned_as_sizes():
    world = World()
    for _ in range(3):
        for size in (1, 2, 4, 16, 32, 64):
            world.run(spec(labels={"batch_size": str(size)}), 2.0 * size * math.exp(world.rng.gauss(0, 0.02)))
    assert world.median(spec(labels={"batch_size": "8"})) == pytest.approx(16.0, rel=0.2)


def test_a_gpu_model_without_speed_figures_is_learned():
    world = World(in_clusters={"new"})
    assert world.median(spec(), "new") == pytest.approx(world.median(spec()))
    for number in range(60):
        application = APPLICATIONS[number % 6]
        job = spec(f"user-{number % 3}", application, job_type=JOB_TYPE_OF[application])
        world.run(job, 10.0 * math.exp(world.rng.gauss(0, 0.1)))
        world.run(job, 10.0 * math.exp(world.rng.gauss(0, 0.1)) / 4, "new")  # four times as fast
    assert world.median(spec("user-0"), "new") == pytest.approx(2.5, rel=0.25)


@pytest.mark.parametrize("application", APPLICATIONS[:4])
def test_an_exact_declaration_stays_to_the_last_bit_whatever_was_learned(application):
    world = World()
    for number in range(40):
        work_s = 3.0 + number
        declared = ExpectedRuntime("v100_sxm2", work_s)
        world.run(spec("ann", application, expected_runtime=declared), work_s * (1 + 1e-12), MODELS[number % 3])
    job = spec("ann", application, expected_runtime=ExpectedRuntime("v100_sxm2", 12.837))
    answer = world.predictor.predict([job], MODELS)
    ratios = [speed(application, JobType.SIMULATION, model) for model in MODELS]
    assert answer.median_s[0].tolist() == [12.837 / ratio for ratio in ratios]
    assert answer.basis == [PredictionBasis.DECLARED]
    # Forty residuals of nothing beside a prior (sigma 0.5) that weighs as much as twelve.
    assert math.log(answer.high_s[0, 0] / answer.low_s[0, 0]) == pytest.approx(2 * 12 / 52 * 0.5 * 1.2816, rel=0.01)


def test_an_exact_declaration_stays_exact_on_a_gpu_that_undeclared_jobs_made_look_slow():
    world = World(seed=5)
    for slowdown in (1.0, 1.5):
        for _ in range(60):
            for gpu_id in ("a", "b"):
                work_s = 20 * math.exp(world.rng.gauss(0, 0.1))
                world.run(spec("ann"), work_s, gpu_id=gpu_id, slowdown=slowdown if gpu_id == "a" else 1.0)
    assert world.predictor.drift.gpus.state(("default", "a")).flagged
    for number in range(40):
        job = spec("ann", expected_runtime=ExpectedRuntime("v100_sxm2", 3.0 + number))
        world.run(job, 3.0 + number, gpu_id="ab"[number % 2])
        assert world.median(spec("ann", expected_runtime=ExpectedRuntime("v100_sxm2", 12.837))) == 12.837


def test_declarations_are_corrected_by_user():
    world = World()
    for _ in range(40):
        declared = {"expected_runtime": ExpectedRuntime("v100_sxm2", 10 * math.exp(world.rng.gauss(0, 1.0)))}
        for user, factor in (("ann", 0.25), ("bob", 1.0)):
            work_s = declared["expected_runtime"].runtime_s * factor * math.exp(world.rng.gauss(0, 0.2))
            world.run(spec(user, **declared), work_s)
    declared = {"expected_runtime": ExpectedRuntime("v100_sxm2", 100.0)}
    assert world.median(spec("ann", **declared)) == pytest.approx(25, rel=0.2)
    assert world.median(spec("bob", **declared)) == pytest.approx(100, rel=0.2)


def test_declarations_that_say_nothing_give_way_to_outcomes():
    world = World()
    for _ in range(80):
        declared = ExpectedRuntime("v100_sxm2", 10 * math.exp(world.rng.gauss(0, 1.5)))
        world.run(spec(expected_runtime=declared), 30 * math.exp(world.rng.gauss(0, 0.2)))
    for declared_s in (2.0, 50.0):
        job = spec(expected_runtime=ExpectedRuntime("v100_sxm2", declared_s))
        assert world.median(job) == pytest.approx(30, rel=0.35)


@pytest.mark.parametrize("sigma", [0.1, 0.4, 0.9])
def test_intervals_cover_what_they_claim(sigma):
    world = World(seed=3)
    users = [f"user-{number}" for number in range(10)]
    work_s = {(user, name): 15 * math.exp(world.rng.gauss(0, 0.8)) for user in users for name in APPLICATIONS[:4]}

    def draw() -> tuple[JobSpec, float]:
        user, name = world.rng.choice(list(work_s))
        return spec(user, name), work_s[user, name] * math.exp(world.rng.gauss(0, sigma))

    for _ in range(300):
        world.run(*draw())
    drawn = [draw() for _ in range(600)]
    answer = world.predictor.predict([job for job, _ in drawn], ["v100_sxm2"])
    true_s = np.array([true for _, true in drawn])
    covered = (answer.low_s[:, 0] <= true_s) & (true_s <= answer.high_s[:, 0])
    assert covered.mean() == pytest.approx(0.8, abs=0.05)


def test_an_unseen_application_is_novel_and_a_seen_one_is_not():
    world = World()
    for _ in range(10):
        for number, application in enumerate(APPLICATIONS[:8]):
            job_type = JOB_TYPE_OF[application]
            for user in (f"user-{number}", f"user-{number + 1}", f"user-{number + 2}"):
                world.run(spec(user, application, job_type=job_type), 10 * math.exp(world.rng.gauss(0, 0.4)))
    jobs = [
        spec("user-0", "unseen"),
        spec("zoe", "unseen"),
        spec("user-0", APPLICATIONS[0]),
        spec("zoe", APPLICATIONS[3]),
    ]
    novelty = world.predictor.predict(jobs, MODELS).novelty
    assert (novelty[:2] >= NOVEL).all()
    assert novelty[2] < 0.5
    assert (novelty <= 1).all()


def test_jobs_on_a_slow_gpu_do_not_make_their_application_slow():
    world = World(seed=5)
    for _ in range(60):
        world.run(spec("ann"), 20 * math.exp(world.rng.gauss(0, 0.1)), gpu_id="a")
        world.run(spec("ann"), 20 * math.exp(world.rng.gauss(0, 0.1)), gpu_id="b")
    for _ in range(60):
        world.run(spec("ann"), 20 * math.exp(world.rng.gauss(0, 0.1)), gpu_id="a", slowdown=1.5)
    state = world.predictor.drift.gpus.state(("default", "a"))
    assert state.flagged
    assert state.speed_ratio == pytest.approx(1 / 1.5, rel=0.1)
    assert not world.predictor.drift.gpus.state(("default", "b")).flagged
    assert world.median(spec("ann")) == pytest.approx(20, rel=0.08)


def test_gpus_of_the_same_name_in_two_clusters_are_two():
    world = World(seed=5)
    for slowdown in (1.0, 1.5):
        for _ in range(60):
            for cluster in ("lab", "hall"):
                work_s = 20 * math.exp(world.rng.gauss(0, 0.1))
                world.run(spec(), work_s, gpu_id="n/0", slowdown=slowdown if cluster == "lab" else 1.0, cluster=cluster)
    gpus = world.predictor.drift.gpus
    assert gpus.state(("lab", "n/0")).flagged
    assert gpus.state(("lab", "n/0")).speed_ratio == pytest.approx(1 / 1.5, rel=0.1)
    assert not gpus.state(("hall", "n/0")).flagged


@pytest.mark.slow
def test_many_jobs_are_predicted_as_each_by_itself():
    world = World(seed=1)
    rng = world.rng

    def some_job() -> JobSpec:
        application = rng.choice([*APPLICATIONS, "", "unseen"])
        return spec(
            rng.choice("abcd"),
            application,
            job_type=JOB_TYPE_OF.get(application, JobType.SIMULATION),
            gpu_memory_mib=rng.choice([0, 4000]),
            labels={"batch_size": rng.choice(["8", "big"])},
            expected_runtime=rng.choice([None, ExpectedRuntime(rng.choice(MODELS), rng.uniform(1, 50))]),
        )

    for _ in range(200):
        world.run(some_job(), rng.uniform(1, 100), rng.choice(MODELS))
    jobs = [some_job() for _ in range(60)]
    together = world.predictor.predict(jobs, MODELS)
    for number, job in enumerate(jobs):
        alone = world.predictor.predict([job], MODELS)
        for name in ("median_s", "low_s", "high_s"):
            assert getattr(alone, name)[0] == pytest.approx(getattr(together, name)[number])
        assert alone.novelty[0] == pytest.approx(together.novelty[number])
        assert alone.basis[0] == together.basis[number]
    assert (together.low_s <= together.median_s).all()
    assert (together.median_s <= together.high_s).all()


def test_the_same_jobs_in_another_process_or_order_of_questions_predict_the_same():
    first, second = World(seed=9), World(seed=9)
    for world in (first, second):
        for number in range(80):
            job = spec(f"user-{number % 7}", APPLICATIONS[number % 4])
            world.run(job, world.rng.uniform(5, 50))
    assert first.median(spec("user-3")) == second.median(spec("user-3"))


@pytest.mark.slow
def test_more_kinds_than_the_regression_holds_are_remembered_by_their_residuals():
    world = World(seed=2)
    for number in [*range(700), *range(700)]:
        world.run(spec(f"user-{number}", "x"), 100.0 if number % 2 else 5.0)
    right = [world.median(spec(f"user-{number}", "x")) > 22 for number in range(700)]
    assert np.mean([is_long == bool(number % 2) for number, is_long in enumerate(right)]) > 0.95


def test_starting_over_forgets():
    world = World()
    for _ in range(30):
        world.run(spec(), 500.0, gpu_id="a")
    revision = world.predictor.revision
    world.predictor.start_over()
    assert world.predictor.revision > revision
    assert world.median(spec()) == pytest.approx(18.0)


def test_an_unknown_gpu_model_is_refused():
    with pytest.raises(InvalidInput, match="'v1000'"):
        World().predictor.predict([spec()], ["v1000"])


def test_an_arrival_costs_a_comparison_with_what_the_regression_holds_and_no_fit(monkeypatch):
    world = World(seed=4)
    for _ in range(1500):
        application = world.rng.choice(APPLICATIONS)
        job = spec(f"user-{world.rng.randrange(24)}", application, job_type=JOB_TYPE_OF[application])
        world.run(job, world.rng.uniform(1, 100), world.rng.choice(MODELS))
    world.median(spec())
    compared: list[tuple[int, int]] = []
    fits: list[Refit] = []
    monkeypatch.setattr(Refit, "make", fits.append)

    def counting(first, second, *others):
        compared.append((len(first), len(second)))
        return kernel_by_value(first, second, *others)

    monkeypatch.setattr("adlro.services.decompose.regression.kernel_regression.kernel_by_value", counting)
    for _ in range(10):
        world.predictor.predict([spec()], MODELS)
    assert not fits
    assert len(compared) == 10
    assert all(jobs == 1 and cells <= CELL_LIMIT for jobs, cells in compared)


def test_a_window_keeps_the_newest():
    window = ObservationWindow(capacity=5)
    for number in range(23):
        window.add([number] * 5, [0.0] * 12, float(number), math.nan)
        features, outcomes, _ = window.view()
        assert outcomes.tolist() == [float(each) for each in range(max(0, number - 4), number + 1)]
        assert features.categories[:, 0].tolist() == outcomes.tolist()
    window.clear()
    assert len(window) == 0


def test_settings_are_looked_for_again_once_the_window_is_full():
    settings, tuned = Hyperparameters(), []

    class Counting(TunedRegression):
        def _tune(self, features, targets):
            tuned.append(len(targets))

    learner, window = Counting(settings), ObservationWindow(40)
    for number in range(200):
        window.add((0, 1, 1, 0, 0), [1.0] * REAL_COUNT, 0.1 * (number % 7), math.nan)
        features, outcomes, _ = window.view()
        learner.fit(features, outcomes, window.added_count)
    assert window.declared_count == 0
    # Every quarter of the window: 10 jobs.
    assert tuned[-10:] == [40] * 10
    assert 20 <= len(tuned) < 30


@pytest.mark.parametrize("others", [spec(application="neutral"), spec("bob")])
def test_a_gpu_whose_jobs_no_other_ran_is_not_taken_to_be_slow(others):
    # All of ann's jobs of an application run on one GPU, and become twice as long: that is the jobs.
    world = World(1)
    for longer in (1.0, 2.0):
        for _ in range(80):
            for gpu in range(3):
                world.run(others, 20 * math.exp(world.rng.gauss(0, 0.1)), gpu_id=f"n/{gpu}")
            world.run(spec(), 20 * longer * math.exp(world.rng.gauss(0, 0.1)), gpu_id="n/9")
    features, outcomes, _ = world.predictor._window.view()
    own = features.categories == world.predictor._features.row(spec(), learn=False)[0]
    own = own[:, Category.USER] & own[:, Category.APPLICATION]
    assert math.exp(np.median(outcomes[own][-60:])) * 18.0 == pytest.approx(40, rel=0.05)


def test_jobs_on_a_slow_gpu_are_not_taken_for_longer_ones_where_others_ran_them_too():
    world = World(1)
    for slowdown in (1.0, 1.4):
        for _ in range(80):
            for gpu in range(4):
                work_s = 20 * math.exp(world.rng.gauss(0, 0.1))
                world.run(spec(), work_s, gpu_id=f"n/{gpu}", slowdown=slowdown if gpu == 3 else 1.0)
    outcomes = world.predictor._window.view()[1]
    # Not the whole of it, since a GPU is taken to be healthy till its jobs say otherwise, but most.
    assert math.exp(np.median(outcomes[3::4][-40:])) * 18.0 < 20 * math.sqrt(1.4)


def test_intervals_of_an_unseen_application_are_as_wide_as_applications_differ():
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(40):
        application = np.repeat(np.arange(1, 13), 6)
        user = np.tile(np.arange(1, 4), 24)
        # Of an application all run about as long, and applications differ in leaps: few are long.
        of_application = np.where(rng.random(13) < 0.3, 4.0, 0.0) + 0.3 * rng.standard_normal(13)
        categories = np.zeros((72, len(Category)), dtype=np.int32)
        categories[:, Category.APPLICATION], categories[:, Category.USER] = application, user
        learner = TunedRegression(Hyperparameters())
        learner.fit(
            Features(categories, np.zeros((72, REAL_COUNT))),
            of_application[application] + 0.1 * rng.standard_normal(72),
        )
        new = np.zeros((1, len(Category)), dtype=np.int32)
        new[0, Category.APPLICATION], new[0, Category.USER] = 99, 1
        features = Features(new, np.zeros((1, REAL_COUNT)))
        assert not learner.knows_application(features)[0]
        mean, variance, _ = learner.estimate(features)
        low, high = learner.novel.ends(0.1, 0.9, -1.2816, 1.2816)
        true = of_application[0] + 0.1 * rng.standard_normal(20)
        z = (true - mean) / np.sqrt(variance)
        covered.append(((low <= z) & (z <= high)).mean())
    # With the residuals of configurations of known applications it is 0.2.
    assert 0.6 <= np.mean(covered) <= 0.95
