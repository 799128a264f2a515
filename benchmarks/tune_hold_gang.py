"""Finds the setting of the policy hold_gang: random search over paired job lists, confirmed on lists of its own.

    python -m benchmarks.tune_hold_gang [--trials N] [--lists N] [--seed N] [--scenario NAME] [--loads L ...]

Every setting sees the same lists of `gangs` at loads 0.6, 0.9 and 1.1, with exact runtimes, in the kernel without
observations. What counts is the mean job completion time against that of `BASE`, averaged over the loads. The search
draws settings on lists of seeds SEARCH_SEED + 0, 1, ...; the best few are run again on as many lists of seeds
CONFIRM_SEED + 0, 1, ... Comparisons use other seeds (benchmarks/gangs.py): do not compare on these.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from adlro.decide.policies.hold_gang import HoldGangSettings
from adlro.decide.rollouts.gang_base import gang_base
from adlro.sim.batch import change_arrays
from adlro.sim.course import new_course
from adlro.state.cluster_arrays import empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.gang_kernel import play_gangs
from benchmarks.gangs import change_ci95

LOADS = (0.6, 0.9, 1.1)
SEARCH_SEED, CONFIRM_SEED = 11_000_000, 12_000_000
FINALISTS = 8

BASE = HoldGangSettings(alpha=6.0, theta=1.5, s_max=5.0, kappa=0.75, beta=0.0, ageing=0.4, frag=0.5, rho=10.0)
"""What an earlier study found with a simulator of its own; the search starts there."""

CHOICES: dict[str, tuple[float, ...]] = {
    "alpha": (2.0, 3.0, 4.0, 6.0, 8.0),
    "theta": (1.0, 1.15, 1.25, 1.5, 1.75, 2.0),
    "s_max": (2.5, 3.5, 5.0, 7.0, 10.0),
    "kappa": (0.5, 0.75, 1.0, 1.25, 1.5),
    "beta": (0.0, 0.25, 0.5, 1.0, 1.25),
    "ageing": (0.0, 0.2, 0.4, 0.6, 0.8),
    "frag": (0.0, 0.25, 0.5, 1.0, 2.0),
    "rho": (0.3, 1.0, 3.0, 6.0, 10.0, 15.0, 30.0, float("inf")),
}
"""What is drawn from."""


class Lists:
    """Lists of a scenario at a load, ready to be played again and again."""

    def __init__(self, scenario_name: str, load: float, first_seed: int, count: int) -> None:
        scenario = load_scenario(scenario_name)
        seeds = range(first_seed, first_seed + count)
        drawn = [draw_jobs(scenario, load=load, rng=np.random.default_rng(seed)) for seed in seeds]
        self.jobs: JobArrays = pack_jobs(drawn, scenario.cluster)
        self.hardware = hardware_of([scenario.cluster] * count, scenario.cluster.gpu_models)
        self.machines = empty_machines(self.hardware)
        self.changes = change_arrays([[]] * count, self.hardware.gpu_count)
        self.course = new_course(self.hardware, self.jobs, self.changes, np.arange(count), start_cost_s=np.zeros(count))

    def mean_jct_s(self, settings: HoldGangSettings) -> Floats:
        """(lists,) mean completion times."""
        base = gang_base(settings, self.hardware, self.jobs)
        play_gangs(self.hardware, self.machines, self.jobs, self.changes, self.course, base)
        mean_s: Floats = (self.course.job_end_s - self.jobs.submit_s).mean(axis=1)
        return mean_s


def drawn_settings(rng: np.random.Generator) -> Iterator[HoldGangSettings]:
    """Settings at random, two in three of them `BASE` with two figures changed."""
    while True:
        drawn = {name: float(rng.choice(values)) for name, values in CHOICES.items()}
        if rng.random() < 1 / 3:
            yield HoldGangSettings(**drawn)
        else:
            changed = rng.choice(list(CHOICES), size=2, replace=False)
            yield dataclasses.replace(BASE, **{str(name): drawn[str(name)] for name in changed})


def ratio(lists: Sequence[Lists], settings: HoldGangSettings, base: Sequence[Floats]) -> float:
    """Mean completion time against the base's, mean of the loads."""
    return float(
        np.mean([each.mean_jct_s(settings).mean() / its.mean() for each, its in zip(lists, base, strict=True)])
    )


def main() -> None:
    """Searches and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--lists", type=int, default=60)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--scenario", default="gangs")
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    arguments = parser.parse_args()
    began = time.process_time()
    search = [Lists(arguments.scenario, load, SEARCH_SEED, arguments.lists) for load in arguments.loads]
    base = [each.mean_jct_s(BASE) for each in search]
    draws = drawn_settings(np.random.default_rng(arguments.seed))
    settings = list(dict.fromkeys([BASE, *(next(draws) for _ in range(arguments.trials))]))
    found = sorted((ratio(search, each, base), i) for i, each in enumerate(settings))
    for improved in range(2):  # local steps from the best
        best = settings[found[0][1]]
        near = [dataclasses.replace(best, **{name: value}) for name, values in CHOICES.items() for value in values]
        new = [each for each in dict.fromkeys(near) if each not in settings]
        settings += new
        found = sorted(found + [(ratio(search, each, base), settings.index(each)) for each in new])
        print(f"after local steps {improved + 1}: {found[0][0]:.4f} {settings[found[0][1]]}")
    confirm = [Lists(arguments.scenario, load, CONFIRM_SEED, arguments.lists) for load in arguments.loads]
    base = [each.mean_jct_s(BASE) for each in confirm]
    print("mean " + " ".join(f"{its.mean():.2f}" for its in base), "s of BASE on the lists that confirm")
    for searched, i in found[:FINALISTS]:
        changes = [change_ci95(each.mean_jct_s(settings[i]), its) for each, its in zip(confirm, base, strict=True)]
        by_load = " ".join(f"{change:+.1f} ({low:+.1f}..{high:+.1f})" for change, low, high in changes)
        print(f"{searched:.4f} on the search's lists; {by_load}: {settings[i]}")
    print(f"{len(settings)} settings, {arguments.lists} lists a load, {time.process_time() - began:.0f} s of CPU time")


if __name__ == "__main__":
    main()
