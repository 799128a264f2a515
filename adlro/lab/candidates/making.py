"""Makes a candidate: the networks of the checkpoint in use, trained further in worlds like a past. torch by lab.learn.

Which network learns, depends on the past's jobs: the one for jobs of one GPU where next to all are such, the one for
jobs of several GPUs where there are any. The other one, and what a network has in range, stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adlro.decide.planes.model import OnnxModel
from adlro.errors import InvalidInput
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.worlds import PastWorlds
from adlro.lab.learn.gang_states import GangSampling

MOST_GANGS_BESIDE = 0.05
"""Above that share of jobs with several GPUs, decisions in which none of them waits or runs are rare."""


USUAL_GANG_SHARE = 0.3
"""Of the worlds for which the sampling was made; where fewer jobs have several GPUs, more of their decisions count."""


@dataclass(frozen=True)
class Making:
    """The size of a training.

    Attributes:
        worlds: for each network that learns.
        epochs: of each training.
        seed: of all random numbers.

    Raises:
        InvalidInput: names the invalid field.
    """

    worlds: int = 40
    epochs: int = 12
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in (("worlds", 2), ("epochs", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidInput(f"{name}: must be at least {least}, not {getattr(self, name)}", field=name)


def make_candidate(past: Past, content: bytes, making: Making, folder: Path, say: Callable[[str], None]) -> bytes:
    """The candidate's ONNX file.

    Args:
        past: to learn from.
        content: the ONNX file of the checkpoint in use.
        making: the size.
        folder: for the worlds' states; what is there is not made again.
        say: called with a line of progress.

    Raises:
        InvalidInput: too few jobs, or the checkpoint lacks its weights.
    """
    from adlro.lab.learn.gang_training import GangTraining, act_of, with_gangs

    gangs = OnnxModel(content).gangs
    if past.gang_share < MOST_GANGS_BESIDE:
        from adlro.lab.learn.export import network_of, to_onnx
        from adlro.lab.learn.pair_refit import PairRefit

        of_one = PastWorlds(past, one_gpu=True)
        refit = PairRefit(folder / "one_gpu", making.seed, making.epochs, say, of_one, network_of(content))
        refit.collect(making.worlds)
        content = to_onnx(*refit.learn())
        if gangs is not None:
            content = with_gangs(content, gangs)
    if past.gang_share > 0.0:
        worlds = PastWorlds(past)
        training = GangTraining(
            folder / "gangs", making.seed, making.epochs, say, worlds, gangs, _sampling(past.gang_share)
        )
        under_rule = making.worlds if gangs is None else making.worlds // 2
        paths = training.collect(0, under_rule, None)
        paths += training.collect(under_rule, making.worlds - under_rule, None if gangs is None else act_of(gangs))
        content = with_gangs(content, training.learn(paths))
    return content


def _sampling(gang_share: float) -> GangSampling:
    """The sampling for such a share of jobs with several GPUs: about as many decisions as usual."""
    usual = GangSampling()
    times = min(max(USUAL_GANG_SHARE / gang_share, 1.0), 6.0)
    return dataclasses.replace(
        usual, share=min(times * usual.share, 1.0), other_share=min(times * usual.other_share, 1.0)
    )
