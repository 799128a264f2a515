"""Finds settings for the policy hold_greedy: random search over paired job lists, confirmed on lists of its own.

    python -m benchmarks.tune_hold_greedy [--trials N] [--lists N] [--seed N] [--processes N] [--json FILE]

Every setting sees the same lists, of the scenarios `paper` and `paper_roomy` at loads 0.6, 0.9 and 1.1, with exact
runtimes. What counts is its mean job completion time against that of `BASE`, averaged over the
scenarios. The search draws settings on the lists of seeds SEARCH_SEED + 0, 1, ...; the best few for each load, and the
best few over all loads, are run again on as many lists of seeds CONFIRM_SEED + 0, 1, ..., and the best of those is
printed. Evaluations use other seeds (`adlro evaluate --seed` counts from 0): do not evaluate on these.

Prints the table `SETTINGS` and the setting `FIXED` of adlro/decide/policies/hold_greedy.py, with what each
gains over `BASE`, a 95 % bootstrap interval over lists beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from adlro.decide.policies.hold_greedy import HoldGreedy, HoldGreedySettings
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

SCENARIOS = ("paper", "paper_roomy")
LOADS = (0.6, 0.9, 1.1)
SEARCH_SEED, CONFIRM_SEED = 7_000_000, 8_000_000
FINALISTS = 5

BASE = HoldGreedySettings(alpha=4.0, theta=1.25, kappa=1.0, backlog=3.0, affinity=4.0, packing=0.3, ageing=0.2)
"""What an earlier search found; written down here, so that a search has the same outcome once its own is in use."""

CHOICES: dict[str, tuple[float, ...]] = {
    "alpha": (2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
    "theta": (1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.6),
    "kappa": (1.0, 1.25, 1.5, 1.75, 2.0),
    "backlog": (1.0, 2.0, 3.0, 4.0),
    "affinity": (2.0, 3.0, 4.0, 6.0),
    "packing": (0.0, 0.1, 0.2, 0.3, 0.5, 0.8),
    "ageing": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5),
}
"""What is drawn from; earlier searches on another cluster had their best well inside of this."""


@functools.cache
def job_lists(scenario_name: str, load: float, first_seed: int, count: int) -> JobArrays:
    """`count` lists, of seeds from `first_seed` on."""
    scenario = load_scenario(scenario_name)
    seeds = range(first_seed, first_seed + count)
    lists = [draw_jobs(scenario, load=load, rng=np.random.default_rng(seed)) for seed in seeds]
    return pack_jobs(lists, scenario.cluster)


def mean_jct_s(settings: HoldGreedySettings, scenario_name: str, jobs: JobArrays) -> Floats:
    """(lists,) the mean completion time of each list."""
    simulator, policy = BatchSimulator(load_scenario(scenario_name).cluster, jobs), HoldGreedy(settings=settings)
    while len(simulator.active):
        simulator.act(policy.act(simulator.observe()))
    mean_s: Floats = (simulator.outcome().end_s - jobs.submit_s).mean(axis=1)
    return mean_s


def measure(task: tuple[HoldGreedySettings, int, int]) -> Floats:
    """(loads, scenarios, lists) of one setting on `count` lists from a seed on."""
    settings, first_seed, count = task
    return np.array(
        [[mean_jct_s(settings, name, job_lists(name, load, first_seed, count)) for name in SCENARIOS] for load in LOADS]
    )


def drawn_settings(rng: np.random.Generator) -> Iterator[HoldGreedySettings]:
    """Settings at random, half of them `BASE` with two figures changed."""
    while True:
        drawn = {name: float(rng.choice(values)) for name, values in CHOICES.items()}
        if rng.random() < 0.5:
            yield HoldGreedySettings(**drawn)
        else:
            changed = rng.choice(list(CHOICES), size=2, replace=False)
            yield dataclasses.replace(BASE, **{str(name): drawn[str(name)] for name in changed})


def against(measured: Floats, base: Floats) -> Floats:
    """(loads,) ratio of mean completion times to the base's, averaged over the scenarios."""
    ratio: Floats = (measured.mean(axis=2) / base.mean(axis=2)).mean(axis=1)
    return ratio


def interval(measured: Floats, base: Floats, load: int | None) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio at a load (None: of all loads' mean); lists are drawn in pairs."""
    rng = np.random.default_rng(0)
    count = measured.shape[2]
    ratios = []
    for _ in range(1000):
        chosen = rng.integers(count, size=count)
        ratio = against(measured[:, :, chosen], base[:, :, chosen])
        ratios.append(ratio.mean() if load is None else ratio[load])
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Found:
    """The best settings for a load (None: for all), and what they give on the lists that confirm.

    `jct_ratio` is against `BASE`; `mean_jct_s` by scenario and load.
    """

    load: float | None
    settings: HoldGreedySettings
    jct_ratio: float
    jct_ratio_ci95: tuple[float, float]
    mean_jct_s: dict[str, float]


def tune(trials: int, lists: int, seed: int, processes: int) -> list[Found]:
    """The best settings for each load, then for all."""
    draws = drawn_settings(np.random.default_rng(seed))
    settings = list(dict.fromkeys([BASE, *(next(draws) for _ in range(trials))]))
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(measure, [(each, SEARCH_SEED, lists) for each in settings]))
        ratios = np.array([against(each, found[0]) for each in found])  # (trials, loads)
        by_load: list[Floats] = [*ratios.T, ratios.mean(axis=1)]
        finalists = [[int(i) for i in np.argsort(each, kind="stable")[:FINALISTS]] for each in by_load]
        again = sorted({0, *(i for each in finalists for i in each)})
        confirmed = dict(
            zip(again, pool.map(measure, [(settings[i], CONFIRM_SEED, lists) for i in again]), strict=True)
        )
    rows = []
    for number, chosen in enumerate(finalists):
        load = number if number < len(LOADS) else None
        score = {}
        for i in {0, *chosen}:
            ratio = against(confirmed[i], confirmed[0])
            score[i] = float(ratio.mean() if load is None else ratio[load])
        best = min(score, key=lambda i: score[i])
        rows.append(
            Found(
                load=None if load is None else LOADS[load],
                settings=settings[best],
                jct_ratio=score[best],
                jct_ratio_ci95=interval(confirmed[best], confirmed[0], load),
                mean_jct_s={
                    f"{name} {of_load}": float(confirmed[best][i, j].mean())
                    for i, of_load in enumerate(LOADS)
                    for j, name in enumerate(SCENARIOS)
                },
            )
        )
    return rows


def main() -> None:
    """Searches, and prints what belongs into the policy's file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=36)
    parser.add_argument("--lists", type=int, default=50, help="of each scenario and load")
    parser.add_argument("--seed", type=int, default=2, help="of the settings that are tried")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = tune(arguments.trials, arguments.lists, arguments.seed, arguments.processes)
    print("SETTINGS: Mapping[float, HoldGreedySettings] = {")
    for row in rows:
        low, high = row.jct_ratio_ci95
        remark = f"{row.jct_ratio:.4f} ({low:.4f}..{high:.4f}) of BASE"
        if row.load is None:
            print(f"}}\nFIXED = {row.settings}  # {remark}")
        else:
            print(f"    {row.load}: {row.settings},  # {remark}")
    print(f"{arguments.trials} trials, {arguments.lists} lists, {time.perf_counter() - began:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
