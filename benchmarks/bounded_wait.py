"""What the bound on every wait (adlro/decide/policies/bounded_wait.py) costs, and what it does to the wait.

    python -m benchmarks.bounded_wait --lists 100 --json bounded_wait.json

`hold_greedy_fixed` on the same lists without a bound and with several ratios: mean completion time and longest wait
against those without, with 95 % intervals over the paired lists. Deterministic but for the machine's rounding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies.bounded_wait import DEFAULT_RATIO
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Floats
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

SCENARIOS = ("paper", "paper_roomy", "heavy_tails")
LOADS = (0.6, 0.9, 1.1, 1.3)
RATIOS = (5.0, 10.0, DEFAULT_RATIO, 40.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    print("scenario     load ratio   mean JCT against no bound    longest wait against no bound")
    for scenario in SCENARIOS:
        for load in LOADS:
            free_jct_s, free_wait_s = figures(scenario, load, np.inf, options.lists, options.jobs, options.seed)
            for ratio in RATIOS:
                jct_s, wait_s = figures(scenario, load, ratio, options.lists, options.jobs, options.seed)
                row = {"scenario": scenario, "load": load, "ratio": ratio}
                row |= {"jct": change(jct_s, free_jct_s), "longest_wait": change(wait_s, free_wait_s)}
                rows.append(row)
                print(
                    f"{scenario:<12} {load:<4} {ratio:<7g} {_text(row['jct'])}   {_text(row['longest_wait'])}",
                    flush=True,
                )
    if options.json:
        document = {"lists": options.lists, "jobs": options.jobs, "seed": options.seed, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def figures(scenario: str, load: float, ratio: float, lists: int, jobs: int, seed: int) -> tuple[Floats, Floats]:
    """(lists,) mean completion time and longest wait of each list, s."""
    of = load_scenario(scenario)
    drawn = [draw_jobs(of, load=load, count=jobs, rng=np.random.default_rng(seed + number)) for number in range(lists)]
    arrays = pack_jobs(drawn, of.cluster)
    policy = HoldGreedyFixed()
    policy.wait_ratio = ratio
    outcome = simulate(of.cluster, arrays, policy.act)
    assert not outcome.stuck.any()
    jct_s: Floats = (outcome.end_s - arrays.submit_s).mean(axis=1)
    wait_s: Floats = (outcome.start_s - arrays.submit_s).max(axis=1)
    return jct_s, wait_s


def change(with_bound: Floats, without: Floats) -> dict[str, float]:
    """By how many percent of the mean it is more, and half of the 95 % interval over paired lists."""
    difference = 100.0 * (with_bound - without) / without.mean()
    half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    return {"percent": round(float(difference.mean()), 3), "half_interval": round(float(half), 3)}


def _text(figure: Any) -> str:
    return f"{figure['percent']:+8.3f} % +- {figure['half_interval']:.3f}     "


if __name__ == "__main__":
    main()
