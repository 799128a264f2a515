"""Policies on parts of recorded traces, with and without the limit on waits: means, tails, and who decided.

    python -m benchmarks.on_traces TRACE [TRACE ...] [--loads 0.6,0.9] [--lists 40] [--seed 21]
                                   [--runtimes true,type,noise:1.0,learned] [--policies hold_greedy_fixed,min_min,dqn]

Each list is 256 jobs of a trace from a place drawn at random, brought to the load. For each policy, against the first
on the same lists: mean completion time with its 95 % bootstrap interval, 95th percentile, longest wait, throughput;
what the limit on waits (adlro/decide/policies/bounded_wait.py) costs in mean completion time; the shares of
decisions that it changed and that the policy's fallback made. The traces are not part of the project.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO
from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate.measure import METRICS, Figures
from adlro.lab.evaluate.resampling import change_of_means
from adlro.lab.evaluate.tally import FALLBACKS, OVERDUE

JOBS = 256


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--loads", default="0.6,0.9")
    parser.add_argument("--lists", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--runtimes", default="true,type,noise:1.0,learned")
    parser.add_argument("--policies", default="hold_greedy_fixed,min_min,dqn")
    asked = parser.parse_args(arguments)
    print(
        "| trace, load, runtimes | policy | mean JCT, % | p95, % | longest wait, % | jobs/h, % | "
        "cost of the limit, % | overdue, % | fallback, % |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    policies = asked.policies.split(",")
    for trace in asked.traces:
        for runtime in asked.runtimes.split(","):
            request = Request(
                policies=tuple(policies),
                scenarios=("trace",),
                loads=tuple(float(load) for load in asked.loads.split(",")),
                jobs=asked.jobs,
                lists=asked.lists,
                seed=asked.seed,
                trace=str(trace),
                multi_gpu="one",  # as published: the policy was trained for jobs of one GPU
                runtime=runtime,
                wait_ratio=DEFAULT_RATIO,
            )
            limited = evaluate(request, processes=1, time_decisions=False)
            free = limited
            if any(each.basis_counts[:, OVERDUE].any() for each in limited.figures.values()):  # else it is the same
                free = evaluate(dataclasses.replace(request, wait_ratio=0.0), processes=1, time_decisions=False)
            for number, case in enumerate(limited.cases):
                for name in policies:
                    row = _row(limited.figures, free.figures, number, policies[0], name)
                    print(f"| {trace.name} {case.load:g} {runtime} | `{name}` | {row} |", flush=True)


_Found = dict[tuple[str, int], Figures]


def _row(limited: _Found, free: _Found, number: int, first: str, name: str) -> str:
    own, other = limited[name, number], limited[first, number]
    of = [dict(zip(METRICS, each.metrics.T, strict=True)) for each in (own, other, free[name, number])]
    mean, low, high = (100 * each for each in change_of_means(of[0]["mean_jct_s"], of[1]["mean_jct_s"]))
    tails = (
        f"{100 * (of[0][metric].mean() / of[1][metric].mean() - 1):+.1f}"
        for metric in ("p95_jct_s", "max_wait_s", "throughput_jobs_per_h")
    )
    cost = 100 * (of[0]["mean_jct_s"].mean() / of[2]["mean_jct_s"].mean() - 1)
    decisions = own.basis_counts.sum()
    shares = (100 * own.basis_counts[:, columns].sum() / decisions for columns in ([OVERDUE], FALLBACKS))
    return " | ".join(
        [f"{mean:+.1f} ({low:+.1f} .. {high:+.1f})", *tails, f"{cost:+.2f}", *(f"{share:.2f}" for share in shares)]
    )


if __name__ == "__main__":
    main()
