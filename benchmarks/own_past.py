"""What the learned policy gains by learning from a cluster's own past: `adlro learn` on the first part of a trace.

    python -m benchmarks.own_past run FOLDER --trace FILE --cluster NAME [--load 0.9] [--worlds 40] [--seed 1]
                                             [--teacher FILE] [--parts-of 512]
    python -m benchmarks.own_past whole FOLDER --trace FILE
    python -m benchmarks.own_past draw FOLDER [--jobs 9000] [--cell SEED:NUMBER]
    python -m benchmarks.own_past show FOLDER...

1. A candidate learns from the first third of the trace's jobs, as `adlro learn --jobs` does; with --teacher from the
   first third of another trace's instead, which is how a candidate comes to lose.
2. The next jobs, two ninths of the trace, judge it, as there.
3. The rest of the trace, which neither has seen, is cut into parts of consecutive jobs; each is a list of its own, and
   runs under the candidate, offered or not, under the shipped checkpoint and under the rules.

`draw` writes a small cluster, outside the range that the shipped network was trained for, as FOLDER/cluster.toml, and
jobs for it by the mix of the scenario `gangs` at load 0.9, as FOLDER/jobs.csv; with --cell the cluster, the jobs and
the load of that cell of the grid with jobs of several GPUs (benchmarks/grid.py).

`whole` also plays that rest in one piece, after a `run`: queues last for weeks then, as they did, and one replay says
nothing about chance.

Runtimes are what had ended by then tells (`--runtime group`). `show` prints Markdown: changes of means over the parts
with 95 % bootstrap intervals over the parts (paired).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.policies.dqn import SHIPPED
from adlro.hardware.cluster_files import read_cluster
from adlro.lab.candidates.document import verdict_lines
from adlro.lab.candidates.judging import SINGLE_RULES
from adlro.lab.candidates.learning import MOST_JUDGED, Plan, learn
from adlro.lab.candidates.making import Making
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.reading import ListRequest, past_of_file
from adlro.lab.compare.replaying import Rules, policy_of, replay
from adlro.lab.evaluate.resampling import change_of_means
from adlro.state.observation import Floats
from adlro.workload.capacity import scenario_on
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from adlro.workload.traces import write_paper_csv
from benchmarks.grid_cells import FILES, GANGS, draw_cells, scenario_of
from benchmarks.learned_policy import cluster_toml
from benchmarks.measuring import machine
from benchmarks.paper_claims import markdown

RULES = ("hold_gang", "drain_gang", "hold_greedy_fixed", *SINGLE_RULES)
JUDGED = 2 / 9
FIGURES = ("mean JCT", "p95 JCT", "longest wait")


def run(asked: argparse.Namespace) -> None:
    """Learns, judges, and evaluates."""
    folder: Path = asked.folder
    past = past_of_file(ListRequest(asked.trace, asked.cluster, asked.load))
    first = len(past) // 3
    judged = min(round(len(past) * JUDGED), MOST_JUDGED)
    plan = Plan(Making(asked.worlds, asked.epochs, asked.seed), judged_share=judged / (first + judged))
    begin_s = time.monotonic()
    seen = past.part(0, first + judged)
    if asked.teacher is not None:
        teacher = past_of_file(ListRequest(asked.teacher, asked.cluster, asked.load))
        seen = joined(teacher.part(0, len(teacher) // 3), past.part(first, first + judged))
        plan = Plan(plan.making, judged_share=judged / len(seen))
    _, document = learn(seen, SHIPPED, plan, folder, lambda text: print(text, flush=True))
    learned_s = time.monotonic() - begin_s
    print(*verdict_lines(document), sep="\n", flush=True)
    rest = past.part(first + judged, len(past))
    parts = [rest.part(at, at + asked.parts_of) for at in range(0, len(rest) - asked.parts_of + 1, asked.parts_of)]
    policies = {"candidate": ("dqn", folder / "candidate.onnx"), "shipped": ("dqn", SHIPPED)} | {
        rule: (rule, None) for rule in RULES
    }
    found = {}
    for name, (kind, checkpoint) in policies.items():
        if name == "hold_greedy_fixed" and past.gang_share:
            continue  # starts no job of several GPUs before its turn: no rival there
        found[name] = np.array([_figures(part, kind, checkpoint) for part in parts])
        print(f"{name}: {found[name][:, 0].mean():.4g} s", flush=True)
    np.savez(folder / "rest.npz", **found)  # type: ignore[arg-type]
    about = {
        **machine(),
        "trace": asked.trace.name,
        "teacher": asked.teacher.name if asked.teacher else "",
        "cluster": asked.cluster,
        "load": asked.load,
        "seed": asked.seed,
        "parts_of": asked.parts_of,
        "learned_s": learned_s,
    }
    (folder / "about.json").write_text(json.dumps({**about, "verdict": document}))


SMALL_CLUSTER = """\
name = "six"

[[nodes]]
name = "volta-0"
gpu_model = "v100_sxm2"
gpus = 4
gpu_memory_mib = 16384
cpu_cores = 64
memory_mib = 262144

[[nodes]]
name = "radeon-0"
gpu_model = "radeon_vii"
gpus = 2
gpu_memory_mib = 16384
cpu_cores = 32
memory_mib = 131072
"""
DRAWN_SEED = 41


def draw(folder: Path, count: int) -> None:
    """Writes a small cluster and jobs for it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.toml").write_text(SMALL_CLUSTER)
    cluster = read_cluster(folder / "cluster.toml")
    scenario = load_scenario("gangs")
    fits = tuple(size for size in scenario.gang_sizes if size.gpu_count <= 4)
    whole = sum(size.share for size in fits)
    sizes = tuple(dataclasses.replace(size, share=size.share / whole) for size in fits)
    scenario = scenario_on(dataclasses.replace(scenario, gang_sizes=sizes), cluster)
    rng = np.random.default_rng(DRAWN_SEED)
    write_paper_csv(folder / "jobs.csv", draw_jobs(scenario, load=0.9, rng=rng, count=count))


def draw_cell(folder: Path, count: int, seed: int, number: int) -> None:
    """Writes a cell's cluster, and one list of its jobs."""
    cell = draw_cells(number + 1, seed, GANGS)[number]
    scenario, _ = scenario_of(cell, seed)
    file = FILES / f"{cell.cluster}.toml"
    if cell.backlog or not file.exists():
        raise SystemExit(f"{cell.text}: its jobs come at once, or its cluster is no file")
    folder.mkdir(parents=True, exist_ok=True)
    # The cluster as the grid has it: with more cores and memory than its file says, and the speeds of that.
    speeds = file.read_text().partition("[[speeds]]")
    (folder / "cluster.toml").write_text(cluster_toml(scenario.cluster) + "\n" + "".join(speeds[1:]))
    rng = np.random.default_rng(DRAWN_SEED)
    write_paper_csv(folder / "jobs.csv", draw_jobs(scenario, load=cell.load, rng=rng, count=count))
    print(cell.text)


def play_whole(folder: Path, trace: Path) -> None:
    """Plays the rest of the trace in one piece, under the candidate of a `run`, the shipped checkpoint and the rule."""
    about = json.loads((folder / "about.json").read_text())
    past = past_of_file(ListRequest(trace, about["cluster"], about["load"]))
    rest = past.part(len(past) // 3 + min(round(len(past) * JUDGED), MOST_JUDGED), len(past))
    found = {}
    for name, kind, checkpoint in (
        ("candidate", "dqn", folder / "candidate.onnx"),
        ("shipped", "dqn", SHIPPED),
        ("hold_gang", "hold_gang", None),
    ):
        found[name] = _figures(rest, kind, checkpoint)
        print(f"{name}: {len(rest)} jobs in one piece: {found[name][0]:.4g} s", flush=True)
    (folder / "whole.json").write_text(json.dumps({"jobs": len(rest), "figures": found}))


def joined(one: Past, other: Past) -> Past:
    """Two pasts of one cluster, one after the other."""
    shift_s = one.jobs.submit_s[0, -1] + 1.0
    fields: dict[str, Any] = {}
    for name, mine, others in zip(one.jobs._fields, one.jobs, other.jobs, strict=True):
        if name == "job_count":
            fields[name] = np.add(mine, others)
        else:
            fields[name] = np.concatenate([mine, np.add(others, shift_s) if name == "submit_s" else others], axis=1)
    measured = np.concatenate([one.measured, other.measured])
    return Past(one.cluster, type(one.jobs)(**fields), measured, other.sources, other.rules, other.notes)


def _figures(part: Past, kind: str, checkpoint: Path | None) -> tuple[float, float, float, float]:
    found = replay(part.cluster, part.jobs, policy_of(kind, Rules(checkpoint=checkpoint)), Rules(), part.pairs)
    jct_s, wait_s = found.end_s - part.jobs.submit_s[0], found.start_s - part.jobs.submit_s[0]
    return float(jct_s.mean()), float(np.percentile(jct_s, 95)), float(wait_s.max()), found.fallback_ratio


def show(folders: Sequence[Path]) -> str:
    """The table."""
    rows = []
    for folder in folders:
        about = json.loads((folder / "about.json").read_text())
        verdict = about["verdict"]
        with np.load(folder / "rest.npz") as file:
            found = {name: file[name] for name in file.files}
        ours = found.pop("candidate")
        taught = f", taught by {about['teacher']}" if about["teacher"] else ""
        for name, theirs in found.items():
            rows.append(
                [
                    f"{about['trace']}{taught}, {about['cluster']} {about['load']}, seed {about['seed']}",
                    "offered" if verdict["offered"] else "refused",
                    str(len(ours)),
                    f"{ours[:, 0].mean():.4g}",
                    name,
                    *(_change(ours[:, column], theirs[:, column]) for column in range(len(FIGURES))),
                    f"{100.0 * np.nan_to_num(ours[:, 3]).mean():.2f}",
                    _whole(folder, name),
                ]
            )
    heads = ["past", "verdict", "parts", "mean JCT, s", "against", *FIGURES, "fallback, %", "in one piece, %"]
    return markdown(heads, rows)


def _whole(folder: Path, against: str) -> str:
    """The change of the mean completion time with all of the rest in one piece; empty: not played."""
    if not (folder / "whole.json").exists():
        return ""
    found = json.loads((folder / "whole.json").read_text())["figures"]
    return f"{100.0 * (found['candidate'][0] / found[against][0] - 1.0):+.1f}" if against in found else ""


def _change(ours: Floats, theirs: Floats) -> str:
    change, low, high = (100.0 * each for each in change_of_means(ours, theirs))
    return f"{change:+.1f} % ({low:+.1f} .. {high:+.1f})"


def seed_and_number(text: str) -> tuple[int, int]:
    """The cell's seed and number. Raises ValueError, which argparse tells."""
    seed, number = text.split(":")
    return int(seed), int(number)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("folder", type=Path)
    runs.add_argument("--trace", type=Path, required=True)
    runs.add_argument("--cluster", required=True)
    runs.add_argument("--load", type=float, default=0.9)
    runs.add_argument("--teacher", type=Path)
    runs.add_argument("--worlds", type=int, default=Making.worlds)
    runs.add_argument("--epochs", type=int, default=Making.epochs)
    runs.add_argument("--seed", type=int, default=Making.seed)
    runs.add_argument("--parts-of", type=int, default=512)
    draws = commands.add_parser("draw")
    draws.add_argument("folder", type=Path)
    draws.add_argument("--jobs", type=int, default=9000)
    draws.add_argument("--cell", type=seed_and_number, metavar="SEED:NUMBER")
    wholes = commands.add_parser("whole")
    wholes.add_argument("folder", type=Path)
    wholes.add_argument("--trace", type=Path, required=True)
    shows = commands.add_parser("show")
    shows.add_argument("folder", type=Path, nargs="+")
    asked = parser.parse_args(arguments)
    if asked.what == "show":
        print(show(asked.folder))
    elif asked.what == "draw":
        if asked.cell is None:
            draw(asked.folder, asked.jobs)
        else:
            draw_cell(asked.folder, asked.jobs, *asked.cell)
    elif asked.what == "whole":
        play_whole(asked.folder, asked.trace)
    else:
        run(asked)


if __name__ == "__main__":
    main()
