"""The learned policy where jobs have several GPUs, against `hold_gang` and other rules, on the same job lists.

    python -m benchmarks.learned_gangs run FOLDER [--lists N] [--cells NAME,...] [--checkpoint FILE] [--rules R,...]
                                          [--seed N]
    python -m benchmarks.learned_gangs show FOLDER [--rules R,...] [--policy NAME]

A cell is SCENARIO:LOAD or SCENARIO:LOAD:RUNTIME, such as gangs:0.9:noise:0.5. The load 0 stands for 1,000 jobs that all
come at once, and preemptive@0.25 for that scenario with a quarter of the jobs that may be stopped. `run` evaluates each
policy in each cell that the folder does not hold yet. Lists are those of `adlro evaluate --seed 21`, which neither the
training nor the choice of margins and prices draws (that had --seed 31); larger clusters have fewer lists. All policies
have the same limit on waits. `--rules srtf` compares with the rule that makes the stops in `preemptive` cells; settings
of `hold_gang` that benchmarks/gangs.py has, such as hold_gang_doubtful, are rules, too.

`show` prints Markdown for the learned policy, or one of the rules: changes of means over lists with 95 % bootstrap
intervals over the lists (paired), and which shares of its decisions were made by the limit on waits, and by the
fallback.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adlro.decide.policies import Policy
from adlro.decide.policies.bounded_wait import DEFAULT_RATIO
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_gang import HoldGang
from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.measure import METRICS
from adlro.lab.evaluate.resampling import change_of_means
from adlro.lab.evaluate.tally import FALLBACKS, OVERDUE
from adlro.state.observation import Floats
from adlro.workload.scenario import Scenario, load_scenario
from benchmarks.gangs import KERNEL
from benchmarks.measuring import machine
from benchmarks.paper_claims import markdown

SEED, LISTS = 21, 400
FEWER = {"gangs_64": 40, "gangs_philly_64": 40, "preemptive_64": 40, "gangs_256": 8}
"""Lists of larger clusters; of 64 GPUs 40 tell a change of 2 % apart from none."""
AT_ONCE = 1000
BASE = "hold_gang"
CELLS = (
    *(f"gangs:{load}" for load in (0.3, 0.6, 0.9, 1.1)),
    *(f"gangs_philly:{load}" for load in (0.6, 0.9, 1.1)),
    *(f"gangs_heavy:{load}" for load in (0.6, 0.9)),
    *(f"gangs:{load}:{runtime}" for runtime in ("noise:0.5", "group", "type", "none") for load in (0.6, 0.9, 1.1)),
    "gangs_philly:0.9:type",
    *("gangs_64:0.6", "gangs_64:0.9", "gangs_64:1.1", "gangs_philly_64:1.1"),
    *(f"gangs_256:{load}" for load in (0.6, 0.9, 1.1)),
    *(f"preemptive:{load}" for load in (0.6, 0.9, 1.1)),
    *(f"preemptive:0.9:{runtime}" for runtime in ("noise:0.5", "group", "type", "none")),
    *(f"preemptive@{share}:0.9" for share in (0.1, 0.25, 0.5, 0.75)),
    *("preemptive_240s:0.9", "preemptive_600s:0.9", "preemptive_64:0.9"),
    *("gangs:0", "gangs_philly:0", "gangs_heavy:0", "gangs:0:noise:0.5", "gangs:0:group", "gangs:0:type", "gangs_64:0"),
)
RESULTS = (("mean_jct_s", "mean JCT"), ("p95_jct_s", "p95 JCT"), ("max_wait_s", "longest wait"))


def run_cell(
    cell: str, folder: Path, lists: int, rules: Sequence[str], checkpoint: Path | None, seed: int = SEED
) -> None:
    """Evaluates what the folder does not hold yet."""
    named, load, *runtime = cell.split(":")
    scenario, _, share = named.partition("@")
    request = {"scenarios": (scenario,)} | ({"runtime": ":".join(runtime)} if runtime else {})
    request |= {"loads": (float(load),)} if float(load) else {"loads": (1.0,), "jobs": AT_ONCE}  # type: ignore[dict-item]
    for name in (BASE, "dqn", *rules):
        path = folder / f"{cell.replace(':', '_')}.{name}.npz"
        if path.exists():
            continue
        own: dict[str, Policy] = {}
        if name == "dqn":
            own["own_dqn"] = Dqn(checkpoint)
        elif name in KERNEL and name != BASE:
            own[f"own_{name}"] = HoldGang(KERNEL[name])
        chosen = {"own": own} if own else {"policies": (name,)}
        count, begin_s = min(lists, FEWER.get(scenario, lists)), time.process_time()
        asked = Request(**chosen, **request, lists=count, seed=seed, wait_ratio=DEFAULT_RATIO)  # type: ignore[arg-type]
        cases, notes = build_cases(asked)
        if not float(load):
            cases = [dataclasses.replace(case, scenario=all_at_once(case.scenario)) for case in cases]
        if share:
            cases = [
                dataclasses.replace(case, scenario=dataclasses.replace(case.scenario, preemptible_share=float(share)))
                for case in cases
            ]
        found = evaluate(asked, processes=1, time_decisions=False, prepared=(cases, notes)).figures[
            f"own_{name}" if own else name, 0
        ]
        np.savez(path, metrics=found.metrics, basis_counts=found.basis_counts)
        mean_s = float(found.metrics[:, METRICS.index("mean_jct_s")].mean())
        print(f"{cell}: {name}: {mean_s:.2f} s ({time.process_time() - begin_s:.0f} s of CPU)", flush=True)


def all_at_once(scenario: Scenario) -> Scenario:
    """A scenario whose jobs all come at its beginning."""
    return dataclasses.replace(scenario, arrivals=load_scenario("batch").arrivals)


def show(folder: Path, rules: Sequence[str] = (), policy: str = "dqn") -> str:
    """The table.

    Args:
        rules: with these alone it compares; empty: with all that there are.
        policy: whose changes are shown.
    """
    rows = []
    about = json.loads((folder / "machine.json").read_text())
    for cell in [*CELLS, *(each for each in about["cells"] if each not in CELLS)]:
        start = cell.replace(":", "_")
        if not (folder / f"{start}.{policy}.npz").exists():
            continue
        with np.load(folder / f"{start}.{policy}.npz") as found:
            ours, counts = found["metrics"], found["basis_counts"]
        for path in sorted(folder.glob(f"{start}.*.npz"), key=lambda path: (f".{BASE}." not in path.name, path.name)):
            rule = path.stem.removeprefix(f"{start}.")
            of_another_load = "." in rule  # gangs_0.6.dqn begins as gangs_0 does
            if rule in (policy, "dqn") or of_another_load or (rules and rule not in rules):
                continue
            with np.load(path) as found:
                theirs = found["metrics"]
            decisions = max(int(counts.sum()), 1)
            rows.append(
                [
                    _title(cell),
                    str(len(ours)),
                    f"{_of(ours, 'mean_jct_s').mean():.4g}",
                    rule,
                    *(_change(_of(ours, metric), _of(theirs, metric)) for metric, _ in RESULTS),
                    f"{100.0 * counts[:, [OVERDUE]].sum() / decisions:.2f}",
                    f"{100.0 * counts[:, FALLBACKS].sum() / decisions:.2f}",
                ]
            )
    heads = ["cell", "lists", "mean JCT, s", "against", *(head for _, head in RESULTS), "overdue, %", "fallback, %"]
    return markdown(heads, rows)


def _title(cell: str) -> str:
    """A cell for people."""
    scenario, load, *runtime = cell.split(":")
    return " ".join([scenario, load if float(load) else f"{AT_ONCE:,} at once", ":".join(runtime)]).strip()


def _of(metrics: Floats, metric: str) -> Floats:
    column: Floats = metrics[:, METRICS.index(metric)]
    return column


def _change(ours: Floats, theirs: Floats) -> str:
    change, low, high = (100.0 * each for each in change_of_means(ours, theirs))
    return f"{change:+.1f} % ({low:+.1f} .. {high:+.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lists", type=int, default=LISTS)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rules", default="", help="further policies to compare with; of show: only these")
    parser.add_argument("--policy", default="dqn", help="of show: whose changes")
    asked = parser.parse_args(arguments)
    rules = [name for name in asked.rules.split(",") if name]
    if asked.what == "show":
        print(show(asked.folder, rules, asked.policy))
        return
    cells = asked.cells.split(",")
    for cell in cells:
        named = re.fullmatch(r"(\w+)(@0?\.\d+)?:\d+(\.\d+)?(:.+)?", cell)
        if named is None:
            parser.error(
                f"--cells: '{cell}' is not SCENARIO:LOAD, SCENARIO@SHARE:LOAD or SCENARIO:LOAD:RUNTIME, "
                "such as gangs:0.9:group"
            )
        if named[2] and load_scenario(named[1]).restart_s is None:
            parser.error(f"--cells: in {named[1]} no job may be stopped; leave out {named[2]}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    (asked.folder / "machine.json").write_text(json.dumps({**machine(), "cells": cells, "seed": asked.seed}))
    for cell in cells:
        run_cell(cell, asked.folder, asked.lists, rules, asked.checkpoint, asked.seed)


if __name__ == "__main__":
    main()
