"""The command line of an evaluation: options, the folder of partial results, files, exit codes.

Exit codes: 0 all right, 1 an error or a policy that got stuck, 2 wrong input, 130 interrupted, 143 terminated.
stdout carries the tables, stderr the rest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from adlro.cli.shell import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_USAGE, PlainCommand, stderr, stdout
from adlro.errors import AdlroError, InvalidInput, NotFound, with_extra
from adlro.lab.evaluate.cases import Case, build_cases
from adlro.lab.evaluate.document import build_document
from adlro.lab.evaluate.evaluation import Evaluation, evaluate
from adlro.lab.evaluate.hyperscore import Weights
from adlro.lab.evaluate.partial import (
    PartialResults,
    is_stream,
    require_writable,
    same_file,
    target_of,
    write_whole,
)
from adlro.lab.evaluate.request import (
    DEFAULT_LISTS,
    TRACE,
    Request,
    parse_loads,
    parse_policies,
    parse_scenarios,
    split_own,
)
from adlro.lab.evaluate.tables import ProgressBar, print_tables
from adlro.lab.options import (
    json_option,
    message_on_options,
    new_app,
    policy_file_option,
    precedence_option,
    wait_ratio_option,
)
from adlro.lab.own_policies import given_policies
from adlro.records.precedence import parse_precedence
from adlro.terminal import escape, escape_lines
from adlro.text import to_json

EXTRAS = ("scipy", "jinja2", "plotly")


class _TerminatedError(BaseException):
    """SIGTERM."""


app = new_app()


@app.command(cls=PlainCommand)
def run(
    scenario: Annotated[
        str | None,
        typer.Option(
            help="paper, paper_roomy, surge, gavel, gangs, gangs_64, ... or trace; several with commas. "
            "Default: paper, or trace where --trace is given.",
            show_default=False,
        ),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="Arrival rates as shares of the cluster's capacity, such as 0.6,0.9,1.1. Default: the scenario's "
            "loads; a trace's own times.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Jobs in a list. From a trace: its first jobs; for several lists, consecutive jobs from places drawn "
            "at random. Default: 256; a whole trace.",
            show_default=False,
        ),
    ] = None,
    policies: Annotated[
        str, typer.Option(help="Policies with commas; all: every one; all,-hungarian: all but hungarian.")
    ] = "all",
    policy_file: Annotated[list[str] | None, policy_file_option()] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="A checkpoint of the learned policy, compared like the named policies. As in service, it leaves "
            "decisions outside its training range to the rule. Default of NAME: the file's name without its ending. "
            "May be given several times.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help=f"Job lists for each load. Default: {DEFAULT_LISTS}; 1 of a whole trace.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the job lists, of noise, and of the bootstrap.")] = 0,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="A job list or trace with the jobs.")] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(help="swf, philly, alibaba, gavel or paper; required if the file does not show it."),
    ] = None,
    multi_gpu: Annotated[
        str | None,
        typer.Option(
            help="A trace's jobs of several GPUs: gang, they keep them, and those too large for the cluster are left "
            "out; one, each gets one GPU. Default: gang; one for swf, which counts processors.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Another cluster than the scenario's: that of a scenario, such as gangs_64, or a TOML file.",
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="Runtime information of policies: true, noise:SIGMA, group, type, none, or learned: a decompose that "
            "starts with an empty memory and learns from the list's own ended jobs."
        ),
    ] = "true",
    pairs: Annotated[
        str,
        typer.Option(
            help="What policies know of two jobs that share a GPU: true, each pair; family, the mean of the other "
            "pairs of the two families; application, row and column means; mean, one for each GPU model."
        ),
    ] = "true",
    decompose: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="For learned: a running decompose without a memory file. Default: a separate one.",
            show_default=False,
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store of that decompose; must be empty.", show_default=False),
    ] = None,
    json_path: Annotated[str | None, json_option("Write the results")] = None,
    html_path: Annotated[
        str | None, typer.Option("--html", metavar="OUT", help="Write a page with tables and plots to this file.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Weights of JCT, throughput and useful utilization in the HyperScore.")
    ] = "1,1,1",
    wait_ratio: Annotated[float | None, wait_ratio_option("each policy's own")] = None,
    precedence: Annotated[str | None, precedence_option("none")] = None,
    processes: Annotated[
        int | None, typer.Option(help="Worker processes. Default: one for each core.", show_default=False)
    ] = None,
) -> None:
    """Judge policies on simulated clusters: the same job lists for each, paired comparisons, 95 % intervals.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    if processes is not None and processes < 1:
        raise InvalidInput(f"processes: must be at least 1, not {processes}", field="processes")
    named, own = split_own(parse_policies(policies))
    own |= given_policies(policy_file or (), checkpoint or ())
    request = Request(
        policies=named,
        own=own,
        scenarios=((TRACE,) if trace is not None else ("paper",)) if scenario is None else parse_scenarios(scenario),
        loads=None if load is None else parse_loads(load),
        jobs=jobs,
        lists=seeds,
        seed=seed,
        trace=trace,
        trace_format=trace_format,
        multi_gpu=multi_gpu,
        cluster=cluster,
        runtime=runtime,
        pairs=pairs,
        decompose=decompose,
        redis_url=redis_url,
        weights=_weights(weights),
        wait_ratio=wait_ratio,
        precedence=parse_precedence(precedence or ""),
    )
    outputs = []
    for path, option in ((json_path, "json"), (html_path, "html")):
        if path is not None:
            require_writable(Path(path), option)
            outputs.append(Path(path))
    if len(outputs) == 2 and same_file(*outputs):
        raise InvalidInput(f"html: {html_path}: the same file as --json {json_path}", field="html")
    cases, notes = build_cases(request)
    for note in notes:
        _say(f"[yellow]{escape(note)}[/]")
    partial = PartialResults(_partial_folder(request, cases, outputs))
    partial.prepare()
    try:
        evaluation = _evaluated(request, (cases, notes), partial, processes)
        document = build_document(evaluation)
        if json_path is not None:
            text = to_json(document, indent=1, allow_nan=False) + "\n"
            write_whole(Path(json_path), text.encode())
        if html_path is not None:
            from adlro.lab.evaluate.page import build_page

            write_whole(Path(html_path), build_page(evaluation, document).encode())
        # A document that goes to a pipe must not be mixed with tables.
        print_tables(stderr() if any(is_stream(path) for path in outputs) else stdout(), document)
        for written in outputs:
            _say(f"[dim]written: {escape(str(written))}[/]")
        partial.clear()
    finally:
        partial.release()
    if evaluation.stuck:
        for stuck in evaluation.stuck[:10]:
            _say(f"[bold red]error:[/] {escape(stuck.sentence)}")
        raise typer.Exit(EXIT_ERROR)


def _evaluated(
    request: Request, prepared: tuple[list[Case], list[str]], partial: PartialResults, processes: int | None
) -> Evaluation:
    _say(f"[dim]partial results: {escape(str(partial.folder))} (removed at the end)[/]")
    try:
        with ProgressBar(stderr()) as progress:

            def tell(phase: str, done: int, total: int) -> None:
                _end_if_told()
                progress(phase, done, total)

            return evaluate(request, processes=processes, partial=partial, progress=tell, prepared=prepared)
    except (KeyboardInterrupt, _TerminatedError):
        kept = sum(1 for path in partial.folder.glob("*.npz"))
        _say(
            f"[yellow]interrupted[/]; {kept} finished parts are kept in {escape(str(partial.folder))}: the same "
            "command resumes from them"
        )
        raise


def _partial_folder(request: Request, cases: Sequence[Case], outputs: Sequence[Path]) -> Path:
    """The folder beside the first output file; without one, in the user's cache, named by the request."""
    files = [target_of(path) for path in outputs if not is_stream(path)]
    if files:
        return files[0].with_name(files[0].name + ".partial")
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    what = repr((request.names, [(case.digest, case.lists) for case in cases]))
    return Path(root) / "adlro" / "evaluate" / hashlib.blake2b(what.encode(), digest_size=8).hexdigest()


def _weights(text: str) -> Weights:
    try:
        jct, throughput, useful = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"weights: must be three numbers, such as 1,1,1, not '{text}'", field="weights") from None
    return Weights(jct, throughput, useful)


def _say(text: str) -> None:
    stderr().print(text, soft_wrap=True)  # so that a path or message can be searched


_told_by: list[int] = []
"""The signal that has told this process to end."""


def _end(number: int, _: Any) -> None:
    # Handled once: a second Ctrl-C, or one by another way, must not disturb the end.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    _told_by.append(number)
    _end_if_told()


def _end_if_told() -> None:
    # Also called between tasks: what a handler raises is lost in a destructor, or in a callback of compiled code.
    if signal.SIGTERM in _told_by:
        raise _TerminatedError
    if _told_by:
        raise KeyboardInterrupt


def main() -> None:
    """Runs the command line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing and not {"-h", "--help"} & set(sys.argv[1:]):
        _say(
            f"[bold red]error:[/] adlro evaluate needs {', '.join(missing)}; "
            f"install it {escape(with_extra('evaluate'))}"
        )
        sys.exit(EXIT_ERROR)
    try:
        app(prog_name="adlro evaluate", standalone_mode=True)
    except (InvalidInput, NotFound) as error:
        _say(f"[bold red]error:[/] {escape_lines(message_on_options(error))}")
        sys.exit(EXIT_USAGE)
    except AdlroError as error:
        _say(f"[bold red]error:[/] {escape_lines(message_on_options(error))}")
        sys.exit(EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except _TerminatedError:
        sys.exit(EXIT_TERMINATED)
    except OSError as error:
        _say(f"[bold red]error:[/] {escape_lines(str(error))}")
        sys.exit(EXIT_ERROR)
