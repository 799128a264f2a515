"""The rule that lets two jobs share a GPU: mean completion times by load, and by what is known of pairs.

    python -m benchmarks.sharing [--lists N] [--tuning-lists N] [--loads L ...] [--pairs P ...] [--runtimes R ...]
                                 [--json FILE]

Lists of the scenario `shared`. The policy `share_pairs` against `hold_greedy_fixed`, which is the same rule without
sharing, on the same lists of seeds from FIRST_SEED on; no bound on waits (`bounded_wait`) acts, as that is no part of
the rule. What is not known of runtimes, and of pairs, is as in adlro/workload/estimates.py and pairs.py. The settings
of sharing are tuned for each knowledge of pairs, with known runtimes, one setting for all loads, on lists of seeds from
TUNING_SEED on; with guessed runtimes the policy has its own setting. Intervals: 95 % bootstrap over lists, drawn in
pairs. The eager base refuses less: theta 2 instead of 1.25. At last the time of decisions on ready observations, with
1,000 jobs waiting.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedy, HoldGreedySettings
from adlro.decide.policies.share_pairs import SHARED, SharePairs, SharePairsSettings
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats
from adlro.workload.job_lists import draw_jobs
from adlro.workload.pairs import PAIR_KINDS, pair_table
from adlro.workload.scenario import load_scenario
from benchmarks.gangs import change_ci95, job_lists
from benchmarks.simulator import copies

SCENARIO = "shared"
FIRST_SEED, TUNING_SEED = 20_000_000, 21_000_000
LOADS = (0.6, 0.9, 1.1)
RUNTIMES = ("noise:0.5", "group", "type")
S_MINS, PENS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6), (0.5, 1.5)
EAGER = dataclasses.replace(FIXED, theta=2.0)
NAMES = {
    "true": "each pair",
    "family": "mean of other pairs of the two families",
    "application": "row and column means of other pairs",
    "mean": "one mean a model",
}
STUDY: dict[str, dict[float, tuple[float, float, float] | float]] = {
    "true": {0.6: (-2.9, -3.3, -2.5), 0.9: (-12.3, -13.6, -11.0), 1.1: (-15.6, -16.8, -14.4)},
    "family": {0.6: -1.5, 0.9: (-8.6, -10.1, -7.2), 1.1: (-10.3, -11.7, -9.0)},
    "application": {0.6: -1.1, 0.9: -5.5, 1.1: -5.8},
    "mean": {0.6: (-0.5, -0.7, -0.3), 0.9: (0.8, 0.1, 1.5), 1.1: (1.6, 1.0, 2.2)},
}
"""What an earlier study found with a simulator, a rule and 60 lists of its own: change in %, with its interval."""
STUDY_LISTS = 60
WAITING = 1000


@functools.cache
def lists_of(load: float, lists: int, runtime: str, first_seed: int) -> JobArrays:
    """Lists of the scenario, with the runtimes that a scheduler expects, and families as in `pair_table`."""
    scenario, table = load_scenario(SCENARIO), pair_table(())
    jobs = job_lists(SCENARIO, load, lists, runtime, first_seed)
    for number, seed in enumerate(range(first_seed, first_seed + lists)):
        drawn = draw_jobs(scenario, load=load, rng=np.random.default_rng(seed))
        jobs.family[number, : len(drawn)] = table.families([job.application for job in drawn])
    return jobs


@functools.cache
def table_of(known: str) -> Floats:
    """Kept shares on the scenario's models, as expected."""
    return pair_table(load_scenario(SCENARIO).cluster.gpu_models, known).kept


def play(policy: Policy, jobs: JobArrays, expected: Floats) -> Floats:
    """(lists, jobs) completion times.

    Args:
        expected: kept shares as the policy expects them.
    """
    policy.wait_ratio = math.inf
    simulator = BatchSimulator(
        load_scenario(SCENARIO).cluster, jobs, kept=table_of("true"), expected_kept=expected, shares=policy.shares
    )
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    if not np.isfinite(outcome.end_s).all():
        raise AssertionError(f"{policy.name}: a list did not come to its end")
    return outcome.end_s - jobs.submit_s


@functools.cache
def alone(load: float, lists: int, runtime: str, first_seed: int, base: HoldGreedySettings) -> Floats:
    """(lists, jobs) completion times without sharing."""
    return play(HoldGreedy(settings=base), lists_of(load, lists, runtime, first_seed), table_of("true"))


def tuned(
    expected: Floats, lists: int, loads: Sequence[float], base: HoldGreedySettings = FIXED
) -> tuple[SharePairsSettings, bool]:
    """The setting of sharing with the least mean completion time against none, mean of the loads, and if that is less.

    Settings by which no pair is ever accepted do not count.
    """

    @functools.cache
    def ratio(settings: SharePairsSettings) -> float:
        found = []
        for load in loads:
            without = alone(load, lists, "true", TUNING_SEED, base)
            policy = SharePairs(settings, single=base)
            jct_s = play(policy, lists_of(load, lists, "true", TUNING_SEED), expected)
            found.append(jct_s.mean() / without.mean())
        return float(np.mean(found))

    some = [each for s_min in S_MINS if ratio(each := SharePairsSettings(s_min, SHARED.pen)) != 1.0]
    best = min(some, key=ratio)
    best = min((best, *(dataclasses.replace(best, pen=pen) for pen in PENS)), key=ratio)
    return best, ratio(best) < 1.0


def change(
    load: float,
    lists: int,
    runtime: str,
    expected: Floats,
    settings: SharePairsSettings | None,
    base: HoldGreedySettings = FIXED,
) -> dict[str, Any]:
    """Sharing, or not even that (None), against not sharing, on the lists that count."""
    without = alone(load, lists, runtime, FIRST_SEED, base)
    jct_s = without
    if settings is not None:
        jct_s = play(SharePairs(settings, single=base), lists_of(load, lists, runtime, FIRST_SEED), expected)
    p95 = [np.percentile(each, 95, axis=1) for each in (jct_s, without)]
    return {
        "mean_jct_s": float(jct_s.mean()),
        "alone_s": float(without.mean()),
        "change_ci95_percent": change_ci95(jct_s.mean(axis=1), without.mean(axis=1)),
        "p95_jct_s": float(p95[0].mean()),
        "p95_change_ci95_percent": change_ci95(p95[0], p95[1]),
    }


def against_study(ours: tuple[float, float, float], study: tuple[float, float, float] | float, lists: int) -> Any:
    """Ours less the study's change, with its interval; without one of the study's own, one as wide as its lists say."""
    value, low, high = ours
    width = (high - low) / 2
    if isinstance(study, tuple):
        its, its_width = study[0], (study[2] - study[1]) / 2
    else:
        its, its_width = study, width * math.sqrt(lists / STUDY_LISTS)
    both = math.hypot(width, its_width)
    return value - its, value - its - both, value - its + both


def told(found: tuple[float, float, float]) -> str:
    """A change with its interval."""
    return f"{found[0]:+.1f} ({found[1]:+.1f} .. {found[2]:+.1f})"


def measure_pairs(
    kinds: Sequence[str],
    loads: Sequence[float],
    lists: int,
    tuning_lists: int,
    base: HoldGreedySettings = FIXED,
) -> list[dict[str, Any]]:
    """Prints and returns the table by knowledge of pairs; where sharing does not pay, without it and with it."""
    rows: list[dict[str, Any]] = []
    print(f"\nthe base has theta {base.theta:g}")
    print("| load | pairs known | s_min, pen | mean JCT, s | change, % | study, % | less study's, % | p95 JCT, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for known in kinds:
        best, pays = tuned(table_of(known), tuning_lists, loads, base)
        for load, settings in itertools.product(loads, (best,) if pays else (None, best)):
            row = change(load, lists, "true", table_of(known), settings, base)
            study = STUDY[known].get(load)
            less = None if study is None else against_study(row["change_ci95_percent"], study, lists)
            setting = None if settings is None else dataclasses.asdict(settings)
            rows.append({"load": load, "pairs": known, "settings": setting, "less_study_percent": less, **row})
            its = "-" if study is None else f"{study:+.1f}" if isinstance(study, float) else told(study)
            print(
                f"| {load} | {NAMES[known]} | {'none' if settings is None else f'{best.s_min:g}, {best.pen:g}'} | "
                f"{row['mean_jct_s']:.1f} (alone {row['alone_s']:.1f}) | {told(row['change_ci95_percent'])} | {its} | "
                f"{'-' if less is None else told(less)} | {row['p95_jct_s']:.0f}, "
                f"{told(row['p95_change_ci95_percent'])} |",
                flush=True,
            )
    return rows


def measure_runtimes(runtimes: Sequence[str], loads: Sequence[float], lists: int) -> list[dict[str, Any]]:
    """Prints and returns the table by knowledge of runtimes, with the policy's own setting."""
    rows = []
    print("\n| runtimes | load | pairs known | mean JCT, s | change, % | p95 JCT, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for runtime in runtimes:
        for load in loads:
            for known in ("true", "family"):
                row = change(load, lists, runtime, table_of(known), SHARED)
                rows.append({"runtime": runtime, "load": load, "pairs": known, **row})
                print(
                    f"| `{runtime}` | {load} | {NAMES[known]} | {row['mean_jct_s']:.1f} (alone {row['alone_s']:.1f}) | "
                    f"{told(row['change_ci95_percent'])} | {row['p95_jct_s']:.0f}, "
                    f"{told(row['p95_change_ci95_percent'])} |",
                    flush=True,
                )
    return rows


def decision_ms(times: int) -> dict[str, float]:
    """CPU time of decisions on ready observations of a full cluster, in ms: median and worst of 30."""
    scenario = load_scenario(SCENARIO)
    cluster = copies(scenario.cluster, times)
    gpus = sum(1 for _ in cluster.gpus())
    # All come at once: the last of them to start find few idle GPUs, and many with one job.
    drawn = draw_jobs(scenario, load=1.0, rng=np.random.default_rng(6_000_000), count=WAITING + gpus)
    jobs = pack_jobs([[dataclasses.replace(job, submit_s=0.0) for job in drawn]], cluster)
    jobs.family[0] = pair_table(()).families([job.application for job in drawn])
    simulator = BatchSimulator(cluster, jobs, kept=table_of("true"), expected_kept=table_of("true"), shares=True)
    policy, spent, starts = SharePairs(), list[float](), 0
    policy.wait_ratio = math.inf
    while len(simulator.active) and len(spent) < 30:
        seen = simulator.observe()
        timed = WAITING <= seen.queue_length[0] < WAITING + 30
        if timed:
            policy.judge(seen)
        began = time.process_time()
        judgement = policy.judge(seen)
        if timed:
            spent.append((time.process_time() - began) * 1e3)
            starts += len(judgement.busy)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return {"gpus": gpus, "median_ms": statistics.median(spent), "most_ms": max(spent), "starts_beside": starts}


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--tuning-lists", type=int, default=100)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--pairs", nargs="*", default=list(PAIR_KINDS), choices=PAIR_KINDS)
    parser.add_argument("--runtimes", nargs="*", default=list(RUNTIMES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "pairs": measure_pairs(arguments.pairs, arguments.loads, arguments.lists, arguments.tuning_lists),
        "runtimes": measure_runtimes(arguments.runtimes, arguments.loads, arguments.lists),
        "eager": measure_pairs(arguments.pairs, arguments.loads, arguments.lists, arguments.tuning_lists, EAGER),
        "decision": [],
        "system_load": os.getloadavg()[0],
    }
    print(
        f"\na decision on a ready observation, {WAITING} or more waiting, CPU ms: median, most; system load "
        f"{figures['system_load']:.1f}"
    )
    for times in (16, 64):
        row = decision_ms(times)
        figures["decision"].append(row)
        print(f"{row['gpus']:>5} GPUs: {row['median_ms']:.2f} {row['most_ms']:.2f} ({row['starts_beside']} beside)")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
