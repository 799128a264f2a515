"""A comparison on the terminal. rich only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from adlro.cli.units_text import seconds
from adlro.lab.compare.knowledge import SOURCE_TEXTS
from adlro.terminal import escape


def print_comparison(console: Console, document: dict[str, Any]) -> None:
    """Prints the document for people."""
    jobs, meta, window = document["jobs"], document["meta"], document["window"]
    count = jobs["measured"]
    console.print(
        f"[bold]{count} finished job{'s' if count != 1 else ''} of {escape(meta['cluster'])}[/] ({meta['gpus']} GPUs), "
        f"submitted from {seconds(window['first_submit_s'])} to {seconds(window['last_submit_s'])} of cluster time, "
        "replayed in the simulator under each policy"
    )
    console.print()
    table = _table("POLICY", "MEAN JCT", "P95 JCT", "LONGEST WAIT")
    for row in document["policies"]:
        table.add_row(
            escape(row["policy"]) + (" (acted)" if row["acted"] else ""),
            _with_interval(row, "mean_jct_s"),
            _with_interval(row, "p95_jct_s"),
            seconds(row["max_wait_s"]),
        )
    console.print(table)
    console.print()
    table = _table("DIFFERENCE", "MEAN JCT", "", "P95 JCT", "LONGEST WAIT", "JOBS SOONER", "LATER")
    for row in document["paired"]:
        table.add_row(
            f"{escape(row['policy'])} - {escape(row['baseline'])}",
            _with_interval(row, "mean_jct_difference_s", signed=True),
            _percent(row["mean_jct_ratio"]),
            _with_interval(row, "p95_jct_difference_s", signed=True),
            _signed(row["max_wait_difference_s"]),
            str(row["jobs_sooner"]),
            str(row["jobs_later"]),
        )
    console.print(table)
    console.print()
    for row in document["paired"]:
        console.print(_verdict(row, document["interval"]), soft_wrap=True)
    console.print(_check(document["check"]), soft_wrap=True)
    known = ", ".join(f"{SOURCE_TEXTS[name]} ({jobs})" for name, jobs in document["runtime"]["sources"].items())
    console.print(f"[dim]what the policies know of runtimes: {escape(known)}[/]", soft_wrap=True)
    for each in jobs["handled"]:
        console.print(f"[dim]{each['jobs']} replayed jobs {escape(each['what'])}[/]", soft_wrap=True)
    for each in jobs["left_out"]:
        console.print(f"[dim]{each['jobs']} jobs left out: {escape(each['why'])}[/]", soft_wrap=True)
    for note in document["notes"]:
        console.print(f"[yellow]{escape(note)}[/]", soft_wrap=True)


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head == heads[0] else "right", no_wrap=True)
    return table


def _verdict(row: dict[str, Any], interval: dict[str, Any]) -> str:
    """What the interval says, in a sentence."""
    ours, theirs = escape(row["policy"]), escape(row["baseline"])
    if interval["refused"]:
        return f"{ours}: no interval: {escape(interval['refused'])}"
    low, high = row["mean_jct_difference_s_ci95"]
    if low > 0 or high < 0:
        said = f"jobs like these end {'sooner' if high < 0 else 'later'} on average under {ours} than under {theirs}"
    else:
        said = f"these jobs do not tell {ours} and {theirs} apart"
    how = (
        f"{interval['resamples']} histories of {interval['blocks']} blocks of {interval['jobs_in_block']} of these jobs"
    )
    return f"{said} [dim](95 % intervals from {how}, replayed)[/]"


def _check(check: dict[str, Any]) -> str:
    ratio = check["mean_jct_ratio"]
    if ratio is None:
        return "check: the real mean JCT is 0"
    off = 100.0 * (ratio - 1.0)
    how = (
        "equals the real one"
        if abs(off) < 0.05
        else f"is {abs(off):.1f} % {'above' if off > 0 else 'below'} the real one"
    )
    return (
        f"check: under {escape(check['policy'])}, which acted, the replay's mean JCT {how} "
        f"({seconds(check['mean_jct_s'])}, {seconds(check['real_mean_jct_s'])}); p95 "
        f"{seconds(check['p95_jct_s'])}, really {seconds(check['real_p95_jct_s'])}; longest wait "
        f"{seconds(check['max_wait_s'])}, really {seconds(check['real_max_wait_s'])}; "
        f"{100 * check['same_start_share']:.0f} % of the jobs start when they did"
    )


def _with_interval(row: dict[str, Any], name: str, *, signed: bool = False) -> str:
    show = _signed if signed else seconds
    return show(row[name]) + _interval(row[f"{name}_ci95"], show)


def _interval(found: Sequence[float | None], show: Any) -> str:
    low, high = found
    return "" if low is None else f" [dim]\\[{show(low)}, {show(high)}][/]"


def _signed(value: float | None) -> str:
    return ("+" if value is not None and value > 0 else "") + seconds(value)


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100.0 * (ratio - 1.0):+.1f} %"
