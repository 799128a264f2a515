"""Trains the network for jobs of one GPU further, from its weights, in worlds of the caller's. torch.

As the last part of policy_iteration.py, without trials of margins: those of the network stay.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import OnnxModel
from adlro.decide.planes.ranges import Ranges, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED
from adlro.errors import InvalidInput
from adlro.lab.learn.advantages import Act, Sampling, collect_world
from adlro.lab.learn.dataset import load
from adlro.lab.learn.export import to_onnx
from adlro.lab.learn.improve import Fitting, NetworkFit
from adlro.lab.learn.learning import Network
from adlro.lab.learn.policy_iteration import BEHAVIOUR, RATE_FROM_WEIGHTS, ranges_of, world_path
from adlro.lab.learn.validation import with_margins
from adlro.lab.learn.worlds import DrawWorld


class PairRefit:
    """The states of worlds in files, and a network of them.

    Args:
        folder: of the files, and of nothing else; what is there is not made again.
        seed: of worlds and network.
        epochs: passes over all states.
        say: called with a line of progress.
        draw: draws the worlds, whose jobs have one GPU.
        start: whose weights the training begins with.
    """

    def __init__(
        self, folder: Path, seed: int, epochs: int, say: Callable[[str], None], draw: DrawWorld, start: Network
    ) -> None:
        self._folder, self._seed, self._epochs = folder, seed, epochs
        self._say, self._draw, self._start = say, draw, start

    def collect(self, count: int) -> None:
        """The files of `count` worlds: every second one under the network, the others under the base."""
        act: Act = with_margins(OnnxModel(to_onnx(*self._start)), BEHAVIOUR)
        for number in range(count):
            path = world_path(self._folder, self._seed, number)
            if not path.exists():
                world, states = collect_world(
                    path, self._seed, number, Sampling(), act if number % 2 else None, self._draw
                )
                self._say(f"{number}: {world.text}: {len(states)} decisions")

    def learn(self) -> Network:
        """A network of all files.

        Raises:
            InvalidInput: there are no states in them.
        """
        data = load([self._folder], PlaneFiller(FIXED.rule()))
        if not data.states:
            raise InvalidInput("worlds: no decision of these worlds was sampled; more worlds have some", field="worlds")
        network, metadata = self._start
        settings = NetworkFit(epochs=self._epochs, seed=self._seed, rate=RATE_FROM_WEIGHTS, sizes=network.settings)
        fitting = Fitting(data, settings, copy.deepcopy(network))
        while not fitting.ended:
            fitting.run_epoch()
            told = ", ".join(f"{name} {figure:g}" for name, figure in fitting.log[-1].items())
            self._say(f"{data.states} decisions: {told}")
        ranges = Ranges()
        ranges.include(ranges_from_json(metadata.training.get("ranges")))
        ranges.include(ranges_of([self._folder]))
        training = {**metadata.training, "log": fitting.log, "ranges": ranges.to_json()}
        return fitting.network.eval(), dataclasses.replace(metadata, seed=self._seed, training=training)
