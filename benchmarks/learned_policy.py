"""The tables of docs/learned_policy.md: the learned policy against heuristics, on the same job lists.

    python -m benchmarks.learned_policy run FOLDER [--lists 400] [--only main,guess,...] [--checkpoint NAME=FILE ...]
                                                   [--without POLICY,...] [--philly TRACE] [--swf TRACE]
                                                   [--by-priority FILE]
    python -m benchmarks.learned_policy show FOLDER

(as a module: by its path it does not find the modules beside it)

`run` evaluates each policy in each cell that the folder does not hold yet, one file each, so an interrupted run goes on
where it ended. Lists are those of `adlro evaluate --seed 11`: neither training nor validation draws them. The shipped
checkpoint is the policy `dqn`; `--checkpoint seed2=FILE` adds another training's. Traces are not part of the project:
their cells are run where a file is named. Nor is a checkpoint that was trained with jobs counting by their priority
(`adlro train OUT --by-priority`): `--by-priority OUT/best.onnx` compares it with `wspt`.

`show` prints Markdown: first what breaks a limit, then tables, in each the mean, its tails and throughput as ratios of
means over lists with 95 % bootstrap intervals over the lists (paired), and the shares of the learned policy's decisions
that the limit on waits changed and that the fallback made. All policies have the same limit on waits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adlro.decide.planes.choice import best_of, less_margins
from adlro.decide.planes.ranges import ranges_of
from adlro.decide.policies import Policy
from adlro.decide.policies.base import Judgement
from adlro.decide.policies.bounded_wait import DEFAULT_RATIO
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_greedy import HoldGreedy
from adlro.lab.evaluate import Request, evaluate
from adlro.records.cluster import Cluster
from adlro.state.observation import Floats, Observation
from adlro.workload.scenario import load_scenario
from benchmarks.learned_tables import show
from benchmarks.measuring import machine
from benchmarks.retuning import retuned

SEED = 11
LISTS = 400
FEWER_LISTS = 100
BY_PRIORITY = "dqn_by_priority"
RETUNED = "hold_greedy_retuned"


class SideBySide(Dqn):
    """`dqn` with all clusters of a batch in one call of the network: the same but for the last bits of floats.

    Where any figure of a batch is outside the range of the training, `dqn` itself decides, row by row.
    """

    def weigh(self, observation: Observation) -> Judgement:
        """As `Dqn`."""
        model, _, _, ranges = self._now_loaded()
        planes = self._filler(model).fill(observation)
        here = ranges_of([planes]).to_json()
        known = {} if ranges is None else ranges.to_json()
        inside = all(
            known[table][name][0] <= low and high <= known[table][name][1]
            for table, of_table in here.items()
            for name, (low, high) in of_table.items()
        )
        if not inside or not len(planes.pairs):
            return super().weigh(observation)
        q_pairs, q_hold = model.q(planes)
        margins = model.metadata.margins
        best = best_of(planes, q_pairs, q_hold, margins)
        values = less_margins(planes, q_pairs.astype(np.float64), margins)
        scores = np.full(len(observation.table.job), -np.inf)
        rows = planes.pair_cluster
        highest = np.full(len(best), -np.inf)
        np.maximum.at(highest, rows, values)
        starts = best[best >= 0]
        values[starts] = np.nextafter(highest[rows[starts]], np.inf)
        there = best[rows] >= 0
        scores[planes.pair_row[there]] = values[there]
        return Judgement(scores)


HEURISTICS = ("fcfs", "static", "min_min", "sjf", "sufferage", "mct", "heft", "hold_greedy")


@dataclass(frozen=True, slots=True)
class Cell:
    """What is evaluated on the same lists.

    Attributes:
        group: of the table.
        name: of the row.
        request: fields of `Request`.
        policies: registered ones; `dqn` is always among them.
        retune: `hold_greedy` is tuned for what is known of runtimes there.
        seeds: other trainings are evaluated too.
        by_priority: and the one with jobs counting by their priority.
        lists: at most: the first of them.
    """

    group: str
    name: str
    request: dict[str, object]
    policies: tuple[str, ...] = ("hold_greedy_fixed",)
    retune: bool = False
    seeds: bool = False
    by_priority: bool = False
    lists: int = LISTS


def cells(philly: Path | None, swf: Path | None, clusters: Path) -> Iterator[Cell]:
    """All of them."""
    baselines = ("hold_greedy_fixed", "fcfs", "static")
    for name in ("paper", "paper_roomy"):
        for load in (0.3, 0.6, 0.9, 1.1):
            yield Cell("main", f"{name} {load}", _drawn(name, load), baselines, seeds=True)
    yield Cell("short", "paper 1.1, 64 jobs", _drawn("paper", 1.1, jobs=64), (*baselines, "heft", "sufferage"))
    for runtime in ("noise:0.5", "group", "type", "none"):
        for load in (0.9, 1.1):
            cell = f"paper {load} {runtime}"
            yield Cell("guess", cell, _drawn("paper", load, runtime=runtime), retune=runtime != "none", seeds=True)
    for name in ("paper", "paper_roomy"):
        for load in (0.6, 0.9, 1.1):
            cell = f"{name} {load}"
            policies = ("hold_greedy_fixed", "dqn_lookahead")
            yield Cell("lookahead", cell, _drawn(name, load), policies, lists=FEWER_LISTS)
    for load in (0.9, 1.1):
        yield Cell("priority", f"paper {load}", _drawn("paper", load), ("hold_greedy_fixed", "wspt"), by_priority=True)
    everyone = ("hold_greedy_fixed", *HEURISTICS)
    for name, load in (("gavel", 0.6), ("gavel", 0.9), ("surge", 0.9), ("diurnal", 0.9), ("heavy_tails", 0.9)):
        yield Cell("elsewhere", f"{name} {load}", _drawn(name, load), everyone, lists=FEWER_LISTS)
    yield Cell("elsewhere", "batch", _drawn("batch", 1.0), everyone, lists=FEWER_LISTS)
    for name in ("four_times", "no_turing", "no_radeon"):
        yield Cell(
            "elsewhere",
            f"paper {name} 0.9",
            _drawn("paper", 0.9, cluster=str(clusters / f"{name}.toml")),
            everyone,
            lists=FEWER_LISTS,
        )
    for name, trace, kind in (("Philly", philly, "philly"), ("SWF", swf, "swf")):
        if trace is not None:
            request = {
                "scenarios": ("trace",),
                "trace": str(trace),
                "trace_format": kind,
                "multi_gpu": "one",  # as published: the policy was trained for jobs of one GPU
                "loads": (0.9,),
                "jobs": 256,
            }
            yield Cell("elsewhere", f"{name} 0.9", request, everyone, lists=FEWER_LISTS)


def _drawn(name: str, load: float, **others: object) -> dict[str, object]:
    return {"scenarios": (name,), "loads": (load,), **others}


def write_clusters(folder: Path) -> None:
    """Variants of the paper's cluster: 64 GPUs, and one GPU model missing."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = load_scenario("paper").cluster.nodes
    four = [dataclasses.replace(node, node_id=f"{node.node_id}-{i}") for node in nodes for i in range(4)]
    for name, chosen in (
        ("four_times", four),
        ("no_turing", [node for node in nodes if node.gpus[0].gpu_model != "rtx_2080_ti"]),
        ("no_radeon", [node for node in nodes if node.gpus[0].gpu_model != "radeon_vii"]),
    ):
        (folder / f"{name}.toml").write_text(cluster_toml(Cluster(name, tuple(chosen))))


def cluster_toml(cluster: Cluster) -> str:
    """A cluster file without speeds."""
    parts = [f'name = "{cluster.name}"\n']
    parts += [
        f'[[nodes]]\nname = "{node.node_id}"\ngpu_model = "{node.gpus[0].gpu_model}"\ngpus = {len(node.gpus)}\n'
        f"gpu_memory_mib = {node.gpus[0].memory_mib}\ncpu_cores = {node.cpu_cores}\nmemory_mib = {node.memory_mib}\n"
        for node in cluster.nodes
    ]
    return "\n".join(parts)


def run_cell(cell: Cell, folder: Path, lists: int, checkpoints: dict[str, Path], without: Sequence[str]) -> None:
    """Evaluates what the folder does not hold yet."""
    own: dict[str, Policy] = {"dqn": SideBySide()}
    if cell.retune and RETUNED not in without:
        settings = retuned(str(cell.request["scenarios"][0]), cell.request["loads"][0], str(cell.request["runtime"]))  # type: ignore[index]
        own[RETUNED] = HoldGreedy(settings=settings)
    own |= {
        name: SideBySide(path)
        for name, path in checkpoints.items()
        if (cell.by_priority if name == BY_PRIORITY else cell.seeds)
    }
    for name in dict.fromkeys(("hold_greedy_fixed", "dqn", *cell.policies, *own)):
        path = folder / f"{cell.group}.{cell.name}.{name}.npz".replace(" ", "_").replace(":", "")
        if path.exists() or name in without:
            continue
        begin_s = time.process_time()
        # An evaluation's own policies have names that no registered one has.
        chosen = {"own": {f"own_{name}": own[name]}} if name in own else {"policies": (name,)}
        count = min(lists, cell.lists)
        request = Request(**chosen, **cell.request, lists=count, seed=SEED, wait_ratio=DEFAULT_RATIO)  # type: ignore[arg-type]
        found = evaluate(request, processes=1, time_decisions=False)
        figures = found.figures[f"own_{name}" if name in own else name, 0]
        np.savez(
            path,
            metrics=figures.metrics,
            stuck=figures.stuck,
            basis_counts=figures.basis_counts,
            about=json.dumps(
                {
                    "group": cell.group,
                    "cell": cell.name,
                    "policy": name,
                    "lists": count,
                    "seed": SEED,
                    "wait_ratio": DEFAULT_RATIO,
                }
            ),
        )
        seconds = time.process_time() - begin_s
        print(f"{cell.name}: {name}: {_mean_jct_s(figures.metrics):.2f} s ({seconds:.0f} s of CPU)", flush=True)


def _mean_jct_s(metrics: Floats) -> float:
    return float(metrics[:, 0].mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lists", type=int, default=LISTS)
    parser.add_argument("--only", default="main,short,guess,lookahead,priority,elsewhere", help="groups of cells")
    parser.add_argument("--checkpoint", action="append", default=[], help="NAME=FILE")
    parser.add_argument("--without", default="", help="policies that are left out, as for a later run")
    parser.add_argument("--by-priority", type=Path, help="a checkpoint that was trained so")
    parser.add_argument("--philly", type=Path)
    parser.add_argument("--swf", type=Path)
    asked = parser.parse_args(arguments)
    if asked.what == "show":
        print(show(asked.folder))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    write_clusters(asked.folder / "clusters")
    checkpoints = {name: Path(path) for name, path in (each.split("=", 1) for each in asked.checkpoint)}
    if asked.by_priority is not None:
        checkpoints[BY_PRIORITY] = asked.by_priority
    (asked.folder / "machine.json").write_text(json.dumps(machine()))
    for cell in cells(asked.philly, asked.swf, asked.folder / "clusters"):
        if cell.group in asked.only.split(","):
            run_cell(cell, asked.folder, asked.lists, checkpoints, asked.without.split(","))


if __name__ == "__main__":
    main()
