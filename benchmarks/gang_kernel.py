"""How fast the simulator is with jobs of several GPUs, beside jobs of one GPU in the same run.

    python -m benchmarks.gang_kernel [--load F] [--seconds S] [--json FILE]

The kernel plays lists of `gangs`, `gangs_64` and `gangs_256` with the rule `hold_gang`, and the same lists with one GPU
for each job with `hold_greedy_fixed`, without observations. A decision is a start, or an event after which the rule
starts nothing: a list of 256 jobs has about 768, whether the kernel asks the rule after an event, or sees by itself
that nothing fits. Calls of the rule are counted apart. Then the time of a policy decision on a ready observation,
with 1,000 jobs waiting.

A core-second is one second of CPU time of this process, which runs on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.policies.hold_greedy import FIXED
from adlro.decide.rollouts.gang_base import GangBase, gang_base
from adlro.decide.rollouts.gang_rule import hold_gang
from adlro.decide.rollouts.rule import Base, base_policy, hold_greedy
from adlro.numeric.compiled import compiled
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchSimulator, change_arrays
from adlro.sim.course import DECISION, Course, GpuChanges, new_course
from adlro.sim.kernel import advance, begin, hold
from adlro.sim.starts import start, start_gang
from adlro.state.cluster_arrays import Hardware, Machines, empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.simulator import copies

SCENARIOS = {16: "gangs", 64: "gangs_64", 256: "gangs_256"}
REPEATS = 5
WAITING = 1000


@compiled
def play_gangs(
    hardware: Hardware, machines: Machines, jobs: JobArrays, changes: GpuChanges, course: Course, base: GangBase
) -> int:
    """Every cluster runs its list from the begin to the end under `hold_gang`; returns the calls of the rule."""
    calls = 0
    for n in range(hardware.gpu_count.shape[0]):
        begin(hardware, machines, jobs, changes, course, n, course.list_of[n])
        while course.status[n] == DECISION:
            job = hold_gang(hardware, machines, jobs, course, n, base)
            calls += 1
            if job < 0:
                hold(hardware, machines, jobs, course, n)
            elif not start_gang(hardware, machines, jobs, course, n, job, base.gpus):
                return -1
            advance(hardware, machines, jobs, changes, course, n)
    return calls


@compiled
def play_singles(
    hardware: Hardware, machines: Machines, jobs: JobArrays, changes: GpuChanges, course: Course, base: Base
) -> int:
    """The same of jobs of one GPU under `hold_greedy`."""
    calls = 0
    for n in range(hardware.gpu_count.shape[0]):
        begin(hardware, machines, jobs, changes, course, n, course.list_of[n])
        while course.status[n] == DECISION:
            job, gpu = hold_greedy(hardware, machines, jobs, course, n, base)
            calls += 1
            if job < 0:
                hold(hardware, machines, jobs, course, n)
            else:
                start(hardware, machines, jobs, course, n, job, gpu)
            advance(hardware, machines, jobs, changes, course, n)
    return calls


def measured(gpus: int, load: float, seconds: float, with_gangs: bool) -> dict[str, float]:
    """Decisions, calls and lists a core-second; the median of a few stretches, and the best."""
    scenario = load_scenario(SCENARIOS[gpus])
    count = 16 if gpus == 16 else 4
    drawn = [draw_jobs(scenario, load=load, rng=np.random.default_rng(5_000_000 + seed)) for seed in range(count)]
    jobs = pack_jobs(drawn, scenario.cluster)
    if not with_gangs:
        # As many GPU seconds offered, for the same load.
        times = float(jobs.gpu_count.mean())
        jobs = jobs._replace(
            gpu_count=np.ones_like(jobs.gpu_count),
            submit_s=np.round(jobs.submit_s / times, 3),
            max_nodes=jobs.max_nodes * 0,
        )
    hardware = hardware_of([scenario.cluster] * count, scenario.cluster.gpu_models)
    machines, changes = empty_machines(hardware), change_arrays([[]] * count, hardware.gpu_count)
    course = new_course(hardware, jobs, changes, np.arange(count), start_cost_s=np.zeros(count))
    rule = gang_base(ONE_SETTING, hardware, jobs)
    single = base_policy(FIXED, hardware)

    def play() -> int:
        if with_gangs:
            return play_gangs(hardware, machines, jobs, changes, course, rule)
        return play_singles(hardware, machines, jobs, changes, course, single)

    calls = play()
    if calls < 0 or not np.isfinite(course.job_end_s).all():
        raise AssertionError("a list did not come to its end")
    found = []
    for _ in range(REPEATS):
        rounds, began = 0, time.process_time()
        while (passed_s := time.process_time() - began) < seconds / REPEATS:
            play()
            rounds += 1
        found.append(rounds * count / passed_s)
    lists, size = statistics.median(found), jobs.submit_s.shape[1]
    return {
        "gpus": gpus,
        "decisions_per_core_s": lists * 3 * size,
        "best_stretch": max(found) * 3 * size,
        "calls_per_core_s": lists * calls / count,
        "lists_per_core_s": lists,
        "mean_jct_s": float((course.job_end_s - jobs.submit_s).mean()),
    }


def decision_ms(cluster: Cluster, waiting: int, scenario_name: str) -> dict[str, float]:
    """CPU time of decisions of the policy on ready observations of a full cluster, in ms: median and worst of 30."""
    scenario = load_scenario(scenario_name)
    gpus = sum(1 for _ in cluster.gpus())
    rng = np.random.default_rng(6_000_000)
    jobs = pack_jobs([draw_jobs(scenario, load=1e4, rng=rng, count=waiting + 2 * gpus)], cluster)
    simulator, policy = BatchSimulator(cluster, jobs), HoldGang()
    policy.wait_ratio = np.inf
    spent: list[float] = []
    rows: list[int] = []
    while len(simulator.active) and len(spent) < 30:
        seen = simulator.observe()
        timed = seen.queue_length[0] >= waiting
        if timed:
            policy.judge(seen)
        began = time.process_time()
        judgement = policy.judge(seen)
        if timed:
            spent.append((time.process_time() - began) * 1e3)
            rows.append(len(seen.table.job))
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
    return {
        "gpus": gpus,
        "waiting": waiting,
        "median_ms": statistics.median(spent),
        "most_ms": max(spent),
        "rows": statistics.mean(rows),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of CPU time for each figure")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    system_load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, load {arguments.load}, system load {system_load:.1f}")
    print("a core-second      GPUs      decisions   (best stretch)   calls of the rule   lists   mean JCT")
    rows: list[dict[str, Any]] = []
    for gpus in SCENARIOS:
        for with_gangs in (True, False):
            row = measured(gpus, arguments.load, arguments.seconds, with_gangs)
            rows.append(row | {"with_gangs": with_gangs})
            name = "hold_gang" if with_gangs else "hold_greedy_fixed"
            print(
                f"{name:<18} {gpus:>4} {row['decisions_per_core_s']:>14,.0f} {row['best_stretch']:>16,.0f} "
                f"{row['calls_per_core_s']:>19,.0f} {row['lists_per_core_s']:>7,.0f} {row['mean_jct_s']:>10.2f}"
            )
    print(f"\nthe policy on a ready observation, {WAITING} or more waiting, CPU ms a decision: median, most")
    decisions = []
    for times in (16, 64):
        row = decision_ms(copies(load_scenario("gangs").cluster, times), WAITING, "gangs")
        decisions.append(row)
        print(f"{row['gpus']:>5} GPUs: {row['median_ms']:.3f} {row['most_ms']:.3f} ({row['rows']:.0f} rows)")
    if arguments.json:
        figures = {"kernel": rows, "decision": decisions, "system_load": system_load}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
