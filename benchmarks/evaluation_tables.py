"""The tables of docs/evaluation.md, as Markdown."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.evaluation_runs import Entry, Runs
from benchmarks.paper_claims import markdown

RUNTIMES = {"true": "paper_256", "noise:0.5": "noise_256", "group": "group_256", "type": "type_256"}
"""Runs on the same lists, by what policies know of runtimes."""


def signed(value: float, low: float, high: float) -> str:
    """With its interval."""
    return f"{value:+.1f} ({low:+.1f} .. {high:+.1f})"


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
                        changed(entry, "jct_ratio"),
                        f"{row['p95_jct_s']:.0f}",
                        changed(entry, "p95_jct_ratio"),
                        f"{row['max_wait_s']:.0f}",
                        changed(entry, "max_wait_ratio"),
                        cell("throughput_jobs_per_h", 0),
                        changed(entry, "throughput_ratio"),
                        f"{row['p99_jct_s']:.0f}",
                        f"{row['bounded_slowdown']:.2f}",
                        f"{100 * row['utilization_busy']:.1f}",
                        cell("utilization_useful", 1, 100.0),
                        f"{row['fairness_jain']:.3f}",
                        *shares(row),
                        "" if row["decision_us_p50"] is None else f"{row['decision_us_p50']:.0f}",
                        cell("hyperscore", 1),
                    ]
                )
        head = ["load", "policy"]
        for heading in ("mean JCT, s", "p95 JCT, s", "longest wait, s", "jobs/h"):
            head += [heading, f"{heading.partition(',')[0]} against fcfs, %"]
        head += ["p99 JCT, s", "bounded slowdown", "busy, %", "useful, %", "Jain", "overdue, %", "fallback, %"]
        head += ["decision p50, us", "HyperScore"]
        return markdown(head, lines)

    return table


def estimates_table(runs: Runs) -> str:
    """What guessing runtimes costs: each figure against the same policy's with exact runtimes, on the same lists."""
    figures = (("mean_jct_s", 1), ("p95_jct_s", 1), ("max_wait_s", 1), ("throughput_jobs_per_h", 0))
    lines = []
    for load in (0.6, 0.9, 1.1):
        for first in runs.rows("noise_256", load):
            exact = runs.row("paper_256", load, first["policy"])
            for runtime, run in RUNTIMES.items():
                row = runs.row(run, load, first["policy"])
                cells = [
                    f"{row[name]:.{digits}f}" + ("" if row is exact else _cost(row[name], exact[name]))
                    for name, digits in figures
                ]
                lines.append([f"{load:g}", f"`{row['policy']}`", runtime, *cells, *shares(row)])
    head = ["load", "policy", "known of runtimes", "mean JCT, s", "p95 JCT, s", "longest wait, s", "jobs/h"]
    return markdown([*head, "overdue, %", "fallback, %"], lines)


def _cost(value: float, exact: float) -> str:
    return f" ({100 * (value / exact - 1):+.1f} %)" if exact > 0 else ""


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
        [*names, "seed", "lists", "bootstrap resamples", "waits"],
        [
            [
                *(str(machine[name]) for name in names),
                str(meta["seed"]),
                str(meta["cases"][0]["seeds"]),
                str(meta["bootstrap"]["resamples"]),
                meta["wait_limit"],
            ]
        ],
    )


def changed(entry: Entry | None, name: str) -> str:
    """A ratio of a comparison as percent with its interval; empty where nothing is compared, or nobody waited."""
    values = [] if entry is None else [entry[name], *entry[f"{name}_ci95"]]
    return signed(*(100 * (each - 1) for each in values)) if values and None not in values else ""


def shares(row: Entry) -> list[str]:
    """Of a row's decisions those of the limit on waits, and of the fallback, in percent."""
    found = (row["overdue_share"], row["fallback_share"])
    return ["" if share is None else f"{100 * share:.2f}" for share in found]


TABLES: dict[str, Callable[[Runs], str]] = {
    "paper": policies_table("paper_256"),
    "roomy": policies_table("roomy_256"),
    "batch": policies_table("batch_256"),
    "estimates": estimates_table,
    "took": took_table,
    "machine": machine_table,
}
"""By the name of their mark in the document."""
