"""Single changes of the rule `srtf`: what of them explains the difference to the study, and whether one is better.

    python -m benchmarks.stop_variants [--lists N] [--first-seed S] [--loads L ...] [--cells C ...]
                                       [--variants V ...] [--json FILE]

Cells are those of benchmarks/preemption.py, by name. The shipped rule is adlro/decide/srtf_rule.py; each variant
changes one thing of it (`VARIANTS`). All see the same lists. `against srtf` is the change of the mean completion time
against the shipped rule, with a 95 % bootstrap interval over lists, drawn in pairs.

*moves* is the study's migration (benchmarks/migration.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.gang_rule import GangRule, Surroundings, cost_of, fill_model_s, is_too_long, surroundings_of
from adlro.decide.gang_scores import never_short, score_cluster
from adlro.decide.looked import Looked, as_type, looked_at
from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.decide.policies.hold_gang import HoldGangSettings
from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.decide.policies.srtf import START, gangs_of, gpus_of_run, width_weights
from adlro.decide.reservation import outlook_of
from adlro.decide.stop_rule import Wish, find_stop
from adlro.decide.stops import Stops, fill_stops, room_for_stops
from adlro.numeric.compiled import compiled
from adlro.numeric.exact_compiled import log, log1p
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Gangs, Ints, Observation
from adlro.workload.scenario import load_scenario
from benchmarks.gangs import FIRST_SEED, change_ci95, interval, job_lists, play_hold_gang
from benchmarks.migration import with_moves, with_one_that_waits
from benchmarks.preemption import FASTEST, Cell, base_key, cells, less_study


@dataclasses.dataclass(frozen=True)
class Variant:
    """The rule, with what may differ from the shipped one; the defaults are the shipped rule.

    Attributes:
        start: weights and limits of starts.
        factor: H.
        counted: how many times a restart counts in the limit of what may be stopped, and in the loss.
        own_restart: whether what a waiting job needs has its own restart in it, if it was stopped before.
        held: whether a stop is refused where the job is expected to end sooner by waiting (theta).
        loss: of a stop on a node: `share` of a job that the stopped ones would do meanwhile, `gpu_time` of restarts,
            or `jobs` that are stopped; with `by_loss` the model is chosen by it too, so that a slow one costs nothing.
        weight: of the loss in a candidate's cost.
        by_loss: whether a job stops what is on the node of least loss of all models, or on its model of least cost.
        competes: whether a stop may come before a start that is possible, if it costs less.
        moves: whether running jobs move where nothing waits.
    """

    start: HoldGangSettings = START
    factor: float = 1.05
    counted: float = 1.0
    own_restart: bool = True
    held: bool = True
    loss: str = "share"
    weight: float = 0.0
    by_loss: bool = True
    competes: bool = False
    moves: bool = False


def _start(**changes: float) -> HoldGangSettings:
    return dataclasses.replace(START, **changes)


SHIPPED = "srtf"
VARIANTS = {
    SHIPPED: Variant(),
    "moves": Variant(moves=True),
    "H = 1.2": Variant(factor=1.2),
    "H = 1.5": Variant(factor=1.5),
    "restart not counted": Variant(counted=0.0),
    "restart counted twice": Variant(counted=2.0),
    "own restart not counted": Variant(own_restart=False),
    "stops never held": Variant(held=False),
    "loss: GPU time": Variant(loss="gpu_time"),
    "loss: jobs": Variant(loss="jobs"),
    "loss in the cost, 0.25": Variant(weight=0.25),
    "loss in the cost, 0.5": Variant(weight=0.5),
    "loss in the cost, 1": Variant(weight=1.0),
    "stops compete with starts": Variant(competes=True),
    "no ageing": Variant(start=_start(ageing=0.0)),
    "s_max = 1.5": Variant(start=_start(s_max=1.5)),
    "s_max = 3": Variant(start=_start(s_max=3.0)),
    "alpha = 3": Variant(start=_start(alpha=3.0)),
    "model by cost": Variant(by_loss=False),
    "fastest GPU": Variant(start=FASTEST.start, by_loss=FASTEST.by_loss),
    "fastest GPU, restart not counted": Variant(start=FASTEST.start, factor=1.0, counted=0.0, by_loss=FASTEST.by_loss),
}
SINGLE = [name for name in VARIANTS if not name.startswith("fastest") and not VARIANTS[name].moves]
LAS = {"LAS, first queue 34 s": 34.0, "LAS, first queue 17.8 s": 17.8}
"""GPU time of the first queue: that of a mean job, or its duration on one GPU."""


@compiled
def choose_stop(
    rule: GangRule,
    factor: float,
    width_weight: Floats,
    surroundings: Surroundings,
    stops: Stops,
    looked: Looked,
    gangs: Gangs,
    n: int,
    plain: bool,
    own_s: Floats,
    held: bool,
    loss_weight: float,
    most: float,
    longest_s: Floats,
    found: Ints,
    gpus: Ints,
    kept: Ints,
    by_loss: bool,
) -> int:
    """As adlro/decide/srtf_rule.py, with what a variant changes.

    Args:
        own_s: (J,) subtracted from what a waiting job needs.
        held: whether theta refuses stops.
        loss_weight: of the loss in the cost.
        most: a greater cost is of no interest.
        longest_s, found, kept: room.
        gpus: filled.
        by_loss: whether a job's candidate is that of least loss; if not, that of the model of least cost.
    """
    best, best_job, time_s = most, -1, looked.time_s[n]
    for job in range(looked.job_waiting.shape[1]):
        if not looked.job_waiting[n, job]:
            continue
        gpu_count, duration_s, nodes = gangs.gpu_count[n, job], looked.kind_duration_s[n, job], gangs.nodes[n, job]
        weight = width_weight[gpu_count]
        best_s = fill_model_s(surroundings, gpu_count, duration_s, nodes)
        if best_s == np.inf:
            continue
        for model in range(longest_s.shape[0]):
            longest_s[model] = 0.0
        for kind in range(duration_s.shape[0]):
            if surroundings.kind_there[kind] and duration_s[kind] < np.inf:
                model = surroundings.kind_model[kind]
                longest_s[model] = max(longest_s[model], duration_s[kind])
        cores, memory_mib = looked.job_cores[n, job], looked.job_memory_mib[n, job]
        gpu_memory_mib = looked.job_gpu_memory_mib[n, job]
        length_ln, age_ln = log(best_s), log1p(max(time_s - looked.job_submit_s[n, job], 0.0) / best_s)
        least, least_cost = np.inf, np.inf
        for model in range(longest_s.shape[0]):
            its_s = longest_s[model]
            x = (its_s - own_s[job]) * weight
            if (
                surroundings.model_s[model] == np.inf
                or its_s > rule.s_max * best_s
                or not stops.model_worth[model] > factor * x
            ):
                continue
            cost = cost_of(rule, rule.alpha, rule.beta, gpu_count, length_ln, log(its_s / best_s), 0.0, age_ln)
            if not by_loss and not cost < best:
                continue
            if (
                held
                and its_s > rule.theta * best_s
                and is_too_long(
                    rule,
                    surroundings,
                    its_s,
                    gpu_count,
                    gangs.max_nodes[n, job],
                    0 if plain else cores,
                    0 if plain else memory_mib,
                    0 if plain else gpu_memory_mib,
                    nodes,
                    gangs.spread_speed[n, job],
                )
            ):
                continue
            packed = 1 if gpu_count == 1 else nodes[model]
            wish = Wish(model, gpu_count, packed, cores, memory_mib, gpu_memory_mib, duration_s, x)
            loss = find_stop(factor, stops, wish, found)
            cost += loss_weight * loss
            key = loss if by_loss else cost
            if loss < np.inf and key < least:
                least, least_cost = key, cost
                for i in range(gpu_count):
                    kept[i] = found[i]
        if least_cost < best:
            best, best_job = least_cost, job
            for i in range(gpu_count):
                gpus[i] = kept[i]
    return best_job


class Varied(Policy):
    """`srtf` with a variant's change.

    Args:
        variant: what differs.
    """

    name = "srtf_varied"
    description = "srtf with one change"
    preempts = True

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    def weigh(self, observation: Observation) -> Judgement:
        """As `srtf`."""
        table, variant = observation.table, self.variant
        rule = variant.start.rule()
        judgement = Judgement(np.full(len(table.job), -np.inf))
        if observation.gangs is not None:
            judgement.reserve = np.full(len(table.first), -1, dtype=np.int64)
        looked, gangs = looked_at(observation), gangs_of(observation)
        models, widest = len(observation.gpu_models), int(gangs.gpu_count.max(initial=1))
        weight = width_weights(variant.start.beta, observation.gpu_idle.shape[1])
        best_of_kind = np.zeros(observation.gpu_idle.shape[1], dtype=np.int64)
        for n in range(len(table.first)):
            outlook = outlook_of(observation, n)
            around = surroundings_of(outlook, models)
            plain = never_short(observation, outlook, n)
            score_cluster(rule, around, looked, gangs, n, plain, judgement.scores, best_of_kind)
            preemption = observation.preemption
            start = judgement.scores[table.rows(n)].max(initial=-np.inf)
            if (
                preemption is None
                or not preemption.gpu_stoppable[n].any()
                or (start > -np.inf and not variant.competes)
            ):
                continue
            stops = room_for_stops(outlook, looked.gpu_idle[n], looked.gpu_kind[n], models)
            run = as_type(preemption.gpu_run[n], np.int64)
            may = as_type(preemption.gpu_stoppable[n], np.bool_)
            restart_s = variant.counted * as_type(preemption.gpu_restart_s[n], np.float64)
            count = gpus_of_run(run)
            width, none = count.astype(np.float64), np.zeros(len(run))
            fixed = {"share": none, "gpu_time": width * restart_s, "jobs": none + 1.0}[variant.loss]
            share = width if variant.loss == "share" else none
            fill_stops(run, may, outlook.gpu_free_s * weight[count], restart_s, fixed, share, stops)
            own_s = np.zeros(looked.job_waiting.shape[1])
            if not variant.own_restart:
                own_s = as_type(preemption.job_restart_s[n], np.float64)
            found, gpus, kept = np.zeros((3, widest), dtype=np.int64)
            job = choose_stop(
                rule,
                float(variant.factor),
                weight,
                around,
                stops,
                looked,
                gangs,
                n,
                plain,
                own_s,
                variant.held,
                float(variant.weight),
                float(-start),
                np.zeros(models),
                found,
                gpus,
                kept,
                variant.by_loss,
            )
            if job >= 0:
                chosen = gpus[: int(gangs.gpu_count[n, job])]
                judgement.busy[n] = BusyStart(job, tuple(chosen.tolist()), stops=True)
        return judgement


def play(policy: Policy, scenario_name: str, jobs: JobArrays, moves: bool) -> tuple[Floats, Floats]:
    """(lists, jobs) completion times, and (lists,) stops; a move is one."""
    policy.wait_ratio = math.inf
    lists = with_one_that_waits(jobs) if moves else jobs
    simulator = BatchSimulator(load_scenario(scenario_name).cluster, lists, preempts=policy.preempts)
    if moves:
        lists.expected_s[:, 0] = np.inf
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        chosen, stops = policy.choose(seen, judgement), policy.stopping(seen, judgement)
        if moves:
            chosen = with_moves(simulator, seen, chosen)
        simulator.act(chosen, judgement.reserve, stops)
    outcome = simulator.outcome()
    end_s = outcome.end_s[:, 1:] if moves else outcome.end_s
    if not np.isfinite(end_s).all():
        raise AssertionError(f"{policy.name}: a list did not come to its end")
    return end_s - jobs.submit_s, outcome.stops.astype(np.float64)


def compare(
    cell: Cell, load: float, names: Sequence[str], lists: int, first_seed: int, bases: dict[bytes, Floats]
) -> list[dict[str, Any]]:
    """One row for each variant."""
    jobs = cell.change(job_lists(cell.scenario, load, lists, cell.runtime, first_seed))
    key = base_key(jobs, cell.base)
    if key not in bases:
        bases[key], _ = play_hold_gang(cell.base, cell.scenario, jobs)
    base_s = bases[key]
    shipped_s, rows = base_s, list[dict[str, Any]]()
    for name in dict.fromkeys([SHIPPED, *names]):
        policy: Policy = LasPreemptive(LAS[name]) if name in LAS else Varied(VARIANTS[name])
        jct_s, stops = play(policy, cell.scenario, jobs, name in VARIANTS and VARIANTS[name].moves)
        shipped_s = jct_s if name == SHIPPED else shipped_s
        p95_s = [np.percentile(each, 95, axis=1) for each in (jct_s, base_s, shipped_s)]
        row: dict[str, Any] = {
            "cell": cell.name,
            "load": load,
            "variant": name,
            "mean_s": float(jct_s.mean()),
            "against_hold_gang_percent": change_ci95(jct_s.mean(axis=1), base_s.mean(axis=1)),
            "against_srtf_percent": change_ci95(jct_s.mean(axis=1), shipped_s.mean(axis=1)),
            "p95_against_hold_gang_percent": change_ci95(p95_s[0], p95_s[1]),
            "p95_against_srtf_percent": change_ci95(p95_s[0], p95_s[2]),
            "stops": float(stops.mean()),
        }
        less = less_study(cell, load, row["against_hold_gang_percent"], lists)
        if less is not None:
            row["less_study_percent"] = less
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    less = interval(row["less_study_percent"]) if "less_study_percent" in row else "-"
    return (
        f"| {row['cell']} | {row['load']} | {row['variant']} | {row['mean_s']:.1f} | "
        f"{interval(row['against_hold_gang_percent'])} | {less} | {interval(row['against_srtf_percent'])} | "
        f"{interval(row['p95_against_srtf_percent'])} | {row['stops']:.0f} |"
    )


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.9])
    known = {cell.name: cell for cell in cells()}
    parser.add_argument("--cells", nargs="+", default=[f"restart {restart} s" for restart in (240, 600)])
    parser.add_argument("--variants", nargs="+", default=SINGLE, choices=[*VARIANTS, *LAS])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        "| cell | load | variant | mean JCT, s | against `hold_gang`, % | less study's, % | "
        "against `srtf`, % | p95 against `srtf`, % | stops a list |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    rows, bases = [], dict[bytes, Floats]()
    for name in arguments.cells:
        for load in arguments.loads:
            for row in compare(known[name], load, arguments.variants, arguments.lists, arguments.first_seed, bases):
                rows.append(row)
                print(shown(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
