"""The default policies beside the best single rule of each cell, over a grid of clusters, jobs, arrivals and runtimes.

    python -m benchmarks.grid run FOLDER [--cells 200] [--lists 40] [--seed 13] [--policies hold_greedy_fixed,dqn]
                                         [--gangs [--learned]]
    python -m benchmarks.grid show FOLDER [--all]

The cells are drawn by benchmarks/grid_cells.py; with `--gangs` jobs have one or several GPUs. The best single rule
of a cell is chosen on lists of its own (its mean completion time over `--choose` lists); it and the policies then run
on the same `--lists` other lists. `show` prints for each policy the ratio of mean completion times to that rule's, less
1, as means over the cells of a kind, and with its 95 % bootstrap interval over the lists for cells where that lies
wholly above 1 % (with `--all` for each); p95, longest wait and throughput in the same way; and, for jobs of one GPU,
how much GPU time stood *idle beside a backlog*: while a waiting job fitted whose expected run there would have ended
before the queue was expected to drain (the planned start of the last waiting job, each planned in the order of
submission on the GPU where it is done first). Finished cells are kept: an interrupted run goes on.

The policy `advised`, with `--gangs`, is an owner who follows what `adlro learn` says of single rules, and promotes no
candidate: the best rule where it is better than `dqn` for certain on eight lists of its own, and `dqn` elsewhere.

With `--learned` no runtimes are known: a decompose learns them while each list runs, as in a suite that has just been
started (benchmarks/grid_learned.py). That holds for the rules as well. A list takes seconds: ask for few.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.hold_gang import HoldGang
from adlro.lab.candidates.judging import LEAST_PARTS, SINGLE_RULES
from adlro.lab.evaluate.measure import METRICS, figures_of
from adlro.lab.evaluate.own_decompose import OwnDecompose
from adlro.lab.evaluate.resampling import change_of_means
from adlro.lab.evaluate.tally import FALLBACKS, OVERDUE, Tally
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.candidate_table import gpus_of_job
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats, Ints, Observation
from benchmarks.gangs import KERNEL
from benchmarks.grid_cells import GANGS, GANGS_LEARNED, LEARNED_RUNTIME, ONE_GPU, Cell, Kinds, draw_cells, lists_of
from benchmarks.grid_learned import simulate_list

RULES = ("fcfs", "fcfs_fastest", "sjf", "easy_backfill", "mct", "min_min", "max_min", "sufferage", "heft", "wspt")
"""Of which the best is chosen: the single rules, without tuned settings."""
GANG_RULES = (*SINGLE_RULES, "hold_gang", "drain_gang")
"""The same with jobs of several GPUs: those of which `adlro learn` chooses."""
CHOOSE_FROM, ADVISE_FROM = 1_000_000, 2_000_000
"""Number of the first list on which rules are chosen, and on which they are compared with `dqn` for `advised`."""
ADVISED, LEARNED = "advised", "dqn"
LIMIT = 0.01


@dataclass(frozen=True, slots=True)
class Played:
    """What came of some lists under a policy: each (lists,).

    Attributes:
        mean_jct_s, p95_jct_s, longest_wait_s, jobs_per_h: of each list.
        idle_beside_backlog_s: GPU time that was idle beside a backlog.
        gpu_s: GPU time from the first submission to the last end.
        decisions: of each list.
        overdue, fallback: of them, those that the wait limit changed and those that the policy did not make.
    """

    mean_jct_s: Floats
    p95_jct_s: Floats
    longest_wait_s: Floats
    jobs_per_h: Floats
    idle_beside_backlog_s: Floats
    gpu_s: Floats
    decisions: Ints
    overdue: Ints
    fallback: Ints


def policy_of(name: str) -> Policy:
    """A policy, or a setting of `hold_gang` that benchmarks/gangs.py has."""
    return HoldGang(KERNEL[name]) if name in KERNEL else POLICIES[name]()


def play(cluster: Cluster, jobs: JobArrays, policy: Policy) -> Played:
    """Runs lists to their end."""
    lists = len(jobs.job_count)
    simulator, tally = BatchSimulator(cluster, jobs), Tally(policy, lists)
    beside_s, idle, since_s = np.zeros(lists), np.zeros(lists), np.zeros(lists)
    while len(active := simulator.active):
        time_s = simulator.time_s[active]
        beside_s[active] += idle[active] * (time_s - since_s[active])
        since_s[active], idle[active] = time_s, 0.0
        observation = simulator.observe()
        actions, reserve, _ = tally.act(observation, active)
        for held in np.flatnonzero(actions[:, 0] < 0).tolist() if jobs.widest == 1 else ():
            idle[active[held]] = _idle_beside_backlog(observation, held)
        simulator.act(actions, reserve)
    return _played(cluster, simulator.outcome(), policy, tally, beside_s)


def play_learned(cell: Cell, seed: int, first: int, count: int, policy: Policy, source: OwnDecompose) -> Played:
    """Runs lists of a cell to their end, one by one, with runtimes that are learned; idle GPUs are not counted."""
    of_lists = []
    for number in range(first, first + count):
        cluster, outcome, tally = simulate_list(cell, seed, number, policy, source)
        of_lists.append(_played(cluster, outcome, policy, tally, np.zeros(1)))
    columns = (np.concatenate([getattr(each, field.name) for each in of_lists]) for field in dataclasses.fields(Played))
    return Played(*columns)


def _played(cluster: Cluster, outcome: BatchOutcome, policy: Policy, tally: Tally, beside_s: Floats) -> Played:
    figures = figures_of(cluster, outcome, policy=policy.name)
    assert not figures.stuck.any()
    of_lists = dict(zip(METRICS, figures.metrics.T, strict=True))
    return Played(
        mean_jct_s=of_lists["mean_jct_s"],
        p95_jct_s=of_lists["p95_jct_s"],
        longest_wait_s=of_lists["max_wait_s"],
        jobs_per_h=of_lists["throughput_jobs_per_h"],
        idle_beside_backlog_s=beside_s,
        gpu_s=sum(1 for _ in cluster.gpus()) * of_lists["makespan_s"],
        decisions=tally.counts.sum(axis=1),
        overdue=tally.counts[:, OVERDUE],
        fallback=tally.counts[:, FALLBACKS].sum(axis=1),
    )


def _idle_beside_backlog(observation: Observation, row: int) -> int:
    """Idle GPUs of one decision on which some waiting job fits that would be done before the queue has drained."""
    duration_s = observation.kind_duration_s[row][:, observation.gpu_kind[row]]
    fits = np.zeros(duration_s.shape, dtype=np.bool_)
    for job in range(len(fits)):
        fits[job, gpus_of_job(observation, row, job)] = True
    return idle_beside_backlog(
        duration_s,
        fits,
        observation.gpu_idle[row],
        observation.gpu_remaining_s[row],
        observation.gpu_node[row],
    )


def idle_beside_backlog(duration_s: Floats, fits: Bools, idle: Bools, remaining_s: Floats, node: Ints) -> int:
    """Idle GPUs on which some waiting job fits that would be done before the queue has drained.

    Args:
        duration_s, fits: (J, G) of the waiting jobs, in the order of submission: expected; it can start there now.
        idle, remaining_s, node: (G,).
    """
    if not fits.any():
        return 0
    next_end_s = np.full(len(idle), np.inf)
    for gpu in np.flatnonzero(idle):
        next_end_s[gpu] = np.min(remaining_s[(node == node[gpu]) & ~idle], initial=np.inf)
    drain_s = _drain_s(duration_s, fits, idle, np.where(idle, 0.0, remaining_s), next_end_s)
    return int((fits & (duration_s <= drain_s)).any(axis=0).sum())


def _drain_s(duration_s: Floats, fits: Bools, idle: Bools, free_s: Floats, next_end_s: Floats) -> float:
    """The planned start of the last waiting job, written on its own: not the code of the rule that is judged.

    Args:
        duration_s, fits: (J, G) of the waiting jobs.
        idle: (G,).
        free_s: (G,) time until the GPU is free.
        next_end_s: (G,) of an idle GPU, until its node has room for a job that does not fit now.
    """
    drain_s, free_s, untouched = 0.0, free_s.copy(), idle.copy()
    for job in range(len(duration_s)):
        start_s = np.where(untouched & ~fits[job], next_end_s, free_s)
        gpu = int(np.argmin(start_s + duration_s[job]))
        end_s = float(start_s[gpu] + duration_s[job, gpu])
        if end_s < np.inf:
            drain_s = max(drain_s, float(start_s[gpu]))
            free_s[gpu], untouched[gpu] = end_s, False
    return drain_s


PlayLists = Callable[[int, int, str], Played]
"""Plays lists of a cell: number of the first, how many, under which policy."""


@contextlib.contextmanager
def player_of(cell: Cell, seed: int) -> Iterator[PlayLists]:
    """What plays a cell's lists, with the knowledge of runtimes that the cell has."""
    if cell.runtime != LEARNED_RUNTIME:
        drawn = functools.lru_cache(maxsize=1)(functools.partial(lists_of, cell, seed))
        yield lambda first, count, name: play(*drawn(first, count), policy_of(name))
        return
    with contextlib.closing(OwnDecompose()) as source:
        yield lambda first, count, name: play_learned(cell, seed, first, count, policy_of(name), source)


def run_cell(cell: Cell, seed: int, lists: int, choose: int, policies: Sequence[str], folder: Path) -> str:
    """Plays a cell, unless its file is there; what it took, in words."""
    path = folder / f"cell-{cell.number:04d}.npz"
    columns: dict[str, Floats] = dict(np.load(path)) if path.exists() else {}
    missing = [name for name in policies if f"{name}.mean_jct_s" not in columns]
    if path.exists() and not missing:
        return ""
    begin_s = time.perf_counter()
    with player_of(cell, seed) as play_lists:
        if not path.exists():
            rules = RULES if cell.sizes == ONE_GPU else GANG_RULES
            mean_s = {name: float(play_lists(CHOOSE_FROM, choose, name).mean_jct_s.mean()) for name in rules}
            columns["best_rule"] = np.array(min(mean_s, key=lambda name: mean_s[name]))
        best = str(columns["best_rule"])
        wanted = [LEARNED, *missing] if ADVISED in missing else missing
        for name in dict.fromkeys([*([best] if not path.exists() else []), *wanted]):
            if name == ADVISED or f"{name}.mean_jct_s" in columns:
                continue
            played = play_lists(0, lists, name)
            columns |= {f"{name}.{field}": column for field, column in dataclasses.asdict(played).items()}
        if ADVISED in missing:
            advice = best if is_advised(best, play_lists) else LEARNED
            columns |= {
                f"{ADVISED}.{field.name}": columns[f"{advice}.{field.name}"] for field in dataclasses.fields(Played)
            }
    part = path.with_suffix(".part.npz")
    np.savez(part, **columns)  # type: ignore[arg-type]
    part.replace(path)
    return f"{cell.number} {cell.text}: best rule {best}, {time.perf_counter() - begin_s:.0f} s"


def is_advised(rule: str, play_lists: PlayLists) -> bool:
    """Whether the rule's mean completion time is below that of `dqn` for certain."""
    rules, learned = (play_lists(ADVISE_FROM, LEAST_PARTS, name).mean_jct_s for name in (rule, LEARNED))
    return change_of_means(rules, learned)[2] < 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A cell of a policy against its best rule: ratios of means less 1, those of three figures with their intervals.

    Attributes:
        cell: of the grid.
        best: the rule.
        mean_jct, p95_jct, jobs_per_h: value, low, high.
        longest_wait_s: of the policy, of the rule.
        idle_s, gpu_s: GPU time idle beside a backlog, and all.
        overdue, fallback: shares of the decisions.
    """

    cell: Cell
    best: str
    mean_jct: tuple[float, float, float]
    p95_jct: tuple[float, float, float]
    jobs_per_h: tuple[float, float, float]
    longest_wait_s: tuple[float, float]
    idle_s: float
    gpu_s: float
    overdue: float
    fallback: float

    @property
    def is_above(self) -> bool:
        """The interval of the mean completion time lies wholly above the limit."""
        return self.mean_jct[1] > LIMIT


def _row(cell: Cell, columns: dict[str, Floats], name: str) -> Row:
    best = str(columns["best_rule"])
    mean, p95, rate = (
        change_of_means(columns[f"{name}.{field}"], columns[f"{best}.{field}"])
        for field in ("mean_jct_s", "p95_jct_s", "jobs_per_h")
    )
    decisions = float(columns[f"{name}.decisions"].sum())
    return Row(
        cell,
        best,
        mean,
        p95,
        rate,
        (float(columns[f"{name}.longest_wait_s"].mean()), float(columns[f"{best}.longest_wait_s"].mean())),
        float(columns[f"{name}.idle_beside_backlog_s"].sum()),
        float(columns[f"{name}.gpu_s"].sum()),
        float(columns[f"{name}.overdue"].sum()) / decisions,
        float(columns[f"{name}.fallback"].sum()) / decisions,
    )


def show(folder: Path, *, all_cells: bool = False) -> None:
    """Prints what came of the finished cells as Markdown: by kind of cell, and those above the limit, or all."""
    asked = json.loads((folder / "grid.json").read_text())
    kinds = _kinds(gangs=asked.get("gangs", False), learned=asked.get("learned", False))
    cells = draw_cells(asked["cells"], asked["seed"], kinds)
    found = [(cell, dict(np.load(path))) for cell in cells if (path := folder / f"cell-{cell.number:04d}.npz").exists()]
    print(f"{len(found)} of {len(cells)} cells, {asked['lists']} lists a cell, seed {asked['seed']}\n")
    for name in asked["policies"]:
        rows = [_row(cell, columns, name) for cell, columns in found if f"{name}.mean_jct_s" in columns]
        if rows:
            _show_policy(name, rows, all_cells)
        if rows and name == ADVISED:
            pairs = [
                [columns[f"{each}.mean_jct_s"] for each in (ADVISED, LEARNED)]
                for _, columns in found
                if f"{ADVISED}.mean_jct_s" in columns
            ]
            of_rule = [not np.array_equal(*pair) for pair in pairs]
            print(f"{ADVISED}: a rule in {sum(of_rule)} of {len(rows)} cells\n")


def _kinds(*, gangs: bool, learned: bool) -> Kinds | None:
    return (GANGS_LEARNED if learned else GANGS) if gangs else None


def _show_policy(name: str, rows: Sequence[Row], all_cells: bool) -> None:
    above = [row for row in rows if row.is_above]
    idle = math.fsum(row.idle_s for row in rows) / math.fsum(row.gpu_s for row in rows)
    changes_of_all = [row.mean_jct[0] for row in rows]
    print(
        f"{name}: {len(above)} of {len(rows)} cells wholly above +{LIMIT:.0%} of the best rule; mean over cells "
        f"{_mean(changes_of_all):+.2%}, median {np.median(changes_of_all):+.2%}; idle beside a backlog {idle:.4%} of "
        f"GPU time, most in a cell {max(row.idle_s / row.gpu_s for row in rows):.4%}\n"
    )
    print(
        "| cells | count | above | mean JCT, % | least | most | p95 JCT, % | longest wait, % | jobs/h, % | "
        "overdue, % | fallback, % |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    kinds: dict[str, list[Row]] = {"all": list(rows)}
    for field in ("cluster", "runtime", "arrivals", "sizes"):
        for value in sorted({str(getattr(row.cell, field)) for row in rows}):
            kinds[value] = [row for row in rows if str(getattr(row.cell, field)) == value]
    for kind, of in kinds.items():
        changes = [row.mean_jct[0] for row in of]
        waits = [row.longest_wait_s[0] / row.longest_wait_s[1] - 1.0 for row in of if row.longest_wait_s[1] > 0.0]
        figures = (
            changes,
            [row.p95_jct[0] for row in of],
            waits,
            [row.jobs_per_h[0] for row in of],
        )
        mean, p95, wait, rate = (f"{100 * _mean(each):+.1f}" for each in figures)
        shares = (f"{100 * _mean([getattr(row, field) for row in of]):.2f}" for field in ("overdue", "fallback"))
        print(
            f"| {kind} | {len(of)} | {sum(row.is_above for row in of)} | {mean} | {100 * min(changes):+.1f} | "
            f"{100 * max(changes):+.1f} | {p95} | {wait} | {rate} | {' | '.join(shares)} |"
        )
    shown = rows if all_cells else above
    if shown:
        print(
            "\n| jobs, arrivals, cluster, runtime | best rule | mean JCT, % | p95 JCT, % | "
            "longest wait, s (the rule's) | jobs/h, % | idle beside a backlog, % | overdue, % | fallback, % |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(shown, key=lambda row: -row.mean_jct[1]):
        print(
            f"| {row.cell.text} | `{row.best}` | {_said(row.mean_jct)} | {_said(row.p95_jct)} | "
            f"{row.longest_wait_s[0]:.0f} ({row.longest_wait_s[1]:.0f}) | {_said(row.jobs_per_h)} | "
            f"{100 * row.idle_s / row.gpu_s:.3f} | {100 * row.overdue:.2f} | {100 * row.fallback:.2f} |"
        )
    print()


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _said(found: tuple[float, float, float]) -> str:
    return f"{100 * found[0]:+.1f} ({100 * found[1]:+.1f} .. {100 * found[2]:+.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--cells", type=int, default=200)
    running.add_argument("--lists", type=int, default=40)
    running.add_argument("--choose", type=int, default=10, help="lists on which the best rule of a cell is chosen")
    running.add_argument("--seed", type=int, default=13)
    running.add_argument("--policies", default="")
    running.add_argument("--gangs", action="store_true", help="jobs of several GPUs")
    running.add_argument("--learned", action="store_true", help="with --gangs: runtimes are learned while a list runs")
    running.add_argument("--processes", type=int, default=2)
    showing = commands.add_parser("show")
    showing.add_argument("folder", type=Path)
    showing.add_argument("--all", action="store_true", help="each cell, and not only those above the limit")
    asked = parser.parse_args(arguments)
    if asked.command == "run":
        asked.folder.mkdir(parents=True, exist_ok=True)
        policies = (asked.policies or ("hold_gang,dqn" if asked.gangs else "hold_greedy_fixed,dqn")).split(",")
        if ADVISED in policies and not asked.gangs:
            parser.error(f"--policies: {ADVISED} goes with --gangs")
        if asked.learned and not asked.gangs:
            parser.error("--learned goes with --gangs")
        told = {name: getattr(asked, name) for name in ("cells", "lists", "choose", "seed", "gangs", "learned")}
        said = asked.folder / "grid.json"
        before = json.loads(said.read_text()) if said.exists() else told
        if any(before.get(name, False) != value for name, value in told.items()):
            parser.error(f"{asked.folder} has a grid of other cells, lists or seeds ({said.read_text()})")
        said.write_text(json.dumps({**told, "policies": policies}))
        with ProcessPoolExecutor(asked.processes) as pool:
            running_cells = [
                pool.submit(run_cell, cell, asked.seed, asked.lists, asked.choose, policies, asked.folder)
                for cell in draw_cells(asked.cells, asked.seed, _kinds(gangs=asked.gangs, learned=asked.learned))
            ]
            for each in running_cells:
                if said := each.result():
                    sys.stdout.write(said + "\n")
                    sys.stdout.flush()
    show(asked.folder, all_cells=asked.command == "show" and asked.all)


if __name__ == "__main__":
    main()
