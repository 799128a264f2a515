"""How fast the simulator is, beside a SimPy model of the same cluster, jobs and rule in the same run.

    python -m benchmarks.simulator [--seed N] [--seconds S] [--json FILE]

Three tables: jobs a core-second under FCFS without an observation, beside SimPy, on the same lists, whose mean
completion times must agree; decisions a core-second with the observation alone, and with the planes of a window as the
policy that ships sees them, in training, evaluation and service, by window and by GPUs; one `step` of one Gymnasium
environment.

A core-second is one second of CPU time of this process, which runs on one core. Decisions are those of
hold_greedy_fixed, which stand among the planes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from adlro.decide.planes.choice import actions_of
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.hardware.speeds import speed
from adlro.lab.learn.env import PlacementEnv
from adlro.numeric.compiled import compiled
from adlro.records.cluster import Cluster, Gpu
from adlro.sim.batch import BatchSimulator, change_arrays
from adlro.sim.course import DECISION, Course, GpuChanges, new_course
from adlro.sim.kernel import advance, begin, hold
from adlro.sim.starts import start
from adlro.state.cluster_arrays import Hardware, Machines, empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario

LOAD = 0.9
WINDOWS = (0, 8, 32, 128)
GPUS = (16, 64, 256, 1024)
REPEATS = 5
JOBS = 256
FCFS_LISTS = 64
BATCH_GPUS = 4096
"""Clusters x GPUs of a batch: 256 clusters of 16."""


def copies(cluster: Cluster, times: int) -> Cluster:
    """A cluster with each node so many times."""
    nodes = tuple(
        dataclasses.replace(
            node,
            node_id=f"{node.node_id}.{copy}",
            gpus=tuple(dataclasses.replace(gpu, gpu_id=f"{gpu.gpu_id}.{copy}") for gpu in node.gpus),
        )
        for copy in range(times)
        for node in cluster.nodes
    )
    return dataclasses.replace(cluster, nodes=nodes)


def draw(lists: int, jobs: int, seed: int, times: int = 1) -> list[list[WorkloadJob]]:
    """Lists of the scenario `paper`, for a cluster so many times as large."""
    scenario = load_scenario("paper")
    seeds = np.random.SeedSequence(seed).spawn(lists)
    drawn = [draw_jobs(scenario, load=LOAD, rng=np.random.default_rng(each), count=jobs) for each in seeds]
    return [[dataclasses.replace(job, submit_s=job.submit_s / times) for job in one] for one in drawn]


def rates(step: Callable[[], int], seconds: float) -> list[float]:
    """What `step` counts, a core-second, in each of a few stretches, after a warm-up."""
    for _ in range(3):
        step()
    found = []
    for _ in range(REPEATS):
        count, began = 0, time.process_time()
        while (passed_s := time.process_time() - began) < seconds / REPEATS:
            count += step()
        found.append(count / passed_s)
    return found


def rate(step: Callable[[], int], seconds: float) -> float:
    """The median of the stretches."""
    return statistics.median(rates(step, seconds))


def decisions_per_core_s(window: int, gpus: int, seed: int, seconds: float) -> dict[str, float]:
    """Decisions of hold_greedy_fixed with the planes of a window; 0: with the observation alone.

    The best stretch is the least disturbed.
    """
    times = gpus // 16
    cluster = copies(load_scenario("paper").cluster, times)
    clusters = max(BATCH_GPUS // gpus, 4)
    lists = min(clusters, 64)
    jobs = pack_jobs(draw(lists, JOBS * min(times, 16), seed, times), cluster)
    numbers = np.arange(clusters)
    simulator = BatchSimulator(cluster, jobs, begin_with=[int(n) for n in numbers % lists])
    filler, policy = PlaneFiller(FIXED.rule(), max(window, 1)), HoldGreedyFixed()
    policy.wait_ratio = float("inf")

    def step() -> int:
        count = len(simulator.active)
        observation = simulator.observe()
        if window:
            planes = filler.fill(observation)
            simulator.act(actions_of(planes, planes.base))
        else:
            simulator.act(policy.act(observation))
        ended = np.setdiff1d(numbers, simulator.active)
        if len(ended):
            simulator.begin(ended, ended % lists)
        return count

    found = rates(step, seconds)
    return {
        "window": window,
        "gpus": gpus,
        "decisions_per_core_s": statistics.median(found),
        "best_stretch": max(found),
    }


class SimpyFcfs:
    """FCFS on one cluster in SimPy: a process of arrivals, a process for each run, dispatch in between."""

    def __init__(self, cluster: Cluster, jobs: Sequence[WorkloadJob]) -> None:
        self._environment = simpy.Environment()
        self._jobs = jobs
        self._gpus = [(n, gpu) for n, node in enumerate(cluster.nodes) for gpu in node.gpus]
        self._idle = [True] * len(self._gpus)
        self._cores = [node.cpu_cores for node in cluster.nodes]
        self._memory = [node.memory_mib for node in cluster.nodes]
        self._queue: deque[WorkloadJob] = deque()
        self.completion_s: list[float] = []

    def run(self) -> float:
        """Mean completion time."""
        self._environment.process(self._arrivals())
        self._environment.run()
        return sum(self.completion_s) / len(self.completion_s)

    def _arrivals(self) -> Any:
        for job in self._jobs:
            yield self._environment.timeout(job.submit_s - self._environment.now)
            self._queue.append(job)
            self._dispatch()

    def _dispatch(self) -> None:
        while self._queue:
            job = self._queue[0]
            for number, (node, gpu) in enumerate(self._gpus):
                if (
                    self._idle[number]
                    and job.gpu_memory_mib <= gpu.memory_mib
                    and job.cpu_cores <= self._cores[node]
                    and job.memory_mib <= self._memory[node]
                ):
                    break
            else:
                return
            self._queue.popleft()
            self._idle[number] = False
            self._cores[node] -= job.cpu_cores
            self._memory[node] -= job.memory_mib
            self._environment.process(self._run(number, node, gpu, job))

    def _run(self, number: int, node: int, gpu: Gpu, job: WorkloadJob) -> Any:
        yield self._environment.timeout(job.work_s / speed(job.application, job.job_type, gpu.gpu_model))
        self._idle[number] = True
        self._cores[node] += job.cpu_cores
        self._memory[node] += job.memory_mib
        self.completion_s.append(self._environment.now - job.submit_s)
        self._dispatch()


@compiled
def play_fcfs(hardware: Hardware, machines: Machines, jobs: JobArrays, changes: GpuChanges, course: Course) -> int:
    """Every cluster runs its list from the begin to the end under FCFS, without an observation; returns the jobs."""
    started = 0
    for n in range(hardware.gpu_count.shape[0]):
        begin(hardware, machines, jobs, changes, course, n, course.list_of[n])
        while course.status[n] == DECISION:
            head, gpu = course.waiting[n, 0], 0
            while gpu < hardware.gpu_count[n] and not start(hardware, machines, jobs, course, n, head, gpu):
                gpu += 1
            if gpu < hardware.gpu_count[n]:
                started += 1
            else:  # another job would fit; it is not its turn
                hold(hardware, machines, jobs, course, n)
            advance(hardware, machines, jobs, changes, course, n)
    return started


def fcfs_beside_simpy(seed: int, seconds: float) -> dict[str, float]:
    """Jobs a core-second under FCFS on the same lists; raises where the completion times differ."""
    cluster = load_scenario("paper").cluster
    lists = draw(FCFS_LISTS, JOBS, seed)
    jobs = pack_jobs(lists, cluster)
    hardware = hardware_of([cluster] * FCFS_LISTS, cluster.gpu_models)
    machines, changes = empty_machines(hardware), change_arrays([[]] * FCFS_LISTS, hardware.gpu_count)
    course = new_course(hardware, jobs, changes, np.arange(FCFS_LISTS), start_cost_s=np.zeros(FCFS_LISTS))

    def play() -> int:
        return play_fcfs(hardware, machines, jobs, changes, course)

    play()
    ours_s = (course.job_end_s - jobs.submit_s).mean(axis=1)
    theirs_s = np.array([SimpyFcfs(cluster, one).run() for one in lists])
    if not np.allclose(ours_s, theirs_s, rtol=1e-9):
        raise AssertionError(f"mean completion times differ: {ours_s} and SimPy's {theirs_s}")
    turn = 0

    def run_simpy() -> int:
        nonlocal turn
        SimpyFcfs(cluster, lists[turn % FCFS_LISTS]).run()
        turn += 1
        return JOBS

    rounds = [(rate(play, seconds / 2), rate(run_simpy, seconds / 2)) for _ in range(3)]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = sorted(mine / other for mine, other in rounds)
    return {
        "jobs_per_core_s": ours,
        "simpy_jobs_per_core_s": theirs,
        "ratio": ratios[1],
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        "mean_jct_s": float(ours_s.mean()),
    }


def env_step_us(window: int, seed: int, seconds: float) -> float:
    """CPU time of one step of one environment, resets aside."""
    env = PlacementEnv(window=window)
    _, info = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    spent_s, steps = 0.0, 0
    while spent_s < seconds:
        action = np.int64(rng.choice(np.flatnonzero(info["action_mask"])))
        began = time.process_time()
        _, _, terminated, truncated, info = env.step(action)
        spent_s += time.process_time() - began
        steps += 1
        if terminated or truncated:
            _, info = env.reset()
    return spent_s / steps * 1e6


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0, help="of CPU time for each figure")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seed, seconds = arguments.seed, arguments.seconds
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, seed {seed}, ", end="")
    print(f"load {LOAD}, system load {load:.1f}, {REPEATS} stretches, medians\n")

    fcfs = fcfs_beside_simpy(seed, seconds)
    print(f"FCFS, {FCFS_LISTS} lists of {JOBS} jobs, 16 GPUs (mean completion time of both {fcfs['mean_jct_s']:.3f} s)")
    print(f"  simulator {fcfs['jobs_per_core_s']:>12,.0f} jobs/core-s")
    print(f"  SimPy     {fcfs['simpy_jobs_per_core_s']:>12,.0f} jobs/core-s")
    print(f"  ratio     {fcfs['ratio']:>12.1f} ({fcfs['ratio_low']:.1f} to {fcfs['ratio_high']:.1f})\n")

    print("Decisions of hold_greedy_fixed, with what they rest on: decisions/core-s (best stretch)")
    heads = [f"planes, window {window}" if window else "the observation" for window in WINDOWS]
    print("  GPUs    " + "".join(f"{head:>28}" for head in heads))
    cells = []
    for gpus in GPUS:
        row = [decisions_per_core_s(window, gpus, seed, seconds) for window in WINDOWS]
        cells += row
        texts = [f"{cell['decisions_per_core_s']:,.0f} ({cell['best_stretch']:,.0f})" for cell in row]
        print(f"  {gpus:>5}   " + "".join(f"{text:>28}" for text in texts))

    print("\nGymnasium, one cluster of 16 GPUs: us a step")
    steps = {window: env_step_us(window, seed, seconds / 3) for window in WINDOWS if window}
    for window, step_us in steps.items():
        print(f"  window {window:>3} {step_us:>8.1f}")
    if arguments.json:
        figures = {"seed": seed, "fcfs": fcfs, "decisions": cells, "env_step_us": steps, "system_load": load}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
