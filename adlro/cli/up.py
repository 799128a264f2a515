"""`adlro up`: the whole suite on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli import clusters
from adlro.cli.cluster import ClockChoice
from adlro.cli.clusters import (
    DATA_DIR_ENV,
    SETTING,
    FakeGpusOption,
    LocalCluster,
    ScenarioOption,
    UpClusterOption,
    UsersMapOption,
    check_passable,
    chosen_cluster,
    has_gpus,
    local_cluster,
)
from adlro.cli.completing import installed_policies
from adlro.cli.extras import has_textual, require_suite
from adlro.cli.notify_process import NOTIFY, WEBHOOKS_ENV
from adlro.cli.page import page_is_installed
from adlro.cli.shell import EXIT_ERROR, EXIT_USAGE, given_options, plain_table, say, stdout
from adlro.errors import AdlroError, Conflict, InvalidInput, with_extra
from adlro.kit.running_suites import default_data_dir
from adlro.terminal import escape, escape_lines

if TYPE_CHECKING:
    from adlro.cli.suite import Suite, SuitePlan
    from adlro.records.cluster import Node

POLICY_FILE_ENV = "ADLRO_ORCHESTRATOR_POLICY_FILE"
# How long the cluster may take, at the end, to report what still runs.
_LAST_LOOK_S = 3.0


def up(
    ctx: typer.Context,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65532,
            help="Port of ingest; the other services use the next three, the page the fourth. 0: free ports.",
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
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help="The acting policy; adlro policy lists the policies.",
            autocompletion=installed_policies,
        ),
    ] = None,
    policy_file: Annotated[
        list[str] | None,
        typer.Option(
            "--policy-file",
            metavar="PATH:CLASS",
            help="A policy of your own, which adlro policy can then select: a Python file and the class in it. Its "
            "code runs in the orchestrator. May be given several times.",
            show_default=False,
        ),
    ] = None,
    cluster: UpClusterOption = None,
    fake_gpus: FakeGpusOption = None,
    users_map: UsersMapOption = None,
    scenario: ScenarioOption = None,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Start the live page too, where the extra `web` is installed.")
    ] = True,
    webhooks: Annotated[
        Path | None,
        typer.Option(
            "--webhooks",
            metavar="FILE",
            help="Tell receivers of HTTP when jobs end, GPUs are lost, the policy falls back, or drift is flagged: a"
            f" TOML file (docs/notifications.md). Default: ${WEBHOOKS_ENV}, else none.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show the services' logs here.")] = False,
) -> None:
    """Start Valkey, all services and the live page on this machine, and run until Ctrl-C.

    The command restarts a process that ends by itself; Ctrl-C drains and stops all. With ADLRO_REDIS_URL it uses that
    Redis, and starts none.

    With --cluster local the suite runs programs, for callers with a token only: it makes yours, and your commands find
    it. Programs go on when the suite ends, and are found again at its next start with the same data directory.
    """
    require_suite("adlro up")
    try:
        refused = {"--scenario": scenario, "--clock": clock, "--scale": scale}
        local = local_cluster(cluster, fake_gpus, users_map, refused, given_options(ctx))
        simulated = "" if local is not None else chosen_cluster(cluster, scenario)
        plan = _plan((data_dir or default_data_dir()).absolute(), port, simulated, local, verbose=verbose)
        plan = replace(plan, page=page and page_is_installed(), webhooks_file=_checked_webhooks(webhooks))
        own = _own_policies(policy_file or ())
        if own:
            plan = replace(plan, settings={**plan.settings, POLICY_FILE_ENV: ",".join(own.values())})
    except InvalidInput as error:
        say(f"[bold red]error:[/] {escape_lines(error.message)}")
        raise typer.Exit(EXIT_USAGE) from None
    from adlro.cli.suite import Suite

    if page and not plan.page:
        say(f"[dim]The live page is not installed: install it {escape(with_extra('web'))}[/]")
    suite = Suite(plan, lambda text: say(f"[yellow]{escape_lines(text)}[/]"))
    try:
        in_time = asyncio.run(_up(suite, plan, clock, scale, policy))
    except Conflict as error:
        say(f"[bold red]error:[/] {escape(error.message)}")
        raise typer.Exit(EXIT_USAGE) from None
    if not in_time:
        raise typer.Exit(EXIT_ERROR)


def _checked_webhooks(given: Path | None) -> Path | None:
    """The file of webhooks, once it was read; None: there is none. Raises InvalidInput."""
    from adlro.webhooks.file import read_webhooks

    named = given or Path(os.environ.get(WEBHOOKS_ENV, ""))
    if named == Path():
        return None
    read_webhooks(named.absolute(), "--webhooks" if given else WEBHOOKS_ENV)
    return named.absolute()


def _own_policies(files: Sequence[str]) -> dict[str, str]:
    """The policies of files by name, each with its file and class; loads each once, before anything is started.

    Raises:
        InvalidInput: one can't be used; the message names file, line and the way out.
    """
    if not files:
        return {}
    from adlro.decide.catalog import of_files

    try:
        return {name: kind.source.text for name, kind in of_files(files).items()}
    except InvalidInput as error:
        raise InvalidInput(f"--policy-file: {error.message.removeprefix(f'{error.field}: ')}") from error


def _plan(data_dir: Path, port: int, simulated: str, local: LocalCluster | None, *, verbose: bool) -> SuitePlan:
    from adlro.cli.data_dir import LOCAL_FOLDER
    from adlro.cli.secrets import are_given
    from adlro.cli.suite import SuitePlan

    plan = SuitePlan(
        data_dir=data_dir,
        base_port=port,
        redis_url=os.environ.get("ADLRO_REDIS_URL") or None,
        redis_password_file=os.environ.get("ADLRO_REDIS_PASSWORD_FILE", ""),
        settings={SETTING: simulated},
        echo=_echo if verbose else None,
    )
    if local is None:
        return plan
    local_dir = Path(os.environ.get(DATA_DIR_ENV) or data_dir / LOCAL_FOLDER).absolute()
    passable = local.other_users and local_dir.parent == data_dir
    if local.other_users:
        check_passable(data_dir if passable else local_dir)
    return replace(
        plan,
        settings={**local.settings, DATA_DIR_ENV: str(local_dir)},
        cluster_module=clusters.LOCAL_MODULE,
        closed=True,
        own_secrets=not are_given(os.environ),
        passable=passable,
    )


def _echo(service: str, line: str) -> None:
    say(f"[dim]{service:>12}[/] {escape(line)}")


async def _up(
    suite: Suite, plan: SuitePlan, clock: ClockChoice | None, scale: float | None, policy: str | None
) -> bool:
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
        _say_ready(suite, plan, time.monotonic() - began_s)
        if plan.closed:
            await _say_few_cores(suite)
        if problem:
            say(f"[yellow]No job can be placed yet: {escape(problem)}[/]")
        await ended_early
        say("draining ... (Ctrl-C again: stop at once)")
        if plan.closed:
            await _say_what_runs(suite)
    except BaseException:
        await suite.stop()
        raise
    return await suite.stop()


async def _prepare(suite: Suite, clock: ClockChoice | None, scale: float | None, policy: str | None) -> None:
    from adlro.client import AsyncClient, ClockMode

    async with AsyncClient(suite.server, credentials=suite.credentials) as client:
        if policy is not None:
            await client.set_policy(policy)
        if clock is not None or scale is not None:
            await client.set_clock(None if clock is None else ClockMode[clock.name], scale=scale)
        if (await client.clock()).paused:
            say("[yellow]The cluster's clock is still paused: adlro clock --resume resumes it.[/]")


async def _say_few_cores(suite: Suite) -> None:
    from adlro.client import AsyncClient

    try:
        async with AsyncClient(suite.server, credentials=suite.credentials, timeout_s=_LAST_LOOK_S) as client:
            nodes = (await client.describe_cluster()).cluster.nodes
    except AdlroError:  # it has served once; what goes on without this line
        return
    for line in few_cores(nodes):
        say(f"[yellow]{escape(line)}[/]")


def few_cores(nodes: Iterable[Node]) -> list[str]:
    """Lines about nodes with more GPUs than cores: a job needs a core with each GPU, so that some GPUs stay idle."""
    return [
        f"{node.node_id} has {len(node.gpus)} GPUs and {node.cpu_cores} core{'s' if node.cpu_cores != 1 else ''}: "
        f"a job needs a core with each GPU, so that no more than {node.cpu_cores} of them are in use at once. "
        "ADLRO_LOCAL_CPU_CORES counts more."
        for node in nodes
        if node.cpu_cores < len(node.gpus)
    ]


async def _say_what_runs(suite: Suite) -> None:
    """Says how many programs go on without the suite."""
    from adlro.client import AsyncClient

    try:
        async with AsyncClient(
            suite.server, credentials=suite.credentials, timeout_s=_LAST_LOOK_S, patience_s=0.0
        ) as client:
            count = len((await client.describe_cluster()).running)
    except AdlroError as error:
        say(f"[yellow]Programs may still run, and go on: the cluster does not answer ({escape(error.message)}).[/]")
        return
    if count:
        still_run = "1 program still runs, and goes on" if count == 1 else f"{count} programs still run, and go on"
        say(
            f"{still_run}: the next adlro up --cluster local with this data directory finds what runs. To end programs,"
            " run adlro cancel --all before you stop the suite."
        )


def _say_ready(suite: Suite, plan: SuitePlan, took_s: float) -> None:
    from adlro.client import ServiceName

    pids = suite.pids()
    table = plain_table("SERVICE", "ADDRESS", "PID", right=("PID",))
    if pids.get("valkey") is not None:
        table.add_row("valkey", escape(suite.store_address), str(pids["valkey"]))
    else:
        table.add_row("redis", "yours (ADLRO_REDIS_URL)", "")
    for name in ServiceName:
        table.add_row(suite.label(name), suite.addresses[name], str(pids[suite.label(name)]))
    console = stdout()
    if suite.page_link:
        table.add_row("web", escape(suite.page_link), str(pids["web"]))
    if pids.get(NOTIFY) is not None:
        table.add_row(NOTIFY, "adlro webhooks shows it", str(pids[NOTIFY]))
    console.print(table)
    if suite.page_link:
        console.print(f"\nThe live page: [bold]{escape(suite.page_link)}[/]")
        if suite.token_file:
            console.print(f"Log in there with the token in {escape(suite.token_file)}")
    named = "" if suite.server == "127.0.0.1:7701" else f" --server {suite.server}"
    looks = "adlro top" if has_textual() else "adlro gpus --watch"
    console.print(f"\nReady in {took_s:.1f} s. Data and logs: {escape(str(plan.data_dir))}")
    for each in filter(None, plan.settings.get(POLICY_FILE_ENV, "").split(",")):
        console.print(f"A policy of your own: {escape(each)}; [bold]adlro policy[/] lists it by its name.")
    if plan.closed:
        if plan.own_secrets:
            console.print("Your commands find your token by themselves; other users have no access.")
        console.print(
            f"In another terminal: [bold]adlro run{named} -- python train.py[/], [bold]adlro queue{named}[/],"
            f" [bold]{looks}{named}[/]"
        )
        console.print("Ctrl-C drains and stops the services; running programs go on.")
        return
    console.print(
        f"In another terminal: [bold]adlro submit --type ml --runtime 20{named}[/], [bold]adlro queue{named}[/],"
        f" [bold]{looks}{named}[/]",
    )
    if has_gpus():
        console.print("This machine has GPUs: [bold]adlro up --cluster local[/] runs programs on them.")
    console.print("Ctrl-C drains and stops everything.")
