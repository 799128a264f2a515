"""The assembled command line. Commands import their dependencies when they run, so that `adlro --help` is quick."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from adlro import __version__
from adlro.cli import cluster, describe, gpus, job_requests, jobs
from adlro.cli.certs import certs
from adlro.cli.compare import compare
from adlro.cli.decisions import decisions
from adlro.cli.demo import demo
from adlro.cli.describe_node import describe_node
from adlro.cli.doctor import doctor
from adlro.cli.evaluate import SETTINGS as EVALUATE_SETTINGS
from adlro.cli.evaluate import evaluate
from adlro.cli.fair_share import fair_share
from adlro.cli.job_command import JobCommand
from adlro.cli.learn import learn
from adlro.cli.listing.options import ReadingCommand
from adlro.cli.logs import logs
from adlro.cli.nodes import nodes
from adlro.cli.policy import policy
from adlro.cli.queue import history, queue
from adlro.cli.quota import quota
from adlro.cli.replay import replay
from adlro.cli.run import run
from adlro.cli.shell import ReportingGroup
from adlro.cli.status import status
from adlro.cli.submit import submit
from adlro.cli.token import token
from adlro.cli.top.command import top
from adlro.cli.train import train
from adlro.cli.up import up
from adlro.cli.usage import usage
from adlro.cli.webhooks import webhooks
from adlro.cli.whoami import whoami
from adlro.cli.why import why
from adlro.cli.workload import workload

app = typer.Typer(
    cls=ReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="ADLRO places jobs on the GPUs of a mixed cluster. Start with [bold]adlro demo[/], or [bold]adlro up[/] and "
    "[bold]adlro submit[/].",
    epilog="Exit codes: 0 success, 1 error, 2 wrong usage, 3 no service answers. Environment: ADLRO_SERVER, "
    "ADLRO_DECOMPOSE_SERVER, ADLRO_ORCHESTRATOR_SERVER, ADLRO_CLUSTER_SERVER (host:port each), ADLRO_REDIS_URL, "
    "ADLRO_TLS_CA_FILE, ADLRO_TLS_CERT_FILE, ADLRO_TLS_KEY_FILE, ADLRO_TOKEN_FILE.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adlro {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    tls_ca: Annotated[
        str,
        typer.Option(
            "--tls-ca", metavar="FILE", envvar="ADLRO_TLS_CA_FILE", help="Use TLS; the servers' authorities (PEM)."
        ),
    ] = "",
    tls_cert: Annotated[
        str,
        typer.Option("--tls-cert", metavar="FILE", envvar="ADLRO_TLS_CERT_FILE", help="Your own certificate (PEM)."),
    ] = "",
    tls_key: Annotated[
        str, typer.Option("--tls-key", metavar="FILE", envvar="ADLRO_TLS_KEY_FILE", help="Its key (PEM).")
    ] = "",
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", envvar="ADLRO_TOKEN_FILE", help="Your token.")
    ] = "",
) -> None:
    # Through the environment, where the client reads them: so services and programs started here inherit them.
    for name, path in (("TLS_CA", tls_ca), ("TLS_CERT", tls_cert), ("TLS_KEY", tls_key), ("TOKEN", token_file)):
        if path:
            os.environ[f"ADLRO_{name}_FILE"] = path


SUITE, JOBS, CLUSTER = "The suite", "Jobs", "Cluster and policies"

app.command(rich_help_panel=SUITE)(up)
app.command(rich_help_panel=SUITE)(demo)
app.command(rich_help_panel=SUITE)(doctor)
app.command(cls=ReadingCommand, rich_help_panel=SUITE)(status)
app.command(rich_help_panel=SUITE)(webhooks)
app.command(rich_help_panel=SUITE)(certs)
app.command(rich_help_panel=SUITE)(token)
app.command(rich_help_panel=SUITE)(whoami)

app.command(cls=JobCommand, rich_help_panel=JOBS)(run)
app.command(cls=JobCommand, rich_help_panel=JOBS)(submit)
app.command(cls=ReadingCommand, rich_help_panel=JOBS)(queue)
app.command(cls=ReadingCommand, rich_help_panel=JOBS)(history)
describe.describe.command("node")(describe_node)
app.add_typer(describe.describe, name="describe", rich_help_panel=JOBS)
app.command(rich_help_panel=JOBS)(why)
app.command(rich_help_panel=JOBS)(logs)
app.command(rich_help_panel=JOBS)(jobs.watch)
app.command(rich_help_panel=JOBS)(job_requests.cancel)
app.command(rich_help_panel=JOBS)(job_requests.hold)
app.command(rich_help_panel=JOBS)(job_requests.release)
app.command(rich_help_panel=JOBS)(job_requests.update)
app.command(rich_help_panel=JOBS)(jobs.requeue)
app.command(rich_help_panel=JOBS)(replay)
app.command(rich_help_panel=JOBS)(workload)

app.command(rich_help_panel=CLUSTER)(top)
app.command(cls=ReadingCommand, rich_help_panel=CLUSTER)(nodes)
app.command(cls=ReadingCommand, rich_help_panel=CLUSTER)(gpus.gpus)
app.command(cls=ReadingCommand, rich_help_panel=CLUSTER)(usage)
app.command(cls=ReadingCommand, rich_help_panel=CLUSTER)(policy)
app.command(cls=ReadingCommand, rich_help_panel=CLUSTER)(decisions)
app.command(rich_help_panel=CLUSTER, context_settings=dict(EVALUATE_SETTINGS))(compare)
app.command(rich_help_panel=CLUSTER, context_settings=dict(EVALUATE_SETTINGS))(evaluate)
app.command(rich_help_panel=CLUSTER, context_settings=dict(EVALUATE_SETTINGS))(train)
app.command(rich_help_panel=CLUSTER, context_settings=dict(EVALUATE_SETTINGS))(learn)
app.command(rich_help_panel=CLUSTER)(quota)
app.command(rich_help_panel=CLUSTER)(fair_share)
app.command(rich_help_panel=CLUSTER)(cluster.drain)
app.command(rich_help_panel=CLUSTER)(cluster.undrain)
app.command(rich_help_panel=CLUSTER)(cluster.clock)
