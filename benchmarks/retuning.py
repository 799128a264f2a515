"""`hold_greedy` tuned for what is known of runtimes: random search on lists of its own, with those very estimates."""

from __future__ import annotations

import functools

import numpy as np

from adlro.decide.policies.hold_greedy import FIXED, SETTINGS, HoldGreedySettings
from adlro.decide.rollouts.candidates import find_candidates, room_for_candidates
from adlro.decide.rollouts.continuation import play_base
from adlro.decide.rollouts.rule import base_policy
from adlro.hardware.speeds import SHIPPED
from adlro.lab.evaluate.cases import Case
from adlro.sim import kernel
from adlro.sim.batch import change_arrays
from adlro.sim.course import JOBS_S, new_course
from adlro.state.cluster_arrays import empty_machines, hardware_of
from adlro.workload.scenario import load_scenario
from benchmarks.tune_hold_greedy import drawn_settings

SEARCH_SEED, CONFIRM_SEED = 9001, 9002
LISTS, TRIALS, FINALISTS = 60, 80, 6


@functools.cache
def retuned(scenario: str, load: float, runtime: str) -> HoldGreedySettings:
    """The best of `TRIALS` drawn settings and the shipped ones, confirmed on other lists."""
    tried = [*list(_drawn(np.random.default_rng(SEARCH_SEED)))[:TRIALS], FIXED, *SETTINGS.values()]
    first = sorted(tried, key=lambda each: _mean_jct_s(each, scenario, load, runtime, SEARCH_SEED))[:FINALISTS]
    return min(first, key=lambda each: _mean_jct_s(each, scenario, load, runtime, CONFIRM_SEED))


def _drawn(rng: np.random.Generator) -> list[HoldGreedySettings]:
    settings = drawn_settings(rng)
    return [next(settings) for _ in range(TRIALS)]


def _mean_jct_s(settings: HoldGreedySettings, scenario: str, load: float, runtime: str, seed: int) -> float:
    case = Case(load_scenario(scenario), SHIPPED, load, 256, LISTS, seed, runtime)
    jobs = _arrays(scenario, load, runtime, seed)
    hardware = hardware_of([case.cluster] * LISTS, case.cluster.gpu_models)
    changes = change_arrays([[]] * LISTS, hardware.gpu_count)
    machines = empty_machines(hardware)
    course = new_course(hardware, jobs, changes, np.arange(LISTS), start_cost_s=np.zeros(LISTS))
    kernel.begin_all(hardware, machines, jobs, changes, course)
    base, first = base_policy(settings, hardware), room_for_candidates(1)
    for n in range(LISTS):
        find_candidates(hardware, machines, jobs, course, n, base, first)
        play_base(hardware, machines, jobs, changes, course, n, first.job[0], first.gpu[0], base)
    return float(course.totals[:, JOBS_S].mean()) / 256


@functools.cache
def _arrays(scenario: str, load: float, runtime: str, seed: int):  # type: ignore[no-untyped-def]
    return Case(load_scenario(scenario), SHIPPED, load, 256, LISTS, seed, runtime).arrays(0, LISTS)
