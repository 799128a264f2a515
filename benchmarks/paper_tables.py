"""The tables of docs/paper.md and docs/evaluation.md, as Markdown, from the files that `paper_figures run` makes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adlro.sim.scenario import load_scenario
from benchmarks.paper_claims import CLAIMS, Claim, little_table, markdown, text_table
from services.orchestrator.evaluate.hyperscore import hyperscore

BOUND = "bound.json"
BOUND_CASES = ((64, 1.1), (256, 1.1))
"""Jobs of a list, load."""
BOUND_NAME = "no schedule exceeds"
BOUND_POLICIES = ("hold_greedy", "sufferage", "heft", "max_min")

SHOWN = ("hold_greedy", "min_min", "sufferage", "heft")
"""Policies beside the paper's claims: the best here in JCT, two in the middle, the best in throughput."""

SETTINGS = (
    ("paper_256", 0.6),
    ("paper_256", 0.9),
    ("paper_256", 1.1),
    ("paper_64", 1.1),
    ("batch_256", None),
    ("batch_64", None),
)
"""Run and load for the comparison with the paper's claims."""

Entry = dict[str, Any]


class Runs:
    """The runs of a folder.

    Args:
        folder: that `paper_figures run` has filled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._documents: dict[str, Entry] = {}

    def document(self, run: str) -> Entry:
        """What `adlro evaluate` wrote."""
        if run not in self._documents:
            self._documents[run] = json.loads((self._folder / f"{run}.json").read_text())
        return self._documents[run]

    def took(self, run: str) -> Entry:
        """How long it took."""
        found: Entry = json.loads((self._folder / f"{run}.took.json").read_text())
        return found

    def bound(self) -> list[Entry]:
        """The bounds on throughput."""
        found: list[Entry] = json.loads((self._folder / BOUND).read_text())
        return found

    def rows(self, run: str, load: float | None) -> list[Entry]:
        """Of a run at a load, by mean JCT."""
        found = [row for row in self.document(run)["rows"] if load is None or row["load"] == load]
        return sorted(found, key=lambda row: float(row["mean_jct_s"]))

    def row(self, run: str, load: float | None, policy: str) -> Entry:
        """Of one policy."""
        return next(row for row in self.rows(run, load) if row["policy"] == policy)

    def paired(self, run: str, load: float | None, baseline: str) -> list[Entry]:
        """Comparisons with a baseline, by JCT."""
        found = [
            entry
            for entry in self.document(run)["paired"]
            if entry["baseline"] == baseline and (load is None or entry["load"] == load)
        ]
        return sorted(found, key=lambda entry: float(entry["jct_ratio"]))


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that the paper claims an improvement of.

    Attributes:
        name: for people.
        key: of a comparison in the JSON.
        changed: brings it to percent or points.
        claimed: by the paper, likewise.
        better: +1 where more is better, -1 where less is.
        unit: for people.
    """

    name: str
    key: str
    changed: Callable[[float], float]
    claimed: Callable[[Claim], float]
    better: int
    unit: str


QUANTITIES = (
    Quantity("JCT", "jct_ratio", lambda x: 100 * (x - 1), lambda claim: 100 * claim.jct_change, -1, "%"),
    Quantity(
        "throughput", "throughput_ratio", lambda x: 100 * (x - 1), lambda claim: 100 * claim.throughput_change, 1, "%"
    ),
    Quantity(
        "busy utilization",
        "busy_utilization_difference",
        lambda x: 100 * x,
        lambda claim: 100 * claim.utilization_points,
        1,
        "points",
    ),
)


def setting(run: str, load: float | None) -> str:
    """`256 jobs, load 0.9`."""
    jobs = run.rpartition("_")[2]
    return f"{jobs} jobs, " + ("all at once" if load is None else f"load {load:g}")


def signed(value: float, low: float, high: float) -> str:
    """With its interval."""
    return f"{value:+.1f} ({low:+.1f} .. {high:+.1f})"


def change(entry: Entry, quantity: Quantity) -> tuple[float, float, float]:
    """A comparison's figure with its interval, in percent or points."""
    values = (entry[quantity.key], *entry[f"{quantity.key}_ci95"])
    value, low, high = (quantity.changed(each) for each in values)
    return value, low, high


def changes_table(baseline: str) -> Callable[[Runs], str]:
    """What some policies change against a baseline, beside the paper's claims."""

    def table(runs: Runs) -> str:
        (claim,) = (each for each in CLAIMS if each.baseline == baseline)
        head = [
            "lists",
            "policy",
            "JCT, %",
            "throughput, %",
            "busy utilization, points",
            "useful utilization, %",
            "HyperScore",
        ]
        lines = [
            [
                "the paper's table",
                "its method",
                *(f"{q.claimed(claim):+.1f}" for q in QUANTITIES),
                "not stated",
                "not stated",
            ]
        ]
        for run, load in SETTINGS:
            for entry in runs.paired(run, load, baseline):
                if entry["policy"] not in SHOWN:
                    continue
                row = runs.row(run, load, entry["policy"])
                useful = (entry["useful_utilization_ratio"], *entry["useful_utilization_ratio_ci95"])
                low, high = row["hyperscore_ci95"]
                lines.append(
                    [
                        setting(run, load),
                        f"`{entry['policy']}`",
                        *(signed(*change(entry, quantity)) for quantity in QUANTITIES),
                        signed(*(100 * (each - 1) for each in useful)),
                        f"{row['hyperscore']:.1f} ({low:.1f} .. {high:.1f})",
                    ]
                )
        return markdown(head, lines)

    return table


def claims_table(runs: Runs) -> str:
    """For each claim and setting the best policy of all, and whether it reaches the claim."""
    lines = []
    for claim in CLAIMS:
        for quantity in QUANTITIES:
            for run, load in SETTINGS:
                entries = [e for e in runs.paired(run, load, claim.baseline) if e["policy"] not in ("fcfs", "static")]
                best = max(entries, key=lambda entry: quantity.better * float(entry[quantity.key]))
                value, low, high = change(best, quantity)
                claimed = quantity.claimed(claim)
                least, most = sorted((quantity.better * low, quantity.better * high))
                reached = (
                    "yes"
                    if least >= quantity.better * claimed
                    else "no"
                    if most < quantity.better * claimed
                    else "open"
                )
                lines.append(
                    [
                        f"{quantity.name} against {claim.baseline}: {claimed:+.1f} {quantity.unit}",
                        setting(run, load),
                        f"`{best['policy']}`",
                        signed(value, low, high),
                        reached,
                    ]
                )
    return markdown(["claim", "lists", "best of all policies", "its figure", "claim reached"], lines)


def together_table(runs: Runs) -> str:
    """Which policies reach all three claims at once, by their figures."""
    lines = []
    for claim in CLAIMS:
        for run, load in SETTINGS:
            entries = [e for e in runs.paired(run, load, claim.baseline) if e["policy"] not in ("fcfs", "static")]
            reach = {
                quantity.name: [
                    entry["policy"]
                    for entry in entries
                    if quantity.better * (change(entry, quantity)[0] - quantity.claimed(claim)) >= 0.0
                ]
                for quantity in QUANTITIES
            }
            together = [entry["policy"] for entry in entries if all(entry["policy"] in each for each in reach.values())]
            names = ", ".join(f"`{name}`" for name in together) or "none"
            lines.append(
                [
                    claim.baseline,
                    setting(run, load),
                    *(f"{len(each)} of {len(entries)}" for each in reach.values()),
                    names,
                ]
            )
    return markdown(["against", "lists", *(f"{q.name} reached by" for q in QUANTITIES), "all three reached by"], lines)


def arrivals_table(runs: Runs) -> str:
    """Throughput beside the rate of arrivals."""
    capacity = load_scenario("paper").capacity_jobs_per_h
    lines = []
    for run, load in SETTINGS:
        if load is None:
            continue
        rows = runs.rows(run, load)
        best = max(rows, key=lambda row: float(row["throughput_jobs_per_h"]))
        cells = [setting(run, load), f"{load * capacity:.0f}"]
        for row in (runs.row(run, load, "static"), runs.row(run, load, "fcfs"), best):
            low, high = row["throughput_jobs_per_h_ci95"]
            name = f"`{row['policy']}` " if row is best else ""
            cells.append(f"{name}{row['throughput_jobs_per_h']:.0f} ({low:.0f} .. {high:.0f})")
        lines.append(cells)
    return markdown(["lists", "arrivals, jobs/h", "static", "fcfs", "highest of all policies"], lines)


def bound_table(runs: Runs) -> str:
    """What no schedule can exceed in throughput, beside policies and the claims."""
    lines = []
    for cell in runs.bound():
        for claim in CLAIMS:
            for average in ("ratio of means", "mean of ratios"):
                gains = [cell[claim.baseline][name][average] for name in (BOUND_NAME, *BOUND_POLICIES)]
                lines.append(
                    [
                        setting(f"paper_{cell['jobs']}", cell["load"]),
                        claim.baseline,
                        average,
                        f"{100 * claim.throughput_change:+.1f}",
                        *(signed(*(100 * (each - 1) for each in gain)) for gain in gains),
                    ]
                )
    head = ["lists", "against", "average over lists", "claimed, %", f"{BOUND_NAME}, %"]
    return markdown([*head, *(f"`{name}`, %" for name in BOUND_POLICIES)], lines)


def hyperscore_table(_: Runs | None = None) -> str:
    """HyperScore by V."""
    values = np.array([0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0])
    return markdown(
        ["V", *(f"{v:g}" for v in values)], [["HyperScore", *(f"{score:.2f}" for score in hyperscore(values))]]
    )


def statistics_table(runs: Runs) -> str:
    """Deviations, significance and the regression of JCT on utilization."""
    lines = []
    for run, load in SETTINGS[:4]:
        fcfs = runs.row(run, load, "fcfs")
        line_of = {
            entry["policy"]: entry
            for entry in runs.document(run)["statistics"]["jct_on_utilization"]
            if entry["load"] == load
        }
        for entry in runs.paired(run, load, "fcfs"):
            if entry["policy"] not in ("hold_greedy", "hold_greedy_fixed", "min_min", "static"):
                continue
            row, line = runs.row(run, load, entry["policy"]), line_of[entry["policy"]]
            p = entry["jct_p_value_holm"]
            lines.append(
                [
                    setting(run, load),
                    f"`{entry['policy']}`",
                    f"{row['mean_jct_s']:.1f} ± {row['mean_jct_s_sd']:.1f}",
                    f"{fcfs['mean_jct_s']:.1f} ± {fcfs['mean_jct_s_sd']:.1f}",
                    f"{entry['jct_lower_lists']} of {entry['seeds']}",
                    f"1e{math.ceil(math.log10(p))}" if p < 0.001 else f"{p:.3f}",
                    f"{line['slope'] / 100:+.2f}",
                    f"{line['r_squared']:.2f}",
                ]
            )
    head = [
        "lists",
        "policy",
        "JCT, s ± sd",
        "fcfs, s ± sd",
        "lists with lower JCT",
        "p at most",
        "s for a point of busy utilization",
        "R²",
    ]
    return markdown(head, lines)


def policies_table(run: str) -> Callable[[Runs], str]:
    """All policies of a run."""

    def table(runs: Runs) -> str:
        lines = []
        loads = list(dict.fromkeys(row["load"] for row in runs.document(run)["rows"]))
        for load in loads:
            against = {entry["policy"]: entry for entry in runs.paired(run, load, "fcfs")}
            for row in runs.rows(run, load):

                def cell(name: str, digits: int, times: float = 1.0, row: Entry = row) -> str:
                    low, high = row[f"{name}_ci95"]
                    return f"{times * row[name]:.{digits}f} ({times * low:.{digits}f} .. {times * high:.{digits}f})"

                entry = against.get(row["policy"])
                lines.append(
                    [
                        "" if row["scenario"] == "batch" else f"{load:g}",
                        f"`{row['policy']}`",
                        cell("mean_jct_s", 1),
                        signed(*change(entry, QUANTITIES[0])) if entry else "",
                        f"{row['p99_jct_s']:.0f}",
                        f"{row['max_wait_s']:.0f}",
                        f"{row['bounded_slowdown']:.2f}",
                        cell("throughput_jobs_per_h", 0),
                        f"{100 * row['utilization_busy']:.1f}",
                        cell("utilization_useful", 1, 100.0),
                        f"{row['fairness_jain']:.3f}",
                        "" if row["decision_us_p50"] is None else f"{row['decision_us_p50']:.0f}",
                        cell("hyperscore", 1),
                    ]
                )
        head = ["load", "policy", "mean JCT, s", "against fcfs, %", "p99 JCT, s", "longest wait, s", "bounded slowdown"]
        head += ["jobs/h", "busy, %", "useful, %", "Jain", "decision p50, us", "HyperScore"]
        return markdown(head, lines)

    return table


def estimates_table(runs: Runs) -> str:
    """What guessing runtimes costs: mean JCT against the same policy with exact runtimes, on the same lists."""
    lines = []
    for load in (0.6, 0.9, 1.1):
        for row in runs.rows("noise_256", load):
            name = row["policy"]
            exact_s = runs.row("paper_256", load, name)["mean_jct_s"]
            cells = [f"{load:g}", f"`{name}`", f"{exact_s:.1f}"]
            for run in ("noise_256", "group_256", "type_256"):
                jct_s = runs.row(run, load, name)["mean_jct_s"]
                cells.append(f"{jct_s:.1f} ({100 * (jct_s / exact_s - 1):+.1f} %)")
            lines.append(cells)
    return markdown(["load", "policy", "true", "noise:0.5", "group", "type"], lines)


def took_table(runs: Runs) -> str:
    """How long each run took."""
    lines = []
    for run in ("paper_256", "paper_64", "roomy_256", "batch_256", "batch_64", "noise_256", "group_256", "type_256"):
        took, meta = runs.took(run), runs.document(run)["meta"]
        rows = runs.document(run)["rows"]
        lines.append(
            [
                f"`{run}`",
                str(sum(row["seeds"] * row["jobs"] for row in rows)),
                f"{took['cpu_s']:.0f}",
                f"{took['wall_s']:.0f}",
                f"{took['system_load_before']:.1f}",
                f"{meta['machine']['processes']} on {meta['machine']['cores']} cores",
            ]
        )
    return markdown(["run", "jobs simulated", "CPU, s", "wall, s", "system load before", "processes"], lines)


def machine_table(runs: Runs) -> str:
    """On what."""
    machine, meta = runs.document("paper_256")["meta"]["machine"], runs.document("paper_256")["meta"]
    names = ("platform", "python", "numpy", "numba", "cores")
    return markdown(
        [*names, "seed", "lists", "bootstrap resamples"],
        [
            [
                *(str(machine[name]) for name in names),
                str(meta["seed"]),
                str(meta["cases"][0]["seeds"]),
                str(meta["bootstrap"]["resamples"]),
            ]
        ],
    )


TABLES: dict[str, Callable[[Runs], str]] = {
    "little": lambda _: little_table(),
    "text": lambda _: text_table(),
    "hyperscore": hyperscore_table,
    "claims": claims_table,
    "together": together_table,
    "against_fcfs": changes_table("fcfs"),
    "against_static": changes_table("static"),
    "arrivals": arrivals_table,
    "bound": bound_table,
    "statistics": statistics_table,
    "paper": policies_table("paper_256"),
    "roomy": policies_table("roomy_256"),
    "batch": policies_table("batch_256"),
    "estimates": estimates_table,
    "took": took_table,
    "machine": machine_table,
}
"""By the name of their mark in the documents."""
