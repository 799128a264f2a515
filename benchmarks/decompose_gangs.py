"""How soon decompose learns what spreading jobs of several GPUs costs. Part of benchmarks/decompose.py.

    python -m benchmarks.decompose_gangs [--seed 1] [--lists 5] [--json FILE]

Jobs as in scenario `paper`, each on 1, 2, 4 or 8 V100s (70, 10, 15, 5 %), a share of those of several GPUs spread. The
cluster's network is its own: each application keeps the shipped share of its speed times exp(sigma N(0, 1)), at most 1,
with another factor for each GPU count (a third of the variance). After some finished jobs, the predicted shares are
compared with the true ones, for each application and 2, 4, 8 GPUs: median factor off, beside that of the shipped table;
and the spread runtimes of the next jobs, beside what knowing everything but the job's own noise would give.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from adlro.hardware.gang_speeds import spread_speed  # noqa: E402
from adlro.hardware.speeds import APPLICATIONS, JOB_TYPE_OF, REFERENCE_GPU_MODEL  # noqa: E402
from adlro.records.jobs import JobSpec  # noqa: E402
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds  # noqa: E402
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory  # noqa: E402
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor  # noqa: E402
from adlro.services.decompose.variables.variables import Variables  # noqa: E402
from adlro.workload.job_lists import draw_groups, draw_jobs  # noqa: E402
from adlro.workload.scenario import load_scenario  # noqa: E402

GPU_COUNTS, COUNT_SHARES = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
SPREAD_SHARE = 0.3
SIGMAS = (0.0, 0.3, 0.6)
STAGES = (0, 250, 500, 1000, 2000)
NEXT = 500
"""Jobs after a stage whose runtimes are predicted."""


def one_list(seed: int, number: int, sigma: float) -> dict[int, dict[str, float]]:
    """By stage, the median factors by which predictions are off."""
    rng = np.random.default_rng([seed, number])
    scenario = load_scenario("paper")
    groups = draw_groups(scenario, rng)
    jobs = draw_jobs(scenario, load=0.9, rng=rng, count=STAGES[-1] + NEXT, groups=groups)
    mean_s = {(each.user, each.application): each.mean_work_s for each in groups}
    true = {}
    for application in APPLICATIONS:
        own = rng.standard_normal()
        for gpu_count in GPU_COUNTS[1:]:
            deviation = sigma * (math.sqrt(2 / 3) * own + math.sqrt(1 / 3) * rng.standard_normal())
            true[application, gpu_count] = min(1.0, shipped(application, gpu_count) * math.exp(deviation))
    specs, spread, runtime_s = [], [], []
    for job in jobs:
        spec = job.spec("paper")
        gpu_count = int(rng.choice(GPU_COUNTS, p=COUNT_SHARES))
        is_spread = gpu_count > 1 and bool(rng.random() < SPREAD_SHARE)
        specs.append(replace(spec, gpu_count=gpu_count))
        spread.append(is_spread)
        runtime_s.append(job.work_s / (true[spec.application, gpu_count] if is_spread else 1.0))

    variables, speeds = Variables(), ModelSpeeds()
    predictor = LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: ())
    result, done = {}, 0
    for stage in STAGES:
        for place in range(done, stage):
            predictor.learn(
                FinishedJob(
                    str(place), specs[place], REFERENCE_GPU_MODEL, runtime_s[place], float(place), spread=spread[place]
                )
            )
        done = stage
        kinds = [JobSpec("g", "", JOB_TYPE_OF[name], name, gpu_count=gpus) for name, gpus in true]
        found = predictor.predict(kinds, [REFERENCE_GPU_MODEL])
        assert found.spread is not None
        answer = {
            "shares, decompose": factor_off(found.spread.speed[:, 0], list(true.values())),
            "shares, shipped table": factor_off([shipped(*each) for each in true], list(true.values())),
        }
        places = [place for place in range(stage, stage + NEXT) if spread[place]]
        found = predictor.predict([specs[place] for place in places], [REFERENCE_GPU_MODEL])
        assert found.spread is not None
        observed_s = np.array([runtime_s[place] for place in places])
        answer["spread runtimes, decompose"] = factor_off(
            found.median_s[:, 0] / found.spread.speed[:, 0], observed_s.tolist()
        )
        known_s = [
            mean_s[specs[place].user, specs[place].application] / true[specs[place].application, specs[place].gpu_count]
            for place in places
        ]
        answer["spread runtimes, all known"] = factor_off(known_s, observed_s.tolist())
        inside = (found.spread.low_s[:, 0] <= observed_s) & (observed_s <= found.spread.high_s[:, 0])
        answer["coverage of 0.8"] = float(inside.mean())
        result[stage] = answer
    return result


def shipped(application: str, gpu_count: int) -> float:
    """The share of the shipped table."""
    return spread_speed(application, JOB_TYPE_OF[application], gpu_count, REFERENCE_GPU_MODEL)


def factor_off(predicted: list[float] | np.ndarray, true: list[float]) -> float:
    """Median factor."""
    return float(np.median(np.exp(np.abs(np.log(np.array(predicted) / np.array(true))))))


def measure(seed: int, lists: int) -> dict[str, dict[str, float]]:
    """The mean over lists, by sigma and stage."""
    result = {}
    for sigma in SIGMAS:
        found = [one_list(seed, number, sigma) for number in range(lists)]
        for stage in STAGES:
            result[f"sigma {sigma:g}, after {stage} jobs"] = {
                name: float(np.mean([each[stage][name] for each in found])) for name in found[0][stage]
            }
    return result


def show(rows: dict[str, dict[str, float]]) -> None:
    """Prints the figures, as Markdown."""
    columns = list(next(iter(rows.values())))
    print("\nJobs of several GPUs: median factor off, mean of the lists")
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for name, each in rows.items():
        print(f"| {name} | {' | '.join(f'{each[key]:.2f}' for key in columns)} |")


def main() -> None:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", type=int, default=5)
    parser.add_argument("--json", type=Path, help="writes the figures there")
    arguments = parser.parse_args()
    rows = measure(arguments.seed, arguments.lists)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
