"""The table of a job's attempts, in cluster time. Pure functions on plain records."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from adlro.cli import render
from adlro.cli.places import placement_text
from adlro.cli.shell import plain_table
from adlro.cli.units_text import durations
from adlro.records.jobs import JobAttempt
from adlro.records.payloads import ExitStatus
from adlro.terminal import escape


def attempt_table(attempts: Sequence[JobAttempt]) -> Table:
    """Attempts, one a line; the columns of programs only where one of them ran a program."""
    columns = ["ATTEMPT", "GPU", "MODEL", "START", "BEGAN", "END", "OUTCOME", "EXIT", "MEMORY"]
    if all(each.run_s is None for each in attempts):
        columns.remove("BEGAN")
    if all(each.exit is None for each in attempts):
        columns = [each for each in columns if each not in ("EXIT", "MEMORY")]
    table = plain_table(*columns, right=("START", "BEGAN", "END", "MEMORY"), wrapped=("OUTCOME", "EXIT"))
    starts, begins, ends = (
        durations([getattr(each, name) for each in attempts]) for name in ("start_s", "run_s", "end_s")
    )
    for number, each in enumerate(attempts):
        cells = {
            "ATTEMPT": str(each.attempt),
            "GPU": escape(placement_text(each.placement)),
            "MODEL": escape(each.gpu_model),
            "START": starts[number],
            "BEGAN": begins[number],
            "END": ends[number],
            "OUTCOME": escape(each.outcome or "running"),
            "EXIT": _exit(each),
            "MEMORY": _peak(each.exit),
        }
        table.add_row(*(cells[name] for name in columns))
    return table


def _exit(attempt: JobAttempt) -> str:
    """How its program ended, in a few words: the outcome beside it has the details."""
    status = attempt.exit
    if status is None:
        return ""
    count = status.left_behind
    left = f"; {count} {'process was' if count == 1 else 'processes were'} left and ended" if count else ""
    return escape(render.exit_text(attempt) + left)


def _peak(status: ExitStatus | None) -> str:
    if status is None:
        return ""
    return "< 1 MiB" if status.peak_memory_mib == 0 else render.mib(status.peak_memory_mib)
