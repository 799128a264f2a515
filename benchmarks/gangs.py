"""Rules on jobs of several GPUs: mean completion times by load, and by what is known of runtimes.

    python -m benchmarks.gangs [--scenario NAME] [--lists N] [--loads L ...] [--runtimes R ...] [--policies P ...]
                               [--json FILE]

Every policy sees the same lists, of seeds from FIRST_SEED on; no bound on waits (`bounded_wait`) acts, as that is no
part of the rules. The change of a mean against `hold_gang` has a 95 % bootstrap interval over lists, drawn in pairs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies import POLICIES, Policy
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats
from adlro.workload.estimates import expected_s, expected_spread_speeds
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

FIRST_SEED = 10_000_000
AGAINST = "hold_gang"
RULES = (
    "fcfs",
    "easy_backfill",
    "conservative_backfill",
    "sjf",
    "shortest_area",
    "min_min",
    "hold_greedy_fixed",
    AGAINST,
    "drain_gang",
)
RUNTIMES = ("true", "noise:0.5", "group", "type")


def job_lists(scenario_name: str, load: float, lists: int, runtime: str, first_seed: int = FIRST_SEED) -> JobArrays:
    """Lists of a scenario, with the runtimes that a scheduler expects."""
    scenario = load_scenario(scenario_name)
    models = scenario.cluster.gpu_models
    seeds = range(first_seed, first_seed + lists)
    drawn = [draw_jobs(scenario, load=load, rng=np.random.default_rng(seed)) for seed in seeds]
    believed = [expected_s(one, models, runtime, scenario, seed) for one, seed in zip(drawn, seeds, strict=True)]
    jobs = pack_jobs(drawn, models, believed)
    speeds = np.ones_like(jobs.expected_spread_speed)
    for number, one in enumerate(drawn):
        speeds[number, : len(one)] = expected_spread_speeds(one, models, runtime)
    return jobs._replace(expected_spread_speed=speeds)


def play(policy: Policy, scenario_name: str, jobs: JobArrays) -> tuple[Floats, Floats]:
    """(lists, jobs) completion times and waits."""
    policy.wait_ratio = float("inf")
    simulator = BatchSimulator(load_scenario(scenario_name).cluster, jobs)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
    outcome = simulator.outcome()
    if not np.isfinite(outcome.end_s).all():
        raise AssertionError(f"{policy.name}: a list did not come to its end")
    return outcome.end_s - jobs.submit_s, outcome.start_s - jobs.submit_s


def change_ci95(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """The change of the mean over lists, in %, with its interval."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(ours), size=(2000, len(ours)))
    drawn = ours[chosen].mean(axis=1) / theirs[chosen].mean(axis=1) - 1.0
    low, high = np.percentile(drawn, [2.5, 97.5])
    return 100.0 * float(ours.mean() / theirs.mean() - 1.0), 100.0 * float(low), 100.0 * float(high)


def compare(scenario_name: str, load: float, runtime: str, names: Sequence[str], lists: int) -> list[dict[str, Any]]:
    """One row for each policy."""
    jobs = job_lists(scenario_name, load, lists, runtime)
    found = {}
    for name in dict.fromkeys([AGAINST, *names]):
        began = time.process_time()
        jct_s, wait_s = play(POLICIES[name](), scenario_name, jobs)
        gangs = jobs.gpu_count > 2
        found[name] = {
            "mean_jct_s": jct_s.mean(axis=1),
            "p95_jct_s": np.percentile(jct_s, 95, axis=1),
            "longest_wait_s": wait_s.max(axis=1),
            "wide_jct_s": np.array([jct[wide].mean() for jct, wide in zip(jct_s, gangs, strict=True)]),
            "cpu_s": time.process_time() - began,
        }
    rows = []
    for name in names:
        ours, base = found[name], found[AGAINST]
        change, low, high = change_ci95(ours["mean_jct_s"], base["mean_jct_s"])
        rows.append(
            {
                "scenario": scenario_name,
                "load": load,
                "runtime": runtime,
                "policy": name,
                **{key: float(np.mean(value)) for key, value in ours.items()},
                "against_hold_gang_percent": change,
                "ci95_percent": (low, high),
                "p95_against_percent": change_ci95(ours["p95_jct_s"], base["p95_jct_s"]),
            }
        )
    return rows


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="gangs")
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.9, 1.1])
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES))
    parser.add_argument("--policies", nargs="+", default=[name for name in RULES if name in POLICIES])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        "| runtime | load | policy | mean JCT, s | against hold_gang, % | p95 JCT, s | longest wait, s | 4, 8 GPUs, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for runtime in arguments.runtimes:
        for load in arguments.loads:
            for row in compare(arguments.scenario, load, runtime, arguments.policies, arguments.lists):
                rows.append(row)
                low, high = row["ci95_percent"]
                change = row["against_hold_gang_percent"]
                print(
                    f"| {runtime} | {load} | {row['policy']} | {row['mean_jct_s']:.1f} | {change:+.1f} "
                    f"({low:+.1f} .. {high:+.1f}) | {row['p95_jct_s']:.0f} | {row['longest_wait_s']:.0f} | "
                    f"{row['wide_jct_s']:.1f} |",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
