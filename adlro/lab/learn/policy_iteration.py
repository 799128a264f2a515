"""Approximate policy iteration, the recipe `policy_iteration` of the included network. torch.

1. States of some worlds under the base policy, with the gains of their candidates (advantages.py).
2. A network is trained on them (improve.py), and is the behaviour policy of further worlds: its states differ from the
   base's states.
3. Networks with different seeds are trained on all states. Each gets its best margins (margins.py).

A step is a world (two with two threads), an epoch, or a trial of margins. All iterates are scored and stored; the best
by `Score.order` is the result. The first is scored with the margins of its behaviour, which are not for service.

With an initial network all trainings begin with its weights, for another rule or for wider worlds than its own; the
ranges of its training are included. Their learning rate is lower, to preserve the weights' knowledge.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.fill import WINDOW, PlaneFiller
from adlro.decide.planes.model import ModelMetadata, OnnxModel, metadata_from_json
from adlro.decide.planes.ranges import Ranges, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED
from adlro.lab.learn import margins
from adlro.lab.learn.advantages import Act, Sampling, States, collect_world, states_in
from adlro.lab.learn.dataset import Dataset, load
from adlro.lab.learn.export import to_onnx
from adlro.lab.learn.improve import Fitting, NetworkFit
from adlro.lab.learn.learning import Given, LearningStep, Network
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import IterationRecipe
from adlro.lab.learn.validation import Score, with_margins

BEHAVIOUR = Margins(0.05, 0.1)
"""Margins of the network that behaves in the further worlds."""

RATE_FROM_WEIGHTS = 5e-4
"""Highest learning rate of a training with initial weights."""


class PolicyIteration:
    """Worlds, trainings and margins, in the order of the top of this file.

    Args:
        recipe: settings.
        given: the initial state.
    """

    def __init__(self, recipe: IterationRecipe, given: Given) -> None:
        self._recipe, self._given = recipe, given
        self._sampling = Sampling(
            lists=recipe.lists,
            jobs=recipe.jobs,
            share=recipe.share,
            futures=recipe.futures,
            ahead=recipe.ahead,
            by_priority=recipe.by_priority,
        )
        # Seed 1 draws worlds with 1 and 2, and trains with 1, 2, 3.
        self._first = [(given.folder / "first", 2 * given.seed - 1, number) for number in range(recipe.worlds)]
        self._further = [(given.folder / "further", 2 * given.seed, number) for number in range(recipe.further)]
        self._states = {
            path: states_in(path) for world in self._first + self._further if (path := world_path(*world)).exists()
        }
        self._behaviour_rounds = 1 if recipe.further else 0
        self._ended = 0
        self._learned = 0
        self._data: tuple[Dataset, Ranges] | None = None
        self._fitting: Fitting | None = None
        self._trained = False
        self._choice: margins.MarginChoice | None = None
        self._acts: list[Act] = []
        if given.start is None:
            torch.manual_seed(given.seed)
            self._network: Network = PairNetwork(recipe.network), self._metadata({})
        else:
            self._network = given.start

    @property
    def steps(self) -> int:
        """Number of worlds, epochs, and tried margins."""
        return len(self._states) + self._learned

    @property
    def episodes(self) -> int:
        """Number of job lists of the worlds so far."""
        return len(self._states) * self._recipe.lists

    @property
    def decisions(self) -> int:
        """Number of decisions of the worlds so far with rollouts of candidates."""
        return sum(self._states.values())

    @property
    def all_steps(self) -> float:
        """Number of steps until its end."""
        recipe = self._recipe
        trainings = self._behaviour_rounds + recipe.trainings
        tries = self._behaviour_rounds + recipe.trainings * (len(margins.MARGINS) + len(margins.IDLE))
        return recipe.worlds + recipe.further + recipe.epochs * trainings + tries

    def step(self) -> LearningStep:
        """Runs a world, an epoch, or a trial of margins."""
        if wanted := self._missing(self._first):
            return self._collect(wanted, [None] * len(wanted))
        if self._ended == 0 and self._behaviour_rounds:
            return self._learn_epoch(self._first) or self._judge_behaviour()
        if wanted := self._missing(self._further):
            if not self._acts:
                model = to_onnx(*self._network)
                self._acts = [with_margins(OnnxModel(model), BEHAVIOUR) for _ in range(self._given.threads)]
            return self._collect(wanted, self._acts)
        return self._learn_epoch(self._first + self._further) or self._try_margins()

    def _missing(self, worlds: Sequence[tuple[Path, int, int]]) -> list[tuple[Path, int, int]]:
        return [world for world in worlds if world_path(*world) not in self._states][: self._given.threads]

    def _collect(self, worlds: Sequence[tuple[Path, int, int]], acts: Sequence[Act | None]) -> LearningStep:
        def collect(world: tuple[Path, int, int], act: Act | None) -> str:
            drawn, states = collect_world(world_path(*world), *world[1:], self._sampling, act)
            self._states[world_path(*world)] = len(states)
            return f"{world_path(*world).name}: {drawn.text}: {len(states)} states"

        with ThreadPoolExecutor(len(worlds), "world") as pool:
            return LearningStep("\n".join(pool.map(collect, worlds, acts)))

    # --- trainings

    def _learn_epoch(self, worlds: Sequence[tuple[Path, int, int]]) -> LearningStep | None:
        """An epoch of the present training, or of a new one; None: all are done."""
        if self._trained:
            return None
        self._fitting = fitting = self._fitting or self._begin(worlds)
        fitting.run_epoch()
        self._learned += 1
        log = fitting.log[-1]
        if fitting.ended:
            self._network = fitting.network.cpu().eval(), self._metadata({"log": fitting.log})
            self._trained, self._fitting = True, None
        text = ", ".join(f"{name} {figure:g}" for name, figure in log.items())
        return LearningStep(f"{self._name}: {text}", loss=log["loss"], figures={"held_out_gain": log["gain"]})

    def _begin(self, worlds: Sequence[tuple[Path, int, int]]) -> Fitting:
        recipe, start = self._recipe, self._given.start
        folders = sorted({folder for folder, _, _ in worlds})
        if self._data is None:
            self._data = load(folders, PlaneFiller(FIXED.rule())), ranges_of(folders)
        number = max(self._ended - self._behaviour_rounds, 0)
        settings = NetworkFit(
            epochs=recipe.epochs, seed=(self._given.seed - 1) * recipe.trainings + number + 1, sizes=recipe.network
        )
        network = None
        if start is not None:
            settings = dataclasses.replace(settings, rate=min(settings.rate, RATE_FROM_WEIGHTS))
            network = copy.deepcopy(start[0])
        return Fitting(self._data[0], settings, network, self._given.device)

    def _metadata(self, training: dict[str, Any]) -> ModelMetadata:
        ranges, start = Ranges(), self._given.start
        if start is not None:
            ranges.include(ranges_from_json(start[1].training.get("ranges")))
        if self._data is not None:
            ranges.include(self._data[1])
        return ModelMetadata(
            FIXED.rule(),
            WINDOW,
            BEHAVIOUR,
            recipe=self._recipe.name,
            seed=self._given.seed,
            commit=self._given.commit,
            training={**training, "by_priority": self._recipe.by_priority, "ranges": ranges.to_json()},
        )

    @property
    def _name(self) -> str:
        number = self._ended - self._behaviour_rounds + 1
        return f"training-{number}" if number else "behaviour"

    # --- judging

    def _judge_behaviour(self) -> LearningStep:
        model = OnnxModel(to_onnx(*self._network))
        act, validation = with_margins(model, BEHAVIOUR), self._given.validation
        return self._end(validation.with_low_load(act, validation.score(act)))

    def _try_margins(self) -> LearningStep:
        if self._choice is None:
            self._choice = margins.MarginChoice(*self._network, self._given.validation)
        text = f"{self._name}: {self._choice.try_next()}"
        if not self._choice.ended:
            self._learned += 1
            return LearningStep(text)
        best, score = self._choice.best
        self._network = self._network[0], dataclasses.replace(self._network[1], margins=best)
        return self._end(score, f"{text}\n")

    def _end(self, score: Score, text: str = "") -> LearningStep:
        """Ends a training after its network's score."""
        step = LearningStep(f"{text}{self._name}: {self._network[1].margins}: {score}", score=score, keep=self._name)
        if self._name == "behaviour":
            self._data = None  # the other trainings use more states
        self._ended, self._learned = self._ended + 1, self._learned + 1
        self._trained, self._choice = False, None
        return step

    # --- for the runner

    def network(self) -> Network:
        """The network that was trained last."""
        return self._network

    def state(self) -> dict[str, Any]:
        """The state to resume from, in addition to the worlds' files."""
        network, metadata = self._network
        return {
            "ended": self._ended,
            "trained": self._trained,
            "learned": self._learned,
            "network": network.state_dict(),
            "metadata": metadata.to_json(),
            "fitting": None if self._fitting is None else self._fitting.state(),
            "tried": [] if self._choice is None else [dataclasses.asdict(score) for score in self._choice.tried],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from `state`."""
        self._ended, self._trained, self._learned = state["ended"], state["trained"], state["learned"]
        network = PairNetwork(self._network[0].settings)
        metadata = metadata_from_json(state["metadata"], "the checkpoint")
        network.load_state_dict(state["network"])
        self._network = network, metadata
        if state["fitting"] is not None:
            behaves = self._behaviour_rounds and not self._ended
            self._fitting = self._begin(self._first if behaves else self._first + self._further)
            self._fitting.load(state["fitting"])
        if state["tried"]:
            self._choice = margins.MarginChoice(network, metadata, self._given.validation)
            self._choice.tried = [Score(**each) for each in state["tried"]]


def world_path(folder: Path, seed: int, number: int) -> Path:
    """A world's file."""
    return folder / f"world-{seed}-{number:05d}.npz"


def ranges_of(folders: Sequence[Path]) -> Ranges:
    """The ranges of the planes in the states of some folders."""
    ranges, filler = Ranges(), PlaneFiller(FIXED.rule())
    files = sorted(file for folder in folders for file in folder.glob("world-*.npz") if ".part." not in file.name)
    for file in files:
        states = States.load(file)
        # The longest queues, and every third state.
        longest = np.argsort(-states.waiting_count)[:128]
        rows = np.unique(np.concatenate([longest, states.numbers[::3]]))
        for first in range(0, len(rows), 256):
            ranges.see(filler.fill(states.observation_of(rows[first : first + 256])))
    return ranges
