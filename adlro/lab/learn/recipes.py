"""The recipes of trainings by name, and their settings. Plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.decide.planes.choice import Margins
from adlro.errors import InvalidInput
from adlro.lab.learn.sizes import NetworkSettings

DEFAULT = "policy_iteration"
ALIASES: Mapping[str, str] = {"adlro": "dqn"}
"""Earlier names of recipes."""
REWARDS = ("waits", "jobs")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings common to all recipes.

    Attributes:
        name: the recipe's name.
        by_priority: jobs are weighted by their priority, in training and in the score.
        validation_lists: number of lists of each scored cell (`validation.py`).
        network: the network's sizes.
    """

    name: str
    by_priority: bool = False
    validation_lists: int = 100
    network: NetworkSettings = field(default_factory=NetworkSettings)

    def __post_init__(self) -> None:
        """Raises InvalidInput for invalid settings."""
        self._at_least(2, "validation_lists")

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} must be at least {least}, not {getattr(self, name)}", field=name)


@dataclass(frozen=True, slots=True)
class IterationRecipe(Recipe):
    """Settings of approximate policy iteration (`policy_iteration.py`).

    Attributes:
        worlds: number of worlds under the base policy.
        further: number of worlds under the first network; 0: none.
        trainings: number of networks that are trained on all states; the best is the result.
        epochs: epochs of each training.
        lists, jobs: number of lists of a world, and of jobs per list.
        share: share of the decisions with rollouts of candidates.
        futures: futures of each rollout.
        ahead: arrivals in each future.
    """

    worlds: int = 200
    further: int = 104
    trainings: int = 3
    epochs: int = 5
    lists: int = 32
    jobs: int = 192
    share: float = 0.25
    futures: int = 6
    ahead: int = 24

    def __post_init__(self) -> None:
        """Raises InvalidInput for invalid settings."""
        Recipe.__post_init__(self)
        self._at_least(1, "worlds", "trainings", "epochs", "lists", "jobs", "futures")
        self._at_least(0, "further", "ahead")
        if not 0.0 < self.share <= 1.0:
            raise InvalidInput(f"share must be above 0 and at most 1, not {self.share}", field="share")


@dataclass(frozen=True, slots=True)
class QRecipe(Recipe):
    """Settings of deep Q-learning (`q_learning.py`).

    A generation is a batch of job lists that run in parallel to their end under one set of weights, while the learner
    trains on the previous generations.

    Attributes:
        randomised: draws a world for each generation (`worlds.py`: loads, populations, sizes, shapes of clusters,
            errors of runtime estimates); False: the scenario `paper` at `loads`.
        loads: loads if not randomised.
        lists, jobs: number of lists of a generation, and of jobs per list.
        repeats: generations with the same lists (drawing them takes as long as simulating them).
        replay: number of stored decisions, in whole generations.
        reward: "jobs", the paper's, or "waits", which sums to the same with less noise (`episodes.py`).
        idle: lambda, the cost of an idle GPU relative to a job in the system.
        feasible_idle_only: an idle GPU counts only while a hold leaves it idle though a job fits.
        horizon: discount exp(-dt / (horizon x typical duration)): decisions are not equally spaced.
        discount_per_decision: a fixed factor instead; 0: none.
        learning_rate: learning rate of Adam.
        batch: number of decisions of an update.
        replay_ratio: trained decisions for each simulated one.
        target_every: updates between two updates of the target network.
        double: the online network chooses, the target network evaluates (van Hasselt et al. 2016).
        huber: loss linear from 1 on; otherwise squared.
        epsilon_first, epsilon_last: share of random actions, decreasing linearly over `epsilon_decisions`.
        random_hold: share of holds among the random actions.
        margins: margins of the behaviour and of the model, in units of Q.
        validate_every: generations between two scores.
    """

    validation_lists: int = 16
    randomised: bool = True
    loads: tuple[float, ...] = (0.6, 0.9, 1.1)
    lists: int = 256
    jobs: int = 64
    repeats: int = 2
    replay: int = 60_000
    reward: str = "waits"
    idle: float = 0.1
    feasible_idle_only: bool = True
    horizon: float = 30.0
    discount_per_decision: float = 0.0
    learning_rate: float = 1e-4
    batch: int = 256
    replay_ratio: float = 1.0
    target_every: int = 200
    double: bool = True
    huber: bool = True
    epsilon_first: float = 0.1
    epsilon_last: float = 0.02
    epsilon_decisions: int = 2_000_000
    random_hold: float = 0.1
    margins: Margins = field(default_factory=Margins)
    validate_every: int = 20

    def __post_init__(self) -> None:
        """Raises InvalidInput for invalid settings."""
        Recipe.__post_init__(self)
        self._at_least(1, "lists", "jobs", "repeats", "replay", "batch", "target_every")
        self._at_least(1, "epsilon_decisions", "validate_every")
        for name in ("horizon", "learning_rate", "replay_ratio"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"{name} must be a number above 0, not {getattr(self, name)}", field=name)
        for name in ("epsilon_first", "epsilon_last", "random_hold"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidInput(f"{name} must be between 0 and 1, not {getattr(self, name)}", field=name)
        if not 0.0 < self.idle < 1.0:
            raise InvalidInput(f"idle (lambda) must be above 0 and below 1, not {self.idle}", field="idle")
        if not 0.0 <= self.discount_per_decision < 1.0:
            raise InvalidInput("discount_per_decision must be from 0 and below 1", field="discount_per_decision")
        if self.reward not in REWARDS:
            raise InvalidInput(f"reward must be one of {', '.join(REWARDS)}, not '{self.reward}'", field="reward")
        if not self.loads or min(self.loads) <= 0:
            raise InvalidInput("loads must be above 0", field="loads")

    def epsilon(self, decisions: int) -> float:
        """Share of random actions after so many decisions."""
        done = min(decisions / self.epsilon_decisions, 1.0)
        return self.epsilon_first + (self.epsilon_last - self.epsilon_first) * done


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        # The included network's recipe: rollouts measure the gains of candidates, and a network is fitted to them.
        IterationRecipe(DEFAULT),
        # Starts from a policy (`--start`, otherwise the base's choices), and stays near it: the margins keep the base's
        # choice unless another action is clearly better.
        QRecipe("dqn", margins=Margins(start=0.5, hold=1.0)),
        # The paper's method, and a plain DQN (Mnih et al. 2015) where the paper gives none: its own scenario, its
        # reward over all idle GPUs, a fixed discount, no double Q, much exploration, the highest Q wins.
        QRecipe(
            "paper",
            randomised=False,
            loads=(0.9,),
            repeats=4,
            reward="jobs",
            feasible_idle_only=False,
            discount_per_decision=0.99,
            double=False,
            huber=False,
            epsilon_first=1.0,
            epsilon_last=0.05,
            epsilon_decisions=1_000_000,
            random_hold=0.2,
        ),
    )
}


def recipe_named(name: str, **changes: object) -> Recipe:
    """A recipe, with some settings changed.

    Raises:
        InvalidInput: no such recipe, or an invalid setting.
    """
    name = ALIASES.get(name, name)
    if name not in RECIPES:
        raise InvalidInput(f"no recipe '{name}'; there are {', '.join(RECIPES)}", field="recipe")
    return dataclasses.replace(RECIPES[name], **changes)  # type: ignore[arg-type]


def q_recipe(name: str, **changes: object) -> QRecipe:
    """One of the recipes of Q-learning."""
    recipe = recipe_named(name, **changes)
    assert isinstance(recipe, QRecipe)
    return recipe
