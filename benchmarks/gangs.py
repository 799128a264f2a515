"""Rules on jobs of several GPUs: mean completion times by load, and by what is known of runtimes.

    python -m benchmarks.gangs [--scenario NAME] [--lists N] [--loads L ...] [--runtimes R ...] [--policies P ...]
                               [--json FILE]

Every policy sees the same lists, of seeds from FIRST_SEED on; no bound on waits (`bounded_wait`) acts, as that is no
part of the rules. The change of a mean against `hold_gang` has a 95 % bootstrap interval over lists, drawn in pairs.
With exact runtimes the study's figures stand beside, and the difference of the two changes with an interval (`less`).

Five rules are no policies of the project:

    min_min_now             of all jobs and all sets of idle GPUs, the pair that ends first: on `gangs` it starts what
                            `sjf` starts
    min_min_unreserved      each job is wanted on the set, idle or busy, where it is expected to end first; of those
                            whose set is idle the one that ends first starts; nothing is kept free for the others
    hold_gang_unreserved    `hold_gang` without reservations
    hold_gang_no_queue      `hold_gang` for which the queue does not count: neither its depth nor its work
    hold_gang_doubtful      `hold_gang` that reserves later where durations are uncertain; here none is told to be
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGangSettings
from adlro.decide.policies.srtf import Srtf, SrtfSettings
from adlro.decide.rollouts.gang_base import gang_base
from adlro.sim.batch import BatchSimulator, change_arrays
from adlro.sim.course import new_course
from adlro.state.cluster_arrays import empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats, Observation
from adlro.workload.estimates import expected_s, expected_spread_speeds
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.gang_kernel import play_gangs

FIRST_SEED = 10_000_000
AGAINST = "hold_gang"
RULES = (
    "fcfs",
    "easy_backfill",
    "conservative_backfill",
    "sjf",
    "shortest_area",
    "min_min",
    "min_min_unreserved",
    "hold_greedy_fixed",
    "hold_gang_unreserved",
    AGAINST,
    "drain_gang",
)
RUNTIMES = ("true", "noise:0.5", "group", "type")

Figure = tuple[float, float | None, float | None]
"""A change in %, and its interval where one is known."""

STUDY_S: dict[str, dict[float, float]] = {
    "fcfs": {0.6: 88.0, 0.9: 204.0, 1.1: 254.0},
    "easy_backfill": {0.6: 29.1, 0.9: 53.1, 1.1: 78.7},
    "sjf": {0.6: 36.4, 0.9: 47.8, 1.1: 53.7},
    "shortest_area": {0.6: 36.9, 0.9: 48.6, 1.1: 55.1},
    "min_min": {0.6: 39.4, 0.9: 45.5, 1.1: 49.0},
    "min_min_unreserved": {0.6: 39.4, 0.9: 45.5, 1.1: 49.0},
    AGAINST: {0.6: 28.1, 0.9: 35.9, 1.1: 41.6},
}
"""Mean completion times that an earlier study found on `gangs`, with a simulator and lists of its own."""

STUDY_LISTS = 60


class MinMinNow(Policy):
    """Of all jobs and all sets of idle GPUs the pair that ends first; nothing is held, reserved or planned."""

    name = "min_min_now"
    description = "the job and the idle GPUs with the earliest expected end; score: minus the expected duration in s"

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration."""
        return -observation.table.duration_s


EARLIEST_END = HoldGangSettings(
    alpha=1.0, theta=1.0, s_max=1e9, kappa=1.0, beta=0.0, ageing=0.0, frag=0.0, rho=math.inf
)
"""The cost is the logarithm of the duration, and what is expected to end sooner on another set is refused."""


def min_min_unreserved() -> Policy:
    """Min-min that keeps nothing free; nothing can be stopped, so `srtf` only starts."""
    return Srtf(SrtfSettings(start=EARLIEST_END))


KERNEL = {
    AGAINST: ONE_SETTING,
    "hold_gang_unreserved": dataclasses.replace(ONE_SETTING, rho=math.inf),
    "hold_gang_no_queue": ONE_SETTING.without_queue(),
    "hold_gang_doubtful": dataclasses.replace(ONE_SETTING, doubt=0.5),
    "hold_gang_no_affinity": dataclasses.replace(ONE_SETTING, affinity=0.0),
}
"""Settings of `hold_gang`, which are played in the kernel."""

MADE: dict[str, Callable[[], Policy]] = {
    **POLICIES,
    MinMinNow.name: MinMinNow,
    "min_min_unreserved": min_min_unreserved,
}
"""The rules that are asked with observations."""


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


def play_hold_gang(settings: HoldGangSettings, scenario_name: str, jobs: JobArrays) -> tuple[Floats, Floats]:
    """`play` of `hold_gang`, in the kernel without observations: many times as fast, and the same to the bit."""
    lists = len(jobs.job_count)
    cluster = load_scenario(scenario_name).cluster
    hardware = hardware_of([cluster] * lists, cluster.gpu_models)
    machines, changes = empty_machines(hardware), change_arrays([[]] * lists, hardware.gpu_count)
    course = new_course(hardware, jobs, changes, np.arange(lists), start_cost_s=np.zeros(lists))
    play_gangs(hardware, machines, jobs, changes, course, gang_base(settings, hardware, jobs))
    if not np.isfinite(course.job_end_s).all():
        raise AssertionError("hold_gang: a list did not come to its end")
    return course.job_end_s - jobs.submit_s, course.job_start_s - jobs.submit_s


def change_ci95(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """The change of the mean over lists, in %, with its interval."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(ours), size=(2000, len(ours)))
    drawn = ours[chosen].mean(axis=1) / theirs[chosen].mean(axis=1) - 1.0
    low, high = np.percentile(drawn, [2.5, 97.5])
    return 100.0 * float(ours.mean() / theirs.mean() - 1.0), 100.0 * float(low), 100.0 * float(high)


def difference(ours: tuple[float, float, float], study: Figure, wider: float = 1.0) -> tuple[float, float, float]:
    """Ours less the study's figure, with the interval of the difference of two independent figures.

    Args:
        wider: where the study has no interval, it is taken to be so many times as wide as ours: the root of our number
            of lists over its own.
    """
    change, low, high = ours
    theirs, their_low, their_high = study
    below, above = change - low, high - change
    below_theirs = wider * below if their_low is None else theirs - their_low
    above_theirs = wider * above if their_high is None else their_high - theirs
    apart = change - theirs
    return apart, apart - math.hypot(below, above_theirs), apart + math.hypot(above, below_theirs)


def interval(figures: tuple[float, float, float]) -> str:
    """A figure with its interval."""
    return f"{figures[0]:+.1f} ({figures[1]:+.1f} .. {figures[2]:+.1f})"


def compare(scenario_name: str, load: float, runtime: str, names: Sequence[str], lists: int) -> list[dict[str, Any]]:
    """One row for each policy."""
    jobs = job_lists(scenario_name, load, lists, runtime)
    found = {}
    for name in dict.fromkeys([AGAINST, *names]):
        began = time.process_time()
        if name in KERNEL:
            jct_s, wait_s = play_hold_gang(KERNEL[name], scenario_name, jobs)
        else:
            jct_s, wait_s = play(MADE[name](), scenario_name, jobs)
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
        row: dict[str, Any] = {
            "scenario": scenario_name,
            "load": load,
            "runtime": runtime,
            "policy": name,
            **{key: float(np.mean(value)) for key, value in ours.items()},
            "against_hold_gang_percent": change,
            "ci95_percent": (low, high),
            "p95_against_percent": change_ci95(ours["p95_jct_s"], base["p95_jct_s"]),
        }
        if scenario_name == "gangs" and runtime == "true" and load in STUDY_S.get(name, {}):
            study = 100.0 * (STUDY_S[name][load] / STUDY_S[AGAINST][load] - 1.0)
            row["study_s"], row["study_percent"] = STUDY_S[name][load], study
            if name != AGAINST:
                wider = math.sqrt(lists / STUDY_LISTS)
                row["less_study_percent"] = difference((change, low, high), (study, None, None), wider)
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    study = f"{row['study_s']:g}, {row['study_percent']:+.0f}" if "study_s" in row else "-"
    less = interval(row["less_study_percent"]) if "less_study_percent" in row else "-"
    change = interval((row["against_hold_gang_percent"], *row["ci95_percent"]))
    return (
        f"| `{row['runtime']}` | {row['load']} | `{row['policy']}` | {row['mean_jct_s']:.1f} | {change} | {study} | "
        f"{less} | {row['p95_jct_s']:.0f} | {row['longest_wait_s']:.0f} | {row['wide_jct_s']:.1f} |"
    )


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="gangs")
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.9, 1.1])
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES))
    parser.add_argument("--policies", nargs="+", default=list(RULES), choices=sorted({*MADE, *KERNEL}))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        "| runtimes | load | policy | mean JCT, s | against `hold_gang`, % | study: s, % | less study's, % | "
        "p95 JCT, s | longest wait, s | jobs of 4 and 8 GPUs, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for runtime in arguments.runtimes:
        for load in arguments.loads:
            for row in compare(arguments.scenario, load, runtime, arguments.policies, arguments.lists):
                rows.append(row)
                print(shown(row), flush=True)
    held = [row["less_study_percent"] for row in rows if "less_study_percent" in row]
    if held:
        agree = sum(low <= 0.0 <= high for _, low, high in held)
        print(f"\nof {len(held)} cells the interval of the difference to the study's change holds 0 in {agree}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
