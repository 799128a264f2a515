"""The tables of docs/paper.md, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adlro.lab.evaluate.hyperscore import hyperscore
from adlro.workload.scenario import load_scenario
from benchmarks.evaluation_runs import Entry, Runs
from benchmarks.evaluation_tables import changed, signed
from benchmarks.paper_claims import CLAIMS, Claim, little_table, markdown, text_table

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


TAILS = {"p95_jct_ratio": "p95 JCT", "max_wait_ratio": "longest wait"}
"""Of a comparison in the JSON, with headings: the paper claims nothing of them, and who waits is who pays."""


def setting(run: str, load: float | None) -> str:
    """`256 jobs, load 0.9`."""
    jobs = run.rpartition("_")[2]
    return f"{jobs} jobs, " + ("all at once" if load is None else f"load {load:g}")


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
            *(f"{heading}, %" for heading in TAILS.values()),
            "useful utilization, %",
            "HyperScore",
        ]
        lines = [
            [
                "the paper's table",
                "its method",
                *(f"{q.claimed(claim):+.1f}" for q in QUANTITIES),
                *["not stated"] * (len(TAILS) + 2),
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
                        *(changed(entry, tail) for tail in TAILS),
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
                        *(changed(best, key) for key in TAILS),
                        changed(best, "throughput_ratio"),
                    ]
                )
    head = ["claim", "lists", "best of all policies", "its figure", "claim reached"]
    return markdown([*head, *(f"its {heading}, %" for heading in TAILS.values()), "its throughput, %"], lines)


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
            together = [entry for entry in entries if all(entry["policy"] in each for each in reach.values())]
            names = "; ".join(f"`{entry['policy']}` ({_tails(entry)})" for entry in together) or "none"
            lines.append(
                [
                    claim.baseline,
                    setting(run, load),
                    *(f"{len(each)} of {len(entries)}" for each in reach.values()),
                    names,
                ]
            )
    return markdown(["against", "lists", *(f"{q.name} reached by" for q in QUANTITIES), "all three reached by"], lines)


def _tails(entry: Entry) -> str:
    """`p95 JCT +3.1 (+2.0 .. +4.2) %, longest wait ...`."""
    return ", ".join(f"{heading} {text} %" for key, heading in TAILS.items() if (text := changed(entry, key)))


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
}
"""By the name of their mark in the document."""
