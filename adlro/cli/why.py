"""`adlro why JOB`: why a job waits, what could be changed, and when it is expected to start."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

from adlro.cli import render
from adlro.cli.completing import WAITING
from adlro.cli.documents import document
from adlro.cli.facts import print_facts
from adlro.cli.job_filters import job_argument
from adlro.cli.places import At, at_of
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, stdout
from adlro.errors import AdlroError
from adlro.records.waiting import ExpectedStart, WaitingExplanation
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client

_SHARE = 0.8


def why(
    job_id: Annotated[str, job_argument(WAITING)],
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show why a job waits, what to ask for so that it fits now, and when it is expected to start."""
    with connect(server) as client:
        told = client.explain_waiting(job_id)
        at = _times(client, told)
    if output is Output.JSON:
        emit_json({"explanation": document(told)})
        return
    console = stdout()
    reason = told.reason.name.lower().replace("_", " ")
    console.print(f"[bold]{escape(told.job_id)}[/]  waits: {reason}")
    rows = [
        ("because", told.sentence),
        ("place", place_text(told)),
        ("precedence", told.precedence),
        ("GPUs", ", ".join(f"{count} {obstacle.label}" for obstacle, count in told.obstacles.items())),
        ("expected", expected_text(told, at)),
        *(("you could", change.sentence) for change in told.changes),
    ]
    print_facts(console, [(name, escape(text)) for name, text in rows], label_width=11)


def place_text(told: WaitingExplanation) -> str:
    """A job's place in the queue, in words; empty: it is not in it."""
    if not told.queue_place:
        return ""
    return f"{told.queue_place} of {told.queue_length} by submission; policies start jobs in an order of their own"


def expected_text(told: WaitingExplanation, at: At) -> str:
    """The expected start with its record, or why there is none."""
    start = told.expected_start
    if start is None:
        return f"not known: {told.no_expected_start}"
    return f"{interval_text(start, told.time_s, at)} {record_text(start)}"


def interval_text(start: ExpectedStart, time_s: float, at: At) -> str:
    """`in 3.0 s to 9.0 s, most likely in 5.0 s, about 14:05`."""
    low, middle, high = (
        render.seconds(max(each - time_s, 0.0)) for each in (start.low_s, start.median_s, start.high_s)
    )
    return f"in {low} to {high}, most likely in {middle}, {at(start.median_s)}"


def record_text(start: ExpectedStart) -> str:
    """How many such forecasts came in."""
    if not start.finished_count:
        return f"({_SHARE:.0%} of such forecasts should come in; none of this cluster has finished yet)"
    return f"({start.came_in_ratio:.0%} of the last {start.finished_count} such forecasts came in)"


def _times(client: Client, told: WaitingExplanation) -> At:
    if told.expected_start is not None:
        with contextlib.suppress(AdlroError):
            return at_of(client.clock())
    return at_of(None)
