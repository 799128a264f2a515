"""Makes every table of docs/paper.md and docs/evaluation.md.

    python -m benchmarks.paper_figures run DIR      # the runs, one after the other, into DIR; those there are kept
    python -m benchmarks.paper_figures show DIR     # every table as Markdown
    python -m benchmarks.paper_figures write DIR    # the same, put into the documents between their marks
    python -m benchmarks.paper_figures check        # the arithmetic of the paper's Table 1 alone; needs no run

A run is `adlro evaluate` with the options of `RUNS`; beside its JSON stands how long it took. `bound.json` is the bound
on throughput. In the documents a table stands between `<!-- figures: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies import POLICIES
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.measure import METRICS, figures_of
from adlro.lab.evaluate.request import Request
from adlro.lab.evaluate.resampling import interval, resampled_means
from adlro.sim.batch import simulate
from adlro.state.observation import Floats
from benchmarks import evaluation_tables, paper_claims, paper_tables
from benchmarks.evaluation_runs import BOUND, Runs
from benchmarks.paper_tables import BOUND_CASES, BOUND_NAME, BOUND_POLICIES
from benchmarks.throughput_bound import makespan_bound_s

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "docs" / "paper.md", ROOT / "docs" / "evaluation.md")

_ALL = "--seeds 100 --policies all,-hungarian"
_SOME = "--seeds 100 --policies fcfs,sjf,mct,min_min,sufferage,hold_greedy,hold_greedy_fixed"
_LOADS = "--load 0.6,0.9,1.1"
RUNS = {
    "paper_256": f"--scenario paper {_LOADS} --jobs 256 {_ALL}",
    "paper_64": f"--scenario paper --load 1.1 --jobs 64 {_ALL}",
    "roomy_256": f"--scenario paper_roomy {_LOADS} --jobs 256 {_ALL}",
    "batch_256": f"--scenario batch --jobs 256 {_ALL}",
    "batch_64": f"--scenario batch --jobs 64 {_ALL}",
    "noise_256": f"--scenario paper {_LOADS} --jobs 256 --runtime noise:0.5 {_SOME}",
    "group_256": f"--scenario paper {_LOADS} --jobs 256 --runtime group {_SOME}",
    "type_256": f"--scenario paper {_LOADS} --jobs 256 --runtime type {_SOME}",
}
"""Options of `adlro evaluate`, by the name of the file."""

TABLES = paper_tables.TABLES | evaluation_tables.TABLES

_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def run_all(folder: Path) -> None:
    """Makes what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in RUNS.items():
        out = folder / f"{name}.json"
        if out.exists():
            continue
        load, began_s = os.getloadavg()[0], time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "adlro.lab.evaluate", *options.split(), "--json", str(out)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = {
            "wall_s": time.monotonic() - began_s,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "system_load_before": load,
        }
        (folder / f"{name}.took.json").write_text(json.dumps(took) + "\n")
        print(f"{name}: {took['wall_s']:.0f} s", file=sys.stderr, flush=True)
    if not (folder / BOUND).exists():
        cells = [bound_cell(jobs, load) for jobs, load in BOUND_CASES]
        (folder / BOUND).write_text(json.dumps(cells, indent=1) + "\n")


def bound_cell(jobs: int, load: float, lists: int = 100, seed: int = 0) -> dict[str, Any]:
    """The bound on throughput beside policies and the paper's baselines, over the lists that `adlro evaluate` draws.

    Both averages of a gain over lists are given: `adlro evaluate` has the ratio of the means; in the mean of the ratios
    a list on which the baseline does badly weighs more.
    """
    request = Request(policies=("fcfs",), scenarios=("paper",), loads=(load,), jobs=jobs, lists=lists, seed=seed)
    (case,), _ = build_cases(request)
    arrays = case.arrays(0, lists)
    per_h = {BOUND_NAME: np.array([3600.0 * jobs / makespan_bound_s(case.cluster, arrays, n) for n in range(lists)])}
    for name in (*BOUND_POLICIES, *(claim.baseline for claim in paper_claims.CLAIMS)):
        outcome = simulate(case.cluster, arrays, POLICIES[name].for_load(load).act)
        figures = figures_of(case.cluster, outcome, policy=name)
        per_h[name] = figures.metrics[:, METRICS.index("throughput_jobs_per_h")]
    cell: dict[str, Any] = {"jobs": jobs, "load": load, "lists": lists, "seed": seed}
    for claim in paper_claims.CLAIMS:
        theirs = per_h[claim.baseline]
        found = cell[claim.baseline] = {}
        for name in (BOUND_NAME, *BOUND_POLICIES):
            values = np.stack([per_h[name], theirs, per_h[name] / theirs], axis=1)
            means = np.concatenate([values.mean(axis=0, keepdims=True), resampled_means(values, seed)])
            found[name] = {
                "ratio of means": _with_interval(means[:, 0] / means[:, 1]),
                "mean of ratios": _with_interval(means[:, 2]),
            }
    return cell


def _with_interval(values: Floats) -> list[float]:
    """A figure, and its interval from its values in resamples."""
    return [float(values[0]), *interval(values[1:])]


def write(folder: Path) -> None:
    """Puts the tables into the documents."""
    runs = Runs(folder)
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(), {name: make(runs) for name, make in TABLES.items()}))


def filled(text: str, tables: dict[str, str]) -> str:
    """A document with each marked table renewed; a mark without a table is an error."""
    return _MARKED.sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", text)


def command() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    for name in ("run", "show", "write"):
        commands.add_parser(name).add_argument("folder", type=Path)
    return parser


def main() -> None:
    """Runs, shows or writes."""
    arguments = command().parse_args()
    if arguments.command == "check":
        print(f"{paper_claims.little_table()}\n\n{paper_claims.text_table()}")
    elif arguments.command == "run":
        run_all(arguments.folder)
    elif arguments.command == "write":
        write(arguments.folder)
    else:
        runs = Runs(arguments.folder)
        for name, make in TABLES.items():
            print(f"{name}\n\n{make(runs)}\n")


if __name__ == "__main__":
    main()
