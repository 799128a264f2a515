"""An evaluation on the terminal: progress while it runs, a table for each case at the end. rich only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from adlro.lab.evaluate.request import REFERENCE
from adlro.terminal import escape

HEADS = (
    *("MEAN JCT", "JCT/FCFS", "P95 JCT", "P99 JCT", "MAX WAIT", "SLOWDOWN", "JOBS/H", "BUSY", "USEFUL", "JAIN"),
    *("OVERDUE", "FALLBACK", "p50 us", "HYPER"),
)
"""Columns; the columns of decisions only if the policy did not make all."""
INTERVALS = "intervals"
LEFT_OUT = ("p50 us", "JAIN", "BUSY", "USEFUL", "SLOWDOWN", "P99 JCT", INTERVALS, "HYPER", "JCT/FCFS")
"""Columns left out one after the other until the table fits the screen: mean, tails, throughput and deciders stay."""

_ANY_WIDTH = 10_000
_PLAIN_LINE_EVERY_S = 10.0


class ProgressBar:
    """A bar for each phase on a terminal, single lines elsewhere. Call it as `evaluation.Progress`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._next_line_s = 0.0
        self._phase = ""
        self._progress = Progress(
            TextColumn("[bold]{task.description}[/]"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Shows the progress of a phase."""
        if self._console.is_terminal:
            if phase not in self._bars:
                self._bars[phase] = self._progress.add_task(phase, total=total)
                # The tasks of an earlier run would distort this run's speed.
                self._progress.reset(self._bars[phase], completed=done, total=total)
            self._progress.update(self._bars[phase], completed=done, total=total)
            return
        now_s = time.monotonic()
        if phase != self._phase or now_s >= self._next_line_s or done == total:
            self._phase, self._next_line_s = phase, now_s + _PLAIN_LINE_EVERY_S
            self._console.print(f"{phase}: {done} of {total}")


LOOK_FIRST = (
    "Look first at MEAN JCT, the mean time from a job's submission to its end: lower is better. Then at P95 JCT and "
    "MAX WAIT: what the unluckiest jobs get."
)
OF_INTERVALS = (
    " A difference that is small beside the brackets may be chance; more lists (--seeds) make these narrower."
)


def print_tables(console: Console, document: dict[str, Any]) -> None:
    """A table for each scenario and load: policies ordered by mean JCT; above them, what to look at first."""
    rows = document["rows"]
    if rows:
        several_lists = any(row["seeds"] > 1 for row in rows)
        console.print(f"\n[dim]{LOOK_FIRST}{OF_INTERVALS if several_lists else ''}[/]")
    cases = list(dict.fromkeys((row["scenario"], row["load"]) for row in rows))
    for scenario, load in cases:
        here = sorted(
            (row for row in rows if (row["scenario"], row["load"]) == (scenario, load)),
            key=lambda r: float(r["mean_jct_s"]),
        )
        against = {
            entry["policy"]: entry
            for entry in document["paired"]
            if (entry["scenario"], entry["load"], entry["baseline"]) == (scenario, load, REFERENCE)
        }
        several = here[0]["seeds"] > 1
        title = f"{scenario}" + (f" at load {load:g}" if load is not None else "")
        lists = f"{here[0]['seeds']} list{'s' if several else ''} of {here[0]['jobs']} jobs"
        interval = ", 95 % intervals over lists" if several else ""
        limit = escape(document["meta"]["wait_limit"])
        console.print(f"\n[bold]{escape(title)}[/] [dim]({lists}{interval}, {limit})[/]")
        _print_fitting(console, here, against, several=several)
    for each in document["stuck"]:
        console.print(
            f"[bold red]stuck:[/] {escape(each['policy'])} in {escape(each['scenario'])}, list {each['list']}, seed "
            f"{each['seed']}: {each['jobs_left']} jobs never ended"
        )


def _table(
    rows: list[dict[str, Any]], against: dict[str, dict[str, Any]], heads: Sequence[str], *, intervals: bool
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("POLICY", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        entry = against.get(row["policy"])
        ratio = "1" if row["policy"] == REFERENCE else "-"
        if entry is not None:
            ratio = _with_interval(entry, "jct_ratio", 3, several=intervals)
        cells = {
            "MEAN JCT": _with_interval(row, "mean_jct_s", 1, several=intervals) + " s",
            "JCT/FCFS": ratio,
            "P95 JCT": f"{row['p95_jct_s']:.1f} s",
            "P99 JCT": f"{row['p99_jct_s']:.1f} s",
            "MAX WAIT": f"{row['max_wait_s']:.1f} s",
            "SLOWDOWN": f"{row['bounded_slowdown']:.2f}",
            "JOBS/H": _rate(row["throughput_jobs_per_h"]),
            "BUSY": f"{100 * row['utilization_busy']:.1f}%",
            "USEFUL": f"{100 * row['utilization_useful']:.1f}%",
            "JAIN": f"{row['fairness_jain']:.3f}",
            "OVERDUE": _share(row["overdue_share"]),
            "FALLBACK": _share(row["fallback_share"]),
            "p50 us": _number(row["decision_us_p50"], 0),
            "HYPER": _number(row["hyperscore"], 1),
        }
        table.add_row(escape(row["policy"]), *(cells[head] for head in heads))
    return table


def _print_fitting(
    console: Console, rows: list[dict[str, Any]], against: dict[str, dict[str, Any]], *, several: bool
) -> None:
    """Prints a table; on a narrow screen it leaves columns out and says so, instead of cutting figures off."""
    heads = [
        head
        for head in HEADS
        if head not in ("OVERDUE", "FALLBACK") or any(row[f"{head.lower()}_share"] for row in rows)
    ]
    left_out: list[str] = []
    table = _table(rows, against, heads, intervals=several)
    for head in LEFT_OUT:
        if _width(console, table) <= console.width:
            break
        if head != INTERVALS:
            heads.remove(head)
        elif several:
            several = False
        else:
            continue
        left_out.append(head)
        table = _table(rows, against, heads, intervals=several)
    console.print(table)
    if left_out:
        console.print(f"[dim]left out on a narrow screen: {', '.join(left_out)}[/]")


def _width(console: Console, table: Table) -> int:
    """The width that a table needs."""
    return Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum


def _with_interval(values: dict[str, Any], name: str, digits: int, *, several: bool) -> str:
    text = f"{values[name]:.{digits}f}"
    if several:
        low, high = values[f"{name}_ci95"]
        text += f" [dim]\\[{low:.{digits}f}, {high:.{digits}f}][/]"
    return text


def _rate(value: float) -> str:
    """A rate for jobs of hours, as in Gavel's traces, as well as for jobs of seconds."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    """A share of decisions; a small one must not look like 0."""
    if value is None:
        return "-"
    return "<0.1%" if 0 < value < 0.001 else f"{100 * value:.1f}%"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
