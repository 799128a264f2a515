"""The three rules of the paper scenario's README, driven straight through ClusterSimulator: what expected.csv is for.

Written from that README alone; shares nothing with the orchestrator's policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from adlro.hardware.speeds import speed
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.sim.runs import SimulatedGpu
from adlro.sim.simulator import ClusterSimulator
from adlro.workload.job_lists import WorkloadJob

Start = tuple[int, str]
"""A job's number in the list, and the GPU to start it on."""
Queue = list[int]


class PaperRun:
    """One job list under one rule, begun at `begin_s` of cluster time."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: list[WorkloadJob],
        rule: Callable[[PaperRun], Start | None],
        begin_s: float = 0.0,
    ) -> None:
        self.jobs = [replace(job, submit_s=round(begin_s + job.submit_s, 6)) for job in jobs]
        self.simulator = ClusterSimulator(cluster, time_s=begin_s)
        self.queue: Queue = []
        self._rule = rule
        self._gpus: list[SimulatedGpu] = []

    def run(self) -> tuple[float, float]:
        """Mean JCT over all jobs, and makespan from the first submission."""
        ends: dict[int, float] = {}
        submitted = 0
        while len(ends) < len(self.jobs):
            times = [self.simulator.next_event_time()]
            if submitted < len(self.jobs):
                times.append(self.jobs[submitted].submit_s)
            now_s = min(time for time in times if time is not None)
            for event in self.simulator.advance_to(now_s):
                ends[int(event.job_id)] = event.time_s
            while submitted < len(self.jobs) and self.jobs[submitted].submit_s == now_s:
                self.queue.append(submitted)
                submitted += 1
            while (start := self._decide()) is not None:
                number, gpu_id = start
                self.queue.remove(number)
                self.simulator.launch(str(number), 1, self.jobs[number].spec(f"job {number}"), Placement.on(gpu_id))
        jct_s = [ends[number] - job.submit_s for number, job in enumerate(self.jobs)]
        return sum(jct_s) / len(jct_s), max(ends.values()) - self.jobs[0].submit_s

    def _decide(self) -> Start | None:
        self._gpus = list(self.simulator.gpus.values())
        return self._rule(self)

    def fitting(self, number: int) -> list[SimulatedGpu]:
        """The GPUs where a job fits now, lowest number first."""
        job = self.jobs[number]
        used: dict[int, int] = {}
        for state in self._gpus:
            if state.running is not None:
                cores = self.jobs[int(state.running.job_id)].cpu_cores
                used[state.node] = used.get(state.node, 0) + cores
        nodes = self.simulator.cluster.nodes
        return [
            state
            for state in self._gpus
            if state.running is None
            and job.gpu_memory_mib <= state.gpu.memory_mib
            and job.cpu_cores <= nodes[state.node].cpu_cores - used.get(state.node, 0)
        ]

    def duration_s(self, number: int, state: SimulatedGpu) -> float:
        job = self.jobs[number]
        return job.work_s / speed(job.application, job.job_type, state.gpu.gpu_model)


def fcfs(run: PaperRun) -> Start | None:
    if not run.queue or not (fitting := run.fitting(run.queue[0])):
        return None
    return run.queue[0], fitting[0].gpu.gpu_id


def fcfs_fastest(run: PaperRun) -> Start | None:
    if not run.queue or not (fitting := run.fitting(run.queue[0])):
        return None
    return run.queue[0], min(fitting, key=lambda state: run.duration_s(run.queue[0], state)).gpu.gpu_id


def sjf(run: PaperRun) -> Start | None:
    pairs = [(run.duration_s(number, state), number, state) for number in run.queue for state in run.fitting(number)]
    if not pairs:
        return None
    _, number, state = min(pairs, key=lambda pair: (pair[0], pair[1], pair[2].number))
    return number, state.gpu.gpu_id
