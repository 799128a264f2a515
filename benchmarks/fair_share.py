"""What a rule of precedence does to users: waits of a user who submits much, and of those who submit little.

Lists of the scenario `paper` are drawn at a load. A part of their jobs, drawn by chance, is given to one user, all of
whose jobs arrive at once at the begin; the others keep their users and times. Each policy decides with and without the
rule over the same lists, with exact runtimes and with guessed ones. For each of both groups: mean wait, its 95th
percentile, the longest wait; and the mean JCT of all jobs. Means over lists; in brackets the standard deviation over
lists of the difference that the rule makes.

    python benchmarks/fair_share.py [--lists 30] [--jobs 256] [--seed 0] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from adlro.decide.policies import POLICIES
from adlro.records.precedence import Precedence, parse_precedence
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.estimates import expected_s
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

SCENARIO = load_scenario("paper")
NAMES = ("fcfs", "easy_backfill", "sjf", "hold_gang", "dqn")
RULE = "fair_share=1,half_life=1d"
PART = 0.5
"""Of the jobs, those of the user who submits all at once."""


def drawn(load: float, count: int, seed: int, runtime: str) -> JobArrays:
    """A list with one user who submits much at the begin; users are numbered, he is number 0."""
    rng = np.random.default_rng(seed)
    jobs = draw_jobs(SCENARIO, load=load, count=count, rng=rng)
    much = rng.random(len(jobs)) < PART
    theirs = [replace(job, submit_s=0.0, user="much") if his else job for job, his in zip(jobs, much, strict=True)]
    ordered = sorted(theirs, key=lambda job: (job.submit_s, job.user != "much"))
    expected = expected_s(ordered, SCENARIO.cluster.gpu_models, runtime, SCENARIO, seed)
    return pack_jobs([ordered], SCENARIO.cluster, expected_s=[expected])


def figures(jobs: JobArrays, name: str, rule: Precedence | None) -> list[float]:
    """Of who submits little, then of who submits much: mean, 95th percentile and maximum of waits; the mean JCT."""
    policy = POLICIES[name]()
    policy.precedence = rule
    simulator = BatchSimulator(SCENARIO.cluster, jobs, half_life_s=math.inf if rule is None else rule.half_life_s)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
    outcome = simulator.outcome()
    wait_s, his = outcome.start_s[0] - jobs.submit_s[0], jobs.user[0] == jobs.user[0, 0]
    found = []
    for waits_s in (wait_s[~his], wait_s[his]):
        found += [float(waits_s.mean()), float(np.percentile(waits_s, 95)), float(waits_s.max())]
    return [*found, float((outcome.end_s[0] - jobs.submit_s[0]).mean())]


def main() -> None:
    """Prints a table for each load and knowledge of runtimes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rule", default=RULE)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rule, results = parse_precedence(options.rule), []
    for load in (0.6, 0.9, 1.2):
        for runtime in ("true", "noise:0.8"):
            print(f"\nload {load}, runtimes {runtime}, {options.lists} lists of {options.jobs} jobs, {options.rule}")
            print(f"{'policy':24} {'little: mean p95 max (s)':>28} {'much: mean p95 max (s)':>28} {'JCT (s)':>9}")
            seeds = range(options.seed, options.seed + options.lists)
            lists = [drawn(load, options.jobs, seed, runtime) for seed in seeds]
            for name in NAMES:
                both = np.array([[figures(jobs, name, each) for jobs in lists] for each in (None, rule)])
                for what, mean in zip(("without", "with"), both.mean(axis=1).tolist(), strict=True):
                    print(f"{name:15} {what:8} {_three(mean[:3]):>28} {_three(mean[3:6]):>28} {mean[6]:9.1f}")
                spread = (both[1] - both[0]).std(axis=0)
                print(f"{'':15} {'(spread)':8} {_three(spread[:3]):>28} {_three(spread[3:6]):>28} {spread[6]:9.1f}")
                results.append(
                    {"load": load, "runtime": runtime, "policy": name, "figures": both.mean(axis=1).tolist()}
                )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _three(numbers: list[float]) -> str:
    return " ".join(f"{number:8.1f}" for number in numbers)


if __name__ == "__main__":
    main()
