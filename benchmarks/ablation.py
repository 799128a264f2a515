"""What each part of what the network sees is worth: arms with something left out, with seeds and a time for each.

    python -m benchmarks.ablation FOLDER [--minutes 10] [--seeds 3] [--lists 60] [--arms full,cnn,base] [--json FILE]
                                         [--epochs N]
    python -m benchmarks.ablation FOLDER --idle 0.01,0.1,0.5 [--minutes 10] [--seeds 3]

FOLDER has states with what their candidates gain (`first` in a folder of `adlro train`). Each arm
is trained on them as the policy that ships is, for so many core-minutes, and then judged twice: by the measured gain of
its actions at states of other worlds, and by playing validation lists beside `hold_greedy_fixed` on the same lists.

Arms: `full`; `cnn` without the convolutions; `NAME` without the group NAME of planes (they stand in
adlro/decide/planes/table.py); `estimates` without all that rests on expected durations. Left out means that
the planes are 0 in training and in play; the base policy, which the network corrects, knows what it always knows. The
arms of a run have as many epochs as take the minutes; with --epochs N, so many: arms of several runs may be compared.
Networks of the arm `full` are judged once more at the same states with the planes of one group 0 after the training
(`told_0`): what they make of them, without the differences between trainings.

With --idle, DQNs of the recipe `dqn` are trained instead, one for each lambda: the reward of the regression has none.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from adlro.decide.planes.choice import Margins, choose
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.layout import Planes
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, GROUPS, JOB_PLANES, PAIR_PLANES, Plane
from adlro.decide.policies.hold_greedy import FIXED
from adlro.lab.learn.dataset import Chunk, Dataset, load
from adlro.lab.learn.episodes import network_q
from adlro.lab.learn.improve import MARGINS, NetworkFit, best_margins, fit, gains_by_margin
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import q_recipe
from adlro.lab.learn.sizes import NetworkSettings
from adlro.lab.learn.training import Training
from adlro.lab.learn.validation import paired
from adlro.state.observation import Ints, Observation
from benchmarks.measuring import machine

CELLS = (("paper", 0.9, "true"), ("paper", 1.1, "true"), ("paper", 1.1, "noise:0.5"), ("paper", 1.1, "type"))
ESTIMATES = ("duration", "remaining", "base")
KEPT = ("present",)
"""Without it nothing tells padding from a GPU or a job."""


def left_out_of(planes: Sequence[Plane], groups: Sequence[str]) -> list[int]:
    """Numbers of the planes of some groups."""
    return [number for number, plane in enumerate(planes) if plane.group in groups and plane.name not in KEPT]


@dataclasses.dataclass(frozen=True)
class Arm:
    """Something left out.

    Attributes:
        name: of the arm.
        groups: of planes that are 0.
        convolutions: the network has them.
    """

    name: str
    groups: tuple[str, ...] = ()
    convolutions: bool = True

    def blind(self, planes: Any) -> Any:
        """Planes (or a chunk of them) without what is left out."""
        columns = {
            "gpus": planes.gpus.copy(),
            "jobs": planes.jobs.copy(),
            "pairs": planes.pairs.copy(),
            "cluster": planes.cluster.copy(),
        }
        columns["gpus"][:, left_out_of(GPU_PLANES, self.groups)] = 0
        for name, table in (("jobs", JOB_PLANES), ("pairs", PAIR_PLANES), ("cluster", CLUSTER_PLANES)):
            columns[name][..., left_out_of(table, self.groups)] = 0
        return type(planes)(**{**planes._asdict(), **columns})  # a chunk has another length than its fields


ARMS = {
    arm.name: arm
    for arm in (
        Arm("full"),
        Arm("cnn", convolutions=False),
        Arm("estimates", ESTIMATES),
        *(Arm(group, (group,)) for group in GROUPS),
    )
}


def policy_of(network: PairNetwork, arm: Arm, margins: Margins) -> Callable[[Observation], Ints]:
    """What an arm's network does."""
    filler, cpu = PlaneFiller(FIXED.rule()), torch.device("cpu")

    def act(observation: Observation) -> Ints:
        planes: Planes = filler.fill(observation)
        return choose(planes, *network_q(network, arm.blind(planes), cpu), margins)

    return act


def told_0(network: PairNetwork, margins: Margins, test: Sequence[Chunk]) -> dict[str, float]:
    """Measured gain a state of a trained network whose planes of a group are 0, by the groups."""
    at = MARGINS.index(margins.start), MARGINS.index(margins.hold)
    return {
        group: float(gains_by_margin(network, [ARMS[group].blind(chunk) for chunk in test])[at]) for group in GROUPS
    }


def run_arm(arm: Arm, data: Dataset, seed: int, epochs: int, lists: int) -> dict[str, Any]:
    """One training of an arm, and how it does."""

    def blind(chunks: Sequence[Chunk]) -> list[Chunk]:
        return [arm.blind(chunk) for chunk in chunks]

    begin_s = time.process_time()
    seen = Dataset(blind(data.train), blind(data.test)) if arm.groups else data
    settings = NetworkFit(epochs=epochs, seed=seed, sizes=NetworkSettings(convolutions=arm.convolutions))
    network, _ = fit(seen, settings)
    passed_min = (time.process_time() - begin_s) / 60
    gain, margins = best_margins(network, seen.test)
    # The margins for play are the same for all arms: chosen by the test states they would favour the lucky.
    act = policy_of(network, arm, Margins(0.02, 0.05))
    played = {}
    for name, load_, runtime in CELLS:
        score = paired((name, load_, runtime), act, lists=lists)
        played[f"{name} {load_} {runtime}"] = {"percent": 100 * score.ratio, "error": 100 * score.error}
    return {
        "arm": arm.name,
        "seed": seed,
        "core_minutes": passed_min,
        "test_gain": gain,
        "margins": dataclasses.asdict(margins),
        "played": played,
        **({"told_0": told_0(network, margins, seen.test)} if arm.name == "full" else {}),
    }


def run_regression(
    folder: Path,
    names: Sequence[str],
    minutes: float,
    seeds: int,
    lists: int,
    tell: Callable[[Any], None],
    epochs: int | None = None,
) -> list[dict[str, Any]]:
    """All arms and seeds."""
    data = load([folder], PlaneFiller(FIXED.rule()))
    if not data.train or not data.test:
        raise SystemExit(f"{folder} has too few worlds to train and to test on: see the top of this file")
    if epochs is None:
        begin_s = time.process_time()
        fit(data, NetworkFit(epochs=1))
        epochs = max(1, round(60 * minutes / (time.process_time() - begin_s)))
    tell({"states": data.states, "epochs": epochs})
    found = []
    for name in names:
        for seed in range(1, seeds + 1):
            found.append(run_arm(ARMS[name], data, seed, epochs, lists))
            tell(found[-1])
    return found


def run_idle(values: Sequence[float], minutes: float, seeds: int, tell: Callable[[Any], None]) -> list[dict[str, Any]]:
    """DQNs with different lambda; the score is that of the last networks, not of the best."""
    found = []
    for value in values:
        for seed in range(1, seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                begin_s, last = time.process_time(), None
                recipe = q_recipe("dqn", idle=value)
                training = Training(Path(folder), recipe, seed=seed, checkpoint_s=1e9)
                for step in training.run():
                    last = step.score or last
                    if (time.process_time() - begin_s) / 60 > minutes:
                        break
            score = None if last is None else dataclasses.asdict(last)
            found.append({"idle": value, "seed": seed, "decisions": training.learning.decisions, "score": score})
            tell(found[-1])
    return found


def summed_up(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread over the seeds of each arm."""
    summary: dict[str, Any] = {}
    for name in dict.fromkeys(each["arm"] for each in found):
        of_arm = [each for each in found if each["arm"] == name]
        rows = {"test_gain": [each["test_gain"] for each in of_arm]}
        rows |= {cell: [each["played"][cell]["percent"] for each in of_arm] for cell in of_arm[0]["played"]}
        summary[name] = {
            key: {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
            for key, values in rows.items()
        }
    return summary


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with states; not looked at with --idle")
    parser.add_argument("--minutes", type=float, default=10.0, help="core-minutes of each training")
    parser.add_argument("--epochs", type=int, help="of each training, in place of --minutes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lists", type=int, default=60, help="validation lists of each cell")
    parser.add_argument("--arms", default=",".join(ARMS), help="of %(default)s")
    parser.add_argument("--idle", help="lambdas, with commas")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    names = asked.arms.split(",")
    unknown = [name for name in names if name not in ARMS]
    if asked.epochs is not None and asked.epochs < 1:
        parser.error("--epochs: at least one")
    if unknown:
        parser.error(f"no arm '{unknown[0]}'; there are {', '.join(ARMS)}")
    torch.set_num_threads(1)

    def tell(each: Any) -> None:
        sys.stdout.write(json.dumps(each) + "\n")
        sys.stdout.flush()

    result: dict[str, Any] = {"machine": machine(), "minutes": asked.minutes, "epochs": asked.epochs}
    if asked.idle:
        values = [float(text) for text in asked.idle.split(",")]
        result["idle"] = run_idle(values, asked.minutes, asked.seeds, tell)
    else:
        found = run_regression(asked.folder, names, asked.minutes, asked.seeds, asked.lists, tell, asked.epochs)
        result |= {"runs": found, "summary": summed_up(found)}
        tell(result["summary"])
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
