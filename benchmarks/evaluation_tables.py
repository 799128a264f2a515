"""The tables of docs/evaluation.md, as Markdown."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.evaluation_runs import Entry, Runs
from benchmarks.paper_claims import markdown


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
                        _jct_change(entry) if entry else "",
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


def _jct_change(entry: Entry) -> str:
    """Percent, of a comparison."""
    ratio, (low, high) = entry["jct_ratio"], entry["jct_ratio_ci95"]
    return signed(*(100 * (each - 1) for each in (ratio, low, high)))


TABLES: dict[str, Callable[[Runs], str]] = {
    "paper": policies_table("paper_256"),
    "roomy": policies_table("roomy_256"),
    "batch": policies_table("batch_256"),
    "estimates": estimates_table,
    "took": took_table,
    "machine": machine_table,
}
"""By the name of their mark in the document."""
