"""What stopping running jobs for shorter ones is worth, by what a restart costs, by load and by rule.

    python -m benchmarks.preemption [--lists N] [--loads L ...] [--parts P ...] [--json FILE]

Every rule sees the same lists, of seeds from FIRST_SEED on, and is compared with `hold_gang`, which stops nothing, on
them. Parts:

    restarts    `srtf`, with restarts of 20, 60, 240 and 600 s for a job of an hour (`preemptive_20s` and so on)
    rules       on `preemptive`, 60 s: `srtf` with H = 2, shortest remaining time on the fastest free GPU, and LAS
    factors     `srtf` with H = 1.5, by restarts
    mixes       `srtf`, 60 s: jobs of one GPU alone, and the heavy tails of `gangs_heavy`, against `hold_gang` tuned for
                these as the study did
    runtimes    `srtf`, 60 and 600 s, with runtimes that are only guessed
    speed       CPU time of a decision on a ready observation of a full cluster, with 1,000 jobs waiting

A wait is the time in which a job does not run. Intervals are 95 % bootstrap intervals over lists, drawn in pairs.
Beside stand the figures of the study that proposed the rule, and their difference from these, with an interval: the two
are independent, and where the study has no interval of its own it is taken to be as wide as its number of lists makes
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adlro.decide.policies import Policy
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGangSettings
from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.decide.policies.srtf import Srtf, SrtfSettings
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.gangs import Figure, change_ci95, difference, interval, job_lists, play_hold_gang
from benchmarks.simulator import copies

LOADS = (0.6, 0.9, 1.1)
RESTARTS = {20: "preemptive_20s", 60: "preemptive", 240: "preemptive_240s", 600: "preemptive_600s"}
RESTART_60_S = 0.3
"""Of the mean job of 17.8 s, as 60 s of an hour."""

CAPACITY_PER_H = {"gangs": 1528.0, "one": 3017.0}
"""Jobs an hour of the 16 GPUs, of the mix and of jobs of one GPU alone."""

FASTEST = SrtfSettings(
    start=HoldGangSettings(alpha=1e-3, theta=1e9, s_max=1e9, kappa=0.75, beta=0.0, ageing=0.0, frag=0.0, rho=math.inf),
    by_loss=False,
)
"""The shortest remaining time goes first, on the fastest GPU that is free, however slow."""

WAITING, DECISIONS = 1000, 200

STUDY: dict[str, tuple[Figure, Figure, Figure]] = {
    "restart 20 s": ((-14.8, -16.1, -13.6), (-17.5, -18.7, -16.3), (-18.8, -19.8, -17.8)),
    "restart 60 s": ((-14.2, -15.4, -13.1), (-16.7, -17.9, -15.6), (-17.7, -18.7, -16.7)),
    "restart 240 s": ((-12.8, None, None), (-13.4, None, None), (-12.3, None, None)),
    "restart 600 s": ((-9.2, None, None), (-6.4, None, None), (-2.0, -3.3, -0.7)),
    "H = 2": ((-10.4, None, None), (-13.4, None, None), (-14.6, None, None)),
    "fastest GPU": ((-9.8, None, None), (-11.3, None, None), (-12.8, None, None)),
    "las_preemptive": ((15.0, None, None), (27.0, None, None), (35.0, None, None)),
    "one GPU": ((-1.1, None, None), (-4.2, None, None), (-5.3, None, None)),
    "heavy tails": ((-19.1, None, None), (-22.6, None, None), (-23.0, None, None)),
}
"""By load: change of the mean completion time against its own rule without stops, %, and its interval."""

STUDY_LISTS = 100
STUDY_LISTS_OF_MIXES = 40

STUDY_P95 = {
    "restart 20 s": -19.8,
    "restart 60 s": -17.8,
    "restart 240 s": -12.7,
    "restart 600 s": -1.9,
    "H = 2": -15.7,
    "fastest GPU": -10.0,
    "las_preemptive": 74.0,
}
"""The same of the 95th percentile, at load 0.9."""

STUDY_STOPS = {"restart 60 s": (73, 134, 189)}


class Play(NamedTuple):
    """What became of some lists: (lists,) figures of each.

    Attributes:
        mean_s, p95_s: completion times.
        longest_wait_s: the longest time in which a job did not run.
        wide_s: mean completion time of jobs of 4 and 8 GPUs; nan without any.
        stops: attempts that were stopped.
    """

    mean_s: Floats
    p95_s: Floats
    longest_wait_s: Floats
    wide_s: Floats
    stops: Floats


def play(policy: Policy, scenario_name: str, jobs: JobArrays) -> Play:
    """Plays all lists, without a bound on waits."""
    policy.wait_ratio = math.inf
    simulator = BatchSimulator(load_scenario(scenario_name).cluster, jobs, preempts=policy.preempts)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    if not np.isfinite(outcome.end_s).all():
        raise AssertionError(f"{policy.name}: a list did not come to its end")
    jct_s = outcome.end_s - jobs.submit_s
    return figures_of(jobs, jct_s, jct_s - run_s(outcome), outcome.stops.astype(np.float64))


def figures_of(jobs: JobArrays, jct_s: Floats, wait_s: Floats, stops: Floats) -> Play:
    """The figures of completion times and waits (lists, jobs), and of stops (lists,)."""
    wide = [
        jct[several].mean() if several.any() else np.nan for jct, several in zip(jct_s, jobs.gpu_count > 2, strict=True)
    ]
    return Play(
        mean_s=jct_s.mean(axis=1),
        p95_s=np.percentile(jct_s, 95, axis=1),
        longest_wait_s=wait_s.max(axis=1),
        wide_s=np.array(wide),
        stops=stops,
    )


def play_base(cell: Cell, jobs: JobArrays) -> Play:
    """`hold_gang` on the lists of a cell."""
    jct_s, wait_s = play_hold_gang(cell.base, cell.scenario, jobs)
    return figures_of(jobs, jct_s, wait_s, np.zeros(len(jct_s)))


def run_s(outcome: BatchOutcome) -> Floats:
    """(lists, jobs) time in which each job ran, in all its attempts."""
    ran_s = np.zeros(outcome.end_s.shape)
    for number in range(len(ran_s)):
        for run in outcome.runs(number):
            ran_s[number, run.job] += run.end_s - run.start_s
    return ran_s


def as_preemptible(jobs: JobArrays) -> JobArrays:
    """The same jobs, which all can be stopped, with restarts of 60 s for a job of an hour."""
    there = np.isfinite(jobs.submit_s)
    return jobs._replace(preemptible=there, restart_s=np.where(there, RESTART_60_S, 0.0))


def of_one_gpu(jobs: JobArrays) -> JobArrays:
    """The same jobs with one GPU each, submitted as much faster as the cluster can do more of them."""
    faster = CAPACITY_PER_H["one"] / CAPACITY_PER_H["gangs"]
    return jobs._replace(
        gpu_count=np.ones_like(jobs.gpu_count),
        max_nodes=np.zeros_like(jobs.max_nodes),
        submit_s=np.round(jobs.submit_s / faster, 3),
    )


HEAVY_BASE = dataclasses.replace(ONE_SETTING.without_queue(), alpha=2.0, kappa=0.5, ageing=0.8, rho=6.0)
"""What `python -m benchmarks.tune_hold_gang --scenario gangs_heavy --lists 40` found for heavy tails."""


class Cell(NamedTuple):
    """One row for each load: what is played, and by whom; `base` is the setting of `hold_gang` beside it."""

    part: str
    name: str
    scenario: str
    runtime: str
    rule: Callable[[], Policy]
    change: Callable[[JobArrays], JobArrays]
    base: HoldGangSettings = ONE_SETTING


def cells() -> Iterator[Cell]:
    """All cells."""
    same: Callable[[JobArrays], JobArrays] = lambda jobs: jobs  # noqa: E731
    for restart, scenario in RESTARTS.items():
        yield Cell("restarts", f"restart {restart} s", scenario, "true", Srtf, same)
    twice = dataclasses.replace(SrtfSettings(), factor=2.0)
    yield Cell("rules", "H = 2", "preemptive", "true", lambda: Srtf(twice), same)
    half = dataclasses.replace(SrtfSettings(), factor=1.5)
    for restart, scenario in RESTARTS.items():
        yield Cell("factors", f"H = 1.5, restart {restart} s", scenario, "true", lambda: Srtf(half), same)
    yield Cell("rules", "fastest GPU", "preemptive", "true", lambda: Srtf(FASTEST), same)
    yield Cell("rules", "las_preemptive", "preemptive", "true", LasPreemptive, same)
    yield Cell("mixes", "one GPU", "preemptive", "true", Srtf, of_one_gpu)
    yield Cell("mixes", "heavy tails", "gangs_heavy", "true", Srtf, as_preemptible, HEAVY_BASE)
    yield Cell("mixes", "heavy tails, `hold_gang` not tuned for them", "gangs_heavy", "true", Srtf, as_preemptible)
    for restart in (60, 600):
        for runtime in ("noise:0.5", "group", "type"):
            yield Cell("runtimes", f"`{runtime}`, restart {restart} s", RESTARTS[restart], runtime, Srtf, same)


Bases = dict[bytes, Play]
"""What `hold_gang` makes of lists, by what it reads of them: it knows nothing of restarts."""


def base_key(jobs: JobArrays, base: HoldGangSettings) -> bytes:
    """A digest of all that `hold_gang` with a setting reads of lists."""
    read = hashlib.sha256(repr(base).encode())
    for column in (jobs.submit_s, jobs.duration_s, jobs.expected_s, jobs.expected_spread_speed, jobs.gpu_count):
        read.update(np.ascontiguousarray(column).tobytes())
    return read.digest()


def less_study(
    cell: Cell, load: float, change: tuple[float, float, float], lists: int
) -> tuple[float, float, float] | None:
    """A change less the study's, with its interval; None: the study has no such cell."""
    if cell.name not in STUDY or load not in LOADS:
        return None
    study_lists = STUDY_LISTS_OF_MIXES if cell.part == "mixes" else STUDY_LISTS
    return difference(change, STUDY[cell.name][LOADS.index(load)], math.sqrt(lists / study_lists))


def compare(cell: Cell, load: float, lists: int, bases: Bases) -> dict[str, Any]:
    """One row of the table."""
    jobs = cell.change(job_lists(cell.scenario, load, lists, cell.runtime))
    key = base_key(jobs, cell.base)
    if key not in bases:
        bases[key] = play_base(cell, jobs)
    base, ours = bases[key], play(cell.rule(), cell.scenario, jobs)
    row: dict[str, Any] = {
        "part": cell.part,
        "rule": cell.name,
        "load": load,
        "hold_gang_mean_jct_s": float(base.mean_s.mean()),
        **{name: float(np.mean(value)) for name, value in ours._asdict().items()},
        "against_hold_gang_percent": change_ci95(ours.mean_s, base.mean_s),
        "p95_against_percent": change_ci95(ours.p95_s, base.p95_s),
        "longest_wait_against_percent": change_ci95(ours.longest_wait_s, base.longest_wait_s),
    }
    less = less_study(cell, load, row["against_hold_gang_percent"], lists)
    if less is not None:
        row["study_percent"] = STUDY[cell.name][LOADS.index(load)][0]
        row["difference"] = less
    return row


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    study = apart = p95_study = stops_study = ""
    if "study_percent" in row:
        study, apart = f"{row['study_percent']:+.1f}", interval(row["difference"])
        if row["load"] == 0.9 and row["rule"] in STUDY_P95:
            p95_study = f"; study {STUDY_P95[row['rule']]:+.1f}"
        if row["rule"] in STUDY_STOPS:
            stops_study = f"; study {STUDY_STOPS[row['rule']][LOADS.index(row['load'])]}"
    return (
        f"| {row['rule']} | {row['load']} | {row['mean_s']:.1f} | {interval(row['against_hold_gang_percent'])} | "
        f"{study or '-'} | {apart or '-'} | {interval(row['p95_against_percent'])}{p95_study} | "
        f"{interval(row['longest_wait_against_percent'])} | {row['stops']:.0f}{stops_study} |"
    )


def decision_ms(policy: Policy, times: int) -> tuple[float, float, int]:
    """CPU time of decisions where jobs run that can be stopped, in ms: median and most; and how many of them stop jobs.

    Args:
        times: copies of the cluster of 16 GPUs.
    """
    scenario = load_scenario("preemptive")
    cluster = copies(scenario.cluster, times)
    count = WAITING + 4 * 16 * times
    jobs = pack_jobs([draw_jobs(scenario, load=1000.0, rng=np.random.default_rng(6_000_000), count=count)], cluster)
    simulator, spent, stops = BatchSimulator(cluster, jobs, preempts=True), list[float](), 0
    policy.wait_ratio = math.inf
    while len(simulator.active) and len(spent) < DECISIONS:
        seen = simulator.observe()
        timed = (
            seen.queue_length[0] >= WAITING
            and seen.preemption is not None
            and bool((seen.preemption.gpu_stoppable & (seen.gpu_elapsed_s > 0.0)).any())
        )
        if timed:
            policy.judge(seen)
        began = time.process_time()
        judgement = policy.judge(seen)
        if timed:
            spent.append((time.process_time() - began) * 1e3)
            stops += len(judgement.busy)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return statistics.median(spent), max(spent), stops


def print_speed() -> None:
    """Measures and prints the time of decisions."""
    print(f"\n{DECISIONS} decisions, with {WAITING} or more jobs waiting\n")
    print("| GPUs | policy | CPU ms: median, most | decisions that stop |")
    print("| --- | --- | --- | --- |")
    for times in (16, 64):
        for policy in (Srtf(), LasPreemptive()):
            median_ms, most_ms, stops = decision_ms(policy, times)
            print(f"| {16 * times} | `{policy.name}` | {median_ms:.2f}, {most_ms:.2f} | {stops} |", flush=True)


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--parts", nargs="+", default=["restarts", "rules", "factors", "mixes", "runtimes", "speed"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        "| rule | load | mean JCT, s | against `hold_gang`, % | study, % | difference to the study | p95, % | "
        "longest wait, % | stops a list |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    rows: list[dict[str, Any]] = []
    bases: Bases = {}
    for cell in cells():
        if cell.part in arguments.parts:
            for load in arguments.loads:
                row = compare(cell, load, arguments.lists, bases)
                rows.append(row)
                print(shown(row), flush=True)
    held = [row for row in rows if "difference" in row]
    if held:
        agree = sum(row["difference"][1] <= 0.0 <= row["difference"][2] for row in held)
        print(f"\nof {len(held)} cells the interval of the difference to the study's figure holds 0 in {agree}")
    if "speed" in arguments.parts:
        print_speed()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
