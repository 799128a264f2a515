"""How well runtimes of real programs are learned, without job types, applications and declared runtimes.

    python -m benchmarks.real_programs [--runs 60] [--seed 1] [--json]

Starts `adlro up --cluster local` with pretended GPUs in a temporary directory, and runs three programs of different
length, one at a time: matrix products and a sort by numpy, and a small training by torch (by numpy where torch is not
installed). Before each run, decompose is asked for its runtime; the error is that of the median. The first `--runs` are
on V100s alone, the following on V100s and RTX 2080 Ti in turn: pretended models are equally fast, and the table of
speeds says otherwise, so the difference of the predictions is to be unlearned. The goals: a median relative error below
25 % after 30 runs, and less than 25 % between the two models at the end.

The machine must have nothing else to do: its noise is in the errors, and printed beside them. Linux only; the programs
run as the user who starts it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.client import Client, JobSpec, JobState, JobType
from adlro.records.jobs import Job
from adlro.records.payloads import process_payload
from benchmarks.local_suite import local_suite
from benchmarks.measuring import machine

V100, TURING = "v100_sxm2", "rtx_2080_ti"
NODE_OF = {V100: "volta", TURING: "turing"}
USER = "bench"
FAKE_GPUS = f"volta={V100}:2,turing={TURING}:2"
START_TIMEOUT_S, RUN_TIMEOUT_S, END_TIMEOUT_S = 600.0, 300.0, 30.0
GOAL_AFTER, GOAL_ERROR, GOAL_DIFFERENCE = 30, 0.25, 0.25

MATMUL = """
import numpy
a = numpy.random.default_rng(1).random((512, 512), dtype=numpy.float32)
b = a
for _ in range(600):
    b = a @ b
    b /= b.max()
"""
SORT = """
import numpy
rng = numpy.random.default_rng(1)
for _ in range(16):
    numpy.sort(rng.random(500_000))
"""
TRAIN_TORCH = """
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
x, y = torch.randn(4096, 64), torch.randn(4096, 1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(150):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
"""
TRAIN_NUMPY = """
import numpy
rng = numpy.random.default_rng(1)
x, y = rng.standard_normal((4096, 64)), rng.standard_normal((4096, 1))
first, second = 0.1 * rng.standard_normal((64, 256)), 0.1 * rng.standard_normal((256, 1))
for _ in range(200):
    hidden = numpy.maximum(x @ first, 0.0)
    error = (hidden @ second - y) / len(x)
    gradient = error @ second.T * (hidden > 0.0)
    second -= 0.1 * hidden.T @ error
    first -= 0.1 * x.T @ gradient
"""


def programs() -> dict[str, str]:
    """Sources by the names of their files."""
    train = TRAIN_NUMPY if importlib.util.find_spec("torch") is None else TRAIN_TORCH
    return {"matmul.py": MATMUL, "train.py": train, "sort.py": SORT}


@dataclass(frozen=True, slots=True)
class Run:
    """One run and its prediction, seconds."""

    script: str
    gpu_model: str
    predicted_s: float
    runtime_s: float

    @property
    def error(self) -> float:
        """The prediction's relative error."""
        return abs(self.predicted_s / self.runtime_s - 1.0)


class Bench:
    """Runs programs one at a time.

    Args:
        client: of the suite.
        folder: of the programs' files.
        seed: of their order.
    """

    def __init__(self, client: Client, folder: Path, seed: int) -> None:
        self._client = client
        self._folder = folder
        self._draw = random.Random(seed)
        self._closed: str | None = None
        for name, source in programs().items():
            folder.joinpath(name).write_text(source, encoding="utf-8")

    def spec(self, script: str) -> JobSpec:
        """A job that states what it runs, and nothing else."""
        payload = process_payload(
            [sys.executable, str(self._folder / script)],
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        return JobSpec(script, USER, JobType.UNSPECIFIED, memory_mib=512, payload=payload)

    def runs(self, count: int, gpu_models: Sequence[str]) -> list[Run]:
        """So many runs, on the models in turn."""
        found = []
        for number in range(count):
            model = gpu_models[number % len(gpu_models)]
            self._open_only(model)
            script = self._draw.choice(list(programs()))
            predicted_s = self.medians_s(script)[model]
            found.append(Run(script, model, predicted_s, self._ran_s(script)))
        return found

    def medians_s(self, script: str) -> Mapping[str, float]:
        """The predicted median by GPU model."""
        [predicted] = self._client.predict([self.spec(script)], [V100, TURING])
        return {each.gpu_model: each.median_s for each in predicted}

    def _ran_s(self, script: str) -> float:
        """Runs a program; seconds from its start to its end, as they are learned."""
        submitted = self._client.submit(self.spec(script))
        try:
            [job] = self._client.wait([submitted.job_id], timeout_s=RUN_TIMEOUT_S)
        except BaseException:  # programs outlive the suite
            self._client.cancel(submitted.job_id)
            self._client.wait([submitted.job_id], timeout_s=END_TIMEOUT_S)
            raise
        if job.state is not JobState.SUCCEEDED:
            raise SystemExit(f"{script}: {job.state.name}: {job.message}")
        return ran_s(job)

    def _open_only(self, model: str) -> None:
        """Drains the other model's node."""
        other = next(node for each, node in NODE_OF.items() if each != model)
        if self._closed == other:
            return
        if self._closed is not None:
            self._client.undrain(self._closed)
        self._client.drain(other, "benchmark: one model at a time")
        self._closed = other


def ran_s(job: Job) -> float:
    """How long an ended job's program ran, seconds."""
    last = job.attempts[-1]
    began_s = last.run_s if last.run_s is not None else last.start_s
    assert began_s is not None
    assert last.end_s is not None
    return last.end_s - began_s


def measured(runs: int, seed: int) -> dict[str, Any]:
    """Both parts."""
    with tempfile.TemporaryDirectory(prefix="adlro-programs-") as name:
        folder = Path(name)
        with local_suite(folder, FAKE_GPUS) as client:
            bench = Bench(client, folder, seed)
            alone = bench.runs(runs, [V100])
            before = {script: bench.medians_s(script) for script in programs()}
            both = bench.runs(runs, [V100, TURING])
            after = {script: bench.medians_s(script) for script in programs()}
    return {
        "programs": {script: _figures([each for each in alone if each.script == script]) for script in programs()},
        "errors": [_part(alone, start, start + 10) for start in range(0, runs, 10)],
        "median_error": statistics.median(each.error for each in alone[GOAL_AFTER:] or alone),
        "least_error": _least_error(alone[GOAL_AFTER:] or alone),
        "errors_on_both": [_part(both, start, start + 10) for start in range(0, runs, 10)],
        "slowdown": {
            script: {"before": _slowdown(before[script]), "after": _slowdown(after[script])} for script in programs()
        },
    }


def _figures(runs: Sequence[Run]) -> dict[str, float]:
    times_s = [each.runtime_s for each in runs]
    return {
        "runs": len(runs),
        "median_s": statistics.median(times_s) if times_s else float("nan"),
        "spread": statistics.stdev(times_s) / statistics.mean(times_s) if len(times_s) > 1 else float("nan"),
    }


def _least_error(runs: Sequence[Run]) -> float:
    """The median error of each program's own median of these runs, known beforehand: the machine's noise."""
    of_script = {
        script: statistics.median(each.runtime_s for each in runs if each.script == script)
        for script in {each.script for each in runs}
    }
    return statistics.median(abs(of_script[each.script] / each.runtime_s - 1.0) for each in runs)


def _part(runs: Sequence[Run], start: int, end: int) -> dict[str, float]:
    errors = [each.error for each in runs[start:end]]
    return {"from": start + 1, "to": start + len(errors), "median": statistics.median(errors), "max": max(errors)}


def _slowdown(medians_s: Mapping[str, float]) -> float:
    return medians_s[TURING] / medians_s[V100]


def report(result: Mapping[str, Any]) -> None:
    """The tables for people."""
    print("program        runs   median s   standard deviation")
    for script, each in result["programs"].items():
        print(f"{script:<14} {each['runs']:>4} {each['median_s']:>10.2f} {each['spread']:>19.1%}")
    for title, key in (("on V100s", "errors"), ("on both models", "errors_on_both")):
        print(f"\nrelative error of the predicted median, {title}\nruns        median      max")
        for each in result[key]:
            print(f"{each['from']:>3} to {each['to']:<3} {each['median']:>8.1%} {each['max']:>8.1%}")
    print(
        "\npredicted runtime on RTX 2080 Ti / V100 (they are equally fast)\nprogram      after V100s alone   after both"
    )
    for script, each in result["slowdown"].items():
        print(f"{script:<14} {each['before']:>15.2f} {each['after']:>12.2f}")
    worst = max(abs(each["after"] - 1.0) for each in result["slowdown"].values())
    reached = result["median_error"] < GOAL_ERROR and worst < GOAL_DIFFERENCE
    print(
        f"\nmedian error after {GOAL_AFTER} runs: {result['median_error']:.1%} (goal: below {GOAL_ERROR:.0%}; "
        f"{result['least_error']:.1%} by the programs' true medians, the machine's noise); "
        f"largest difference of the models: {worst:.0%} (goal: below {GOAL_DIFFERENCE:.0%}): "
        + ("reached" if reached else "missed")
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="in each of the two parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = {"machine": machine(), "seed": arguments.seed, **measured(arguments.runs, arguments.seed)}
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        report(result)


if __name__ == "__main__":
    main()
