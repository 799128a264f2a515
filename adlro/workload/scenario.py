"""The scenarios by name, and clusters by name or file.

`data/paper.toml` and `data/gavel.toml` have a figure for everything that the seed paper leaves open; `data/gangs.toml`
and `data/shared.toml` have what differs from these in the scenarios with jobs of several GPUs, jobs that can be
stopped, and jobs that share GPUs. This module only reads them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.errors import InvalidInput, NotFound
from adlro.hardware.cluster_files import clusters_of_table, read_cluster, read_speeds
from adlro.hardware.speeds import GAVEL_APPLICATIONS, JOB_TYPE_OF, SHIPPED, SpeedTable
from adlro.numeric.exact import exp, log
from adlro.package_data import csv_rows, toml_table
from adlro.records.cluster import Cluster, Node
from adlro.records.jobs import KINDS_OF_WORK, JobType
from adlro.workload.arrivals import Arrivals, Batch, Diurnal, FromTrace, Poisson, Surges
from adlro.workload.work import LognormalWork, LogUniformWork, ParetoWork, Work

__all__ = [
    "ONE_GPU_SCENARIO_NAMES",
    "SCENARIO_NAMES",
    "GangSize",
    "Group",
    "Scenario",
    "load_cluster",
    "load_scenario",
    "load_speeds",
    "median_work_of",
    "read_cluster",
    "read_speeds",
    "user_name",
]

ONE_GPU_SCENARIO_NAMES = ("paper", "paper_roomy", "batch", "surge", "diurnal", "heavy_tails", "gavel")
"""Scenarios whose jobs have one GPU each, run to their end, and share nothing."""
_FILES: Mapping[str, tuple[str, ...]] = {
    "paper.toml": ("paper", "paper_roomy", "batch", "surge", "diurnal", "heavy_tails", "trace"),
    "gavel.toml": ("gavel",),
    "gangs.toml": (
        *("gangs", "gangs_64", "gangs_256"),
        *("gangs_philly", "gangs_philly_64", "gangs_philly_256"),
        *("gangs_heavy", "gangs_heavy_64", "gangs_heavy_256"),
        *("preemptive", "preemptive_64", "preemptive_256"),
        *("preemptive_20s", "preemptive_240s", "preemptive_600s"),
    ),
    "shared.toml": ("shared", "shared_64", "shared_256"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}
SCENARIO_NAMES = (*ONE_GPU_SCENARIO_NAMES, *_FILES["gangs.toml"], *_FILES["shared.toml"], "trace")
"""A number at the end is the cluster's number of GPUs, 16 without one; with an `s`, the restart of a job of an hour."""


@dataclass(frozen=True, slots=True)
class GangSize:
    """A number of GPUs of a job, its share of all jobs, and the factor by which jobs of this size have more work."""

    gpu_count: int
    share: float
    work_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of one user with one application: their work is distributed around `mean_work_s`."""

    user: str
    application: str
    job_type: JobType
    mean_work_s: float


@dataclass(frozen=True)  # no slots: cached properties need a __dict__
class Scenario:
    """A cluster and the rules to draw jobs for it (`adlro.workload.job_lists`).

    Work is in seconds on the reference GPU; choices are (value, probability).
    """

    name: str
    cluster: Cluster
    capacity_jobs_per_h: float
    loads: tuple[float, ...]
    job_count: int
    mix: Mapping[JobType, float]
    users: int
    users_per_application: int
    median_work_s: Mapping[JobType, float]
    sigma_group: float
    sigma_job: float
    min_work_s: float
    max_work_s: float
    gpu_memory_mib: Mapping[JobType, tuple[int, ...]]
    cpu_cores: Mapping[JobType, tuple[tuple[int, float], ...]]
    memory_mib_per_core: int
    priorities: tuple[tuple[float, float], ...]
    groups: tuple[Group, ...]
    arrivals: Arrivals
    work: Work
    job_types: Mapping[str, JobType]
    """The job type of each listed application; their order gives their numbers in the rule for users."""
    gang_sizes: tuple[GangSize, ...] = ()
    """Numbers of GPUs, drawn independently of all else; empty: every job has one, and nothing is drawn."""
    restart_s: float | None = None
    """Cost of a restart after a stop, for jobs that lose no progress; None: jobs can't be stopped."""
    preemptible_share: float = 1.0
    """Share of the jobs whose users let them be stopped, where any can be; drawn independently of all else."""
    shareable: bool = False
    """Whether every job may share its GPU with another."""

    def work_factor(self, gpu_count: int) -> float:
        """By how much jobs of a size have more work than a group's mean; 1 for a size that isn't drawn."""
        return next((size.work_factor for size in self.gang_sizes if size.gpu_count == gpu_count), 1.0)

    def user_numbers(self, application: str) -> tuple[int, ...]:
        """The users of a listed application, equally likely."""
        return self._users_of[application]

    def applications(self, job_type: JobType) -> tuple[str, ...]:
        """The listed applications of a job type, equally likely."""
        return self._applications_of[job_type]

    @functools.cached_property
    def _users_of(self) -> dict[str, tuple[int, ...]]:
        count = self.users_per_application
        return {
            name: tuple((count * i + k) % self.users for k in range(count)) for i, name in enumerate(self.job_types)
        }

    @functools.cached_property
    def _applications_of(self) -> dict[JobType, tuple[str, ...]]:
        return {
            job_type: tuple(name for name, each in self.job_types.items() if each is job_type)
            for job_type in KINDS_OF_WORK
        }


def median_work_of(medians_s: Mapping[JobType, float], job_type: JobType) -> float:
    """The median work of a job type, seconds on the reference GPU; the geometric mean of all for an unspecified one."""
    known = medians_s.get(job_type)
    return known if known is not None else exp(math.fsum(log(each) for each in medians_s.values()) / len(medians_s))


@functools.cache
def load_scenario(name: str = "paper") -> Scenario:
    """A scenario by name.

    Raises:
        NotFound: no such scenario.
    """
    if name not in SCENARIO_NAMES:
        raise NotFound(f"no scenario '{name}'; there are {', '.join(SCENARIO_NAMES)}", field="scenario")
    table = _scenario_table(name)
    cluster, _ = clusters_of_table(table["cluster"], _FILE_OF[name])
    cluster = _copies(cluster, table.get("copies", 1))
    if "cpu_cores_per_node" in table:
        cores = int(table["cpu_cores_per_node"])
        cluster = dataclasses.replace(
            cluster, nodes=tuple(dataclasses.replace(node, cpu_cores=cores) for node in cluster.nodes)
        )
    work = table["work_s"]
    drawn = Scenario(
        name=name,
        cluster=cluster,
        capacity_jobs_per_h=float(table.get("capacity_jobs_per_h", table["arrivals"]["capacity_jobs_per_h"])),
        loads=tuple(table["arrivals"]["loads"]),
        job_count=table["arrivals"]["jobs"],
        mix=_by_job_type(table["mix"]),
        users=work["users"],
        users_per_application=work["users_per_application"],
        median_work_s=_by_job_type(work["median"]),
        sigma_group=work["sigma_group"],
        sigma_job=work["sigma_job"],
        min_work_s=work["minimum"],
        max_work_s=work["maximum"],
        gpu_memory_mib={key: tuple(values) for key, values in _by_job_type(table["gpu_memory_mib"]).items()},
        cpu_cores={
            key: tuple((int(cores), float(share)) for cores, share in values)
            for key, values in _by_job_type(table["cpu_cores"]).items()
        },
        memory_mib_per_core=table["memory_mib"]["per_core"],
        priorities=tuple((float(level), float(share)) for level, share in table["priority"]["levels"]),
        groups=(),
        arrivals=_arrivals(table["arrivals"]),
        work=_work(work),
        job_types=JOB_TYPE_OF
        if table.get("applications") != "gavel"
        else dict.fromkeys(GAVEL_APPLICATIONS, JobType.MACHINE_LEARNING),
        gang_sizes=_gang_sizes(table.get("gang_sizes", [])),
        restart_s=table.get("restart_s"),
        shareable=table.get("shareable", False),
    )
    own_means = drawn.sigma_group > 0
    return dataclasses.replace(drawn, groups=_paper_groups() if own_means else _equal_groups(drawn))


def load_cluster(name_or_path: str) -> Cluster:
    """The cluster of a scenario by name, or of a TOML file by path.

    Raises:
        InvalidInput: no such scenario and no such file, or an invalid field in the file.
    """
    if name_or_path in SCENARIO_NAMES:
        return load_scenario(name_or_path).cluster
    return read_cluster(_cluster_path(name_or_path))


def load_speeds(name_or_path: str) -> SpeedTable:
    """The speeds for `load_cluster`: the included ones, with the file's own.

    Raises:
        InvalidInput: as for `load_cluster`.
    """
    if name_or_path in SCENARIO_NAMES:
        return SHIPPED
    return read_speeds(_cluster_path(name_or_path))


def user_name(number: int) -> str:
    """A user of the scenario's population: 7 is `user-07`."""
    return f"user-{number:02d}"


def _cluster_path(name_or_path: str) -> Path:
    if not Path(name_or_path).is_file():
        raise InvalidInput(
            f"'{name_or_path}' is neither a scenario ({', '.join(SCENARIO_NAMES)}) nor a file", field="cluster"
        )
    return Path(name_or_path)


def _scenario_table(name: str) -> dict[str, Any]:
    """The table of a scenario: its variant's changes to those that it is `like`, to its file, to the file's `base`."""
    table = toml_table("adlro.workload", _FILE_OF[name])
    variants = table.pop("variants", {})
    if "base" in table:
        base = toml_table("adlro.workload", table["base"])
        base.pop("variants", None)
        table = _merged(base, table)
    chain: list[dict[str, Any]] = []
    like: str | None = name
    while like is not None:
        variant = variants.get(like, {})
        chain.append(variant)
        like = variant.get("like")
    return functools.reduce(_merged, reversed(chain), table)


def _copies(cluster: Cluster, times: int) -> Cluster:
    """A cluster with so many times the nodes; those of one name's stem are one after the other, numbered from 0."""
    if times == 1:
        return cluster
    of_stem: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        of_stem.setdefault(node.node_id.rpartition("-")[0], []).append(node)
    nodes = []
    for stem, originals in of_stem.items():
        for number in range(times * len(originals)):
            node_id, node = f"{stem}-{number}", originals[number % len(originals)]
            gpus = tuple(dataclasses.replace(gpu, gpu_id=f"{node_id}/{i}") for i, gpu in enumerate(node.gpus))
            nodes.append(dataclasses.replace(node, node_id=node_id, gpus=gpus))
    return dataclasses.replace(cluster, nodes=tuple(nodes))


def _gang_sizes(rows: Sequence[Sequence[float]]) -> tuple[GangSize, ...]:
    total = math.fsum(share for _, share, _ in rows)
    return tuple(GangSize(int(gpus), share / total, float(factor)) for gpus, share, factor in rows)


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with the changes of a variant."""
    merged = dict(table)
    for key, value in changes.items():
        merged[key] = _merged(merged[key], value) if isinstance(value, dict) else value
    return merged


def _arrivals(table: Mapping[str, Any]) -> Arrivals:
    match table["process"]:
        case "poisson":
            return Poisson()
        case "batch":
            return Batch()
        case "diurnal":
            return Diurnal(table["period_s"], table["amplitude"])
        case "surge":
            job_type = JobType[table["job_type"].upper()]
            return Surges(job_type, table["factor"], table["first_s"], table["length_s"], table["every_s"])
        case "trace":
            return FromTrace()
        case other:
            raise ValueError(f"no arrival process '{other}'")


def _work(table: Mapping[str, Any]) -> Work:
    match table["distribution"]:
        case "lognormal":
            return LognormalWork(table["sigma_job"], table["minimum"], table["maximum"])
        case "bounded_pareto":
            return ParetoWork(table["alpha"], table["ratio"], table["scale"], table["minimum"])
        case "log_uniform":
            pieces = tuple((share, low, high) for share, low, high in table["pieces"])
            return LogUniformWork(pieces, table["unit_s"])
        case other:
            raise ValueError(f"no distribution of work '{other}'")


def _paper_groups() -> tuple[Group, ...]:
    return tuple(
        Group(row["user"], row["application"], JobType[row["job_type"].upper()], float(row["mean_work_s"]))
        for row in csv_rows("adlro.workload", "paper_groups.csv")
    )


def _equal_groups(scenario: Scenario) -> tuple[Group, ...]:
    """Every user and application with the same mean, for distributions without groups."""
    of_all = scenario.work.expected_s(0.0) if isinstance(scenario.work, LogUniformWork) else None
    return tuple(
        Group(user_name(number), application, job_type, scenario.median_work_s[job_type] if of_all is None else of_all)
        for application, job_type in scenario.job_types.items()
        for number in scenario.user_numbers(application)
    )


def _by_job_type(table: Mapping[str, Any]) -> dict[JobType, Any]:
    return {job_type: table[job_type.label] for job_type in KINDS_OF_WORK}
