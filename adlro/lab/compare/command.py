"""The command line of a comparison: options, files, exit codes.

Exit codes: 0 all right, 1 an error, 2 wrong input, 3 no service answers, 130 interrupted, 143 terminated. stdout
carries the result, stderr the rest.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from adlro.cli.shell import (
    Output,
    OutputOption,
    PlainCommand,
    ServerOption,
    cancel_on_sigterm,
    connect_async,
    say,
    stderr,
    stdout,
)
from adlro.decide.catalog import of_files
from adlro.hardware.cluster_files import read_speeds
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.lab.compare.comparing import Request, compare
from adlro.lab.compare.document import build_document
from adlro.lab.compare.knowledge import KINDS
from adlro.lab.compare.reading import Suite, predicted_speeds, read_suite, reference_note
from adlro.lab.compare.resampling import RESAMPLES
from adlro.lab.compare.tables import print_comparison
from adlro.lab.evaluate.partial import is_stream, require_writable, write_whole
from adlro.lab.options import (
    json_option,
    new_app,
    policy_file_option,
    precedence_option,
    run_app,
    wait_ratio_option,
)
from adlro.terminal import escape
from adlro.text import to_json

_PATIENCE_S = 10.0

app = new_app()


@app.command(cls=PlainCommand)
def run(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POLICY]...",
            help="Policies to compare with the one that acted. Default: the shadow policy; without one, "
            "hold_greedy_fixed (fcfs where that acted).",
            show_default=False,
        ),
    ] = None,
    policy_file: Annotated[list[str] | None, policy_file_option()] = None,
    since: Annotated[
        float | None,
        typer.Option(help="Count jobs submitted from then on: seconds of cluster time.", show_default=False),
    ] = None,
    until: Annotated[
        float | None, typer.Option(help="Count jobs submitted before: seconds of cluster time.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Count at most so many jobs, the newest.", show_default=False)
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="What the policies know of runtimes: known, as far as records tell what was expected then, else the "
            "user's estimate, else what the jobs that had ended by then say; group, the last alone; true."
        ),
    ] = KINDS[0],
    acted: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="The policy under which the jobs truly ran. Default: the one that is set now.",
            show_default=False,
        ),
    ] = None,
    wait_ratio: Annotated[float | None, wait_ratio_option("the suite's")] = None,
    precedence: Annotated[str | None, precedence_option("the suite's")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="The learned policy's checkpoint. Default: the one that ADLRO includes.",
            show_default=False,
        ),
    ] = None,
    speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="A cluster file with speeds of applications on GPU models, as for adlro up --cluster. Default: the "
            "included tables; for other models what decompose predicts.",
            show_default=False,
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(help="Resampled histories that intervals rest on, from 40 on; 0: no intervals.")
    ] = RESAMPLES,
    json_path: Annotated[str | None, json_option("Also write the JSON document")] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay the suite's finished jobs in the simulator under other policies: what would have been gained?

    The same jobs, at the same times, with what they truly ran, under each policy; differences are paired, with 95 %
    intervals from resampled histories, replayed as well. Nothing is changed in the suite.
    """
    request = Request(
        policies=tuple(dict.fromkeys(policies or ())),
        acted=acted,
        runtime=runtime,
        since_s=since,
        until_s=until,
        limit=limit,
        wait_ratio=wait_ratio,
        precedence=precedence,
        checkpoint=checkpoint,
        resamples=resamples,
        own=of_files(policy_file or ()),
    )
    if json_path is not None:
        require_writable(Path(json_path), "json")
    known = SHIPPED if speeds is None else read_speeds(speeds)
    found, table, notes = asyncio.run(_read(server, known, decisions=runtime == KINDS[0]))
    with stderr().status("replaying") as status:
        comparison = compare(
            found, table, request, notes=notes, progress=lambda name: status.update(f"replaying under {escape(name)}")
        )
    document = build_document(comparison)
    text = to_json(document, indent=2, allow_nan=False) + "\n"
    if json_path is not None:
        write_whole(Path(json_path), text.encode())
    if output is Output.JSON:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    # A document that goes to a pipe must not be mixed with tables.
    piped = json_path is not None and is_stream(Path(json_path))
    print_comparison(stderr() if piped else stdout(), document)
    if json_path is not None:
        say(f"[dim]written: {escape(json_path)}[/]")


async def _read(
    server: str | None, speeds: SpeedTable, *, decisions: bool
) -> tuple[Suite, SpeedTable, tuple[str, ...]]:
    """What the suite says, speeds of all models of its cluster, and notes about these."""
    cancel_on_sigterm()
    async with connect_async(server, patience_s=_PATIENCE_S) as client:
        suite = await read_suite(client, decisions=decisions)
        missing = [model for model in suite.cluster.gpu_models if model not in speeds.gpu_models]
        table = await predicted_speeds(client, suite, speeds)
    return suite, table, (reference_note(missing),) if missing else ()


def main() -> None:
    """Runs the command line."""
    run_app(app, "adlro compare", {"policies": "POLICY"})
