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

from adlro.cli.data_dir import LEARN
from adlro.cli.option_types import duration
from adlro.cli.shell import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    Output,
    OutputOption,
    PlainCommand,
    ServerOption,
    cancel_on_sigterm,
    connect_async,
    report,
    say,
    stdout,
)
from adlro.errors import AdlroError, Conflict, InvalidInput
from adlro.hardware.cluster_files import read_speeds
from adlro.hardware.speeds import SHIPPED as SPEEDS
from adlro.lab.candidates.document import verdict_lines
from adlro.lab.candidates.drift import ANOTHER, drift
from adlro.lab.candidates.learning import Plan, clear, learn, publish
from adlro.lab.candidates.making import Making
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.reading import ListRequest, checkpoint_in_use, data_dir_of, past_of_file, past_of_suite
from adlro.lab.compare.knowledge import KINDS
from adlro.lab.evaluate.request import require_known
from adlro.lab.options import message_on_options, new_app
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
    again: Annotated[bool, typer.Option("--again", help="Begin anew in a folder that holds another learning.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Stay, and learn again when the mix of jobs has changed, or after --every, in new folders."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(parser=duration, metavar="TIME", help="With --follow: learn again after that, too.")
    ] = 7 * 86400.0,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Niceness of this process.")] = NICENESS,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a candidate for the learned policy from what this cluster has run, and judge it; change nothing.

    The earlier jobs teach, the later ones judge: they are replayed under the candidate, under the checkpoint in use and
    under the rule that both correct. `adlro policy promote` puts an offered candidate into service. A process of its
    own, for spare cores; hundreds of finished jobs are needed.
    """
    require_known(runtime, KINDS, "runtime", "knowledge of runtimes")
    plan = Plan(Making(worlds, epochs, seed), judged_share)
    if (jobs is None) != (not cluster):
        raise InvalidInput("--jobs and --cluster belong together: give both, or neither", field="cluster")
    if jobs is None and load is not None:
        raise InvalidInput("--load goes with --jobs: a suite's jobs are taken as they came", field="load")
    if follow and jobs is not None:
        raise InvalidInput("--follow goes with a running suite, not with --jobs", field="follow")
    with contextlib.suppress(OSError):
        os.nice(nice)
    source = _Source(
        None if jobs is None else ListRequest(jobs, cluster, load, runtime, seed=0),
        server,
        runtime,
        speeds,
        checkpoint,
    )
    target = folder or source.folder()
    if follow:
        _follow(source, plan, target, every, output)
        return
    past, in_use = source.read()
    offered = _learn_once(past, in_use, plan, target, again=again, output=output)
    if not offered:
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
        data_dir = None if self._request is not None else data_dir_of(self._server)
        if data_dir is None:
            raise InvalidInput(
                "folder: no suite of yours runs on this machine at --server, so name a FOLDER", field="folder"
            )
        return data_dir / LEARN

    def read(self) -> tuple[Past, Path]:
        """The past, and the file of the checkpoint in use."""
        if self._request is not None:
            return past_of_file(self._request), checkpoint_in_use("", None, self._given)
        past, version = asyncio.run(self._of_suite())
        return past, checkpoint_in_use(version, data_dir_of(self._server), self._given)

    async def _of_suite(self) -> tuple[Past, str]:
        cancel_on_sigterm()
        async with connect_async(self._server, patience_s=_PATIENCE_S) as client:
            return await past_of_suite(client, self._speeds, self._runtime)


def _learn_once(past: Past, in_use: Path, plan: Plan, folder: Path, *, again: bool, output: Output) -> bool:
    if again:
        clear(folder)
    begin_s = time.monotonic()
    verdict, document = learn(past, in_use, plan, folder, lambda text: say(f"[dim]{escape(text)}[/]"))
    say(f"[dim]{time.monotonic() - begin_s:.0f} s[/]")
    _show(document, output, folder)
    return verdict.offered


def _show(document: dict[str, Any], output: Output, folder: Path) -> None:
    if output is Output.JSON:
        sys.stdout.write(to_json(document, indent=2, allow_nan=False) + "\n")
        sys.stdout.flush()
        return
    console = stdout()
    for line in verdict_lines(document):
        console.print(line, soft_wrap=True)
    if document["offered"]:
        console.print(
            "beside the acting policy first: [bold]adlro policy --shadow dqn_candidate[/]; into service: [bold]adlro "
            f"policy promote {escape(str(folder))}[/]",
            soft_wrap=True,
        )


def _follow(source: _Source, plan: Plan, folder: Path, every_s: float, output: Output) -> None:
    """Learns again and again, in folders with ascending numbers."""
    learned: Past | None = None
    learned_at = -every_s
    while True:
        why = ""
        try:
            past, in_use = source.read()
            why = _why_now(learned, past, time.monotonic() - learned_at, every_s)
            if why:
                say(f"[bold]learning[/]: {escape(why)}")
                number = 1 + max((int(each.name) for each in folder.glob("[0-9]*") if each.name.isdigit()), default=0)
                run_folder = folder / f"{number:04d}"
                _learn_once(past, in_use, plan, run_folder, again=False, output=output)
                publish(run_folder, folder)
                learned, learned_at = past, time.monotonic()
        except (AdlroError, Conflict) as error:
            say(f"[yellow]{escape(error.message)}[/]")
        time.sleep(_LOOK_S)


def _why_now(learned: Past | None, past: Past, passed_s: float, every_s: float) -> str:
    """Why to learn now; empty: not now."""
    if learned is None:
        return "the first time"
    since = len(past) - len(learned)
    if since > 0 and passed_s >= every_s:
        return f"{since} jobs have finished since the last time"
    index = drift(learned, past.part(len(learned), len(past))) if since > 0 else None
    if index is not None and index > ANOTHER:
        return f"the mix of jobs has changed: population stability index {index:.2f}, above {ANOTHER}"
    return ""


def main() -> None:
    """Runs the command line."""
    try:
        app(prog_name="adlro learn", standalone_mode=True)
    except AdlroError as error:
        named = message_on_options(error, {"folder": "FOLDER"})
        if named != error.message:
            error.message, error.violations = named, ()
        code = report(error)
        sys.exit(EXIT_USAGE if isinstance(error, InvalidInput) and code == EXIT_ERROR else code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except asyncio.CancelledError:
        sys.exit(EXIT_TERMINATED)
    except OSError as error:
        say(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(EXIT_ERROR)
