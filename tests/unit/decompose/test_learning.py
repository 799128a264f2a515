"""What is learned of jobs that were stopped and went on, or shared a GPU: restarts, kept shares, runtimes."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, Preemptible
from adlro.records.outcomes import ApplicationSize, NeighbourTime, StoppedRun
from adlro.services.decompose.learning import Learning
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.outcomes.restart_costs import DEFAULT_RESTART_S, RestartCosts
from adlro.services.decompose.pairs.pair_fits import PairFits
from adlro.services.decompose.pairs.pair_memory import PRIOR_MEAN, PairKey, PairMemory
from adlro.services.decompose.pairs.shared_runs import SharingKind
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.runtimes.plain_predictor import PlainPredictor
from adlro.services.decompose.variables.variables import Variables

V100, RADEON = "v100_sxm2", "radeon_vii"


def spec(declared_s: float = 0.0, restart_s: float = 10.0, lost_s: float = 0.0, **changes) -> JobSpec:
    return JobSpec(
        "a",
        changes.pop("user", "ann"),
        JobType.MACHINE_LEARNING,
        changes.pop("application", "resnet50_fp16"),
        expected_runtime=ExpectedRuntime(V100, declared_s) if declared_s else None,
        preemptible=Preemptible(restart_s, lost_s),
        **changes,
    )


class World:
    def __init__(self, *, plain: bool = False) -> None:
        variables, speeds = Variables(), ModelSpeeds()
        self.memory = OutcomeMemory(variables, speeds)
        self.predictor = (
            PlainPredictor(self.memory, speeds, lambda: ())
            if plain
            else LearnedPredictor(self.memory, variables, speeds, lambda: ())
        )
        self.learning = Learning(self.predictor, speeds, RestartCosts(), PairFits(PairMemory()))
        self.count = 0

    def finish(
        self,
        job: JobSpec,
        runtime_s: float,
        *stopped: StoppedRun,
        model: str = V100,
        beside: tuple[NeighbourTime, ...] = (),
    ) -> bool:
        self.count += 1
        finished = FinishedJob(f"job-{self.count}", job, model, runtime_s, float(self.count), "n/0")
        return self.learning.learn(replace(finished, stopped_runs=stopped, neighbours=beside))

    def kept(self, application: str, beside: str, model: str = "v100") -> float:
        self.learning.pairs.refit()
        pair = PairKey(model, SharingKind.named(application), SharingKind.named(beside))
        return float(self.learning.pairs.predict([pair]).mean[0])

    def runtimes(self) -> list[float]:
        return [job.runtime_s for job in self.memory.jobs()]

    def restart_s(self, job: JobSpec) -> float:
        found = self.learning.restart(job)
        assert found is not None
        return found.median_s


@pytest.mark.parametrize("plain", [False, True])
def test_the_last_attempt_is_not_learned_as_the_whole_job(plain):
    world = World(plain=plain)
    for number in range(30):
        world.finish(spec(), 1000.0 + 10.0 * (number % 5 - 2))
    assert world.finish(spec(), 410.0, StoppedRun(V100, 600.0))
    assert world.runtimes()[-1] == pytest.approx(1000.0, rel=0.02)
    assert world.learning.revision == 31


def test_a_runtime_that_the_restarts_hide_is_not_learned():
    world = World()
    for number in range(30):
        world.finish(spec(restart_s=0.0), 20.0 + 0.1 * number)
    world.finish(spec(restart_s=0.0), 40.0, StoppedRun(V100, 10.0))  # nobody knows how long its restart was
    assert len(world.runtimes()) == 30
    assert world.learning.revision == 31  # it was read, though


def test_what_a_stop_loses_is_not_work():
    world = World()
    for number in range(30):
        world.finish(spec(lost_s=50.0), 1000.0 + 10.0 * (number % 5 - 2))
    world.finish(spec(lost_s=50.0), 460.0, StoppedRun(V100, 600.0))
    assert world.runtimes()[-1] == pytest.approx(1000.0, rel=0.02)


def test_attempts_on_other_models_count_by_their_speeds():
    world = World()
    for number in range(30):
        world.finish(spec(), 1000.0 + 10.0 * (number % 5 - 2))
        world.finish(spec(), 1600.0 + 10.0 * (number % 5 - 2), model=RADEON)
    world.finish(spec(), 510.0, StoppedRun(RADEON, 800.0))
    assert world.runtimes()[-1] == pytest.approx(1000.0, rel=0.03)


def test_an_attempt_on_an_unknown_gpu_teaches_nothing():
    world = World()
    for number in range(30):
        world.finish(spec(), 1000.0 + 10.0 * (number % 5 - 2))
    assert not world.finish(spec(), 410.0, StoppedRun("", 600.0))
    assert len(world.runtimes()) == 30
    assert world.restart_s(spec()) == 10.0


def test_restarts_longer_than_stated_are_learned():
    world = World()
    for number in range(30):
        world.finish(spec(), 100.0 + 0.1 * number)
    for _ in range(10):
        world.finish(spec(), 60.0 + 40.0, StoppedRun(V100, 40.0))
    assert world.restart_s(spec()) == pytest.approx(40.0, rel=0.1)
    assert world.restart_s(spec(restart_s=20.0)) == pytest.approx(80.0, rel=0.1)
    assert 10.0 < world.restart_s(spec(user="bob")) < 40.0


def test_exact_statements_stay_exact_to_the_last_bit():
    """A list with exact runtimes and restarts is scheduled as in the simulator."""
    world, rng = World(), random.Random(3)
    for _ in range(60):
        job = spec(declared_s=rng.uniform(1, 100), restart_s=rng.choice((0.0, 0.3)), lost_s=rng.choice((0.0, 0.1)))
        assert job.expected_runtime is not None
        assert job.preemptible is not None
        work_s, now_s, share, runs = job.expected_runtime.runtime_s, rng.uniform(0, 1e5), 1.0, []
        for number in range(rng.randrange(4)):
            cost_s = job.preemptible.restart_s if number else 0.0
            end_s = now_s + (cost_s + share * work_s)
            stop_s = now_s + cost_s + rng.uniform(0, 0.9) * (end_s - now_s - cost_s)
            share = min(share, (end_s - stop_s + job.preemptible.lost_s) / work_s)
            runs.append(StoppedRun(V100, stop_s - now_s))
            now_s = stop_s + 5.0
        end_s = now_s + ((job.preemptible.restart_s if runs else 0.0) + share * work_s)
        world.finish(job, end_s - now_s, *runs)
    assert world.count == len(world.runtimes())
    asked = spec(declared_s=17.3, restart_s=0.3)
    assert world.predictor.predict([asked], [V100]).median_s[0, 0] == 17.3
    assert world.restart_s(asked) == 0.3
    assert world.restart_s(spec(declared_s=5.0, restart_s=0.0)) < 0.1 * DEFAULT_RESTART_S


def test_restarts_that_differ_from_their_statement_leave_declared_runtimes_exact():
    world = World()
    for number in range(40):
        world.finish(spec(declared_s=50.0 + number), 50.0 + number)
    for number in range(40):
        world.finish(spec(declared_s=50.0 + number), 40.0 + number, StoppedRun(V100, 35.0))
    assert world.predictor.predict([spec(declared_s=17.3)], [V100]).median_s[0, 0] == 17.3
    assert world.restart_s(spec(declared_s=17.3)) == pytest.approx(25.0, rel=0.1)


def test_an_outcome_that_is_read_twice_counts_once():
    world = World()
    for number in range(30):
        world.finish(spec(), 100.0 + 0.1 * number)
    job = FinishedJob("twice", spec(), V100, 120.0, 50.0, stopped_runs=(StoppedRun(V100, 40.0),))
    assert world.learning.learn(job)
    before = world.restart_s(spec()), world.learning.revision
    assert not world.learning.learn(job)
    assert (world.restart_s(spec()), world.learning.revision) == before
    world.learning.start_over()
    assert world.restart_s(spec()) == 10.0


@pytest.mark.parametrize("wrong_s", [math.nan, math.inf, 0.0, -1.0])
def test_impossible_times_teach_nothing(wrong_s):
    world = World()
    assert not world.finish(spec(), wrong_s, StoppedRun(V100, 1.0))
    assert not world.finish(spec(), 1.0, StoppedRun(V100, -1.0))
    assert not world.finish(spec(), 1.0, StoppedRun(V100, math.nan))
    assert not world.finish(spec(), 1.0, StoppedRun(V100, math.inf))
    assert not len(world.memory)
    assert world.restart_s(spec()) == 10.0


def test_stops_of_longer_jobs_do_not_make_restarts_look_longer():
    """Who is stopped took longer than predicted: that says nothing of restarts much shorter than the error."""
    world, rng = World(), random.Random(4)
    for _ in range(300):
        work_s = 18.0 * math.exp(rng.gauss(0, 0.4))
        if rng.random() < work_s / 60.0:
            world.finish(spec(restart_s=0.3), 0.6 * work_s + 0.3, StoppedRun(V100, 0.4 * work_s))
        else:
            world.finish(spec(restart_s=0.3), work_s)
    assert world.restart_s(spec(restart_s=0.3)) == pytest.approx(0.3, rel=0.2)
    # And those jobs are in the memory: without the longer ones, all would seem shorter.
    assert len(world.runtimes()) > 0.97 * world.count
    assert world.predictor.predict([spec()], [V100]).median_s[0, 0] == pytest.approx(18.0, rel=0.1)


def time_beside(application: str, time_s: float, batch_size: str = "") -> NeighbourTime:
    return NeighbourTime(ApplicationSize(application, batch_size), time_s)


def alone(world: World, count: int = 30) -> None:
    for number in range(count):
        world.finish(spec(), 100.0 + 2.0 * (number % 5 - 2))


def test_a_job_that_shared_its_gpu_tells_what_it_kept_beside_its_neighbour():
    world = World()
    alone(world)
    for _ in range(4):
        assert world.finish(spec(), 200.0, beside=(time_beside("bert", 100.0), time_beside("bert", 80.0)))
    assert world.kept("resnet50_fp16", "bert") == pytest.approx(80 / 180, abs=0.03)  # 20 s of 100 s alone
    # By the label of the neighbour, in a family with the same application.
    world.finish(spec(), 110.0, beside=(time_beside("bert", 100.0, "64"),))
    assert world.kept("resnet50_fp16", "bert") == pytest.approx(80 / 180, abs=0.05)


def test_its_runtime_is_learned_as_alone_once_its_kept_share_is_known_and_not_before():
    world = World()
    alone(world)
    for number in range(1, 8):
        world.finish(spec(), 200.0, beside=(time_beside("bert", 200.0),))
        world.learning.pairs.refit()
        assert all(96.0 <= each <= 104.0 for each in world.runtimes()), number
    assert len(world.runtimes()) > 30
    assert world.learning.revision == 37
    assert world.predictor.predict([spec()], [V100]).median_s[0, 0] == pytest.approx(100.0, rel=0.02)


def test_exact_declarations_stay_exact_beside_unknown_neighbours():
    world = World()
    for number in range(30):
        world.finish(spec(declared_s=50.0 + number), 50.0 + number)
    for number in range(10):
        world.finish(
            spec(declared_s=50.0 + number), 2.5 * (50.0 + number), beside=(time_beside("b", 2.5 * (50 + number)),)
        )
    assert world.predictor.predict([spec(declared_s=17.3)], [V100]).median_s[0, 0] == 17.3
    assert world.kept("resnet50_fp16", "b") == pytest.approx(0.4, abs=0.02)


def test_a_job_that_was_stopped_and_shared_its_gpu_tells_neither_cost():
    world = World()
    alone(world)
    run = StoppedRun(V100, 60.0, neighbours=(time_beside("bert", 60.0),))
    world.finish(spec(), 150.0, run)
    assert world.restart_s(spec()) == 10.0
    assert world.kept("resnet50_fp16", "bert") == PRIOR_MEAN
    assert len(world.runtimes()) == 30


def test_jobs_without_an_application_are_not_alike():
    world = World()
    for number in range(30):
        world.finish(spec(application=""), 100.0 + number % 5)
    assert not world.finish(spec(application=""), 150.0, beside=(time_beside("bert", 150.0),))
    alone(world)
    world.finish(spec(), 150.0, beside=(time_beside("", 150.0),))
    assert not len(world.learning.pairs.memory)


@pytest.mark.parametrize("wrong_s", [math.nan, math.inf, -1.0])
def test_impossible_times_beside_others_teach_nothing(wrong_s):
    world = World()
    alone(world)
    assert not world.finish(spec(), 100.0, beside=(time_beside("bert", wrong_s),))
    assert not world.finish(spec(), 100.0, StoppedRun(V100, 5.0, neighbours=(time_beside("bert", wrong_s),)))
    assert not len(world.learning.pairs.memory)
