"""The network that weighs actions where jobs of several GPUs wait (adlro/decide/gang_actions.py). numpy, numba only.

Two fully connected layers on the figures of the cluster, the price of waits, and the figures of an action and of the
base's action; the result is the action's gain against the base's, in units of the decision's typical duration. It
stands as text in the metadata of the policy's ONNX file.

A second of waiting costs the price more for each typical duration that the job has waited. One network has learned all
prices; the less is known of runtimes, the higher the price it decides with: without knowledge, the wide jobs that a
mistake delays wait longest. Sums are in one order, so an action has the same value on every processor.
"""

from __future__ import annotations

import base64
import functools
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from adlro.decide.gang_actions import (
    ACTION_FIGURES,
    BASE,
    CLUSTER_FIGURES,
    DOUBT,
    QUEUE_COUNTS,
    QUEUE_SIZES,
    REFUSED,
    SLOWNESS,
    GangActions,
    no_actions,
)
from adlro.errors import InvalidInput
from adlro.numeric.compiled import compiled, compiled_part
from adlro.numeric.exact import log
from adlro.state.observation import Bools, Floats, Ints

KEY = "adlro.gangs"
"""Key of the network in an ONNX file's metadata."""

FORMAT = "adlro-gangs/2"
INPUTS = CLUSTER_FIGURES + 1 + 2 * ACTION_FIGURES
PRICE_SCALE = 20.0
"""Factor of a price in its logarithm (`price_figure`): prices of 0.05 and more count by their ratios."""

MOST_DEVIATIONS = 6.0
"""Standard deviations from the mean of the training at which an input is cut."""

GUESSED, TOO_SLOW = 0.5, 5.0
"""Where the doubt is that much, no action starts a job that takes more than so many times as long as on its fastest
GPUs, unless the base would, too."""

ROUNDING = 1e-5
"""Of the bounds of the training: they stand in the file with 24 bits."""

_TOO_SLOW_LN = log(TOO_SLOW)

_GROWS = np.zeros(CLUSTER_FIGURES, dtype=np.bool_)
_GROWS[list(QUEUE_SIZES)] = True
_COUNTS = np.zeros(CLUSTER_FIGURES, dtype=np.bool_)
_COUNTS[list(QUEUE_COUNTS)] = True

_ARRAYS = ("mean", "scale", "first", "first_bias", "second", "second_bias", "last", "lowest", "highest")


@dataclass(frozen=True)
class GangNetwork:
    """Weights, and what belongs to them.

    Attributes:
        mean, scale: (INPUTS,) of the training's inputs.
        first, first_bias: (INPUTS, H), (H,).
        second, second_bias: (H, H2), (H2,).
        last: (H2 + 1,) the weights of the result, and its bias.
        lowest, highest: (CLUSTER_FIGURES,) of the cluster's figures in the training.
        margins: (5,) the gain above which an action replaces the base's, by its kind, where runtimes are known; twice
            as much where nothing is known of them.
        wait_prices: the prices of waits where runtimes are known, and where nothing is known of them.
        training: facts for people: command, worlds, seed, scores.
    """

    mean: Floats
    scale: Floats
    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    last: Floats
    lowest: Floats
    highest: Floats
    margins: tuple[float, ...]
    wait_prices: tuple[float, float]
    training: dict[str, Any]

    def __post_init__(self) -> None:
        """Raises InvalidInput for weights of other shapes, or no numbers: compiled code does not check its reads."""
        hidden, hidden2 = len(self.first_bias), len(self.second_bias)
        shapes = {
            "mean": (INPUTS,),
            "scale": (INPUTS,),
            "first": (INPUTS, hidden),
            "first_bias": (hidden,),
            "second": (hidden, hidden2),
            "second_bias": (hidden2,),
            "last": (hidden2 + 1,),
            "lowest": (CLUSTER_FIGURES,),
            "highest": (CLUSTER_FIGURES,),
        }
        for name, shape in shapes.items():
            array: Floats = getattr(self, name)
            if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
                raise InvalidInput(f"the network's {name} is not of shape {shape}, or has no numbers", field=name)
        if not (self.scale > 0.0).all():
            raise InvalidInput("the network's scale is not above 0", field="scale")
        if len(self.margins) != 5 or not np.isfinite(self.margins).all():
            raise InvalidInput("the network's margins are not five numbers", field="margins")
        object.__setattr__(self, "margins", tuple(map(float, self.margins)))  # compiled code indexes them
        if not all(0.0 <= price < np.inf for price in self.wait_prices):
            raise InvalidInput("the network's prices of waits are not numbers from 0", field="wait_prices")

    def is_in_range(self, actions: GangActions) -> bool:
        """Whether the cluster's figures are those of some cluster in the training, or those of a longer queue.

        Where something is known of runtimes a longer queue counts as the longest of the training: what is right there
        is right beyond it. Where little is known it is not: with the means of groups and a thousand waiting jobs mean
        completion times were 5 to 8 % higher (docs/learned_policy.md).
        """
        return bool(_is_in_range(actions.cluster, self.lowest, self.highest))

    def figure_at(self, doubt: float) -> float:
        """The price of waits that it decides with, as an input, for a doubt from 0 to 1: in proportion as an input."""
        known, unknown = map(price_figure, self.wait_prices)
        return known + (unknown - known) * doubt

    def gains(self, actions: GangActions) -> Floats:
        """(A,) the gain of each action; 0 for the base's."""
        found = np.zeros(len(actions.kind))
        _forward(
            self.mean,
            self.scale,
            self.first,
            self.first_bias,
            self.second,
            self.second_bias,
            self.last,
            self.lowest,
            self.highest,
            actions.cluster,
            self.figure_at(float(actions.cluster[DOUBT])),
            actions.figures,
            found,
            np.empty_like(self.first_bias),
            np.empty_like(self.first_bias),
            np.empty_like(self.second_bias),
        )
        return found

    def choose(self, actions: GangActions, gains: Floats) -> int:
        """The number of the action: of those whose gain exceeds their margin the one that exceeds it most, or 0.

        What `leaves_out` names is never chosen.
        """
        return int(_choose(actions.kind, actions.figures, float(actions.cluster[DOUBT]), self.margins, gains))

    @staticmethod
    def leaves_out(actions: GangActions) -> Bools:
        """(A,) where little is known, the starts on very slow GPUs that the base refuses.

        A job that is longer than expected is so many times longer there, and the training counts losses only up to a
        limit.
        """
        found = np.empty(len(actions.kind), dtype=np.bool_)
        _fill_left_out(actions.figures, float(actions.cluster[DOUBT]), found)
        return found

    def try_out(self) -> Floats:
        """Uses all its compiled code once, so that no decision waits for it; returns the gains that it found."""
        actions = no_actions()
        self.is_in_range(actions)
        self.leaves_out(actions)
        gains = self.gains(actions)
        self.choose(actions, gains)
        return gains

    def to_text(self) -> str:
        """For an ONNX file's metadata."""
        buffer = io.BytesIO()
        np.savez(buffer, **{name: getattr(self, name).astype(np.float32) for name in _ARRAYS})
        said = {
            "format": FORMAT,
            "margins": list(self.margins),
            "wait_prices": list(self.wait_prices),
            "training": self.training,
            "arrays": base64.b64encode(buffer.getvalue()).decode(),
        }
        return json.dumps(said, sort_keys=True)


def blank_network() -> GangNetwork:
    """A network for which no action gains anything, of the least size."""
    one, figures = np.zeros(1), np.zeros(CLUSTER_FIGURES)
    wide = np.zeros(INPUTS)
    square = np.zeros((1, 1))
    return GangNetwork(
        wide, wide + 1.0, wide[:, None], one, square, one, np.zeros(2), figures, figures, (0.0,) * 5, (0.0, 0.0), {}
    )


@functools.lru_cache(maxsize=64)
def price_figure(price: float) -> float:
    """A price of waits as an input of the network."""
    return log(1.0 + PRICE_SCALE * price)


def network_from_text(text: str, source: str) -> GangNetwork:
    """The network of `to_text`.

    Args:
        text: from a file's metadata.
        source: the file's name in errors.

    Raises:
        InvalidInput: damaged, or of other figures than this version's.
    """
    try:
        said: dict[str, Any] = json.loads(text)
        if said["format"] != FORMAT:
            raise ValueError(f"its format is '{said['format']}', and this version of ADLRO works with '{FORMAT}'")
        content = io.BytesIO(base64.b64decode(said["arrays"], validate=True))
        with np.load(content, allow_pickle=False) as file:
            arrays = {name: np.ascontiguousarray(file[name], dtype=np.float64) for name in _ARRAYS}
        known, unknown = map(float, said["wait_prices"])
        margins = tuple(map(float, said["margins"]))
        return GangNetwork(**arrays, margins=margins, wait_prices=(known, unknown), training=dict(said["training"]))
    except Exception as error:  # a damaged file makes numpy raise any kind of error
        raise InvalidInput(
            f"{source}: its metadata '{KEY}' cannot be read ({error}): train it again, or take a model of this version",
            field="metadata",
        ) from error


@compiled
def _forward(
    mean: Floats,
    scale: Floats,
    first: Floats,
    first_bias: Floats,
    second: Floats,
    second_bias: Floats,
    last: Floats,
    lowest: Floats,
    highest: Floats,
    cluster: Floats,
    price: float,
    figures: Floats,
    gains: Floats,
    of_all: Floats,
    hidden: Floats,
    hidden2: Floats,
) -> None:
    """Fills in the gains of actions 1, 2, ...; the first is the base's, with gain 0.

    Args:
        price: of waits, as an input.
        of_all: (H,) room: what the cluster and the base's action add to the first layer, for every action.
        hidden, hidden2: (H,), (H2,) room.
    """
    shared, own = cluster.shape[0] + 1, figures.shape[1]
    for j in range(of_all.shape[0]):
        of_all[j] = first_bias[j]
    for i in range(shared + own):
        place = i if i < shared else i + own
        if i < shared - 1:
            value = min(max(cluster[i], lowest[i]), highest[i])
        else:
            value = price if i < shared else figures[0, i - shared]
        value = min(max((value - mean[place]) / scale[place], -MOST_DEVIATIONS), MOST_DEVIATIONS)
        if value != 0.0:
            for j in range(of_all.shape[0]):
                of_all[j] += value * first[place, j]
    for a in range(1, figures.shape[0]):
        for j in range(hidden.shape[0]):
            hidden[j] = of_all[j]
        for i in range(own):
            place = shared + i
            value = (figures[a, i] - mean[place]) / scale[place]
            value = min(max(value, -MOST_DEVIATIONS), MOST_DEVIATIONS)
            for j in range(hidden.shape[0]):
                hidden[j] += value * first[place, j]
        for k in range(hidden2.shape[0]):
            hidden2[k] = second_bias[k]
        for j in range(hidden.shape[0]):
            if hidden[j] > 0.0:
                for k in range(hidden2.shape[0]):
                    hidden2[k] += hidden[j] * second[j, k]
        total = last[hidden2.shape[0]]
        for k in range(hidden2.shape[0]):
            if hidden2[k] > 0.0:
                total += hidden2[k] * last[k]
        gains[a] = total


@compiled
def _is_in_range(cluster: Floats, lowest: Floats, highest: Floats) -> bool:
    """`GangNetwork.is_in_range`."""
    longer = False  # than every queue of the training
    for i in range(cluster.shape[0]):
        longer |= _COUNTS[i] and not cluster[i] <= highest[i] + ROUNDING
    queue_may_grow = longer and cluster[DOUBT] < GUESSED
    for i in range(cluster.shape[0]):
        if not cluster[i] >= lowest[i] - ROUNDING:
            return False
        if not cluster[i] <= highest[i] + ROUNDING and not (queue_may_grow and _GROWS[i]):
            return False
    return True


@compiled_part
def _is_left_out(figures: Floats, action: int, doubt: float) -> bool:
    """`GangNetwork.leaves_out` of one action."""
    return bool(doubt >= GUESSED and figures[action, REFUSED] > 0.0 and figures[action, SLOWNESS] > _TOO_SLOW_LN)


@compiled
def _fill_left_out(figures: Floats, doubt: float, left_out: Bools) -> None:
    for action in range(left_out.shape[0]):
        left_out[action] = _is_left_out(figures, action, doubt)


@compiled
def _choose(kind: Ints, figures: Floats, doubt: float, margins: tuple[float, ...], gains: Floats) -> int:
    """`GangNetwork.choose`."""
    best, most = 0, -np.inf
    for action in range(kind.shape[0]):
        above = gains[action] - (1.0 + doubt) * margins[kind[action]]
        if _is_left_out(figures, action, doubt):
            above = -np.inf
        if kind[action] == BASE:
            above = 0.0
        if above > most:
            best, most = action, above
    return best
