"""Trains a DQN generation by generation, and goes on exactly where it was stopped. torch.

Two threads work at once: one runs a generation of job lists under the weights as they stood at its begin, the other
learns from the generations before. Everything by chance is drawn from the seed and the generation's number, so a
checkpoint needs no state of simulators or generators: it has the networks, the optimizer, and the weights under which
the generations in the replay were run. To resume, those are run again. On one machine the result is the same, bit by
bit.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import math
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import ModelMetadata
from adlro.decide.planes.ranges import Ranges, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED
from adlro.errors import InvalidInput
from adlro.lab.learn.dqn import Learner
from adlro.lab.learn.episodes import Generation, greedy, run_generation
from adlro.lab.learn.export import export_onnx, load_network, save_network, write_whole
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import Recipe
from adlro.lab.learn.replay import Replay
from adlro.lab.learn.validation import Score, Validation
from adlro.lab.learn.worlds import World, draw_world, world_of
from adlro.workload.scenario import load_scenario

CHECKPOINT, CURVE, SETTINGS = "checkpoint.pt", "curve.jsonl", "settings.json"
BEST, LAST = "best", "last"
_WORLDS, _ACTING, _LEARNING = range(3)

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training stands after a generation.

    Attributes:
        generation: its number.
        decisions: made so far.
        epsilon: of this generation.
        loss: mean of its updates.
        mean_jct_s: of its lists, random actions included.
        holds: share of its decisions.
        score: against the base, where it was taken.
        best: the best gain so far.
    """

    generation: int
    decisions: int
    epsilon: float
    loss: float
    mean_jct_s: float
    holds: float
    score: Score | None
    best: float | None

    def to_json(self) -> str:
        """A line of the curve; nothing in it depends on the machine's speed."""
        return json.dumps(dataclasses.asdict(self))


@dataclass(slots=True)
class _Run:
    """A generation that was run: by which weights, with how much chance."""

    generation: int
    epsilon: float
    weights: Weights


class Training:
    """One training in a folder.

    Args:
        folder: checkpoints, the curve, models; made where it is missing.
        recipe: settings.
        seed: of everything.
        start: a network to begin with, of `export.save_network`; its margins take the place of the recipe's.
        device: "cpu" or "cuda".
        commit: of this code, for the models.
        threads: 2: generations are run beside the learning; 1: in turn, with the same result.
        checkpoint_s: a checkpoint is written after so much time.
        validation: lists to be judged on.

    Raises:
        InvalidInput: the folder has a training of other settings or another seed, or files that cannot be read.
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
    ) -> None:
        self._folder, self._seed = folder, seed
        self._device, self._commit = torch.device(device), commit
        self._threads, self._checkpoint_s = threads, checkpoint_s
        self._validation = validation
        self._ranges = Ranges()
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        network = PairNetwork(recipe.network)
        if start is not None:
            # With the margins that go with it: others would hide what it knows, or let through what it does not.
            network, metadata = load_network(start)
            recipe = dataclasses.replace(recipe, margins=metadata.margins)
            if "ranges" in metadata.training:
                self._ranges = ranges_from_json(metadata.training["ranges"])
        self._recipe = recipe
        self._learner = Learner(network, recipe, self._device)
        self._replay = Replay(recipe.replay)
        self._filler, self._acting_filler = PlaneFiller(FIXED.rule()), PlaneFiller(FIXED.rule())
        self._runs: list[_Run] = []
        self._curve: list[str] = []
        self._world: tuple[int, World] | None = None
        self.decisions, self.generation = 0, 0
        self.best: float | None = None
        self._best_to_export = False
        folder.mkdir(parents=True, exist_ok=True)
        self._keep_settings(start)
        self.resumed = self._resume()

    @property
    def episodes(self) -> int:
        """Job lists that were run to their end so far."""
        return self.generation * self._recipe.lists

    def run(
        self, until: Callable[[], bool] = lambda: False, *, decisions: float, episodes: float = math.inf
    ) -> Generator[Progress, None, None]:
        """Trains, and tells after each generation; a checkpoint at the end.

        Args:
            until: asked after each generation: True ends the training.
            decisions, episodes: in all; it ends with the generation that reaches one of them.
        """
        saved_s = time.monotonic()
        with ThreadPoolExecutor(1, "generation", initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while self.decisions < decisions and self.episodes < episodes:
                progress = self._generation(pool)
                self._curve.append(progress.to_json())
                if time.monotonic() - saved_s >= self._checkpoint_s:
                    self.save()
                    saved_s = time.monotonic()
                yield progress
                if until():
                    break
        self.save()

    def _generation(self, pool: ThreadPoolExecutor) -> Progress:
        recipe, number = self._recipe, self.generation
        weights = {name: value.detach().cpu().clone() for name, value in self._learner.online.state_dict().items()}
        run = _Run(number, recipe.epsilon(self.decisions), weights)
        beside: Future[Generation] = pool.submit(self._run_again, run)
        if self._threads == 1:
            beside.result()
        updates = round(recipe.replay_ratio * self._replay.newest / recipe.batch)
        loss = self._learner.learn(self._replay, self._rng(_LEARNING, number), updates)
        ran = beside.result()
        self._take_in(run, ran)
        self.generation += 1
        self.decisions += len(ran.decisions.action)
        score = None
        if self.generation % recipe.validate_every == 0:
            score = self._judge()
        return Progress(number, self.decisions, run.epsilon, loss, ran.mean_jct_s, ran.holds, score, self.best)

    def _run_again(self, run: _Run) -> Generation:
        network = PairNetwork(self._learner.online.settings)
        network.load_state_dict(run.weights)
        network.to(self._device).eval()
        return run_generation(
            self._world_of(run.generation),
            network,
            self._recipe,
            self._acting_filler,
            self._rng(_ACTING, run.generation),
            run.epsilon,
            self._device,
        )

    def _take_in(self, run: _Run, ran: Generation) -> None:
        self._replay.add(ran.decisions)
        self._ranges.include(ran.ranges)
        self._runs.append(run)
        del self._runs[: len(self._runs) - self._replay.generations]

    def _world_of(self, generation: int) -> World:
        number = generation // self._recipe.repeats
        if self._world is None or self._world[0] != number:
            rng, recipe = self._rng(_WORLDS, number), self._recipe
            if recipe.randomised:
                world = draw_world(rng, lists=recipe.lists, jobs=recipe.jobs)
            else:
                load = recipe.loads[number % len(recipe.loads)]
                scenario = load_scenario("paper")
                world = world_of(scenario, load, "true", rng, lists=recipe.lists, jobs=recipe.jobs)
            self._world = (number, world)
        return self._world[1]

    def _rng(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(purpose, number)))

    def _judge(self) -> Score:
        if self._validation is None:
            self._validation = Validation()
        network = copy.deepcopy(self._learner.online).eval()
        score = self._validation.score(greedy(network, self._filler, self._recipe.margins, self._device))
        if score.stuck == 0 and (self.best is None or score.gain > self.best):
            self.best = score.gain
            self._write_model(BEST, score)
            self._best_to_export = True
        return score

    def _write_model(self, name: str, score: Score | None) -> None:
        metadata = ModelMetadata(
            FIXED.rule(),
            self._filler.window,
            self._recipe.margins,
            recipe=self._recipe.name,
            seed=self._seed,
            commit=self._commit,
            training={
                "decisions": self.decisions,
                "generation": self.generation,
                "validation": None if score is None else dataclasses.asdict(score),
                "ranges": self._ranges.to_json(),
            },
        )
        save_network(self._learner.online, metadata, self._folder / f"{name}.pt")

    # --- checkpoints

    def save(self) -> None:
        """Writes a checkpoint, whole or not at all, with the curve up to it, and the best model, if it is new."""
        buffer = io.BytesIO()
        torch.save(
            {
                "learner": self._learner.state(),
                "runs": [dataclasses.asdict(run) for run in self._runs],
                "curve": self._curve,
                "decisions": self.decisions,
                "generation": self.generation,
                "best": self.best,
                "ranges": self._ranges.to_json() if self.generation else None,
            },
            buffer,
        )
        write_whole(self._folder / CHECKPOINT, buffer.getvalue())
        write_whole(self._folder / CURVE, "".join(line + "\n" for line in self._curve).encode())
        if self._best_to_export:
            self._export(BEST)
            self._best_to_export = False

    def finish(self) -> list[Path]:
        """Writes the last weights as a model that serves, beside the best that was saved; gives their paths."""
        self._write_model(LAST, None)
        self._export(LAST)
        return [path for name in (BEST, LAST) if (path := self._folder / f"{name}.onnx").exists()]

    def _export(self, name: str) -> None:
        path = self._folder / f"{name}.onnx"
        export_onnx(*load_network(path.with_suffix(".pt")), path)

    def _resume(self) -> bool:
        path = self._folder / CHECKPOINT
        if not path.exists():
            return False
        try:
            state = torch.load(path, weights_only=True, map_location=self._device)
            self._learner.load(state["learner"])
            runs = [_Run(**each) for each in state["runs"]]
            self._curve, self.best = state["curve"], state["best"]
            self.decisions, self.generation = state["decisions"], state["generation"]
            if state["ranges"] is not None:
                self._ranges.include(ranges_from_json(state["ranges"]))
        except Exception as error:  # a damaged file makes torch raise whatever its reader stumbles over
            raise InvalidInput(f"{path}: not a checkpoint of this version ({error})", field="checkpoint") from error
        self._best_to_export = (self._folder / f"{BEST}.pt").exists()  # it may be newer than what serves
        with ThreadPoolExecutor(1, "generation", initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for run in runs:
                self._take_in(run, pool.submit(self._run_again, run).result())
        return True

    def _keep_settings(self, start: Path | None) -> None:
        path = self._folder / SETTINGS
        stated: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self._recipe)))
        stated |= {"seed": self._seed, "start": None if start is None else str(start)}
        if not path.exists():
            write_whole(path, json.dumps(stated, indent=1).encode())
            return
        try:
            there = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path}: cannot be read ({error})", field="folder") from error
        for name, value in stated.items():
            if there.get(name) != value:
                raise InvalidInput(
                    f"{self._folder} has a training with {name} {there.get(name)}, and {value} is asked for: go on "
                    "with the same settings, or take another folder",
                    field=name,
                )
