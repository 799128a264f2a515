"""What predictions learned online are worth to a scheduler; part of benchmarks/decompose.py.

Job lists of the scenario `paper` run in the simulator under a policy. What the policy
believes of a job's runtimes is, in turn, everything (`true`), the mean of its user and application (`group`), its
type's median (`type`), nothing (`none`), or what decompose's predictor says that has seen nothing but this list's
finished jobs (`online`: asked when the job arrives, and again for the jobs that wait whenever its regression was made
anew).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.cluster import Cluster
from adlro.sim.batch import BatchSimulator, Outcome
from adlro.sim.estimates import expected_s
from adlro.sim.job_arrays import pack_jobs
from adlro.sim.scenario import load_scenario
from adlro.sim.workload import WorkloadJob, draw_jobs
from services.decompose.learned import LearnedPredictor
from services.decompose.memory import FinishedJob, OutcomeMemory
from services.decompose.speeds import Speeds
from services.decompose.variables import Variables
from services.orchestrator.policies import POLICIES

Floats = NDArray[np.float64]
KNOWLEDGE = ("true", "group", "type", "none", "online")
POLICY_NAMES = ("mct", "hold_greedy_fixed")
JOBS = 1000
LATE = slice(500, 1000)
LOAD = 0.9


def new_predictor() -> LearnedPredictor:
    """One that has seen nothing."""
    variables, speeds = Variables(), Speeds()
    return LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: ())


@dataclass
class Online:
    """Learns from a running simulation, and keeps what the scheduler believes up to date.

    Args:
        predictor: learns.
        jobs: of the list.
        cluster: they run on.
        believed_s: J x K; written to.
    """

    predictor: LearnedPredictor
    jobs: Sequence[WorkloadJob]
    cluster: Cluster
    believed_s: Floats

    def __post_init__(self) -> None:
        self._specs = [job.spec(f"job-{number}") for number, job in enumerate(self.jobs)]
        self._submit_s = np.array([job.submit_s for job in self.jobs])
        self._gpus = [(gpu.gpu_id, gpu.gpu_model) for _, gpu in self.cluster.gpus()]
        self._learned = self._arrived = 0
        self._fit = -1

    def follow(self, now_s: float, outcome: Outcome) -> bool:
        """Learns from what ended by now, then predicts what arrived, and what waits if there is something new.

        Returns:
            Whether what is believed has changed.
        """
        ended = np.flatnonzero(outcome.end_s[0] <= now_s)
        if len(ended) > self._learned:
            order = ended[np.argsort(outcome.end_s[0, ended], kind="stable")][self._learned :]
            for number in order.tolist():
                gpu_id, model = self._gpus[int(outcome.gpu[0, number])]
                end_s = float(outcome.end_s[0, number])
                runtime_s = end_s - float(outcome.start_s[0, number])
                self.predictor.learn(FinishedJob(f"job-{number}", self._specs[number], model, runtime_s, end_s, gpu_id))
            self._learned = len(ended)
        arrived = int(np.searchsorted(self._submit_s, now_s, side="right"))
        wanted = list(range(self._arrived, arrived))
        self._arrived = arrived
        if self.predictor.prediction_revision != self._fit:
            self._fit = self.predictor.prediction_revision
            waiting = np.flatnonzero(np.isnan(outcome.start_s[0, :arrived])).tolist()
            wanted = sorted({*wanted, *waiting})
        if wanted:
            models = list(self.cluster.gpu_models)
            self.believed_s[wanted] = self.predictor.predict(
                [self._specs[number] for number in wanted], models
            ).median_s
        return bool(wanted)


def run(
    jobs: Sequence[WorkloadJob],
    policy_name: str,
    believed_s: Floats | None,
) -> tuple[Floats, LearnedPredictor | None]:
    """One list under one policy.

    Args:
        jobs: the list.
        policy_name: of the orchestrator's policies.
        believed_s: J x K; None: learned online.

    Returns:
        JCT of each job in s, and the predictor where there was one.
    """
    cluster = load_scenario("paper").cluster
    arrays = pack_jobs([jobs], cluster, None if believed_s is None else [believed_s])
    simulator = BatchSimulator(cluster, arrays)
    online = None
    if believed_s is None:
        arrays.expected_s[0] = 1.0  # replaced before any job of it can be seen
        online = Online(new_predictor(), jobs, cluster, arrays.expected_s[0])
    policy = POLICIES[policy_name].for_load(LOAD)
    while len(simulator.active):
        observation = simulator.observe()
        if online is not None and online.follow(float(observation.time_s[0]), simulator.outcome()):
            observation = simulator.observe()
        simulator.act(policy.act(observation))
    outcome = simulator.outcome()
    return outcome.end_s[0] - arrays.submit_s[0], None if online is None else online.predictor


def lists(count: int, seed: int, jobs: int = JOBS) -> list[list[WorkloadJob]]:
    """Job lists of the scenario's own population, of which the load is what it says."""
    scenario = load_scenario("paper")
    return [
        draw_jobs(scenario, load=LOAD, rng=np.random.default_rng([seed, number]), count=jobs) for number in range(count)
    ]


def measure(count: int, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Mean JCT over all and over the late jobs, by policy and knowledge."""
    scenario = load_scenario("paper")
    drawn = lists(count, seed)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for policy in POLICY_NAMES:
        result[policy] = {}
        for knowledge in KNOWLEDGE:
            jcts = []
            for jobs in drawn:
                believed = None
                if knowledge != "online":
                    believed = expected_s(jobs, scenario.cluster.gpu_models, knowledge, scenario, seed)
                jcts.append(run(jobs, policy, believed)[0])
            all_s = np.array(jcts)
            result[policy][knowledge] = {"all_s": float(all_s.mean()), "late_s": float(all_s[:, LATE].mean())}
        late = {name: values["late_s"] for name, values in result[policy].items()}
        gap = late["type"] - late["group"]
        result[policy]["recovered"] = {"late_ratio": (late["type"] - late["online"]) / gap if gap else float("nan")}
    return result
