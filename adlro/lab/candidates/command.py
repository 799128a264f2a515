"""The command line of `adlro learn`: options, files, exit codes.

Exit codes: 0 a candidate is offered, 1 an error, 2 wrong input, 3 no service answers, 4 the candidate is not offered,
130 interrupted, 143 terminated. stdout carries the result, stderr the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from adlro.cli.data_dir import LEARN, data_dir_of
from adlro.cli.option_types import duration
from adlro.cli.shell import (
    Output,
    OutputOption,
    PlainCommand,
    ServerOption,
    cancel_on_sigterm,
    connect_async,
    say,
    stdout,
)
from adlro.errors import AdlroError, InvalidInput
from adlro.hardware.cluster_files import read_speeds
from adlro.hardware.speeds import SHIPPED as SPEEDS
from adlro.lab.candidates.document import verdict_lines
from adlro.lab.candidates.following import LOOKING, Turns, next_folder, publish
from adlro.lab.candidates.learning import Plan, learn
from adlro.lab.candidates.making import Making
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.reading import ListRequest, checkpoint_in_use, past_of_file, past_of_suite
from adlro.lab.compare.knowledge import KINDS
from adlro.lab.evaluate.request import require_known
from adlro.lab.options import new_app, run_app
from adlro.terminal import escape
from adlro.text import to_json

EXIT_NOT_OFFERED = 4
NICENESS = 19
_PATIENCE_S = 10.0
_LOOK_S = 600.0

app = new_app()


@app.command(cls=PlainCommand)
def run(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder for the candidate and what it is made of; an interrupted learning in it goes on. Default: "
            "`learn` in the data directory of the suite at --server.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Learn from this job list (as for adlro replay) instead of a running suite; needs --cluster.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(metavar="FILE", help="With --jobs: a cluster file, as for adlro up, or a scenario's name."),
    ] = "",
    load: Annotated[
        float | None,
        typer.Option(min=0.05, max=5.0, help="With --jobs: bring the list to this load.", show_default=False),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="What was known of runtimes: known (as far as the suite tells what its decisions expected, else the "
            "user's estimate, else as group); group (means of what had ended by then); true."
        ),
    ] = KINDS[0],
    worlds: Annotated[int, typer.Option(help="Worlds to learn in, for each network that learns.")] = Making.worlds,
    epochs: Annotated[int, typer.Option(help="Passes of a training over what was seen in them.")] = Making.epochs,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = Making.seed,
    judged_share: Annotated[
        float, typer.Option(help="Share of the jobs, the last ones, that judge the candidate.")
    ] = Plan.judged_share,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="The checkpoint to begin with, and to compare with. Default: the one that the suite decides by; with "
            "--jobs the one that ADLRO includes.",
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
            help="A cluster file with speeds of applications on GPU models, for models that no included table has.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Begin anew where a learning was interrupted.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Stay, and learn again when the mix of jobs has changed, or after --every, in new folders."
        ),
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="TIME", help="With --follow: learn again after that, too.", show_default="7d"
        ),
    ] = 7 * 86400.0,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Niceness of this process.")] = NICENESS,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a candidate for the learned policy from what this cluster has run, and judge it; change nothing.

    The earlier jobs teach, the later ones judge: they are replayed under the candidate, under the checkpoint in use,
    under the rule that both correct, and under the rule that was the best for the earlier jobs. `adlro policy promote`
    puts an offered candidate into service. A process of its own, for spare cores; hundreds of finished jobs are needed.
    """
    require_known(runtime, KINDS, "runtime", "knowledge of runtimes")
    plan = Plan(Making(worlds, epochs, seed), judged_share)
    if (jobs is None) != (not cluster):
        raise InvalidInput("--jobs and --cluster belong together: give both, or neither", field="cluster")
    if jobs is None and load is not None:
        raise InvalidInput("--load goes with --jobs: a suite's jobs are taken as they came", field="load")
    if jobs is not None and speeds is not None:
        raise InvalidInput("--speeds goes with a suite: with --jobs the cluster file has them", field="speeds")
    if follow and (jobs is not None or again):
        raise InvalidInput("--follow goes neither with --jobs nor with --again", field="follow")
    with contextlib.suppress(OSError):
        os.nice(nice)
    source = _Source(
        None if jobs is None else ListRequest(jobs, cluster, load, runtime, seed=0),
        server,
        runtime,
        speeds,
        checkpoint,
    )
    if folder is None and jobs is not None:
        raise InvalidInput("FOLDER: is needed with --jobs: name a folder for the candidate", field="folder")
    target = folder or source.folder()
    shadow = source.watched(target)
    if follow:
        _follow(source, plan, target, every, output, shadow=shadow)
        return
    past, in_use = source.read()
    if not _learn_once(past, in_use, plan, target, again=again, output=output, shadow=shadow):
        raise typer.Exit(EXIT_NOT_OFFERED)


class _Source:
    """Where the past comes from."""

    def __init__(
        self, request: ListRequest | None, server: str | None, runtime: str, speeds: Path | None, given: Path | None
    ) -> None:
        self._request, self._server, self._runtime = request, server, runtime
        self._speeds = SPEEDS if speeds is None else read_speeds(speeds)
        self._given = given

    def folder(self) -> Path:
        """The folder where none is named.

        Raises:
            InvalidInput: there is no data directory.
        """
        data_dir = data_dir_of(self._server)
        if data_dir is None:
            raise InvalidInput(
                "folder: no suite of yours runs on this machine at --server, so name a FOLDER", field="folder"
            )
        return data_dir / LEARN

    def watched(self, folder: Path) -> bool:
        """Whether the suite's orchestrator looks for a candidate in a folder."""
        data_dir = None if self._request is not None else data_dir_of(self._server)
        return data_dir is not None and folder.absolute() == (data_dir / LEARN).absolute()

    def read(self, runtime: str = "") -> tuple[Past, Path]:
        """The past, and the file of the checkpoint in use; `runtime`: another knowledge of runtimes."""
        if self._request is not None:
            return past_of_file(self._request), checkpoint_in_use("", None, self._given)
        past, version = asyncio.run(self._of_suite(runtime or self._runtime))
        return past, checkpoint_in_use(version, data_dir_of(self._server), self._given)

    async def _of_suite(self, runtime: str) -> tuple[Past, str]:
        cancel_on_sigterm()
        async with connect_async(self._server, patience_s=_PATIENCE_S) as client:
            return await past_of_suite(client, self._speeds, runtime)


def _learn_once(
    past: Past, in_use: Path, plan: Plan, folder: Path, *, again: bool, output: Output, shadow: bool
) -> bool:
    begin_s = time.monotonic()
    verdict, document = learn(past, in_use, plan, folder, lambda text: say(f"[dim]{escape(text)}[/]"), again=again)
    say(f"[dim]{time.monotonic() - begin_s:.0f} s[/]")
    _show(document, output, folder, shadow=shadow)
    return verdict.offered


def _show(document: dict[str, Any], output: Output, folder: Path, *, shadow: bool) -> None:
    if output is Output.JSON:
        sys.stdout.write(to_json(document, indent=2, allow_nan=False) + "\n")
        sys.stdout.flush()
        return
    console = stdout()
    for line in verdict_lines(document):
        console.print(line, soft_wrap=True)
    if document["offered"]:
        beside = "beside the acting policy first: [bold]adlro policy --shadow dqn_candidate[/]; " if shadow else ""
        console.print(f"{beside}into service: [bold]adlro policy promote {escape(str(folder))}[/]", soft_wrap=True)


def _follow(source: _Source, plan: Plan, folder: Path, every_s: float, output: Output, *, shadow: bool) -> None:
    """Learns again and again, in folders with ascending numbers; an offered candidate is copied to the folder."""
    turns = Turns(every_s)
    while True:
        try:
            past, _ = source.read(LOOKING)
            turn = turns.next(past, time.monotonic())
            if turn is not None:
                say(f"[bold]learning[/]: {escape(turn.why)}")
                past, in_use = source.read()
                run_folder = next_folder(folder)
                of = past if turn.since_s is None else past.after(turn.since_s)
                if _learn_once(of, in_use, plan, run_folder, again=False, output=output, shadow=shadow):
                    publish(run_folder, folder)
        except (AdlroError, OSError) as error:
            say(f"[yellow]{escape(error.message if isinstance(error, AdlroError) else str(error))}[/]")
        time.sleep(_LOOK_S)


def main() -> None:
    """Runs the command line."""
    run_app(app, "adlro learn", {"folder": "FOLDER"})
