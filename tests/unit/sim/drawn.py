"""Everything that is drawn from a seed, as digests: lists, populations, estimates; `futures`: what is compiled, too.

`python -m tests.unit.sim.drawn lists|futures` prints them, for processes on another kind of processor.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from adlro.hardware.speeds import SHIPPED
from adlro.numeric import exact
from adlro.records.jobs import Preemptible
from adlro.sim.durations import stable_normal
from adlro.state.job_arrays import pack_jobs
from adlro.workload.estimates import claimed_spread, expected_s
from adlro.workload.job_lists import WorkloadJob, draw_groups, draw_jobs
from adlro.workload.scenario import SCENARIO_NAMES, Scenario, load_scenario

# Larger clusters differ in the rate only.
DRAWN = tuple(name for name in SCENARIO_NAMES if name != "trace" and not name.endswith(("_64", "_256")))
NOISE = "noise:0.5"
FIELDS_OF_OLD = [each.name for each in fields(WorkloadJob)].index("gpu_count")
"""The fields of a job from here on came with jobs of several GPUs."""
COLUMNS_OF_GANGS = (
    *("gpu_count", "max_nodes", "spread_speed", "expected_spread_speed"),
    *("preemptible", "restart_s", "lost_s", "shareable", "family", "exclusive", "node_allowed"),
)
"""So did these columns of job arrays, or with stops, shares and nodes; worlds have jobs of one GPU that are never
stopped and run on any node."""


def digest(*parts: object) -> str:
    """Of numbers to their last bit."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return found.hexdigest()[:16]


def text_of(job: WorkloadJob) -> str:
    """A job's `repr` as it was before jobs had several GPUs; what such jobs have besides comes after it."""
    old, new = fields(job)[:FIELDS_OF_OLD], fields(job)[FIELDS_OF_OLD:]
    own = ", ".join(f"{each.name}={getattr(job, each.name)!r}" for each in old)
    besides = [
        f", {each.name}={_shown(getattr(job, each.name))}" for each in new if getattr(job, each.name) != each.default
    ]
    return f"WorkloadJob({own})" + "".join(besides)


def _shown(value: object) -> str:
    """A field of a job as it was before a job's owner could give it a grace."""
    if isinstance(value, Preemptible):
        return f"Preemptible(restart_s={value.restart_s!r}, lost_s={value.lost_s!r})"
    return repr(value)


def lists_of(scenario: Scenario, count: int, jobs: int) -> list[list[WorkloadJob]]:
    """Job lists at the scenario's loads."""
    loads = scenario.loads or (0.9,)
    return [
        draw_jobs(scenario, load=loads[seed % len(loads)], rng=np.random.default_rng(seed), count=jobs)
        for seed in range(count)
    ]


def draw_lists() -> dict[str, str]:
    """Job lists, populations and estimates of every scenario, and the functions that they are made with."""
    found = {"speeds": digest(sorted(SHIPPED._of_model.items()), sorted(SHIPPED._of_type.items()))}
    for name in DRAWN:
        scenario = load_scenario(name)
        lists, models = lists_of(scenario, 6, 200), scenario.cluster.gpu_models
        groups = [draw_groups(scenario, np.random.default_rng(seed)) for seed in range(6)]
        found[f"{name}: lists"] = digest([list(map(text_of, each)) for each in lists])
        found[f"{name}: populations"] = digest(groups)
        found[f"{name}: means"] = digest([scenario.work.expected_s(each.mean_work_s) for each in groups[0]])
        true = [expected_s(each, models, "true", scenario, seed=0) for each in lists]
        for runtime in (NOISE, "group", "type", "none"):
            found[f"{name}: {runtime}"] = digest(
                *(expected_s(each, models, runtime, scenario, seed=seed) for seed, each in enumerate(lists))
            )
        believed = expected_s(lists[0], models, NOISE, scenario, seed=0)
        found[f"{name}: spread"] = digest(claimed_spread(lists[0], true[0], believed))
    found["hashed normal numbers"] = digest([stable_normal("work", str(number)) for number in range(2000)])
    x = np.random.default_rng(2).random(4000) * 20.0
    functions: Iterable[Any] = (exact.exp_array, exact.log_array, exact.sin_array, exact.cos_array)
    found["functions"] = digest(*(function(x) for function in functions), [exact.log1p(each) for each in x.tolist()])
    return found


def draw_futures() -> dict[str, str]:
    """Imagined futures, worlds to train in with what their candidates gain, decisions of rules, planes, and figures."""
    from adlro.decide.planes.fill import PlaneFiller
    from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
    from adlro.decide.rollouts import futures
    from adlro.lab.evaluate.measure import figures_of
    from adlro.lab.evaluate.resampling import resampled_means
    from adlro.lab.learn.advantages import Sampling, collect
    from adlro.lab.learn.worlds import draw_world
    from adlro.sim.batch import simulate
    from adlro.state.observation import Observation

    found = {}
    drawn = futures.draw(np.random.default_rng(3), 60, 80)
    found["futures"] = digest(drawn.gap, drawn.pick)
    for seed in range(6):
        world = draw_world(np.random.default_rng(seed), lists=2, jobs=40)
        of_old = [column for name, column in world.jobs._asdict().items() if name not in COLUMNS_OF_GANGS]
        found[f"world {seed}"] = digest(world.text, repr(world.cluster), world.mean_gap_s, *of_old)
    world = draw_world(np.random.default_rng(1), lists=3, jobs=40)
    states = collect(world, np.random.default_rng(1), Sampling(lists=3, jobs=40, share=0.2, futures=4, ahead=12))
    found["gains"] = digest(states.time_s, *states.sampled)
    scenario = load_scenario("paper")
    jobs = pack_jobs(lists_of(scenario, 3, 120), scenario.cluster)
    filler, planes = PlaneFiller(FIXED.rule()), []

    def act(observation: Observation) -> Any:
        made = filler.fill(observation)
        planes.append(digest(made.gpus, made.jobs, made.cluster, made.pairs, made.scale_s))
        return HoldGreedyFixed().act(observation)

    outcome = simulate(scenario.cluster, jobs, act)
    found["planes"] = digest(planes)
    found["ends"] = digest(outcome.end_s)
    figures = figures_of(scenario.cluster, outcome, policy="hold_greedy_fixed")
    found["figures"] = digest(figures.metrics, figures.jct_counts, figures.gpu_busy)
    found["resamples"] = digest(resampled_means(figures.metrics, 1))
    return found


if __name__ == "__main__":
    print(json.dumps(draw_futures() if sys.argv[1:] == ["futures"] else draw_lists()))  # noqa: T201
