"""The scenarios `paper` and `paper_roomy` (`data/paper.toml`), and clusters described in a file of the same form.

Everything that the seed paper leaves open is a figure of that file; this module only reads and checks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from adlro.cluster import Cluster, Gpu, Node
from adlro.errors import InvalidInput, NotFound
from adlro.jobs import JobType
from adlro.sim.speeds import APPLICATIONS, JOB_TYPE_OF
from adlro.sim.tables import csv_rows, toml_table

SCENARIO_NAMES = ("paper", "paper_roomy")


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of one user with one application: their work scatters around `mean_work_s`."""

    user: str
    application: str
    job_type: JobType
    mean_work_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster and the rules by which jobs for it are drawn (`adlro.sim.workload`).

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

    def user_numbers(self, application: str) -> tuple[int, ...]:
        """The users of a listed application, equally likely."""
        first = self.users_per_application * APPLICATIONS.index(application)
        return tuple((first + k) % self.users for k in range(self.users_per_application))

    def applications(self, job_type: JobType) -> tuple[str, ...]:
        """The listed applications of a job type, equally likely."""
        return tuple(name for name in APPLICATIONS if JOB_TYPE_OF[name] is job_type)


@functools.cache
def load_scenario(name: str = "paper") -> Scenario:
    """A scenario by name.

    Raises:
        NotFound: no such scenario.
    """
    if name not in SCENARIO_NAMES:
        raise NotFound(f"no scenario '{name}'; there are {', '.join(SCENARIO_NAMES)}", field="scenario")
    table = toml_table("paper.toml")
    variant: dict[str, Any] = table["variants"].get(name, {})
    cluster = _cluster(table["cluster"], "paper.toml")
    if "cpu_cores_per_node" in variant:
        cores = int(variant["cpu_cores_per_node"])
        cluster = dataclasses.replace(
            cluster, nodes=tuple(dataclasses.replace(node, cpu_cores=cores) for node in cluster.nodes)
        )
    work = table["work_s"]
    return Scenario(
        name=name,
        cluster=cluster,
        capacity_jobs_per_h=float(variant.get("capacity_jobs_per_h", table["arrivals"]["capacity_jobs_per_h"])),
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
        groups=tuple(
            Group(row["user"], row["application"], JobType[row["job_type"].upper()], float(row["mean_work_s"]))
            for row in csv_rows("paper_groups.csv")
        ),
    )


def read_cluster(path: str | Path) -> Cluster:
    """A cluster from a TOML file with `name` and `[[nodes]]` as `[cluster]` of `data/paper.toml` has them.

    Raises:
        InvalidInput: naming the file and the field.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: is not TOML: {error}") from None
    return _cluster(table, str(path))


def load_cluster(name_or_path: str) -> Cluster:
    """The cluster of a scenario by name, or of a TOML file by path.

    Raises:
        InvalidInput: no such scenario and no such file, or a field of the file is wrong.
    """
    if name_or_path in SCENARIO_NAMES:
        return load_scenario(name_or_path).cluster
    if not Path(name_or_path).is_file():
        raise InvalidInput(
            f"'{name_or_path}' is neither a scenario ({', '.join(SCENARIO_NAMES)}) nor a file", field="cluster"
        )
    return read_cluster(name_or_path)


def _by_job_type(table: Mapping[str, Any]) -> dict[JobType, Any]:
    return {job_type: table[job_type.label] for job_type in JobType}


def _cluster(table: Mapping[str, Any], where: str) -> Cluster:
    nodes = table.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        raise InvalidInput(f"{where}: nodes: needs at least one [[nodes]] table", field="nodes")
    built = tuple(_node(node, f"nodes[{i}]", where) for i, node in enumerate(nodes))
    names = [node.node_id for node in built]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidInput(f"{where}: nodes[{i}].name: '{name}' is used twice", field=f"nodes[{i}].name")
    return Cluster(name=_Fields(table, "", where).text("name", default="default"), nodes=built)


def _node(table: object, path: str, where: str) -> Node:
    if not isinstance(table, dict):
        raise InvalidInput(f"{where}: {path}: must be a table", field=path)
    fields = _Fields(table, f"{path}.", where)
    name = fields.text("name")
    gpu = Gpu(
        gpu_id="",
        gpu_model=fields.text("gpu_model"),
        memory_mib=fields.whole("gpu_memory_mib"),
        interconnect_bandwidth_gb_per_s=fields.bandwidth("interconnect_bandwidth_gb_per_s"),
        interconnect=fields.text("interconnect", default=""),
    )
    return Node(
        node_id=name,
        cpu_cores=fields.whole("cpu_cores"),
        memory_mib=fields.whole("memory_mib"),
        gpus=tuple(dataclasses.replace(gpu, gpu_id=f"{name}/{i}") for i in range(fields.whole("gpus"))),
    )


class _Fields:
    """The keys of one table; every complaint names file and field."""

    def __init__(self, table: Mapping[str, Any], prefix: str, where: str) -> None:
        self._table = table
        self._prefix = prefix
        self._where = where

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        field = self._prefix + key
        given = f"not {self._table[key]!r}" if key in self._table else "and is missing"
        raise InvalidInput(f"{self._where}: {field}: must be {wanted}, {given}", field=field)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._table.get(key, default)
        if not isinstance(value, str) or not (value or default == ""):
            self._refuse(key, "a name in quotes")
        return value

    def whole(self, key: str) -> int:
        value = self._table.get(key)
        if type(value) is not int or value <= 0:
            self._refuse(key, "a whole number above 0")
        return value

    def bandwidth(self, key: str) -> float:
        value = self._table.get(key, 0.0)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            self._refuse(key, "a number from 0")
        return float(value)
