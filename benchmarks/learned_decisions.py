"""How long a decision of the learned policy takes, by the size of the cluster and the length of the queue.

    python -m benchmarks.learned_decisions [--cells gangs:16,...] [--decisions N] [--seed N] [--json FILE]

A cell is SCENARIO:GPUS or SCENARIO:GPUS:WAITING. Without a number of waiting jobs the decisions are those of a list of
256 jobs at load 0.9 in which a job waits that the learned policy's network is asked about. With one, all jobs are
submitted at once, and the decisions are those behind the first start of a job on every GPU: one or a few GPUs are free,
and as many jobs wait. Clusters are copies of the scenario's. Decisions are `Policy.judge` in this process, of the
learned policy and of the rule that it corrects, in turns, so that other load on the machine slows both alike. One list,
drawn from the seed; the rule makes its decisions. Times depend on the machine: look at the ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adlro.decide.policies import POLICIES
from adlro.decide.policies.dqn import Dqn
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.measuring import machine
from benchmarks.paper_claims import markdown
from benchmarks.simulator import copies

CELLS = (
    *("paper:16", "paper:16:32", "paper:16:1000", "paper:256:1000", "paper:1024:1000"),
    *("gangs:16", "gangs:16:32", "gangs:16:1000", "gangs:64:1000", "gangs:256:1000", "gangs:1024:1000"),
)
GPUS_OF_SCENARIO, LOAD, JOBS, DECISIONS, WARM_UP, SEED = 16, 0.9, 256, 200, 10, 5


def observations(scenario_name: str, gpus: int, waiting: int | None, decisions: int, seed: int) -> list[Observation]:
    """The decision points of a cell, at most so many.

    Args:
        waiting: number of waiting jobs; None: as many as there are at load 0.9.
    """
    scenario, times = load_scenario(scenario_name), gpus // GPUS_OF_SCENARIO
    cluster = copies(scenario.cluster, times)
    count = JOBS * times if waiting is None else waiting + 2 * gpus + decisions
    jobs = draw_jobs(scenario, load=LOAD, rng=np.random.default_rng(seed), count=count)
    jobs = [dataclasses.replace(job, submit_s=0.0 if waiting else job.submit_s / times) for job in jobs]
    simulator, rule = BatchSimulator(cluster, pack_jobs([jobs], cluster)), POLICIES[rule_of(scenario_name)]()
    found: list[Observation] = []
    while len(simulator.active) and len(found) < decisions:
        seen = simulator.observe()
        waits = seen.job_waiting[0]
        several = seen.gangs is not None and bool((seen.gangs.gpu_count[0][waits] > 1).any())
        full = waiting is None or (seen.time_s[0] > 0.0 and int(waits.sum()) <= waiting + decisions)
        if full and len(seen.table.job) and (several or scenario_name == "paper"):
            found.append(seen)
        judgement = rule.judge(seen)
        simulator.act(rule.choose(seen, judgement), judgement.reserve)
    return found


def rule_of(scenario_name: str) -> str:
    """The rule that the learned policy corrects there."""
    return "hold_greedy_fixed" if scenario_name == "paper" else "hold_gang"


def measure(cell: str, decisions: int, seed: int) -> dict[str, float]:
    """Percentiles of the times of both policies, in microseconds, and the mean number of waiting jobs."""
    scenario, gpus, *waiting = cell.split(":")
    points = observations(scenario, int(gpus), int(waiting[0]) if waiting else None, decisions, seed)
    learned, rule = Dqn().load(), POLICIES[rule_of(scenario)]()
    took_us: dict[str, list[float]] = {"dqn": [], "rule": []}
    for turn in range(2):
        for seen in points if turn else points[:WARM_UP]:
            for name, policy in (("dqn", learned), ("rule", rule)):
                began_s = time.perf_counter()
                policy.judge(seen)
                if turn:
                    took_us[name].append(1e6 * (time.perf_counter() - began_s))
    fallbacks = sum(learned.judge(seen).basis_of(0).fallback for seen in points)
    found = {"waiting": float(np.mean([seen.job_waiting[0].sum() for seen in points])), "decisions": len(points)}
    for name, values in took_us.items():
        found |= {f"{name}_p{share}_us": float(np.percentile(values, share)) for share in (50, 99)}
    return found | {"fallback_ratio": fallbacks / len(points)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints Markdown, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    results = {cell: measure(cell, asked.decisions, asked.seed) for cell in asked.cells.split(",")}
    if asked.json is not None:
        asked.json.write_text(json.dumps({"machine": machine(), "seed": asked.seed, "cells": results}, indent=1))
    heads = ["jobs", "GPUs", "waiting", "dqn, ms: median", "p99", "its rule, ms: median", "ratio", "fallback, %"]
    rows = [
        [
            cell.split(":")[0],
            cell.split(":")[1],
            f"{found['waiting']:.0f}",
            f"{found['dqn_p50_us'] / 1e3:.3g}",
            f"{found['dqn_p99_us'] / 1e3:.3g}",
            f"{found['rule_p50_us'] / 1e3:.3g}",
            f"{found['dqn_p50_us'] / found['rule_p50_us']:.1f}",
            f"{100.0 * found['fallback_ratio']:.0f}",
        ]
        for cell, found in results.items()
    ]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
