"""Commands on the suite and its cluster: status, policy, drain, undrain, clock."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli import render
from adlro.cli.documents import document
from adlro.cli.option_types import policy_names
from adlro.cli.shell import (
    EXIT_ERROR,
    Output,
    OutputOption,
    ServerOption,
    connect,
    connect_async,
    emit_json,
    plain_table,
    report,
    say,
    stdout,
)
from adlro.errors import AdlroError, Unavailable, Unsupported
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client


def status(server: ServerOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the services, the acting orchestrator and policy, and the waiting and running jobs.

    Exit code 1 if there is a problem, 3 if no service answers.
    """
    found, error = asyncio.run(_status(server))
    serving = [each["serving"] for each in found["services"]]
    if not any(serving) and error is not None:
        raise typer.Exit(report(error))
    if output is Output.JSON:
        emit_json(found)
    else:
        _print_status(found)
    if not all(serving) or found["problem"]:
        raise typer.Exit(EXIT_ERROR)


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


def _print_status(found: dict[str, Any]) -> None:
    console = stdout()
    table = plain_table("SERVICE", "ADDRESS", "STATE")
    for each in found["services"]:
        table.add_row(
            each["service"], escape(each["address"]), "[green]serving[/]" if each["serving"] else "[red]away[/]"
        )
    if found["page"] is not None:
        # The suite does its work without the page.
        state = "[green]serving[/]" if found["page"]["serving"] else "[yellow]away[/]"
        table.add_row("web", escape(found["page"]["link"]), state)
    console.print(table)
    decides = found["orchestrator"]
    if decides is not None:
        held = (
            ""
            if decides["acting"]
            else f" [yellow](standing by; {escape(decides['lease_holder'] or 'nobody')} acts)[/]"
        )
        policy = render.policy_text(decides["policy"], decides["deciding_policy"], decides["deciding_basis"])
        console.print(f"\npolicy      {policy}{_version(decides['policy_version'])}{held}")
        if decides["policy_problem"]:
            console.print(f"            [yellow]{escape(decides['policy_problem'])}[/]")
        if decides["decisions_by_basis"]:
            console.print(f"decisions   {render.decisions_text(decides['policy'], decides['decisions_by_basis'])}")
        elif counts := ", ".join(f"{count} {reason}" for reason, count in sorted(decides["fallbacks"].items())):
            # None in this session yet, or the service does not report the reasons.
            console.print(f"fallbacks   {counts.replace('_', ' ')} [dim](decisions of hold_gang instead)[/]")
        if decides["shadow"] is not None:
            console.print(f"shadow      {shadow_text(decides['shadow'])}")
        console.print(f"preemption  {_preemption_text(decides)}")
        console.print(
            f"jobs        {decides['running_count']} running, {decides['queue_length']} waiting,"
            f" {decides['waiting_for_begin_time_count']} before their begin time"
        )
        for line in render.status_lines(decides):
            console.print(f"            {line}")
        if unreadable := decides["unreadable_job_count"]:
            console.print(f"            [red]{unreadable} more have records that can't be read[/] (see the log)")
        if decides["drained_node_ids"]:
            reasons = decides["drain_reasons"]
            nodes = (
                f"{each} ({reason})" if (reason := reasons.get(each)) else each for each in decides["drained_node_ids"]
            )
            console.print(f"drained     {escape(', '.join(nodes))}")
    if found["clock"] is not None:
        console.print(f"clock       {clock_text(found['clock'])}")
    if found["problem"]:
        console.print(f"problem     [red]{escape(found['problem'])}[/]")


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


def clock_text(clock: dict[str, Any]) -> str:
    """A clock document in words: `virtual, at most 30 x, paused, at 12m 5s`."""
    mode = clock["mode"]
    if mode == "scaled":
        mode += f", {clock['scale']:g} x"
    elif mode == "virtual" and clock["scale"]:
        mode += f", at most {clock['scale']:g} x"
    return f"{mode}{', [yellow]paused[/]' if clock['paused'] else ''}, at {render.seconds(clock['time_s'])}"


def policy(
    name: Annotated[
        str,
        typer.Argument(
            help="The policy to act. Without a name: list the policies.",
            show_default=False,
            autocompletion=policy_names,
        ),
    ] = "",
    shadow: Annotated[
        str | None,
        typer.Option(
            "--shadow",
            metavar="NAME",
            help="Run this policy beside the acting one, without placing jobs, and count its differences; none: stop.",
            autocompletion=policy_names,
        ),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the policies, or set the acting policy or the shadow policy.

    The setting applies from the next decision on, and after later starts.
    """
    with connect(server) as client:
        if name or shadow is not None:
            _set_policies(client, name, shadow, output)
            return
        found = client.policies()
    if output is Output.JSON:
        emit_json({"policies": found})
        return
    table = plain_table("", "POLICY", "WHAT IT DOES", wrapped=("WHAT IT DOES",))
    for each in found:
        mark = "[green]*[/]" if each.acting else "[dim]shadow[/]" if each.shadow else ""
        text = escape(each.description)
        if each.version:
            text += f" [dim](checkpoint {escape(each.version)})[/]"
        if each.problem:
            text += f" [yellow]({escape(each.problem)})[/]"
        table.add_row(mark, escape(each.name), text)
    stdout().print(table)


def _set_policies(client: Client, name: str, shadow: str | None, output: Output) -> None:
    told: dict[str, str] = {}
    if name:
        told |= {"policy": name, "previous_policy": client.set_policy(name)}
    if shadow is not None:
        wanted = "" if shadow == "none" else shadow
        told |= {"shadow_policy": wanted, "previous_shadow_policy": client.set_shadow_policy(wanted)}
    if output is Output.JSON:
        emit_json(told)
        return
    if name:
        stdout().print(f"{escape(name)} acts now, in place of {escape(told['previous_policy'])}")
    if shadow is not None:
        beside = f"{escape(told['shadow_policy'])} runs" if told["shadow_policy"] else "no policy runs"
        instead = f", in place of {escape(before)}" if (before := told["previous_shadow_policy"]) else ""
        stdout().print(f"{beside} in the shadow now{instead}; adlro status shows how often it agrees")


NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="A node such as volta-0; adlro gpus lists the nodes.")
]


def drain(
    node: NodeArgument,
    reason: Annotated[str, typer.Option("--reason", help="The reason, shown to other users.")] = "",
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start no more jobs on a node. Running jobs run on."""
    with connect(server) as client:
        running = client.drain(node, reason)
    if output is Output.JSON:
        emit_json({"node_id": node, "running_job_ids": running})
        return
    left = f"; still running there: {escape(', '.join(running))}" if running else "; nothing runs there"
    stdout().print(f"{escape(node)} drains{left}")


def undrain(node: NodeArgument, server: ServerOption = None, output: OutputOption = Output.TABLE) -> None:
    """Let jobs start on a node again."""
    with connect(server) as client:
        client.undrain(node)
    if output is Output.JSON:
        emit_json({"node_id": node})
    else:
        stdout().print(f"{escape(node)} takes jobs again")


class ClockChoice(enum.StrEnum):
    """The modes of a simulated cluster's clock."""

    REAL = "real"
    SCALED = "scaled"
    VIRTUAL = "virtual"


def clock(
    mode: Annotated[
        ClockChoice | None,
        typer.Option("--mode", "-m", help="real, scaled (--scale seconds a second), or virtual (event to event)."),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option("--scale", min=0.0, help="Cluster seconds a second; in virtual mode the most, 0: no limit."),
    ] = None,
    paused: Annotated[bool | None, typer.Option("--pause/--resume", help="Stop the clock, or resume it.")] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or set the clock of a simulated cluster."""
    from adlro.client import ClockMode

    with connect(server) as client:
        if mode is None and scale is None and paused is None:
            now = client.clock()
        else:
            described = client.describe_cluster()
            if described.capabilities is not None and not described.capabilities.virtual_clock:
                raise Unsupported(
                    f"cluster '{described.cluster.name}' keeps real time: its clock can be shown, but not set; only a "
                    "simulated cluster's can"
                )
            chosen = None if mode is None else ClockMode[mode.name]
            now = client.set_clock(chosen, scale=scale, paused=paused)
    if output is Output.JSON:
        emit_json({"clock": now})
    else:
        stdout().print(clock_text(document(now)))
        if now.paused:
            say("[dim]adlro clock --resume resumes it[/]")
