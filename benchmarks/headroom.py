"""How much better than the best heuristic any scheduler could be, per scenario and load.

    python -m benchmarks.headroom [--quick] [--scenario paper,paper_roomy] [--load 0.6,0.9,1.1] [--lists 40] [--seed 1]
                                  [--processes 2] [--json FILE]
    python -m benchmarks.headroom --show FILE ...          # the table of runs in parts

(as a module: by its path, `python benchmarks/headroom.py`, it does not find the modules beside it)

Beside `hold_greedy`, set for the load, on the same job lists, with exact runtimes:

- honest_rollouts: each candidate action played over sampled futures; the base's choice is left only for a gain that
  clears two standard errors (adlro/decide/rollouts/gated.py). Knows nothing of what is to come.
- clairvoyant_one_step: at each decision the candidate that turns out best, the base policy to the end of the true list.
- clairvoyant_annealing: the best schedule that a search finds, played in the simulator; the first `--search-jobs` jobs.
- lp_bound: what no schedule of those jobs can beat (benchmarks/lp_bound.py).

`ratio` is the mean job completion time against hold_greedy's on the same lists, with a 95 % bootstrap interval over the
lists. The full run takes about a quarter of an hour of CPU time for 40 lists; `--quick`, 4 lists, a few minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies.hold_greedy import HoldGreedy
from adlro.decide.rollouts.candidates import find_candidates, room_for_candidates
from adlro.decide.rollouts.continuation import play_base, play_clairvoyant, step
from adlro.decide.rollouts.futures import history_of
from adlro.decide.rollouts.gated import GatedRollouts
from adlro.decide.rollouts.rule import base_policy
from adlro.records.cluster import Cluster
from adlro.sim import fork, kernel
from adlro.sim.batch import change_arrays
from adlro.sim.course import DECISION, DONE, JOBS_S, new_course
from adlro.state.cluster_arrays import IDLE, Hardware, Machines, empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD, Floats, Ints
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import ONE_GPU_SCENARIO_NAMES, Scenario, load_scenario
from benchmarks.annealing import Problem, Schedule, anneal, problem_of, schedule_of, total_jct_s
from benchmarks.lp_bound import lower_bound_s
from benchmarks.measuring import machine

LOADS = (0.6, 0.9, 1.1)
HISTORY_JOBS = 512
"""What the honest rollouts have seen before a list begins."""

HISTORY_STREAM, FUTURES_STREAM, SEARCH_STREAM = 1_000_000, 2_000_000, 3_000_000
"""Random streams beside those of the lists, which are numbered from 0."""

SLOT_S = 1.0
METHODS = ("honest_rollouts", "clairvoyant_one_step", "clairvoyant_annealing", "lp_bound")
BASES = {"clairvoyant_annealing": "hold_greedy_search", "lp_bound": "hold_greedy_search"}
"""What a method is set against, where it is not `hold_greedy` on the whole list."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is computed.

    Attributes:
        jobs: of a list.
        search_jobs: of its beginning, for annealing and bound.
        candidates: of the clairvoyant rollouts at a decision.
        searches: annealings of a list; the best counts.
        moves: of each.
    """

    jobs: int = 256
    search_jobs: int = 64
    candidates: int = 6
    searches: int = 2
    moves: int = 300_000


@dataclass(frozen=True, slots=True)
class Task:
    """One job list of one scenario and load."""

    scenario: str
    load: float
    seed: int
    number: int
    size: Size


class World:
    """One list on one cluster of the simulator, from its beginning."""

    def __init__(self, cluster: Cluster, jobs: JobArrays) -> None:
        self.jobs = jobs
        self.hardware: Hardware = hardware_of([cluster], cluster.gpu_models)
        self.changes = change_arrays([[]], self.hardware.gpu_count)
        self.machines: Machines = empty_machines(self.hardware)
        self.course = new_course(
            self.hardware, jobs, self.changes, np.zeros(1, dtype=np.int64), start_cost_s=np.zeros(1)
        )
        kernel.begin_all(self.hardware, self.machines, jobs, self.changes, self.course)

    def act(self, job: int, gpu: int) -> None:
        """Starts a job by its number, or holds, and goes to the next decision."""
        step(self.hardware, self.machines, self.jobs, self.changes, self.course, 0, job, gpu)

    def total_jct_s(self) -> float:
        """Of the whole list, which has ended.

        Raises:
            RuntimeError: it has not.
        """
        if self.course.status[0] != DONE:
            raise RuntimeError("the list has not come to its end")
        return float(self.course.totals[0, JOBS_S])


def play_hold_greedy(world: World, load: float) -> None:
    """The base to the end."""
    base, first = base_policy(HoldGreedy(load).settings, world.hardware), room_for_candidates(1)
    arrays = (world.hardware, world.machines, world.jobs, world.course)
    if world.course.status[0] == DECISION:
        find_candidates(*arrays, 0, base, first)
        play_base(*arrays[:3], world.changes, world.course, 0, first.job[0], first.gpu[0], base)


def play_one_step(world: World, load: float, candidates: int) -> None:
    """Clairvoyant one-step rollouts to the end."""
    play_clairvoyant(
        world.hardware,
        world.machines,
        world.jobs,
        world.changes,
        world.course,
        0,
        base_policy(HoldGreedy(load).settings, world.hardware),
        *fork.scratch(world.hardware, world.jobs, world.changes, 1),
        room_for_candidates(candidates),
    )


def play_honest(world: World, task: Task, scenario: Scenario) -> int:
    """Honest gated rollouts to the end; the number of decisions."""
    rng = np.random.default_rng([task.seed, HISTORY_STREAM])
    past = draw_jobs(scenario, load=task.load, rng=rng, count=HISTORY_JOBS)
    history = history_of(pack_jobs([past], scenario.cluster), past[-1].submit_s)
    rollouts = GatedRollouts(world.hardware, world.jobs, HoldGreedy(task.load).settings)
    rng = np.random.default_rng([task.seed, FUTURES_STREAM, task.number])
    decisions = 0
    while world.course.status[0] == DECISION:
        world.act(*rollouts.choose(world.hardware, world.machines, world.jobs, world.course, 0, history, rng))
        decisions += 1
    return decisions


def play_schedule(world: World, schedule: Schedule) -> None:
    """A schedule in the simulator, job for job.

    Raises:
        RuntimeError: it cannot be played as it stands.
    """
    node_of = world.hardware.gpu_node[0]
    while world.course.status[0] == DECISION:
        waiting = world.course.waiting[0, : world.course.waiting_count[0]]
        due = waiting[schedule.start_s[waiting] <= world.machines.time_s[0]]
        if not len(due):
            world.act(HOLD, HOLD)
            continue
        idle = np.flatnonzero((world.machines.gpu_job[0] == IDLE) & (node_of == schedule.node[due[0]]))
        if not len(idle) or schedule.start_s[due[0]] != world.machines.time_s[0]:
            raise RuntimeError(f"job {due[0]} of the schedule cannot start at {schedule.start_s[due[0]]} s")
        world.act(int(due[0]), int(idle[0]))


def search(problem: Problem, begin: Schedule, task: Task) -> Schedule:
    """The best schedule of some annealings."""
    found = [
        anneal(
            problem,
            begin,
            task.size.moves,
            np.random.default_rng([task.seed, SEARCH_STREAM, task.number, number]),
        )
        for number in range(task.size.searches)
    ]
    return min(found, key=lambda schedule: total_jct_s(problem, schedule))


def measure(task: Task) -> dict[str, dict[str, float]]:
    """Mean completion time and CPU seconds of each method on one list."""
    scenario = load_scenario(task.scenario)
    rng = np.random.default_rng([task.seed, task.number])
    drawn = draw_jobs(scenario, load=task.load, rng=rng, count=task.size.jobs)
    jobs = pack_jobs([drawn], scenario.cluster)
    result: dict[str, dict[str, float]] = {}

    def timed(name: str, play: Callable[[World], object], jobs: JobArrays) -> World:
        world = World(scenario.cluster, jobs)
        before_s = time.process_time()
        told = play(world)
        result[name] = {
            "mean_jct_s": world.total_jct_s() / int(jobs.job_count[0]),
            "cpu_s": time.process_time() - before_s,
        }
        if isinstance(told, int):
            result[name]["decisions"] = told
        return world

    timed("hold_greedy", lambda world: play_hold_greedy(world, task.load), jobs)
    timed("honest_rollouts", lambda world: play_honest(world, task, scenario), jobs)
    timed("clairvoyant_one_step", lambda world: play_one_step(world, task.load, task.size.candidates), jobs)

    beginning = pack_jobs([drawn[: task.size.search_jobs]], scenario.cluster)
    world = timed("hold_greedy_search", lambda world: play_hold_greedy(world, task.load), beginning)
    problem = problem_of(world.hardware, beginning, 0)
    node: Ints = world.hardware.gpu_node[0, world.course.job_gpus[0, :, 0]]
    before_s = time.process_time()
    best = search(problem, schedule_of(problem, node, world.course.job_start_s[0]), task)
    searched_s = time.process_time() - before_s
    timed("clairvoyant_annealing", lambda world: play_schedule(world, best), beginning)
    result["clairvoyant_annealing"]["cpu_s"] += searched_s

    before_s = time.process_time()
    wait_s = best.start_s - problem.submit_s
    ends_s = best.start_s + problem.duration_s[np.arange(len(wait_s)), best.node]
    bound = lower_bound_s(problem, float(ends_s.max()), 1.2 * float(wait_s.max()) + 5.0, SLOT_S)
    result["lp_bound"] = {"mean_jct_s": bound / len(wait_s), "cpu_s": time.process_time() - before_s}
    return result


def warm_up() -> None:
    """Loads what is compiled, or compiles it, before a process measures."""
    measure(Task(ONE_GPU_SCENARIO_NAMES[0], 1.1, 0, 0, Size(jobs=40, search_jobs=16, searches=1, moves=10)))


def ratio_with_interval(method: Floats, base: Floats) -> tuple[float, float, float]:
    """Mean of a method against the mean of the base on the same lists, and its 95 % bootstrap interval."""
    ratio = float(method.mean() / base.mean())
    if len(method) < 2:
        return ratio, float("nan"), float("nan")
    from scipy import stats  # takes a second, and only the last line needs it

    drawn = stats.bootstrap(
        (method, base),
        lambda method, base, axis: method.mean(axis=axis) / base.mean(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(0),
    )
    return ratio, float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def cell(scenario: str, load: float, results: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """A scenario and load, over its lists."""

    def column(name: str, key: str) -> Floats:
        return np.array([result[name][key] for result in results])

    rows = []
    for name in METHODS:
        base = column(BASES.get(name, "hold_greedy"), "mean_jct_s")
        ratio, low, high = ratio_with_interval(column(name, "mean_jct_s"), base)
        row: dict[str, Any] = {
            "method": name,
            "base_mean_jct_s": float(base.mean()),
            "mean_jct_s": float(column(name, "mean_jct_s").mean()),
            "ratio": ratio,
            "ratio_ci95": [low, high],
            "cpu_s_per_list": float(np.median(column(name, "cpu_s"))),
        }
        if "decisions" in results[0][name]:
            row["cpu_ms_per_decision"] = 1e3 * float(column(name, "cpu_s").sum() / column(name, "decisions").sum())
        rows.append(row)
    return {"scenario": scenario, "load": load, "lists": len(results), "rows": rows}


def table(cells: Sequence[dict[str, Any]]) -> str:
    """Markdown: one row a scenario and load; ratios as percent below hold_greedy."""
    lines = [
        "| scenario | load | lists | hold_greedy, s | " + " | ".join(METHODS) + " |",
        "| --- | --- | --- | --- |" + " --- |" * len(METHODS),
    ]
    for each in cells:
        shown = [
            f"{100 * (row['ratio'] - 1):+.1f} % ({100 * (row['ratio_ci95'][0] - 1):+.1f} .. "
            f"{100 * (row['ratio_ci95'][1] - 1):+.1f})"
            for row in each["rows"]
        ]
        base_s = each["rows"][0]["base_mean_jct_s"]
        lines.append(f"| {each['scenario']} | {each['load']} | {each['lists']} | {base_s:.1f} | {' | '.join(shown)} |")
    seconds = {
        row["method"]: float(
            np.mean(
                [
                    other["cpu_s_per_list"]
                    for each in cells
                    for other in each["rows"]
                    if other["method"] == row["method"]
                ]
            )
        )
        for row in cells[0]["rows"]
    }
    lines += ["", "CPU seconds a list: " + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())]
    decisions = [row["cpu_ms_per_decision"] for each in cells for row in each["rows"] if "cpu_ms_per_decision" in row]
    lines.append(f"An honest decision: {min(decisions):.1f} .. {max(decisions):.1f} ms of CPU time, by cell")
    return "\n".join(lines)


def run(
    scenarios: Sequence[str], loads: Sequence[float], *, lists: int, seed: int, size: Size, processes: int
) -> list[dict[str, Any]]:
    """All cells; a line on standard error as each is done."""
    cells = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=warm_up) as pool:
        for scenario in scenarios:
            for load in loads:
                before_s = time.monotonic()
                tasks = [Task(scenario, load, seed, number, size) for number in range(lists)]
                cells.append(cell(scenario, load, list(pool.map(measure, tasks))))
                took_s = time.monotonic() - before_s
                print(f"{scenario} {load}: {lists} lists in {took_s:.0f} s", file=sys.stderr, flush=True)
    return cells


def numbers_above_0(text: str) -> list[float]:
    """Numbers between commas.

    Raises:
        ValueError: one is not a number, or not above 0.
    """
    values = [float(value) for value in text.split(",")]
    if not all(0 < value < np.inf for value in values):
        raise ValueError(text)
    return values


def scenario_names(text: str) -> list[str]:
    """Names between commas.

    Raises:
        ValueError: one is not that of a scenario whose jobs have one GPU each.
    """
    names = text.split(",")
    if not set(names) <= set(ONE_GPU_SCENARIO_NAMES):
        raise ValueError(text)
    return names


def command() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 lists, one search of 100,000 moves")
    every = list(ONE_GPU_SCENARIO_NAMES)
    parser.add_argument("--scenario", type=scenario_names, default=every, help="names between commas")
    parser.add_argument("--load", type=numbers_above_0, default=list(LOADS), help="numbers above 0 between commas")
    parser.add_argument("--lists", type=int)
    parser.add_argument("--jobs", type=int, default=256)
    parser.add_argument("--search-jobs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path, nargs="+", help="only the table of what runs wrote with --json")
    return parser


def main() -> None:
    """Runs it, or reads what was run, and prints the table."""
    parser = command()
    arguments = parser.parse_args()
    if arguments.show:
        print(table([each for file in arguments.show for each in json.loads(file.read_text())["cells"]]))
        return
    searches, moves = (1, 100_000) if arguments.quick else (2, 300_000)
    lists = arguments.lists if arguments.lists is not None else 4 if arguments.quick else 40
    if min(lists, arguments.search_jobs, arguments.processes) < 1 or arguments.jobs < arguments.search_jobs:
        parser.error("--lists, --search-jobs and --processes must be 1 or more, --jobs no less than --search-jobs")
    size = Size(jobs=arguments.jobs, search_jobs=arguments.search_jobs, searches=searches, moves=moves)
    facts = machine()
    cells = run(
        arguments.scenario,
        arguments.load,
        lists=lists,
        seed=arguments.seed,
        size=size,
        processes=arguments.processes,
    )
    if arguments.json:
        result = {"machine": facts, "seed": arguments.seed, "lists": lists, "size": asdict(size), "cells": cells}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(table(cells))


if __name__ == "__main__":
    main()
