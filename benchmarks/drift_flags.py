"""Flags of slow GPUs: how many healthy ones are flagged, and how soon a slow one is, in small and large clusters.

    python -m benchmarks.drift_flags [--gpus 16,1024] [--looks 200] [--runs 200] [--seed 1]

Jobs are off by the scenario's own noise, as they would be with perfect predictions. Two rules on the same jobs: *each*
flags a GPU whose score is at least 0.99, *together* is decompose's: Benjamini and Hochberg's over all GPUs. First all
GPUs are healthy, and each look comes after five more jobs of each GPU. Then one GPU of an otherwise healthy cluster is
slowed, after 40 jobs of each: `jobs until flagged` counts its own jobs since then, with a look after each.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from typing import Any

import numpy as np

from adlro.records.matrices import SUSPECTED
from adlro.services.decompose.runtimes.drift import GpuDriftDetector
from benchmarks.decompose_drift import SIGMA
from benchmarks.measuring import machine, percentile

JOBS_BEFORE, JOBS_BETWEEN, MOST_JOBS = 40, 5, 200
SLOWDOWNS = {"20 %": -math.log(0.8), "2x": math.log(2.0)}
RULES = ("each", "together")


def begun(gpus: int, rng: np.random.Generator) -> GpuDriftDetector:
    """A detector that knows jobs of healthy GPUs."""
    drift = GpuDriftDetector()
    more_jobs(drift, gpus, JOBS_BEFORE, rng)
    return drift


def more_jobs(drift: GpuDriftDetector, gpus: int, count: int, rng: np.random.Generator) -> None:
    """So many jobs on each healthy GPU."""
    for residuals in SIGMA * rng.standard_normal((count, gpus)):
        for gpu, residual in enumerate(residuals.tolist()):
            drift.observe(gpu, "v100_sxm2", residual, SIGMA)


def healthy(gpus: int, looks: int, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Flags where there should be none."""
    drift = begun(gpus, rng)
    counts: dict[str, list[int]] = {rule: [] for rule in RULES}
    for _ in range(looks):
        states = drift.states().values()
        counts["each"].append(sum(each.score >= SUSPECTED for each in states))
        counts["together"].append(sum(each.flagged for each in states))
        more_jobs(drift, gpus, JOBS_BETWEEN, rng)
    return {
        rule: {"flagged_a_look": float(np.mean(found)), "looks_with_a_flag": float(np.mean(np.array(found) > 0))}
        for rule, found in counts.items()
    }


def slowed(gpus: int, shift: float, runs: int, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """How soon a slowed GPU is flagged."""
    before = begun(gpus, rng)
    before.states()
    took: dict[str, list[int]] = {rule: [] for rule in RULES}
    for run in range(runs):
        drift, slow = copy.deepcopy(before), run % gpus
        found: dict[str, int] = {}
        for count in range(1, MOST_JOBS + 1):
            drift.observe(slow, "v100_sxm2", shift + SIGMA * float(rng.standard_normal()), SIGMA)
            state = drift.state(slow)
            if state.score >= SUSPECTED:
                found.setdefault("each", count)
            if state.flagged:
                found.setdefault("together", count)
            if len(found) == len(RULES):
                break
        for rule in RULES:
            took[rule].append(found.get(rule, MOST_JOBS + 1))
    return {
        rule: {"jobs_until_flagged_p50": percentile(counts, 0.5), "jobs_until_flagged_p90": percentile(counts, 0.9)}
        for rule, counts in took.items()
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="16,1024")
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), **vars(options), "sigma": SIGMA, "clusters": {}}
    for gpus in map(int, options.gpus.split(",")):
        rng = np.random.default_rng((options.seed, gpus))
        figures = {"healthy": healthy(gpus, options.looks, rng)}
        for name, shift in SLOWDOWNS.items():
            figures[f"slowed by {name}"] = slowed(gpus, shift, options.runs, rng)
        result["clusters"][gpus] = figures
        if not options.json:
            for case, rules in figures.items():
                for rule, values in rules.items():
                    shown = ", ".join(f"{key} {value:.3g}" for key, value in values.items())
                    print(f"{gpus} GPUs, {case}, {rule}: {shown}", flush=True)
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
