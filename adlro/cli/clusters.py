"""The choice of the simulated cluster: by option or environment, checked before any start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.shell import say
from adlro.errors import InvalidInput

if TYPE_CHECKING:
    from adlro.records.cluster import Cluster

SETTING = "ADLRO_SIMCLUSTER_CLUSTER"
DEFAULT = "paper"
NAMES = ("paper", "paper_roomy", "gavel")
RESERVED = ("local", "slurm", "ray")
"""Names of clusters that are not simulated; a file of such a name is `./local`."""

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE",
        help="The cluster to simulate: paper (16 GPUs, 20 cores a node), paper_roomy (32 cores), gavel (24 GPUs of"
        f" three other models), or a TOML file (docs/workloads.md). Default: ${SETTING}, else {DEFAULT}.",
        show_default=False,
    ),
]
ScenarioOption = Annotated[
    str | None, typer.Option("--scenario", hidden=True, help="Deprecated: --cluster.", show_default=False)
]

# Keys of the file that differ from the contracts' names.
_FILE_KEYS = {"node_id": "name", "gpu_id": "name", "memory_mib": "gpu_memory_mib"}


def chosen_cluster(cluster: str | None, scenario: str | None = None) -> str:
    """The cluster for simcluster: a name, or the absolute path of a file. Warns of the deprecated option.

    Args:
        cluster: value of --cluster.
        scenario: value of --scenario.

    Raises:
        InvalidInput: both options, a reserved name, no such name or file, or a file with a cluster that the services
            refuse; names option, file and field.
    """
    if scenario is not None:
        if cluster is not None:
            raise InvalidInput("--scenario is the former name of --cluster; leave it out", field="--scenario")
        say("[yellow]--scenario is deprecated: write --cluster[/]")
    option = "--cluster" if cluster is not None else "--scenario" if scenario is not None else SETTING
    named = cluster if cluster is not None else scenario if scenario is not None else os.environ.get(SETTING) or None
    if named is None:
        return DEFAULT
    if named in RESERVED:
        raise InvalidInput(
            f"{option}: {named!r} is kept for clusters that are not simulated, which are not supported yet; name "
            f"one of {', '.join(NAMES)}, or a TOML file (one of that name: ./{named})",
            field=option,
        )
    from adlro.workload.scenario import SCENARIO_NAMES, load_cluster

    if named in SCENARIO_NAMES:
        return named
    if not Path(named).is_file():
        raise InvalidInput(
            f"{option}: {named!r} is neither a cluster's name ({', '.join(NAMES)}) nor a file", field=option
        )
    _check_file(named, load_cluster(named))
    return str(Path(named).absolute())


def _check_file(path: str, cluster: Cluster) -> None:
    """Raises InvalidInput if ingest would refuse the cluster of a file."""
    from adlro.client.clusters import check_cluster
    from adlro.hardware.specs import GPU_SPECS, known_spec

    try:
        check_cluster(cluster)
    except InvalidInput as error:
        told = dict.fromkeys(f"{path}: {_file_key(each.field)}: {each.description}" for each in error.violations)
        raise InvalidInput("; ".join(told), violations=error.violations) from None
    for number, node in enumerate(cluster.nodes):
        for gpu in node.gpus:
            if known_spec(gpu) is None:
                field = f"nodes[{number}].gpu_model"
                raise InvalidInput(
                    f"{path}: {field}: no figures of {gpu.gpu_model!r} are known, by which telemetry is normalised; "
                    "add memory_bandwidth_gb_per_s, power_limit_w and max_temperature_c to the node, or use one of "
                    f"{', '.join(GPU_SPECS)}",
                    field=field,
                )


def _file_key(field: str) -> str:
    """`cluster.nodes[0].gpus[1].memory_mib` of the contracts as the file's key: `nodes[0].gpu_memory_mib`."""
    *above, key = field.removeprefix("cluster.").split(".")
    if key == "node_id" or any(each.startswith("gpus[") for each in above):
        key = _FILE_KEYS.get(key, key)
    return ".".join([*(each for each in above if each != "spec" and not each.startswith("gpus[")), key])
