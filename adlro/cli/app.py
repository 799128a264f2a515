"""The command line put together. Commands import what they need when they run, so that `adlro --help` is quick."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from adlro.cli import cluster, describe, gpus, jobs
from adlro.cli.demo import demo
from adlro.cli.evaluate import SETTINGS as EVALUATE_SETTINGS
from adlro.cli.evaluate import evaluate
from adlro.cli.replay import replay
from adlro.cli.shell import ReportingGroup
from adlro.cli.up import up

app = typer.Typer(
    cls=ReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="ADLRO places jobs on the GPUs of a mixed cluster. Begin with [bold]adlro demo[/], or [bold]adlro up[/] and "
    "[bold]adlro submit[/].",
    epilog="Exit codes: 0 all right, 1 an error, 2 wrong usage, 3 nothing answers. Environment: ADLRO_SERVER, "
    "ADLRO_DECOMPOSE_SERVER, ADLRO_ORCHESTRATOR_SERVER, ADLRO_CLUSTER_SERVER (host:port each), ADLRO_REDIS_URL.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adlro {metadata.version('adlro')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None: ...


SUITE, JOBS, CLUSTER = "The suite", "Jobs", "Cluster and policies"

app.command(rich_help_panel=SUITE)(up)
app.command(rich_help_panel=SUITE)(demo)
app.command(rich_help_panel=SUITE)(cluster.status)

app.command(rich_help_panel=JOBS)(jobs.submit)
app.command(rich_help_panel=JOBS)(jobs.queue)
app.add_typer(describe.describe, name="describe", rich_help_panel=JOBS)
app.command(rich_help_panel=JOBS)(jobs.watch)
app.command(rich_help_panel=JOBS)(jobs.cancel)
app.command(rich_help_panel=JOBS)(replay)

app.command(rich_help_panel=CLUSTER)(gpus.gpus)
app.command(rich_help_panel=CLUSTER)(cluster.policy)
app.command(rich_help_panel=CLUSTER, context_settings=dict(EVALUATE_SETTINGS))(evaluate)
app.command(rich_help_panel=CLUSTER)(cluster.drain)
app.command(rich_help_panel=CLUSTER)(cluster.undrain)
app.command(rich_help_panel=CLUSTER)(cluster.clock)
