"""The command line of training: `python -m adlro.lab.learn`, which `adlro train` runs.

Exit codes: 0 all right, 1 an error, 2 wrong input, 130 interrupted. stdout says where the models lie,
stderr the rest.
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from adlro.errors import AdlroError, InvalidInput
from adlro.lab.learn.recipes import RECIPES, Recipe, recipe_named
from adlro.terminal import escape

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from adlro.lab.learn import training

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
DECISIONS = 20_000_000
"""Environment steps of a training that is told no end."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command()
def run(
    folder: Annotated[
        Path,
        typer.Argument(help="Where checkpoints, models and logs go. A training that is there goes on where it stood."),
    ],
    recipe: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}.")] = "adlro",
    seed: Annotated[int, typer.Option(min=0, help="Of everything by chance.")] = 1,
    decisions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Environment steps in all; 20 million unless --episodes is given.", show_default=False
        ),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Job lists in all, run to their end.", show_default=False)
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="End after so many, if that is sooner.")] = math.inf,
    start: Annotated[
        Path | None,
        typer.Option(help="A network (.pt, .onnx) to begin with; else one that does what hold_greedy_fixed does."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    threads: Annotated[
        int, typer.Option(min=1, max=2, help="2: simulates and learns at once; the result is the same.")
    ] = 2,
    idle: Annotated[float | None, typer.Option(help="Lambda: what an idle GPU costs against a waiting job.")] = None,
    by_priority: Annotated[
        bool | None, typer.Option("--by-priority/--by-count", help="Jobs count by their priority.", show_default=False)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of the recipe, such as --set learning_rate=0.0003; several times."),
    ] = None,
    checkpoint_s: Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints.")] = 60.0,
) -> None:
    """Trains a network, chooses its best checkpoint on lists of its own, and writes it for the orchestrator."""
    import torch  # here, so that --help works without it

    from adlro.lab.learn import training

    changes = _changes(setting or [], recipe)
    if idle is not None:
        changes["idle"] = idle
    if by_priority is not None:
        changes["by_priority"] = by_priority
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInput("device: torch finds no CUDA device on this machine; take --device cpu", field="device")
    trained = training.Training(
        folder,
        recipe_named(recipe, **changes),
        seed=seed,
        start=start,
        device=device,
        commit=commit_of_this_code(),
        threads=threads,
        checkpoint_s=checkpoint_s,
    )
    if decisions is None and episodes is None:
        decisions = DECISIONS
    _train(trained, folder, decisions or math.inf, episodes or math.inf, minutes)


def _train(trained: training.Training, folder: Path, decisions: float, episodes: float, minutes: float) -> None:
    from torch.utils.tensorboard import SummaryWriter

    console = Console(stderr=True)
    if trained.resumed:
        console.print(f"goes on after generation {trained.generation}, {trained.decisions} decisions")
    end_s = time.monotonic() + 60.0 * minutes
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}, {task.fields[rate]:,.0f} decisions/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with (
        Progress(*columns, console=console) as bar,
        SummaryWriter(str(folder / "tensorboard"), purge_step=trained.decisions) as board,
    ):
        in_episodes = decisions == math.inf
        task = bar.add_task(
            "training",
            total=episodes if in_episodes else decisions,
            completed=trained.episodes if in_episodes else trained.decisions,
            unit="episodes" if in_episodes else "decisions",
            rate=0.0,
            said="",
        )
        before_s, before, said = time.monotonic(), trained.decisions, "not judged yet"
        for step in trained.run(lambda: time.monotonic() >= end_s, decisions=decisions, episodes=episodes):
            _log(board, step)
            if step.score is not None:
                said = (
                    f"{100 * step.score.gain:+.2f} % (± {196 * step.score.error:.2f}) against hold_greedy_fixed, best "
                    f"{'none' if step.best is None else f'{100 * step.best:+.2f} %'}"
                )
                if not console.is_terminal:
                    console.print(f"{trained.episodes} episodes, {step.decisions} decisions: {said}")
            now_s = time.monotonic()
            rate = (step.decisions - before) / max(now_s - before_s, 1e-9)
            done = min(trained.episodes, episodes) if in_episodes else min(step.decisions, decisions)
            bar.update(task, completed=done, rate=rate, said=said)
    for path in trained.finish():
        Console(soft_wrap=True).print(str(path), markup=False, highlight=False)


def _log(board: SummaryWriter, step: training.Progress) -> None:
    figures: dict[str, float] = {
        "loss": step.loss,
        "epsilon": step.epsilon,
        "generation/mean_jct_s": step.mean_jct_s,
        "generation/holds": step.holds,
    }
    if step.score is not None:
        figures |= {
            "validation/gain": step.score.gain,
            "validation/error": step.score.error,
            "validation/worst": step.score.worst,
            "validation/stuck": float(step.score.stuck),
        }
    for name, figure in figures.items():
        board.add_scalar(name, figure, step.decisions)


def _changes(settings: list[str], name: str) -> dict[str, Any]:
    """What `--set` asks for.

    Raises:
        InvalidInput: no such recipe or setting, or a value of another type.
    """
    recipe, changes = recipe_named(name), {}
    kinds = {field.name: type(getattr(recipe, field.name)) for field in dataclasses.fields(Recipe)}
    for text in settings:
        key, equals, value = text.partition("=")
        kind = kinds.get(key)
        if not equals or kind not in (int, float, bool, str) or key == "name":
            can = sorted(each for each, kind in kinds.items() if kind in (int, float, bool, str) and each != "name")
            raise InvalidInput(f"--set takes NAME=VALUE with one of {', '.join(can)}, not '{text}'", field="set")
        try:
            changes[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"--set {key}: '{value}' is no {kind.__name__}", field="set") from error
    return changes


def commit_of_this_code() -> str:
    """The commit, "+" behind it where files differ from it; nothing where this is no checkout."""
    where = Path(__file__).parent
    try:
        commit, changed = (
            subprocess.run(["git", *asked], cwd=where, capture_output=True, text=True, check=True, timeout=10).stdout
            for asked in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit.strip() + ("+" if changed else "")


def main() -> None:
    """Runs the command line; errors are one line."""
    console = Console(stderr=True, soft_wrap=True)
    try:
        app(prog_name="adlro train", standalone_mode=True)
    except AdlroError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(EXIT_USAGE if isinstance(error, InvalidInput) else EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        console.print("interrupted; the same command goes on from the last checkpoint")
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(EXIT_ERROR)
