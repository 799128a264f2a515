"""The runner of all recipes: it owns a training's folder, and resumes exactly where it was stopped. torch.

The folder has `settings.json`; `checkpoint.pt`; `curve.jsonl`, a line for each score of the network, with the same keys
for every recipe (`CURVE_KEYS`); the best network and the last as `.pt`, to begin with, and as `.onnx`, to serve;
TensorBoard's files. On one machine, killed or not, a training gives the same files, bit by bit, except for `elapsed_s`
in the curve.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import io
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from adlro.decide.planes.model import ModelMetadata
from adlro.errors import InvalidInput
from adlro.lab.learn.export import export_onnx, load_network, save_network, write_whole
from adlro.lab.learn.learning import Given, Learning, LearningStep, Network
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.policy_iteration import PolicyIteration
from adlro.lab.learn.q_learning import QLearning
from adlro.lab.learn.recipes import IterationRecipe, QRecipe, Recipe
from adlro.lab.learn.validation import Score, Validation

CHECKPOINT, CURVE, SETTINGS, TENSORBOARD = "checkpoint.pt", "curve.jsonl", "settings.json", "tensorboard"
BEST, LAST = "best", "last"
CURVE_KEYS = (
    "steps",  # steps of the recipe
    "episodes",  # job lists run to their end
    "decisions",  # decisions for training
    "elapsed_s",  # time spent on it, without the time lost by kills
    "loss",  # mean of the training steps since the previous line
    "gain_percent",  # reduction of the mean completion time relative to hold_greedy_fixed; null: jobs never started
    "half_width_percent",  # of its 95 % interval
    "worst_percent",  # gain in the worst cell
    "breaks_limits",  # limits of validation.py, if scored
    "best_percent",  # gain of the best so far
)


class Training:
    """One training in a folder.

    Args:
        folder: created if it is missing.
        recipe: settings.
        seed: seed of all random numbers.
        start: an initial network, of `export.save_network` or a served one.
        device: "cpu" or "cuda".
        commit: commit of this code, for the models.
        threads: 2: as much as possible runs in parallel, with the same result.
        checkpoint_s: seconds between two checkpoints.
        validation: scores the networks; the recipe's if left out.
        tensorboard: writes figures of each step for TensorBoard.

    Attributes:
        learning: the running recipe.
        best: score of the best network so far.

    Raises:
        InvalidInput: the folder has a training of another recipe, other settings or another seed, or unreadable files.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        *,
        seed: int,
        start: Path | None = None,
        device: str = "cpu",
        commit: str = "",
        threads: int = 2,
        checkpoint_s: float = 60.0,
        validation: Validation | None = None,
        tensorboard: bool = False,
    ) -> None:
        torch.set_num_threads(1)
        self._folder, self._checkpoint_s, self._tensorboard = folder, checkpoint_s, tensorboard
        given = Given(
            folder=folder,
            seed=seed,
            device=torch.device(device),
            threads=threads,
            validation=validation or Validation(recipe.validation_lists, by_priority=recipe.by_priority),
            start=None if start is None else load_network(start),
            commit=commit,
        )
        _keep_settings(folder, recipe, seed, start)
        self.learning = _learning(recipe, given)
        self._curve: list[str] = []
        self._losses: list[float] = []
        self._to_write: dict[str, Network] = {}
        self.best: Score | None = None
        self._before_s, self._begin_s = 0.0, time.monotonic()
        self.resumed = self._resume()

    def run(
        self, *, decisions: float = math.inf, episodes: float = math.inf, minutes: float = math.inf
    ) -> Generator[LearningStep, None, None]:
        """Trains, and yields after each step; writes a checkpoint at the end.

        Args:
            decisions, episodes: totals; it ends with the step that reaches one of them, or with the recipe.
            minutes: time limit from now on.

        Raises:
            KeyboardInterrupt: after SIGINT or SIGTERM, the end of the step, and a checkpoint.
        """
        learning, saved_s = self.learning, time.monotonic()
        end_s = saved_s + 60.0 * minutes
        writer: contextlib.AbstractContextManager[SummaryWriter | None] = contextlib.nullcontext()
        if self._tensorboard:
            writer = SummaryWriter(str(self._folder / TENSORBOARD), purge_step=learning.steps + 1)
        with _signals() as came, writer as board:
            while (
                learning.steps < learning.all_steps
                and learning.decisions < decisions
                and learning.episodes < episodes
                and time.monotonic() < end_s
                and not came()
            ):
                step = learning.step()
                self._log(board, step, self._take_in(step))
                if time.monotonic() - saved_s >= self._checkpoint_s:
                    self.save()
                    saved_s = time.monotonic()
                yield step
            self.save()
            if came():
                raise KeyboardInterrupt

    def _take_in(self, step: LearningStep) -> dict[str, Any]:
        """Adds a finished step; returns its line of the curve, or an empty one without a score."""
        self._losses += [] if step.loss is None else [step.loss]
        score, learning = step.score, self.learning
        if score is None:
            return {}
        network, metadata = learning.network()
        training = {
            **metadata.training,
            "steps": learning.steps,
            "decisions": learning.decisions,
            "validation": dataclasses.asdict(score),
        }
        judged = copy.deepcopy(network), dataclasses.replace(metadata, training=training)
        if step.keep:
            self._to_write[step.keep] = judged
        if math.isfinite(score.gain) and (self.best is None or score.order < self.best.order):
            self.best = score
            self._to_write[BEST] = judged
        figures = (
            learning.steps,
            learning.episodes,
            learning.decisions,
            round(self._before_s + time.monotonic() - self._begin_s, 3),
            math.fsum(self._losses) / len(self._losses) if self._losses else None,
            *(100.0 * each if math.isfinite(each) else None for each in (score.gain, score.half_width, score.worst)),
            score.breaks_limits,
            None if self.best is None else 100.0 * self.best.gain,
        )
        line = dict(zip(CURVE_KEYS, figures, strict=True))
        self._curve.append(json.dumps(line))
        self._losses = []
        return line

    def _log(self, board: SummaryWriter | None, step: LearningStep, line: dict[str, Any]) -> None:
        if board is None:
            return
        judged = {f"validation/{name}": line[name] for name in CURVE_KEYS[5:] if line.get(name) is not None}
        loss = {} if step.loss is None else {"loss": step.loss}
        for name, figure in {**step.figures, **loss, **judged}.items():
            board.add_scalar(name, float(figure), self.learning.steps)

    # --- files

    def save(self) -> None:
        """Writes new networks, then a checkpoint and the curve up to it, each as a whole or not at all."""
        for name, network in self._to_write.items():
            self._write(name, *network)
        self._to_write = {}
        buffer = io.BytesIO()
        state = {
            "learning": self.learning.state(),
            "curve": self._curve,
            "losses": self._losses,
            "best": None if self.best is None else dataclasses.asdict(self.best),
            "elapsed_s": self._before_s + time.monotonic() - self._begin_s,
        }
        torch.save(state, buffer)
        write_whole(self._folder / CHECKPOINT, buffer.getvalue())
        write_whole(self._folder / CURVE, "".join(line + "\n" for line in self._curve).encode())

    def finish(self) -> list[Path]:
        """Writes the present network and the best as models for service; returns their paths."""
        self._write(LAST, *self.learning.network())
        return [path for name in (BEST, LAST) if (path := self._folder / f"{name}.onnx").exists()]

    def _write(self, name: str, network: PairNetwork, metadata: ModelMetadata) -> None:
        save_network(network, metadata, self._folder / f"{name}.pt")
        export_onnx(network, metadata, self._folder / f"{name}.onnx")

    def _resume(self) -> bool:
        path = self._folder / CHECKPOINT
        if not path.exists():
            return False
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            self.learning.load(state["learning"])
            self._curve, self._losses, self._before_s = state["curve"], state["losses"], state["elapsed_s"]
            self.best = None if state["best"] is None else Score(**state["best"])
        except Exception as error:  # a damaged file makes torch raise any kind of error
            raise InvalidInput(f"{path}: not a checkpoint of this version ({error})", field="checkpoint") from error
        return True


def _learning(recipe: Recipe, given: Given) -> Learning:
    if isinstance(recipe, IterationRecipe):
        return PolicyIteration(recipe, given)
    assert isinstance(recipe, QRecipe)
    return QLearning(recipe, given)


def _keep_settings(folder: Path, recipe: Recipe, seed: int, start: Path | None) -> None:
    """Writes the settings, or compares them with those in the folder.

    Raises:
        InvalidInput: they differ; the message names the recipe first.
    """
    path = folder / SETTINGS
    stated: dict[str, Any] = json.loads(json.dumps({"recipe": recipe.name, **dataclasses.asdict(recipe), "seed": seed}))
    del stated["name"]
    stated["start"] = None if start is None else hashlib.sha256(start.read_bytes()).hexdigest()
    if not path.exists():
        write_whole(path, (json.dumps(stated, indent=1) + "\n").encode())
        return
    try:
        there: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error})", field="folder") from error
    if "recipe" not in there:
        raise InvalidInput(
            f"{folder} has a training of an earlier version: go on with that version, or take another folder",
            field="folder",
        )
    for name, value in stated.items():
        if there.get(name) != value:
            what = "other weights to begin with" if name == "start" else f"{name} {there.get(name)}, not {value}"
            raise InvalidInput(
                f"{folder} has a training with {what}: go on with the same --{name.replace('_', '-')}, or take "
                "another folder",
                field=name,
            )


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM came; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    numbers, came = (signal.SIGINT, signal.SIGTERM), threading.Event()
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(_number: int, _frame: object) -> None:
        came.set()
        restore()

    for number in numbers:
        signal.signal(number, note)
    try:
        yield came.is_set
    finally:
        restore()
