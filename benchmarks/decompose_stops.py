"""What decompose learns where jobs are stopped and go on: runtimes and restarts. In process, without other services.

    python -m benchmarks.decompose_stops [--seed 2] [--lists 3] [--jobs 600] [--json FILE]

Jobs of scenario `paper` without declared runtimes, one after the other, each attempt on one of two GPU models; the
longer a job runs, the more often it is stopped (once in 15 s of its run). The second half's runtimes are predicted
before they are learned. Each row learns another thing from a stopped job: its whole runtime as decompose does, the true
one, none, or its last attempt's as if that were the whole one. decompose's limits were chosen with seed 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from adlro.records.jobs import JobSpec, Preemptible  # noqa: E402
from adlro.records.outcomes import StoppedRun  # noqa: E402
from adlro.services.decompose.learning import Learning  # noqa: E402
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds  # noqa: E402
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory  # noqa: E402
from adlro.services.decompose.outcomes.restart_costs import RestartCosts  # noqa: E402
from adlro.services.decompose.pairs.pair_fits import PairFits  # noqa: E402
from adlro.services.decompose.pairs.pair_memory import PairMemory  # noqa: E402
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor  # noqa: E402
from adlro.services.decompose.variables.variables import Variables  # noqa: E402
from adlro.workload.job_lists import draw_jobs  # noqa: E402
from adlro.workload.scenario import load_scenario  # noqa: E402

MODELS = ("v100_sxm2", "radeon_vii")
STOPPED_EVERY_S = 15.0
MOST_STOPS = 8
RESTARTS_S = ((0.3, 0.3), (0.3, 0.9), (5.0, 5.0), (5.0, 15.0))
"""Stated, and true."""


class Run(NamedTuple):
    """A finished job as its outcome tells it, and the true runtime on its last GPU model, at once."""

    told: FinishedJob
    at_once_s: float


Lesson = Callable[[Run], FinishedJob | None]
LESSONS: dict[str, Lesson] = {
    "true runtimes": lambda run: replace(run.told, runtime_s=run.at_once_s, stopped_runs=()),
    "whole runtimes, as decompose": lambda run: run.told,
    "none of stopped jobs": lambda run: None if run.told.stopped_runs else run.told,
    "the last attempt's": lambda run: replace(run.told, stopped_runs=()),
}


def runs(seed: int, number: int, jobs: int, stated_s: float, true_s: float) -> list[tuple[JobSpec, Run, float]]:
    """The jobs of a list, with what they did, and their true runtime on the first model."""
    rng = np.random.default_rng([seed, number, 1])
    speeds, found = ModelSpeeds(), []
    drawn = draw_jobs(load_scenario("paper"), load=0.9, rng=np.random.default_rng([seed, number]), count=jobs)
    for place, job in enumerate(drawn):
        spec = replace(job.spec(f"job-{place}"), expected_runtime=None, preemptible=Preemptible(stated_s))
        left_s, stopped = job.work_s, list[StoppedRun]()
        while True:
            model = MODELS[int(rng.integers(2))]
            speed = speeds.of(spec, model).ratio
            ran_s, cost_s = float(rng.exponential(STOPPED_EVERY_S)), true_s if stopped else 0.0
            if ran_s >= left_s / speed or len(stopped) == MOST_STOPS:
                break
            stopped.append(StoppedRun(model, cost_s + ran_s))
            left_s -= ran_s * speed
        told = FinishedJob(spec.name, spec, model, cost_s + left_s / speed, float(place), stopped_runs=tuple(stopped))
        found.append((spec, Run(told, job.work_s / speed), job.work_s))
    return found


def measured(lesson: Lesson, seed: int, number: int, jobs: int, restart_s: tuple[float, float]) -> list[float]:
    """Mean absolute and mean error of ln runtime, shares of jobs stopped and learned, the restart predicted."""
    variables, speeds = Variables(), ModelSpeeds()
    memory = OutcomeMemory(variables, speeds)
    predictor = LearnedPredictor(memory, variables, speeds, lambda: ())
    learning = Learning(predictor, speeds, RestartCosts(), PairFits(PairMemory()))
    errors, restarts_s, stopped = [], [], 0
    for place, (spec, run, work_s) in enumerate(runs(seed, number, jobs, *restart_s)):
        if place >= jobs // 2:
            errors.append(math.log(float(predictor.predict([spec], [MODELS[0]]).median_s[0, 0]) / work_s))
            restart = learning.restart(spec)
            assert restart is not None
            restarts_s.append(restart.median_s)
        stopped += bool(run.told.stopped_runs)
        job = lesson(run)
        if job is not None:
            learning.learn(job)
    off = np.array(errors)
    share = stopped / jobs, len(memory) / jobs
    return [float(np.abs(off).mean()), float(off.mean()), *share, float(np.median(restarts_s))]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--lists", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: list[dict[str, Any]] = []
    print(
        "| restart, s: stated, true | learned of a stopped job | error | mean error | stopped | learned | restart, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for restart_s in RESTARTS_S:
        for name, lesson in LESSONS.items():
            rows = [measured(lesson, options.seed, number, options.jobs, restart_s) for number in range(options.lists)]
            error, mean, stopped, learned, predicted_s = np.mean(rows, axis=0).tolist()
            stated_s, true_s = restart_s
            print(
                f"| {stated_s:g}, {true_s:g} | {name} | {error:.2f} | {mean:+.2f} | {stopped:.2f} | {learned:.2f} | "
                f"{predicted_s:.1f} |",
                flush=True,
            )
            result.append({"stated_s": stated_s, "true_s": true_s, "learned": name, "error": error, "mean_error": mean})
    if options.json is not None:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
