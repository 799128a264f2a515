"""Job lists drawn by a scenario's rules.

The rules are in the TOML files of `data/`: an arrival process (`adlro.workload.arrivals`), a mix of job types,
applications equally likely within a type, three users per application, work distributed around the mean of its (user,
application) (`adlro.workload.work`), and, in some scenarios, a number of GPUs. Traces: `adlro.workload.traces`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from adlro.errors import InvalidInput
from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.numeric.draws import standard_normal
from adlro.numeric.exact import exp
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, Preemptible, SimulatedWork
from adlro.workload.scenario import Group, Scenario, user_name

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """One job of a list: its submission, its demands and its work.

    Attributes:
        work_s, expected_runtime_s: the work, and the user's estimate, if any: seconds on the reference GPU; for a job
            of several GPUs, on that many of them, packed.
        gpu_memory_mib, cpu_cores, memory_mib: what it asks for with each of its GPUs.
        source_line: its line, for a job from a file.
        gpu_count: its GPUs, all of one model.
        max_node_count: most nodes that it may be on; 0: any number.
        gpu_models: the models that it accepts; empty: any.
        preemptible: what a stop costs; None: it can't be stopped.
        shareable: whether it may share its GPU with another job.
        exclusive: no other job runs on its nodes while it runs.
        node_ids: the nodes that it may run on; empty: any. A name that the cluster does not have stands for no node.
        excluded_node_ids: the nodes that it must not run on.
    """

    submit_s: float
    user: str
    application: str
    job_type: JobType
    work_s: float
    gpu_memory_mib: int
    cpu_cores: int
    memory_mib: int
    priority: float
    expected_runtime_s: float | None = None
    source_line: int | None = field(default=None, compare=False)
    gpu_count: int = 1
    max_node_count: int = 0
    gpu_models: tuple[str, ...] = ()
    preemptible: Preemptible | None = None
    shareable: bool = False
    exclusive: bool = False
    node_ids: tuple[str, ...] = ()
    excluded_node_ids: tuple[str, ...] = ()

    def accepts_node(self, node_id: str) -> bool:
        """Whether it may run on a node."""
        return (not self.node_ids or node_id in self.node_ids) and node_id not in self.excluded_node_ids

    def spec(self, name: str) -> JobSpec:
        """The spec to submit: it begins at `submit_s`, and a simulated cluster runs `work_s`."""
        expected = self.expected_runtime_s
        return JobSpec(
            name=name,
            user=self.user,
            job_type=self.job_type,
            application=self.application,
            priority=self.priority,
            cpu_cores=self.cpu_cores,
            memory_mib=self.memory_mib,
            gpu_memory_mib=self.gpu_memory_mib,
            gpu_count=self.gpu_count,
            expected_runtime=None if expected is None else ExpectedRuntime(REFERENCE_GPU_MODEL, expected),
            begin_time_s=self.submit_s,
            simulated_work=SimulatedWork(self.work_s),
            max_node_count=self.max_node_count,
            gpu_models=self.gpu_models,
            preemptible=self.preemptible,
            shareable=self.shareable,
            exclusive=self.exclusive,
            node_ids=self.node_ids,
            excluded_node_ids=self.excluded_node_ids,
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """The demands of a job, drawn from the scenario."""

    gpu_memory_mib: int
    cpu_cores: int
    memory_mib: int
    priority: float


def draw_jobs(
    scenario: Scenario,
    *,
    load: float,
    rng: np.random.Generator,
    count: int | None = None,
    groups: Sequence[Group] | None = None,
) -> list[WorkloadJob]:
    """Draws a job list.

    Args:
        scenario: the rules.
        load: arrival rate as a share of the scenario's capacity (`adlro.workload.arrivals` defines the share for a
            varying rate).
        rng: the generator; a list of n jobs is the beginning of a longer one drawn from an equal generator.
        count: number of jobs; the scenario's own if left out.
        groups: the population; the scenario's own where left out (`draw_groups` makes others).

    Returns:
        Jobs in the order of submission; times and work to the millisecond, as in the files of such lists.

    Raises:
        InvalidInput: load or count is not above 0, or the scenario's jobs come from a file.
    """
    if not 0 < load < math.inf:
        raise InvalidInput(f"load must be above 0 and finite, not {load}", field="load")
    count = scenario.job_count if count is None else count
    if count <= 0:
        raise InvalidInput(f"count must be above 0, not {count}", field="count")
    mean_work_s = {
        (group.user, group.application): group.mean_work_s for group in (scenario.groups if groups is None else groups)
    }
    mean_gap_s = 3600.0 / (load * scenario.capacity_jobs_per_h)
    preemptible = None if scenario.restart_s is None else Preemptible(scenario.restart_s)
    may_stop = np.ones(count, dtype=np.bool_)
    if scenario.preemptible_share < 1.0:  # from a stream of its own: all else of the list is the same with any share
        may_stop = rng.spawn(1)[0].random(count) < scenario.preemptible_share
    jobs = []
    now_s = 0.0
    for number in range(count):
        now_s = scenario.arrivals.next_s(now_s, mean_gap_s, scenario.mix, rng)
        job_type, application = draw_application(scenario, rng, scenario.arrivals.mix_at(now_s, scenario.mix))
        user = draw_user(scenario, application, rng)
        work_s = scenario.work.draw_s(mean_work_s[user, application], rng)
        demand = draw_demand(scenario, job_type, rng)
        gpu_count = draw_gpu_count(scenario, rng)
        work_s *= scenario.work_factor(gpu_count)
        jobs.append(
            WorkloadJob(
                submit_s=round(now_s, 3),
                user=user,
                application=application,
                job_type=job_type,
                work_s=round(work_s, 3),
                gpu_memory_mib=demand.gpu_memory_mib,
                cpu_cores=demand.cpu_cores,
                memory_mib=demand.memory_mib,
                priority=demand.priority,
                gpu_count=gpu_count,
                preemptible=preemptible if may_stop[number] else None,
                shareable=scenario.shareable,
            )
        )
    return jobs


def draw_groups(scenario: Scenario, rng: np.random.Generator) -> tuple[Group, ...]:
    """Another population: the same users and applications, but each pair has its own new mean work."""
    return tuple(
        Group(
            user=user_name(number),
            application=application,
            job_type=job_type,
            mean_work_s=scenario.median_work_s[job_type] * exp(scenario.sigma_group * standard_normal(rng)),
        )
        for application, job_type in scenario.job_types.items()
        for number in scenario.user_numbers(application)
    )


def draw_application(
    scenario: Scenario, rng: np.random.Generator, mix: Mapping[JobType, float] | None = None
) -> tuple[JobType, str]:
    """A job type by the mix (the scenario's if left out), and one of its applications."""
    job_type = _draw(tuple((scenario.mix if mix is None else mix).items()), rng)
    applications = scenario.applications(job_type)
    return job_type, applications[int(rng.integers(len(applications)))]


def draw_user(scenario: Scenario, application: str, rng: np.random.Generator) -> str:
    """One of an application's users."""
    numbers = scenario.user_numbers(application)
    return user_name(numbers[int(rng.integers(len(numbers)))])


def draw_demand(scenario: Scenario, job_type: JobType, rng: np.random.Generator) -> Demand:
    """Memory, cores and priority of a job of a type."""
    memory = scenario.gpu_memory_mib[job_type]
    gpu_memory_mib = memory[int(rng.integers(len(memory)))]
    cpu_cores = _draw(scenario.cpu_cores[job_type], rng)
    return Demand(gpu_memory_mib, cpu_cores, cpu_cores * scenario.memory_mib_per_core, _draw(scenario.priorities, rng))


def draw_gpu_count(scenario: Scenario, rng: np.random.Generator) -> int:
    """A job's number of GPUs; 1, without a random number, where the scenario has no gangs."""
    if not scenario.gang_sizes:
        return 1
    return _draw([(size.gpu_count, size.share) for size in scenario.gang_sizes], rng)


def _draw(choices: Sequence[tuple[_T, float]], rng: np.random.Generator) -> _T:
    # One uniform number per choice, so that every job draws the same count of random numbers.
    # Summed in a loop: `sum` rounds differently from Python 3.12 on.
    total = 0.0
    for _, share in choices:
        total += share
    point = rng.random() * total
    for value, share in choices:
        point -= share
        if point < 0:
            return value
    return choices[-1][0]
