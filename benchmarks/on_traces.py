"""Policies on parts of recorded traces, with and without the limit on waits: means, tails, and who decided.

    python -m benchmarks.on_traces TRACE [TRACE ...] [--loads 0.6,0.9] [--lists 40] [--seed 21]
                                   [--runtimes true,type,noise:1.0] [--policies hold_greedy_fixed,min_min,dqn]

Each list is 256 jobs of a trace from a place drawn at random, brought to the load. For each policy, against the first
on the same lists: mean completion time with its 95 % bootstrap interval, 95th percentile, longest wait, throughput;
what the limit on waits (services/orchestrator/policies/bounded_wait.py) costs in mean completion time; the shares of
decisions that it changed and that the policy's fallback made. The traces are not part of the project.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid import interval, play
from services.orchestrator.evaluate.cases import build_cases
from services.orchestrator.evaluate.request import Request
from services.orchestrator.policies import POLICIES

JOBS = 256


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--loads", default="0.6,0.9")
    parser.add_argument("--lists", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--runtimes", default="true,type,noise:1.0")
    parser.add_argument("--policies", default="hold_greedy_fixed,min_min,dqn")
    asked = parser.parse_args(arguments)
    print(
        "| trace, load, runtimes | policy | mean JCT, % | p95, % | longest wait, % | jobs/h, % | "
        "cost of the limit, % | overdue, % | fallback, % |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for trace in asked.traces:
        for runtime in asked.runtimes.split(","):
            request = Request(
                policies=("fcfs",),
                scenarios=("trace",),
                loads=tuple(float(load) for load in asked.loads.split(",")),
                jobs=asked.jobs,
                lists=asked.lists,
                seed=asked.seed,
                trace=str(trace),
                runtime=runtime,
            )
            for case in build_cases(request)[0]:
                cluster, jobs, first = case.cluster, case.arrays(0, case.lists), None
                for name in asked.policies.split(","):
                    unlimited = POLICIES[name]()
                    unlimited.wait_ratio = math.inf
                    free, found = play(cluster, jobs, unlimited), play(cluster, jobs, POLICIES[name]())
                    first = first or found
                    mean, low, high = interval(found.mean_jct_s, first.mean_jct_s)
                    decisions = found.decisions.sum()
                    tails = (
                        f"{100 * (getattr(found, field).mean() / getattr(first, field).mean() - 1):+.1f}"
                        for field in ("p95_jct_s", "longest_wait_s", "jobs_per_h")
                    )
                    print(
                        f"| {trace.name} {case.load:g} {runtime} | `{name}` | "
                        f"{100 * mean:+.1f} ({100 * low:+.1f} .. {100 * high:+.1f}) | {' | '.join(tails)} | "
                        f"{100 * (found.mean_jct_s.mean() / free.mean_jct_s.mean() - 1):+.2f} | "
                        f"{100 * found.overdue.sum() / decisions:.2f} | {100 * found.fallback.sum() / decisions:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
