"""`adlro up`: the whole suite on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.cluster import ClockChoice
from adlro.cli.clusters import SETTING, ClusterOption, ScenarioOption, chosen_cluster
from adlro.cli.extras import require_suite
from adlro.cli.shell import EXIT_ERROR, EXIT_USAGE, plain_table, say, stdout
from adlro.errors import Conflict, InvalidInput
from adlro.terminal import escape, escape_lines

if TYPE_CHECKING:
    from adlro.cli.suite import Suite


def default_data_dir() -> Path:
    """`$XDG_STATE_HOME/adlro`, or `~/.local/state/adlro`."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    # The XDG rules: a relative path counts as not set.
    base = Path(state_home) if Path(state_home).is_absolute() else Path.home() / ".local" / "state"
    return base / "adlro"


def up(
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65532, help="Port of ingest; the other services use the next three. 0: free ports."
        ),
    ] = 7701,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="Directory of jobs and logs. Default: $XDG_STATE_HOME/adlro, else ~/.local/state/adlro.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
    clock: Annotated[
        ClockChoice | None, typer.Option("--clock", help="Mode of the simulated cluster's clock.", show_default=False)
    ] = None,
    scale: Annotated[
        float | None, typer.Option("--scale", min=0.0, help="Cluster seconds a second, for --clock scaled or virtual.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="The acting policy; adlro policy lists the policies.")
    ] = None,
    cluster: ClusterOption = None,
    scenario: ScenarioOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show the services' logs here.")] = False,
) -> None:
    """Start Valkey and all services on this machine, and run until Ctrl-C.

    The command restarts a process that ends by itself; Ctrl-C drains and stops all. With ADLRO_REDIS_URL it uses that
    Redis, and starts none.
    """
    require_suite("adlro up")
    try:
        simulated = chosen_cluster(cluster, scenario)
    except InvalidInput as error:
        say(f"[bold red]error:[/] {escape_lines(error.message)}")
        raise typer.Exit(EXIT_USAGE) from None
    from adlro.cli.suite import Suite, SuitePlan

    plan = SuitePlan(
        data_dir=(data_dir or default_data_dir()).absolute(),
        base_port=port,
        redis_url=os.environ.get("ADLRO_REDIS_URL") or None,
        redis_password_file=os.environ.get("ADLRO_REDIS_PASSWORD_FILE", ""),
        settings={SETTING: simulated},
        echo=_echo if verbose else None,
    )
    suite = Suite(plan, lambda text: say(f"[yellow]{escape_lines(text)}[/]"))
    try:
        in_time = asyncio.run(_up(suite, plan.data_dir, clock, scale, policy))
    except Conflict as error:
        say(f"[bold red]error:[/] {escape(error.message)}")
        raise typer.Exit(EXIT_USAGE) from None
    if not in_time:
        raise typer.Exit(EXIT_ERROR)


def _echo(service: str, line: str) -> None:
    say(f"[dim]{service:>12}[/] {escape(line)}")


async def _up(suite: Suite, data_dir: Path, clock: ClockChoice | None, scale: float | None, policy: str | None) -> bool:
    began_s = time.monotonic()
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        if asked_to_end.is_set():
            say("[yellow]ending at once[/]")
            suite.kill()
        asked_to_end.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    start = asyncio.create_task(suite.start())
    ended_early = asyncio.create_task(asked_to_end.wait())
    await asyncio.wait([start, ended_early], return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        say("stopping ...")
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        return True
    await start  # raises the error of its start
    try:
        await _prepare(suite, clock, scale, policy)
        problem = await suite.problem()
        _say_ready(suite, data_dir, time.monotonic() - began_s)
        if problem:
            say(f"[yellow]No job can be placed yet: {escape(problem)}[/]")
        await ended_early
        say("draining ... (Ctrl-C again: stop at once)")
    except BaseException:
        await suite.stop()
        raise
    return await suite.stop()


async def _prepare(suite: Suite, clock: ClockChoice | None, scale: float | None, policy: str | None) -> None:
    from adlro.client import AsyncClient, ClockMode

    async with AsyncClient(suite.server) as client:
        if policy is not None:
            await client.set_policy(policy)
        if clock is not None or scale is not None:
            await client.set_clock(None if clock is None else ClockMode[clock.name], scale=scale)
        if (await client.clock()).paused:
            say("[yellow]The cluster's clock is still paused: adlro clock --resume resumes it.[/]")


def _say_ready(suite: Suite, data_dir: Path, took_s: float) -> None:
    from adlro.client import ServiceName

    pids = suite.pids()
    table = plain_table("SERVICE", "ADDRESS", "PID", right=("PID",))
    if pids.get("valkey") is not None:
        table.add_row("valkey", suite.redis_url.removeprefix("redis://").partition("/")[0], str(pids["valkey"]))
    else:
        table.add_row("redis", "yours (ADLRO_REDIS_URL)", "")
    for name in ServiceName:
        table.add_row(str(name), suite.addresses[name], str(pids[str(name)]))
    console = stdout()
    console.print(table)
    named = "" if suite.server == "127.0.0.1:7701" else f" --server {suite.server}"
    console.print(f"\nReady in {took_s:.1f} s. Data and logs: {escape(str(data_dir))}")
    console.print(
        f"In another terminal: [bold]adlro submit --type ml --runtime 20{named}[/], [bold]adlro queue{named}[/],"
        f" [bold]adlro gpus --watch{named}[/]",
    )
    console.print("Ctrl-C drains and stops everything.")
