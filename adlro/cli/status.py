"""`adlro status`: the services, who decides by which policy, and how many jobs wait and run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import typer
from rich.text import Text

from adlro.cli import render
from adlro.cli.cluster import clock_text
from adlro.cli.documents import document
from adlro.cli.facts import fact_lines
from adlro.cli.listing.columns import Column, Listing
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Reading, View
from adlro.cli.shell import EXIT_ERROR, ServerOption, connect_async, report, stdout
from adlro.errors import AdlroError, Unavailable
from adlro.terminal import escape


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A service of the table.

    Attributes:
        service: its name.
        address: where it listens; of the page, its link.
        serving: it answers.
        needed: the suite does not do its work without it.
    """

    service: str
    address: str
    serving: bool
    needed: bool = True

    @property
    def style(self) -> str:
        """Of its state."""
        return "green" if self.serving else "red" if self.needed else "yellow"


def _state(row: ServiceRow) -> str:
    return "serving" if row.serving else "away"


_NAMES = ("service", "address", "state")

SERVICES: Listing[ServiceRow] = Listing(
    "services",
    (
        Column("service", "its name", lambda row: row.service),
        Column("address", "where it listens; of the page, its link", lambda row: row.address),
        Column("state", "serving or away", _state, style=lambda row: row.style),
    ),
    narrow=_NAMES,
    standard=_NAMES,
    broad=_NAMES,
    wide=_NAMES,
    row_id=lambda row: row.service,
    record=lambda row: {"service": row.service, "address": row.address, "serving": row.serving},
    example=ServiceRow("", "", serving=False),
)


@with_view(SERVICES)
def status(view: View[ServiceRow], server: ServerOption = None) -> None:
    """Show the services, the acting orchestrator and policy, and the waiting and running jobs.

    Exit code 1 if there is a problem, 3 if no service answers. CSV and columns that are chosen have the services alone.
    """
    found, error = asyncio.run(_status(server))
    if error is not None and not any(each["serving"] for each in found["services"]):
        raise typer.Exit(report(error))
    first = [found]  # what has been read already

    def read() -> Reading[ServiceRow]:
        now = first.pop() if first else asyncio.run(_status(server))[0]
        below = [] if view.chosen else _facts(now)
        return Reading(_rows(now), lambda _rows: now, findings=below)

    view.show(read)
    if found["problem"] or not all(each["serving"] for each in found["services"]):
        raise typer.Exit(EXIT_ERROR)


def _rows(found: dict[str, Any]) -> list[ServiceRow]:
    rows = [ServiceRow(**each) for each in found["services"]]
    if (page := found["page"]) is not None:
        # The suite does its work without the page.
        rows.append(ServiceRow("web", page["link"], page["serving"], needed=False))
    return rows


async def _status(server: str | None) -> tuple[dict[str, Any], AdlroError | None]:
    from adlro.cli.page import page_of
    from adlro.client import ServiceName
    from adlro.client.health import check

    async with connect_async(server, patience_s=0.0) as client:
        names = list(ServiceName)
        *healthy, page = await asyncio.gather(
            *(check(client.endpoints.address(name), 2.0) for name in names), page_of(client.endpoints.ingest)
        )
        found: dict[str, Any] = {
            "services": [
                {"service": str(name), "address": client.endpoints.address(name), "serving": serving}
                for name, serving in zip(names, healthy, strict=True)
            ],
            "page": None if page is None else document(page),
            "orchestrator": None,
            "clock": None,
            "problem": "",
        }
        error: AdlroError | None = None
        try:
            found["orchestrator"] = document(await client.status())
            found["problem"] = found["orchestrator"]["problem"]
        except AdlroError as raised:
            found["problem"] = raised.message
            error = raised
        try:
            found["clock"] = document(await client.clock())
        except AdlroError as raised:
            found["problem"] = found["problem"] or raised.message
        if isinstance(error, Unavailable) and not any(healthy):
            address = client.endpoints.ingest
            error = Unavailable(error.message, reason=error.reason, metadata={"address": address, "service": "ingest"})
        return found, error


def _facts(found: dict[str, Any]) -> list[str | Text]:
    """The lines below the services: what the orchestrator and the clock say, and what is wrong."""
    facts: list[tuple[str, str]] = []
    if found["orchestrator"] is not None:
        facts += _decider_facts(found["orchestrator"])
    if found["clock"] is not None:
        facts.append(("clock", clock_text(found["clock"])))
    if found["problem"]:
        facts.append(("problem", f"[red]{escape(found['problem'])}[/]"))
    gap = [""] if found["orchestrator"] is not None else []
    return [*gap, *fact_lines(stdout(), facts, margin=0)]


def _decider_facts(decides: dict[str, Any]) -> list[tuple[str, str]]:
    """What an orchestrator's document says, as rich markup."""
    held = "" if decides["acting"] else f" [yellow](standing by; {escape(decides['lease_holder'] or 'nobody')} acts)[/]"
    policy = render.policy_text(decides["policy"], decides["deciding_policy"], decides["deciding_basis"])
    facts = [("policy", f"{policy}{_version(decides['policy_version'])}{held}")]
    if decides["policy_problem"]:
        facts.append(("", f"[yellow]{escape(decides['policy_problem'])}[/]"))
    if decides["decisions_by_basis"]:
        facts.append(("decisions", render.decisions_text(decides["policy"], decides["decisions_by_basis"])))
    elif counts := ", ".join(f"{count} {reason}" for reason, count in sorted(decides["fallbacks"].items())):
        # None in this session yet, or the service does not report the reasons.
        facts.append(("fallbacks", f"{counts.replace('_', ' ')} [dim](decisions of hold_gang instead)[/]"))
    if decides["shadow"] is not None:
        facts.append(("shadow", shadow_text(decides["shadow"])))
    facts.append(("preemption", _preemption_text(decides)))
    if decides["precedence"]:
        facts.append(("precedence", escape(decides["precedence"])))
    jobs = (
        f"{decides['running_count']} running, {decides['queue_length']} waiting,"
        f" {decides['waiting_for_begin_time_count']} before their begin time, {decides['held_count']} held,"
        f" {decides['dependent_count']} after other jobs"
    )
    facts += [("jobs", jobs), *(("", line) for line in render.status_lines(decides))]
    if unreadable := decides["unreadable_job_count"]:
        facts.append(("", f"[red]{unreadable} more have records that can't be read[/] (see the log)"))
    if decides["drained_node_ids"]:
        reasons = decides["drain_reasons"]
        drained = (
            f"{each} ({reason})" if (reason := reasons.get(each)) else each for each in decides["drained_node_ids"]
        )
        facts.append(("drained", escape(", ".join(drained))))
    return facts


def _version(version: str) -> str:
    return f" [dim]{escape(version)}[/]" if version else ""


def _preemption_text(decides: dict[str, Any]) -> str:
    if not decides["preemption"]:
        return "off"
    return f"on, of jobs that can be stopped and have run {render.seconds(decides['preemption_min_run_s'])}"


def shadow_text(shadow: dict[str, Any]) -> str:
    """A shadow's document in words: `sjf would have done the same in 90 % of 120 decisions`."""
    answered = shadow["agreed_count"] + shadow["differed_count"]
    text = f"{escape(shadow['policy'])} "
    if answered:
        text += (
            f"would have done the same in {render.percent(shadow['agreed_count'] / answered)} of {answered} decisions"
        )
    else:
        text += "has not been asked yet"
    left_out = {"failed": shadow["failed_count"], "left out": shadow["skipped_count"]}
    return text + "".join(f", {count} {what}" for what, count in left_out.items() if count)
