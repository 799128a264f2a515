"""Commands on the cluster: drain, undrain, clock."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli import render
from adlro.cli.completing import nodes
from adlro.cli.documents import document
from adlro.cli.shell import (
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    say,
    stdout,
)
from adlro.errors import Unsupported
from adlro.terminal import escape

if TYPE_CHECKING:
    pass

# Widest table of policies: longer lines are hard to read.
_POLICY_WIDTH = 100


def clock_text(clock: dict[str, Any]) -> str:
    """A clock document in words: `virtual, at most 30 x, paused, at 12m 5s`."""
    mode = clock["mode"]
    if mode == "scaled":
        mode += f", {clock['scale']:g} x"
    elif mode == "virtual" and clock["scale"]:
        mode += f", at most {clock['scale']:g} x"
    return f"{mode}{', [yellow]paused[/]' if clock['paused'] else ''}, at {render.seconds(clock['time_s'])}"


NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", autocompletion=nodes, help="A node such as volta-0; adlro nodes lists them.")
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
