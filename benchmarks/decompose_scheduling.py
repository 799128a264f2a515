"""What predictions learned online are worth to a scheduler; part of benchmarks/decompose.py.

    python -m benchmarks.decompose_scheduling [--lists 16] [--loads 0.9,1.1] [--seed 1] [--processes 1] [--json FILE]

Job lists of the scenario `paper` run under a policy by `adlro evaluate`. What the policy believes of a job's runtimes
is, in turn, everything (`true`), the mean of its user and application (`group`), its type's median (`type`), nothing
(`none`), or what a running decompose says that began with nothing and learned from this list's ended jobs (`learned`:
outcomes through its store, predictions over gRPC). The share of the gap between `type` and `group` that is recovered
is one of sums over lists; its interval comes from resampled lists.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate.measure import METRICS
from adlro.lab.evaluate.resampling import interval, resampled_means
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.measuring import machine

Floats = NDArray[np.float64]
KNOWLEDGE = ("true", "group", "type", "none", "learned")
POLICY_NAMES = ("mct", "hold_greedy_fixed")
JOBS = 1000
LOAD = 0.9
LOADS = (0.9, 1.1)
ALL, LATE = METRICS.index("mean_jct_s"), METRICS.index("late_jct_s")
GROUP, TYPE, LEARNED = (KNOWLEDGE.index(name) for name in ("group", "type", "learned"))


def lists(count: int, seed: int, jobs: int = JOBS) -> list[list[WorkloadJob]]:
    """Job lists of the scenario's own population, of which the load is what it says."""
    scenario = load_scenario("paper")
    return [
        draw_jobs(scenario, load=LOAD, rng=np.random.default_rng([seed, number]), count=jobs) for number in range(count)
    ]


def recovered(jct_s: Floats, seed: int) -> tuple[float, float, float]:
    """The share of the gap from `type` to `group` that `learned` closes.

    Args:
        jct_s: (lists, KNOWLEDGE) mean JCT of each list; the same lists in every column.
        seed: of the resamples.

    Returns:
        The share over all lists, and the ends of its 95 % interval.
    """

    def share(means: Floats) -> Floats:
        closed: Floats = (means[:, TYPE] - means[:, LEARNED]) / (means[:, TYPE] - means[:, GROUP])
        return closed

    low, high = interval(share(resampled_means(jct_s, seed)))
    return float(share(jct_s.mean(axis=0, keepdims=True))[0]), low, high


def measure(
    count: int, seed: int, loads: Sequence[float] = (LOAD,), *, processes: int | None = None, jobs: int = JOBS
) -> list[dict[str, Any]]:
    """A row for each load and policy: mean JCT of the later half of the jobs, and of all, by knowledge."""
    figures = {}
    for runtime in KNOWLEDGE:
        request = Request(policies=POLICY_NAMES, loads=tuple(loads), jobs=jobs, lists=count, seed=seed, runtime=runtime)
        found = evaluate(request, processes=processes, time_decisions=False)
        for number, load in enumerate(loads):
            for name in POLICY_NAMES:
                figures[load, name, runtime] = found.figures[name, number].metrics
    rows = []
    for load in loads:
        for name in POLICY_NAMES:
            of_lists = [figures[load, name, runtime] for runtime in KNOWLEDGE]
            late_s = np.stack([each[:, LATE] for each in of_lists], axis=1)
            share, low, high = recovered(late_s, seed)
            rows.append(
                {
                    "load": load,
                    "policy": name,
                    "lists": count,
                    "jobs": jobs,
                    "late_jct_s": dict(zip(KNOWLEDGE, late_s.mean(axis=0).tolist(), strict=True)),
                    "mean_jct_s": {
                        runtime: float(each[:, ALL].mean()) for runtime, each in zip(KNOWLEDGE, of_lists, strict=True)
                    },
                    "late_jct_s_of_lists": late_s.tolist(),
                    "recovered": share,
                    "recovered_ci95": [low, high],
                }
            )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    first = f"| load | policy | {' | '.join(f'`{each}`' for each in KNOWLEDGE)} | recovered | of all jobs, `learned` |"
    lines = [first, "| --- " * (len(KNOWLEDGE) + 4) + "|"]
    for row in rows:
        low, high = row["recovered_ci95"]
        cells = [f"{row['load']:g}", f"`{row['policy']}`", *(f"{row['late_jct_s'][each]:.1f}" for each in KNOWLEDGE)]
        cells += [f"{row['recovered']:.3f} ({low:.3f} .. {high:.3f})", f"{row['mean_jct_s']['learned']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints the table of docs/decompose.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=16)
    parser.add_argument("--loads", default=",".join(f"{load:g}" for load in LOADS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began = time.time()
    loads = [float(load) for load in arguments.loads.split(",")]
    rows = measure(arguments.lists, arguments.seed, loads, processes=arguments.processes)
    print(f"mean JCT in s of jobs {JOBS // 2} to {JOBS:,} of {arguments.lists} lists, by what is known of runtimes\n")
    print(table(rows))
    print(f"\n{time.time() - began:.0f} s; " + " ".join(f"{name}={value}" for name, value in machine().items()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine(), "scheduling": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
