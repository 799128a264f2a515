"""The scenarios by name (`data/paper.toml` with its variants, `data/gavel.toml`), and clusters by name or file.

These files have a figure for everything that the seed paper leaves open; this module only reads them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.errors import InvalidInput, NotFound
from adlro.hardware.cluster_files import clusters_of_table, read_cluster, read_speeds
from adlro.hardware.speeds import GAVEL_APPLICATIONS, JOB_TYPE_OF, SHIPPED, SpeedTable
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobType
from adlro.tables import csv_rows, toml_table
from adlro.workload.arrivals import Arrivals, Batch, Diurnal, FromTrace, Poisson, Surges
from adlro.workload.work import LognormalWork, LogUniformWork, ParetoWork, Work

__all__ = [
    "SCENARIO_NAMES",
    "Group",
    "Scenario",
    "load_cluster",
    "load_scenario",
    "load_speeds",
    "read_cluster",
    "read_speeds",
    "user_name",
]

SCENARIO_NAMES = ("paper", "paper_roomy", "batch", "surge", "diurnal", "heavy_tails", "gavel", "trace")


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
            job_type: tuple(name for name, each in self.job_types.items() if each is job_type) for job_type in JobType
        }


@functools.cache
def load_scenario(name: str = "paper") -> Scenario:
    """A scenario by name.

    Raises:
        NotFound: no such scenario.
    """
    if name not in SCENARIO_NAMES:
        raise NotFound(f"no scenario '{name}'; there are {', '.join(SCENARIO_NAMES)}", field="scenario")
    file = "gavel.toml" if name == "gavel" else "paper.toml"
    table = toml_table("adlro.workload", file)
    table = _merged(table, table.get("variants", {}).get(name, {}))
    cluster, _ = clusters_of_table(table["cluster"], file)
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
        job_types=dict.fromkeys(GAVEL_APPLICATIONS, JobType.MACHINE_LEARNING) if name == "gavel" else JOB_TYPE_OF,
    )
    return dataclasses.replace(drawn, groups=_paper_groups() if name != "gavel" else _equal_groups(drawn))


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
            return LogUniformWork(tuple((share, low, high) for share, low, high in table["pieces"]))
        case other:
            raise ValueError(f"no distribution of work '{other}'")


def _paper_groups() -> tuple[Group, ...]:
    return tuple(
        Group(row["user"], row["application"], JobType[row["job_type"].upper()], float(row["mean_work_s"]))
        for row in csv_rows("adlro.workload", "paper_groups.csv")
    )


def _equal_groups(scenario: Scenario) -> tuple[Group, ...]:
    """Every user and application with the mean of the distribution, which has no groups."""
    return tuple(
        Group(user_name(number), application, job_type, scenario.work.expected_s(0.0))
        for application, job_type in scenario.job_types.items()
        for number in scenario.user_numbers(application)
    )


def _by_job_type(table: Mapping[str, Any]) -> dict[JobType, Any]:
    return {job_type: table[job_type.label] for job_type in JobType}
