"""Headroom: the search finds optima of small lists, its schedules can be played, the bound is below all of them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adlro.state.cluster_arrays import hardware_of
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.annealing import Problem, anneal, problem_of, schedule_of, total_jct_s
from benchmarks.headroom import METHODS, World, command, play_hold_greedy, play_schedule, ratio_with_interval
from benchmarks.lp_bound import bound_s, lower_bound_s

ROOT = Path(__file__).resolve().parents[3]


def small_problem(rng: np.random.Generator, jobs: int) -> Problem:
    duration_s = rng.uniform(1.0, 10.0, (jobs, 2))
    duration_s[rng.random(jobs) < 0.2, 1] = np.inf  # too large for the second node
    return Problem(
        submit_s=np.sort(rng.uniform(0.0, 6.0, jobs)),
        duration_s=duration_s,
        cores=rng.integers(1, 5, jobs),
        memory_mib=rng.integers(1, 4, jobs),
        node_gpus=np.array([2, 1]),
        node_cores=np.array([5, 4]),
        node_memory_mib=np.array([5, 3]),
    )


def optimum_s(problem: Problem) -> float:
    """Every order of every assignment, placed one after another on a plain list of what runs when."""
    jobs = range(len(problem.submit_s))
    best_s = np.inf
    for nodes in itertools.product((0, 1), repeat=len(jobs)):
        if any(problem.duration_s[job, node] == np.inf for job, node in zip(jobs, nodes, strict=True)):
            continue
        total_s = 0.0
        for node in (0, 1):
            here = [job for job in jobs if nodes[job] == node]
            total_s += min(placed_s(problem, node, order) for order in itertools.permutations(here))
        best_s = min(best_s, total_s)
    return best_s


def placed_s(problem: Problem, node: int, order: tuple[int, ...]) -> float:
    runs: list[tuple[float, float, int]] = []
    total_s = 0.0
    for job in order:
        duration_s, submit_s = problem.duration_s[job, node], problem.submit_s[job]
        for start_s in sorted([submit_s, *(end_s for _, end_s, _ in runs if end_s > submit_s)]):
            moments = [start_s, *(begin_s for begin_s, _, _ in runs if start_s < begin_s < start_s + duration_s)]
            if all(room(problem, node, job, [j for b, e, j in runs if b <= moment < e]) for moment in moments):
                break
        runs.append((start_s, start_s + duration_s, job))
        total_s += start_s + duration_s - submit_s
    return total_s


def room(problem: Problem, node: int, job: int, others: list[int]) -> bool:
    return bool(
        len(others) < problem.node_gpus[node]
        and problem.cores[[job, *others]].sum() <= problem.node_cores[node]
        and problem.memory_mib[[job, *others]].sum() <= problem.node_memory_mib[node]
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_the_optimum_and_the_bound_is_below_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = small_problem(rng, 5)
    best_s = optimum_s(problem)
    begin = schedule_of(problem, np.zeros(5, dtype=np.int64), problem.submit_s)
    found = anneal(problem, begin, 20_000, rng)
    assert total_jct_s(problem, found) == pytest.approx(best_s, rel=1e-12)

    bound = lower_bound_s(problem, 60.0, 40.0, slot_s=0.5)
    assert problem.duration_s.min(axis=1).sum() - 1e-6 <= bound <= best_s + 1e-9
    for _ in range(20):  # whatever the prices
        bounds = np.cumsum(rng.uniform(0.1, 4.0, 12))
        prices = rng.exponential(0.3, (2, 2, 11)) * (rng.random((2, 2, 11)) < 0.5)
        assert bound_s(problem, bounds, prices[0], prices[1]) <= best_s + 1e-9


def test_the_bound_of_one_gpu_by_hand() -> None:
    # Jobs of 1 s and 2 s on one GPU: 1 + 3 at best. A price of 1 in the first second and 1 in the second: the first job
    # pays 1 + 1, the second 2 + 2 or, a second later, 3 + 1, and both less the 2 that the GPU costs: 4.
    problem = Problem(
        np.zeros(2), np.array([[1.0], [2.0]]), np.ones(2, dtype=np.int64), np.ones(2, dtype=np.int64),
        np.array([1]), np.array([8]), np.array([8]),
    )  # fmt: skip
    assert bound_s(problem, np.array([0.0, 2.0]), np.array([[1.0]]), np.zeros((1, 1))) == pytest.approx(4.0)
    assert lower_bound_s(problem, 4.0, 4.0, slot_s=1.0) == pytest.approx(4.0)


@pytest.mark.slow  # compiles for some seconds
def test_a_schedule_is_played_in_the_simulator_as_it_was_found() -> None:
    scenario = load_scenario("paper")
    jobs = pack_jobs([draw_jobs(scenario, load=1.1, rng=np.random.default_rng(3), count=48)], scenario.cluster)
    problem = problem_of(hardware_of([scenario.cluster], scenario.cluster.gpu_models), jobs, 0)
    base = World(scenario.cluster, jobs)
    play_hold_greedy(base, 1.1)
    node = base.hardware.gpu_node[0, base.course.job_gpus[0, :, 0]]
    begin = schedule_of(problem, node, base.course.job_start_s[0])
    best = anneal(problem, begin, 20_000, np.random.default_rng(0))
    played = World(scenario.cluster, jobs)
    play_schedule(played, best)
    np.testing.assert_array_equal(played.course.job_start_s[0], best.start_s)
    assert played.total_jct_s() == pytest.approx(total_jct_s(problem, best), rel=1e-12)
    assert played.total_jct_s() < base.total_jct_s()

    bound = lower_bound_s(problem, 300.0, 60.0)
    assert 0.8 * played.total_jct_s() < bound < played.total_jct_s()


@pytest.mark.slow  # compiles for some seconds
def test_a_schedule_that_cannot_be_played_is_refused() -> None:
    scenario = load_scenario("paper")
    jobs = pack_jobs([draw_jobs(scenario, load=1.1, rng=np.random.default_rng(3), count=8)], scenario.cluster)
    problem = problem_of(hardware_of([scenario.cluster], scenario.cluster.gpu_models), jobs, 0)
    between = schedule_of(problem, np.zeros(8, dtype=np.int64), problem.submit_s + 0.123)
    with pytest.raises(RuntimeError, match="job 0 of the schedule cannot start at"):
        play_schedule(World(scenario.cluster, jobs), between)


def test_ratios_are_paired() -> None:
    base = np.random.default_rng(0).uniform(10.0, 100.0, 30)
    ratio, low, high = ratio_with_interval(0.9 * base, base)
    assert [ratio, low, high] == pytest.approx([0.9] * 3)
    ratio, low, high = ratio_with_interval(np.where(np.arange(30) % 2, 0.8, 1.0) * base, base)
    assert low < ratio < high
    assert high - low < 0.1


@pytest.mark.parametrize(
    "options",
    [["--scenario", "papers"], ["--load", "0"], ["--load", "0.9,nan"], ["--load", "x"], ["--lists", "many"]],
)
def test_the_command_refuses_what_makes_no_sense(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command().parse_args(options)
    assert options[0] in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_script_runs_and_gives_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "headroom.json"
    options = ["--scenario", "paper", "--load", "1.1", "--lists", "2", "--jobs", "24", "--search-jobs", "16"]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.headroom", "--quick", "--processes", "1", "--json", str(out), *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (cell,) = json.loads(out.read_text())["cells"]
    rows = {row["method"]: row for row in cell["rows"]}
    assert tuple(rows) == METHODS
    assert all(f" {method} " in ended.stdout for method in METHODS)
    assert rows["clairvoyant_one_step"]["ratio"] <= 1.0
    assert 0.5 < rows["lp_bound"]["ratio"] < rows["clairvoyant_annealing"]["ratio"] <= 1.0
    assert rows["honest_rollouts"]["cpu_ms_per_decision"] > 0
