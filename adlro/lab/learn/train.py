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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from adlro.cli.shell import PlainCommand
from adlro.errors import AdlroError, InvalidInput
from adlro.lab.learn.recipes import ALIASES, DEFAULT, RECIPES, QRecipe, recipe_named
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.lab.learn.training import Training

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
DECISIONS = 20_000_000
"""Environment steps of a training without a given end."""
OF_Q_LEARNING = ", ".join(name for name, recipe in RECIPES.items() if isinstance(recipe, QRecipe))

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command(cls=PlainCommand)
def run(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of checkpoints, models and logs. An interrupted training in it resumes."),
    ],
    recipe: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(RECIPES)}. {DEFAULT} made the shipped policy, and ends by itself. "
            + " ".join(f"{old} is {new}'s old name." for old, new in ALIASES.items())
        ),
    ] = DEFAULT,
    seed: Annotated[int, typer.Option(min=1, help="Seed of all random numbers.")] = 1,
    decisions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Environment steps in all; 20 million unless --episodes is given. For {OF_Q_LEARNING}.",
            show_default=False,
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help=f"Job lists in all, run to their end. For {OF_Q_LEARNING}.", show_default=False),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="Time limit of the training, in minutes.")] = math.inf,
    start: Annotated[
        Path | None,
        typer.Option(help="Initial network (.pt, .onnx). Default: a network that copies hold_greedy_fixed."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the training: cpu, cuda or cuda:1.")] = "cpu",
    threads: Annotated[
        int,
        typer.Option(
            min=1, max=2, help="2: simulates two worlds, or simulates and learns, in parallel; the result is the same."
        ),
    ] = 2,
    idle: Annotated[
        float | None, typer.Option(help=f"Lambda: cost of an idle GPU relative to a waiting job. For {OF_Q_LEARNING}.")
    ] = None,
    by_priority: Annotated[
        bool | None, typer.Option("--by-priority/--by-count", help="Weight jobs by their priority.", show_default=False)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the recipe, NAME=VALUE, such as validation_lists=50; repeatable."),
    ] = None,
    checkpoint_s: Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints.")] = 60.0,
) -> None:
    """Trains a network, chooses its best state on lists of its own, and writes it for the orchestrator."""
    changes = _changes(setting or [], recipe, {"idle": idle, "by_priority": by_priority})
    chosen = recipe_named(recipe, **changes)
    if isinstance(chosen, QRecipe):
        if decisions is None and episodes is None:
            decisions = DECISIONS
    else:
        for name, value in ("decisions", decisions), ("episodes", episodes):
            if value is not None:
                raise InvalidInput(
                    f"--{name} is of {OF_Q_LEARNING}; {chosen.name} ends by itself: leave it out (--minutes ends it "
                    "sooner, --set worlds=N makes it shorter), or take another --recipe",
                    field=name,
                )
    import torch  # here, so that --help works without it

    from adlro.lab.learn.training import Training

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInput("device: torch finds no CUDA device on this machine; take --device cpu", field="device")
    trained = Training(
        folder,
        chosen,
        seed=seed,
        start=start,
        device=device,
        commit=commit_of_this_code(),
        threads=threads,
        checkpoint_s=checkpoint_s,
        tensorboard=True,
    )
    try:
        _train(trained, decisions or math.inf, episodes or math.inf, minutes)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command goes on where it stood")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _train(trained: Training, decisions: float, episodes: float, minutes: float) -> None:
    console, learning = Console(stderr=True), trained.learning
    if trained.resumed:
        console.print(f"goes on after step {learning.steps}, {learning.decisions} decisions")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} decisions/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )

    def done() -> tuple[str, float, float]:
        """The unit that limits the training, its count so far, and its total."""
        if learning.all_steps < math.inf:
            return "steps", learning.steps, learning.all_steps
        if decisions < math.inf:
            return "decisions", learning.decisions, decisions
        return "episodes", learning.episodes, episodes

    with Progress(*columns, console=console) as bar:
        unit, completed, total = done()
        task = bar.add_task(unit, total=total, completed=int(completed), rate=0.0, said="not judged yet")
        before_s, before, said = time.monotonic(), learning.decisions, "not judged yet"
        for step in trained.run(decisions=decisions, episodes=episodes, minutes=minutes):
            if step.score is not None:
                best = "none" if trained.best is None else f"{100 * trained.best.gain:+.2f} %"
                said = f"{step.score}, best {best}"
            told = [step.text] if step.text else []
            if step.score is not None and not console.is_terminal:
                told.append(f"{learning.episodes} episodes, {learning.decisions} decisions: {said}")
            for text in told:
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            rate = (learning.decisions - before) / max(time.monotonic() - before_s, 1e-9)
            bar.update(task, completed=min(done()[1], total), rate=rate, said=said)
    for path in trained.finish():
        Console(soft_wrap=True).print(str(path), markup=False, highlight=False)


def _changes(settings: Sequence[str], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The changes by `--set` and by the options for settings.

    Raises:
        InvalidInput: no such recipe or setting, or a value of another type.
    """
    recipe = recipe_named(name)
    kinds = {field.name: type(getattr(recipe, field.name)) for field in dataclasses.fields(recipe)}
    changes = {option: value for option, value in options.items() if value is not None}
    for option in changes:
        if option not in kinds:
            having = ", ".join(each.name for each in RECIPES.values() if hasattr(each, option))
            raise InvalidInput(
                f"--{option} is of {having}, and {recipe.name} has no such setting: leave it out, or take another "
                "--recipe",
                field=option,
            )
    can = sorted(each for each, kind in kinds.items() if kind in (int, float, bool, str) and each != "name")
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or key not in can:
            raise InvalidInput(
                f"--set takes NAME=VALUE, with {recipe.name} one of {', '.join(can)}, not '{text}'", field="set"
            )
        kind = kinds[key]
        try:
            changes[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"--set {key}: '{value}' is no {kind.__name__}", field="set") from error
    return changes


def commit_of_this_code() -> str:
    """The commit, followed by "+" if files differ from it; empty outside a checkout."""
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
    except OSError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(EXIT_ERROR)
