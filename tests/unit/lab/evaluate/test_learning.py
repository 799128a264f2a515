"""Runtimes that are learned while a list runs: when decompose is told and asked, what policies see, what goes wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import numpy as np
import pytest

from adlro.decide.policies import POLICIES
from adlro.errors import AdlroError, Unavailable
from adlro.lab.evaluate import Request, evaluate, own_decompose
from adlro.lab.evaluate import tasks as tasks_module
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.document import build_document
from adlro.lab.evaluate.learning import simulate_learned
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobSpec, JobState
from adlro.records.precedence import Precedence
from adlro.services.orchestrator.ports import Predicted
from adlro.sim.batch import BatchOutcome, BatchSimulator, simulate
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats, Ints, Observation
from adlro.store import Move
from adlro.workload.estimates import expected_s
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.pairs import pair_table
from adlro.workload.scenario import load_scenario
from tests.policies import made
from tests.unit.orchestrator.reserving import Reserves
from tests.unit.orchestrator.stopping import Stops

SCENARIO = load_scenario("paper")
CLUSTER = SCENARIO.cluster
JOBS = draw_jobs(SCENARIO, load=1.1, rng=np.random.default_rng(7), count=60)
TRUE_S = expected_s(JOBS, CLUSTER.gpu_models, "true", SCENARIO, 0)


class FakeDecompose:
    """Says `says(number, learned)` of the job with that number, after so many ends; notes all that it is told."""

    def __init__(self, says: Callable[[int, int], Floats]) -> None:
        self.says = says
        self.learned: list[Move] = []
        self.asked: list[tuple[int, list[int]]] = []  # how many ends it knew, and about which jobs
        self.specs: Sequence[JobSpec] = ()
        self.error: AdlroError | None = None
        self.revision = 1

    async def begin(self, cluster: Cluster, specs: Sequence[JobSpec]) -> list[str]:
        self.specs = specs
        return [f"job-{number + 1}" for number in range(len(specs))]

    async def learn(self, moves: Sequence[Move]) -> None:
        self.learned += [move for move in moves if move.outcome is not None]
        if self.error is not None:
            raise self.error

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        numbers = [self.specs.index(spec) for spec in specs]
        self.asked.append((len(self.learned), numbers))
        return Predicted(np.array([self.says(number, len(self.learned)) for number in numbers]), self.revision)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        return {}


def arrays(jobs: Sequence[WorkloadJob] = JOBS) -> JobArrays:
    return pack_jobs([jobs], CLUSTER)


async def ran(decompose: FakeDecompose, act: Callable[[Observation], Ints] | None = None) -> BatchOutcome:
    return await simulate_learned(CLUSTER, JOBS, arrays(), act or POLICIES["mct"]().act, decompose)


@pytest.mark.parametrize("name", ["mct", "hold_greedy_fixed"])
async def test_a_decompose_that_knows_the_truth_gives_the_schedule_of_the_truth(name: str) -> None:
    policy = POLICIES[name]()
    learned = await ran(FakeDecompose(lambda number, _: TRUE_S[number]), policy.act)
    assert learned.end_s.tolist() == simulate(CLUSTER, arrays(), policy.act).end_s.tolist()


async def test_jobs_are_asked_about_as_they_join_and_no_earlier_decision_sees_them() -> None:
    decompose = FakeDecompose(lambda number, _: np.full(3, number + 1.0))
    seen: list[set[float]] = []
    policy = POLICIES["mct"]()

    def act(observation: Observation) -> Ints:
        finite = observation.kind_duration_s[0][observation.job_waiting[0]]
        seen.append({float(value) for value in finite[np.isfinite(finite)]})
        return policy.act(observation)

    await ran(decompose, act)
    # Whatever waits at a decision has been asked about by then: its own number stands there, not a placeholder.
    assert set().union(*seen) == {float(number) for number in range(1, len(JOBS) + 1)}
    first_asked = [number for _, numbers in decompose.asked for number in numbers]
    assert list(dict.fromkeys(first_asked)) == list(range(len(JOBS)))
    assert len(decompose.asked) < 3 * len(JOBS)


async def test_all_that_ended_is_learned_before_a_decision_in_the_order_of_the_ends() -> None:
    decompose = FakeDecompose(lambda number, _: TRUE_S[number])
    policy = POLICIES["mct"]()
    known: list[tuple[float, int]] = []

    def act(observation: Observation) -> Ints:
        known.append((float(observation.time_s[0]), len(decompose.learned)))
        return policy.act(observation)

    outcome = await ran(decompose, act)
    for time_s, count in known:
        assert count == np.count_nonzero(outcome.end_s[0] <= time_s)
    ends = [move.job.end_s or 0.0 for move in decompose.learned]
    assert len(ends) > len(JOBS) / 2
    assert ends == sorted(ends)


async def test_outcomes_are_those_of_the_simulation_and_tell_no_truth_beforehand() -> None:
    decompose = FakeDecompose(lambda number, _: TRUE_S[number])
    outcome = await ran(decompose)
    gpus = [gpu for _, gpu in CLUSTER.gpus()]
    for move in decompose.learned:
        number = int(move.job.job_id.removeprefix("job-")) - 1
        gpu = gpus[int(outcome.gpu[0, number])]
        assert (move.job.gpu_id, move.job.gpu_model) == (gpu.gpu_id, gpu.gpu_model)
        assert move.job.state is JobState.SUCCEEDED
        assert move.job.attempt_count == 1
        assert move.outcome is not None
        assert move.outcome.runtime_s == outcome.end_s[0, number] - outcome.start_s[0, number]
        assert move.outcome.succeeded
    assert all(spec.simulated_work is None for spec in decompose.specs)
    wanted = [dataclasses.replace(job.spec(""), simulated_work=None) for job in JOBS]
    assert [dataclasses.replace(spec, name="") for spec in decompose.specs] == wanted


async def test_waiting_jobs_are_asked_about_again_when_enough_was_learned() -> None:
    decompose = FakeDecompose(lambda number, learned: TRUE_S[number] * (1.0 if learned < 20 else 3.0))
    policy = POLICIES["mct"]()
    old = 0

    def act(observation: Observation) -> Ints:
        nonlocal old
        decompose.revision = 1 + (len(decompose.learned) >= 20)
        if len(decompose.asked) and decompose.asked[-1][0] >= 21:
            waiting = observation.kind_duration_s[0][observation.job_waiting[0]]
            believed = {round(float(row[np.isfinite(row)].min()), 6) for row in waiting}
            tripled = {round(3 * float(value), 6) for value in TRUE_S.ravel()}
            old += len(believed - tripled)
        return policy.act(observation)

    await ran(decompose, act)
    assert old == 0
    repeated = [number for learned, numbers in decompose.asked if learned >= 20 for number in numbers]
    assert len(repeated) > len(JOBS) - 20  # some of them had been asked about before


async def test_each_decision_sees_what_was_predicted_last() -> None:
    """Also where nobody joins the queue, and only its first job is asked about."""
    decompose = FakeDecompose(lambda number, learned: np.full(3, number + 1 + learned / 1024))
    policy = POLICIES["mct"]()
    alone = 0

    def act(observation: Observation) -> Ints:
        nonlocal alone
        durations = observation.kind_duration_s[0][observation.job_waiting[0]]
        learned = {float(value) % 1 * 1024 for value in durations[np.isfinite(durations)]}
        assert learned == {len(decompose.learned)}
        alone += int(observation.job_waiting.sum()) == 1
        return policy.act(observation)

    predict = decompose.predict

    async def anew(specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        decompose.revision = 1 + len(decompose.learned)
        return await predict(specs, gpu_models)

    decompose.predict = anew  # type: ignore[method-assign]
    await ran(decompose, act)
    assert alone > 5


@pytest.mark.parametrize("when", ["predict", "learn"])
async def test_an_error_ends_the_run_instead_of_something_else_being_believed(when: str) -> None:
    def says(number: int, learned: int) -> Floats:
        if when == "predict" and number >= 30:
            raise Unavailable("decompose is gone")
        known: Floats = TRUE_S[number]
        return known

    decompose = FakeDecompose(says)
    if when == "learn":
        decompose.error = Unavailable("decompose is gone")
    with pytest.raises(Unavailable, match="decompose is gone"):
        await ran(decompose)


class FakeSource:
    """Gives a decompose that knows the truth; counts."""

    made: ClassVar[list[FakeSource]] = []

    def __init__(self) -> None:
        self.given = 0
        self.closed = False
        FakeSource.made.append(self)

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[FakeDecompose]:
        self.given += 1
        decompose = FakeDecompose(lambda number, _: self.true_s(decompose)[number])
        yield decompose

    def true_s(self, decompose: FakeDecompose) -> Floats:
        case = build_cases(request())[0][0]
        for number in range(case.lists):
            jobs = case.job_list(number)
            if [job.submit_s for job in jobs] == [spec.begin_time_s for spec in decompose.specs]:
                return expected_s(jobs, case.cluster.gpu_models, "true", case.scenario, 0)
        raise AssertionError("a list of no case")

    def close(self) -> None:
        self.closed = True


def request(**changes: Any) -> Request:
    wanted = {"policies": ("mct", "sjf"), "loads": (0.9,), "jobs": 20, "lists": 3, "runtime": "learned", **changes}
    return Request(**wanted)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> type[FakeSource]:
    FakeSource.made = []
    monkeypatch.setattr(own_decompose, "OwnDecompose", FakeSource)
    return FakeSource


def test_each_list_under_each_policy_has_a_decompose_of_its_own_and_the_reference_needs_none(
    source: type[FakeSource],
) -> None:
    learned = evaluate(request(), processes=1)
    true = evaluate(request(runtime="true"), processes=1)
    (made,) = source.made
    assert (made.given, made.closed) == (6, True)
    for name in ("fcfs", "mct", "sjf"):
        assert learned.figures[name, 0].metrics.tolist() == true.figures[name, 0].metrics.tolist()
    document = build_document(learned)
    assert document["meta"]["runtime"] == "learned"
    assert any(text.startswith("Runtimes are learned") for text in document["meta"]["definitions"])
    assert {"late_jct_s", "late_jct_s_ci95"} <= document["rows"][0].keys()


def test_its_processes_end_when_something_goes_wrong(source: type[FakeSource], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: FakeSource, decompose: FakeDecompose) -> Floats:
        raise Unavailable("gone")

    monkeypatch.setattr(FakeSource, "true_s", fails)
    with pytest.raises(Unavailable, match="gone"):
        evaluate(request(), processes=1)
    assert source.made[0].closed


def test_what_is_kept_of_an_interrupted_run_depends_on_how_decompose_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for digest in ("one", "other"):
        monkeypatch.setattr(tasks_module, "learning_digest", lambda digest=digest: digest)
        for runtime in ("learned", "true"):
            cases, _ = build_cases(request(runtime=runtime))
            keys.append(tasks_module.key_of(tasks_module.Setup(tuple(cases), {}), tasks_module.Task("mct", 0, 0, 1)))
    assert keys[0] != keys[2]
    assert keys[1] == keys[3]


# ---- jobs of several GPUs

GANGS = load_scenario("gangs")
QUICK = (("fcfs", 3), (Reserves.name, 3))


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=() if (name, seed) in QUICK else pytest.mark.slow)
        for name in [*POLICIES, Reserves.name]
        for seed in (3, 4)
    ],
)
async def test_gangs_start_in_the_core_when_and_where_the_simulator_starts_them(name: str, seed: int) -> None:
    jobs = draw_jobs(GANGS, load=1.0, rng=np.random.default_rng(seed), count=60)
    assert max(job.gpu_count for job in jobs) > 1
    policy = Reserves() if name == Reserves.name else made(name)
    packed = pack_jobs([jobs], GANGS.cluster)
    true_s = expected_s(jobs, GANGS.cluster.gpu_models, "true", GANGS, 0)
    decompose = FakeDecompose(lambda number, _: true_s[number])
    learned = await simulate_learned(GANGS.cluster, jobs, packed, policy, decompose)
    simulator = BatchSimulator(GANGS.cluster, packed)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
    outcome = simulator.outcome()
    assert not outcome.stuck.any()
    assert learned.gpus.tolist() == outcome.gpus.tolist()
    assert learned.start_s.tolist() == outcome.start_s.tolist()
    assert learned.end_s.tolist() == outcome.end_s.tolist()


# ---- precedence


@pytest.mark.parametrize("name", ["fcfs", "heft", "hold_gang", "dqn"])
async def test_jobs_go_before_others_in_the_core_as_in_the_simulator(name: str) -> None:
    jobs = draw_jobs(GANGS, load=1.1, rng=np.random.default_rng(6), count=60)
    rule = Precedence(fair_share=2.0, age=1.0, priority=1.0, half_life_s=600.0, full_age_s=300.0)
    policy, starts = made(name), []
    packed = pack_jobs([jobs], GANGS.cluster)
    true_s = expected_s(jobs, GANGS.cluster.gpu_models, "true", GANGS, 0)
    for policy.precedence in (None, rule):
        half_life_s = math.inf if policy.precedence is None else rule.half_life_s
        decompose = FakeDecompose(lambda number, _: true_s[number])
        learned = await simulate_learned(GANGS.cluster, jobs, packed, policy, decompose, half_life_s=half_life_s)
        simulator = BatchSimulator(GANGS.cluster, packed, half_life_s=half_life_s)
        while len(simulator.active):
            seen = simulator.observe()
            judgement = policy.judge(seen)
            simulator.act(policy.choose(seen, judgement), judgement.reserve)
        assert learned.gpus.tolist() == simulator.outcome().gpus.tolist()
        assert learned.start_s.tolist() == simulator.outcome().start_s.tolist()
        starts.append(learned.start_s.tolist())
    assert starts[0] != starts[1]


# ---- jobs that are stopped for others

STOPS = load_scenario("preemptive")


@pytest.mark.parametrize(
    ("name", "load", "seed"),
    [
        ("srtf", 1.0, 3),
        *(
            pytest.param(name, load, seed, marks=pytest.mark.slow)
            for name in ("srtf", "las_preemptive", "stops")
            for load in (0.8, 1.2)
            for seed in (4, 5)
        ),
    ],
)
async def test_jobs_are_stopped_in_the_core_when_and_for_whom_the_simulator_stops_them(
    name: str, load: float, seed: int
) -> None:
    jobs = draw_jobs(STOPS, load=load, rng=np.random.default_rng(seed), count=60)
    policy = Stops() if name == Stops.name else made(name)
    packed = pack_jobs([jobs], STOPS.cluster)
    true_s = expected_s(jobs, STOPS.cluster.gpu_models, "true", STOPS, 0)
    decompose = FakeDecompose(lambda number, _: true_s[number])
    learned = await simulate_learned(STOPS.cluster, jobs, packed, policy, decompose)
    simulator = BatchSimulator(STOPS.cluster, packed, preempts=True)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    assert outcome.stops[0] > 0
    assert list(learned.runs(0)) == list(outcome.runs(0))
    assert learned.end_s.tolist() == outcome.end_s.tolist()
    # Of those that end last decompose is not told: the list is over.
    told = {move.job.job_id for move in decompose.learned if move.outcome is not None and move.outcome.stopped_runs}
    assert told
    assert told <= {f"job-{run.job + 1}" for run in outcome.runs(0) if run.stopped}


# ---- jobs that share GPUs

SHARED = load_scenario("shared")


@pytest.mark.parametrize(
    ("known", "load", "seed"),
    [
        ("true", 1.0, 3),
        *(
            pytest.param(known, load, seed, marks=pytest.mark.slow)
            for known in ("true", "family", "application")
            for load, seed in ((0.6, 4), (0.9, 5), (1.2, 6))
        ),
    ],
)
async def test_jobs_share_gpus_in_the_core_when_and_where_the_simulator_lets_them(
    known: str, load: float, seed: int
) -> None:
    jobs = draw_jobs(SHARED, load=load, rng=np.random.default_rng(seed), count=80)
    models = SHARED.cluster.gpu_models
    true, told = pair_table(models), pair_table(models, known)
    packed, policy = pack_jobs([jobs], SHARED.cluster), made("share_pairs")
    packed.family[0, : len(jobs)] = true.families([job.application for job in jobs])
    true_s = expected_s(jobs, models, "true", SHARED, 0)
    decompose = FakeDecompose(lambda number, _: true_s[number])
    learned = await simulate_learned(SHARED.cluster, jobs, packed, policy, decompose, true.kept, told.kept)
    simulator = BatchSimulator(SHARED.cluster, packed, shares=True, kept=true.kept, expected_kept=told.kept)
    shared = 0
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        shared += len(judgement.busy)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    assert shared > 0
    assert learned.gpus.tolist() == outcome.gpus.tolist()
    assert learned.start_s.tolist() == outcome.start_s.tolist()
    assert learned.end_s.tolist() == outcome.end_s.tolist()
    _check_neighbours(decompose.learned, outcome)


def _check_neighbours(moves: Sequence[Move], outcome: BatchOutcome) -> None:
    """What decompose is told of neighbours is how long others were there, by the simulator's runs."""
    runs = {run.job: run for run in outcome.runs(0)}
    told = 0.0
    for move in moves:
        assert move.outcome is not None
        run = runs[int(move.job.job_id.removeprefix("job-")) - 1]
        beside_s = sum(
            max(0.0, min(run.end_s, other.end_s) - max(run.start_s, other.start_s))
            for other in runs.values()
            if other.gpus == run.gpus and other.job != run.job
        )
        said_s = sum(each.time_s for each in move.outcome.neighbours)
        assert said_s == pytest.approx(beside_s, abs=1e-6)
        told += said_s
    assert told > 0.0
