"""`adlro demo`: an own suite, a few hundred jobs of three kinds under two policies, and a comparison."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from adlro.cli import render
from adlro.cli.clusters import DEFAULT, SETTING, ClusterOption, chosen_cluster
from adlro.cli.extras import require_suite
from adlro.cli.page import page_is_installed
from adlro.cli.shell import (
    Output,
    OutputOption,
    ServerOption,
    cancel_on_sigterm,
    connect_async,
    emit_json,
    say,
    stderr,
    stdout,
)
from adlro.errors import InvalidInput
from adlro.terminal import escape, escape_lines

if TYPE_CHECKING:
    from adlro.client import AsyncClient
    from adlro.records.jobs import JobSpec

REFERENCE_POLICY = "fcfs"

# Duration of the round for viewers, in seconds; its jobs end about as much later than the last submission.
_WATCH_S = 12.0
_TAIL_S = 80.0
# Longest outage of a service, in seconds.
_PATIENCE_S = 30.0
# Generous for a loaded machine; in an own suite only a bug keeps the orchestrator from acting.
_ACTING_TIMEOUT_S = 60.0
# Often enough for viewers while cluster time runs fast.
_SETTINGS = {"ADLRO_SIMCLUSTER_TELEMETRY_HZ": "8"}
# Scenarios with a known capacity for the paper's jobs.
_SCENARIOS = ("paper", "paper_roomy")


def demo(
    jobs: Annotated[int, typer.Option("--jobs", "-n", min=1, max=20_000, help="Number of jobs.")] = 256,
    load: Annotated[
        float, typer.Option("--load", min=0.05, max=10.0, help="Arrival rate as a share of the cluster's capacity.")
    ] = 0.9,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the job list.")] = 0,
    fast: Annotated[bool, typer.Option("--fast", help="Run at full speed, instead of slowly enough to watch.")] = False,
    cluster: ClusterOption = None,
    running: Annotated[
        bool,
        typer.Option("--running", help="Use the running suite (--server, ADLRO_SERVER), instead of a new one."),
    ] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Place a few hundred jobs on 16 simulated GPUs, and compare policies.

    Starts its own suite, and runs the same jobs again in the order first come, first served, through the real
    services, in under a minute; stops and removes everything at the end.
    """
    if server is not None and not running:
        raise typer.BadParameter("the demo starts a suite of its own; add --running", param_hint="--server")
    if cluster is not None and running:
        raise typer.BadParameter("the suite that runs has its cluster; leave out one of both", param_hint="--cluster")
    if not running:
        require_suite("adlro demo")
    scenario = DEFAULT if running else _scenario(cluster)
    report = asyncio.run(_demo(scenario, jobs, load, seed, fast=fast, running=running, server=server))
    if output is Output.JSON:
        emit_json(report)
    else:
        _print(stdout(), report, go_on=not running)


def _scenario(cluster: str | None) -> str:
    """The scenario of the simulated cluster and of the jobs."""
    chosen = chosen_cluster(cluster)
    if chosen not in _SCENARIOS:
        raise InvalidInput(
            f"{SETTING if cluster is None else '--cluster'}: the demo draws the paper's jobs, whose load on "
            f"{chosen} is not known; name {' or '.join(_SCENARIOS)}, or start `adlro up --cluster` and "
            "replay jobs of your own (`adlro replay`)",
            field="cluster",
        )
    return chosen


async def _demo(
    scenario: str, count: int, load: float, seed: int, *, fast: bool, running: bool, server: str | None
) -> dict[str, Any]:
    import numpy as np

    from adlro.cli.replaying import replay_specs
    from adlro.workload.job_lists import draw_jobs
    from adlro.workload.scenario import load_scenario

    began_s = time.monotonic()
    cancel_on_sigterm()
    workload = draw_jobs(load_scenario(scenario), load=load, rng=np.random.default_rng(seed), count=count)
    specs = replay_specs(workload)
    scale = 0.0 if fast else max((workload[-1].submit_s + _TAIL_S) / _WATCH_S, 1.0)
    if running:
        async with connect_async(server, patience_s=_PATIENCE_S) as client:
            reports = await _rounds(client, specs, scale)
    else:
        reports = await _in_a_suite_of_its_own(scenario, specs, scale, began_s)
    return {
        "jobs": count,
        "load": load,
        "seed": seed,
        "policies": {report["policy"]: report for report in reports},
        "elapsed_s": time.monotonic() - began_s,
    }


async def _in_a_suite_of_its_own(
    scenario: str, specs: Sequence[JobSpec], scale: float, began_s: float
) -> list[dict[str, Any]]:
    from adlro.cli.starting import StartFailed
    from adlro.cli.suite import Suite, SuitePlan
    from adlro.client import AsyncClient

    with tempfile.TemporaryDirectory(prefix="adlro-demo-") as folder:
        suite = Suite(
            SuitePlan(Path(folder), base_port=0, settings=_SETTINGS | {SETTING: scenario}, page=page_is_installed()),
            lambda text: say(f"[yellow]{escape_lines(text)}[/]"),
        )
        say("starting Valkey and the services ...")
        await suite.start()
        try:
            if problem := await suite.problem(_ACTING_TIMEOUT_S):
                raise StartFailed(problem)
            say(f"[dim]ready after {time.monotonic() - began_s:.1f} s; ingest answers at {suite.server}[/]")
            if suite.page_link:
                say(f"watch it live: [bold]{escape(suite.page_link)}[/]")
            async with AsyncClient(suite.server, patience_s=_PATIENCE_S) as client:
                return await _rounds(client, specs, scale)
        finally:
            say("[dim]stopping the services ...[/]")
            await asyncio.shield(suite.stop())


async def _rounds(client: AsyncClient, specs: Sequence[JobSpec], scale: float) -> list[dict[str, Any]]:
    """First the acting policy, slowly enough for viewers; then the reference, at full speed."""
    policy = (await client.status()).policy
    rounds = [(policy, scale)]
    if policy != REFERENCE_POLICY:
        rounds.append((REFERENCE_POLICY, 0.0))
    return [await _round(client, name, specs, at_scale) for name, at_scale in rounds]


async def _round(client: AsyncClient, policy: str, specs: Sequence[JobSpec], scale: float) -> dict[str, Any]:
    from adlro.cli.demo_view import DemoView
    from adlro.cli.replaying import ReplayOptions, replay
    from adlro.cli.report import build_report

    speed = f"{scale:.0f} times real time" if scale else "at full speed"
    say(f"{len(specs)} jobs under [bold]{escape(policy)}[/], {speed}")
    view = DemoView(stderr(), policy, client, await client.cluster())
    drawing = asyncio.create_task(view.show())
    try:
        result = await replay(client, specs, ReplayOptions(policy=policy, scale=scale), view)
    finally:
        drawing.cancel()
        await asyncio.wait([drawing])
    return build_report(result, {"drawn": True}, ["expected runtimes are the true ones"])


def _print(console: Console, report: dict[str, Any], *, go_on: bool) -> None:
    from adlro.cli.report import comparison_table, whole_table

    reports = list(report["policies"].values())
    names = " and ".join(f"[bold]{escape(each['policy'])}[/]" for each in reports)
    finished = [each["jobs"]["succeeded"] for each in reports]
    console.print(
        f"\n{report['jobs']} jobs at load {report['load']:g}, placed by {names}: "
        + " and ".join(f"{count} succeeded" for count in finished)
        + "\n"
    )
    console.print(comparison_table(reports))
    console.print()
    console.print(whole_table(reports))
    if len(reports) > 1:
        first, reference = reports
        mine, other = first["jct_s"]["mean"], reference["jct_s"]["mean"]
        console.print(
            f"\n[bold]{escape(first['policy'])}[/]: mean JCT {render.seconds(mine)} against {render.seconds(other)}"
            f" under {escape(reference['policy'])}, [bold]{_change(mine, other)}[/]; throughput"
            f" {_change(first['throughput_jobs_per_h'], reference['throughput_jobs_per_h'])}.",
        )
    console.print(
        "[dim]JCT: job completion time, from submission to end, in cluster time."
        " Users' expected runtimes are the true ones.\n"
        f"Took {report['elapsed_s']:.0f} s.{' Go on with: adlro up' if go_on else ''}[/]",
    )


def _change(value: float, reference: float) -> str:
    change = value / reference - 1
    return f"{abs(change):.1%} {'less' if change < 0 else 'more'}"
