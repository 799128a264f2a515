"""Deep Q-learning generation by generation: the recipes `dqn` and `paper`. torch.

Two threads work at once: one runs a generation of job lists with the weights at its begin, the other learns from the
previous generations. All random numbers are drawn from the seed and the generation's number, so a checkpoint needs no
state of simulators or generators: it has the networks, the optimizer, and the weights of the generations in the replay.
A resumed training runs those generations again.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import ModelMetadata
from adlro.decide.planes.ranges import Ranges, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED
from adlro.lab.learn.dqn import DqnLearner
from adlro.lab.learn.episodes import Generation, greedy, run_generation
from adlro.lab.learn.learning import Given, LearningStep, Network
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import QRecipe
from adlro.lab.learn.replay import Replay
from adlro.lab.learn.worlds import World, draw_world, world_of
from adlro.workload.scenario import load_scenario

_WORLDS, _ACTING, _LEARNING = range(3)


@dataclass(slots=True)
class _Run:
    """A generation to run: its weights, and its share of random actions."""

    generation: int
    epsilon: float
    weights: dict[str, torch.Tensor]


class QLearning:
    """Q-learning; a step is a generation.

    Args:
        recipe: settings; the margins of an initial network replace its own: others would hide what that has learned, or
            allow what it has not.
        given: the initial state.
    """

    all_steps = math.inf

    def __init__(self, recipe: QRecipe, given: Given) -> None:
        self._given = given
        self._ranges = Ranges()
        torch.manual_seed(given.seed)
        network = PairNetwork(recipe.network)
        if given.start is not None:
            network, metadata = given.start
            recipe = dataclasses.replace(recipe, margins=metadata.margins)
            if "ranges" in metadata.training:
                self._ranges = ranges_from_json(metadata.training["ranges"])
        self._recipe = recipe
        self._learner = DqnLearner(network, recipe, given.device)
        self._replay = Replay(recipe.replay)
        self._filler, self._acting_filler = PlaneFiller(FIXED.rule()), PlaneFiller(FIXED.rule())
        self._runs: list[_Run] = []
        self._world: tuple[int, World] | None = None
        self._pool = ThreadPoolExecutor(1, "generation", initializer=torch.set_num_threads, initargs=(1,))
        self.decisions, self.steps = 0, 0

    @property
    def episodes(self) -> int:
        """Number of job lists run to their end so far."""
        return self.steps * self._recipe.lists

    def step(self) -> LearningStep:
        """Runs a generation, and learns from the previous ones."""
        recipe, number = self._recipe, self.steps
        weights = {name: value.detach().cpu().clone() for name, value in self._learner.online.state_dict().items()}
        run = _Run(number, recipe.epsilon(self.decisions), weights)
        beside: Future[Generation] = self._pool.submit(self._run_again, run)
        if self._given.threads == 1:
            beside.result()
        updates = round(recipe.replay_ratio * self._replay.newest / recipe.batch)
        loss = self._learner.learn(self._replay, self._rng(_LEARNING, number), updates)
        ran = beside.result()
        self._take_in(run, ran)
        self.steps += 1
        self.decisions += len(ran.decisions.action)
        score = None
        if self.steps % recipe.validate_every == 0:
            online = copy.deepcopy(self._learner.online).eval()
            score = self._given.validation.score(greedy(online, self._filler, recipe.margins, self._given.device))
        figures = {"epsilon": run.epsilon, "mean_jct_s": ran.mean_jct_s, "holds": ran.holds}
        return LearningStep(loss=loss if updates else None, score=score, figures=figures)

    def _run_again(self, run: _Run) -> Generation:
        network = PairNetwork(self._learner.online.settings)
        network.load_state_dict(run.weights)
        network.to(self._given.device).eval()
        return run_generation(
            self._world_of(run.generation),
            network,
            self._recipe,
            self._acting_filler,
            self._rng(_ACTING, run.generation),
            run.epsilon,
            self._given.device,
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
        return np.random.default_rng(np.random.SeedSequence(self._given.seed, spawn_key=(purpose, number)))

    def network(self) -> Network:
        """The online network, with the recipe's margins."""
        metadata = ModelMetadata(
            FIXED.rule(),
            self._filler.window,
            self._recipe.margins,
            recipe=self._recipe.name,
            seed=self._given.seed,
            commit=self._given.commit,
            training={"by_priority": self._recipe.by_priority, "ranges": self._ranges.to_json()},
        )
        return self._learner.online, metadata

    def state(self) -> dict[str, Any]:
        """The state to resume from."""
        return {
            "learner": self._learner.state(),
            "runs": [dataclasses.asdict(run) for run in self._runs],
            "decisions": self.decisions,
            "steps": self.steps,
            "ranges": self._ranges.to_json() if self.steps else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from `state`: runs the generations in the replay again."""
        self._learner.load(state["learner"])
        self.decisions, self.steps = state["decisions"], state["steps"]
        if state["ranges"] is not None:
            self._ranges.include(ranges_from_json(state["ranges"]))
        for run in [_Run(**each) for each in state["runs"]]:
            self._take_in(run, self._pool.submit(self._run_again, run).result())
