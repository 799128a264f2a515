"""How fast ADLRO learns and decides, beside CleanRL's DQN recipe on the same environment and network in the same run.

    python -m benchmarks.training [--seconds S] [--rounds N] [--match MINUTES] [--json FILE]

1. Environment steps a core-second of `adlro train --recipe paper` and of the reference (benchmarks/dqn_reference.py),
   in turn, and their ratio in each round. A core-second is a second of CPU time of this process, all threads together.
2. From that, how long one million episodes of 64 jobs take on two cores: measured on a part, and extrapolated.
3. With --match: how many core-minutes each takes until it is as good as `hold_greedy_fixed` on the validation lists,
   or how good it was when the time was over. `--recipe dqn` begins there.
4. One decision, from the observation to the action, on one thread: 16 and 1,024 GPUs, window 32; its network in
   compiled code, as in service, and in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import ModelMetadata, OnnxModel
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.lab.learn.episodes import greedy
from adlro.lab.learn.export import to_onnx
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import QRecipe, q_recipe
from adlro.lab.learn.training import Training
from adlro.lab.learn.validation import Validation
from adlro.lab.learn.worlds import world_of
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.dqn_reference import Reference
from benchmarks.measuring import machine, percentile, spread

EPSILON = 0.29
"""Mean over CleanRL's schedule: from 1 to 0.05 in the first half. For both, so that as many actions cost a network."""

STAY = Margins(math.inf, math.inf)
"""Both do what the base does, but for random actions, however far they have learned: so they see the same states. Else
one that has learned to hold has more idle GPUs and so more pairs to score than the other."""

EPISODES, EPISODE_JOBS = 1_000_000, 64
DECISIONS = 400


def ours() -> QRecipe:
    """The recipe that is measured."""
    return q_recipe("paper", epsilon_first=EPSILON, epsilon_last=EPSILON, validate_every=10**9, margins=STAY)


def measure_training(seconds: float, rounds: int, seed: int) -> dict[str, Any]:
    """Steps a core-second of both, in turn."""
    world = world_of(load_scenario("paper"), 0.9, "true", np.random.default_rng(seed), lists=64, jobs=EPISODE_JOBS)
    reference = Reference(world, PlaneFiller(FIXED.rule()), EPSILON, seed, STAY)
    for _ in range(200):
        reference.step()  # compiles, and fills the first batch
    ours_s, theirs_s, wall_s, per_episode = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        recipe = ours()
        training = Training(Path(folder), recipe, seed=seed, checkpoint_s=1e9)
        steps = training.run()
        next(steps)  # nothing is learned yet
        for _ in range(rounds):
            begin_cpu, begin, before, lists = time.process_time(), time.monotonic(), training.learning.decisions, 0
            while time.process_time() - begin_cpu < seconds:
                next(steps)
                lists += recipe.lists
            made = training.learning.decisions - before
            ours_s.append(made / (time.process_time() - begin_cpu))
            wall_s.append(made / (time.monotonic() - begin))
            per_episode.append(made / lists)
            begin_cpu, before = time.process_time(), reference.steps
            while time.process_time() - begin_cpu < seconds:
                reference.step()
            theirs_s.append((reference.steps - before) / (time.process_time() - begin_cpu))
        steps.close()
    core_s = EPISODES * float(np.median(per_episode)) / float(np.median(ours_s))
    return {
        "steps_per_core_s": {"adlro": spread(ours_s), "cleanrl_recipe": spread(theirs_s)},
        "ratio": spread([our / their for our, their in zip(ours_s, theirs_s, strict=True)]),
        "steps_per_wall_s": spread(wall_s),
        "learned_per_step": {"adlro": recipe.replay_ratio, "cleanrl_recipe": 12.8},
        "decisions_per_episode": float(np.median(per_episode)),
        "million_episodes_on_two_cores_min": {
            "by_core_seconds": core_s / 2 / 60,
            "by_wall_time": EPISODES * float(np.median(per_episode)) / float(np.median(wall_s)) / 60,
        },
    }


def match(minutes: float, seed: int) -> dict[str, Any]:
    """Core-minutes until each is as good as the base; None: never in the time."""
    validation, found = Validation(8), {}
    with tempfile.TemporaryDirectory() as folder:
        recipe = q_recipe("paper", validate_every=5, epsilon_decisions=400_000)
        training = Training(Path(folder), recipe, seed=seed, checkpoint_s=1e9, validation=validation)
        begin_s, best, at_min = time.process_time(), -np.inf, None
        for step in training.run():
            passed_min = (time.process_time() - begin_s) / 60
            if step.score is not None:
                best = max(best, step.score.gain)
                if best >= 0.0:
                    at_min = passed_min
            if at_min is not None or passed_min > minutes:
                break
        found["adlro --recipe paper"] = {"core_minutes": at_min, "best_gain": best}
    world = world_of(load_scenario("paper"), 0.9, "true", np.random.default_rng(seed), lists=512, jobs=EPISODE_JOBS)
    filler, cpu = PlaneFiller(FIXED.rule()), torch.device("cpu")
    reference = Reference(world, filler, EPSILON, seed)
    begin_s, best, at_min, judged = time.process_time(), -np.inf, None, 0
    while at_min is None and (time.process_time() - begin_s) / 60 <= minutes:
        reference.step()
        if reference.steps >= judged + 5_000:
            judged = reference.steps
            best = max(best, validation.score(greedy(reference.network, filler, Margins(), cpu)).gain)
            if best >= 0.0:
                at_min = (time.process_time() - begin_s) / 60
    found["cleanrl_recipe"] = {"core_minutes": at_min, "best_gain": best}
    return {"minutes": minutes, "until_hold_greedy_fixed": found}


def decisions_of(copies: int, seed: int) -> list[Observation]:
    """Observations of a cluster of so many times 16 GPUs, at load 1.1, where something fits."""
    scenario = load_scenario("paper")
    nodes = tuple(
        dataclasses.replace(
            node,
            node_id=f"{node.node_id}.{copy}",
            gpus=tuple(dataclasses.replace(gpu, gpu_id=f"{gpu.gpu_id}.{copy}") for gpu in node.gpus),
        )
        for copy in range(copies)
        for node in scenario.cluster.nodes
    )
    cluster = Cluster("copies", nodes)
    count = 256 if copies == 1 else 24 * copies
    jobs = draw_jobs(scenario, load=1.1 * copies, rng=np.random.default_rng(seed), count=count)
    simulator = BatchSimulator(cluster, pack_jobs([jobs], cluster))
    policy, found = HoldGreedyFixed(), []
    while len(simulator.active):
        observation = simulator.observe()
        if len(observation.table.job):
            found.append(observation)
        simulator.act(policy.act(observation))
    # Full clusters: neither the beginning, nor the end when nothing comes any more.
    return found[len(found) // 2 :][:DECISIONS]


def measure_decisions(seed: int, rounds: int) -> dict[str, Any]:
    """Microseconds of one decision, with its parts, and of the base heuristic on the same observations."""
    torch.manual_seed(seed)
    network = PairNetwork()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model = OnnxModel(to_onnx(network, ModelMetadata(FIXED.rule(), 32)))
    found = {}
    for copies in (1, 64):
        observations, policy = decisions_of(copies, seed), HoldGreedyFixed()
        names = ("decision", "planes", "network", "onnx_runtime", "hold_greedy_fixed")
        parts: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for observation in observations:
                times = [time.perf_counter()]
                model.act(observation)
                times.append(time.perf_counter())
                planes = model.planes(observation)
                times.append(time.perf_counter())
                model.q(planes)
                times.append(time.perf_counter())
                model.q_of_runtime(planes)
                times.append(time.perf_counter())
                policy.act(observation)
                times.append(time.perf_counter())
                for name, passed in zip(parts, np.diff(times), strict=True):
                    parts[name].append(1e6 * float(passed))
        found[f"{16 * copies} GPUs"] = {
            "decisions": len(observations),
            "queue": float(np.median([each.job_waiting.shape[1] for each in observations])),
            **{f"{name}_p50_us": percentile(values, 0.5) for name, values in parts.items()},
            **{f"{name}_p99_us": percentile(values, 0.99) for name, values in parts.items()},
        }
    return found


def main() -> None:
    """Runs it all, and prints each part as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="core-seconds of each side of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--match", type=float, default=0.0, help="core-minutes for each side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), "seed": asked.seed}
    parts: dict[str, Callable[[], Any]] = {
        "training": lambda: measure_training(asked.seconds, asked.rounds, asked.seed),
        "decision": lambda: measure_decisions(asked.seed, asked.rounds),
        "match": lambda: match(asked.match, asked.seed),
    }
    for name, measure in parts.items():
        if name != "match" or asked.match > 0:
            found[name] = measure()
            print(json.dumps({name: found[name]}, indent=1), flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
